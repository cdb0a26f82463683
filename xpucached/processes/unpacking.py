"""Act: unpack a package beside the system: the package manager's own reader, and a child of ours that writes.

Nothing is installed, and no script of a package is run.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import messages
from xpucached.processes import child, polling, signals

if TYPE_CHECKING:
    import threading

_UNPACKER: Final = Path(__file__).resolve().parents[1] / "libexec" / "unpacker.py"
_LONGEST: Final = 64 << 10
_LONGEST_WORDS: Final = 1000
_READERS: Final = {".deb": (("dpkg-deb", "--fsys-tarfile"), "tar"), ".rpm": (("rpm2cpio",), "cpio")}


class UnpackFailed(Exception):
    """A package was not unpacked; the text says why."""


class NoRoomLeft(UnpackFailed):
    """There is no room for it."""


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """What is let in."""

    most_bytes: int = 6 << 30
    most_members: int = 100_000
    reserve: int = 512 << 20  #: bytes that shall stay free
    seconds: float = 1800.0


def unpack(archive: Path, into: Path, limits: UnpackLimits, cancel: threading.Event) -> int:
    """Unpack what programs load of a package into a folder; gives its bytes.  Blocks.  Raises `UnpackFailed`."""
    reader, form = _READERS[archive.suffix]
    words = ["--form", form, "--into", os.fspath(into), "--most-bytes", str(limits.most_bytes)]
    words += ["--most-members", str(limits.most_members), "--reserve", str(limits.reserve)]
    variables = {"PATH": child.search_path(os.environ), "LC_ALL": "C"}
    started: list[child.Process] = []
    try:
        source = child.start([*reader, os.fspath(archive)], variables=variables, stdout=child.PIPE)
        started.append(source)
        signals.be_polite(source.pid)
        stdin = source.stdout.fileno() if source.stdout is not None else child.NOTHING
        target = child.start([*child.python(_UNPACKER), *words], variables={}, stdin=stdin, stdout=child.PIPE)
        started.append(target)
        signals.be_polite(target.pid)
        if source.stdout is not None:
            # It alone reads: when it ends early, so does who writes.
            source.stdout.close()
        answer = _listen(target, time.monotonic() + limits.seconds, cancel)
        status = child.wait(source, limits.seconds if answer else 0.0)
    except OSError as error:
        raise UnpackFailed(f"{archive.name} cannot be unpacked: {error.strerror or error}") from error
    finally:
        for one in started:
            child.end(one)
    return _understood(archive, answer, status)


def _listen(target: child.Process, end: float, cancel: threading.Event) -> bytes:
    """Return what the child answers; nothing if it does not in time."""
    if target.stdout is None:
        return b""
    descriptor = target.stdout.fileno()
    answer = bytearray()
    while len(answer) <= _LONGEST and time.monotonic() < end and not cancel.is_set():
        if polling.readable(descriptor, seconds=signals.TICK):
            piece = os.read(descriptor, _LONGEST)
            if not piece:
                return bytes(answer)
            answer += piece
    return b""


def _understood(archive: Path, answer: bytes, status: int | None) -> int:
    try:
        said = messages.members(messages.parse(answer, largest=_LONGEST))
        if "error" in said:
            words = messages.text(said, "error", longest=_LONGEST_WORDS)
            kind = NoRoomLeft if said.get("code") == "no-room" else UnpackFailed
            raise kind(f"{archive.name} is not unpacked: {words}")
        size = messages.whole(said, "bytes", least=0, most=1 << 62)
    except messages.BadMessage as error:
        raise UnpackFailed(f"{archive.name} is not unpacked: it was given up, or took too long") from error
    if status != 0:
        raise UnpackFailed(f"{archive.name} is not unpacked: it cannot be read to its end")
    return size
