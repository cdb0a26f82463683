"""Two drivers at once on one host, and one store of theirs: each model's entries are made for its own driver."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.flow.test_driver_cache import JOBS, NET, words
from tests.flow.test_driver_replay import ReplayHouse
from xpucached.api import requests
from xpucached.catalog.models import add_model
from xpucached.domain.host import DriverInUse, Host, OtherDriver
from xpucached.domain.models import Model, Warmth, Workload
from xpucached.domain.names import ModelName
from xpucached.domain.reports import PrewarmReport
from xpucached.service import replay

if TYPE_CHECKING:
    from tests.support.runtimes import SimulatedGpu
    from xpucached.service.context import Context

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(600)]

TRIAL: Final = ModelName("trial")


class TwoHouse(ReplayHouse):
    """The same where a second model is led to a driver with another compiler."""

    def __init__(self, place: Path, gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(place, gpu, monkeypatch)
        further = place / "further" / "libigc.so.2"
        further.parent.mkdir()
        shutil.copy2(self.compiler, further)
        os.utime(further, (0, self.compiler.stat().st_mtime + 60))
        self.led = changed(self.gpu, before=(further.parent,))
        monkeypatch.setattr(replay, "drivers_in_use", self.in_use)

    def host(self) -> Host:
        own, ours = super().host(), self.gpu
        self.gpu = self.led
        other = super().host()
        self.gpu = ours
        leads = {"LD_LIBRARY_PATH": str(self.led.before[0])}
        led = DriverInUse(leads, (TRIAL,), "trial", other.devices, other.driver, other.environments)
        return replace(own, drivers=(led,))

    def in_use(self, context: Context) -> tuple[OtherDriver, ...]:
        own = context.present
        return tuple(
            OtherDriver(
                *(one.environments, one.stamp, gpu.variables, gpu.command()),
                models=models,
                devices=one.devices,
                driver=one.driver,
            )
            for one, gpu, models in (
                (own, self.gpu, frozenset[ModelName]()),
                (own.drivers[0], self.led, frozenset({TRIAL})),
            )
        )

    async def passes(self, name: ModelName) -> list[tuple[int, int]]:
        """Run a model; give what each pass compiled and used."""
        job = await self.done(await self.service.prewarmer.start(requests.PrewarmModels(models=(name,), force=True)))
        assert isinstance(job.report, PrewarmReport), job
        return [(one.created, one.used) for one in job.report.runs[0].passes]


@pytest.fixture
def house(short_dir: Path, gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> TwoHouse:
    return TwoHouse(short_dir, gpu, monkeypatch)


def test_each_models_entries_are_made_again_for_the_driver_that_it_uses(house: TwoHouse) -> None:
    """Both build the first program, which has a name for each driver."""

    async def work() -> None:
        built = [(how, house.place / name, options) for how, name, options in (JOBS[0], JOBS[2])]
        shell = ("/bin/sh", "-c", f"exec {words(house.led.builder(built))}")
        variables = {**house.led.variables, "LD_LIBRARY_PATH": str(house.led.before[0])}
        trial = Model(TRIAL, Workload(shell, house.place / "work", variables, 300.0))
        house.service.context.catalog.write(add_model, trial)
        house.surveyed()
        assert await house.passes(NET) == [(2, 0), (0, 2)]
        assert await house.passes(TRIAL) == [(2, 0), (0, 2)]
        assert (await house.replayed()).plan.rebuild == ()

        house.change_compiler()
        statuses = {one.model.name: one.warmth for one in await house.service.prewarmer.statuses()}
        assert statuses == {NET: Warmth.COLD, TRIAL: Warmth.WARM}
        own = house.host()
        report = await house.replayed()
        assert {one.to for one in report.plan.rebuild} <= set(own.environments)
        assert (report.rebuilt, report.failed) == (2, 0)
        assert await house.passes(NET) == [(0, 2)]

        # And the other way round: what is for the host's own driver stays as it is.
        further = house.led.before[0] / "libigc.so.2"
        os.utime(further, (0, further.stat().st_mtime + 120))
        house.surveyed()
        report = await house.replayed()
        led = house.host().drivers[0]
        assert {one.to for one in report.plan.rebuild} <= set(led.environments)
        assert (report.rebuilt, report.failed) == (2, 0)
        assert await house.passes(TRIAL) == [(0, 2)]
        assert await house.passes(NET) == [(0, 2)]
        assert (await house.replayed()).plan.rebuild == ()
        assert house.total_is_true()

    house.live(work, *JOBS[:2])
