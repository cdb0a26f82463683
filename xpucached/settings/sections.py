"""The sections of the configuration that only this room declares; `Policy` and `ThrottlePolicy` are the domain's.

A field is a key: its type, its bounds and its default stand here and nowhere else.  What the keys mean is said by
``docs/configuration.md``; a test compares the two.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct, field

from xpucached import sockets
from xpucached.domain.bounds import DAY, Duration
from xpucached.domain.names import KindName
from xpucached.settings import store_places
from xpucached.settings.values import folders, mode, names, reference, references, socket_address


class Paths(Struct, frozen=True):
    """Where things are; the defaults depend on who we run as."""

    state: Path  #: directory of the catalog and the lock
    cache: Path  #: directory of the managed stores
    socket: Path
    socket_mode: Annotated[int, mode]
    models: Path


class Stores(Struct, frozen=True):
    """Which stores are looked after, besides our own."""

    found: bool = True
    paths: Annotated[tuple[str, ...], store_places.checked] = ()

    @property
    def places(self) -> Mapping[Path, KindName | None]:
        """The paths, and the kind of each if it is said."""
        return store_places.parted(self.paths)


class Driver(Struct, frozen=True):
    """How the driver is asked."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """What programs that use the cache find in their environment on this host."""
    probe_timeout: Annotated[float, Duration(1, 600)] = 30.0
    compile_timeout: Annotated[float, Duration(1, DAY)] = 300.0
    staged: Annotated[tuple[str, ...], folders] = ()
    """Roots of file systems that may be the next ones: folders, or patterns with ``*``."""


class Schedule(Struct, frozen=True):
    """When we look, and what follows by itself."""

    scan_interval: Annotated[float, Duration(1, 365 * DAY)] = 600.0
    settle: Annotated[float, Duration(0, 60)] = 2.0
    scrub: Annotated[float | None, Duration(60, 36500 * DAY, unlimited=None)] = 7 * DAY
    """Seconds in which every entry is read again once."""
    replay: bool = True
    prewarm: bool = True
    evict: bool = True
    ahead: bool = True  #: whether entries are compiled for a driver that is downloaded and not installed yet


class WatchSection(Struct, frozen=True):
    """How changes are noticed."""

    mode: Literal["auto", "inotify", "polling"] = "auto"  #: the best way that may be used
    loads: bool = False  #: whether programs' loads shall be seen
    socket: Path = Path(sockets.WATCH)  #: of the host's watcher


class Workers(Struct, frozen=True):
    """Whom the host's daemon looks after, and how long a worker stays."""

    humans: bool = True
    include: Annotated[tuple[str, ...], names] = ()
    exclude: Annotated[tuple[str, ...], names] = ()
    every: Annotated[float, Duration(60, 365 * DAY)] = 3600.0
    idle: Annotated[float | None, Duration(1, 365 * DAY, unlimited=None)] = 900.0


class Bundles(Struct, frozen=True):
    """Bundles that come and go by themselves."""

    pull: Annotated[tuple[str, ...], references] = ()  #: where they are in registries
    folder: Path = Path("/var/cache/xpucached-bundles")  #: where they lie on this host
    take: bool = True  #: whether what lies there is taken in before anything is compiled
    push: Annotated[str, reference] = "off"  #: where what this host compiled goes, with ``{user}`` and ``{host}``


class Metrics(Struct, frozen=True):
    """Where figures for Prometheus are besides on the socket."""

    listen: Annotated[str, socket_address] = "off"  #: a loopback address and a port


class Log(Struct, frozen=True):
    """What is told."""

    level: Literal["debug", "info", "warning", "error"] = "info"
