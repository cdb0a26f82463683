"""Trying one variant of a model: two passes, what they compiled, where they ran, and what that proves."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import deadlines
from xpucached.catalog.entries import entries_by_id
from xpucached.catalog.figures import model_sizes
from xpucached.catalog.runs import newest_runs
from xpucached.domain.host import digest_of_variables, given_by
from xpucached.domain.models import Outcome, RanOn, Trial, WarmReason
from xpucached.domain.stores import EntryId
from xpucached.domain.workloads import Loader, Variant
from xpucached.kinds.table import KINDS
from xpucached.planning.device_use import device_use, fallbacks, ran_on
from xpucached.processes.pause import RunLimits
from xpucached.service import cache_files, program_variables, recordings
from xpucached.service.beside_cpu import CpuRunner
from xpucached.service.store_finder import make

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xpucached.domain.dependencies import Dependency
    from xpucached.domain.device_use import DeviceUse
    from xpucached.domain.models import Model, Workload
    from xpucached.domain.stores import FoundStore
    from xpucached.host.proofs import DependencySnapshot
    from xpucached.processes.results import RunResult
    from xpucached.processes.supervised import ProcessStarter
    from xpucached.service.context import Context
    from xpucached.service.proofs import ProofKeeper
    from xpucached.service.scan import StoreScanner
    from xpucached.service.throttle import Throttle

_CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
_RAN: Final = frozenset({Outcome.WARMED, Outcome.UNPROVEN, Outcome.UNCACHED})
_SHELL: Final = 128
"""A shell gives the number of the signal that ended its command above this."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one variant, and what it did to the store."""

    trial: Trial
    executions: tuple[RunResult, ...]
    after: frozenset[EntryId]
    needs: tuple[Dependency, ...] | None = None  #: of the pass that proved it; None: not known


