"""A daemon that has further kinds in its table looks after their entries beside those of SYCL: nothing else is told."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from tests import INSTANCE
from tests.kinds import fakes
from tests.support import catalogs
from tests.support.builders import SyclStore
from xpucached.api import requests
from xpucached.catalog import Catalog
from xpucached.catalog.entries import entry_page, find_entry
from xpucached.catalog.stores import all_stores
from xpucached.catalog.tables import ENTRIES
from xpucached.domain.activity import FileAct, FileEvent, Program
from xpucached.domain.defects import Effect, RepairAction, unknown
from xpucached.domain.host import Device, DriverAnswer, Host, OtherDriver
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.models import Model, Outcome, WarmReason, Workload
from xpucached.domain.names import Architecture, EntryKey, ModelName
from xpucached.domain.plans import EvictReason, NoRecipe, Rebuild, Recipe, ReplayReason
from xpucached.domain.queries import EntryPage, EntryQuery
from xpucached.domain.reports import EvictionReport, VerifyReport
from xpucached.domain.stores import EntryId, Store
from xpucached.domain.targets import Target
from xpucached.domain.throttling import Waiting
from xpucached.domain.trash import Unproven
from xpucached.domain.workloads import Variant
from xpucached.errors import RequestError
from xpucached.host import process_table
from xpucached.kinds import sycl
from xpucached.kinds.neo import kind as neo
from xpucached.kinds.table import KINDS
from xpucached.planning.repair import plan_mending
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service
from xpucached.service.context import Context
from xpucached.service.publish import Publisher
from xpucached.service.rebuild import RebuildJob
from xpucached.service.replay import ReplayRequest
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

pytestmark = pytest.mark.flow

OLD = Target(fakes.FULL.name, "P", "D", "older")
NEW = tuple(Target(name, "P", "D", "newer") for name in (fakes.FULL.name, fakes.BARE.name))


class House:
    """A service of our own in this process, and four stores of four kinds."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        for kind in (fakes.BARE, fakes.FULL):
            monkeypatch.setitem(KINDS, kind.name, kind)
        store = SyclStore(place / "sycl")
        for kernel in ("_ZTS1a", "_ZTS1b"):
            store.add(kernel)
        fakes.fill(place / "bare", fakes.BARE, OLD)
        fakes.fill(place / "full", fakes.FULL, OLD)
        shutil.copytree(fakes.NEO / "acm-g10", place / "neo")
        self.paths = [str(place / name) for name in ("sycl", "bare", "full", "neo")]
        self.catalog: Catalog
        self.service: Service

    def root(self, name: str) -> Path:
        return (self.place / name).resolve()

    def live(self, work: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            environ = {
                **os.environ,
                "XPUCACHED_STORES_FOUND": "false",
                "XPUCACHED_STORES_PATHS": ":".join(self.paths),
                "XPUCACHED_POLICY_GRACE": "0",
                "XPUCACHED_PATHS_STATE": str(self.place / "state"),
                "XPUCACHED_PATHS_SOCKET": str(self.place / "socket"),
                "XPUCACHED_PATHS_CACHE": str(self.place / "cache"),
            }
            config = loading.load(None, user=True, environ=environ)
            self.service = Service(Context(config, self.catalog, {}), ProcessStarter(os.environ, INSTANCE))
            await self.done(await self.service.reconciler.start_scan(requests.ScanStores()))
            # As if the driver had said so.
            self.service.context.host = Host(datetime.now(UTC), "boot", "6", "stamp", environments=NEW)
            await work()
            await self.service.stop()

        (self.place / "state").mkdir()
        self.catalog = catalogs.fresh(self.place / "state" / "catalog.sqlite")
        try:
            asyncio.run(whole())
        finally:
            self.catalog.close()

    async def done(self, job: Job) -> Job:
        while job.state in {JobState.QUEUED, JobState.RUNNING}:
            await asyncio.sleep(0.01)
            (job,) = [one for one in self.service.context.jobs.all() if one.id == job.id]
        assert job.state is JobState.DONE, job
        return job

    async def page(self, **conditions: object) -> EntryPage:
        """Ask for entries."""
        query = EntryQuery(**conditions)  # type: ignore[arg-type] # as they are called
        return await self.service.context.read(entry_page, query, present=(), now=datetime.now(UTC))

    async def entries(self) -> dict[str, dict[str, str]]:
        """Return the refs of all entries, by kind and key."""
        found: dict[str, dict[str, str]] = {}
        for one in (await self.page(limit=100)).entries:
            found.setdefault(one.entry.id.store.kind, {})[one.entry.id.key] = one.entry.id.ref
        return found


@pytest.fixture
def house(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    return House(short_dir, monkeypatch)


def test_each_store_is_of_the_kind_that_its_files_say(house: House) -> None:
    async def work() -> None:
        found = await house.entries()
        stores = {
            (one.kind, one.store): one.entries for one in await house.service.context.read(all_stores) if one.entries
        }
        assert stores == {
            ("sycl", house.root("sycl")): 2,
            ("bare", house.root("bare")): 3,
            ("full", house.root("full")): 3,
            ("neo", house.root("neo")): 2,
        }
        assert set(found["bare"]) == {"a1.bare", "b2.bare", "c3.bare"}
        assert set(found["neo"]) == {"c/3/c38a8531ff01c4ee.cl_cache", "d/9/d930dfee6f04d4c0.l0_cache"}
        (shown,) = (await house.page(kernel="fixture_add", kind=neo.KIND.name, limit=1)).entries
        assert shown.entry.id.store.kind == "neo"

    house.live(work)


def test_a_program_is_known_in_the_caches_of_both_kinds_by_its_spirv(house: House) -> None:
    ze = "f/d/fda88f9b82d687e4.l0_cache"
    shutil.rmtree(house.place / "neo")
    shutil.copytree(fakes.NEO / "recorded", house.place / "neo")
    program = (fakes.NEO / "recorded" / ze).read_bytes()
    spirv = (fakes.NEO / "recorded" / "fda88f9b82d687e4.input").read_bytes()
    SyclStore(house.place / "sycl").add(image=spirv, binary=program)

    async def work() -> None:
        before = await house.entries()
        shown = await house.service.context.read(find_entry, before["neo"][ze])
        assert [kernel.name for kernel in shown.entry.kernels] == ["noinc"]
        (twin,) = shown.elsewhere
        assert (twin.kind, twin.store, twin.identical) == ("sycl", house.root("sycl"), True)
        back = (await house.service.context.read(find_entry, twin.ref)).elsewhere
        # The driver was asked for it with other options, too, and for the source text of which it is made.
        assert [(one.kind, one.ref == before["neo"][one.key], one.identical, one.key == ze) for one in back] == [
            ("neo", True, False, False),
            ("neo", True, False, False),
            ("neo", True, True, True),
        ]

    house.live(work)


def test_what_is_evicted_goes_by_the_rules_of_its_kind_and_comes_back_where_it_can(house: House) -> None:
    async def work() -> None:
        before = await house.entries()
        refs = (before["bare"]["a1.bare"], before["full"]["a1.full"], *before["sycl"].values())
        await house.done(await house.service.evictor.start(requests.EvictEntries(refs=refs)))
        left = await house.entries()
        assert {kind: len(keys) for kind, keys in left.items()} == {"bare": 2, "full": 2, "neo": 2}
        assert not (house.place / "bare" / "a1.bare").exists()

        inside = await house.service.trash.all()
        assert sorted(one.store.kind for one in inside) == ["full", "sycl", "sycl"]
        await house.done(
            house.service.context.jobs.start("restore", house.service.trash.restoring((), everything=True))
        )
        await house.done(await house.service.reconciler.start_scan(requests.ScanStores()))
        after = await house.entries()
        assert (after["full"], set(after["sycl"])) == (before["full"], set(before["sycl"]))
        assert set(after["bare"]) == {"b2.bare", "c3.bare"}

    house.live(work)


def test_the_disks_and_what_programs_have_open_are_looked_at_once_for_an_eviction(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[frozenset[Path]] = []
    really = process_table.held

    def held(roots: frozenset[Path]) -> Mapping[Path, frozenset[str]]:
        looks.append(roots)
        return really(roots)

    async def work() -> None:
        house.service.context.settings = replace(
            house.service.context.settings, policy=replace(house.service.context.settings.policy, max_bytes=1)
        )
        looks.clear()
        job = await house.done(await house.service.evictor.start(requests.EvictEntries()))
        assert isinstance(job.report, EvictionReport)
        assert job.report.removed
        assert len(looks) == 1

    monkeypatch.setattr(process_table, "held", held)
    house.live(work)


def test_what_only_its_programs_can_compile_is_not_said_to_be_for_another_driver(house: House) -> None:
    async def work() -> None:
        job = await house.done(
            await house.service.verifier.start(requests.VerifyStores(deep=True), house.service.status.get)
        )
        assert isinstance(job.report, VerifyReport)
        assert job.report.deep is not None
        assert job.report.deep.unproven[Unproven.KIND] == 3  # of `bare`
        assert job.report.deep.unproven[Unproven.UNRECORDED] == 2  # of `neo`

    house.live(work)


def test_what_a_program_holds_the_lock_of_stays(house: House) -> None:
    async def work() -> None:
        before = await house.entries()
        refs = tuple(before["neo"].values())
        with (house.place / "neo" / "config.file").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            job = await house.done(await house.service.evictor.start(requests.EvictEntries(refs=refs)))
            assert await house.entries() == before
            assert isinstance(job.report, EvictionReport)
            assert not job.report.removed
        job = await house.done(await house.service.evictor.start(requests.EvictEntries(refs=refs)))
        assert "neo" not in await house.entries()

    house.live(work)


def test_what_only_its_program_makes_is_told_and_what_can_be_compiled_again_is_planned(house: House) -> None:
    async def work() -> None:
        plan = await house.service.replayer.plan(ReplayRequest())
        assert {one.entry.entry.id.store.kind for one in plan.rebuild} <= {"full", "sycl"}
        assert [one.entry.entry.id.key for one in plan.rebuild if one.entry.entry.id.store.kind == "full"]
        assert plan.skipped[NoRecipe.KIND] == 3  # of the bare ones; the driver's own do not say for whom they are

    house.live(work)


def test_a_doctor_is_asked_of_its_own_kind_only(house: House) -> None:
    async def work() -> None:
        for name in ("bare", "full"):
            (house.place / name / "blocked").write_text("")
        job = await house.done(
            await house.service.verifier.start(
                requests.VerifyStores(faults_only=True, fix=True), house.service.status.get
            )
        )
        assert isinstance(job.report, VerifyReport)
        assert [(one.store.kind, one.action, one.done) for one in job.report.findings] == [
            ("full", RepairAction.CLEAR, True)
        ]

    house.live(work)


def test_what_is_wrong_is_decided_by_the_table_of_its_kind(house: House) -> None:
    (house.place / "full" / "a1.full").write_bytes(b'["P", "D", "older"]\n')

    async def work() -> None:
        await house.service.recover()
        (shown,) = (await house.page(defect=fakes.EMPTY.code)).entries
        assert (shown.entry.defect, shown.entry.id.key) == (fakes.EMPTY, "a1.full")
        job = await house.done(
            await house.service.verifier.start(requests.VerifyStores(fix=True), house.service.status.get)
        )
        assert isinstance(job.report, VerifyReport)
        assert [(one.defect, one.effect, one.message, one.action, one.done) for one in job.report.findings] == [
            ("full-empty", "grows", "there is no program in it", RepairAction.TRASH, True)
        ]
        assert [one.key for one in await house.service.trash.all()] == ["a1.full"]
        with pytest.raises(RequestError, match="no defect is called 'full-emty'") as refused:
            await house.page(defect="full-emty")
        assert "bin-empty, " in refused.value.hint
        assert "full-empty, " in refused.value.hint

    house.live(work)


def test_a_defect_that_nobody_here_knows_is_shown_as_it_is_called_and_left(house: House) -> None:
    (house.place / "full" / "a1.full").write_bytes(b'["P", "D", "older"]\n')

    async def work() -> None:
        with house.catalog._write() as connection:
            connection.execute(sa.update(ENTRIES).where(ENTRIES.c.defect.is_not(None)).values(defect="of-tomorrow"))
        (shown,) = [one for one in (await house.page()).entries if one.entry.defect]
        assert shown.entry.defect == unknown("of-tomorrow")
        assert shown.entry.effect is Effect.UNKNOWN
        (decided,) = plan_mending([shown.entry])
        assert decided.action is RepairAction.LEAVE
        report = await house.service.evictor.plan(reasons=(EvictReason.DEFECTIVE,), asked=True)
        assert report.evict == ()

    house.live(work)


def test_what_programs_do_is_read_by_the_kind_of_the_store(house: House) -> None:
    async def work() -> None:
        program = Program(
            7, datetime.now(UTC) - timedelta(days=1), os.getuid(), "app", "app", libraries=("libfull.so",)
        )
        tracker = house.service.tracker
        for name in ("full", "bare"):
            event = FileEvent(house.root(name), f"a1.{name}", FileAct.READ, 7, 10.0)
            tracker._waiting.append((event, program))
        await tracker.digest(last=True)
        rows = (await house.page(limit=100)).entries
        assert {one.entry.id.key for one in rows if one.program} == {"a1.full"}

    house.live(work)


RUN = """
    if [ -e "$FULL_CACHE_DIR/1.full" ]; then
        echo 'full: used 1.full' >&2
    else
        printf '["P", "D", "newer"]\\nprogram' > "$FULL_CACHE_DIR/1.full"
        echo 'full: made 1.full' >&2
    fi
    [ "$FULL_TRACE" = "$FULL_CACHE_DIR" ] && echo "$SYCL_CACHE_DIR"
"""


def test_a_run_is_proven_by_what_it_tells_in_the_stores_of_all_kinds(house: House) -> None:
    async def work() -> None:
        command = Workload(("/bin/sh", "-c", RUN), house.place, {}, 60.0)
        model = Model(ModelName("net"), command, house.root("sycl"))
        stores = house.service.finder.run_stores(house.service.finder.store_of(model))
        assert [one.store.kind for one in stores] == ["sycl", "neo", "full"]
        made = EntryId(stores[-1].store, EntryKey("1.full"))
        made.store.root.mkdir(parents=True)
        known = await house.service.scanner.entries_now(stores)
        trials = house.service.prewarmer._trials
        attempt = await trials.attempt(model, stores, Variant(), WarmReason.MANUAL, known, lambda _what: None)
        first, second = attempt.executions
        assert [first.created, first.used, second.created, second.used] == [{made}, set(), set(), {made}]
        assert (attempt.trial.outcome, made in attempt.after) == (Outcome.WARMED, True)
        assert second.output == str(house.root("sycl"))

    house.live(work)


def test_what_is_compiled_again_goes_where_the_programs_of_its_model_keep_it(house: House) -> None:
    async def work() -> None:
        context, net = house.service.context, ModelName("net")
        mine = Workload(("/bin/true",), house.place, {"NEO_CACHE_DIR": "/elsewhere", "HOME": "/home/a"})
        shown = (await house.page(kind="sycl", limit=1)).entries[0]
        one = Rebuild(replace(shown, models=(net,)), NEW[0], ReplayReason.USED)
        results = Publisher(context, ReplayRequest(), ())
        job = RebuildJob(context, ProcessStarter(os.environ, INSTANCE), [], (), results)
        job._models = {net: Model(net, mine)}
        results.close()
        assert dict(job._caches(one)) == {
            "NEO_CACHE_PERSISTENT": "1",
            "NEO_CACHE_DIR": str(context.settings.managed(neo.NAME)),
            # Without this the driver would evict there.
            "NEO_CACHE_MAX_SIZE": "0",
        }

    house.live(work)


@pytest.mark.parametrize("linked", [False, True])
def test_what_a_driver_tells_of_a_replay_is_taken_away_and_nobody_else_has_it_tell(
    house: House, *, linked: bool
) -> None:
    if linked:
        (house.place / "disk").mkdir()
        (house.place / "cache").symlink_to("disk")

    async def work() -> None:
        context = house.service.context
        results = Publisher(context, ReplayRequest(), ())
        results.close()
        managed = context.settings.managed(neo.NAME)
        managed.mkdir(parents=True)
        driver = OtherDriver((), "stamp", {})
        job = RebuildJob(context, ProcessStarter(os.environ, INSTANCE), [], (), results)
        for directory, tells, told in ((managed, False, False), (house.place, True, False), (managed, True, True)):
            job.tells = tells
            (managed / "14393921d7ce9d06.trace").write_text("told")
            assert bool(job._traces((("NEO_CACHE_DIR", str(directory)),), driver)) is told
            job.forget_told()
            assert list(managed.glob("*.trace")) == ([] if told else [managed / "14393921d7ce9d06.trace"])
        # Of a second driver it would not be known what is whose.
        assert job._traces((("NEO_CACHE_DIR", str(managed)),), OtherDriver((), "other", {})) == {}
        assert job.filled() == {house.root("cache") / "neo"}
        managed.rmdir()
        assert job.filled() == frozenset()

    house.live(work)


def test_our_stores_of_further_kinds_are_made_where_there_is_a_gpu(house: House) -> None:
    async def work() -> None:
        context, finder = house.service.context, house.service.finder
        managed = context.settings.managed(neo.NAME)
        cpu = DriverAnswer("Intel(R) OpenCL", "Xeon", "OpenCL 3.0", "1")
        gpu = DriverAnswer("Intel(R) OpenCL Graphics", "B580", "OpenCL 3.0 NEO ", "26.27")
        found: list[bool] = []
        for answer in (cpu, gpu):
            device = Device(answer.device, Architecture("x"), answers=(answer,))
            # No compiler is seen: of which target entries would be is not known.
            context.host = Host(datetime.now(UTC), "boot", "6", "stamp", (device,))
            # Not where a home is yet to be mounted.
            for away in ({ModelName("net"): Waiting(datetime.now(UTC), "its file is away")}, {}):
                context.away = away
                finder.make_offered()
                found.append(managed.is_dir())
        assert found == [False, False, False, True]
        assert stat.S_IMODE(managed.stat().st_mode) == 0o700

    house.live(work)


TELLING = """
    told() { printf '["%s", ["P", "D", "newer"], "source of it"]' "$1" > "$FULL_CACHE_DIR/$2.told"; }
    told 1.full here
    told "$$.full" once
    printf '["P", "D", "newer"]\\nprogram' > "$FULL_CACHE_DIR/1.full"
"""


def test_what_a_run_leaves_in_files_is_taken_away_and_is_how_its_entries_are_compiled_again(house: House) -> None:
    async def work() -> None:
        service = house.service
        command = Workload(("/bin/sh", "-c", TELLING), house.place, {}, 60.0)
        model = Model(ModelName("net"), command, house.root("sycl"))
        stores = service.finder.run_stores(service.finder.store_of(model))
        full = stores[-1].store
        full.root.mkdir(parents=True)
        (full.root / "left.told").write_text('["of-others.full", ["P", "D", "newer"], ""]')
        known = await service.scanner.entries_now(stores)
        trials = service.prewarmer._trials
        attempt = await trials.attempt(model, stores, Variant(), WarmReason.MANUAL, known, lambda _what: None)
        first, second = attempt.executions
        made = EntryId(full, EntryKey("1.full"))
        assert (made in first.created, made in second.used, second.traced) == (True, True, True)
        # Another key each time is no proof of anything.
        assert attempt.trial.outcome is Outcome.UNPROVEN
        assert [path.name for path in full.root.iterdir()] == ["1.full"]

        recorded = service.context.recipes.recorded(full.kind, made.key)
        assert recorded is not None
        assert (recorded.parts, recorded.lineage) == ({"source": b"source of it"}, "by source of it")
        once = [one for one in first.created | second.created if one != made]
        assert len(once) == 2
        assert [service.context.recipes.recorded(full.kind, one.key) for one in once] == [None, None]
        (shown,) = [one.entry for one in (await house.page()).entries if one.entry.id == made]
        found = service.context.recipe(shown)
        assert isinstance(found, Recipe)
        assert (found.input, found.facts) == (b"source of it", {"from": "told"})

    house.live(work)


def test_a_path_that_two_kinds_recognise_is_left_alone_until_its_kind_is_said(house: House) -> None:
    fakes.fill(house.place / "full", fakes.BARE, OLD)

    async def work() -> None:
        assert "full" not in await house.entries()
        (problem,) = [one for one in (await house.service.status.get()).problems if one.code == "unclear-store"]
        assert problem.subject == str(house.place / "full")
        assert "of bare and of full" in problem.message
        assert f"KIND:{house.place}/full" in problem.hint

    house.live(work)


def test_the_kind_that_is_said_holds(house: House) -> None:
    fakes.fill(house.place / "full", fakes.BARE, OLD)
    house.paths[2] = f"full:{house.paths[2]}"
    house.paths.append(f"nothing:{house.place}/other")

    async def work() -> None:
        found = await house.entries()
        assert (set(found["full"]), len(found["bare"])) == ({"a1.full", "b2.full", "c3.full"}, 3)
        (problem,) = [one for one in (await house.service.status.get()).problems if one.code == "unclear-store"]
        assert "kinds are: bare, full, neo, sycl" in problem.hint

    house.live(work)


def test_a_configured_path_that_is_a_file_is_told_with_what_to_do(house: House) -> None:
    (house.place / "file").write_text("not a store")
    house.paths += [str(house.place / "file"), str(house.place / "missing")]

    async def work() -> None:
        told = [one for one in (await house.service.status.get()).problems if one.code == "unclear-store"]
        (problem,) = [one for one in told if "no directory" in one.message]
        assert problem.subject == str(house.place / "file")
        assert "stores.paths" in problem.hint

    house.live(work)


def test_what_holds_nothing_yet_is_one_of_models_and_what_was_known_stays_what_it_was(house: House) -> None:
    house.paths.append(str(house.place / "empty"))

    async def work() -> None:
        for path in (house.place / "bare").iterdir():
            path.unlink()
        await house.done(await house.service.reconciler.start_scan(requests.ScanStores()))
        stores = {one.id for one in await house.service.context.read(all_stores)}
        assert {Store(sycl.NAME, house.root("empty")), Store(fakes.BARE.name, house.root("bare"))} <= stores
        assert Store(sycl.NAME, house.root("bare")) not in stores

    house.live(work)
