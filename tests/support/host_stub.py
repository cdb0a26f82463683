"""A host's daemon that answers from a sample, on a real socket; its users' pages come from a sample, too."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from tests.support import histories
from xpucached import codec
from xpucached.api import looking
from xpucached.errors import Denied, NotFound
from xpucached.server import http_listener, unix_sockets
from xpucached.server.connection import ConnectionLimits
from xpucached.server.hosting import HostRoutes, HostService

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.api.endpoints import Request
    from xpucached.domain.users import HostStatus


class Host:
    """What the host's daemon knows."""

    def __init__(self) -> None:
        self.value = histories.make_host_status()
        self.looks = 0
        self.refuses = False

    def find(self, name: str | int | None, caller: int) -> int:
        """Return the number of a user."""
        for one in self.value.users:
            if name in {one.user, one.uid}:
                return one.uid
        raise NotFound(f"the host's daemon knows no user {name or caller}")

    def status(self, only: int | None) -> HostStatus:
        """Return how the host stands; it is asked by root."""
        assert only is None
        return self.value

    def look(self) -> None:
        """Hear that the driver may have changed."""
        if self.refuses:
            raise Denied("not by you")
        self.looks += 1

    async def tend(self, uid: int, request: Request[object], *, admin: bool) -> bytes:
        """Return what a worker would say."""
        if not (isinstance(request, looking.GetOverview) and admin and uid == self.value.users[0].uid):
            raise Denied("that is not here")
        return codec.dumps(codec.to_json(histories.make_overview()))


@contextmanager
def running(path: Path) -> Iterator[Host]:
    """Answer at a path."""
    host, ready, held = Host(), threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def live() -> None:
        end, limits = asyncio.Event(), ConnectionLimits()
        routes = HostRoutes(cast("HostService", host), "1.2.3", limits, admin=True)
        made = http_listener.HttpListener(routes, limits)
        await made.start([unix_sockets.bind(path, 0o600)])
        held.append((asyncio.get_running_loop(), end))
        ready.set()
        await end.wait()
        await made.stop()
        unix_sockets.remove(path, unix_sockets.identity(path))

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    assert ready.wait(20)
    try:
        yield host
    finally:
        loop, end = held[0]
        loop.call_soon_threadsafe(end.set)
        thread.join()
