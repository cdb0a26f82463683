"""Whose a directory is and where it lies: asked of the descriptors that clients hand in, never of a path of theirs.

What a client hands in may be a mount of a namespace that the client made, in which any path leads anywhere.  So a path
is a hint only.  It is walked from the client's own descriptor, part by part, through no link and no mount, and through
directories of that user alone; where that ends must be the very directory, or file, that the kernel means.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.watchd import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PART: Final = r"[A-Za-z0-9_=+-]{1,64}"
DEEPEST: Final = 4
"""So many directories of a cache lie in each other, at most."""

_MOST_PLACES: Final = 1 << 14  # directories that are remembered
_STALE: Final = 10.0  # seconds for which they are
_MOST_ASKED: Final = 8  # of one user's directories, whether a file lies below them

# Nothing else is looked up or told: the names of other people's files are theirs.
FILES: Final = (r"(?:[0-9]{1,10}|ir)\.(?:src|bin)",)
"""How the files of entries are called, and `DEEPEST`: as each cache kind says it, which this program does not load."""

FILE: Final = re.compile("|".join(FILES).encode())
DIRECTORY: Final = re.compile(_PART.encode())
BELOW: Final = re.compile(rf"(?:{_PART}(?:/{_PART}){{0,{DEEPEST - 1}}})?")

# What caches lie on.  A closed list: a mark is for a whole file system, and those of the kernel (proc, devpts, cgroup,
# mqueue, …) hold what is everybody's, tell of what nobody may open, or let things happen when it is opened.
_WATCHED: Final = frozenset(
    {
        kernel.BCACHEFS,
        kernel.BTRFS,
        kernel.CEPH,
        kernel.EXT,
        kernel.F2FS,
        kernel.JFS,
        kernel.LUSTRE,
        kernel.NFS,
        kernel.OVERLAY,
        kernel.RAMFS,
        kernel.TMPFS,
        kernel.XFS,
        kernel.ZFS,
    }
)

# Everybody may mount these, in namespaces of their own.
_ANYBODYS: Final = frozenset({kernel.OVERLAY, kernel.RAMFS, kernel.TMPFS})

_NOT_THERE: Final = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EACCES, errno.EPERM),
        *(errno.ESTALE, errno.EINVAL, errno.EOPNOTSUPP, errno.ENAMETOOLONG),
    }
)
"""What the kernel says of a directory that is gone, is no directory of a client's, or of a handle that nothing has.

With anything else (EIO, ENODEV, EMFILE, …) it says that it cannot tell.
"""

Identity = tuple[int, int]


class _MayBeGone(contextlib.AbstractContextManager[None]):
    """Goes on where something is not there; lets OSError pass where that cannot be told."""

    def __exit__(self, _kind: object, error: object, _trace: object) -> bool:
        return isinstance(error, OSError) and error.errno in _NOT_THERE


@dataclass(eq=False, slots=True)
class Root:
    """A directory that a user wants to hear of."""

    uid: int
    number: int
    descriptor: int
    system: int  #: the file system's number, as the kernel's events give it
    device: int  #: the whole file system's; a subvolume's files have other numbers
    which: Identity
    mount: int  #: where it was opened; a user's own may show only a part of the file system
    names: bool = True
    loads: bool = False
    path: str = ""  #: where it was as it was handed in: a hint only

    def belongs(self, status: os.stat_result) -> bool:
        """Return whether something is the user's; to root everything is."""
        return self.uid in (0, status.st_uid)

    def identity_of(self, below: str) -> Identity | None:
        """Return which directory lies there; None if none does that is the user's all the way.

        Raises OSError if that cannot be told.
        """
        with _MayBeGone(), self._entered(below) as (_, which):
            return which
        return None

    def holds(self, below: str, name: str, file: Identity) -> bool:
        """Return whether a file has this name in a directory there that is the user's all the way; raises as above."""
        with _MayBeGone(), self._entered(below) as (directory, _):
            found = kernel.open_below(directory, name.encode(), file=True)
            try:
                return identity(os.fstat(found)) == file
            finally:
                os.close(found)
        return False

    @contextlib.contextmanager
    def _entered(self, below: str) -> Iterator[tuple[int, Identity]]:
        """Walk to a directory; raises OSError on the way."""
        opened = -1
        try:
            here = self.descriptor
            status = self._mine(here)
            for part in below.split("/") if below else ():
                inner = kernel.open_below(here, part.encode())
                if opened >= 0:
                    os.close(opened)
                opened = here = inner
                status = self._mine(here)
            yield here, identity(status)
        finally:
            if opened >= 0:
                os.close(opened)

    def _mine(self, directory: int) -> os.stat_result:
        status = os.fstat(directory)
        if not self.belongs(status):
            raise PermissionError(errno.EPERM, "the directory belongs to somebody else")
        return status


