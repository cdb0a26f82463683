"""Conduct: one method per verb, each a walk down the spine *observe → decide → act → record*.

Divided by subject: `inventory` (the host, the stores, the model files), `activity` (what programs do there),
`prewarm`, `explain`, `evict`, `replay`, `upkeep` (what is done unasked after a look, `automatic`), and `jobs` and
`events` (what goes on and what is said about it).  Everything that blocks runs in threads.  Two locks order the work:
``storing`` is held while a store is scanned or entries are removed, ``changing`` while one model runs or one eviction
plan is carried out.
"""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import __version__
from xpucached.catalog.defects import note_defects
from xpucached.catalog.entries import entry_page, find_entry
from xpucached.catalog.figures import catalog_summary
from xpucached.catalog.intents import fulfil, open_intents
from xpucached.catalog.models import add_model, all_models, find_model, remove_model
from xpucached.catalog.runs import close_lost_runs, newest_runs, note_ending
from xpucached.catalog.stores import all_stores
from xpucached.catalog.surveys import driver_changes
from xpucached.domain.activity import Watching
from xpucached.domain.models import Model, Workload
from xpucached.domain.plans import EvictReason
from xpucached.domain.status import Status
from xpucached.domain.triggers import DriverChanged, ModelsChanged, Periodic, Started, StoreChanged
from xpucached.errors import CatalogError, Conflict, HostError, NotFound, RequestError, no_model
from xpucached.host import simulated_gpu
from xpucached.kinds import table
from xpucached.planning import verdict as verdicts
from xpucached.service import automatic
from xpucached.service.activity import ActivityTracker
from xpucached.service.compare import EntryComparer
from xpucached.service.events import Events
from xpucached.service.evict import Evictor
from xpucached.service.explain import Explainer
from xpucached.service.inventory import Inventory
from xpucached.service.jobs import Jobs
from xpucached.service.paths import real_path, real_path_if_any
from xpucached.service.prewarm import Prewarmer
from xpucached.service.problems import ClockGuard, catalog_failing, catalog_rebuilt, clock_jumped, not_watched
from xpucached.service.replay import Replayer, ReplayRequest
from xpucached.service.trash import TrashKeeper
from xpucached.service.upkeep import Upkeep
from xpucached.service.verify import Verifier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from xpucached import api
    from xpucached.catalog import Catalog
    from xpucached.catalog.figures import Summary
    from xpucached.domain.activity import FileEvent, WatchMode
    from xpucached.domain.diagnosis import Baseline, Diagnosis
    from xpucached.domain.host import DriverChange, Host, Problem
    from xpucached.domain.jobs import Event, Job
    from xpucached.domain.models import ModelStatus, Run
    from xpucached.domain.names import JobId, ModelName
    from xpucached.domain.plans import IndexedEntry, ScanReport
    from xpucached.domain.queries import EntryPage, EntryQuery
    from xpucached.domain.stores import StoreStatus
    from xpucached.domain.trash import Trashed, VerifyReport
    from xpucached.domain.triggers import Trigger
    from xpucached.processes.supervised import ProcessStarter
    from xpucached.service.events import Clock
    from xpucached.service.jobs import Handle
    from xpucached.settings import Settings

_RETRY: Final = 5.0
_LONGEST_RETRY: Final = 600.0
"""Seconds after which to look again when a part of a look has failed: each time twice as many, up to this."""

log = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


async def _nothing() -> None:
    """Do nothing."""


