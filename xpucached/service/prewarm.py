"""Prewarming: which models need it, one run after the other, and what each run proved."""

from __future__ import annotations

import asyncio
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.catalog.entries import entries_by_id
from xpucached.catalog.figures import model_sizes
from xpucached.catalog.models import all_models, checked_models
from xpucached.catalog.runs import finish_run, with_newest_runs
from xpucached.domain.models import ModelStatus, Outcome, WarmReason, Warmth
from xpucached.domain.plans import Deferred
from xpucached.domain.reports import PrewarmReport
from xpucached.domain.workloads import Variant
from xpucached.errors import CatalogError, Conflict, HostError, NotFound, no_model
from xpucached.incidents import unexpected
from xpucached.planning import verdict
from xpucached.planning.baselines import summed, usual_seconds
from xpucached.planning.prewarm import nothing_to_warm, plan_prewarm
from xpucached.processes.cancellation import to_its_end
from xpucached.service import recordings
from xpucached.service.automatic import SURVEY
from xpucached.service.course import RunCourse
from xpucached.service.proofs import ProofKeeper, needed_by_all
from xpucached.service.store_finder import make
from xpucached.service.throttle import Throttle
from xpucached.service.trial import TrialRunner, concluded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from xpucached.api import requests
    from xpucached.domain.host import Host
    from xpucached.domain.jobs import Job
    from xpucached.domain.models import Coverage, Model, Run
    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import PrewarmPlan, Warm
    from xpucached.domain.stores import FoundStore
    from xpucached.processes.supervised import ProcessStarter
    from xpucached.service.context import Context
    from xpucached.service.jobs import Handle
    from xpucached.service.replay import Replayer
    from xpucached.service.scan import StoreScanner
    from xpucached.service.shifts import ShiftKeeper
    from xpucached.service.survey import Surveyor

    _GivesWay = Callable[[], Awaitable[bool]]
    _Look = Callable[[], Awaitable[Model | Deferred | None]]

log = logging.getLogger(__name__)

_SOMETHING_FIRST: Final = "something else comes first"
_SETTLED: Final = frozenset({Warmth.WARM, Warmth.UNCACHED})
"""A model that stands so is run again only with force."""


