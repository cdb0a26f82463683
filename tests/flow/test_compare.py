"""Compiling entries again: what proves them, and what takes a damaged one's place."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests import INSTANCE
from tests.flow.test_daemon import driven, warm
from tests.flow.test_replay import checksum_and_trace
from tests.flow.test_upkeep import settled
from tests.kinds.test_sycl_damage import look
from tests.support import catalogs
from tests.support.builders import native, spirv, sycl_target
from tests.support.daemons import daemon
from xpucached.api import requests
from xpucached.catalog import Catalog
from xpucached.catalog.entries import all_entries
from xpucached.catalog.intents import open_intents
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.scans import record_scan
from xpucached.catalog.surveys import record_survey
from xpucached.domain.defects import CHANGED, Effect, RepairAction
from xpucached.domain.host import Host, OtherDriver
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.models import Attribution, Model, Outcome, WarmReason, Workload
from xpucached.domain.names import Architecture, ModelName
from xpucached.domain.plans import Rebuild, Recipe, ReplayReason
from xpucached.domain.reports import EvictionReport, VerifyReport
from xpucached.domain.targets import Origin
from xpucached.domain.trash import Comparison, Finding, Repair, Unproven
from xpucached.domain.triggers import Periodic, Started
from xpucached.kinds import sycl
from xpucached.kinds.sycl import entry_format
from xpucached.processes.supervised import ProcessStarter
from xpucached.render.jobs import job as render_job
from xpucached.render.text import TextStyle
from xpucached.render.trash import comparison, verification
from xpucached.service import Service, compare, removals
from xpucached.service.compare import EntryComparer
from xpucached.service.context import Context
from xpucached.service.scan import StoreScanner
from xpucached.service.store_finder import StoreFinder
from xpucached.service.verify import Verifier
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.builders import Slot, SyclStore
    from tests.support.daemons import Daemon
    from tests.support.runtimes import Runtime

COMPILER: Final = """import json, os, pathlib, sys
answers = os.fdopen(int(sys.argv[sys.argv.index("--fd") + 1]), "wb", 0)
answers.write(b'{"ready": true}\\n')
while line := sys.stdin.buffer.readline():
    head = json.loads(line)
    options = sys.stdin.buffer.read(head["options"]).decode()
    sys.stdin.buffer.read(head["image"])
    made = pathlib.Path(PLACE, options)
    # Leaves move while it looks, for others are mended beside: a walk minds that no more than programs do.
    walk = [os.path.join(here, name) for here, _, names in os.walk(STORE) for name in names]
    made.with_suffix(".met").write_text("\\n".join(one for one in walk if ".xpucached" not in one))
    if made.exists():
        content = made.read_bytes()
        answers.write(json.dumps({"binary": len(content), "seconds": 0.5}).encode() + b"\\n" + content)
    else:
        answers.write(b'{"error": "it does not like this"}\\n')
"""
"""A compiler that makes of a program what lies under its options' name."""


class Handle:
    def progress(self, done: int, total: int, detail: str = "") -> None: ...


