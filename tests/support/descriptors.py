"""A process that is short of descriptors, for a while."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def leaving(free: int) -> Iterator[None]:
    """Leave so many descriptors that can be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        next_one = os.open("/", os.O_RDONLY)
        os.close(next_one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one + free, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield
