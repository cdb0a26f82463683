"""Which function answers which request."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Final, TypeVar, cast

from msgspec.structs import replace

from xpucached import __version__, codec
from xpucached.api import imports, looking, openapi, requests
from xpucached.api.endpoints import VERSION, Request
from xpucached.catalog import days
from xpucached.catalog.builds import record_import
from xpucached.catalog.entries import entry_page, find_entry
from xpucached.catalog.models import find_model
from xpucached.catalog.runs import newest_runs
from xpucached.catalog.stores import all_stores
from xpucached.domain.bundles import BundleSource
from xpucached.domain.plans import NoRecipe
from xpucached.errors import NotFound, RequestError
from xpucached.host import product_names
from xpucached.kinds.table import KINDS
from xpucached.planning.usage import estimated
from xpucached.render import metrics
from xpucached.service import Service, model_caches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from xpucached.domain.jobs import Event, Job
    from xpucached.domain.models import ModelStatus, Run
    from xpucached.domain.names import ModelName
    from xpucached.domain.overview import Overview
    from xpucached.domain.plans import IndexedEntry
    from xpucached.domain.queries import EntryPage
    from xpucached.domain.reports import PrewarmReport
    from xpucached.domain.stores import StoreStatus
    from xpucached.service.jobs import Handle

    Handler = Callable[[Service, Request[object]], object]

R = TypeVar("R", bound=Request[object])

_SOON: Final = 5.0
"""Seconds that who asks for a model waits for a look: after that, and for what speaks against it, in a job."""


@functools.cache
def _description() -> bytes:
    return codec.dumps(openapi.document(__version__))


async def _entries(service: Service, asked: requests.ListEntries) -> EntryPage:
    context = service.context
    present = frozenset(one.fingerprint for one in context.present.offered)
    query = asked.query
    if query.kind is not None and query.kind not in KINDS:
        raise RequestError(f"no kind of cache {query.kind!r}", hint=f"there are: {', '.join(sorted(KINDS))}")
    if query.architecture is not None:
        query = replace(query, architecture=_architectures(query.architecture))
    page = await context.read(entry_page, query, present=present, now=context.clock())
    return replace(page, entries=tuple(estimated(one, context.compile_rate) for one in page.entries))


def _architectures(given: str) -> str:
    """Return architectures with commas between, for products, generations and architectures that are named so."""
    return ",".join(",".join(product_names.architectures(one)) or one.strip() for one in given.split(","))


async def _stores(service: Service) -> tuple[StoreStatus, ...]:
    stores, at = await service.context.read(all_stores), service.context.clock()
    return (*stores, *(model_caches.as_store(one, at) for one in await service.caches.all()))


async def _model(service: Service, name: ModelName) -> ModelStatus:
    status = await service.prewarmer.status_of(name)
    caches = await asyncio.to_thread(service.caches.of, status.model)
    return replace(status, caches=caches, beyond=await service.explainer.beyond(status))


async def _add_model(service: Service, asked: requests.AddModel) -> ModelStatus:
    added = await service.models.add(asked)
    status = await service.prewarmer.status_of(asked.name)
    return replace(status, added=added, due=service.upkeep.due(status))


async def _runs(service: Service, asked: requests.ListRuns) -> tuple[Run, ...]:
    if asked.model is not None:
        await service.context.read(find_model, asked.model)
    return await service.context.read(newest_runs, asked.model, asked.limit)


async def _prewarm(service: Service, asked: requests.PrewarmModels) -> Job:
    jobs, looking = service.context.jobs, asyncio.create_task(service.reconciler.look_first())
    # Who does not wait for it does not hear how it failed either.
    looking.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        _, late = await asyncio.wait([looking], timeout=_SOON)
    except asyncio.CancelledError:
        looking.cancel()
        raise
    if not late:
        await looking
        return jobs.start("prewarm", await _warming(service, asked))

    async def work(handle: Handle) -> PrewarmReport:
        handle.progress(0, 0, "looking at this host and its stores")
        await looking
        return await (await _warming(service, asked))(handle)

    return jobs.start("prewarm", work)


async def _warming(service: Service, asked: requests.PrewarmModels) -> Callable[[Handle], Awaitable[PrewarmReport]]:
    # A serving unit asks in the first second after a boot: what replay can make is not compiled cold for it.
    try:
        return await service.prewarmer.asked(asked, service.replayer)
    except NotFound:
        # Its file may be newer than the last look.
        await service.models.load()
        return await service.prewarmer.asked(asked, service.replayer)


def _restore(service: Service, asked: requests.RestoreTrash) -> Job:
    return service.context.jobs.start("restore", service.trash.restoring(asked.refs, everything=asked.all))


async def _entry(service: Service, ref: str) -> IndexedEntry:
    found = await service.context.read(find_entry, ref)
    told = await asyncio.to_thread(service.context.recipe, found.entry)
    found = estimated(found, service.context.compile_rate)
    return replace(found, replay=told if isinstance(told, NoRecipe) else "possible")


async def _overview(service: Service) -> Overview:
    return await service.accountant.overview(await service.status.get())


async def _metrics(service: Service, asked: looking.GetMetrics) -> str:
    status = await service.status.get()
    overview = await service.accountant.overview(status)
    every_day = await service.context.read(days.since_the_beginning)
    openmetrics = asked.format is looking.MetricsFormat.OPENMETRICS
    return await asyncio.to_thread(metrics.metrics, status, overview, every_day, openmetrics=openmetrics)


async def _events(service: Service, asked: looking.ListEvents) -> tuple[Event, ...]:
    return await service.context.events.since(asked.since, wait=asked.wait)


async def _note_import(service: Service, asked: imports.NoteImport) -> Job:
    context, source = service.context, BundleSource(asked.signer, asked.signing_key, asked.digests)
    await context.write(record_import, asked.made, asked.bundle, source, context.clock())
    stores = tuple(sorted({one.store for one in asked.made}))
    return await service.reconciler.start_scan(requests.ScanStores(stores=stores))


async def _note_coming(service: Service, asked: imports.NoteComing) -> None:
    context, source = service.context, BundleSource(asked.signer, asked.signing_key, asked.digests)
    # What comes outlives a failure of the power, and so whose it is has to.
    await context.write_durably(record_import, asked.made, asked.bundle, source, context.clock(), coming=True)


def _empty(service: Service, asked: requests.EmptyTrash) -> Job:
    return service.context.jobs.start("empty", service.trash.emptying(asked.refs))


def _by(request: type[R], do: Callable[[Service, R], object]) -> tuple[type[Request[object]], Handler]:
    return request, cast("Handler", do)


HANDLERS: Final[Mapping[type[Request[object]], Handler]] = dict(
    (
        _by(requests.GetHello, lambda _service, _: requests.Hello(VERSION, __version__)),
        _by(requests.GetStatus, lambda service, _: service.status.get()),
        # Who answers makes a summary of it, of as much as its reader may see.
        _by(requests.GetSummary, lambda service, _: service.status.get()),
        _by(requests.ListDevices, lambda service, _: service.surveyor.devices()),
        _by(requests.ListStores, lambda service, _: _stores(service)),
        _by(requests.ListEntries, _entries),
        _by(requests.GetEntry, lambda service, asked: _entry(service, asked.ref)),
        _by(requests.ListModels, lambda service, _: service.prewarmer.statuses()),
        _by(requests.AddModel, _add_model),
        _by(requests.GetModel, lambda service, asked: _model(service, asked.name)),
        _by(requests.GetWhy, lambda service, asked: service.explainer.diagnose(asked.name)),
        _by(requests.GetHistory, lambda service, asked: service.explainer.history(asked.name)),
        _by(
            requests.RemoveModel,
            lambda service, asked: service.models.remove(
                asked.name, caches=bool(asked.caches), dry_run=bool(asked.dry_run)
            ),
        ),
        _by(requests.ListRuns, _runs),
        _by(requests.PrewarmModels, _prewarm),
        _by(requests.EvictEntries, lambda service, asked: service.evictor.start(asked)),
        _by(requests.ReplayEntries, lambda service, asked: service.replayer.start(asked)),
        _by(requests.VerifyStores, lambda service, asked: service.verifier.start(asked, service.status.get)),
        _by(requests.ListTrash, lambda service, _: service.trash.all()),
        _by(requests.RestoreTrash, _restore),
        _by(requests.EmptyTrash, _empty),
        _by(imports.NoteImport, _note_import),
        _by(imports.NoteComing, _note_coming),
        _by(requests.ScanStores, lambda service, asked: service.reconciler.start_scan(asked)),
        _by(requests.Refresh, lambda service, _: service.surveyor.look_again()),
        _by(requests.ListJobs, lambda service, _: service.context.jobs.all()),
        _by(requests.GetJob, lambda service, asked: service.context.jobs.job(asked.id)),
        _by(requests.WaitJob, lambda service, asked: service.context.jobs.wait(asked.id, asked.timeout)),
        _by(requests.CancelJob, lambda service, asked: service.context.jobs.cancel(asked.id)),
        _by(looking.ListEvents, _events),
        _by(looking.GetDiskUse, lambda service, _: service.disk.usage()),
        _by(requests.GetConfig, lambda service, _: service.context.settings.shown),
        _by(requests.GetEnv, lambda service, asked: service.explainer.variables(asked.model)),
        _by(looking.GetUsage, lambda service, asked: service.accountant.usage(asked.top)),
        _by(looking.ListDays, lambda service, asked: service.accountant.days(asked)),
        _by(looking.ListWarmth, lambda service, asked: service.accountant.warmth(asked)),
        _by(looking.GetEvictable, lambda service, _: service.accountant.evictable()),
        _by(looking.GetOverview, lambda service, _: _overview(service)),
        _by(looking.GetMetrics, _metrics),
        _by(looking.SeeShifts, lambda service, asked: service.shifts.seen(asked)),
        _by(requests.GetOpenApi, lambda _service, _: asyncio.to_thread(_description)),
    )
)


class Handlers:
    """What a user's daemon answers, as its server needs it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, asked: Request[object]) -> object:
        """Do what is asked.  Refusals are raised as `XpucachedError`."""
        answer = HANDLERS[type(asked)](self._service, asked)
        return await answer if inspect.isawaitable(answer) else answer

    def subscribe(self, since: int) -> AsyncIterator[Event]:
        """Return the events after ``since``, and then each new one, for ever."""
        return self._service.context.events.subscribe(since)
