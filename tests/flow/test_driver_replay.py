"""What the GPU driver's compiler made is made again under another one without the model, by the real driver."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.flow.test_driver_cache import NEO, NET, GpuHouse
from tests.kinds import fakes
from tests.support import driver_packages
from xpucached.api import requests
from xpucached.bundling.__main__ import carry_out
from xpucached.catalog.entries import all_entries
from xpucached.catalog.surveys import record_survey
from xpucached.domain.bundles import BundleReplayReport, ExportBundle, ExportReport, ReplayBundle
from xpucached.domain.defects import RepairAction
from xpucached.domain.host import OtherDriver
from xpucached.domain.jobs import JobState
from xpucached.domain.models import Layer, Outcome, WarmReason, Warmth
from xpucached.domain.plans import NoRecipe
from xpucached.domain.reports import ReplayReport
from xpucached.domain.targets import Origin
from xpucached.kinds import fs
from xpucached.kinds.neo import counting
from xpucached.processes import compiler
from xpucached.processes.unpacking import UnpackLimits, unpack
from xpucached.service import compare, deriving, predicting, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.runtimes import Runtime, SimulatedGpu
    from xpucached.domain.jobs import Job
    from xpucached.domain.reports import VerifyReport
    from xpucached.domain.stores import Lookups
    from xpucached.service.context import Context

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(600)]

INCLUDING: Final = '#include "half.h"\nkernel void once(global float *x) { x[get_global_id(0)] *= HALF; }\n'

JOBS: Final = (
    ("text", "source.cl", "-DX=1"),
    ("text", "source.cl", "-cl-fast-relaxed-math -DX=2"),
    ("text", "including.cl", "-I."),
    ("il", "image.spv", ""),
    ("il 7=000080bf00000000", "special.spv", "-cl-mad-enable"),
    ("ze", "image.spv", ""),
    ("ze", "image.spv", " -ze-opt-level=2"),
    ("ze", "image.spv", "-ze-opt-level=2"),
    ("ze", "image.spv", "-ze-opt-large-register-file"),
    ("ze 7=000080bf00000000", "special.spv", "-cl-mad-enable"),
)
"""Every way in which programs reach the driver's cache."""


