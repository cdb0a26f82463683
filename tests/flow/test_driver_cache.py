"""A model whose programs go to the GPU driver alone, with the real driver on a simulated GPU."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests import INSTANCE
from tests.kinds import fakes
from tests.support import catalogs
from xpucached.api import requests
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import add_model
from xpucached.catalog.surveys import record_survey
from xpucached.domain.host import Device, DriverAnswer, DriverFile, Host, digest_of_variables
from xpucached.domain.jobs import JobState
from xpucached.domain.models import Layer, Model, Outcome, WarmReason, Warmth, Workload
from xpucached.domain.names import Architecture, KindName, ModelName
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.reports import PrewarmReport
from xpucached.domain.stores import Store
from xpucached.kinds.neo import recorder
from xpucached.kinds.table import with_targets
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service, predicting
from xpucached.service.context import Context
from xpucached.service.handlers import Handlers
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tests.support.runtimes import SimulatedGpu
    from xpucached.domain.models import ModelStatus, Run
    from xpucached.domain.recipes import RecordedRecipe

pytestmark = pytest.mark.runtime

SOURCE: Final = "kernel void twice(global float *x) { x[get_global_id(0)] *= 2 * X; }\n"
NEO: Final = KindName("neo")
NET: Final = ModelName("net")


def words(command: Iterable[str]) -> str:
    """Quote a command for a shell, save for what stands for its number."""
    return " ".join(shlex.quote(word).replace("$$", "'$$'") for word in command)


class GpuHouse:
    """A service of our own in this process, on a host that has the simulated GPU and nothing else."""

    def __init__(self, place: Path, gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.gpu = gpu
        self.service: Service
        self._patch = monkeypatch
        self.root = (place / "cache" / "neo").resolve()
        (place / "work").mkdir()
        (place / "source.cl").write_text(SOURCE)
        shutil.copy(next((fakes.NEO / "recorded").glob("fda88f9b82d687e4.input")), place / "image.spv")

    def host(self) -> Host:
        """Return the host as a survey would find it with such a card."""
        device = "Intel(R) Graphics [0xe202]"
        answers = (
            DriverAnswer("Intel(R) oneAPI Unified Runtime over Level-Zero", device, "20.1.0", "1.15.39122"),
            DriverAnswer("Intel(R) OpenCL Graphics", device, "OpenCL 3.0 NEO ", "26.27.039122"),
        )
        library = next(
            filter(Path.exists, (one / "libigc.so.2" for one in (*self.gpu.before, self.gpu.libraries)))
        ).resolve()
        made = datetime.fromtimestamp(library.stat().st_mtime, UTC)
        file = DriverFile(library, library, None, library.stat().st_size, made, None, None)
        card = Device(device, Architecture("bmg-g21"), answers=answers)
        given = digest_of_variables(self.service.context.steering)
        return with_targets(Host(datetime.now(UTC), "boot", "6", "stamp", (card,), (file,), variables=given))

    def live(
        self, work: Callable[[], Awaitable[None]], *jobs: tuple[str, str, str], command: Iterable[str] = ()
    ) -> None:
        """Run a test's work beside a service that has a model: a command, or one that builds these programs."""

        async def whole() -> None:
            names = ("STATE", "SOCKET", "CACHE")
            paths = {f"XPUCACHED_PATHS_{name}": str(self.place / name.lower()) for name in names}
            config = loading.load(None, user=True, environ={**os.environ, **paths, "XPUCACHED_STORES_FOUND": "false"})
            self.service = Service(Context(config, catalog, {}), ProcessStarter(os.environ, INSTANCE))
            self.service.context.host = self.host()

            async def nobody_surveys(**_: object) -> None:
                """Do nothing: this machine has no such card."""

            self._patch.setattr(self.service.surveyor, "survey", nobody_surveys)
            await work()
            await self.service.stop()

        built = [(how, self.place / name, options) for how, name, options in jobs]
        # A shell puts its own number, which is another one at each start, where a job has `$$`.
        shell = ("/bin/sh", "-c", f"exec {words(command or self.gpu.builder(built))}")
        workload = Workload(shell, self.place / "work", self.gpu.variables, 300.0)
        (self.place / "state").mkdir()
        catalog = catalogs.fresh(self.place / "state" / "catalog.sqlite")
        catalog.write(add_model, Model(NET, workload))
        try:
            asyncio.run(whole())
        finally:
            catalog.close()

    async def warmed(self, *, force: bool = False) -> Run:
        """Warm the model; give the run."""
        job = await self.service.prewarmer.start(requests.PrewarmModels(models=(NET,), force=force))
        while job.state in {JobState.QUEUED, JobState.RUNNING}:
            await asyncio.sleep(0.05)
            (job,) = [one for one in self.service.context.jobs.all() if one.id == job.id]
        assert isinstance(job.report, PrewarmReport), job
        (run,) = job.report.runs
        return run

    async def status(self) -> ModelStatus:
        return await self.service.prewarmer.status_of(NET)

    def recipes(self) -> dict[str, RecordedRecipe | None]:
        """Return how each entry is compiled, as it was told, by its place."""
        context = self.service.context
        entries = [one.entry for one in context.catalog.read(all_entries)]
        return {one.id.key: context.recipes.recorded(one.id.store.kind, one.id.key) for one in entries}

    def traces(self) -> list[str]:
        return [path.name for path in self.root.iterdir() if path.suffix in {".trace", ".input"}]


