"""A directory that a child may fill, and its removal, whatever the child left there.  Touches the file system.

The standard library's removers descend by recursion and by whole paths: a tree that is a few thousand directories deep
ends them with an exception of its own.  This one brings each directory up to the top before it empties it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from xpucached.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

_PATIENCE: Final = 60.0
"""Seconds that a removal may take: somebody who got away could go on filling the directory for ever."""
_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def directory(prefix: str = "xpucached-", below: Path | None = None) -> Iterator[str]:
    """Return a new, empty directory of ours alone below ``TMPDIR``, or ``below``; it is removed at the end."""
    place = tempfile.mkdtemp(prefix=prefix, dir=below)
    try:
        # What is mounted or put in its place meanwhile is another directory, and may never answer.
        made = os.open(place, os.O_RDONLY | _DIRECTORY)
    except OSError:
        Path(place).rmdir()
        raise
    try:
        yield place
    finally:
        try:
            _remove(place, made)
        finally:
            os.close(made)


@contextlib.contextmanager
def workplace() -> Iterator[str]:
    """Return such a directory, in which compilers work.  Raises `HostError` if none can be made."""
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(directory())
        except OSError as error:
            hint = "compilers work in a directory of their own: make room there, or set TMPDIR"
            raise HostError(f"no temporary directory can be made: {error.strerror or error}", hint=hint) from error
        yield place


def sweep(prefix: str) -> None:
    """Remove what was left below ``TMPDIR`` of directories with such names by one of us that was killed."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.name.startswith(prefix) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    remove(entry.path)


def clear(place: str) -> None:
    """Remove all that is in such a directory, for whoever uses it next.  Raises OSError if something stays."""
    end = time.monotonic() + _PATIENCE
    top = os.open(place, os.O_RDONLY | _DIRECTORY)
    try:
        while _empty(top, top, end):
            pass
        if os.listdir(top):
            raise OSError(errno.ENOTEMPTY, "it cannot be emptied", place)
    finally:
        os.close(top)


def remove(place: str) -> None:
    """Remove a directory with all that is in it.  Never raise; what cannot be removed stays, and the log says so."""
    try:
        top = os.open(place, os.O_RDONLY | _DIRECTORY)
    except OSError as error:
        log.warning("a temporary directory could not be removed: %s", error)
        return
    try:
        _remove(place, top)
    finally:
        os.close(top)


def _remove(place: str, top: int) -> None:
    """Remove a directory that is open."""
    end = time.monotonic() + _PATIENCE
    try:
        while _empty(top, top, end):
            pass
        Path(place).rmdir()
    except OSError as error:
        log.warning("a temporary directory could not be removed: %s", error)


def _empty(folder: int, top: int, end: float) -> bool:
    """Remove what is in a directory, or bring it up to the top; return whether there was any of that to do."""
    done = False
    with os.scandir(folder) as entries:
        for entry in entries:
            if time.monotonic() > end:
                return False
            if not entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
                    done = True
            elif folder != top:
                with contextlib.suppress(OSError):
                    _bring_up(entry.name, folder, top)
                    done = True
            else:
                done = _remove_below(entry.name, top, end) or done
    return done


def _remove_below(name: str, top: int, end: float) -> bool:
    """Remove a directory that lies at the top."""
    with contextlib.suppress(OSError):
        name = _bring_up(name, top, top)
        _open_up(name, top)
        inner = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=top)
        try:
            # Of another file system that somebody mounted there nothing is ours.
            if os.fstat(inner).st_dev == os.fstat(top).st_dev:
                while _empty(inner, top, end):
                    pass
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)
        return True
    return False


def _bring_up(name: str, folder: int, top: int) -> str:
    """Move a directory to the top, and return its name there.  Raise OSError for what somebody mounted there.

    A bind mount has the device number of what it shows, so that tells nothing; but no mount point can be renamed.
    """
    new = uuid4().hex
    try:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    except PermissionError:
        _open_up(name, folder)
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    return new


def _open_up(name: str, folder: int) -> None:
    """Let ourselves into a directory that its maker has closed."""
    # There is no chmod that follows no link, save through a descriptor that was opened without following one.
    found = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=folder)
    try:
        Path(f"/proc/self/fd/{found}").chmod(0o700)
    finally:
        os.close(found)