class TrialRunner:
    """Runs single variants."""

    def __init__(
        self,
        context: Context,
        scanner: StoreScanner,
        starter: ProcessStarter,
        throttle: Throttle,
        proofs: ProofKeeper,
    ) -> None:
        self._context = context
        self._scanner = scanner
        self._proofs = proofs
        self._throttle = throttle
        self._starter = starter
        self._cpu = CpuRunner(context, starter)
        self.given: set[str] = set()
        """What stands for the variables that all programs were given in passes, since it was emptied."""

    def gave_others(self, signature: str) -> bool:
        """Return whether programs were given other variables meanwhile than when the host had this signature."""
        return not self.given <= {given_by(signature)}

    def _watched(self, model: Model) -> tuple[Path, ...]:
        return tuple(path for _, path in program_variables.caches(self._context.settings, model))

    async def variants(self, model: Model) -> tuple[Variant, ...] | RunResult:
        """Return the model's variants; or, if its interpreter must be asked for devices, how that failed."""
        exercise = model.workload.exercise
        if not exercise.device.endswith(":*"):
            return exercise.variants((exercise.device,) if exercise.device else ())
        if exercise.loader is Loader.COMMAND:
            # Nobody else knows how its program counts devices.
            return exercise.variants((exercise.device,))
        found = await self._starter.devices(self._workload(model), {})
        return exercise.variants(found) if isinstance(found, tuple) else found

    def _workload(self, model: Model) -> Workload:
        return replace(model.workload, variables=program_variables.given(self._context.settings, model))

    async def attempt(
        self,
        model: Model,
        stores: Sequence[FoundStore],
        variant: Variant,
        reason: WarmReason,
        known: frozenset[EntryId],
        tell: Callable[[str], None],
    ) -> Attempt:
        """Run a variant until it is proven warm, or until it is clear that it will not be.

        ``stores`` are those that it writes to, the model's own first; ``known`` is what they hold now.
        """
        found = stores[0]
        caches = await self._has_entries(model, variant)
        watched = self._watched(model)
        seen = [await asyncio.to_thread(cache_files.files, watched)]
        executions: list[RunResult] = []
        looks: list[DependencySnapshot | None] = []
        added: tuple[int, ...] = ()
        unnamed: list[int] = []
        why_incomplete = ""
        told = False  # whether a trace named what was compiled
        after = known
        for number in ("first", "second"):
            tell(f"{number} pass")
            looks.append(await asyncio.to_thread(self._proofs.named, model.name, self._workload(model), executions))
            done = await self._execute(model, stores, variant, reason, compare=number == "first", tell=tell)
            done, why = await asyncio.to_thread(recordings.with_left, self._context, model, done, stores, after)
            why_incomplete = why_incomplete or why
            known, after = after, await self._scanner.entries_now(stores)
            # What is new and in no trace is taken for its own: some of its processes, or all, may keep their stderr.
            silent = after - known - done.created - done.used
            told = told or bool(done.created)
            unnamed.append(sum(KINDS[one.store.kind].recorder is not None for one in silent) if done.traced else 0)
            done = replace(done, created=done.created | silent)
            seen.append(await asyncio.to_thread(cache_files.kept, watched, seen[-1]))
            added = cache_files.written(seen)
            executions.append(done)
            # Nothing compiled is proof already; and what failed need not be tried twice.
            if done.outcome is not None or not (
                done.created or done.unkept or added[-1] or await asyncio.to_thread(self._proofs.unsettled, model.name)
            ):
                break
        # What was warm had no cold pass, though there were two to tell who writes what is unsettled.
        counted = executions if executions[0].created or added[0] else executions[-1:]
        present = cache_files.MOST if seen[-1] is None else len(seen[-1])
        unkept = len(executions[-1].created - after)
        outcome, detail = _judged(counted, unnamed, added, present, unkept, told=told, caches=caches)
        if why := await self._doubt(
            model, outcome, executions, after, why_incomplete, found.store.root, countless=None in seen
        ):
            outcome, detail = Outcome.UNPROVEN, why
        if _crashed(executions[-1]):
            tell("control pass, without the cache")
            control = await self._execute(model, stores, variant, reason, cache=False, tell=tell)
            if control.outcome is None:
                outcome = Outcome.CRASHED
                detail += f" with the cache on; with the cache off it ran to its end in {control.seconds:.1f} s"
        exercise = model.workload.exercise
        place, device, evidence, use = await self._place(model, variant, executions)
        if exercise.require_device and outcome in _RAN and place is not RanOn.MEANT:
            where = f"it ran on {device}" if place is RanOn.OTHER and device else "nothing shows that it did"
            outcome, detail = Outcome.FAILED, f"it was meant to run on {variant.device or exercise.device}; {where}"
        trial = Trial(
            variant,
            outcome,
            tuple(one.as_pass() for one in counted),
            place,
            device,
            evidence,
            tuple(one.told.figures for one in counted if one.told is not None and one.told.figures is not None),
            detail,
            executions[-1].output,
            use,
        )
        good = outcome in {Outcome.WARMED, Outcome.UNCACHED}
        needs = await asyncio.to_thread(self._proofs.needed, model, looks, executions, watched) if good else None
        return Attempt(trial, tuple(executions), after, needs)

    async def _has_entries(self, model: Model, variant: Variant) -> bool:
        """Return whether entries of a model may be a variant's: not of one that was seen to use no cache."""
        entries, _ = (await self._context.read(model_sizes)).get(model.name, (0, 0))
        telling = {Outcome.WARMED, Outcome.UNCACHED}
        for run in await self._context.read(newest_runs, model.name, outputs=False):
            for one in run.trials if run.workload == model.workload.digest else ():
                if one.variant == variant and one.outcome in telling:
                    return entries > 0 and one.outcome is Outcome.WARMED
        return entries > 0

    async def beside_cpu(
        self, model: Model, attempts: list[Attempt], reason: WarmReason, tell: Callable[[str], None]
    ) -> None:
        """Add to variants what they take on the processor, if that is asked for; it proves nothing."""
        if not model.workload.exercise.compare:
            return
        trials = [one.trial for one in attempts]
        manner, polite = self._manner(reason, tell), reason is not WarmReason.MANUAL
        found = await self._cpu.compared(model, self._workload(model), trials, manner, tell, polite=polite)
        attempts[:] = [
            dataclasses.replace(one, trial=replace(one.trial, cpu=cpu))
            for one, cpu in zip(attempts, found, strict=True)
        ]

    async def _doubt(
        self,
        model: Model,
        outcome: Outcome,
        executions: Sequence[RunResult],
        after: frozenset[EntryId],
        why_incomplete: str,
        root: Path,
        *,
        countless: bool,
    ) -> str:
        """Return why what came of the passes is not proven by them, if so."""
        if outcome in {Outcome.UNCACHED, Outcome.UNPROVEN} and not await asyncio.to_thread(_writable, root):
            return f"nothing can be kept in {root}: it may not be written to"
        if outcome is Outcome.WARMED and countless:
            many = f"its caches hold more than {cache_files.MOST} files, or cannot be read just now"
            return f"{many}: whether a pass added any is not known"
        if outcome in {Outcome.WARMED, Outcome.UNCACHED} and why_incomplete:
            return f"what it asks for cannot be told in {why_incomplete}"
        if outcome is not Outcome.WARMED:
            return ""
        return await asyncio.to_thread(
            recordings.unusable, self._context, [executions], after
        ) or await asyncio.to_thread(recordings.untold, self._context, model, executions)

    async def _execute(
        self,
        model: Model,
        stores: Sequence[FoundStore],
        variant: Variant,
        reason: WarmReason,
        *,
        cache: bool = True,
        compare: bool = False,
        tell: Callable[[str], None],
    ) -> RunResult:
        found = stores[0]
        if cache:
            # A driver makes none, and where there is none it leaves no word of what it compiles.
            await asyncio.to_thread(make, stores)
        # What others left there says nothing of this pass.
        await asyncio.to_thread(recordings.clear, stores, begins=cache)
        tracing: dict[str, str] = {}
        for one in stores if cache else ():
            recorder = KINDS[one.store.kind].recorder
            tracing.update(recorder.variables(one.store) if recorder is not None else {})
        off = KINDS[found.store.kind].discovery.OFF
        self.given.add(digest_of_variables(self._context.steering))
        run = self._starter.execute(
            self._workload(model),
            {
                **self._scanner.finder.variables(found),
                **program_variables.further(self._context.settings, model),
                **tracing,
                **({} if cache else off),
            },
            recordings.trace(stores),
            # Somebody who asks is waiting; what we do by ourselves lets others go first.
            polite=reason is not WarmReason.MANUAL,
            run_limits=self._manner(reason, tell),
            variant=variant,
            compare=compare,
        )
        return await cache_files.tidied(run, self._context.settings, model)

    def _manner(self, reason: WarmReason, tell: Callable[[str], None]) -> RunLimits:
        run_priority = self._throttle.run_priority(reason)
        throttle = self._context.settings.throttle
        loop = asyncio.get_running_loop()

        def tell_here(what: str) -> None:
            # It is said in the thread that attends to the child.
            loop.call_soon_threadsafe(tell, what)

        watcher = self._throttle.watcher(run_priority, tell_here)
        return RunLimits(run_priority, watcher, throttle.max_wait, throttle.isolate, throttle.tasks)

    async def _place(
        self, model: Model, variant: Variant, executions: Sequence[RunResult]
    ) -> tuple[RanOn, str, tuple[str, ...], DeviceUse]:
        """Return whether the work was done where it was meant to be, where that is, how we know, and what was used."""
        kind = (variant.device or model.workload.exercise.device).partition(":")[0]
        used = frozenset(entry for one in executions for entry in one.created | one.used)
        rows = await self._context.read(entries_by_id, used)
        known = Counter(row.entry.environment for row in rows)
        counts = {target: number for target, number in known.items() if target is not None}
        devices = self._context.present.seen_by(model.name).devices
        engines: dict[str, int] = {}
        for one in executions:
            for address, spent in one.engines.items():
                engines[address] = engines.get(address, 0) + spent
        use = device_use(known, devices, [one.graphics for one in executions], [engines])
        evidence = [f"{count} entries are for {one.device}, driver {one.toolchain}" for one, count in counts.items()]
        evidence += [f"the engines of {address} worked for it" for address, spent in engines.items() if spent]
        evidence += fallbacks(one.output for one in executions)
        names = sorted({one.device for one in counts})
        told = next((one.told for one in reversed(executions) if one.told is not None), None)
        if told is not None and told.ran_on is not RanOn.UNKNOWN:
            return told.ran_on, told.device, (*told.evidence, *evidence), use
        evidence = [*(told.evidence if told is not None else ()), *evidence]
        return ran_on(kind, use), ", ".join(names), tuple(evidence), use


