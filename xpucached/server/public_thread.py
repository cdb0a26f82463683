"""Door: one that everybody may knock at, in a thread and a loop of its own.

What strangers send is parsed, bounded and refused there.  Whatever they do, the daemon's own loop goes on: it answers
administrators on their socket, and tells systemd that it lives.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

from xpucached import guarded

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from xpucached.server.http_listener import HttpListener

T = TypeVar("T")


class PublicListener:
    """Runs a door in a thread.  Its answers do their work in the loop that called `start`, by way of `across`."""

    def __init__(self, listener: Callable[[], HttpListener]) -> None:
        self._make = listener
        self._door: HttpListener | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="public", daemon=True)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Answer on these listening sockets from now on."""
        self._thread.start()
        await self._there(self._begin(sockets))

    async def stop(self) -> None:
        """Take no more requests, end those that run, and wait until the thread is gone."""
        if self._thread.is_alive():
            if self._door is not None:
                await self._there(self._door.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)

    async def _begin(self, sockets: Sequence[socket.socket]) -> None:
        for one in sockets:
            if isinstance(one, guarded.GuardedListener):
                one.public = True
        self._door = self._make()
        await self._door.start(sockets)

    async def _there(self, call: Coroutine[None, None, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


async def here(call: Coroutine[None, None, T]) -> T:
    """Do what is asked in the loop in which it was asked."""
    return await call


def across(loop: asyncio.AbstractEventLoop) -> Callable[[Coroutine[None, None, T]], Awaitable[T]]:
    """Return what does in this loop what was asked in another thread's; who stops waiting there ends it here."""

    def run(call: Coroutine[None, None, T]) -> Awaitable[T]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))

    return run
