"""What a model's process tree takes, has mapped and interprets: read from /proc, again and again."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import threading
import time
from typing import TYPE_CHECKING

from .drm_usage import GraphicsCounters, read
from .interpreters import Interpreters

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOK = 0.5  # seconds between looks at what is slow to look at
_MOMENT = 0.05  # seconds for which such a look is waited for; it goes on after them
_FILES = 200_000  # of a temporary directory that are looked at; who makes more is ended
# A look that took minutes would leave orders unread, and who does not obey is killed: then nobody ends these.
_OPEN = 20_000  # descriptors that are looked at each time
_CLIENTS = 1000  # of graphics devices that are counted
_LINES = 200_000  # of maps that are read each time
_SPARE = 0.05  # of the machine's memory, and of the temporary directory's file system, that others keep
_MAPPED = 4096  # mapped files that are reported
_MAPPED_TEXT = 384 << 10  # bytes of their paths, as JSON; whoever reads the report keeps a mebibyte of it
_MAPS_SHARE = 20  # reading maps takes at most one part in so many of the time
_GONE = b" (deleted)"
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:", "/SYSV", "/anon_hugepage", "/[")
# What others keep at hand for all programs, and write at any time: names of users, and Mesa's cache.
_OF_ALL = ("/var/lib/sss/mc/", "/var/cache/nscd/", "/var/db/nscd/", "/var/run/nscd/", "/run/nscd/")
_MESA = "/mesa_shader_cache"


class ProcessTreeUse:
    """What the process tree takes."""

    def __init__(self, memory: int, disk: int, scratch: str) -> None:
        self.memory, self.disk, self.scratch = memory, disk, scratch
        self.peak = 0
        self.graphics = GraphicsCounters(_CLIENTS)
        self._looked = 0.0
        self._free = _free(scratch)
        self._place: PlaceLook | None = None

    def exceeded(self, tree: list[int]) -> tuple[str, str] | None:
        """Return the outcome and a sentence if the tree takes more than it may."""
        taken = sum(_resident(pid) for pid in tree)
        self.peak = max(self.peak, taken)
        if taken > self.memory:
            return "over-memory", f"it took {taken} bytes of memory, {self.memory} are allowed"
        total, available = _machine()
        if available < total * _SPARE and taken > total * _SPARE:
            return "over-memory", f"it took {taken} bytes of memory, and left {available} of {total} to the machine"
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return None
        self._looked = now
        self.engine_times(tree)
        place = self._place = self._place or PlaceLook(self.scratch)
        if not place.over():
            return None
        self._place = None
        if place.written is None:
            return "over-disk", f"it has more than {_FILES} files in its temporary directory: their size is unknown"
        if place.written > self.disk:
            return "over-disk", f"it wrote {place.written} bytes to its temporary directory, {self.disk} are allowed"
        free, size = place.free
        if free < size * _SPARE and place.written > self._free[0] * _SPARE:
            return "over-disk", f"it wrote {place.written} bytes to its temporary directory, and left {free} free"
        return None

    def engine_times(self, tree: list[int]) -> None:
        """Read what the kernel's graphics drivers say about the process tree's use of their engines."""
        found = (read(text) for text in itertools.islice(_drm(tree), _CLIENTS))
        self.graphics.look([one for one in found if one is not None], time.monotonic())


class PlaceLook(threading.Thread):
    """A look at a temporary directory, in a thread: where somebody mounted something, the answer may never come."""

    def __init__(self, scratch: str) -> None:
        super().__init__(name="place", daemon=True)
        self.scratch = scratch
        self.written: int | None = 0
        self.free = (1, 1)
        # Where no thread can be had now, one can be at the next look.
        with contextlib.suppress(RuntimeError):
            self.start()

    def over(self) -> bool:
        """Return whether it has come to its end, waiting a moment for it: orders come meanwhile."""
        if self.is_alive():
            self.join(_MOMENT)
        return not self.is_alive()

    def run(self) -> None:
        """Look."""
        self.written = _written(self.scratch)
        self.free = _free(self.scratch)


class Maps:
    """Which files the process tree has mapped, libraries above all, and which interpreters are part of it.

    Seen by looking again and again, whenever the size of a process's address space, or its program, has changed: what
    somebody maps and lets go between two looks stays unseen.
    """

    def __init__(self) -> None:
        self.files: dict[str, bool] = {}  # path to whether it was mapped as code
        self.interpreters = Interpreters()
        self._sizes: dict[int, str] = {}
        self._next = 0.0
        self._text = 0
        self._left = 0

    def look(self, tree: list[int], *, now: bool = False) -> None:
        """Read the maps of those whose address space has changed since the last look; ``now``, however short ago."""
        began = time.monotonic()
        if began < self._next and not now:
            return
        sizes = {pid: self._sizes[pid] for pid in tree if pid in self._sizes}
        self._left = _LINES
        # Who had no turn at the last look has it now.
        for pid in sorted(tree, key=self._sizes.__contains__):
            if not self._left:
                break
            with contextlib.suppress(OSError, IndexError):
                thread, pages = _pages(pid)
                # What another program comes to by exec may be as large.
                sizes[pid] = f"{pages[0]} {_stack(thread)}"
                if self._sizes.get(pid) != sizes[pid]:
                    self._read(thread)
                    self.interpreters.look(thread)
        self._sizes = sizes
        ended = time.monotonic()
        self._next = ended + (ended - began) * _MAPS_SHARE

    def _read(self, pid: int) -> None:
        with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123 - many of them
            for line in itertools.islice(file, self._left):
                self._left -= 1
                # ADDRESSES MODE OFFSET DEVICE INODE PATH
                fields = line.rstrip(b"\n").split(None, 5)
                if len(fields) == 6 and fields[4] != b"0":  # noqa: PLR2004 - so many are in a line with a path
                    raw = _whole(pid, fields[0], fields[5]) if b"\\012" in fields[5] else fields[5]
                    self._note(raw, code=b"x" in fields[1])

    def _note(self, raw: bytes, *, code: bool) -> None:
        # A library that was replaced while it is mapped has this name no more; data of which that is so was temporary.
        gone = raw.endswith(_GONE)
        raw = raw.removesuffix(_GONE)
        if gone and not code:
            return
        try:
            path = raw.decode("utf-8")
        except UnicodeDecodeError:
            return
        if path in self.files:
            self.files[path] = self.files[path] or code
        elif path.startswith("/") and not (path.startswith(_NO_FILES + _OF_ALL) or _MESA in path):
            text = len(json.dumps(path)) + 2
            # Data may be anything, and many, and so may what is gone: it must not take the place of libraries.
            share = 1 if code and not gone else 4
            if len(self.files) < _MAPPED // share and self._text + text <= _MAPPED_TEXT // share:
                self.files[path] = code
                self._text += text

    def report(self) -> dict[str, list[str]]:
        """Return the paths: mapped as code, and only as data."""
        return {
            "mapped": sorted(path for path, code in self.files.items() if code),
            "mapped_data": sorted(path for path, code in self.files.items() if not code),
        }


def _whole(pid: int, addresses: bytes, raw: bytes) -> bytes:
    """Return a mapped file's path as it is: in maps a line break is written like these four characters.

    No file system is asked: where that lies, nobody may answer.
    """
    first, _, last = addresses.partition(b"-")
    with contextlib.suppress(OSError):
        return os.readlink(b"/proc/%d/map_files/%x-%x" % (pid, int(first, 16), int(last, 16)))  # noqa: PTH115 - bytes
    return raw.replace(b"\\012", b"\n")


def _number(text: str) -> int:
    words = text.split()
    if not words or not words[0].isdigit():
        return 0
    return int(words[0]) * {"KiB": 1 << 10, "MiB": 1 << 20}.get(words[1] if len(words) > 1 else "", 1)


def _drm(tree: list[int]) -> Iterator[str]:
    """Yield the descriptions of open graphics devices, of what so many descriptors of these processes lead to."""
    left = _OPEN
    for pid in tree:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{_pages(pid)[0]}/fd") as numbers:
            for one in itertools.islice(numbers, left):
                left -= 1
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    if os.readlink(one.path).startswith("/dev/dri/"):  # noqa: PTH115 - many of them
                        with open(f"/proc/{pid}/fdinfo/{one.name}", encoding="ascii") as file:  # noqa: PTH123 - many of them
                            yield file.read(1 << 16)


def _pages(pid: int) -> tuple[int, list[str]]:
    """Return the memory of a process, and under which number the kernel tells of it.

    Where the first thread has ended, and the process works on, another one knows.
    """
    pages = _statm(pid)
    for thread in os.listdir(f"/proc/{pid}/task") if pages[0] == "0" else ():
        with contextlib.suppress(OSError):
            if (known := _statm(int(thread)))[0] != "0":
                return int(thread), known
    return pid, pages


def _stack(number: int) -> str:
    """Return where a program's stack begins, which is elsewhere for each that is started."""
    with open(f"/proc/{number}/stat", "rb") as file:  # noqa: PTH123 - many of them
        return file.read().rpartition(b")")[2].split()[25].decode()


