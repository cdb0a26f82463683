"""Door: what one may ask the host's daemon, which has no store of its own; and what it may ask a user's worker.

What is asked of one user's worker goes through it under ``/v1/users/USER/…``, with the rest of the path as the worker
has it; see `is_tending` for what it passes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xpucached import api
from xpucached.api import Endpoint, Request, Right
from xpucached.domain.jobs import Job
from xpucached.domain.users import HostStatus, UserSocket


@dataclass(frozen=True, slots=True, kw_only=True)
class GetHost(Request[HostStatus]):
    """Ask how the host stands, and each user; who is no administrator sees himself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeWorker(Request[UserSocket]):
    """Start a user's worker if it sleeps, and give its socket; None is the caller."""

    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAside(Request[None]):
    """Say, as a worker, that its user runs a daemon himself, so that the worker ends."""


ENDPOINTS: Final = (
    Endpoint("GET", "/v1", api.GetHello, api.Hello),
    Endpoint("GET", "/v1/host", GetHost, HostStatus),
    Endpoint("POST", "/v1/wake", WakeWorker, UserSocket, Right.CHANGE),
    Endpoint("POST", "/v1/aside", StepAside, None, Right.CHANGE, 202),
    Endpoint("POST", "/v1/refresh", api.Refresh, None, Right.CHANGE, 202),
    Endpoint("POST", "/v1/prewarm", api.PrewarmModels, Job, Right.CHANGE, 202, "/v1/jobs/{id}"),
    Endpoint("GET", "/v1/jobs/{id}", api.GetJob, Job),
    Endpoint("GET", "/v1/jobs/{id}/wait", api.WaitJob, Job),
)
"""Everything one may ask the host's daemon itself."""

USERS: Final = "/v1/users/"

_HARMLESS: Final = (
    api.GetHello,
    api.GetStatus,
    api.ListDevices,
    api.ListStores,
    api.ListModels,
    api.GetModel,
    api.GetWhy,
    api.GetHistory,
    api.ListRuns,
    api.ListJobs,
    api.GetJob,
    api.WaitJob,
    api.Refresh,
    api.PrewarmModels,
)


def is_tending(asked: Request[object]) -> bool:
    """Tell whether a request is one that the host's daemon may make of a worker.

    It may look at how things stand, and ask for what is registered there by name; a path, an entry, a command, a
    setting or a repair is not its to choose.
    """
    if isinstance(asked, _HARMLESS):
        return True
    # The rest as the user's own policy would do it by itself, only now.
    if isinstance(asked, api.EvictEntries):
        return asked in {api.EvictEntries(), api.EvictEntries(dry_run=True)}
    if isinstance(asked, api.ReplayEntries):
        return asked == api.ReplayEntries(models=asked.models, dry_run=asked.dry_run)
    if isinstance(asked, api.ScanStores):
        return not asked.stores
    return False


api.register(ENDPOINTS)
