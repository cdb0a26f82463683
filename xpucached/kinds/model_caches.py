"""Observe and act: directories where compilers cache that are no kind of ours: counted, taken out whole, and put back.

What lies in them is never read, and no link is followed.  One goes in one step, into a trash in our own directory: so
it can come back, and what lies on another file system stays where it is.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.stores import Entry, EntryId, Store, StoreState
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import folders, fs
from xpucached.kinds.removal import GONE
from xpucached.kinds.trash import FOLDER, TrashFolder

if TYPE_CHECKING:
    from contextlib import ExitStack

    from xpucached.kinds.trash_labels import Label

KIND: Final = KindName("other")
"""What stands where a store has its kind."""

_MOST: Final = 500_000
"""Files and directories of one directory that are counted …"""
LONGEST: Final = 10.0
"""… in so many seconds."""
_SKEW: Final = 60.0
"""Seconds that another host's clock may be ahead, whose file system it is."""
_AHEAD: Final = 64 << 20
"""Characters in the paths of directories that wait to be counted: each may be 4096 long."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a look at one directory met."""

    state: StoreState
    owner: int | None = None
    files: int = 0
    allocated: int = 0  #: bytes on disk
    used: datetime | None = None  #: when any of its files was last read or written, as far as the file system says
    note: str = ""  #: why there may be more; empty: all of it was counted


def measure(path: Path, seconds: float = LONGEST) -> Measured:
    """Count what a directory holds, for so many ``seconds`` at most.  Raises nothing for what it meets."""
    try:
        with fs.folder(os.fspath(path)) as descriptor:
            there = os.fstat(descriptor)
    except FileNotFoundError:
        return Measured(StoreState.MISSING)
    except NotADirectoryError:
        return Measured(StoreState.NOT_A_DIRECTORY)
    except (OSError, ValueError) as error:
        return Measured(StoreState.UNREADABLE, note=getattr(error, "strerror", None) or str(error))
    ahead, met, files, allocated, newest, notes = [os.fspath(path)], 0, 0, 0, 0, set[str]()
    until, enough, waiting = time.monotonic() + seconds, False, 0
    while ahead and not enough:
        try:
            here = ahead.pop()
            waiting -= len(here)
            with contextlib.suppress(FileNotFoundError), os.scandir(here) as found:
                for one in found:
                    met += 1
                    if enough := met > _MOST or waiting > _AHEAD or time.monotonic() > until:
                        break
                    try:
                        status = one.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        # Compilers rename what they have written all the time; what lies beside it still counts.
                        continue
                    if not stat.S_ISDIR(status.st_mode):
                        files += 1
                        allocated += status.st_blocks * 512 // max(1, status.st_nlink)
                        newest = max(newest, status.st_mtime_ns, status.st_atime_ns)
                    elif status.st_dev == there.st_dev:
                        ahead.append(one.path)
                        waiting += len(one.path)
                    else:
                        notes.add("what is mounted below it is not counted")
        except OSError as error:
            notes.add(f"not all of it can be read ({error.strerror})")
    if ahead or enough:
        notes.add("it holds more than was counted")
    # Whoever writes there may set any time, also one that no calendar has.
    used = datetime.fromtimestamp(min(newest / 1e9, time.time()), UTC) if newest else None
    return Measured(StoreState.OK, there.st_uid, files, allocated, used, "; ".join(sorted(notes)))


def _is_place(names: list[str]) -> bool:
    """Return whether a key is a name in our own directory, or the path of another one that is none of the root's."""
    outside = names[0] == ""
    path = names[1:] if outside else names
    deep = len(path) > 1 if outside else len(path) == 1
    return deep and all(name not in {"", ".", ".."} and "\0" not in name for name in path)


@dataclass(frozen=True, slots=True, eq=False)
class _Trash(TrashFolder):
    """The trash of these directories: some of what it holds lay elsewhere."""

    def put_back(self, stack: ExitStack, label: Label, place: int, root: int) -> tuple[EntryKey | None, str]:
        here = stack.enter_context(fs.root_to_change(label.leaf))[0] if label.leaf else root
        try:
            # Over an empty directory it goes, over no other.
            os.rename(label.slot, label.slot, src_dir_fd=place, dst_dir_fd=here)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                return None, f"something is in its place ({label.key}): move that away first"
            raise
        return label.key, ""


TRASH: Final = _Trash(".xpucached.trash", (FOLDER,), _is_place, lambda _name: True)


def key_of(root: Path, path: Path) -> EntryKey:
    """Return what a directory is called: its name in our own, or its whole path."""
    return EntryKey(path.name if path.parent == root else os.fspath(path))


def take(root: Path, path: Path, note: TrashLabel | None, used: datetime | None = None) -> None:
    """Take a directory out, with all that is in it: into the trash below ``root``, or without a note for good.

    ``path`` is absolute, with all links resolved.  Raises OSError that says why it stays: it is a link or somebody
    else's, holds something of another user or file system, or too much, or what was used after it was last ``used``.
    """
    latest = math.inf if used is None else used.timestamp() + 1
    entry = EntryId(Store(KIND, root), key_of(root, path))
    if not _is_place(entry.key.split("/")) or not _is_text(path):
        raise OSError(errno.EINVAL, "a directory of that name is none of a model's")
    root.mkdir(0o700, parents=True, exist_ok=True)
    with fs.root_to_change(os.fspath(path.parent)) as (parent, status):
        with fs.directory_in(parent, path.name, status.st_dev) as directory:
            its = os.fstat(directory)
            for _, name, found in folders.walk(directory, status.st_dev):
                if found.st_uid != os.geteuid():
                    raise OSError(errno.EPERM, f"it holds what is user {found.st_uid}'s", name)
                # What is far in the future was written by a clock that was ahead, and says nothing.
                times = (one for one in (found.st_mtime, found.st_atime) if one < time.time() + _SKEW)
                if not stat.S_ISDIR(found.st_mode) and max(times, default=0.0) > latest:
                    raise OSError(errno.EBUSY, "it was used since it was looked at", name)
            if its.st_uid != os.geteuid():
                raise OSError(errno.EPERM, f"it is user {its.st_uid}'s")
        if note is None:
            # What one that was killed had left of an earlier one.
            folders.remove(parent, path.name + GONE, status.st_dev)
            os.rename(path.name, path.name + GONE, src_dir_fd=parent, dst_dir_fd=parent)
            folders.remove(parent, path.name + GONE, status.st_dev)
            return
        blank = Entry(entry, "", 0, 0, note.at, None)
        with TRASH.home(root) as (home, name, device):
            try:
                taken = TRASH.take(home, name, device, parent, blank, note, {FOLDER: its})
            except OSError as error:
                if error.errno == errno.EXDEV:
                    raise OSError(errno.EXDEV, "the trash lies on another file system, or layer of this one") from error
                raise
            if not taken:
                raise OSError(errno.ENOSPC, "there is no room for it in the trash")


def is_empty(path: Path) -> bool:
    """Return whether this is a file of ours that holds nothing."""
    with contextlib.suppress(OSError):
        return _holds_nothing(path.lstat())
    return False


def remove_empty(path: Path) -> None:
    """Remove such a file, if it still is one; ``path`` is absolute, with all links resolved.  Raises OSError."""
    with fs.root_to_change(os.fspath(path.parent)) as (directory, _):
        if _holds_nothing(os.stat(path.name, dir_fd=directory, follow_symlinks=False)):
            os.unlink(path.name, dir_fd=directory)


def _holds_nothing(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size == 0 and status.st_uid == os.geteuid()


def _is_text(path: Path) -> bool:
    try:
        os.fspath(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
