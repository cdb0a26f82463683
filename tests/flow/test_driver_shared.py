"""A SYCL program's entries stand in the GPU driver's cache, too: with a real runtime and the real driver."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.flow.test_driver_cache import NEO, words
from tests.flow.test_driver_replay import ReplayHouse
from tests.support.runtimes import PROGRAM
from xpucached.catalog.entries import all_entries
from xpucached.domain.models import Outcome, Warmth
from xpucached.domain.plans import NoRecipe
from xpucached.domain.recipes import RecipeState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.runtimes import SimulatedGpu
    from xpucached.domain.models import Workload
    from xpucached.domain.names import ModelName
    from xpucached.host.proofs import DependencySnapshot
    from xpucached.processes.results import RunResult

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(600)]


@pytest.fixture
def house(short_dir: Path, gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> ReplayHouse:
    return ReplayHouse(short_dir, gpu, monkeypatch)


def test_what_is_compiled_for_the_sycl_cache_fills_the_drivers_once(house: ReplayHouse) -> None:
    lib = house.gpu.runtime.lib
    modules = next(lib.glob("python3*/site-packages"))
    program = [*house.gpu.command(lib), os.path.realpath(house.gpu.runtime.python), "-W", "ignore", "-c", PROGRAM]

    async def work() -> None:
        context = house.service.context
        await house.warmed()
        # The driver is asked for what the SYCL cache lacks only: so each program's lookup is seen a second time.
        shutil.rmtree(house.place / "cache/sycl")
        run = await house.warmed(force=True)
        assert run.outcome is Outcome.WARMED
        rows = [one for one in context.catalog.read(all_entries) if one.entry.id.store.kind == NEO]
        programs = len(rows)
        assert {one.recipe for one in rows} == {RecipeState.RECORDED}

        wish = {"device": "acm-g10", "driver_root": house.gpu.root}
        report = await house.replayed(**wish)
        assert (report.rebuilt, report.failed, report.skipped) == (programs, 0, {NoRecipe.SHARED: programs})
        assert report.share == 1
        made = house.content()
        assert (len(made), house.traces(), house.total_is_true()) == (2 * programs, [], True)
        # What is there for the other device is known for what it is, so nothing is compiled once more …
        report = await house.replayed(**wish)
        assert (report.plan.rebuild, report.skipped, report.plan.covered) == ((), {}, 2 * programs)
        # … and it is what programs look for, with the SYCL cache and without it.
        for store, used in ((house.place / "cache/sycl", programs), (house.place / "empty", 0)):
            _, loaded = house.gpu.run("acm-g10", "8x4x16", store, house.root)
            assert len(loaded) == used
            assert house.content() == made

    house.live(work, command=["/usr/bin/env", f"PYTHONPATH={modules}", *program])


@pytest.mark.parametrize("before", ["first", "second"])
def test_a_driver_s_cache_that_goes_before_a_pass_is_there_again_for_it(
    house: ReplayHouse, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Without one the driver compiles all, and leaves no word of it; the SYCL cache still has all that it had."""
    lib = house.gpu.runtime.lib
    modules = f"PYTHONPATH={next(lib.glob('python3*/site-packages'))}"
    python = os.path.realpath(house.gpu.runtime.python)
    sycl = ["/usr/bin/env", modules, *house.gpu.command(lib), python, "-W", "ignore", "-c", PROGRAM]
    mere = house.gpu.builder([("text", house.place / "source.cl", "-DX=1")])

    async def work() -> None:
        proofs = house.service.prewarmer.proofs
        named = proofs.named

        def removed(name: ModelName, workload: Workload, passes: Sequence[RunResult] = ()) -> DependencySnapshot | None:
            if bool(passes) is (before == "second"):
                shutil.rmtree(house.root)
            return named(name, workload, passes)

        if before == "first":
            await house.warmed()
        monkeypatch.setattr(proofs, "named", removed)
        run = await house.warmed(force=before == "first")
        status = await house.status()
        assert (run.outcome, status.warmth) == (Outcome.WARMED, Warmth.WARM)
        assert [(one.kind, one.entries) for one in status.layers] == [("neo", 1), ("sycl", 8)]

    house.live(work, command=["/bin/sh", "-c", f"{words(mere)} && exec {words(sycl)}"])
