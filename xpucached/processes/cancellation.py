"""Waiting for what goes on in a thread: it goes on whoever is cancelled, so what is locked for it must stay so."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_P = ParamSpec("_P")
_T = TypeVar("_T")

_STOP: Final[ContextVar[threading.Event | None]] = ContextVar("stop", default=None)
"""Set for what is done in this thread when nobody wants it any more."""


class WorkCancelled(Exception):
    """Nobody wants what is looked for any more."""


def check() -> None:
    """Raise `WorkCancelled` if nobody wants any more what is done in this thread; for who only looks."""
    if (stop := _STOP.get()) is not None and stop.is_set():
        raise WorkCancelled


def until_cancelled(some: Iterable[_T]) -> Iterator[_T]:
    """Give these, one by one, as long as somebody wants what is done in this thread."""
    stop = _STOP.get()
    for one in some:
        if stop is not None and stop.is_set():
            return
        yield one


async def to_its_end(work: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Do something in a thread; who is cancelled meanwhile, however often, waits until it is done all the same.

    No thread can be cancelled: what is locked for it must stay so.  Work that asks (`check`,
    `until_cancelled`) ends early.
    """
    stop = threading.Event()
    before = _STOP.set(stop)
    try:
        doing = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    finally:
        _STOP.reset(before)
    return await ended(doing, stop.set)


async def ended(doing: asyncio.Future[_T], on_cancel: Callable[[], None] = lambda: None) -> _T:
    """Return or raise what comes of something; who is cancelled meanwhile, however often, waits for its end first.

    ``on_cancel`` is called then, to make it end soon.
    """
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait({doing})
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None:
        if not doing.cancelled():
            doing.exception()  # what it raised is nobody's any more
        raise cancelled
    return doing.result()
