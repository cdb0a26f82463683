"""What a user's daemon has watched, and by which means."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from xpucached import deadlines
from xpucached.host.drivers import watched
from xpucached.kinds.variables import LEADING
from xpucached.service import owners
from xpucached.watch.watcher import WatchOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from xpucached.settings import Settings
    from xpucached.watch.watcher import Watcher


def driver_places(drivers: Iterable[Mapping[str, str]]) -> tuple[Path, ...]:
    """Return the directories in which something happens when one of these drivers changes."""
    found: dict[Path, None] = {}
    for variables in drivers:
        named = tuple(sorted((name, variables.get(name, "")) for name in LEADING))
        with contextlib.suppress(TimeoutError):
            found |= dict.fromkeys(deadlines.ask(named, functools.partial(watched, variables)))
    return tuple(found)


def glance(watcher: Watcher) -> None:
    """See whether directories that are watched are where they were; what does not answer is left to the next look."""
    with contextlib.suppress(TimeoutError):
        deadlines.ask("watch", watcher.glance)


def answering(stores: Iterable[Path]) -> list[Path]:
    """Leave out the stores whose file systems do not answer."""
    return [root for root in stores if owners.answers(root)]


def model_folders(config: Settings) -> list[Path]:
    """Return where files lie that say what models there are."""
    return [config.paths.models, config.file.parent, *([config.host_models] if config.host_models else [])]


def means(config: Settings) -> WatchOptions:
    """Return how the configuration lets changes be noticed."""
    watch_socket = config.watch.socket if config.watch.mode == "auto" else None
    return WatchOptions(watch_socket, loads=config.watch.loads, inotify=config.watch.mode != "polling")
