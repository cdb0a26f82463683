"""The folder in which a pull collects a bundle, beside the place where it will be."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final

from xpucached.bundle import writing
from xpucached.errors import AlreadyThere, BadBundle, Conflict, DiskError, Unsigned, XpucachedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOCK: Final = "lock"
_COLLECTED: Final = frozenset({_LOCK, "blobs", "oci-layout", "index.json"})
"""What lies where a pull collects."""


@contextlib.contextmanager
def staging(dest: Path) -> Iterator[Path]:
    """Give the folder beside a place where a pull collects; after an error, the next one goes on from there.

    By its descriptor: whoever may write here may give its name to something else meanwhile.  Raises `Conflict`.
    """
    if not dest.name:
        raise AlreadyThere(f"{dest} is there already", hint="name another place")
    place = dest.with_name(f".{dest.name}.pulling")
    foreign = Conflict(f"{place} is not ours alone", hint="pull to a place of your own")
    with contextlib.ExitStack() as stack:
        try:
            with contextlib.suppress(FileExistsError):
                place.mkdir(0o700)
            folder = os.open(place, writing.FOLDER)
            stack.callback(os.close, folder)
            status = os.fstat(folder)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise foreign
            # Who may write here may have given this name to another directory of ours, and in the end it goes.
            there = set(os.listdir(folder))
            if there and not (there <= _COLLECTED and (_LOCK in there or not status.st_mode & 0o077)):
                hint = "move it, or pull to another place"
                raise Conflict(f"{place} holds something else than a pull leaves", hint=hint)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, 0o600, dir_fd=folder)
            stack.callback(os.close, lock)
        except NotADirectoryError:
            raise foreign from None
        except OSError as error:
            raise DiskError(f"{place} cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another one pulls to {dest} just now") from None
        inside = writing.inside(place, folder)
        try:
            (inside / "blobs/sha256").mkdir(0o700, parents=True, exist_ok=True)
            yield inside
        except BaseException as error:
            if isinstance(error, XpucachedError):
                error.message = error.message.replace(os.fspath(inside), os.fspath(place))
            # What is spoilt, or has nothing in it, is no good for the next one.
            spoilt = isinstance(error, BadBundle | Unsigned | AlreadyThere)
            if spoilt or not any(inside.glob("blobs/sha256/*")):
                writing.remove(place, folder)
            raise
        writing.remove(place, folder)
