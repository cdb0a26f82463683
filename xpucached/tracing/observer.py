"""Observe: one run of any program.  Reads what it tells and, when it has ended, the caches that it may have used."""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import deadlines, printing
from xpucached.domain.host import Process
from xpucached.domain.traces import OtherCache, RuntimeTrace, TraceReport
from xpucached.kinds.table import KINDS
from xpucached.kinds.variables import FURTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

_MOST: Final = 200_000
"""Files of a cache that are looked at."""
_LINE: Final = 64 << 10
"""A longer line is no trace."""
_CLOCK: Final = 0.01
"""Seconds by which the times of files may be behind the clock."""


def variables(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that make a program tell what it compiles, besides its own."""
    given = (kind.tracer.VARIABLES for kind in KINDS.values() if kind.tracer is not None)
    return {**environ, **{name: text for one in given for name, text in one.items()}}


class Listener:
    """Takes what a program writes to stderr, and gives back what is not for us, at once and byte by byte the same."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """``environ`` are the program's own variables: who asked for the trace by them is given it, too."""
        self._tracers = [kind.tracer for kind in KINDS.values() if kind.tracer is not None]
        self._followers = [(one.MARKS, one.follow()) for one in self._tracers]
        self._marks = tuple(mark for one in self._tracers for mark in one.MARKS)
        self._begins = re.compile(b"|".join(map(re.escape, self._marks)))
        self._shown = any(name in environ for one in self._tracers for name in one.VARIABLES)
        self._held = b""
        self.traced = False

    def take(self, data: bytes, at: float) -> bytes:
        """Take what was read, and when; give what is to be passed on."""
        data = self._held + data
        passed: list[bytes] = []
        end = 0
        for start, after in self._lines(data):
            passed.append(data[end : after if self._shown else start])
            end = after
            self.traced = True
            text = data[start:after]
            for marks, follower in self._followers:
                if text.startswith(marks):
                    follower.take(text.decode("utf-8", "surrogateescape").rstrip("\n"), at)
        rest = data[end:]
        keep = self._begun(rest)
        self._held = rest[keep:]
        return b"".join((*passed, rest[:keep]))

    def _lines(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield where each whole line of a trace begins and where the next line does; no byte is looked at often."""
        after = 0
        while (mark := self._begins.search(data, after)) and (stop := data.find(b"\n", mark.end())) >= 0:
            after = stop + 1
            if after - mark.start() > _LINE:
                mark = self._begins.search(data, after - _LINE, stop)
            if mark is not None:
                yield mark.start(), after

    def _begun(self, rest: bytes) -> int:
        """Return where a trace may have begun whose end is still to come; the length if none has."""
        tail = rest.rpartition(b"\n")[2]
        if len(tail) > _LINE:
            return len(rest)
        places = [at for mark in self._marks if (at := _start(tail, mark)) >= 0]
        return len(rest) - len(tail) + min(places) if places else len(rest)

    def finish(self) -> bytes:
        """Give what is left when nothing more comes."""
        rest, self._held = self._held, b""
        return rest

    def told(self) -> tuple[RuntimeTrace, ...]:
        """Return what was told so far."""
        return tuple(follower.told() for _, follower in self._followers)


def _start(tail: bytes, mark: bytes) -> int:
    whole = tail.find(mark)
    if whole >= 0:
        return whole
    for length in range(min(len(mark) - 1, len(tail)), 0, -1):
        if tail.endswith(mark[:length]):
            return len(tail) - length
    return -1


def report(
    command: Sequence[str],
    listener: Listener,
    environ: Mapping[str, str],
    *,
    began: datetime,
    seconds: float,
    status: int,
    runs_on: bool,
) -> TraceReport:
    """Return what came of a run.  ``environ`` are the variables that the program had, ``status`` how it ended."""
    traces = listener.told()
    stores = tuple(one for trace in traces for one in trace.stores)
    kept, found = sum(one.kept for one in stores), sum(one.found for one in stores)
    lost = sum(one.lost + one.unknown for one in stores)
    asked = [one.programs for one in traces if one.programs is not None]
    nowhere = [one.nowhere for one in traces if one.nowhere is not None]
    measured = [one.seconds for one in traces if one.seconds is not None]
    others = tuple(_others(environ, began))
    cold = kept + lost + sum(nowhere) > 0 or any(one.files for one in others)
    dark = sum(nowhere) > 0 or any(one.files != 0 for one in others) or any(one.unmeasured for one in traces)
    # Where all was found, and every program was counted, nothing was compiled.
    compiling = sum(measured) if measured else 0.0 if asked and not (cold or dark) else None
    return TraceReport(
        command=tuple(command),
        seconds=seconds,
        status=status,
        runs_on=runs_on,
        compiling=compiling,
        at_least=bool(measured) and dark,
        programs=sum(asked) if asked else None,
        kept=kept,
        found=found,
        nowhere=sum(nowhere) if nowhere else None,
        traced=listener.traced,
        off=any(one.off for one in traces),
        stores=stores,
        others=others,
        commands=_commands(command) if cold or (listener.traced and not asked and not found) else (),
    )


def _others(environ: Mapping[str, str], began: datetime) -> Iterator[OtherCache]:
    since = began.timestamp() - _CLOCK
    here: Path | None = None
    with contextlib.suppress(OSError):
        # The program may have removed it.
        here = Path.cwd()
    nobody = Process(0, os.getuid(), began, "", here, environ)
    for name, kind in KINDS.items():
        place = kind.discovery.locate(nobody) if kind.tracer is None else None
        if place is not None:
            key = kind.scanner.key
            yield _looked(name, place[0], since, lambda path, key=key: key(path) is not None)  # type: ignore[misc]
    for variable, called in FURTHER.items():
        root = environ.get(variable, "")
        if root.startswith("/"):
            # Their locks are opened anew at each start, and have a new time though nothing is compiled.
            yield _looked(called, Path(root), since, lambda path: not path.endswith(".lock"))


def _looked(name: str, root: Path, since: float, wanted: Callable[[str], bool]) -> OtherCache:
    try:
        # It may lie where nobody answers.
        return OtherCache(name, root, deadlines.ask(("trace", root), lambda: _new(os.fspath(root), since, wanted)))
    except TimeoutError:
        return OtherCache(name, root, None)


def _new(root: str, since: float, wanted: Callable[[str], bool]) -> int | None:
    """Count files that were written since then; None if there are too many to look at, or not all can be seen."""
    count = seen = 0
    whole = True
    ahead = [root]
    while ahead:
        try:
            with os.scandir(ahead.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MOST:
                        return None
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
                    elif _time_of(entry) >= since and wanted(os.path.relpath(entry.path, root)):
                        count += 1
        except FileNotFoundError:
            continue
        except OSError:
            whole = False
    return count if whole else None


def _time_of(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        # It went meanwhile, and hides nothing beside it.
        return -math.inf


def _behind_ours(command: Sequence[str]) -> Sequence[str]:
    """Return what a command of ours starts, such as ``xpucachectl run llama -- python3 app.py``; else the command."""
    while Path(command[0]).name == "xpucachectl" and "--" in command[:-1]:
        command = command[command.index("--") + 1 :]
    return command


_ODD: Final = re.compile(r"[^A-Za-z0-9._@+:-]+", re.ASCII)


def _commands(command: Sequence[str]) -> tuple[str, ...]:
    command = _behind_ours(command)
    words = printing.command(command)
    script = next((one for one in command[1:] if one.endswith(".py")), command[0])
    name = _ODD.sub("-", Path(script).stem).strip("._@+:-")[:40] or "app"
    return (
        f"xpucachectl model add {name} -- {words}",
        f"xpucachectl prewarm {name}",
        f"xpucachectl run {name} -- {words}",
    )
