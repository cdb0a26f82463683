"""Waiting for what goes on in a thread: it goes on whoever is cancelled, so what is locked for it must stay so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


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
