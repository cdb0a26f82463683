"""What anybody may ask who may look, and reads all entries: however many ask at once, memory holds them once."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import catalogs
from tests.unit.service.test_unread import MINE, House
from xpucached.planning import diagnosis
from xpucached.service import disk, evict, explain, handlers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from xpucached.service import Service

ASKING: Final[Mapping[str, Callable[[Service], Awaitable[object]]]] = {
    "why": lambda service: service.explainer.diagnose(MINE),
    "show": lambda service: handlers._model(service, MINE),
    "disk": lambda service: service.disk.usage(),
}
READS: Final = {"why": (explain, "all_entries"), "show": (explain, "unclaimed_entries"), "disk": (evict, "decided")}
ENDS: Final = {"why": (diagnosis, "diagnose"), "show": (diagnosis, "beyond"), "disk": (disk, "DiskUse")}


class Readers:
    """How many have begun to read, and how many of them had not come to their end at once."""

    def __init__(self, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = self.most = self._held = 0
        self._changing = threading.Lock()
        self.reads, self.may_end = threading.Event(), threading.Event()
        reading, ending = (getattr(*where) for where in (READS[way], ENDS[way]))

        def reads(*given: object, **named: object) -> object:
            with self._changing:
                self.begun += 1
                self._held += 1
                self.most = max(self.most, self._held)
            self.reads.set()
            assert self.may_end.wait(60)
            return reading(*given, **named)

        def ends(*given: object, **named: object) -> object:
            with self._changing:
                self._held -= 1
            return ending(*given, **named)

        monkeypatch.setattr(*READS[way], reads)
        monkeypatch.setattr(*ENDS[way], ends)


@pytest.fixture
def house(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        yield House(catalog, tmp_path.resolve(), monkeypatch)


@pytest.mark.parametrize("way", ASKING)
def test_of_many_who_ask_at_once_one_reads_at_a_time(house: House, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    readers = Readers(way, monkeypatch)
    readers.may_end.set()

    async def ask() -> None:
        await asyncio.gather(*[ASKING[way](house.service) for _ in range(6)])

    asyncio.run(ask())
    assert (readers.begun, readers.most) == (6, 1)


@pytest.mark.parametrize("way", ASKING)
def test_who_hangs_up_lets_nobody_read_beside_what_still_reads_for_it(
    house: House, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    readers = Readers(way, monkeypatch)

    async def ask() -> None:
        service = house.service
        lock = service.disk._planning if way == "disk" else service.explainer._reading
        first = asyncio.ensure_future(ASKING[way](service))
        assert await asyncio.to_thread(readers.reads.wait, 60)
        first.cancel()
        second = asyncio.ensure_future(ASKING[way](service))
        async with asyncio.timeout(60):
            while not lock._waiters:  # noqa: ASYNC110 - it says so to nobody
                await asyncio.sleep(0.01)
        assert (readers.begun, lock.locked()) == (1, True)
        readers.may_end.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(ask())
    assert readers.begun == 2
