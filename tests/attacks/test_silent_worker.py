"""A worker that accepts and says nothing takes no more than its user's places, however often it is asked anew."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

from tests.test_hostd import Hands, make
from xpucached import api

if TYPE_CHECKING:
    from pathlib import Path


def test_who_is_asked_again_and_again_holds_no_more_threads(short_dir: Path) -> None:
    connected: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(short_dir / "listens"))
        server.listen(64)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connected.append(server.accept()[0])

        listening = threading.Thread(target=accept)
        listening.start()

        async def asks() -> None:
            host_daemon = make(short_dir, Hands(), short_dir / "listens")
            # A question is given up and asked anew, as a wake does with the one before it.
            for _ in range(12):
                asking = asyncio.create_task(host_daemon._user_clients.ask(os.getuid(), api.GetStatus()))
                await asyncio.sleep(0.05)
                asking.cancel()
                await asyncio.wait([asking])
            held = len(connected)
            for one in connected:
                one.close()
            server.shutdown(socket.SHUT_RDWR)
            await asyncio.to_thread(host_daemon._user_clients._threads.shutdown)
            assert 1 <= held <= 4, held

        asyncio.run(asks())
        listening.join()
