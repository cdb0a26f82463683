"""Where a path leads, on which file system that lies, and of which kind that is, by the kernel's list of mounts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NETWORK: Final = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs"),
        *("fuse.ceph", "fuse.ceph-fuse", "fuse.cephfs", "fuse.cvmfs2", "fuse.davfs", "fuse.glusterfs", "fuse.juicefs"),
        *("fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    }
)
"""As the kernel names them: what several hosts can have mounted at once."""

_MOUNTS: Final = Path("/proc/self/mountinfo")

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")

_LINKS: Final = 40
"""As many links as the kernel follows on one way."""


class Mount(NamedTuple):
    """A line of that list."""

    device: str  #: its number, the same for all places where this file system is mounted
    kind: str  #: of file system
    root: str = "/"  #: the part of it that stands there


_NONE: Final = Mount("", "")


def mounted(mounts: Path = _MOUNTS) -> dict[str, Mount]:
    """Return what is mounted, by place; nothing where that cannot be read."""
    try:
        return listed(mounts)
    except OSError:
        return {}


def listed(mounts: Path = _MOUNTS) -> dict[str, Mount]:
    """Return what is mounted, by place.  Raises OSError."""
    # The last of several that are mounted in one place hides the others.
    return dict(lines(mounts))


def lines(mounts: Path) -> Iterator[tuple[str, Mount]]:
    """Yield where what is mounted, in the kernel's order.  Raises OSError."""
    with mounts.open("rb") as stream:
        # Names of directories stand there, in which all other ends of lines may be.
        for line in stream:
            head, _, tail = line.decode("utf-8", "surrogateescape").removesuffix("\n").partition(" - ")
            fields = head.split(" ")
            if len(fields) < 5 or not tail:  # noqa: PLR2004 - the fifth is the place
                continue
            root, place = (_ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), one) for one in fields[3:5])
            yield place, Mount(fields[2], tail.split(" ")[0], root)


def at(path: str, found: Mapping[str, Mount]) -> Mount:
    """Return on which of these mounts a path lies, links resolved."""
    return found.get(_place(path, found), _NONE)


def inside(path: str, found: Mapping[str, Mount]) -> tuple[str, str]:
    """Return a path, links resolved, as its file system has it, wherever that is mounted; and this one's number."""
    place = _place(path, found)
    mount = found.get(place, _NONE)
    return mount.device, mount.root.rstrip("/") + path[len(place.rstrip("/")) :]


def _place(path: str, found: Mapping[str, Mount]) -> str:
    while path not in found and len(path) > 1:
        path = path.rpartition("/")[0] or "/"
    return path


def way(path: str) -> Iterator[str]:
    """Yield the steps of the way to a path, links resolved, each before its file system is asked what it is.

    The last one is where it leads, as far as links can be read.
    """
    left, here, links = path.split("/")[::-1], "/", _LINKS
    while left and links:
        part = left.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            here = here.rpartition("/")[0] or "/"
            continue
        step = f"{here.rstrip('/')}/{part}"
        yield step
        try:
            target = os.readlink(step)  # noqa: PTH115 - a text, as the steps are
        except (OSError, ValueError):
            here = step
            continue
        links -= 1
        here = "/" if target.startswith("/") else here
        left += target.split("/")[::-1]
    yield os.path.normpath("/" + "/".join((here, *left[::-1])).lstrip("/"))


def real(path: str | os.PathLike[str]) -> str:
    """Return a path with its links resolved; one that cannot be read stays, as if it were no link.

    `os.path.realpath` raises OSError for such a one before Python 3.13, and RecursionError for a thousand in a row.
    """
    end = os.fspath(path)
    try:
        return os.path.realpath(end)
    except (OSError, RecursionError):
        # A relative one may lie in a directory that is gone.
        for end in way(end) if end.startswith("/") else ():  # noqa: B007, B020 - the last one
            pass
        return end


def network(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the kind of network file system on which a path lies, or would lie if it were made; empty if on none."""
    # A directory that is not there yet will be made where the nearest one above it lies.
    there = real(path)
    while not os.path.exists(there) and there != "/":  # noqa: PTH110 - Path.exists raises where nobody may look
        there = os.path.dirname(there)  # noqa: PTH120 - text, as the kernel's list is
    kind = at(there, mounted(mounts)).kind
    return kind if kind in _NETWORK else ""