def concluded(trials: Sequence[Trial]) -> tuple[Outcome, str]:
    """Return how a run ended, of which these are the variants."""
    bad = [one for one in trials if one.outcome not in {Outcome.WARMED, Outcome.UNCACHED}]
    uncached = sum(one.outcome is Outcome.UNCACHED for one in trials)
    if len(trials) == 1 or uncached == len(trials):
        return trials[0].outcome, trials[0].detail
    if not bad and uncached:
        return Outcome.WARMED, f"{len(trials) - uncached} of {len(trials)} variants are warm, the others use no cache"
    if not bad:
        return Outcome.WARMED, f"all {len(trials)} variants are warm"
    first = bad[0]
    warm = len(trials) - len(bad) - uncached
    return first.outcome, f"{warm} of {len(trials)} variants are warm; {first.variant.label}: {first.detail}"


def _crashed(execution: RunResult) -> bool:
    """Return whether a pass ended as those do that the runtime's cache has crashed."""
    status = execution.exit_status
    if execution.outcome is not Outcome.FAILED or status is None:
        return False
    return (-status if status < 0 else status - _SHELL) in _CRASHES


def _writable(root: Path) -> bool:
    """Return whether programs of this user can make entries below a store's root, or make the root."""

    def look() -> bool:
        place = next((one for one in (root, *root.parents) if os.path.lexists(one)), root)
        return place.is_dir() and os.access(place, os.W_OK | os.X_OK)

    try:
        return deadlines.ask(root, look)
    except TimeoutError:
        return False


