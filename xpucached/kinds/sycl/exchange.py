"""Act: two files change places in one step, so that there is no moment at which either is missing."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import Final

_EXCHANGE: Final = 1 << 1


def exchange(first: int, name: str, second: int, other: str) -> None:
    """Let what has one name in one directory, and what has the other in the other, change places.

    Raises OSError; `EINVAL` where the file system cannot, `ENOSYS` where the C library has no function for it.
    """
    function = _renameat2()
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)
    if function(first, os.fsencode(name), second, os.fsencode(other), _EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)


@cache
def _renameat2() -> ctypes._NamedFuncPointer | None:
    try:
        function = ctypes.CDLL(None, use_errno=True)["renameat2"]
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function