def judged(uid: int, number: int, descriptor: int) -> Root:
    """See that a descriptor is an open directory of this user's, on a file system of the host's that may be watched.

    Raises OSError.  A file system in user space can let us wait for ever: to be called where nobody else waits.
    """
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_PATH:
        raise OSError(errno.ENOTDIR, "not an open directory")
    kind = kernel.file_system(descriptor)
    if kind == kernel.FUSE:
        raise OSError(errno.EOPNOTSUPP, "a file system in user space is not watched")
    if kind not in _WATCHED:
        raise OSError(errno.EOPNOTSUPP, f"a file system of this kind ({kind:#x}) is not watched")
    status = os.fstat(descriptor)
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.ENOTDIR, "not an open directory")
    if uid not in (0, status.st_uid):
        raise PermissionError(errno.EPERM, "the directory belongs to somebody else")
    if kind in _ANYBODYS and status.st_dev not in _mounted():
        raise PermissionError(errno.EPERM, "its file system is not mounted on this host, but in a namespace of its own")
    system, device = os.fstatvfs(descriptor).f_fsid, kernel.superblock(descriptor)
    root = Root(uid, number, descriptor, system, device, identity(status), kernel.mount_of(descriptor))
    with contextlib.suppress(OSError):  # it is longer than the kernel tells
        root.path = "/".join(path_of(descriptor))
    return root


def _mounted() -> frozenset[int]:
    """Return the numbers of the file systems that are mounted on this host.

    Our own namespace may show less: our unit hides the home directories, which may be a mount.
    """
    try:
        listed = Path("/proc/1/mountinfo").read_bytes()
    except OSError:
        listed = Path("/proc/self/mountinfo").read_bytes()
    # Whoever may mount names the places; all other ends of lines may stand in them.
    numbers = (line.split(b" ", 3)[2].split(b":") for line in listed.split(b"\n") if line)
    return frozenset(os.makedev(int(major), int(minor)) for major, minor in numbers)


def identity(status: os.stat_result) -> Identity:
    """Return what tells a file from all others."""
    return status.st_dev, status.st_ino


def path_of(descriptor: int) -> list[str]:
    """Return the parts of a path that leads to an open file, from some root.  Raises OSError."""
    return os.fspath(Path(f"/proc/self/fd/{descriptor}").readlink()).split("/")