def _statm(number: int) -> list[str]:
    with open(f"/proc/{number}/statm", encoding="ascii") as file:  # noqa: PTH123 - many of them
        return file.read().split()


def _resident(pid: int) -> int:
    pages: list[str] = []
    with contextlib.suppress(OSError):
        _, pages = _pages(pid)
    # What is shared with others, libraries above all, is counted once too often rather than not at all.
    return (int(pages[1]) - int(pages[2])) * resource.getpagesize() if pages else 0


def _machine() -> tuple[int, int]:
    with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - often
        lines = dict(line.split(":", 1) for line in file)
    return _number(lines["MemTotal"].replace("kB", "KiB")), _number(lines["MemAvailable"].replace("kB", "KiB"))


def _free(scratch: str) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        answer = os.statvfs(scratch)
        return answer.f_bavail * answer.f_frsize, answer.f_blocks * answer.f_frsize
    return 1, 1


def _written(scratch: str) -> int | None:
    """Return the bytes in a temporary directory; None if it holds more files than are looked at."""
    size = count = 0
    places = [scratch]
    while places:
        with contextlib.suppress(OSError), os.scandir(places.pop()) as entries:
            for entry in entries:
                count += 1
                if count > _FILES:
                    return None
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        places.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
    return size


def descendants() -> list[int]:
    """Return all descendants of this process as the kernel lists them: who is just being ended hides others.

    That takes the time of these processes; `process_tree` takes that of all processes of the host.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # noqa: PTH110 - without pathlib it starts faster
        return process_tree()
    found: list[int] = []
    ahead = [os.getpid()]
    while ahead:
        pid = ahead.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123 - many of them
                    mine = [int(child) for child in file.read().split()]
                    found += mine
                    ahead += mine
    return found


def process_tree() -> list[int]:
    """Return all living descendants of this process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - many of them
                # Its name may have blanks and brackets: what comes after the last one is plain.
                fields = file.read().rpartition(b")")[2].split()
            # One whose first thread has ended, and others have not, is listed so, too.
            if fields[0] != b"Z" or int(fields[17]) > 1:
                children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    ahead = [os.getpid()]
    while ahead:
        mine = children.get(ahead.pop(), [])
        found += mine
        ahead += mine
    return found
