"""A file system that never answers, as that of a server that is away, or of a user who wants to hold others up."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2


@contextlib.contextmanager
def mounted(place: Path) -> Iterator[Path]:
    """Mount one, in user space, whose program reads no question; who waits there fails when it is over."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system without a program of its own")
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    place.mkdir(exist_ok=True)
    where = os.fsencode(place)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    try:
        if _LIBC.mount(b"silent", where, b"fuse", ctypes.c_ulong(0), options) != 0:
            pytest.skip(f"FUSE cannot be mounted here: {os.strerror(ctypes.get_errno())}")
        try:
            yield place
        finally:
            # Nobody will ever answer: the kernel then fails all that wait.
            os.close(device)
            device = -1
            _LIBC.umount2(where, _DETACH)
    finally:
        if device >= 0:
            os.close(device)