class Bench:
    """A store, and a daemon's parts that verify it with such a compiler."""

    def __init__(self, store: SyclStore, place: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.made = place / "made"
        self.made.mkdir()
        tool = place / "compiler"
        places = f"PLACE, STORE = {os.fspath(self.made)!r}, {os.fspath(store.root)!r}"
        tool.write_text(f"#!{sys.executable}\n{places}\n{COMPILER}")
        tool.chmod(0o755)
        self.catalog = catalog
        parts = store.defaults
        environment = sycl_target(parts["platform"], parts["device"], parts["version"], parts["driver"])
        catalog.write(record_survey, Host(datetime.now(UTC), "boot", "6", "stamp", environments=(environment,)))
        driver = OtherDriver((environment,), "stamp", {}, (os.fspath(tool),))
        monkeypatch.setattr(compare, "drivers_in_use", lambda _context: (driver,))
        environ = {"XPUCACHED_STORES_FOUND": "false", "XPUCACHED_STORES_PATHS": os.fspath(store.root)}
        self.config = config = loading.load(None, user=True, environ={**os.environ, **environ})

        def clock() -> datetime:
            return datetime.now(UTC)

        self.context = Context(config, catalog, {}, clock)

    def add(self, options: str, binary: bytes | None = None, **given: object) -> Slot:
        """Add an entry; what is compiled of it is what it has, or ``binary``; nothing if that is empty."""
        content = native(300 + len(options))
        slot = self.store.add(options=options, binary=content, **given)  # type: ignore[arg-type]
        if binary != b"":
            (self.made / options).write_bytes(binary or content)
        return slot

    def verify(self, *, fix: bool = False, deep: bool = False) -> VerifyReport:
        async def work() -> VerifyReport:
            scanner = StoreScanner(self.context, StoreFinder(self.context))
            compare = EntryComparer(self.context, scanner, ProcessStarter(os.environ, INSTANCE))
            verifier = Verifier(self.context, scanner, compare)
            return await verifier.work(fix=fix, deep=deep)(Handle())  # type: ignore[arg-type]

        return asyncio.run(work())

    def service(self, **changed: bool) -> Service:
        """Return all of a daemon's parts, for these stores alone; by itself it does what the schedule says."""
        config = replace(self.config, schedule=replace(self.config.schedule, **changed))
        service = Service(Context(config, self.catalog, {}), ProcessStarter(os.environ, INSTANCE))

        async def nothing(**_given: object) -> None: ...

        service.surveyor.survey = nothing  # type: ignore[method-assign]
        return service

    def keep_up(self, **changed: bool) -> list[Job]:
        """Do what a daemon does by itself after a look; give what it did."""

        async def work() -> list[Job]:
            service = self.service(**changed)
            await service.reconciler.reconcile([Started()])
            await settled(service)
            await service.stop()
            return [one for one in service.context.jobs.all() if one.kind in {"mend", "evict"}]

        return asyncio.run(work())

    def found(self, report: VerifyReport) -> dict[str, tuple[str | None, RepairAction, bool, str]]:
        """Return what a report says, by the options of the entry at that place."""
        options = {one.entry.id.ref: one.entry.options for one in self.catalog.read(all_entries)}
        return {
            options.get(one.ref, "") if one.ref else "": (one.defect, one.action, one.done, one.detail)
            for one in report.findings
        }


@pytest.fixture
def bench(sycl_store: SyclStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with closing(catalogs.fresh(tmp_path / "state" / "catalog.sqlite")) as catalog:
        yield Bench(sycl_store, tmp_path, catalog, monkeypatch)


def flip(path: Path, at: int = -40, bit: int = 0x10) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    with path.open("r+b") as file:
        file.write(content)


def test_equal_bytes_prove_an_entry_and_others_prove_nothing(bench: Bench) -> None:
    bench.add("-same")
    bench.add("-otherwise", native(999))
    bench.add("-refused", b"")
    bench.add("-constants", constants=b"\1\2")
    bench.add("-another", driver="2019.1")
    before = {path: path.read_bytes() for path in bench.store.root.rglob("*") if path.is_file()}

    report = bench.verify(fix=True, deep=True)

    assert report.findings == ()
    deep = report.deep
    assert deep is not None
    assert deep.proven == 1
    assert deep.unproven == dict.fromkeys(
        (Unproven.OTHER_BYTES, Unproven.FAILED, Unproven.CONSTANTS, Unproven.OTHER_DRIVER), 1
    )
    refs = {one.entry.options: one.entry.id.ref for one in bench.catalog.read(all_entries)}
    assert deep.differing == (refs["-otherwise"],)
    assert [words.partition(": ")[::2] for words in deep.failures] == [(refs["-refused"], "it does not like this")]
    # Other bytes alone are no damage: nothing has moved, not even with --fix.
    assert {path: path.read_bytes() for path in bench.store.root.rglob("*") if path.is_file()} == before


def test_a_damaged_program_is_compiled_again_where_its_driver_is_here(bench: Bench) -> None:
    slots = {name: bench.add(f"-{name}") for name in ("changed", "cut", "gone", "directory", "refused", "another")}
    whole = {name: slot.bin.read_bytes() for name, slot in slots.items()}
    (bench.made / "-refused").unlink()
    other = bench.store.add(options="-elsewhere", driver="2019.1", size=500)
    bench.verify()
    flip(slots["changed"].bin)
    slots["cut"].cut(slots["cut"].bin, 30)
    slots["gone"].bin.unlink()
    slots["directory"].bin.unlink()
    slots["directory"].bin.mkdir()
    for slot in (slots["refused"], other):
        slot.cut(slot.bin, 30)

    report = bench.verify(fix=True)

    assert sorted((one.action, one.done) for one in report.findings) == [
        *[(RepairAction.QUARANTINE, True)] * 2,
        *[(RepairAction.REBUILD, True)] * 4,
    ]
    assert {name for name, slot in slots.items() if slot.bin.is_file() and slot.bin.read_bytes() == whole[name]} == {
        *("changed", "cut", "gone", "directory", "another")
    }
    assert not slots["refused"].src.exists()
    assert not other.src.exists()
    assert [one.detail for one in report.findings if "it does not like this" in one.detail]
    assert bench.verify().findings == ()


def test_where_a_stray_file_keeps_an_entry_from_its_place_no_other_entry_is_said_to_be(bench: Bench) -> None:
    slot = bench.add("-stray")
    (slot.leaf / "notes").write_text("somebody's")
    slot.cut(slot.bin, 30)
    (found,) = bench.verify(fix=True).findings
    assert found.detail.endswith("not compiled again: something else is in its place")
    assert [path.name for path in slot.leaf.iterdir()] == ["notes"]


def test_what_would_be_done_is_what_is_done_and_says_in_words_why_not_better(bench: Bench) -> None:
    several = spirv("_ZTS1a") + spirv("_ZTS1b")
    slots = [bench.add("-good"), bench.add("-several", image=several), bench.add("-native", image=native(400))]
    slots += [bench.add("-constants", constants=b"\1\2"), bench.add("-elsewhere", driver="2019.1")]
    for slot in slots:
        slot.cut(slot.bin, 30)
    before = {path: path.read_bytes() for path in bench.store.root.rglob("*") if path.is_file()}

    planned = bench.verify()

    assert {path: path.read_bytes() for path in bench.store.root.rglob("*") if path.is_file()} == before
    found = {
        name: (action, detail.partition("not compiled again: ")[2])
        for name, (_, action, _, detail) in bench.found(planned).items()
    }
    assert found == {
        "-good": (RepairAction.REBUILD, ""),
        "-several": (RepairAction.QUARANTINE, "the runtime linked it from several images"),
        "-native": (RepairAction.QUARANTINE, "it was compiled ahead of time, so there is nothing to compile"),
        "-constants": (RepairAction.QUARANTINE, "it was compiled with values that it does not name"),
        "-elsewhere": (RepairAction.QUARANTINE, "the driver that it is for is not in use here"),
    }
    shown = verification(planned, TextStyle(datetime.now(UTC)))
    assert shown.count("would rebuild") == 1
    assert "several-images" not in shown
    done = bench.verify(fix=True)
    assert sorted((one.ref, one.action, one.detail) for one in done.findings) == sorted(
        (one.ref, one.action, one.detail) for one in planned.findings
    )
    assert all(one.done for one in done.findings)


def broken(bench: Bench) -> dict[str, Slot]:
    """Add entries that can be mended in different ways or in none, and damage them."""
    slots = {name: bench.add(f"-{name}") for name in ("first", "second+", "cut", "refused", "good")}
    slots["several"] = bench.add("-several", image=spirv("_ZTS1a") + spirv("_ZTS1b"))
    (bench.made / "-refused").unlink()
    bench.verify()
    aside = bench.store.root.parent / "aside"
    slots["first"].bin.rename(aside)
    slots["second+"].bin.rename(slots["first"].bin)
    aside.rename(slots["second+"].bin)
    for name in ("cut", "refused", "several"):
        slots[name].cut(slots[name].bin, 30)
    bench.verify()
    return slots


def test_the_daemon_mends_by_itself_what_it_would_evict(bench: Bench) -> None:
    slots = broken(bench)
    jobs = bench.keep_up()
    there = {name for name, slot in slots.items() if slot.src.exists()}
    assert there == {"first", "second+", "cut", "good"}
    whole = {name: native(300 + len(f"-{name}")) for name in there}
    assert {name: slots[name].bin.read_bytes()[16:] for name in there} == whole
    assert bench.verify().findings == ()
    (job,) = jobs
    assert isinstance(job.report, VerifyReport)
    assert sorted(one.action for one in job.report.findings if one.done) == sorted(
        [*[RepairAction.SWAP_BACK] * 2, RepairAction.REBUILD, *[RepairAction.QUARANTINE] * 2]
    )
    # Nothing damaged waited for a compiler: neither its own entry nor another one was met; only what was made since.
    left = {name: os.fspath(slots[name].src) for name in ("cut", "refused", "several")}
    met = {name: set((bench.made / f"-{name}.met").read_text().splitlines()) for name in ("cut", "refused")}
    assert os.fspath(slots["good"].src) in met["cut"] & met["refused"]
    assert not met["cut"] & set(left.values())
    assert not met["refused"] & {left["refused"], left["several"]}


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(("where", "gone"), [("_compile", True), ("replace", False)])
def test_a_mending_that_is_cancelled_says_what_is_left_and_is_gone_on_with(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str, *, gone: bool, asked: bool
) -> None:
    slots = {name: bench.add(f"-{name}") for name in ("cut", "refused", "good")}
    whole = slots["cut"].bin.read_bytes()
    (bench.made / "-refused").unlink()
    for name in ("cut", "refused"):
        slots[name].cut(slots[name].bin, 30)
    working = getattr(EntryComparer, where)

    async def work() -> None:
        stuck = asyncio.Event()

        async def never(*_given: object, **_named: object) -> None:
            stuck.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(EntryComparer, where, never)
        service = bench.service()
        await service.reconciler.reconcile([Started()])
        await stuck.wait()
        (job,) = [one for one in service.context.jobs.all() if one.kind == "mend"]
        job = await service.context.jobs.cancel(job.id)
        await settled(service)
        assert job.state is JobState.CANCELLED
        assert ("2 in quarantine are not compiled again yet" in job.progress.detail) is gone
        # Nothing damaged goes meanwhile that could be mended.
        assert [slots[name].src.exists() for name in ("cut", "refused")] == [not gone] * 2
        assert not [one for one in service.context.jobs.all() if one.kind == "evict"]

        monkeypatch.setattr(EntryComparer, where, working)
        if asked:
            job = await service.verifier.start(requests.VerifyStores(fix=True), service.status.get)
            await service.context.jobs.wait(job.id, 60.0)
        else:
            await service.reconciler.reconcile([Periodic()])
        await settled(service)
        job = service.context.jobs.all()[0]
        assert job.kind == ("verify" if asked else "mend")
        assert isinstance(job.report, VerifyReport)
        assert sorted((one.action, one.done, "does not like this" in one.detail) for one in job.report.findings) == [
            (RepairAction.QUARANTINE, True, True),
            (RepairAction.REBUILD, True, False),
        ]
        await service.reconciler.reconcile([Periodic()])
        await settled(service)
        # Nothing is left to do.
        assert service.context.jobs.all()[0].id == job.id
        await service.stop()

    asyncio.run(work())
    assert slots["cut"].bin.read_bytes()[16:] == whole[16:]
    assert not slots["refused"].src.exists()
    assert bench.verify().findings == ()


def test_what_a_daemon_had_in_quarantine_as_it_ended_is_compiled_by_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = {name: bench.add(f"-{name}") for name in ("cut", "gone", "again", "good")}
    whole = {name: slot.bin.read_bytes() for name, slot in slots.items()}
    for name in ("cut", "again"):
        slots[name].cut(slots[name].bin, 30)
    slots["gone"].bin.unlink()
    working = EntryComparer._compile

    async def work() -> None:
        stuck = asyncio.Event()

        async def never(*_given: object, **_named: object) -> None:
            stuck.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(EntryComparer, "_compile", never)
        service = bench.service()
        await service.reconciler.reconcile([Started()])
        await stuck.wait()
        await service.stop()

    async def start() -> None:
        await removals.finish(bench.context, bench.catalog.read(open_intents))

    asyncio.run(work())
    assert not any(slots[name].src.exists() for name in ("cut", "gone", "again"))
    # A program has compiled that one itself meanwhile.
    bench.store.add(options="-again", binary=whole["again"])
    monkeypatch.setattr(EntryComparer, "_compile", working)
    asyncio.run(start())
    assert bench.catalog.read(open_intents) == {}
    # Nothing damaged is back, if nobody compiles it: only the sources.
    assert {name for name, slot in slots.items() if slot.src.exists()} == set(slots)
    assert {name for name, slot in slots.items() if slot.bin.exists()} == {"again", "good"}
    bench.keep_up()
    assert {name for name, slot in slots.items() if slot.bin.read_bytes()[16:] == whole[name][16:]} == set(slots)
    # Nothing is left to be gone on with.
    assert bench.catalog.read(open_intents) == {}
    assert bench.verify().findings == ()


@pytest.mark.parametrize("reasons", [(), ("defective",), ("unused",)])
def test_who_asks_for_the_policy_gets_mended_what_the_daemon_would_mend(bench: Bench, reasons: tuple[str, ...]) -> None:
    slots = broken(bench)
    whole = {"first", "second+", "good"}

    async def work() -> Job:
        service = bench.service(evict=False)
        job = await service.evictor.start(requests.EvictEntries(reasons=reasons))
        job = await service.context.jobs.wait(job.id, 60)
        await service.stop()
        return job

    job = asyncio.run(work())
    there = {name for name, slot in slots.items() if slot.src.exists()}
    if reasons == ("unused",):
        assert (there, job.mended) == (set(slots), None)
        return
    assert there == whole | {"cut"}
    assert job.mended is not None
    assert sum(one.action is RepairAction.REBUILD and one.done for one in job.mended.findings) == 1
    assert isinstance(job.report, EvictionReport)
    assert job.report.removed == ()
    assert render_job(job, TextStyle(datetime.now(UTC))).count("rebuilt") == 1


def test_where_no_compiler_can_work_what_may_go_goes_all_the_same(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = broken(bench)
    whole = slots["cut"].src.read_bytes(), (bench.made / "-cut").read_bytes()
    usual = tempfile.tempdir

    async def work() -> None:
        service = bench.service(evict=False)
        # As on a full disk.
        monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path / "none"))
        for _ in range(2):
            job = await service.evictor.start(requests.EvictEntries())
            job = await service.context.jobs.wait(job.id, 60)
            assert (job.state, job.error) == (JobState.DONE, None)
            assert {name for name, slot in slots.items() if slot.src.exists()} == {"first", "second+", "good"}
        # What can be compiled is, when that is possible again.
        monkeypatch.setattr(tempfile, "tempdir", usual)
        job = await service.verifier.start(requests.VerifyStores(fix=True), service.status.get)
        assert (await service.context.jobs.wait(job.id, 60)).state is JobState.DONE
        await service.stop()

    asyncio.run(work())
    assert (slots["cut"].src.read_bytes(), slots["cut"].bin.read_bytes()[16:]) == whole


def test_what_was_shown_as_a_plan_goes_as_it_is(bench: Bench) -> None:
    slots = broken(bench)

    async def work() -> Job:
        service = bench.service(evict=False)
        shown = await service.context.jobs.wait(
            (await service.evictor.start(requests.EvictEntries(dry_run=True))).id, 60
        )
        assert "mended first" in render_job(shown, TextStyle(datetime.now(UTC)))
        assert isinstance(shown.report, EvictionReport)
        job = await service.evictor.start(requests.EvictEntries(plan=shown.report.plan_id))
        job = await service.context.jobs.wait(job.id, 60)
        await service.stop()
        return job

    job = asyncio.run(work())
    assert isinstance(job.report, EvictionReport)
    assert (len(job.report.removed), job.mended) == (5, None)
    assert {name for name, slot in slots.items() if slot.src.exists()} == {"good"}


def test_a_model_keeps_what_is_compiled_again_though_it_was_missing_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = bench.add("-k")
    bench.verify()
    model = Model(ModelName("net"), Workload(("/bin/true",), bench.store.root))
    bench.catalog.write(add_model, model)
    run = bench.catalog.write(begin_run, model, WarmReason.MANUAL, "sig", datetime.now(UTC))
    (one,) = bench.catalog.read(all_entries)
    attribution = Attribution(frozenset({one.entry.id}), frozenset())
    bench.catalog.write(finish_run, run.id, Outcome.WARMED, (), attribution, (), "", "", datetime.now(UTC))
    slot.cut(slot.bin, 30)
    bench.verify()
    compiling = EntryComparer._compile
    missed: list[int] = []

    async def looked(self: EntryComparer, *given: object) -> None:
        await self._scanner.scan_stores()
        missed.append(len(bench.catalog.read(all_entries)))
        await compiling(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(EntryComparer, "_compile", looked)
    bench.keep_up(prewarm=False)
    (one,) = bench.catalog.read(all_entries)
    assert missed == [0]
    assert one.models == (ModelName("net"),)
    assert one.origin is Origin.REBUILT


def test_a_dead_lock_is_judged_by_what_else_is_read_in_its_leaf(bench: Bench) -> None:
    alone, lower = bench.add("-alone"), bench.add("-beside")
    bench.add("-beside", slot=1)
    for slot in (alone, lower):
        slot.take_lock()
        os.utime(slot.lock, (0, 0))
    actions = {bench.store.root / str(one.key): one.action for one in bench.verify().findings}
    assert actions == {alone.leaf / "0": RepairAction.UNLOCK, lower.leaf / "0": RepairAction.TRASH}
    bench.keep_up()
    assert alone.src.exists()
    assert not list(bench.store.root.rglob("*.lock"))
    assert bench.verify().findings == ()


def test_what_the_daemon_may_not_compile_by_itself_goes(bench: Bench) -> None:
    slots = broken(bench)
    bench.keep_up(replay=False)
    assert {name for name, slot in slots.items() if slot.src.exists()} == {"first", "second+", "good"}
    assert not list(bench.made.glob("*.met"))


def test_who_evicts_nothing_mends_nothing(bench: Bench) -> None:
    slots = broken(bench)
    before = {path: path.read_bytes() for path in bench.store.root.rglob("*") if path.is_file()}
    assert bench.keep_up(evict=False) == []
    assert {path: path.read_bytes() for path in bench.store.root.rglob("*") if path.is_file()} == before
    assert slots


def test_what_is_too_much_to_be_kept_in_memory_goes_all_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = [bench.add(f"-{number}", image=spirv("_ZTS1a", size=1000)) for number in range(3)]
    for slot in slots:
        slot.cut(slot.bin, 30)
    bench.verify()
    monkeypatch.setattr(compare, "_KEPT", 2500)
    bench.keep_up()
    assert sum(slot.src.exists() for slot in slots) == 2
    assert bench.verify().findings == ()


def test_what_runs_told_of_entries_counts_as_what_is_kept_in_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = [bench.add(f"-{number}") for number in range(4)]
    for slot in slots:
        slot.cut(slot.bin, 30)
    bench.verify()
    entries = bench.context.catalog.read(all_entries)
    (target,) = bench.context.present.environments
    some = [Rebuild(one, target, ReplayReason.ASKED) for one in entries]
    recipe = bench.context.recipe(entries[0].entry)
    assert isinstance(recipe, Recipe)
    told = replace(recipe, input=b"x" * 1000, facts={"lineage": "x" * 500})
    monkeypatch.setattr(compare, "_KEPT", 3 * (1500 + len(recipe.options + b"lineage")))
    monkeypatch.setattr(Context, "recipe", lambda _context, entry: replace(told, entry=entry.id))

    async def kept() -> int:
        results = compare._Replacing(bench.context, (), asyncio.get_running_loop())
        assert len(results.keep(some)) == len(results.recipes)
        assert set(results.done) == {one.entry.id for one in entries}
        return len(results.recipes)

    assert asyncio.run(kept()) == 3


def test_who_cancels_a_mending_does_not_wait_for_who_looks_at_a_store(bench: Bench) -> None:
    slot = bench.add("-k")
    slot.cut(slot.bin, 30)
    bench.verify()
    damaged = slot.bin.read_bytes()
    (entry,) = bench.context.catalog.read(all_entries)
    (target,) = bench.context.present.environments
    recipe = bench.context.recipe(entry.entry)
    assert isinstance(recipe, Recipe)

    async def cancelled() -> None:
        storing = bench.context.locks.storing
        results = compare._Replacing(bench.context, (), asyncio.get_running_loop())
        results.cancel.set()
        async with storing:
            compiled = Rebuild(entry, target, ReplayReason.ASKED), recipe, b"compiled", 1.0
            await asyncio.wait_for(asyncio.to_thread(results.built, *compiled), 20)
        assert not storing.locked()
        assert results.done == {}

    asyncio.run(cancelled())
    assert slot.bin.read_bytes() == damaged


def test_what_changed_and_is_what_its_compiler_makes_is_trusted_from_then_on(bench: Bench) -> None:
    slot = bench.add("-k")
    bench.verify()
    flip(slot.bin)
    (bench.made / "-k").write_bytes(slot.bin.read_bytes()[16:])
    assert [one.defect for one in bench.verify().findings] == [CHANGED.code]
    report = bench.verify(deep=True)
    assert report.deep is not None
    assert (report.deep.proven, report.findings) == (1, ())
    assert bench.verify().findings == ()
    flip(slot.bin, -50)
    assert [one.defect for one in bench.verify(deep=True).findings] == [CHANGED.code]


def test_programs_in_each_other_s_places_change_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.context, "host", replace(bench.context.present, environments=()))
    slots = [bench.store.add(options=f"-{number}", size=300 + 100 * number) for number in range(6)]
    whole = [slot.bin.read_bytes() for slot in slots]
    bench.verify()
    # Two change places by their names, three in a ring by what is in them, and one is only another's copy.
    aside = bench.store.root.parent / "aside"
    slots[0].bin.rename(aside)
    slots[1].bin.rename(slots[0].bin)
    aside.rename(slots[1].bin)
    for number, content in ((2, whole[3]), (3, whole[4]), (4, whole[2]), (5, whole[0])):
        with slots[number].bin.open("r+b") as file:
            file.write(content)
            file.truncate()

    report = bench.verify(fix=True)

    assert [slot.bin.read_bytes() for slot in slots[:5]] == whole[:5]
    assert not slots[5].bin.exists()
    assert {one.action for one in report.findings if one.done} == {RepairAction.SWAP_BACK, RepairAction.QUARANTINE}
    assert sum(one.action is RepairAction.QUARANTINE for one in report.findings) == 1
    assert all(one.done for one in report.findings)
    assert not list(bench.store.root.rglob("*.lock"))
    assert bench.verify().findings == ()


def test_a_pair_that_a_program_is_writing_stays(bench: Bench) -> None:
    first, second = (bench.store.add(options=f"-{size}", size=size) for size in (300, 500))
    bench.verify()
    one, two = first.bin.read_bytes(), second.bin.read_bytes()
    first.bin.write_bytes(two)
    second.bin.write_bytes(one)
    bench.verify()
    entries = sorted((one.entry for one in bench.catalog.read(all_entries)), key=lambda one: one.options)
    pair = [
        Repair(entries[0], RepairAction.SWAP_BACK, entries[1]),
        Repair(entries[1], RepairAction.SWAP_BACK, entries[0]),
    ]
    second.take_lock()
    assert set(sycl.doctor.mend(pair).values()) == {False}
    assert not first.lock.exists()
    assert (first.bin.read_bytes(), second.bin.read_bytes()) == (two, one)
    second.lock.unlink()
    assert set(sycl.doctor.mend(pair).values()) == {True}
    assert (first.bin.read_bytes(), second.bin.read_bytes()) == (one, two)


def test_a_program_of_more_than_we_take_into_memory_has_a_digest(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_format, "READ_LIMIT", 4096)
    slot = bench.store.add(size=3 << 20)
    bench.verify()
    assert [one.entry.digest for one in bench.catalog.read(all_entries)] == [None]
    bench.verify()
    expected = hashlib.blake2b(slot.bin.read_bytes()[16:], digest_size=16).hexdigest()
    assert [one.entry.digest for one in bench.catalog.read(all_entries)] == [expected]
    flip(slot.bin, 2 << 20)
    assert [one.defect for one in bench.verify().findings] == [CHANGED.code]


def test_each_fate_and_each_reason_has_words(bench: Bench) -> None:
    bench.add("-otherwise", native(999))
    report = bench.verify(deep=True)
    shown = TextStyle(datetime.now(UTC))
    assert "not proven: 1 came out otherwise, which alone is no damage" in verification(report, shown)
    deep = Comparison(1, dict.fromkeys(Unproven, 1))
    assert len(comparison(deep, shown).splitlines()) == 1 + len(Unproven)
    (entry,) = bench.catalog.read(all_entries)
    for action in RepairAction:
        finding = Finding.of(entry.entry.id, CHANGED, Effect.FAILS, "", action, done=True)
        assert verification(VerifyReport(True, 1, 1, (finding,)), shown)  # noqa: FBT003


@pytest.fixture
def real(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that is not started yet."""
    with daemon(home, short_dir) as one:
        yield one


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_flipped_bits_in_what_real_runtimes_wrote_are_found_and_mended(
    real: Daemon, runtime: Callable[[str], Runtime], workload: Path, tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    root = tmp_path / "cache"
    truth, made, _ = checksum_and_trace(first, first, workload, root)
    checksum_and_trace(first, second, workload, root)
    binaries = sorted(root.glob("[0-9]*/*/*/*/0.bin"))
    assert len(binaries) == 2 * made

    # Every flipped bit is found after one look at what was whole, wherever it is.
    with closing(Catalog.open(tmp_path / "catalog.sqlite")) as catalog:
        catalog.write(record_scan, look(root), lambda _: Architecture("x86_64"))
        chance = random.Random(9)  # noqa: S311 - the same bits each time
        found = 0
        for number in range(64):
            path = binaries[number % len(binaries)]
            at, bit = chance.randrange(path.stat().st_size), 1 << chance.randrange(8)
            flip(path, at, bit)
            catalog.write(record_scan, look(root), lambda _: Architecture("x86_64"))
            found += sum(one.entry.defect is not None for one in catalog.read(all_entries))
            flip(path, at, bit)
        assert found == 64
        catalog.write(record_scan, look(root), lambda _: Architecture("x86_64"))
        assert {one.entry.defect for one in catalog.read(all_entries)} == {None}

    # What the present driver compiled is compiled again from itself, what the other one did goes.
    driven(real, first, tmp_path / "driver", f"[stores]\npaths = ['{root}']\n")
    real.configure(real.config.read_text() + "replay = false\nevict = false\nprewarm = false\n")
    real.start()
    names = real.add_models(first)
    real.ctl("prewarm", *names)
    theirs = {name: warm(real, name)["entries"] for name in names}
    managed = sorted((real.home / ".cache/xpucached/sycl").glob("[0-9]*/*/*/*/0.bin"))
    deep = real.ask("verify", "--deep")["report"]["deep"]  # type: ignore[index]
    assert (deep["proven"], deep["unproven"]) == (made + len(managed), {"other-driver": made})
    for path in (*binaries, *managed):
        flip(path)
    real.ctl("verify", check=1)
    assert {real.ask("model", "show", name)["reason"] for name in names} == {"entries-lost"}
    real.ctl("verify", "--fix")
    assert checksum_and_trace(first, first, workload, root) == (truth, 0, made)
    assert len(list(root.glob("[0-9]*/*/*/*/0.bin"))) == made
    # What models need is theirs as it was: both are warm again, and neither was run for it.
    assert {name: warm(real, name)["entries"] for name in names} == theirs
    deep = real.ask("verify", "--deep")["report"]["deep"]  # type: ignore[index]
    assert (deep["proven"], deep["unproven"]) == (made + len(managed), {})
    assert [len(real.rows("runs", name)) for name in names] == [1, 1]
    assert real.failed() == []