class ReplayHouse(GpuHouse):
    """The same with a compiler of its own, which can become another one."""

    def __init__(self, place: Path, gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiler = place / "compiler" / "libigc.so.2"
        self.compiler.parent.mkdir()
        shutil.copy2(gpu.libraries / "libigc.so.2", self.compiler)
        super().__init__(place, changed(gpu, before=(self.compiler.parent,)), monkeypatch)
        (place / "including.cl").write_text(INCLUDING)
        (place / "work" / "half.h").write_text("#define HALF 0.5f\n")
        shutil.copy(next((fakes.NEO / "recorded").glob("24c2875a139227f0.input")), place / "special.spv")

        def in_use(context: Context) -> tuple[OtherDriver, ...]:
            host = context.present
            return (
                OtherDriver(
                    *(host.environments, host.stamp, self.gpu.variables, self.gpu.command()),
                    devices=host.devices,
                    driver=host.driver,
                ),
            )

        monkeypatch.setattr(replay, "drivers_in_use", in_use)
        monkeypatch.setattr(compare, "drivers_in_use", in_use)

    def change_compiler(self) -> None:
        """Let the compiler be another one to the driver, as after an upgrade, and have that noticed."""
        status = self.compiler.stat()
        os.utime(self.compiler, (status.st_atime, status.st_mtime + 3600))
        self.surveyed()

    def surveyed(self) -> None:
        """Let the host be looked at."""
        self.service.context.host = self.host()
        self.service.context.catalog.write(record_survey, self.host())

    async def done(self, job: Job) -> Job:
        """Wait for a job."""
        while job.state in {JobState.QUEUED, JobState.RUNNING}:
            await asyncio.sleep(0.05)
            (job,) = [one for one in self.service.context.jobs.all() if one.id == job.id]
        return job

    async def replayed(self, **given: object) -> ReplayReport:
        job = await self.done(await self.service.replayer.start(requests.ReplayEntries(**given)))  # type: ignore[arg-type]
        assert isinstance(job.report, ReplayReport), job
        return job.report

    async def verified(self, *, fix: bool = False) -> VerifyReport:
        asked = requests.VerifyStores(deep=True, fix=fix)
        job = await self.done(await self.service.verifier.start(asked, self.service.status.get))
        assert job.report is not None, job
        return job.report  # type: ignore[return-value]

    def content(self, root: Path | None = None) -> dict[str, bytes]:
        """Return the entries of a store, by their places."""
        root = root or self.root
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*_cache")}

    def cold(self, jobs: Sequence[tuple[str, str, str]] = JOBS) -> dict[str, bytes]:
        """Build in an empty store, as a model's own run would; give what is there then."""
        root = self.place / "cold"
        root.mkdir()
        words = self.gpu.builder([(how, self.place / name, options) for how, name, options in jobs])
        caching = {"NEO_CACHE_PERSISTENT": "1", "NEO_CACHE_DIR": str(root), "NEO_CACHE_MAX_SIZE": "0"}
        variables = {"HOME": str(self.place), **self.gpu.variables, **caching}
        subprocess.run(words, env=variables, cwd=self.place / "work", check=True, stdout=subprocess.DEVNULL)
        return self.content(root)

    def lookups(self) -> Lookups:
        """Return how often the driver found what it looked for, by its own counters."""
        with fs.root_directory(os.fspath(self.root)) as (root, _):
            return counting.lookups(root)

    def total_is_true(self) -> bool:
        """Return whether the driver's own number is the bytes of all entries."""
        with fs.root_directory(os.fspath(self.root)) as (root, _):
            return counting.believed(root) == sum(map(len, self.content().values()))


@pytest.fixture
def house(short_dir: Path, gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> ReplayHouse:
    return ReplayHouse(short_dir, gpu, monkeypatch)


def test_after_another_compiler_all_is_made_again_without_the_model(house: ReplayHouse) -> None:
    async def work() -> None:
        run = await house.warmed()
        assert (run.outcome, run.passes[-1].created) == (Outcome.WARMED, 0), run
        made = house.content()
        assert len(made) == len(JOBS)
        for _ in range(2):
            old = house.content()
            house.change_compiler()
            status = await house.status()
            assert (status.warmth, status.reason) == (Warmth.COLD, WarmReason.DRIVER)
            planned = await house.replayed(dry_run=True)
            assert (len(planned.plan.rebuild), planned.skipped) == (len(JOBS), {})
            report = await house.replayed()
            assert (report.rebuilt, report.failed, report.skipped, report.failures) == (len(JOBS), 0, {}, ())
            # What is made again is noted, and where nobody could predict all of it the model's own run is the proof.
            status = await house.status()
            assert status.warmth is Warmth.COLD
            assert status.why.endswith(f"for that {len(JOBS)} entries are there already, of {len(JOBS)} that it had")
            assert house.traces() == []
            assert house.total_is_true()
            made = {key: data for key, data in house.content().items() if key not in old}
            assert (await house.replayed()).plan.rebuild == ()
            rows = [one for one in house.service.context.catalog.read(all_entries) if one.entry.id.key in made]
            assert {(one.origin, one.models, one.inherited) for one in rows} == {(Origin.REBUILT, (NET,), (NET,))}
            assert {one.entry.environment for one in rows} <= set(house.host().environments)
            counted = house.lookups()
            run = await house.warmed()
            assert [(one.created, one.used) for one in run.passes] == [(0, len(JOBS))], run
            assert house.lookups().misses == counted.misses
            assert house.lookups().hits == counted.hits + len(JOBS)
            assert (await house.status()).warmth is Warmth.WARM
        assert made == house.cold()

    house.live(work, *JOBS)


def test_attention_compiled_by_onednn_is_made_again_without_it(
    house: ReplayHouse, runtime: Callable[[str], Runtime]
) -> None:
    """There is a program for the prompt, one for each number of keys, and one that oneDNN tries the GPU with."""

    async def work() -> None:
        run = await house.warmed()
        assert (run.outcome, [(one.created, one.used) for one in run.passes]) == (Outcome.WARMED, [(4, 0), (0, 4)])
        entries = [one.entry for one in house.service.context.catalog.read(all_entries)]
        kernels = sorted(kernel.name for one in entries for kernel in one.kernels)
        assert kernels == ["default_kernel", "micro_sdpa", "micro_sdpa", "micro_sdpa"]
        assert all(one is not None and "input" in one.parts for one in house.recipes().values())
        assert (await house.status()).layers == (Layer(NEO, 4, 4),)
        old = house.content()
        house.change_compiler()
        status = await house.status()
        assert (status.warmth, status.reason) == (Warmth.COLD, WarmReason.DRIVER)
        report = await house.replayed()
        assert (report.rebuilt, report.failed, report.skipped) == (4, 0, {})
        # The compiler's code is the same: only where the driver looks is another.
        assert sorted(data for key, data in house.content().items() if key not in old) == sorted(old.values())
        counted = house.lookups()
        run = await house.warmed(force=True)
        assert (run.outcome, [(one.created, one.used) for one in run.passes][-1]) == (Outcome.WARMED, (0, 4))
        assert house.lookups().misses == counted.misses

    house.live(work, command=house.gpu.attention(runtime("onednn3.7"), 33, 34))


FEW: Final = (*JOBS[:2], JOBS[8])
SPIRV: Final = JOBS[5]


def test_what_no_run_told_of_is_made_again_where_it_holds_itself_how(house: ReplayHouse) -> None:
    """Of the entries of another program, which is no model, those that it had compiled from SPIR-V."""
    theirs = (("ze", "image.spv", "-cl-mad-enable"), ("ze", "special.spv", ""), ("text", "source.cl", "-DX=9"))

    def program() -> tuple[int, int]:
        """Run it; give how often it found what it looked for, and how often not."""
        before = house.lookups()
        words = house.gpu.builder([(how, house.place / name, options) for how, name, options in theirs])
        caching = {"NEO_CACHE_PERSISTENT": "1", "NEO_CACHE_DIR": str(house.root), "NEO_CACHE_STATS": "1"}
        variables = {"HOME": str(house.place), **house.gpu.variables, **caching}
        subprocess.run(words, env=variables, cwd=house.place / "work", check=True, stdout=subprocess.DEVNULL)
        after = house.lookups()
        return after.hits - before.hits, after.misses - before.misses

    async def work() -> None:
        context = house.service.context
        house.surveyed()
        await house.warmed()
        mine = house.content()
        assert program() == (0, 3)
        made = house.content().keys() - mine.keys()
        stores = house.service.finder.run_stores(house.service.finder.managed())
        await house.service.scanner.entries_now(stores)
        await deriving.look(context)
        rows = {str(one.entry.id.key): one for one in context.catalog.read(all_entries)}
        known = {key for key in made if rows[key].entry.environment is not None}
        assert known == {key for key in made if key.endswith(".l0_cache")}
        assert {rows[key].models for key in made} == {()}
        house.change_compiler()
        report = await house.replayed()
        assert (report.rebuilt, report.failed) == (3, 0)
        assert program() == (2, 1)

    house.live(work, SPIRV)


def test_who_finds_all_that_was_predicted_is_warm_without_a_run(house: ReplayHouse) -> None:
    async def work() -> None:
        context = house.service.context
        await house.warmed()
        house.change_compiler()
        await predicting.look(context)
        assert (await house.status()).warmth is Warmth.COLD
        before = house.content().keys()
        assert (await house.replayed()).rebuilt == len(FEW)
        assert (await house.status()).warmth is Warmth.WARM
        # What that rests on goes by no age.
        policy = replace(context.settings.policy, grace=0.0, max_unused=0.0)
        context.settings = replace(context.settings, policy=policy)
        plan = await house.service.evictor.plan(reasons=("unused",))
        assert {one.entry.entry.id.key for one in plan.evict} == house.content().keys() - before
        # One of them gone, it is so no more.
        house.root.joinpath(min(house.content().keys() & house.cold(FEW).keys())).unlink()
        stores = house.service.finder.run_stores(house.service.finder.managed())
        await house.service.scanner.entries_now(stores)
        assert (await house.status()).warmth is Warmth.COLD

    house.live(work, *FEW)


def test_what_is_there_is_compared_and_what_changed_is_made_again(house: ReplayHouse) -> None:
    async def work() -> None:
        house.surveyed()
        await house.warmed()
        before = house.content()
        stamps = {key: house.root.joinpath(key).stat().st_mtime_ns for key in before}
        compared = (await house.verified()).deep
        assert compared is not None
        assert (compared.proven, dict(compared.unproven)) == (len(FEW), {})
        # Nothing is taken from the store for what its compiler makes, and nothing is put there.
        assert {key: house.root.joinpath(key).stat().st_mtime_ns for key in house.content()} == stamps
        text = min(key for key in before if key.endswith(".cl_cache"))
        damaged = bytearray(before[text])
        damaged[len(damaged) // 2] ^= 1
        house.root.joinpath(text).write_bytes(damaged)
        report = await house.verified(fix=True)
        assert [(one.key, one.action, one.done) for one in report.findings] == [(text, RepairAction.REBUILD, True)]
        assert house.content() == before
        assert house.total_is_true()

    house.live(work, *FEW)


def test_what_is_made_for_a_driver_in_a_folder_is_found_the_moment_it_is_installed(house: ReplayHouse) -> None:
    """The installed compiler lies where the loader looks, too: what is made is for the one in the folder alone."""
    root = house.place / "unpacked"
    shutil.copytree(house.gpu.root, root, symlinks=True, copy_function=hard_link)
    library = (root / "usr/lib/x86_64-linux-gnu/libigc.so.2").resolve()
    library.unlink()
    shutil.copy2(house.compiler, library)
    status = library.stat()
    os.utime(library, (status.st_atime, status.st_mtime + 7200))

    async def work() -> None:
        context = house.service.context
        installed = {"LD_LIBRARY_PATH": str(house.compiler.parent)}
        context.settings = replace(context.settings, driver=replace(context.settings.driver, variables=installed))
        house.surveyed()
        await house.warmed()
        before = house.content()
        wish = {"driver_root": root, "device": "bmg-g21"}
        report = await house.replayed(**wish)
        assert (report.rebuilt, report.failed, report.skipped) == (len(FEW), 0, {})
        made = house.content()
        assert len(made) == 2 * len(before)
        assert house.total_is_true()
        assert (await house.replayed(**wish)).plan.rebuild == ()
        # The present driver's stay what they are.
        assert (await house.status()).warmth is Warmth.WARM

        os.utime(house.compiler, (status.st_atime, status.st_mtime + 7200))
        house.surveyed()
        report = await house.replayed()
        assert (report.plan.rebuild, report.plan.covered) == ((), len(FEW))
        run = await house.warmed(force=True)
        assert [(one.created, one.used) for one in run.passes] == [(0, len(FEW))], run
        assert house.content() == made

    house.live(work, *FEW)


def test_a_new_compiler_alone_is_made_for_beside_the_driver_that_is_installed(house: ReplayHouse) -> None:
    """As a package of the compiler has it, unpacked; the driver of its entries is not in it."""
    tree, root = house.place / "tree", house.place / "unpacked"
    libraries = tree / "usr/lib/x86_64-linux-gnu"
    shutil.copytree(house.gpu.libraries, libraries, symlinks=True, copy_function=hard_link)
    shutil.rmtree(libraries / "intel-opencl")
    for path in (*libraries.glob("libze_intel_gpu*"), *libraries.glob("libigc.so.2*")):
        path.unlink()
    shutil.copy2(house.compiler, libraries / "libigc.so.2")
    status = house.compiler.stat()
    # A package knows no parts of a second.
    later = int(status.st_mtime) + 7200
    os.utime(libraries / "libigc.so.2", (later, later))
    root.mkdir()
    package = driver_packages.deb(house.place, tree, "libigc2", "99")
    unpack(package, root, UnpackLimits(), threading.Event())

    async def work() -> None:
        context = house.service.context
        vendors = house.place / "vendors"
        vendors.mkdir()
        (vendors / "intel.icd").write_text(f"{house.gpu.libraries}/intel-opencl/libigdrcl.so\n")
        installed = {**house.gpu.variables, "OCL_ICD_VENDORS": str(vendors)}
        context.settings = replace(context.settings, driver=replace(context.settings.driver, variables=installed))
        house.surveyed()
        await house.warmed()
        before = house.content()
        wish = replay.ReplayRequest(driver_root=root, device="bmg-g21", replaced=frozenset({"libigc2"}))
        told: list[OtherDriver] = []
        job = await house.done(context.jobs.start("replay", house.service.replayer.work(wish, told=told.append)))
        assert isinstance(job.report, ReplayReport), job
        assert (job.report.rebuilt, job.report.failed, job.report.skipped) == (len(FEW), 0, {})
        assert len(house.content()) == 2 * len(before)
        plan = await house.service.replayer.lacking(told[0])
        assert (plan.rebuild, plan.covered) == ((), len(FEW))

        os.utime(house.compiler, (later, later))
        house.surveyed()
        assert set(told[0].environments) >= set(house.host().environments)
        assert (await house.replayed()).plan.rebuild == ()
        run = await house.warmed(force=True)
        assert [(one.created, one.used) for one in run.passes] == [(0, len(FEW))], run

    house.live(work, *FEW)


def hard_link(source: str, target: str) -> None:
    """Give a file a further name, or copy it where that cannot be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


BOMB: Final = b"".join(
    (
        b"#define A0 x[0] += x[1];\n",
        *(b"#define A%d %s\n" % (number, b"A%d " % (number - 1) * 8) for number in range(1, 8)),
        b"kernel void bomb(global float *x) { A7 }\n\0",
    )
)
"""A text that grows to two million statements."""


def test_a_recipe_that_takes_for_ever_costs_itself_alone(house: ReplayHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPUCACHED_DRIVER_COMPILE_TIMEOUT", "10s")

    async def work() -> None:
        context = house.service.context
        await house.warmed()
        key, told = next((key, one) for key, one in house.recipes().items() if one and "input" in one.parts)
        forged = replace(told, parts={**told.parts, "input": BOMB})
        context.recipes.keep(NEO, [forged], context.clock())
        house.change_compiler()
        report = await house.replayed()
        assert (report.rebuilt, report.failed) == (len(FEW) - 1, 1)
        (words,) = report.failures
        ref = next(one.entry.id.ref for one in context.catalog.read(all_entries) if one.entry.id.key == key)
        assert words.startswith(f"{ref}: the compiler took longer")
        # It is named, and not tried again with this driver.
        assert dict((await house.replayed()).skipped) == {NoRecipe.FAILED: 1}

    house.live(work, *FEW)


def test_a_recipe_that_takes_all_memory_costs_itself_alone(house: ReplayHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    # Others take 200.
    monkeypatch.setattr(compiler, "_RESIDENT", 500 << 20)

    async def work() -> None:
        context = house.service.context
        await house.warmed()
        told = next(one for one in house.recipes().values() if one and "input" in one.parts)
        context.recipes.keep(NEO, [replace(told, parts={**told.parts, "input": BOMB})], context.clock())
        house.change_compiler()
        report = await house.replayed()
        assert (report.rebuilt, report.failed) == (len(FEW) - 1, 1)
        assert "the compiler took more than 500 MiB of memory" in report.failures[0]
        assert dict((await house.replayed()).skipped) == {NoRecipe.FAILED: 1}

    house.live(work, *FEW)


def test_a_recipe_of_another_program_makes_nothing(house: ReplayHouse) -> None:
    async def work() -> None:
        context = house.service.context
        await house.warmed()
        told = next(one for one in house.recipes().values() if one and "input" in one.parts)
        forged = replace(told, parts={**told.parts, "input": b"kernel void other(global int *x) { *x = 1; }\n\0"})
        context.recipes.keep(NEO, [forged], context.clock())
        house.change_compiler()
        before = house.content()
        report = await house.replayed()
        assert (report.rebuilt, report.failed) == (0, 1)
        assert "was asked for something else" in report.failures[0]
        assert (house.content(), house.traces()) == (before, [])

    house.live(work, *FEW[:1])


def test_recipes_of_a_catalog_travel_and_programs_find_what_is_made_of_them(
    house: ReplayHouse, gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a daemon's own catalog into a bundle, and by the command into the cache of a host that has no daemon."""
    place = house.place
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"XPUCACHED_PATHS_{name}", str(place / name.lower()))
    # What includes a file is kept as the SPIR-V that became of it; others of text stay where their text is.
    asked = [*JOBS[:2], *JOBS[3:]]
    travelling = [one for one in asked if one[0] != "text"]

    async def work() -> None:
        await house.warmed()
        order = ExportBundle(place / "bundle", kind=NEO, model=NET, recipes_only=True)
        told = carry_out(order, lambda *_: None)
        assert isinstance(told, ExportReport)
        assert (told.recipes, told.skipped) == (len(travelling), {"no recipe: it is compiled from text": 2})

    house.live(work, *asked)
    theirs = place / "theirs"
    order = ReplayBundle(place / "bundle", place / "sycl", driver_root=gpu.root, device=gpu.device, driver_cache=theirs)
    made = carry_out(order, lambda *_: None)
    assert isinstance(made, BundleReplayReport)
    assert (made.rebuilt, made.present, made.failures) == (len(travelling), 0, ())
    again = carry_out(order, lambda *_: None)
    assert isinstance(again, BundleReplayReport)
    assert (again.rebuilt, again.present, again.failures) == (0, len(travelling), ())

    def looked() -> Lookups:
        with fs.root_directory(os.fspath(theirs)) as (root, _):
            return counting.lookups(root)

    before = looked()
    words = gpu.builder([(how, place / name, options) for how, name, options in travelling])
    caching = {"NEO_CACHE_PERSISTENT": "1", "NEO_CACHE_DIR": str(theirs), "NEO_CACHE_STATS": "1"}
    variables = {"HOME": str(place), **gpu.variables, **caching}
    subprocess.run(words, env=variables, cwd=place / "work", check=True, stdout=subprocess.DEVNULL)
    after = looked()
    assert (after.hits - before.hits, after.misses - before.misses) == (len(travelling), 0)