class Places:
    """Which directories lie below which of those that clients handed in.

    What an event costs must not grow with their number: one user may have many, and make a place for each event.
    Where it cannot be told just now what an event means, ``lost`` hears for whom: nobody else has to look again.
    """

    def __init__(self, lost: Callable[[Root], object]) -> None:
        self._lost = lost
        # By file system; and by device, mount and user.
        self._named: dict[int, dict[_Group, dict[Identity, list[Root]]]] = {}
        self._unnamed: dict[int, dict[str, list[Root]]] = {}  # by user, and by path
        self._known: dict[tuple[int, bytes], tuple[tuple[Root, str, Identity], ...]] = {}
        self._checked: dict[tuple[Root, str], Identity | None] = {}
        self._forgotten = 0.0

    def add(self, root: Root) -> None:
        """Take in a directory."""
        if root.names:
            groups = self._named.setdefault(root.system, {})
            groups.setdefault(_group(root), {}).setdefault(root.which, []).append(root)
        else:
            self._unnamed.setdefault(root.uid, {}).setdefault(root.path, []).append(root)
        self._known.clear()

    def remove(self, root: Root) -> None:
        """Forget one."""
        if root.names:
            groups = self._named[root.system]
            same = groups[_group(root)]
            same[root.which].remove(root)
            if not same[root.which]:
                del same[root.which]
            if not same:
                del groups[_group(root)]
        else:
            there = self._unnamed[root.uid]
            there[root.path].remove(root)
            if not there[root.path]:
                del there[root.path]
        self._known.clear()
        self._checked.clear()

    def forget(self) -> None:
        """Forget what lies where: something was moved."""
        self._known.clear()

    def renew(self) -> None:
        """Ask anew whose what is; now and then also what lies where, of which no event may tell."""
        self._checked.clear()
        if time.monotonic() - self._forgotten > _STALE:
            self._forgotten = time.monotonic()
            self._known.clear()

    def of(self, system: int, handle: bytes) -> Iterator[tuple[Root, str]]:
        """Tell below which of them the directory of a handle lies, the user's all the way, and where there."""
        key = (system, handle)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_PLACES:
                self._known.clear()
            known, complete = self._look(system, handle)
            if complete:
                self._known[key] = known
        for root, below, which in known:
            if (root, below) not in self._checked:
                try:
                    self._checked[root, below] = root.identity_of(below)
                except OSError:
                    self._lost(root)
                    continue
            if self._checked[root, below] == which:
                yield root, below

    def _look(self, system: int, handle: bytes) -> tuple[tuple[tuple[Root, str, Identity], ...], bool]:
        """Return what lies there, and whether that is all: what could not be told is asked again at the next event."""
        owners: dict[int, int] = {}
        found: list[tuple[Root, str, Identity]] = []
        complete = True
        for (device, _, uid), roots in self._named.get(system, {}).items():
            if uid not in (0, owners.get(device, uid)):
                continue
            # Only what the same user opened at the same mount: on another's, what lies outside of it has no way up.
            (beside, *_) = next(iter(roots.values()))
            try:
                with _MayBeGone():
                    directory = kernel.open_handle(beside.descriptor, handle)
                    try:
                        owners[device] = os.fstat(directory).st_uid
                        found += _above(directory, roots)
                    finally:
                        os.close(directory)
            except OSError:
                complete = False
                for root in [root for same in roots.values() for root in same]:
                    self._lost(root)
        return tuple(found), complete

    def of_file(self, descriptor: int) -> Iterator[tuple[Root, str]]:
        """Tell below which of those without names an open file of a cache lies, and where there."""
        try:
            parts = path_of(descriptor)
            if not FILE.fullmatch(os.fsencode(parts[-1])):
                return
            status = os.fstat(descriptor)
        except OSError:
            return  # its path is longer than any of a cache, or its server does not say whose it is
        if status.st_nlink > 1:
            # It has a name elsewhere as well, and nothing says by which one it was opened.
            return
        for uid in {0, status.st_uid}:
            yield from self._below(self._unnamed.get(uid, {}), parts, identity(status))

    def _below(self, roots: Mapping[str, list[Root]], parts: list[str], file: Identity) -> Iterator[tuple[Root, str]]:
        """Tell below which of one user's directories a file lies that was opened by this path."""
        way = ["/".join(parts[:-depth]) for depth in range(DEEPEST + 1, 0, -1)]
        near = [root for path in way for root in roots.get(path, ())]
        # By another mount it has another path; but only a few are asked for each file.
        others = (root for path, same in roots.items() if path not in way for root in same)
        found = False
        for number, root in enumerate(itertools.chain(near, others)):
            if found and number >= len(near):
                break
            if number >= _MOST_ASKED:
                self._lost(root)
                continue
            # Most are as deep as can be.
            below = ("/".join(parts[-depth:-1]) for depth in range(DEEPEST + 1, 0, -1))
            try:
                place = next((one for one in below if BELOW.fullmatch(one) and root.holds(one, parts[-1], file)), None)
            except OSError:
                self._lost(root)
                continue
            if place is not None:
                found = True
                yield root, f"{place}/{parts[-1]}".lstrip("/")


_Group = tuple[int, int, int]


def _group(root: Root) -> _Group:
    return root.device, root.mount, root.uid


def _above(directory: int, roots: Mapping[Identity, list[Root]]) -> list[tuple[Root, str, Identity]]:
    """Give those of some directories that are this one or lie above it, and where below them it is; raises OSError."""
    which, parts = identity(os.fstat(directory)), path_of(directory)
    found: list[tuple[Root, str, Identity]] = []
    for depth, above in enumerate(_way_up(directory)):
        below = "/".join(parts[max(0, len(parts) - depth) :])
        found += [
            (root, below, which)
            for root in roots.get(above, ())
            if BELOW.fullmatch(below) and root.identity_of(below) == which
        ]
    return found


def _way_up(directory: int) -> Iterator[Identity]:
    """Yield which directory this is and which lie above it, as far up as one of a client's can be."""
    here = os.dup(directory)
    try:
        yield identity(os.fstat(here))
        with _MayBeGone():
            for _ in range(DEEPEST):
                above = kernel.open_above(here)
                os.close(here)
                here = above
                yield identity(os.fstat(here))
    finally:
        os.close(here)
