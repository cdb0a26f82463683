"""What is prepared for drivers that are not installed: when, for how long, and who goes first."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest
from msgspec.structs import replace

from tests import INSTANCE
from tests.support import catalogs
from tests.support.builders import SyclStore
from xpucached.domain.ahead import AheadState, StagedDriver, StagedPackage
from xpucached.domain.host import OtherDriver
from xpucached.domain.jobs import JobState
from xpucached.domain.names import KindName
from xpucached.domain.plans import NoRecipe, Rebuild, ReplayPlan
from xpucached.domain.reports import ReplayReport
from xpucached.domain.targets import Target
from xpucached.errors import HostError
from xpucached.host import power, staged
from xpucached.processes.supervised import ProcessStarter
from xpucached.processes.unpacking import UnpackFailed, UnpackLimits
from xpucached.service import Service, ahead
from xpucached.service.ahead import AheadPreparer
from xpucached.service.context import Context
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from xpucached.catalog import Catalog
    from xpucached.service.jobs import Handle
    from xpucached.service.replay import Replayer, ReplayRequest
    from xpucached.service.throttle import Throttle

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
NEXT: Final = Target(KindName("sycl"), "OpenCL", "CPU", "next")


class StubReplayer:
    """Rebuilds nothing, and remembers for what."""

    def __init__(self) -> None:
        self.asked: list[ReplayRequest] = []
        self.left = 1
        self.refused = 0
        self.error: HostError | None = None
        self.going = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def lacking(self, driver: OtherDriver) -> ReplayPlan:
        assert driver.environments == (NEXT,)
        skipped = {NoRecipe.FAILED: self.refused} if self.refused else {}
        rebuild = (cast("Rebuild", None),) * self.left
        return ReplayPlan(rebuild, skipped, covered=3 - self.left - self.refused)

    def work(
        self, wish: ReplayRequest, *, told: Callable[[OtherDriver], None]
    ) -> Callable[[Handle], Awaitable[ReplayReport]]:
        async def work(_: Handle) -> ReplayReport:
            self.asked.append(wish)
            if self.error is not None:
                raise self.error
            told(OtherDriver((NEXT,), "stamp", {}))
            async with context.locks.changing:
                self.going.set()
                await self.may_end.wait()
            self.left = 0
            return ReplayReport(ReplayPlan(), dry_run=False)

        context = self.context
        return work

    context: Context


class StubThrottle:
    why = ""

    async def busy(self) -> str:
        return self.why


class House:
    """A preparer, what lies there for it, and the clock."""

    def __init__(self, catalog: Catalog, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        store = SyclStore(place / "store")
        store.add("_ZTS1a")
        paths = {"XPUCACHED_STORES_PATHS": str(store.root), "XPUCACHED_PATHS_STATE": str(place / "state")}
        (place / "state").mkdir()
        settings = loading.load(None, user=True, environ={**os.environ, **paths, "XPUCACHED_STORES_FOUND": "false"})
        self.now = NOW
        self.context = Context(settings, catalog, {}, lambda: self.now)
        self.lying = staged.Lying((StagedDriver("1" * 16, image=place / "next"),))
        self.throttle = StubThrottle()
        monkeypatch.setattr(staged, "find", lambda *_: self.lying)
        monkeypatch.setattr(power, "on_battery", lambda: False)
        # Nobody else takes us for another user: what is kept is ours.
        self.uid = 1000
        monkeypatch.setattr(ahead, "os", SimpleNamespace(**{**vars(os), "geteuid": lambda: self.uid}))

    def again(self) -> AheadPreparer:
        """Return a preparer as after another start."""
        self.replayer = StubReplayer()
        self.replayer.context = self.context
        return AheadPreparer(self.context, cast("Replayer", self.replayer), cast("Throttle", self.throttle))

    def live(self, work: Callable[[AheadPreparer], Awaitable[None]]) -> None:
        async def whole() -> None:
            await Service(self.context, ProcessStarter({}, INSTANCE)).scanner.scan_stores()
            await work(self.again())

        asyncio.run(whole())


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        yield House(catalog, tmp_path, monkeypatch)


async def state(one: AheadPreparer) -> tuple[AheadState, str]:
    await one.look()
    (shown,) = one.shown
    return shown.state, shown.detail


def test_what_a_compiler_refuses_is_not_called_ready(house: House) -> None:
    async def work(one: AheadPreparer) -> None:
        await state(one)
        house.replayer.refused = 3
        await one.prepare()
        (shown,) = one.shown
        words = "its compiler refuses 3 of 3 entries: their programs will compile them"
        assert (shown.state, shown.detail) == (AheadState.FAILED, words)
        assert shown.words == "not ready for driver next, which is not installed yet"
        assert "driver-ahead" not in {event.topic for event in await house.context.events.since(0)}

    house.live(work)


def test_what_lies_in_the_place_of_what_was_kept_holds_nobody_up(house: House) -> None:
    kept = house.place / "state/ahead.json"
    os.mkfifo(kept)

    async def work(one: AheadPreparer) -> None:
        assert await state(one) == (AheadState.WAITING, "")
        await one.prepare()
        assert one.shown[0].state is AheadState.READY

    waited: list[bool] = []

    def let_go() -> None:
        # Who opens a pipe waits for who writes.
        waited.append(True)
        os.close(os.open(kept, os.O_RDWR | os.O_NONBLOCK))

    late = threading.Timer(60.0, let_go)
    late.start()
    try:
        house.live(work)
    finally:
        late.cancel()
    assert kept.is_file()
    assert not waited


def test_it_is_prepared_once_and_known_after_another_start(house: House) -> None:
    async def work(one: AheadPreparer) -> None:
        assert await state(one) == (AheadState.WAITING, "")
        await one.prepare()
        (shown,) = one.shown
        assert (shown.state, shown.entries) == (AheadState.READY, 3)
        assert shown.words == "ready for driver next, not installed yet"
        assert [wish.driver_root for wish in house.replayer.asked] == [house.place / "next"]

        other = house.again()
        house.replayer.left = 0
        assert await state(other) == (AheadState.READY, "")
        await other.prepare()
        assert house.replayer.asked == []
        # A program has made an entry meanwhile.
        house.replayer.left = 1
        assert (await state(other))[0] is AheadState.WAITING
        # It is installed, or goes.
        house.lying = staged.Lying()
        await other.look()
        assert other.shown == ()
        assert b"next" not in (house.place / "state/ahead.json").read_bytes()

    house.live(work)


def test_root_loads_no_driver_that_is_not_installed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(one: AheadPreparer) -> None:
        await one.look()
        house.uid = 0
        await one.prepare()
        assert await state(one) == (AheadState.WAITING, "it is not loaded by root: the users' own workers do it")
        house.uid = 1000
        monkeypatch.setattr(power, "on_battery", lambda: True)
        await one.prepare()
        assert await state(one) == (AheadState.WAITING, "it waits for mains power")
        monkeypatch.setattr(power, "on_battery", lambda: False)
        house.throttle.why = "a GPU is busy"
        await one.prepare()
        assert await state(one) == (AheadState.WAITING, "a GPU is busy")
        assert house.replayer.asked == []

    house.live(work)


def test_what_is_not_installed_in_time_is_given_up(house: House) -> None:
    async def work(one: AheadPreparer) -> None:
        await one.look()
        house.now += timedelta(days=6)
        assert (await state(one))[0] is AheadState.WAITING
        house.now += timedelta(days=2)
        for prepared in (one, house.again()):
            assert (await state(prepared))[0] is AheadState.GIVEN_UP
            await prepared.prepare()
        assert house.replayer.asked == []

    house.live(work)


def test_a_driver_that_lacks_something_waits_for_it(house: House) -> None:
    async def work(one: AheadPreparer) -> None:
        house.lying = staged.Lying((StagedDriver("2" * 16, missing=("a needs b",), image=house.place),))
        assert await state(one) == (AheadState.INCOMPLETE, "a needs b")
        await one.prepare()
        assert house.replayer.asked == []

    house.live(work)


def test_what_fails_is_said_and_tried_again_later(house: House) -> None:
    async def work(one: AheadPreparer) -> None:
        await one.look()
        house.replayer.error = HostError("it offers no device")
        for _ in range(2):
            await one.prepare()
            assert await state(one) == (AheadState.FAILED, "it offers no device")
        assert len(house.replayer.asked) == 1

    house.live(work)


def test_whoever_wants_its_turn_goes_first(house: House) -> None:
    async def work(one: AheadPreparer) -> None:
        await one.look()
        house.replayer.may_end.clear()
        preparing = asyncio.create_task(one.prepare())
        await asyncio.wait_for(house.replayer.going.wait(), 10)
        assert (await state(one))[0] is AheadState.PREPARING
        async with asyncio.timeout(10), house.context.locks.changing:
            await preparing
        assert [job.state for job in house.context.jobs.all()] == [JobState.CANCELLED]
        assert (await state(one))[0] is AheadState.WAITING
        # The same when it is installed meanwhile.
        house.replayer.going.clear()
        preparing = asyncio.create_task(one.prepare())
        await asyncio.wait_for(house.replayer.going.wait(), 10)
        house.lying = staged.Lying()
        await one.look()
        await asyncio.wait_for(preparing, 10)
        assert house.context.jobs.all()[0].state is JobState.CANCELLED

    house.live(work)


def test_a_run_does_not_hurry_for_what_lets_everybody_go_first(house: House) -> None:
    async def work(one: AheadPreparer) -> None:
        await one.look()
        changing = house.context.locks.changing
        async with asyncio.timeout(10):
            async with changing:
                preparing = asyncio.create_task(one.prepare())
                while not house.replayer.asked:  # noqa: ASYNC110 - a lock tells nobody
                    await asyncio.sleep(0.01)
                assert changing.waiting == 0
                another = asyncio.create_task(changing.acquire())
                await asyncio.sleep(0)
                assert changing.waiting == 1
            await another
            assert changing.waiting == 0
            changing.release()
            await preparing

    house.live(work)


def test_packages_are_unpacked_where_there_is_room_and_nothing_is_left(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = house.place / "libigc2_2.1_amd64.deb"
    archive.write_bytes(b"12345")
    roots: list[Path] = []

    def unpacked(path: Path, into: Path, limits: UnpackLimits, _: object) -> int:
        assert (path, limits.most_bytes) == (archive, UnpackLimits().most_bytes)
        roots.append(into)
        (into / "library").write_bytes(b"x")
        return 1

    async def work(one: AheadPreparer) -> None:
        def lies(unpacked: int, size: int = 5) -> None:
            package = StagedPackage("libigc2", "2.1", archive, size, unpacked, "2.0")
            house.lying = staged.Lying((StagedDriver(f"{unpacked:016x}"[-16:], (package,)),), ("x is not looked at",))

        lies(1 << 60)
        await one.look()
        await one.prepare()
        shown, detail = await state(one)
        assert shown is AheadState.FAILED
        assert detail.startswith("unpacked it takes 1099511627776 MiB, and ")
        assert one.refused == ("x is not looked at",)
        lies(1, size=4)
        await one.look()
        await one.prepare()
        assert await state(one) == (AheadState.FAILED, f"{archive.name} changed while it was read")
        lies(2)
        await one.look()
        await one.prepare()
        assert (await state(one))[0] is AheadState.READY
        assert house.replayer.asked[-1].replaced == frozenset({"libigc2"})
        assert house.replayer.asked[-1].driver_root == roots[-1]
        assert roots[-1].parent == house.place / "state"
        monkeypatch.setattr(ahead, "unpack", lambda *_: (_ for _ in ()).throw(UnpackFailed("it is a bomb")))
        lies(3)
        await one.look()
        house.replayer.left = 1
        await one.prepare()
        assert await state(one) == (AheadState.FAILED, "it is a bomb")
        # Nor is what a predecessor that was killed had unpacked.
        # Also where none is prepared for any more.
        for prepares in (True, False):
            (house.place / "state/unpacked-old/deep").mkdir(parents=True)
            settings = house.context.settings
            house.context.settings = replace(settings, schedule=replace(settings.schedule, ahead=prepares))
            await house.again().look()
            assert sorted(path.name for path in (house.place / "state").iterdir()) == ["ahead.json"]

    monkeypatch.setattr(ahead, "unpack", unpacked)
    house.live(work)