def _silent(count: int) -> str:
    """Return what it means that entries appeared which a pass's trace does not name."""
    cause = "a part of it may keep its stderr to itself, or another program compiled meanwhile"
    return f"{count} of which its trace does not name: {cause}"


def _judged(
    executions: Sequence[RunResult],
    unnamed: Sequence[int],
    added: Sequence[int],
    files: int,
    unkept: int,
    *,
    told: bool,
    caches: bool,
) -> tuple[Outcome, str]:
    """Return how a variant ended: only a pass that compiled nothing proves anything.

    ``unnamed`` are the new entries of each pass that its trace does not name, ``added`` the files that it wrote to
    the watched directories, ``files`` is what they hold now, ``unkept`` are the entries of the last one that are not
    in the store; ``told`` says that the trace named what the first one
    compiled, ``caches`` that the model was seen to use its store.
    """
    first, last = executions[0], executions[-1]
    if last.outcome is not None:
        return last.outcome, last.detail
    if last.created:
        compiled = f"the second pass still compiled {len(last.created)} programs"
        compiled += f", and {unkept} of them could not be kept in its store" if unkept else ""
        return Outcome.UNPROVEN, f"{compiled}{f', {_silent(unnamed[-1])}' if unnamed[-1] else ''}"
    if added[-1]:
        return Outcome.UNPROVEN, f"the second pass still added {added[-1]} files to its caches"
    if told and not last.used:
        compiled = f"{len(first.created)} entries compiled, and the second pass showed no use of it"
        return Outcome.UNPROVEN, f"{compiled}: does it do the same work at each start?"
    if not (first.created or last.used or files):
        if caches:
            return Outcome.UNPROVEN, "it showed no use of its entries: does it let its stderr through?"
        why = "no SYCL kernels, a cache of its own choice (model add --store PATH), or its stderr is kept back"
        return Outcome.UNCACHED, f"it ran, and uses no cache that is known: {why}"
    more = f", {files} files in its own caches" if files else ""
    if not (first.created or added[0]):
        return Outcome.WARMED, f"was warm: {len(last.used)} entries used, none compiled{more}, {last.seconds:.1f} s"
    if added[0]:
        more = f", {added[0]} files written to its own caches"
    if unnamed[0]:
        more = f" ({_silent(unnamed[0])}){more}"
    compiled = f"{len(first.created)} entries compiled{more} in {first.seconds:.1f} s"
    if first.created and not last.traced:
        return Outcome.WARMED, f"{compiled}; then none in {last.seconds:.1f} s (it lets no trace through)"
    return Outcome.WARMED, f"{compiled}; then {len(last.used)} used and none compiled in {last.seconds:.1f} s"
