"""How each answer is written for people: for `xpucachectl`, and by the daemons for who asks for text.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Generic, TypeVar, cast

from msgspec import Struct

from xpucached import codec
from xpucached.api import host_requests, looking, requests
from xpucached.api.endpoints import Request
from xpucached.domain import checks
from xpucached.domain.bounds import UNLIMITED
from xpucached.domain.queries import EntryPage
from xpucached.domain.status import Status
from xpucached.messages import Json
from xpucached.printing import plain, safe
from xpucached.render import diagnosis, disk, entries, host, host_usage, jobs, models, status, top, trash, usage, users
from xpucached.render.text import TextStyle, section

T = TypeVar("T")
Row = TypeVar("Row")

_FORMS: Final = frozenset({"all", "check", "lines", "part", "remarks", "settings", "typed", "usual"})
"""All names or nothing; one line for monitoring; variables, each in a line; a page though there are more; what belongs
above variables; what belongs below settings; settings as data; what belongs below a model.
"""

_WIDTH_DIGITS: Final = 7

_SETTING_DIGITS: Final = 20
"""Digits of a setting that is a number: whoever answers with more does not have it from a configuration."""


class Merged(Struct, Generic[Row], frozen=True):
    """How the lists of several users are written as one: with an owner for each row, and in which order."""

    write: Callable[[Sequence[Row], TextStyle, Sequence[str]], str]
    order: Callable[[Row], float] | None = None  #: None: user after user


class Look(Struct, Generic[T], frozen=True):
    """How one kind of answer is written: as text, as names only, and in what other forms there are."""

    text: Callable[[T, TextStyle], str | None]
    names: Callable[[T], str] | None = None  #: None where the text is all that there is
    further: Mapping[str, Callable[[T, TextStyle], str | None]] = {}
    merged: Merged[object] | None = None  #: None where one user's cannot stand beside another's

    def write(self, value: T, style: TextStyle) -> str:
        """Return the text, which may be empty."""
        return self.text(value, style) or ""


_LOOKS: Final[dict[object, Look[object]]] = {}


def _add(
    request: type[Request[T]],
    text: Callable[[T, TextStyle], str | None],
    names: Callable[[T], str] | None = None,
    merged: Merged[Row] | None = None,
    **further: Callable[[T, TextStyle], str | None],
) -> None:
    _LOOKS[request] = cast("Look[object]", Look(text, names, further, cast("Merged[object] | None", merged)))


def of(request: type[Request[T]]) -> Look[T]:
    """Return how the answer to a kind of request is written."""
    return cast("Look[T]", _LOOKS[request])


def written(request: type[Request[object]], value: object, look: str, now: datetime) -> str | None:
    """Write an answer as a header asks for it; None if it cannot be had so.

    ``look`` is ``plain`` or ``colour``, the form if it is not the usual text, and after a comma the terminal's columns.
    """
    found = _LOOKS.get(request)
    if found is None:
        return None
    how, _, columns = (part.strip() for part in look.partition(","))
    words = how.split()
    width = int(columns) if columns.isdecimal() and len(columns) <= _WIDTH_DIGITS else None
    style = TextStyle(now, width, "colour" in words)
    form = next((word for word in words if word in _FORMS), None)
    if "names" in words and form is None and found.names is not None:
        return found.names(value)
    return found.text(value, style) if form is None else found.further.get(form, _not_so)(value, style)


def _not_so(_value: object, _style: TextStyle) -> None:
    """Write nothing: an answer does not have every form."""


def _page(value: EntryPage, style: TextStyle) -> str | None:
    """Write the only page of entries; one of several is for who asks for the others as well."""
    return _part(value, style) if value.next is None else None


def _part(value: EntryPage, style: TextStyle) -> str:
    if not value.entries:
        return "no entries"
    return f"{entries.entries(value.entries, style)}\n{entries.entry_total(value, len(value.entries))}"


def _refs(value: EntryPage) -> str:
    return "\n".join(one.entry.id.ref for one in value.entries)


_OF_SETTINGS: Final = frozenset({"bad-settings", "models-away", "not-reloaded", "quota-too-small", "restart-needed"})
"""Codes of problems because of which the settings that are shown may not be what somebody wrote."""


def of_settings(value: Status, style: TextStyle) -> str:
    """Write the problems of the settings."""
    return host.problems([one for one in value.problems if one.code in _OF_SETTINGS], style)


def typed(values: Mapping[str, str]) -> dict[str, Json]:
    """Return settings as the configuration has them, each beside where it comes from."""
    # Each value is followed by that, in brackets; one in the path of a file has its blank spelled out.
    parted = {name: text.removesuffix(")").rpartition(" (") for name, text in values.items()}
    return {
        name: {"value": _value(value), "source": source.replace("\\x20(", " (")}
        for name, (value, _, source) in parted.items()
    }


def _value(value: str) -> Json:
    """Return a value as the configuration would have it: what is no text is none."""
    if value.isdecimal() and (value == "0" or value[0] != "0") and len(value) <= _SETTING_DIGITS:
        return int(value)
    return {"true": True, "false": False, UNLIMITED: None, "none": None}.get(value, value)


def _lines(value: Mapping[str, str], _style: TextStyle) -> str | None:
    """Write variables for who reads them line by line; None for any that is more than a line."""
    lines = [f"{name}={text}" for name, text in sorted(value.items())]
    return "\n".join(lines) if all(safe(line) == line for line in lines) else None


_add(requests.GetHello, lambda value, _style: plain(value.version))
_add(
    requests.GetStatus,
    status.status,
    lambda value: value.verdict,
    check=lambda value, style: status.monitoring(checks.check(value, style.now)),
    remarks=lambda value, _style: "\n".join(diagnosis.unsafe(value.problems)),
    settings=of_settings,
)
_add(requests.ListDevices, host.devices, lambda value: "\n".join(plain(one.name) for one in value.devices))
_add(
    requests.ListStores,
    entries.stores,
    lambda value: "\n".join(plain(str(one.store)) for one in value if one.cache is None),
    Merged(entries.stores),
)
_add(requests.ListEntries, _page, _refs, part=_part, all=lambda value, _style: None if value.next else _refs(value))
_add(requests.GetEntry, entries.entry, lambda value: value.entry.id.ref)
_add(
    requests.ListModels, models.models, lambda value: "\n".join(one.model.name for one in value), Merged(models.models)
)
_add(requests.GetModel, models.model, lambda value: value.model.name)
_add(
    requests.GetWhy,
    diagnosis.why,
    lambda value: "\n".join(one.cause for one in value.explanations[:1]),
    remarks=lambda value, _style: "\n".join(diagnosis.caution(value)),
)
_add(
    requests.GetHistory,
    diagnosis.history,
    lambda value: "\n".join(one.figure for one in value if one.worse),
    usual=lambda value, style: section("Usually", diagnosis.usual(value, style), style) if value else "",
)
_add(
    requests.ListRuns,
    models.runs,
    lambda value: "\n".join(str(one.id) for one in value),
    Merged(models.runs, lambda one: -one.started.timestamp()),
)
_add(
    requests.ListTrash,
    trash.trash,
    lambda value: "\n".join(one.ref for one in value),
    Merged(trash.trash, lambda one: -one.at.timestamp()),
)
_add(
    requests.ListJobs,
    jobs.jobs,
    lambda value: "\n".join(one.id for one in value),
    Merged(jobs.jobs, lambda one: one.created.timestamp()),
)
_add(requests.GetJob, jobs.job, lambda value: value.id)
_add(
    looking.ListEvents,
    lambda value, _style: "\n".join(map(jobs.event, value)) or "no events",
    merged=Merged(jobs.events_of, lambda one: one.at.timestamp()),
)
_add(looking.GetUsage, usage.usage, lambda value: "\n".join(one.model for one in value.models))
_add(looking.ListDays, usage.days, lambda value: "\n".join(one.day for one in value))
_add(looking.ListWarmth, usage.warmth, lambda value: "\n".join(str(one.id) for one in value))
_add(looking.SeeShifts, diagnosis.seen, lambda value: "\n".join(str(one.id) for one in value))
_add(looking.GetMetrics, lambda value, _style: value.rstrip("\n"))
_add(
    looking.GetOverview,
    lambda value, style: "\n".join(top.lines(value, style, height=None)),
    lambda value: value.verdict,
)
_add(looking.GetDiskUse, disk.disk, lambda value: "\n".join(one.name for one in value.models))
_add(
    requests.GetConfig,
    host.settings,
    lambda value: "\n".join(sorted(value)),
    typed=lambda value, _style: codec.dumps(typed(value)).decode("ascii"),
)
_add(requests.GetEnv, lambda _value, _style: None, None, lines=_lines)
_add(
    host_requests.GetHostOverview,
    host_usage.host_usage,
    lambda value: "\n".join(one.user for one in value.users),
)
_add(
    host_requests.GetHost,
    users.host_users,
    lambda value: "\n".join(one.user for one in value.users),
    check=lambda value, style: status.monitoring(checks.check_host(value, style.now)),
)
