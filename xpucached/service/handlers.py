"""Conduct: which method of the service answers which request."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Final, TypeVar, cast

from xpucached import __version__, api, codec
from xpucached.api import openapi
from xpucached.api.endpoints import VERSION, Request
from xpucached.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from xpucached.domain.jobs import Event

    Handler = Callable[[Service, Request[object]], Awaitable[object]]

R = TypeVar("R", bound=Request[object])


async def _hello(_service: Service, _asked: api.GetHello) -> api.Hello:
    return api.Hello(VERSION, __version__)


async def _describe(_service: Service, _asked: api.GetOpenApi) -> bytes:
    return await asyncio.to_thread(_description)


@functools.cache
def _description() -> bytes:
    return codec.dumps(openapi.document(__version__))


def _by(request: type[R], do: Callable[[Service, R], Awaitable[object]]) -> tuple[type[Request[object]], Handler]:
    return request, cast("Handler", do)


HANDLERS: Final[Mapping[type[Request[object]], Handler]] = dict(
    (
        _by(api.GetHello, _hello),
        _by(api.GetStatus, lambda service, _: service.status()),
        _by(api.ListDevices, lambda service, _: service.devices()),
        _by(api.ListStores, lambda service, _: service.stores()),
        _by(api.ListEntries, lambda service, asked: service.entries(asked.query)),
        _by(api.GetEntry, lambda service, asked: service.entry(asked.ref)),
        _by(api.ListModels, lambda service, _: service.models()),
        _by(api.AddModel, lambda service, asked: service.add_model(asked)),
        _by(api.GetModel, lambda service, asked: service.model(asked.name)),
        _by(api.GetWhy, lambda service, asked: service.why(asked.name)),
        _by(api.GetHistory, lambda service, asked: service.history(asked.name)),
        _by(api.RemoveModel, lambda service, asked: service.remove_model(asked.name)),
        _by(api.ListRuns, lambda service, asked: service.runs(asked.model, asked.limit)),
        _by(api.PrewarmModels, lambda service, asked: service.prewarm(asked)),
        _by(api.EvictEntries, lambda service, asked: service.evict(asked)),
        _by(api.ReplayEntries, lambda service, asked: service.replay(asked)),
        _by(api.VerifyStores, lambda service, asked: service.verify(asked)),
        _by(api.ListTrash, lambda service, _: service.trash()),
        _by(api.RestoreTrash, lambda service, asked: service.restore(asked)),
        _by(api.EmptyTrash, lambda service, asked: service.empty(asked)),
        _by(api.ScanStores, lambda service, asked: service.scan(asked)),
        _by(api.Refresh, lambda service, _: service.look_again()),
        _by(api.ListJobs, lambda service, _: service.jobs()),
        _by(api.GetJob, lambda service, asked: service.job(asked.id)),
        _by(api.WaitJob, lambda service, asked: service.wait(asked.id, asked.timeout)),
        _by(api.CancelJob, lambda service, asked: service.cancel(asked.id)),
        _by(api.ListEvents, lambda service, asked: service.events_since(asked.since)),
        _by(api.GetConfig, lambda service, _: service.config()),
        _by(api.GetEnv, lambda service, asked: service.env(asked.model)),
        _by(api.GetOpenApi, _describe),
    )
)


class Handlers:
    """What a user's daemon answers, as its server needs it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, asked: Request[object]) -> object:
        """Do what is asked.  Refusals are raised as `XpucachedError`."""
        return await HANDLERS[type(asked)](self._service, asked)

    def subscribe(self, since: int) -> AsyncIterator[Event]:
        """Give the events after ``since``, and then each new one, for ever."""
        return self._service.subscribe(since)
