"""Observe: what the kernel says of an open file beyond what Python asks it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final


class _Statx(ctypes.Structure):
    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("block", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("middle", ctypes.c_uint8 * 64),
        ("birth_seconds", ctypes.c_int64),
        ("birth_nanoseconds", ctypes.c_uint32),
        ("tail", ctypes.c_uint8 * 164),
    )


_BIRTH: Final = 0x800
_EMPTY_PATH: Final = 0x1000
_MOUNT_ROOT: Final = 0x2000


@cache
def _statx() -> ctypes._NamedFuncPointer | None:
    try:
        function = ctypes.CDLL(None)["statx"]
    except (OSError, AttributeError):
        return None
    function.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_Statx),
    )
    return function


def _status(descriptor: int) -> _Statx | None:
    function = _statx()
    result = _Statx()
    if function is None or function(descriptor, b"", _EMPTY_PATH, _BIRTH, ctypes.byref(result)) != 0:
        return None
    return result


def mounted(descriptor: int) -> bool:
    """Return whether something is mounted here."""
    status = _status(descriptor)
    return status is not None and bool(status.attributes & _MOUNT_ROOT)


def birth(descriptor: int) -> int | None:
    """Return when a file was made, in nanoseconds since 1970, where the file system knows."""
    status = _status(descriptor)
    if status is None or not status.mask & _BIRTH:
        return None
    return int(status.birth_seconds) * 1_000_000_000 + int(status.birth_nanoseconds)