class Service:
    """The daemon's verbs.  Used from one event loop."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        starter: ProcessStarter,
        base: Mapping[str, str],
        clock: Clock = _now,
    ) -> None:
        """``base`` is the environment of this process, for finding the stores of its user."""
        self.events = Events(clock, catalog)
        self._clock = clock
        self._catalog = catalog
        self._starter = starter
        self._jobs = Jobs(clock)
        changing = asyncio.Lock()
        self._inventory = Inventory(settings, catalog, base, clock, self.events)
        self._prewarmer = Prewarmer(self._inventory, starter, changing)
        self._replayer = Replayer(self._inventory, starter, changing)
        self._explainer = Explainer(self._inventory, self._prewarmer)
        self._trash_keeper = TrashKeeper(self._inventory, changing, self._steady)
        self._evictor = Evictor(self._inventory, self._prewarmer, self._trash_keeper, changing)
        self._verifier = Verifier(self._inventory, EntryComparer(self._inventory, starter), changing)
        self._tracker = ActivityTracker(self._inventory)
        self._watching = Watching()
        self._started = clock()
        self._ready = False
        self._looking = asyncio.Lock()
        self.automatic = automatic.AutomaticWork(self._inventory)
        self._upkeep = Upkeep(
            self._inventory,
            self._jobs,
            self.automatic,
            self._prewarmer,
            self._replayer,
            self._evictor,
            self._verifier,
            self._trash_keeper,
            changing,
            self._steady,
        )
        self._examining: asyncio.Task[None] | None = None
        self._missed = 0
        self._daemon_problems: tuple[Problem, ...] = ()
        self._steadiness = ClockGuard(clock)
        self._last_status: Status | None = None
        self._watched_drivers: tuple[Mapping[str, str], ...] = ()
        self.on_look: Callable[[], None] = lambda: None
        """What the daemon does when somebody says that something may have changed."""
        self.on_scan: Callable[[], Awaitable[None]] = _nothing
        """What the daemon does when stores were looked at because somebody asked."""
        if catalog.rebuilt:
            self._say_rebuilt(catalog.rebuilt)

    # -- the way from a wake to a changed host ------------------------------------------------------------------------

    async def recover(self) -> None:
        """Finish what a predecessor that was killed had begun, and say anew what the kinds know of defects."""
        await asyncio.to_thread(self._catalog.write, note_defects, table.defects())
        orphans = await self._starter.end_orphans()
        lost = await asyncio.to_thread(self._catalog.write, close_lost_runs, self._clock())
        intents = await asyncio.to_thread(self._catalog.read, open_intents)
        await asyncio.to_thread(table.sweep, intents)
        await asyncio.to_thread(self._catalog.write, fulfil, intents)
        if orphans or lost or intents:
            log.info("recovered: %d processes ended, %d runs lost, %d removals looked at", orphans, lost, len(intents))

    async def reconcile(self, triggers: Iterable[Trigger]) -> float | None:
        """Look at what may have changed, then see that models are warm, and then that the stale goes.

        Each part for itself: what fails is shown, and stops no other.  Gives the seconds after which to look again, if
        something is not settled yet.
        """
        parts, inventory, renewed = self.automatic, self._inventory, False
        async with parts.part(automatic.CATALOG):
            if renewed := await asyncio.to_thread(self._catalog.mend):
                self._say_rebuilt(self._catalog.rebuilt or "")
        if not self._catalog.examined and (self._examining is None or self._examining.done()):
            self._examining = asyncio.create_task(self._examine(), name="examine")
        triggers = frozenset(triggers)
        kinds = {type(trigger) for trigger in triggers}
        whole = renewed or bool(kinds & {Started, DriverChanged, Periodic})  # a new catalog knows no store yet
        async with self._looking:
            if whole or ModelsChanged in kinds:
                async with parts.part(automatic.MODELS):
                    await inventory.load_models()
                async with parts.part(automatic.SURVEY):
                    # Models' own variables say which drivers there are to be asked.
                    await inventory.survey(force=Started in kinds)
                async with parts.part(automatic.RUNTIMES):
                    await self._explainer.look()
            async with parts.part(automatic.SCAN):
                await self._look_at_stores(triggers, booted=Started in kinds, whole=whole)
        self._ready = True
        self._prewarmer.throttle.booting = self._prewarmer.throttle.booting or Started in kinds
        self._upkeep.begin(whole=whole)
        self._missed = self._missed + 1 if parts.failing & automatic.LOOKS else 0
        again = min(_RETRY * 2.0 ** (self._missed - 1), _LONGEST_RETRY) if self._missed else None
        return min((one for one in (again, inventory.unsettled) if one is not None), default=None)

    async def _look_at_stores(self, triggers: frozenset[Trigger], *, booted: bool, whole: bool) -> None:
        if booted:
            # With a million entries this takes a while, and people want to see how far it is.
            await self._jobs.attend("scan", lambda handle: self._inventory.scan_stores(progress=handle.progress))
        elif whole:
            await self._inventory.scan_stores()
        elif not self._replayer.busy:
            # A replay looks at its stores when it is done; looking after each entry takes the compilers' time.
            known = {status.store for status in await self.stores()}
            touched = frozenset(trigger.root for trigger in triggers if isinstance(trigger, StoreChanged)) & known
            if touched:
                await self._inventory.scan_stores(touched)

    async def _examine(self) -> None:
        """Read a large catalog to its end beside the work; what is corrupt is set aside by the look that follows."""
        async with self.automatic.part(automatic.CATALOG):
            try:
                await asyncio.to_thread(self._catalog.examine)
            except CatalogError as error:
                log.warning("%s", error.message)
                if self._catalog.corrupt:
                    self.on_look()

    def _steady(self) -> bool:
        """Tell whether ages may be believed: the clock was not set a short while ago."""
        self.mind_the_clock()
        return not self._steadiness.distrusted

    async def stop(self) -> None:
        """No new work; what runs is ended and recorded as cancelled, also if we are killed before that is done."""
        try:
            await asyncio.to_thread(self._catalog.write, note_ending)
        except CatalogError as error:
            log.warning("runs that go on could not be noted as ended by us: %s", error.message)
        await self._upkeep.stop()
        if self._examining is not None:
            self._examining.cancel()
            await asyncio.wait([self._examining])
        await self._jobs.stop()
        await self.digest(last=True)
        await self.events.flush(last=True)

    @property
    def busy(self) -> bool:
        """Whether something goes on, or has yet to begin."""
        return not self._ready or self._upkeep.busy or bool(self._jobs.running())

    @property
    def ailing(self) -> bool:
        """Whether the catalog failed when it was last used: then it is worth a try to look again."""
        return self._catalog.trouble is not None

    def mind_the_clock(self) -> int:
        """Notice that the clock was set, and trust no ages for a while; give how often that has happened."""
        jump = self._steadiness.jumped()
        if jump is not None:
            problem = clock_jumped(jump)
            log.warning("%s", problem.message)
            self.events.post("clock-jumped", problem.message, {"seconds": f"{jump:.0f}"})
            self._inventory.problem_list.note(problem)
        elif not self._steadiness.distrusted:
            self._inventory.problem_list.clear("clock-jumped")
        return self._steadiness.jumps

    def take_touch(self, file_event: FileEvent) -> bool:
        """Hear what a process did in a store; from any thread.  Tell whether it is half an entry: more follows."""
        self._inventory.take_touch(file_event)
        return self._tracker.take(file_event)

    def _watched(self) -> Watching:
        return replace(self._watching, compiled=self._tracker.compiled, compiling=self._tracker.compiling)

    async def digest(self, *, last: bool = False) -> None:
        """See what programs did in the stores since this was last asked; with ``last`` it is not asked again."""
        async with self.automatic.part(automatic.ACTIVITY):
            await self._tracker.digest(last=last)

    def take_watch(self, mode: WatchMode, reason: str, *, loads: bool, unwatched: str) -> None:
        """Hear how changes are noticed, why not better, and why not everything is watched; empty if all is."""
        self._watching = Watching(mode, reason, loads)
        if unwatched:
            self._inventory.problem_list.note(not_watched(unwatched))
        else:
            self._inventory.problem_list.clear("not-watched")

    def _say_rebuilt(self, message: str) -> None:
        log.warning("%s", message)
        self.events.post("catalog-rebuilt", message)
        self._inventory.problem_list.note(catalog_rebuilt(message))

    def take_settings(self, settings: Settings, problems: tuple[Problem, ...] = ()) -> None:
        """Go on with other settings, or with the same and what is wrong with the new ones."""
        self._inventory.settings = settings
        self._daemon_problems = problems

    # -- verbs --------------------------------------------------------------------------------------------------------

    async def prewarm(self, request: api.PrewarmModels) -> Job:
        """Warm models: those named, all, or those that need it; see `api.PrewarmModels`."""
        if not self._ready:
            # A service that waits for its model may ask before we have looked at anything; what the catalog says of
            # the stores is from before the host was off.
            async with self._looking:
                await self._inventory.load_models()
                await self._inventory.survey()
                await self._inventory.scan_stores()
        models = await asyncio.to_thread(self._catalog.read, all_models)
        known = frozenset(model.name for model in models)
        for name in request.models:
            if name not in known:
                raise no_model(name, known)
        if self._inventory.host is None:
            # Asked in the first second of our life: look first, rather than refuse.
            await self._inventory.survey()
        elsewhere = any(
            model.workload.exercise.elsewhere for model in models if not request.models or model.name in request.models
        )
        if not (self._inventory.present.offered or elsewhere):
            raise HostError("this host has no device to warm models on", hint="see: xpucachectl devices")
        named = None if request.stale else frozenset(request.models) or known
        return self._jobs.start("prewarm", self._prewarmer.work(named, force=request.force))

    async def replay(self, request: api.ReplayEntries) -> Job:
        """Rebuild entries for the present driver; see `api.ReplayEntries`."""
        known = frozenset(model.name for model in await asyncio.to_thread(self._catalog.read, all_models))
        for name in request.models:
            if name not in known:
                raise no_model(name, known)
        present = self._inventory.present.offered
        if request.device is not None:
            simulated_gpu.pretend(request.device)
        if request.driver_root is None and request.device is None:
            if not present:
                raise HostError("this host has no driver to rebuild entries with", hint="see: xpucachectl devices")
            if request.to is not None and not any(one.fingerprint.startswith(request.to) for one in present):
                raise NotFound(f"no environment {request.to} on this host", hint="see: xpucachectl devices")
        roots = frozenset([await real_path(path) for path in request.stores])
        wish = ReplayRequest(
            roots,
            frozenset(request.models),
            request.to,
            request.driver_root,
            request.device,
            await real_path_if_any(request.into),
            await real_path_if_any(request.driver_cache),
        )
        return self._jobs.start("replay", self._replayer.work(wish, dry_run=request.dry_run))

    async def evict(self, request: api.EvictEntries) -> Job:
        """Evict what the policy lets go; see `api.EvictEntries`."""
        for reason in request.reasons:
            if reason not in set(EvictReason):
                raise RequestError(f"reasons: unknown reason {reason!r}", hint=f"expected: {', '.join(EvictReason)}")
        if request.refs:
            _, kept = await self._evictor.named(request.refs)
            for entry, why in kept.items():
                raise Conflict(f"{entry.ref} stays: {why}", hint=f"see: xpucachectl show {entry.ref}")
        work = self._evictor.work(request.refs, request.reasons, dry_run=request.dry_run, plan_id=request.plan)
        return self._jobs.start("evict", self._verifier.before(work, lambda: self._evictor.damaged(request)))

    async def verify(self, request: api.VerifyStores) -> Job:
        """Read everything again and say what is wrong; see `api.VerifyStores`."""
        roots = frozenset([await real_path(path) for path in request.stores])
        verifier = self._verifier.work(roots, fix=request.fix, faults_only=request.faults_only, deep=request.deep)

        async def work(handle: Handle) -> VerifyReport:
            report = await verifier(handle)
            status = await self.status()
            return replace(report, watching=status.watching, problems=status.problems)

        return self._jobs.start("verify", work)

    async def scrub(self) -> None:
        """Read the next part of the stores again."""
        async with self.automatic.part(automatic.SCRUB):
            await self._verifier.scrub()

    async def trash(self) -> tuple[Trashed, ...]:
        """Give what is in the trash."""
        return await self._trash_keeper.all()

    async def restore(self, request: api.RestoreTrash) -> Job:
        """Bring entries back; see `api.RestoreTrash`."""
        return self._jobs.start("restore", self._trash_keeper.restoring(request.refs, everything=request.all))

    async def empty(self, request: api.EmptyTrash) -> Job:
        """Let go for good; see `api.EmptyTrash`."""
        return self._jobs.start("empty", self._trash_keeper.emptying(request.refs))

    async def scan(self, request: api.ScanStores) -> Job:
        """Look at stores now; see `api.ScanStores`."""

        async def work(handle: Handle) -> ScanReport:
            roots = frozenset([await real_path(path) for path in request.stores])
            if not roots:
                await self._inventory.load_models()
                await self._inventory.survey()
            report = await self._inventory.scan_stores(
                roots, full=request.full, thorough=True, progress=handle.progress
            )
            await self.on_scan()
            return report

        return self._jobs.start("scan", work)

    async def look_again(self) -> None:
        """Look again at the host, soon; see `api.LookAgain`."""
        # Files that are no driver's decide, too, whether one can be loaded: so the driver is asked, changed or not.
        self._inventory.ask_driver()
        self.on_look()

    async def add_model(self, request: api.AddModel) -> ModelStatus:
        """Register a model, or with ``replace`` change it."""
        known = {model.name: model for model in await asyncio.to_thread(self._catalog.read, all_models)}
        old = known.get(request.name)
        if old is not None and old.source != "socket":
            raise Conflict(f"{request.name} is declared in {old.source}", hint="change that file instead")
        if old is not None and not request.replace:
            raise Conflict(f"a model {request.name} is registered already", hint="give --replace to change it")
        workload = Workload(
            request.command, request.directory, dict(request.variables), request.timeout, request.exercise
        )
        model = Model(request.name, workload, request.store, request.priority, request.pinned, before=request.before)
        await asyncio.to_thread(self._inventory.refuse_foreign, model)
        await asyncio.to_thread(self._catalog.write, add_model, model)
        await self._meet_drivers()
        self.events.post("model-added", request.name, {"model": request.name})
        return await self.model(request.name)

    async def remove_model(self, name: ModelName) -> None:
        """Forget a model; its entries stay until the policy lets them go."""
        model = await asyncio.to_thread(self._catalog.read, find_model, name)
        if model.source != "socket":
            raise Conflict(f"{name} is declared in {model.source}", hint="remove that file instead")
        await asyncio.to_thread(self._catalog.write, remove_model, name)
        await self._meet_drivers()
        self.events.post("model-removed", name, {"model": name})

    async def _meet_drivers(self) -> None:
        """Ask drivers that nobody has asked yet: a model's own variables may lead to one."""
        if self._inventory.host is not None:
            await self._inventory.survey()
            if self._inventory.driver_variables != self._watched_drivers:
                await self.on_scan()

    async def cancel(self, id: JobId) -> Job:  # noqa: A002 - the word of the wire
        """End a job."""
        return await self._jobs.cancel(id)

    # -- questions ----------------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """Tell how this host stands; by what was known before, if the catalog fails."""
        try:
            status = self._last_status = await self._status()
        except CatalogError as error:
            if self._last_status is None:
                raise
            problem = catalog_failing(error.message, error.hint)
            others = tuple(one for one in self._last_status.problems if one.code != problem.code)
            status = replace(self._last_status, problems=(*others, problem))
        return status

    async def _status(self) -> Status:
        inventory, catalog = self._inventory, self._catalog

        def look() -> tuple[tuple[ModelStatus, ...], Summary, tuple[StoreStatus, ...], tuple[DriverChange, ...]]:
            # One way into a thread and back: while a scan has the processor, each way costs milliseconds.
            with catalog.moment():
                return (
                    self._prewarmer.statuses_now(),
                    catalog.read(catalog_summary),
                    catalog.read(all_stores),
                    catalog.read(driver_changes, 5),
                )

        models, summary, stores, changes = await asyncio.to_thread(look)
        trouble = self._catalog.trouble
        problems = (
            *((*inventory.host.problems, *verdicts.of_drivers(inventory.host)) if inventory.host else ()),
            *inventory.model_problems,
            *inventory.foreign_stores,
            *self._explainer.problems(models),
            *self._daemon_problems,
            *inventory.problem_list.all(),
            *([catalog_failing(trouble.message, trouble.hint)] if trouble else []),
        )
        verdict, sentence = verdicts.verdict(inventory.host, models, problems, starting=not self._ready)
        return Status(
            __version__,
            verdict,
            sentence,
            os.getpid(),
            self._started,
            inventory.host,
            problems,
            summary.entries,
            summary.defective,
            summary.allocated,
            summary.stale,
            stores,
            models,
            self._jobs.running(),
            changes,
            self._watched(),
        )

    async def devices(self) -> Host:
        """Give what the last survey found."""
        if self._inventory.host is None:
            raise HostError("the host has not been looked at yet", hint="ask again in a few seconds")
        return self._inventory.host

    async def stores(self) -> tuple[StoreStatus, ...]:
        """Give the stores as the last look saw them."""
        return await asyncio.to_thread(self._catalog.read, all_stores)

    def driver_variables(self) -> tuple[Mapping[str, str], ...]:
        """Give the variables that lead to each driver in use: where changes of drivers are to be watched for."""
        self._watched_drivers = self._inventory.driver_variables
        return self._watched_drivers

    async def places(self) -> tuple[Path, ...]:
        """Give the roots of the stores that a look at all of them goes to."""
        return await asyncio.to_thread(self._inventory.places)

    async def entries(self, query: EntryQuery) -> EntryPage:
        """Give the entries that fit."""
        present = frozenset(one.fingerprint for one in self._inventory.present.offered)
        return await asyncio.to_thread(self._catalog.read, entry_page, query, present=present, now=self._clock())

    async def entry(self, ref: str) -> IndexedEntry:
        """Give one entry."""
        return await asyncio.to_thread(self._catalog.read, find_entry, ref)

    async def models(self) -> tuple[ModelStatus, ...]:
        """Give every model and how it stands."""
        return await self._prewarmer.statuses()

    async def model(self, name: ModelName) -> ModelStatus:
        """Give one model and how it stands."""
        statuses = await self.models()
        for status in statuses:
            if status.model.name == name:
                return status
        raise no_model(name, (status.model.name for status in statuses))

    async def runs(self, model: ModelName | None, limit: int) -> tuple[Run, ...]:
        """Give the newest runs."""
        if model is not None:
            await asyncio.to_thread(self._catalog.read, find_model, model)
        return await asyncio.to_thread(self._catalog.read, newest_runs, model, limit)

    async def jobs(self) -> tuple[Job, ...]:
        """Give the jobs that are remembered."""
        return self._jobs.all()

    async def job(self, id: JobId) -> Job:  # noqa: A002 - the word of the wire
        """Give one job."""
        return self._jobs.job(id)

    async def wait(self, id: JobId, timeout: float) -> Job:  # noqa: A002, ASYNC109 - the words of the wire
        """Give one job once it is over, or as it is after ``timeout`` seconds."""
        return await self._jobs.wait(id, timeout)

    async def config(self) -> Mapping[str, str]:
        """Give the settings in effect."""
        return self._inventory.settings.shown()

    async def env(self, model: ModelName | None) -> Mapping[str, str]:
        """Give the variables that make a program use the cache."""
        if model is None:
            return self._inventory.variables(await asyncio.to_thread(self._inventory.managed))
        return await self._explainer.variables(model)

    async def why(self, name: ModelName) -> Diagnosis:
        """Say why a model is cold or slow."""
        return await self._explainer.diagnose(name)

    async def history(self, name: ModelName) -> tuple[Baseline, ...]:
        """Give a model's figures over its last runs."""
        return await self._explainer.history(name)

    async def events_since(self, since: int) -> tuple[Event, ...]:
        """Give the events after one."""
        return await self.events.since(since)

    def subscribe(self, since: int) -> AsyncIterator[Event]:
        """Give the events after one, and each that comes."""
        return self.events.subscribe(since)
