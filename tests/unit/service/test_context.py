"""What the flows share: what is done in a thread keeps what is locked for it, whoever is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from xpucached.service.context import to_its_end


def test_who_is_cancelled_waits_for_the_thread_however_often() -> None:
    going, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        going.set()
        may_end.wait(10)
        ended.set()

    async def cancel() -> None:
        lock = asyncio.Lock()

        async def locked() -> None:
            async with lock:
                await to_its_end(work)

        task = asyncio.create_task(locked())
        await asyncio.to_thread(going.wait, 10)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
            assert lock.locked()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
        assert not lock.locked()

    asyncio.run(cancel())


def test_what_it_gives_or_raises_is_given_and_raised() -> None:
    async def ask() -> None:
        assert await to_its_end(int, "7") == 7
        with pytest.raises(ValueError, match="invalid literal"):
            await to_its_end(int, "seven")

    asyncio.run(ask())