@pytest.fixture
def house(short_dir: Path, gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> GpuHouse:
    return GpuHouse(short_dir, gpu, monkeypatch)


JOBS: Final = (("text", "source.cl", "-DX=1"), ("text", "source.cl", "-DX=2"), ("ze", "image.spv", ""))


def test_a_model_is_proven_by_what_its_driver_was_asked_for(house: GpuHouse) -> None:
    async def work() -> None:
        run = await house.warmed()
        assert (run.outcome, [(one.created, one.used) for one in run.passes]) == (Outcome.WARMED, [(3, 0), (0, 3)])
        assert {(one.kind, one.family, one.toolchain) for one in run.environments} == {
            (NEO, "OpenCL", "26.27.039122"),
            (NEO, "Level Zero", "1.15.39122"),
        }
        recipes = house.recipes()
        assert len(recipes) == 3
        assert sorted(one.parts["input"] for one in recipes.values() if one and "input" in one.parts) == (
            [SOURCE.encode() + b"\0"] * 2
        )
        assert all(one is not None and one.target in run.environments for one in recipes.values())
        assert house.traces() == []
        kept = house.place / "state" / "recipes"
        assert {stat.S_IMODE(path.stat().st_mode) for path in kept.iterdir()} == {0o600}

        status = await house.status()
        assert (status.warmth, status.entries, status.layers) == (Warmth.WARM, 3, (Layer(NEO, 3, 3),))
        assert status.why.startswith("all its 3 entries are there (3 neo); run ")
        next(house.root.rglob("*.l0_cache")).unlink()
        stores = house.service.finder.run_stores(house.service.finder.managed())
        await house.service.scanner.entries_now(stores)
        status = await house.status()
        assert (status.reason, status.layers) == (WarmReason.LOST, (Layer(NEO, 3, 2),))
        # What is there is used, and only what is gone is compiled.
        again = await house.warmed()
        assert [(one.created, one.used) for one in again.passes] == [(1, 2), (0, 3)]

    house.live(work, *JOBS)


def test_another_compiler_makes_a_model_cold_before_anything_ran(house: GpuHouse) -> None:
    async def work() -> None:
        await house.warmed()
        host = house.host()
        later = replace(host.driver[0], modified=host.driver[0].modified + timedelta(days=1))
        house.service.context.host = with_targets(replace(host, driver=(later,)))
        status = await house.status()
        assert (status.warmth, status.reason) == (Warmth.COLD, WarmReason.DRIVER)
        assert status.why.startswith("the compiler of driver 26.27.039122 changed since it was warmed for Intel(R)")
        # Back to the first one, what was proven with it is proven.
        house.service.context.host = host
        assert (await house.status()).warmth is Warmth.WARM

    house.live(work, *JOBS[:1])


def test_models_are_cold_under_another_compiler_until_what_they_look_for_is_there(house: GpuHouse) -> None:
    """What was compiled under the other one by anybody is found where it was predicted, and no model runs for that."""
    other = house.place / "other"
    other.mkdir()
    library = (house.gpu.libraries / "libigc.so.2").resolve()
    shutil.copyfile(library, other / library.name)
    (other / "libigc.so.2").symlink_to(library.name)

    async def look(*jobs: tuple[str, str, str]) -> ModelStatus:
        """Let another program compile these under the other compiler, and see how the model stands."""
        if jobs:
            words = house.gpu.builder([(how, house.place / name, options) for how, name, options in jobs])
            words[2] = f"{other}:{words[2]}"
            caching = {"NEO_CACHE_PERSISTENT": "1", "NEO_CACHE_DIR": str(house.root)}
            program = await asyncio.create_subprocess_exec(
                *words, cwd=house.place / "work", env={**os.environ, **house.gpu.variables, **caching}
            )
            assert await program.wait() == 0
        service = house.service
        await service.scanner.entries_now(service.finder.run_stores(service.finder.managed()))
        await predicting.look(service.context)
        return await house.status()

    async def work() -> None:
        await house.warmed()
        context = house.service.context
        old = set(house.recipes())
        size = (other / library.name).stat()
        file = replace(house.host().driver[0], size=size.st_size, modified=datetime.fromtimestamp(size.st_mtime, UTC))
        context.host = with_targets(replace(house.host(), driver=(file,)))
        context.catalog.write(record_survey, context.host)

        status = await look()
        assert (status.warmth, status.reason) == (Warmth.COLD, WarmReason.DRIVER)
        status = await look(*JOBS[:2])
        assert (status.warmth, status.reason) == (Warmth.COLD, WarmReason.DRIVER)
        assert status.why.endswith("; for that 2 entries are there already, of 3 that it had")
        status = await look(JOBS[2], ("text", "source.cl", "-DX=3"))
        assert status.warmth is Warmth.WARM
        assert "with another compiler, and all that its programs look for under this one is there, too" in status.why

        entries = {one.entry.id.key: one for one in context.catalog.read(all_entries)}
        fresh = {key: one for key, one in entries.items() if key not in old}
        assert sorted((one.entry.environment in context.present.offered, one.models) for one in fresh.values()) == (
            [(False, ()), *[(True, (NET,))] * 3]
        )
        # What is damaged or gone is missing there as anywhere.
        (house.root / next(key for key, one in fresh.items() if one.models)).unlink()
        assert (await look()).warmth is Warmth.COLD
        # What was proven with the first one is proven, and a run under this one counts by itself.
        context.host = house.host()
        context.catalog.write(record_survey, context.host)
        assert (await look()).why.startswith("all its 3 entries are there (3 neo); run ")

    house.live(work, *JOBS)


def test_a_model_whose_driver_could_tell_nothing_is_not_said_to_use_no_cache(house: GpuHouse) -> None:
    mere = words(house.gpu.builder([("text", house.place / "source.cl", "-DX=1")]))
    script = f'[ -e gone ] || {{ touch gone; rm -r "$NEO_CACHE_DIR"; }}; exec {mere}'

    async def work() -> None:
        run = await house.warmed()
        said = f"what it asks for cannot be told in {house.root}: it was removed meanwhile"
        assert (run.outcome, run.detail) == (Outcome.UNPROVEN, said)
        assert (await house.warmed()).outcome is Outcome.WARMED
        assert (await house.status()).layers == (Layer(NEO, 1, 1),)

    house.live(work, command=["/bin/sh", "-c", script])


def test_a_file_that_silences_the_driver_is_named(house: GpuHouse) -> None:
    async def work() -> None:
        switches = [f"{name} = {value}" for name, value in house.gpu.variables.items() if name[0].isupper()]
        (house.place / "work" / "neo.config").write_text("\n".join(switches))
        run = await house.warmed()
        assert "neo.config" in run.detail
        assert house.traces() == []

    house.live(work, *JOBS[:1])


def test_traces_that_two_programs_wrote_at_once_tell_the_truth_or_nothing(house: GpuHouse) -> None:
    async def work() -> None:
        house.root.mkdir(parents=True)
        telling = {"BinaryCacheTrace": "1", "NEO_CACHE_PERSISTENT": "1", "NEO_CACHE_DIR": str(house.root)}
        jobs = [("text", house.place / "source.cl", f"-DX={number}") for number in range(8)]
        variables = {**os.environ, **house.gpu.variables, **telling}
        for order in (jobs, jobs[::-1]), (jobs, jobs):
            started = [
                await asyncio.create_subprocess_exec(
                    *house.gpu.builder(one), cwd=house.place / "work", env=variables, stdout=asyncio.subprocess.DEVNULL
                )
                for one in order
            ]
            assert [await one.wait() for one in started] == [0, 0]
            told = recorder.collect(Store(NEO, house.root), frozenset(), house.host())
            assert len(told.created) == len(jobs)
            options = {one.facts["options"] for one in told.recipes}
            assert len(options) == len(told.recipes)
            assert options <= {text for _, _, text in jobs}
            assert {one.parts["input"] for one in told.recipes} <= {SOURCE.encode() + b"\0"}
            assert house.traces() == []

    house.live(work)


def test_a_program_that_is_another_one_at_each_start_is_named(house: GpuHouse) -> None:
    async def work() -> None:
        run = await house.warmed()
        assert run.outcome is Outcome.UNPROVEN
        assert run.detail.startswith("the second pass still compiled 1 programs")
        assert run.detail.endswith("1 of them have another key at each start, so that no cache can keep them: twice")
        known = [one.recipe for one in house.service.context.catalog.read(all_entries)]
        assert sorted(map(str, known)) == [*["never-again"] * 2, "recorded"]
        for one in house.service.context.catalog.read(all_entries):
            shown = await Handlers(house.service).answer(requests.GetEntry(ref=one.entry.id.ref))
            assert isinstance(shown, IndexedEntry)
            assert (shown.recipe, bool(shown.replay)) == (one.recipe, True)

    house.live(work, ("text", "source.cl", "-DX=1"), ("text", "source.cl", "-DX=$$"))


def test_what_a_run_of_a_killed_daemon_left_is_taken_away_at_the_next_start(house: GpuHouse) -> None:
    async def work() -> None:
        house.root.mkdir(parents=True)
        (house.root / "14393921d7ce9d06.trace").write_bytes(b"---- igcRevision ----")
        (house.root / "14393921d7ce9d06.input").write_bytes(SOURCE.encode())
        await house.service.recover()
        assert house.traces() == []

    house.live(work)
