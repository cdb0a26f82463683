"""Door: lists of which one wants to see a part: by name, state and age, sorted, at most so many."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from xpucached import quantities
from xpucached.cli.option_values import LONGEST
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.models import ModelStatus, Outcome, Run, Warmth
from xpucached.domain.stores import StoreState, StoreStatus
from xpucached.domain.trash import Trashed
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from xpucached.api.endpoints import Request
    from xpucached.cli.output import Output

T = TypeVar("T")

_PATTERN: Final = re.compile(r"[*?\[]")
"""What no name of a model or job holds, and each pattern."""


class _List(Struct, frozen=True):
    """What rows of a list can be told apart by."""

    keys: tuple[str, ...]  #: by what it can be sorted
    states: tuple[str, ...] = ()
    patterns: bool = True
    limited: bool = False  #: whether the request has a limit of its own


class _Row(Struct, frozen=True):
    """What one row is told apart by."""

    name: str
    state: str
    size: int
    time: datetime | None


def _row(one: object) -> _Row:
    from xpucached.render.models import outcome_of  # noqa: PLC0415 - who declares options has no need of it

    match one:
        case ModelStatus():
            return _Row(one.model.name, one.warmth, one.allocated, one.run.started if one.run else None)
        case StoreStatus():
            return _Row(str(one.store), one.state, one.allocated, one.scanned)
        case Trashed():
            return _Row(one.ref, "", one.allocated, one.at)
        case Run():
            return _Row(one.model, outcome_of(one).text, 0, one.started)
        case Job():
            return _Row(one.kind, one.state, 0, one.created)
        case _:
            raise TypeError(type(one).__name__)


_LISTS: Final = {
    "model list": _List(("name", "state", "size", "time"), tuple(Warmth)),
    "stores": _List(("name", "state", "size", "time"), tuple(StoreState)),
    "trash list": _List(("name", "size", "time")),
    "runs": _List(("name", "state", "time"), ("running", *Outcome), patterns=False, limited=True),
    "jobs": _List(("name", "state", "time"), tuple(JobState), patterns=False),
}


def declare(parser: argparse.ArgumentParser, verb: str) -> None:
    """Declare the options of a list."""
    known = _LISTS[verb]
    group = parser.add_argument_group("which of them")
    if known.patterns:
        group.add_argument("patterns", nargs="*", metavar="PATTERN", help="only those with such names: 'llama*'")
    if known.states:
        group.add_argument(
            "--state", choices=[str(one) for one in known.states], metavar="STATE", help=", ".join(known.states)
        )
    group.add_argument("--since", type=_age, metavar="AGE", help="only those of the last 7d, 12h, …")
    group.add_argument("--sort", choices=known.keys, metavar="KEY", help=", ".join(known.keys))
    if not known.limited:
        group.add_argument("--limit", type=_count, metavar="N", help="at most so many")


def _age(text: str) -> float:
    try:
        return quantities.duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a count: {text!r}; expected 1 or more")
    return int(text)


def settle(options: argparse.Namespace) -> None:
    """Take the one name that a list may be asked for as a pattern, if it is one."""
    name = {"runs": "model", "jobs": "id"}.get(options.verb, "")
    given = getattr(options, name, None) if name else None
    if given is not None and _PATTERN.search(given):
        options.patterns = [given]
        setattr(options, name, None)


def is_asked(output: Output) -> bool:
    """Return whether only a part of a list is asked for."""
    known = _LISTS.get(output.options.verb)
    names = ("patterns", "state", "since", "sort", *(("limit",) if known is not None and not known.limited else ()))
    return known is not None and any(getattr(output.options, name, None) for name in names)


def most(output: Output) -> int:
    """Return how many rows to ask for where the request has a limit: what is left out here is no row of these."""
    from xpucached.api.looking import MAX_PAGE  # noqa: PLC0415 - who declares options has no need of it

    limit: int = output.options.limit
    return MAX_PAGE if is_asked(output) else limit


def refuse(output: Output) -> None:
    """Raise `RequestError` if only a part is asked for: of all users' lists there are no parts."""
    if is_asked(output):
        verb = output.options.verb
        raise RequestError(f"{verb} of all users cannot be narrowed", hint=f"say whose: xpucachectl --of USER {verb}")


def part(output: Output, request: Request[tuple[T, ...]]) -> int:
    """Ask for a list, and print the part of it that is wished for."""
    from xpucached import answers  # noqa: PLC0415 - who declares options has no need of it
    from xpucached.api.client import Answer  # noqa: PLC0415 - as above

    answer = output.client.call(request)
    if is_asked(output):
        rows = answer.data if isinstance(answer.data, list) else []
        kept = _kept(output, answer.value)
        if rows and not kept and not (output.json or output.quiet):
            # That there is none would be wrong.
            output.say("none of them matches")
            return 0
        answer = Answer([rows[index] for index in kept], answer.kind)
    look = answers.of(type(request))
    output.tell(answer, look.write, look.names)
    return 0


def _kept(output: Output, values: tuple[T, ...]) -> list[int]:
    """Return the places of what is wished for, in the order in which it is."""
    options, now = output.options, output.style.now
    rows = [_row(one) for one in values]
    kept = [at for at, row in enumerate(rows) if _fits(row, options, now)]
    match options.sort:
        # The largest and the newest come first.
        case "size":
            kept.sort(key=lambda at: -rows[at].size)
        case "time":
            kept.sort(key=lambda at: (rows[at].time or now - timedelta(seconds=LONGEST), -at), reverse=True)
        case "state":
            kept.sort(key=lambda at: rows[at].state)
        case "name":
            kept.sort(key=lambda at: rows[at].name)
    return kept[: options.limit] if options.limit else kept


def _fits(row: _Row, options: argparse.Namespace, now: datetime) -> bool:
    patterns: list[str] = getattr(options, "patterns", [])
    state: str | None = getattr(options, "state", None)
    begin = now - timedelta(seconds=min(options.since, LONGEST)) if options.since is not None else None
    named = not patterns or any(fnmatchcase(row.name, one) for one in patterns)
    return named and state in {None, row.state} and (begin is None or (row.time is not None and row.time >= begin))
