"""Threads for what blocks, where a host may have no more of them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool(ThreadPoolExecutor):
    """A pool whose `submit` either takes what is to be done, or raises and never does it.

    The library's own leaves in its queue what it had no thread for, and does it later, though the caller was refused.
    """

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
