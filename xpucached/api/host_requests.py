"""Door: what one may ask the host's daemon, which has no store of its own; and what it may ask a user's worker.

What is asked of one user's worker goes through it under ``/v1/users/USER/…``, with the rest of the path as the worker
has it; see `is_tending` for what it passes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from xpucached.api import looking, requests
from xpucached.api.endpoints import Request, Right, endpoint, row
from xpucached.domain.host_overview import HostOverview
from xpucached.domain.users import HostStatus, UserSocket


@endpoint("GET", "/v1/host")
class GetHost(Request[HostStatus], frozen=True, kw_only=True):
    """Ask how the host stands, and each user; who is no administrator sees himself."""


@endpoint("GET", "/v1/overview")
class GetHostOverview(Request[HostOverview], frozen=True, kw_only=True):
    """Ask for all that there is to look at of the host, in one document: which user has what, as last said."""


@endpoint("POST", "/v1/wake", right=Right.CHANGE)
class WakeWorker(Request[UserSocket], frozen=True, kw_only=True):
    """Start a user's worker if it sleeps, and give its socket, which answers now; ``user`` null is the caller."""

    user: str | None = None


@endpoint("POST", "/v1/aside", right=Right.CHANGE, status=202)
class StepAside(Request[None], frozen=True, kw_only=True):
    """Say, as a worker, that its user runs a daemon of their own, so that the worker ends."""


WHO: Final[Mapping[type[Request[object]], str]] = {
    requests.GetHello: "all",
    GetHost: "all; without rights only one's own row",
    GetHostOverview: "the same",
    WakeWorker: "the user, administrators",
    StepAside: "all for themselves",
    requests.Refresh: "administrators",
    requests.PrewarmModels: "all for themselves, administrators; of the one user whose models these are, see below",
    requests.GetJob: "whose job it is, administrators; of those that this daemon began",
    requests.WaitJob: "the same",
}
"""Everything one may ask the host's daemon itself, and who may, in words; `server.hosting` sees to it."""

ENDPOINTS: Final = tuple(map(row, WHO))

USERS: Final = "/v1/users/"

_HARMLESS: Final = (
    requests.GetHello,
    requests.GetStatus,
    requests.GetSummary,
    requests.ListDevices,
    requests.ListStores,
    requests.ListModels,
    requests.GetModel,
    requests.GetWhy,
    requests.GetHistory,
    requests.ListRuns,
    requests.ListJobs,
    requests.GetJob,
    requests.WaitJob,
    requests.Refresh,
    requests.PrewarmModels,
    looking.GetUsage,
    looking.ListDays,
    looking.ListWarmth,
    looking.GetEvictable,
    looking.GetOverview,
    looking.GetMetrics,
)


def is_polling(asked: Request[object]) -> bool:
    """Return whether a request is one that the host's daemon makes of a worker by itself, while nobody waits for it."""
    return isinstance(asked, requests.GetSummary | requests.Refresh)


def is_tending(asked: Request[object]) -> bool:
    """Return whether a request is one that the host's daemon may make of a worker.

    It may look at how things stand, and ask for what is registered there by name; a path, an entry, a command, a
    setting or a repair is not its to choose.
    """
    if isinstance(asked, _HARMLESS):
        return True
    # The rest as the user's own policy would do it by itself, only now.
    if isinstance(asked, requests.EvictEntries):
        return asked in {requests.EvictEntries(), requests.EvictEntries(dry_run=True)}
    if isinstance(asked, requests.ReplayEntries):
        return asked == requests.ReplayEntries(models=asked.models, dry_run=asked.dry_run)
    if isinstance(asked, requests.ScanStores):
        return not asked.stores
    return False
