"""What a program writes to whoever started it: it arrives, or its exit status says that it did not."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING, Final

from xpucached.errors import DiskError

if TYPE_CHECKING:
    from collections.abc import Iterator


_BROKEN_PIPE: Final = 141
"""As a shell reports a program that a signal ended: 128 and the signal's number."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


@contextlib.contextmanager
def arriving() -> Iterator[None]:
    """Write what must arrive.  Raises `DiskError` if it cannot be written.

    Ends the program if whoever read it has had enough, maybe of a refusal.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _end_stdout()
        raise SystemExit(_BROKEN_PIPE) from None
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _end_stdout()
        raise DiskError(f"the answer cannot be written: {error.strerror}") from error


def _end_stdout() -> None:
    # Python would complain again when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
