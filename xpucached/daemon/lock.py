"""The lock of a state directory: one daemon works on it at a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from xpucached.errors import CatalogError, RunningError


@contextlib.contextmanager
def alone(state: Path) -> Iterator[None]:
    """Hold the state directory's lock for as long as we work on it.  Raises RunningError if another daemon does."""
    try:
        state.mkdir(0o700, parents=True, exist_ok=True)
        descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CatalogError(
            f"the state directory {state} cannot be used: {error.strerror}",
            hint="set paths.state in the configuration to a directory of yours",
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CatalogError(f"the lock is not a regular file: {state / 'lock'}", hint="remove it, or move it away")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "?"
            raise RunningError(
                f"another xpucached (process {other}) works on {state}",
                hint="stop that one first, or give this one its own paths.state",
            ) from None
        # Only said for people; on a full disk the lock holds all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


def instance(state: Path) -> str:
    """Return what stands for a state directory; one of the same path in another container is another one."""
    return hashlib.blake2b(b"%s %d" % (os.fsencode(state), state.stat().st_ino), digest_size=8).hexdigest()
