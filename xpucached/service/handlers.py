"""Which function answers which request."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Final, TypeVar, cast

from xpucached import __version__, api, codec
from xpucached.api import openapi
from xpucached.api.endpoints import VERSION, Request
from xpucached.catalog.entries import entry_page, find_entry
from xpucached.catalog.models import find_model
from xpucached.catalog.runs import newest_runs
from xpucached.catalog.stores import all_stores
from xpucached.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from xpucached.domain.jobs import Event, Job
    from xpucached.domain.models import ModelStatus, Run
    from xpucached.domain.queries import EntryPage

    Handler = Callable[[Service, Request[object]], object]

R = TypeVar("R", bound=Request[object])


@functools.cache
def _description() -> bytes:
    return codec.dumps(openapi.document(__version__))


def _entries(service: Service, asked: api.ListEntries) -> Awaitable[EntryPage]:
    context = service.context
    present = frozenset(one.fingerprint for one in context.present.offered)
    return context.read(entry_page, asked.query, present=present, now=context.clock())


async def _add_model(service: Service, asked: api.AddModel) -> ModelStatus:
    await service.models.add(asked)
    return await service.prewarmer.status_of(asked.name)


async def _runs(service: Service, asked: api.ListRuns) -> tuple[Run, ...]:
    if asked.model is not None:
        await service.context.read(find_model, asked.model)
    return await service.context.read(newest_runs, asked.model, asked.limit)


async def _prewarm(service: Service, asked: api.PrewarmModels) -> Job:
    await service.reconciler.look_first()
    return await service.prewarmer.start(asked)


def _restore(service: Service, asked: api.RestoreTrash) -> Job:
    return service.context.jobs.start("restore", service.trash.restoring(asked.refs, everything=asked.all))


def _empty(service: Service, asked: api.EmptyTrash) -> Job:
    return service.context.jobs.start("empty", service.trash.emptying(asked.refs))


def _by(request: type[R], do: Callable[[Service, R], object]) -> tuple[type[Request[object]], Handler]:
    return request, cast("Handler", do)


HANDLERS: Final[Mapping[type[Request[object]], Handler]] = dict(
    (
        _by(api.GetHello, lambda _service, _: api.Hello(VERSION, __version__)),
        _by(api.GetStatus, lambda service, _: service.status.get()),
        _by(api.ListDevices, lambda service, _: service.surveyor.devices()),
        _by(api.ListStores, lambda service, _: service.context.read(all_stores)),
        _by(api.ListEntries, _entries),
        _by(api.GetEntry, lambda service, asked: service.context.read(find_entry, asked.ref)),
        _by(api.ListModels, lambda service, _: service.prewarmer.statuses()),
        _by(api.AddModel, _add_model),
        _by(api.GetModel, lambda service, asked: service.prewarmer.status_of(asked.name)),
        _by(api.GetWhy, lambda service, asked: service.explainer.diagnose(asked.name)),
        _by(api.GetHistory, lambda service, asked: service.explainer.history(asked.name)),
        _by(api.RemoveModel, lambda service, asked: service.models.remove(asked.name)),
        _by(api.ListRuns, _runs),
        _by(api.PrewarmModels, _prewarm),
        _by(api.EvictEntries, lambda service, asked: service.evictor.start(asked)),
        _by(api.ReplayEntries, lambda service, asked: service.replayer.start(asked)),
        _by(api.VerifyStores, lambda service, asked: service.verifier.start(asked, service.status.get)),
        _by(api.ListTrash, lambda service, _: service.trash.all()),
        _by(api.RestoreTrash, _restore),
        _by(api.EmptyTrash, _empty),
        _by(api.ScanStores, lambda service, asked: service.reconciler.start_scan(asked)),
        _by(api.Refresh, lambda service, _: service.surveyor.look_again()),
        _by(api.ListJobs, lambda service, _: service.context.jobs.all()),
        _by(api.GetJob, lambda service, asked: service.context.jobs.job(asked.id)),
        _by(api.WaitJob, lambda service, asked: service.context.jobs.wait(asked.id, asked.timeout)),
        _by(api.CancelJob, lambda service, asked: service.context.jobs.cancel(asked.id)),
        _by(api.ListEvents, lambda service, asked: service.context.events.since(asked.since)),
        _by(api.GetConfig, lambda service, _: service.context.settings.shown),
        _by(api.GetEnv, lambda service, asked: service.explainer.variables(asked.model)),
        _by(api.GetOpenApi, lambda _service, _: asyncio.to_thread(_description)),
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
        """Give the events after ``since``, and then each new one, for ever."""
        return self._service.context.events.subscribe(since)
