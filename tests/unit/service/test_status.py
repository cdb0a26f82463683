"""How the host stands is said of one moment: no sentence joins what held before a change with what holds after it."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests import INSTANCE
from tests.support import catalogs
from tests.support.builders import sycl_target
from xpucached.api.requests import PrewarmModels
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run, newest_runs
from xpucached.catalog.surveys import record_survey
from xpucached.domain.host import Host
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.models import Attribution, Model, Outcome, WarmReason, Warmth, Workload
from xpucached.domain.names import ModelName
from xpucached.domain.plans import Warm
from xpucached.errors import NotFound
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service, handlers
from xpucached.service.accounting import Accountant
from xpucached.service.context import Context
from xpucached.service.prewarm import Prewarmer
from xpucached.service.proofs import ProofKeeper
from xpucached.service.survey import Surveyor
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.domain.models import Coverage, Run

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
OLD, NEW = (
    Host(NOW, "", "", name, environments=(sycl_target("OpenCL", "GPU", "3.0", name),)) for name in ("25.1", "25.2")
)
NET: Final = Model(ModelName("net"), Workload(("/bin/true",), Path("/")))


@pytest.fixture
def service(home: Path) -> Iterator[Service]:
    """Give a service with a model that is proven warm on the old driver."""
    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        catalog.write(record_survey, OLD)
        catalog.write(add_model, NET)
        run = catalog.write(begin_run, NET, WarmReason.NEVER, OLD.signature, NOW)
        catalog.write(finish_run, run.id, Outcome.WARMED, (), Attribution(), OLD.environments, "", "", NOW)
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, lambda: NOW)
        context.ready = True
        yield Service(context, ProcessStarter({}, INSTANCE))


@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_no_proof_of_an_old_driver_is_told_as_one_of_the_driver_that_came_meanwhile(
    service: Service, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    context = service.context
    coverage, saved = ProofKeeper.coverage, Accountant.saved

    def survey() -> None:
        context.catalog.write(record_survey, NEW)
        context.host = NEW

    def looked(keeper: ProofKeeper, present: Host) -> tuple[Coverage, ...]:
        if when == "before":
            survey()
        found = coverage(keeper, present)
        if when == "while":
            survey()
        return found

    async def told(accountant: Accountant) -> object:
        if when == "after":
            survey()
        return await saved(accountant)

    with monkeypatch.context() as patch:
        patch.setattr(ProofKeeper, "coverage", looked)
        patch.setattr(Accountant, "saved", told)
        first = asyncio.run(service.status.get())
    assert (first.sentence, first.host) == ("Warm: net is warm for driver 25.1", OLD)
    then = asyncio.run(service.status.get())
    assert then.sentence.startswith("Cold: 1 of 1 model is not warm for driver 25.2")


def test_a_model_is_being_warmed_until_what_came_of_it_is_written_down(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, prewarmer = service.context, service.prewarmer
    context.host = NEW
    seen: list[Warmth] = []

    def look() -> None:
        seen.extend(one.warmth for one in prewarmer.statuses_now(context.present, prewarmer.running))

    async def carry_out(_self: Prewarmer, *given: object) -> None:
        course = given[2]
        course.outcome = Outcome.WARMED  # type: ignore[attr-defined] # private there

    def finish(_self: Prewarmer, run: Run, *_: object) -> Run:
        look()
        done = (Outcome.WARMED, (), Attribution(), NEW.environments, "", "", NOW)
        return context.catalog.write(finish_run, run.id, *done)

    async def warm() -> None:
        look()
        await prewarmer._warm(Warm(NET, WarmReason.DRIVER, ""), lambda _: None)
        look()

    monkeypatch.setattr(Surveyor, "reached", lambda *_: frozenset())
    monkeypatch.setattr(Prewarmer, "_carry_out", carry_out)
    monkeypatch.setattr(Prewarmer, "_finish", finish)
    prewarmer.throttle.admit([NET.name], "the processor is busy")
    asyncio.run(warm())
    # It has had its turn: when it waits once more, it is since then.
    assert prewarmer.throttle.waiting == {}
    assert seen == [Warmth.WAITING, Warmth.WARMING, Warmth.WARM]


def test_a_run_that_is_cancelled_as_it_begins_does_not_seem_to_go_on(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = service.context.catalog
    write = catalog.write_durably
    monkeypatch.setattr(Surveyor, "reached", lambda *_: frozenset())
    noted = threading.Event()

    async def warm() -> None:
        loop = asyncio.get_running_loop()
        warming = asyncio.create_task(service.prewarmer._warm(Warm(NET, WarmReason.MANUAL, ""), lambda _what: None))

        async def cancel() -> None:
            warming.cancel()
            for _ in range(5):
                await asyncio.sleep(0)

        def writing(do: Callable[..., object], *given: object, **named: object) -> object:
            if do is begin_run:
                asyncio.run_coroutine_threadsafe(cancel(), loop).result()
            try:
                return write(do, *given, **named)
            finally:
                if do is begin_run:
                    noted.set()

        monkeypatch.setattr(catalog, "write_durably", writing)
        await asyncio.wait({warming})
        assert warming.cancelled()
        await asyncio.to_thread(noted.wait, 60.0)

    asyncio.run(warm())
    newest, before = catalog.read(newest_runs, NET.name, 5)
    assert (newest.outcome, newest.finished, before.outcome) == (Outcome.CANCELLED, NOW, Outcome.WARMED)
    assert not service.prewarmer.running


def test_who_asks_for_a_model_hears_of_its_job_while_a_look_takes_long(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's daemon gives up who does not answer, and with it the unit that waits for the model at the boot."""
    monkeypatch.setattr(handlers, "_SOON", 0.0, raising=False)

    async def work() -> None:
        looked = asyncio.Event()
        monkeypatch.setattr(service.reconciler, "look_first", looked.wait)
        async with asyncio.timeout(20.0):
            job = await handlers.Handlers(service).answer(PrewarmModels(models=(ModelName("other"),)))
        assert isinstance(job, Job)
        assert service.context.jobs.job(job.id).finished is None
        looked.set()
        job = await service.context.jobs.wait(job.id, 60.0)
        assert (job.state, job.error and job.error.code) == (JobState.FAILED, NotFound.code)

    asyncio.run(work())
