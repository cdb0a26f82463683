"""Counting the files below directories where compilers cache that are no kind of ours: a warm pass adds none."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import deadlines, mounts, reading
from xpucached.host import directory_users
from xpucached.kinds import model_caches
from xpucached.kinds.variables import FURTHER
from xpucached.processes.cancellation import to_its_end
from xpucached.service import program_variables

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping, Sequence

    from xpucached.domain.models import Model
    from xpucached.processes.results import RunResult
    from xpucached.settings import Settings

MOST: Final = 500_000
"""Files of the watched directories that are looked at."""

_COUNTING: Final = 120.0
"""Seconds that it may take to look at these, or until they are on the disk."""

_COARSE: Final = 2_000_000_000
"""Nanoseconds by which file systems may stamp too early what is written."""

_BEGUN: Final = (".so", "/lock")
"""How files end that are empty until a library is there: itself, and what PyTorch waits for while it is built."""


def files(places: Iterable[Path]) -> Mapping[str, int] | None:
    """Return the files below these directories, save those that only mark something as busy; None: it is unknown.

    With each stands when it was written, in nanoseconds: what a compiler finds to be old it may write anew under the
    same name, as OpenVINO and numba do.
    """
    paths = tuple(map(os.fspath, places))
    try:
        return deadlines.ask(paths, lambda: _below(paths), _COUNTING)
    except TimeoutError:
        return None


def kept(places: Iterable[Path], before: Mapping[str, int] | None) -> Mapping[str, int] | None:
    """Return the same after a pass, and see that what came since ``before`` is on the disk before it proves anything.

    Compilers do not, and a power cut leaves it empty: no look at these directories would find that out.
    """
    paths = tuple(places)
    found = files(paths)
    came = [path for path, at in found.items() if before.get(path) != at] if found and before is not None else ()
    with contextlib.suppress(TimeoutError):
        deadlines.ask(tuple(map(os.fspath, paths)), lambda: _sync(came), _COUNTING)
    return found


async def tidied(run: Awaitable[RunResult], settings: Settings, model: Model) -> RunResult:
    """Wait for a pass of a model; if it does not come to its end, remove what its compilers had only begun to write."""
    began, done = time.time_ns(), None
    try:
        done = await run
    finally:
        if done is None or done.outcome is not None:
            await to_its_end(drop_begun, settings, model, began)
    return done


def drop_begun(settings: Settings, model: Model, since: int) -> None:
    """Remove the empty libraries that came since then where a model's compilers cache; of its own, all empty files.

    A linker makes a library empty and fills it at its end, for Inductor a second later: whoever is ended meanwhile
    leaves one that is taken for done, with which each later program fails.  PyTorch's extensions have a lock for that
    time, for whose end each later program waits for ever; who holds it has it open.  What a program has open stays, and
    so does all that lies in a directory which only ``--cache`` names: that may hold anything.
    """
    named = [path for name, path in program_variables.caches(settings, model) if name in {"", *FURTHER}]
    places = [*named, program_variables.extensions(settings, model)]

    def work() -> None:
        own = f"{mounts.real(program_variables.own(settings, model))}/"
        found = _below([mounts.real(path) for path in places]) or {}
        # In a directory that somebody names an empty file may be a lock, or a mark of another program's.
        late = (path for path, at in found.items() if at >= since - _COARSE and path.endswith(_BEGUN))
        some = map(Path, (*late, *(path for path in found if path.startswith(own))))
        empty = {path for path in some if model_caches.is_empty(path)}
        for path in empty - directory_users.users(empty).keys():
            with contextlib.suppress(OSError):
                model_caches.remove_empty(path)

    # Where nobody answers nothing is removed.
    with contextlib.suppress(OSError):
        deadlines.ask(("begun", *map(os.fspath, places)), work, _COUNTING)


def written(seen: Sequence[Mapping[str, int] | None]) -> tuple[int, ...]:
    """Return how many files each pass wrote, of what there was before the first and after each; 0 if it is unknown.

    What the first one wrote anew counts, if the second did not do so, too: that may be a note of its last use.
    """
    if None in seen:
        return (0,) * (len(seen) - 1)
    before, first, *later = (one or {} for one in seen)
    new = [path for path, at in first.items() if before.get(path) != at]
    again = {path for one in later for path in new if path in before and one.get(path, first[path]) != first[path]}
    return (len(new) - len(again), *(len(one.keys() - first.keys()) for one in later))


def _sync(paths: Iterable[str]) -> None:
    # Who gave this up counts the same files at once after the next pass, and would be told that they do not answer.
    end = time.monotonic() + _COUNTING
    for path in itertools.takewhile(lambda _path: time.monotonic() < end, paths):
        with contextlib.suppress(OSError):
            descriptor = reading.opened(path, follow=False)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _below(places: Iterable[str]) -> dict[str, int] | None:
    found: dict[str, int] = {}
    ahead = [*places]
    left = MOST
    while ahead and left > 0:
        try:
            with os.scandir(ahead.pop()) as entries:
                for entry in itertools.islice(entries, left):
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
                    elif not entry.name.endswith(".lock"):
                        with contextlib.suppress(FileNotFoundError):
                            found[entry.path] = entry.stat(follow_symlinks=False).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            # It is not there yet, or has gone meanwhile, or is nothing into which this user's programs could write.
            continue
        except OSError:
            return None
    return found if left > 0 else None
