"""Observe: which programs use a directory now; reads /proc."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import mounts
from xpucached.host import process_times
from xpucached.host.digests import told_of_file
from xpucached.processes import live_threads

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_MOST: Final = 32 << 20
"""Characters of what is mounted elsewhere, that are kept: any user has namespaces, with 100,000 mounts in each."""


def users(places: Collection[Path]) -> Mapping[Path, str]:
    """Return those of these directories that a program uses, and which: it works there, or has something below open.

    What it has mapped counts, too, and so does what it has by mounts of its own, as in a container: by another name.
    Our own process and those that we may not look into are left out.  Raises OSError if we have no more room to look.
    """
    found: dict[Path, str] = {}
    if not places:
        return found
    here, kept = mounts.listed(), 0
    seen = {_mounts_of("self"): here}
    known = [(place, f"{place}/", mounts.inside(os.fspath(place), here)) for place in places]
    devices = {device for _, _, (device, _) in known}
    for pid in process_times.pids():
        if pid == os.getpid():
            continue
        with others():
            thread = live_threads.live_thread(pid)
            whose = _mounts_of(str(thread))
            if whose not in seen:
                its = {}
                for point, mount in mounts.lines(Path(f"/proc/{thread}/mountinfo")):
                    # Below another file system a path is taken for one of these then: rather too many are in use.
                    if mount.device in devices:
                        its[point] = mount
                        kept += len(point) + len(mount.root)
                    if kept > _MOST:
                        raise OSError(errno.ENOMEM, "too much is mounted in namespaces of programs")
                # Only now: who has ended meanwhile told a part, and others there have all of it.
                seen[whose] = its
            for path in _used(f"/proc/{thread}"):
                used = f"{os.fsdecode(path)}/"
                device, below = mounts.inside(used, seen[whose])
                for place, prefix, (on, inner) in known:
                    if used.startswith(prefix) or (device == on and below.startswith(f"{inner}/")):
                        found.setdefault(place, f"{_name(pid)} (process {pid})")
    return found


@contextlib.contextmanager
def others() -> Iterator[None]:
    """Pass over who has ended, or whom we may not look into; not over what says that we have no room to look."""
    try:
        yield
    except OSError as error:
        told_of_file(error)


def _mounts_of(process: str) -> str:
    """Return by what those are known that have the same mounts.  Raises OSError."""
    return os.readlink(f"/proc/{process}/ns/mnt")  # noqa: PTH115 - of many processes


def _used(process: str) -> Iterator[bytes]:
    """Yield the paths of what a process uses.  Raises OSError."""
    yield os.fsencode(os.readlink(f"{process}/cwd"))  # noqa: PTH115 - of many processes
    with others(), os.scandir(f"{process}/fd") as numbers:
        for number in numbers:
            with others():
                yield os.fsencode(os.readlink(number.path))  # noqa: PTH115 - many of them
    with open(f"{process}/maps", "rb") as maps:  # noqa: PTH123 - of many processes
        # As many lines as the kernel lets a process have: what is not looked at would be taken for not in use.
        for line in maps:
            fields = line.rstrip(b"\n").split(None, 5)
            if len(fields) > 5 and fields[5].startswith(b"/"):  # noqa: PLR2004 - the sixth is the path
                yield fields[5]
                if b"\\012" in fields[5]:
                    # So the kernel writes the end of a line here.
                    yield fields[5].replace(b"\\012", b"\n")


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return "a program"
