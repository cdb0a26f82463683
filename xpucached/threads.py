"""Threads for what blocks, where a host may have no more of them."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

STOP: Final = 20.0
"""Seconds that a daemon's stop may take in all, until what has not ended is left as it is; systemd kills after 30."""

_POOLS: Final[WeakSet[ThreadPool]] = WeakSet()
_DEFAULTS: Final[list[ThreadPool]] = []
"""Not forgotten when a loop has another one: what they began may still go on."""


class ThreadPool(ThreadPoolExecutor):
    """A pool whose `submit` either takes what is to be done, or raises and never does it.

    The library's own leaves in its queue what it had no thread for, and does it later, though the caller was refused.
    """

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "") -> None:
        """``max_workers`` as the library's own."""
        super().__init__(max_workers, thread_name_prefix)
        _POOLS.add(self)

    def ends(self, until: float) -> bool:
        """Take nothing more; return whether all that was begun has ended by then, on the clock of `time.monotonic`."""
        self.shutdown(wait=False, cancel_futures=True)
        threads = tuple(self._threads)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do this in a thread.  Raises `RuntimeError` if none can be started."""
        taken: Future[bool] = Future()

        def work() -> T:
            if not taken.result():
                raise AssertionError("nobody waits for this")
            return fn(*args, **kwargs)

        try:
            asked = super().submit(work)
        except BaseException:
            taken.set_result(False)
            raise
        taken.set_result(True)
        return asked


def renew(loop: asyncio.AbstractEventLoop) -> None:
    """Give a loop new threads: those that it had may all wait for a file system that does not answer."""
    pool = ThreadPool(thread_name_prefix="asyncio")
    _DEFAULTS.append(pool)
    loop.set_default_executor(pool)


def all_end(seconds: float) -> bool:
    """End all pools; return whether what they had begun has ended in so many seconds.

    What has not waits for a file system that does not answer, and Python would wait for it for ever.
    """
    until = time.monotonic() + seconds
    ended = [pool.ends(until) for pool in tuple(_POOLS)]
    return all(ended)