class Prewarmer:
    """Runs models and records what came of it."""

    def __init__(
        self, context: Context, scanner: StoreScanner, surveyor: Surveyor, starter: ProcessStarter, shifts: ShiftKeeper
    ) -> None:
        self._context = context
        self._shifts = shifts
        self._scanner = scanner
        self._finder = scanner.finder
        self._surveyor = surveyor
        self.throttle = Throttle(context)
        self.proofs = ProofKeeper(context, scanner.finder)
        self._trials = TrialRunner(context, scanner, starter, self.throttle, self.proofs)
        self._running: set[ModelName] = set()
        self._ends = recordings.RunEnds(context.catalog)

    async def start(self, request: requests.PrewarmModels, replayer: Replayer | None = None) -> Job:
        """Warm models: those named, all, or those that need it; see `requests.PrewarmModels`."""
        return self._context.jobs.start("prewarm", await self.asked(request, replayer))

    async def asked(
        self, request: requests.PrewarmModels, replayer: Replayer | None = None
    ) -> Callable[[Handle], Awaitable[PrewarmReport]]:
        """Return the work of that job.  Raises what speaks against it."""
        models = await self._context.read(checked_models, request.models)
        asked = [one for one in models if not request.models or one.name in request.models]
        if not (self._context.present.offered or any(one.workload.exercise.elsewhere for one in asked)):
            see = "xpucachectl " + (f"why {request.models[0]}" if request.models else "devices")
            raise HostError("this host has no device to warm models on", hint=f"see: {see}")
        self.proofs.look_again()
        named = None if request.stale else frozenset(request.models or (model.name for model in models))
        return self.work(named, force=request.force, replayer=replayer)

    async def startable(self) -> bool:
        """Tell whether a model needs warming, nobody is at it, and this is the time for it; else it waits for that."""
        wanted = [warm.model.name for warm in (await self.plan()).warm if warm.model.name not in self._running]
        return self.throttle.admit(wanted, await self.throttle.hold() if wanted else "")

    async def plan(self, force: frozenset[ModelName] = frozenset(), *, patient: bool = True) -> PrewarmPlan:
        """Decide what should be warmed now: a model that failed waits, and who is ``patient`` has others rest, too."""
        # What a run has proved, and the catalog had no room for, need not be proved again.
        await asyncio.to_thread(self._ends.catch_up)
        models = await self._context.read(all_models)
        policy, present, away = self._context.settings.policy, self._context.present, self._context.away
        coverage = await asyncio.to_thread(self.proofs.coverage, present)
        now = self._context.clock()
        return plan_prewarm(models, coverage, present, policy, now, away=away, force=force, patient=patient)

    def work(
        self,
        named: frozenset[ModelName] | None = None,
        *,
        force: bool = False,
        automatic: bool = False,
        gives_way: _GivesWay | None = None,
        replayer: Replayer | None = None,
    ) -> Callable[[Handle], Awaitable[PrewarmReport]]:
        """Return the work of a job: warm what needs it, or of these models those that do; with ``force`` all of them.

        What the ``replayer`` can make is made before, so that runs only prove it.  A named model's run that goes on is
        ours, too.  What is done ``automatic`` ends between two models when ``gives_way`` says so, or no calm is there.
        """

        async def work(handle: Handle) -> PrewarmReport:
            going = self.running if named is not None and not force else frozenset()
            plan = await self.plan(named or frozenset(), patient=automatic)
            wanted = [warm for warm in plan.warm if named is None or warm.model.name in named]
            covered, idle = list(plan.covered), list[Deferred]()
            if named is not None and not force:
                known = {one.model.name: one.warmth for one in await self.statuses() if one.model.name in named}
                covered = sorted(name for name in known if known[name] is Warmth.WARM)
                idle = [nothing_to_warm(name) for name in known if known[name] is Warmth.UNCACHED]
                wanted = [warm for warm in wanted if known.get(warm.model.name) not in _SETTLED]
            elif named is not None:
                covered = []
            if replayer is not None and wanted and not force:
                await replayer.before_models(handle, frozenset(warm.model.name for warm in wanted))
            runs: list[Run] = []
            late: list[Deferred] = []
            before = {one.name: one for one in await self.statuses()} if wanted else {}
            for number, warm in enumerate(wanted):
                rest = usual_seconds(before.get(one.model.name) for one in wanted[number:])

                def tell(detail: str, number: int = number, rest: float | None = rest) -> None:
                    handle.progress(number, len(wanted), detail, rest)

                left = [one.model.name for one in wanted[number:]]
                if automatic and number and not self.throttle.admit(left, await self.throttle.busy()):
                    late += [Deferred(name, self.throttle.waiting[name].why, None) for name in left]
                    break
                tell(f"{warm.model.name}: waiting for its turn")
                async with self._context.locks.changing:
                    look = functools.partial(self._look_again, warm, asked=named is not None, force=force)
                    turn = functools.partial(self._turn, warm, tell, gives_way, look, joins=warm.model.name in going)
                    came = await self._context.turns.take(warm.model.name, turn)
                    if came is None:
                        covered.append(warm.model.name)
                    elif not isinstance(came, Deferred):
                        runs.append(came)
                    elif came.why != _SOMETHING_FIRST:
                        late.append(came)
                    else:
                        late += [replace(came, model=name) for name in left]
                        break
            handle.progress(len(wanted), len(wanted))
            deferred = tuple(one for one in plan.deferred if named is None or one.model in named)
            return PrewarmReport(tuple(runs), tuple(covered), (*deferred, *idle, *late))

        return work

    async def _turn(
        self, warm: Warm, tell: Callable[[str], None], gives_way: _GivesWay | None, look: _Look, *, joins: bool
    ) -> Run | Deferred | None:
        """Warm a model, if it still needs that; None if it is warm, else why it is not warmed."""
        # Another job may have warmed it while this one waited.
        current = await look()
        if joins and (run := await recordings.answering(self._context, warm.model, current)) is not None:
            return run
        if current is None or isinstance(current, Deferred):
            return current
        self._context.turns.runs(current)
        if hindrance := await asyncio.to_thread(self._finder.hindrance, current):
            return Deferred(current.name, hindrance, None)
        if gives_way is not None and await gives_way():
            return Deferred(current.name, _SOMETHING_FIRST, None)
        return await self._warm(replace(warm, model=current), tell)

    async def _look_again(self, warm: Warm, *, asked: bool, force: bool) -> Model | Deferred | None:
        """Return the model as it is now, if it still needs warming; None if it is warm, else why it is not warmed."""
        known: dict[ModelName, Model | Deferred | None] = {}
        if asked:
            for one in await self.statuses():
                idle = nothing_to_warm(one.model.name) if one.warmth is Warmth.UNCACHED else None
                known[one.model.name] = one.model if force or one.warmth not in _SETTLED else idle
        else:
            plan = await self.plan(patient=False)
            known.update({one.model: one for one in plan.deferred} | dict.fromkeys(plan.covered))
            known.update({one.model.name: one.model for one in plan.warm})
        return known.get(warm.model.name, Deferred(warm.model.name, "it was removed meanwhile", None))

    async def _warm(self, warm: Warm, tell: Callable[[str], None]) -> Run:
        """Run one model until it is proven warm, or until it is clear that it will not be."""
        model, context = warm.model, self._context
        found = await asyncio.to_thread(self._finder.store_of, model)
        signature = context.present.seen_by(model.name).signature
        reached = await asyncio.to_thread(self._surveyor.reached, model)
        seen = await asyncio.to_thread(self.proofs.coverage, context.present)
        changes = next((one.changes for one in seen if one.model == model.name), ())
        circumstances = signature, context.clock(), context.present.kernel, changes
        run = await recordings.begun(context, model, warm.reason, *circumstances)
        self._running.add(model.name)
        self.throttle.waiting.pop(model.name, None)
        occasion = self.throttle.run_priority(warm.reason).occasion
        context.events.post(
            "run-started",
            model.name,
            {"model": model.name, "reason": warm.reason, "occasion": occasion, "detail": warm.detail},
        )
        course = RunCourse()
        self._trials.given.clear()
        try:
            await self._carry_out(warm, found, course, tell)
            if course.outcome in {Outcome.WARMED, Outcome.UNCACHED} and self._trials.gave_others(signature):
                # It would count as a proof for those that there were.
                course.outcome, course.detail = Outcome.CANCELLED, "driver.variables were changed while it ran"
        except Conflict as error:
            course.outcome, course.detail = Outcome.FAILED, error.message
        except OSError as error:
            course.outcome, course.detail = Outcome.FAILED, f"its store cannot be made or used: {error}"
        except CatalogError as error:
            # The next model meets it as well, and this one has not shown anything.
            course.outcome, course.detail = Outcome.CANCELLED, f"the catalog cannot be used: {error.message}"
            raise
        except Exception as error:  # noqa: BLE001 - how a run ends is recorded, and the next model's turn comes
            wrong = unexpected(log, f"while {model.name} was warmed", error)
            course.outcome, course.detail = Outcome.FAILED, f"{wrong.message}; {wrong.hint}"
        except BaseException:
            course.outcome, course.detail = Outcome.CANCELLED, context.turns.why_ended(model.name) or "cancelled"
            raise
        finally:
            try:
                run = await to_its_end(self._finish, run, course, model, reached)
                if course.outcome is not Outcome.CANCELLED:
                    await self._shifts.look(model.name)
                    if recordings.met_another_driver(context, run):
                        async with context.automatic.part(SURVEY):
                            await self._surveyor.survey()
            finally:
                # Not before its proof counts: until then it would be called as cold as it was.
                self._running.discard(model.name)
                context.events.post(
                    "run-finished",
                    f"{model.name}: {course.outcome}",
                    {"model": model.name, "outcome": course.outcome, "run": str(run.id), "detail": course.detail},
                )
        return run

    async def _carry_out(self, warm: Warm, found: FoundStore, course: RunCourse, tell: Callable[[str], None]) -> None:
        """Run the variants of a model, and note in ``course`` what comes of each as it comes."""
        model = warm.model
        await asyncio.to_thread(self._finder.refuse_foreign, model)
        stores = await asyncio.to_thread(self._finder.run_stores, found)
        await asyncio.to_thread(make, stores)
        variants = await self._trials.variants(model)
        if not isinstance(variants, tuple):
            course.executions.append(variants)
            course.outcome = variants.outcome or Outcome.FAILED
            course.detail = variants.detail or "no device was found"
            return
        before = after = await self._scanner.entries_now(stores)
        for variant in variants:
            name = model.name if variant == Variant() else f"{model.name} {variant.label}"

            def note(what: str, name: str = name) -> None:
                tell(f"{name}: {what}")

            attempt = await self._trials.attempt(model, stores, variant, warm.reason, after, note)
            after = attempt.after
            course.attempts.append(attempt)
            course.executions += attempt.executions
            course.attribution = await recordings.attributed(self._context, before, after, course.executions)
        course.outcome, course.detail = concluded(course.trials)
        if course.outcome is Outcome.WARMED and len(variants) > 1:
            # What one variant was proven with may have gone while another one ran.
            passes = [attempt.executions for attempt in course.attempts]
            lost = await asyncio.to_thread(recordings.unusable, self._context, passes, after)
            course.outcome, course.detail = (Outcome.UNPROVEN, lost) if lost else (course.outcome, course.detail)
        if why := await asyncio.to_thread(recordings.why_untold, stores, model.workload.directory):
            course.detail += f"; {why}: which of those entries it uses is not known"
        if why := await asyncio.to_thread(recordings.why_not_kept, stores, self._context.present.seen_by(model.name)):
            course.detail += f"; {why}: that is compiled at each start, and not looked at here"
        for attempt in course.attempts:
            course.detail += await asyncio.to_thread(recordings.never_twice, self._context, attempt.executions)
        if warm.reason is WarmReason.DRIVER and course.outcome is Outcome.WARMED:
            course.detail += await asyncio.to_thread(recordings.covered, self._context, course.executions)
        await self._trials.beside_cpu(model, course.attempts, warm.reason, lambda what: tell(f"{model.name}: {what}"))

    def _finish(self, run: Run, course: RunCourse, model: Model, reached: frozenset[Path]) -> Run:
        outcome, detail, attribution, trials = course.outcome, course.detail, course.attribution, course.trials
        executions, needs = course.executions, needed_by_all([one.needs for one in course.attempts])
        entries = self._context.catalog.read(entries_by_id, attribution.created | attribution.used)
        environments = tuple(sorted({one.entry.environment for one in entries if one.entry.environment is not None}))
        passes = summed(trials)
        output = executions[-1].output if executions else ""
        if outcome is not Outcome.WARMED:
            output = next((one.output for one in trials if one.outcome is outcome), output)
        # What a link led to may be another file by now.
        libraries = recordings.libraries(run, executions, reached | self._surveyor.reached(model))
        now = self._context.clock()
        told = outcome, passes, attribution, environments, detail, output, now, trials, needs, libraries
        try:
            return self._ends.note(run, lambda: self._context.catalog.write(finish_run, run.id, *told))
        except NotFound:
            # The model was removed while it ran, and its history with it.
            return replace(
                run,
                outcome=outcome,
                finished=now,
                passes=passes,
                environments=environments,
                detail=f"{detail}; the model was removed meanwhile",
                output=output,
                trials=tuple(trials),
                libraries=libraries,
            )

    # -- how models stand ---------------------------------------------------------------------------------------------

    async def statuses(self) -> tuple[ModelStatus, ...]:
        """Return every model, how it stands, and its figures."""
        return await asyncio.to_thread(self.statuses_now, self._context.present, self.running)

    async def status_of(self, name: ModelName) -> ModelStatus:
        """Return one model, how it stands, and its figures."""
        statuses = await self.statuses()
        for status in statuses:
            if status.model.name == name:
                return status
        raise no_model(name, (status.model.name for status in statuses))

    @property
    def running(self) -> frozenset[ModelName]:
        """The models that are being warmed: until it is known, and written down, what came of it."""
        return frozenset(self._running)

    def statuses_now(self, present: Host, running: frozenset[ModelName]) -> tuple[ModelStatus, ...]:
        """Return every model and how it stands, in this thread, on the host as it is ``present``.

        Host and runs were asked for before the catalog is: what it says of a new driver, or of a run that has ended
        since, is then no more than what is judged.
        """
        catalog = self._context.catalog
        with catalog.moment():
            models = catalog.read(all_models)
            if not models:
                return ()
            coverage = {known.model: known for known in self.proofs.coverage(present)}
            sizes = catalog.read(model_sizes)
            return tuple(
                self._status(one, present, coverage.get(one.name), sizes.get(one.name, (0, 0)), running, runs)
                for one, runs in catalog.read(with_newest_runs, models, 20)
            )

    def _status(
        self,
        model: Model,
        present: Host,
        coverage: Coverage | None,
        size: tuple[int, int],
        running: frozenset[ModelName],
        runs: tuple[Run, ...],
    ) -> ModelStatus:
        warmth, why, reason = verdict.warmth(
            model,
            coverage,
            present.seen_by(model.name),
            self._context.settings.policy,
            self._context.clock(),
            warming=model.name in running,
            waiting=self._context.away.get(model.name) or self.throttle.waiting.get(model.name),
        )
        # There is a second pass only where the first one found something to compile, in whatever cache.
        started = (run.passes[0] for run in runs if len(run.passes) > 1 or any(one.created for one in run.passes))
        cold = next((one for one in started if one.exit_status == 0), None)
        warm = next((run.passes[-1] for run in runs if run.outcome is Outcome.WARMED and run.passes), None)
        return ModelStatus.of(
            model,
            warmth,
            why,
            reason,
            *size,
            cold.seconds if cold else None,
            warm.seconds if warm else None,
            runs[0] if runs else None,
            coverage.changes if coverage is not None and reason is WarmReason.PROGRAM else (),
            coverage.layers if coverage is not None else (),
        )
