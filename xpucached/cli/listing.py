"""Door: `xpucachectl ls`, page by page: each is printed before the next one is asked for, and none is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import fields, replace

from xpucached import codec
from xpucached.api import requests
from xpucached.api.client import Answer
from xpucached.api.endpoints import VERSION
from xpucached.cli import connect, everyone
from xpucached.cli import option_values as values
from xpucached.cli.output import say
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.queries import EntryPage, EntryQuery
from xpucached.errors import NotFound, RequestError, Unavailable, XpucachedError
from xpucached.printing import plain
from xpucached.render import entries
from xpucached.render.entries import brief
from xpucached.render.text import count

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from xpucached.api.client import Client
    from xpucached.cli.output import Output
    from xpucached.messages import Json

_MOST_PAGES: Final = 10_000
"""Ten million entries, if they are full."""

_LONGEST_CURSOR: Final = 20

_FIRST: Final = 200
"""Entries of each user that are asked for at first, when all users are: these are held together."""


def ls(output: Output) -> int:
    """Print the entries that match; gives the exit status."""
    shown, last = 0, ""
    given = output.options
    narrowed = given.since is not None or bool(given.patterns)
    pages = _sorted(output) if given.sort is not None or narrowed else _pages(output.client, given)
    for answer in pages:
        page = answer.value
        if not shown and not page.entries:
            _check_names(output)
        before, shown = shown, shown + len(page.entries)
        if output.json:
            last = _dump(answer, "" if before else f'{{"api":{VERSION},"data":') + "}"
        elif output.quiet:
            say("\n".join(one.entry.id.ref for one in page.entries))
        elif page.entries:
            say(("\n" if before else "") + entries.entries(page.entries, output.style))
            last = entries.entry_total(page, shown)
        elif not shown:
            narrowed = narrowed or any(one is not None for one in _filters(given).values())
            last = "no entries match" if narrowed else "no entries"
    say(last)
    return 0


def _sorted(output: Output) -> Iterator[Answer[EntryPage]]:
    """Yield one page with those that were asked for, in the order in which they were; `RequestError` if too many match.

    The catalog gives entries in one order alone, so all that match are held here.
    """
    given, kind = output.options, cast("object", None)
    rows: list[tuple[IndexedEntry, Json]] = []
    limit, given.limit = given.limit, None
    held = 0
    for answer in _pages(output.client, given):
        total = max(answer.value.total, len(rows) + len(answer.value.entries))
        # What somebody else's daemon says it counts, and how long its entries are, is that user's word.
        held += len(codec.dumps(answer.data)) if given.of else 0
        if total > _MOST_SORTED or held > _MOST_HELD:
            many = f"{total} entries match, and at most {_MOST_SORTED} can be sorted"
            message = many if total > _MOST_SORTED else f"more than {_MOST_HELD >> 20} MiB of entries cannot be sorted"
            raise RequestError(message, hint="narrow them down: --store, --model, --driver, --size, …")
        data = answer.data["entries"] if isinstance(answer.data, dict) else []
        rows += zip(answer.value.entries, data if isinstance(data, list) else [], strict=True)
        kind = answer.kind
    if given.since is not None:
        begin = output.style.now - timedelta(seconds=min(given.since, values.LONGEST))
        rows = [row for row in rows if row[0].first_seen >= begin]
    if given.patterns:
        rows = [row for row in rows if any(fnmatchcase(name, one) for name in _names(row[0]) for one in given.patterns)]
    if given.sort is not None:
        # The largest, newest and dearest come first.
        rows.sort(key=lambda row: _KEYS[given.sort](row[0]), reverse=given.sort != "driver")
    total, size = len(rows), sum(one.entry.allocated for one, _ in rows)
    rows = rows[:limit]
    yield Answer({"entries": [data for _, data in rows], "total": total, "size": size, "next": None}, kind)


def _names(one: IndexedEntry) -> Iterator[str]:
    """Yield by what an entry may be named: by its ref, its kernels, and the models that use it."""
    yield one.entry.id.ref
    yield from one.models
    for kernel in one.entry.kernels:
        yield from (kernel.display, brief(kernel.display), kernel.name)


_MOST_SORTED: Final = 100_000
_MOST_HELD: Final = 128 << 20
"""Bytes of another user's entries: a hundred thousand of a usual length."""

_KEYS: Final[Mapping[str, Callable[[IndexedEntry], float | str]]] = {
    "size": lambda one: one.entry.allocated,
    "time": lambda one: one.first_seen.timestamp(),
    "used": lambda one: one.last_used.timestamp(),
    "cost": lambda one: one.cost or one.estimated or 0.0,
    "driver": lambda one: one.entry.environment.toolchain if one.entry.environment else "",
}


def of_everyone(output: Output) -> int:
    """Print the entries of all users that match, user after user; gives the exit status."""
    if output.options.sort is not None or output.options.since is not None or output.options.patterns:
        raise RequestError(
            "ls of all users cannot be sorted or narrowed by name or age", hint="say whose: xpucachectl --of USER ls"
        )
    parts = list(everyone.ask(output.client, _request(output.options, 0, None, _FIRST)))
    pages = [part.answer.value for part in parts if part.answer is not None]
    whole = EntryPage((), sum(page.total for page in pages), sum(page.size for page in pages), None)
    shown = 0
    print(f'{{"api":{VERSION},"data":{{"users":[' if output.json else "", end="")
    for number, part in enumerate(parts):
        print("," if output.json and number else "", end="")
        if part.answer is None:
            print(codec.dumps(part.data).decode("ascii") if output.json else "", end="")
            continue
        last, own = "", 0
        try:
            for answer in _of_one(output, part.user.user, part.answer, shown):
                last = _print_page(output, part, answer, first=not own, again=bool(shown))
                own, shown = own + len(answer.value.entries), shown + len(answer.value.entries)
        except XpucachedError as error:
            parts[number] = failed = everyone.UserAnswer[EntryPage](part.user, error=error)
            last = last or codec.dumps(failed.data).decode("ascii")[:-1]
        print(f"{last}}}" if output.json else "", end="")
    if output.json:
        print("]}}")
    elif not output.quiet:
        narrowed = any(one is not None for one in _filters(output.options).values())
        nothing = "no entries match" if narrowed else "no entries"
        say(f"{entries.entry_total(whole, shown)}, of {count(len(pages), 'user')}" if whole.total else nothing)
    return everyone.missing(parts)


def _print_page(
    output: Output, part: everyone.UserAnswer[EntryPage], answer: Answer[EntryPage], *, first: bool, again: bool
) -> str:
    """Print a page of one of several users; gives what stands behind that user's last one."""
    if output.json:
        whose = codec.dumps({"user": part.user.user, "uid": part.user.uid}).decode("ascii")[:-1]
        return _dump(answer, f'{whose},"data":' if first else "")
    page, owner = answer.value, part.user.user
    if output.quiet:
        say("\n".join(f"{plain(owner)}:{one.entry.id.ref}" for one in page.entries))
    elif page.entries:
        with everyone.reading():
            text = entries.entries(page.entries, output.style, owner)
        say(("\n" if again else "") + text)
    return ""


def _of_one(output: Output, user: str, answer: Answer[EntryPage], shown: int) -> Iterator[Answer[EntryPage]]:
    """Yield one user's pages, of which the first is there already, as far as so many more may be shown."""
    limit, page = output.options.limit, answer.value
    if limit is not None and len(page.entries) > limit - shown:
        kept = page.entries[: limit - shown]
        page = EntryPage(kept, page.total, page.size, page.next)
        yield Answer(codec.to_json(page), answer.kind)
        return
    if not _goes_on(page, None):
        raise _endless()
    yield answer
    shown += len(page.entries)
    if page.next is not None and (limit is None or shown < limit):
        with connect.of_user(user) as client:
            yield from _pages(client, output.options, shown, page.next)


def _dump(answer: Answer[EntryPage], before: str) -> str:
    """Print a page's entries as they stood on the wire; gives what stands behind the last one.

    All pages come out as one: whoever asked does not care how they travelled.  ``before`` stands before the first.
    """
    data = dict(answer.data) if isinstance(answer.data, dict) else {}
    rows = codec.dumps(data.pop("entries")).decode("ascii")[1:-1]
    print((f'{before}{{"entries":[' if before else "," if rows else "") + rows, end="")
    return f"],{codec.dumps(data).decode('ascii')[1:]}"


def _pages(client: Client, given: Namespace, shown: int = 0, after: str | None = None) -> Iterator[Answer[EntryPage]]:
    """Ask for page after page of what was asked for."""
    return pages(client, lambda shown, after: _request(given, shown, after), given.limit, shown, after)


def pages(
    client: Client,
    request: Callable[[int, str | None], requests.ListEntries],
    limit: int | None = None,
    shown: int = 0,
    after: str | None = None,
) -> Iterator[Answer[EntryPage]]:
    """Ask for page after page, each by what ``request`` gives for how many there were and for where to go on.

    Raises `Unavailable` for one that does not go on from the one before.
    """
    for _ in range(_MOST_PAGES):
        answer = client.call(request(shown, after))
        page = answer.value
        if len(page.entries) > requests.MAX_PAGE or not _goes_on(page, after):
            break
        yield answer
        shown, after = shown + len(page.entries), page.next
        if after is None or (limit and shown >= limit):
            return
    raise _endless()


def _endless() -> Unavailable:
    message = "the pages of entries do not go on, or do not end"
    return Unavailable(message, hint="the entries printed so far may be wrong, too")


def _goes_on(page: EntryPage, after: str | None) -> bool:
    """Return whether a page is the last one, or has entries and ends as many further on at least."""
    if page.next is None:
        return True
    if not (page.next.isascii() and page.next.isdigit() and len(page.next) <= _LONGEST_CURSOR):
        return False
    return bool(page.entries) and int(page.next) >= int(after or 0) + len(page.entries)


def _filters(given: Namespace) -> dict[str, object]:
    # All but the two bounds have the names of their options.
    named = {one.name: getattr(given, one.name) for one in fields(EntryQuery) if hasattr(given, one.name)}
    del named["limit"]
    smallest = [low for low, _ in given.size if low is not None]
    largest = [high for _, high in given.size if high is not None]
    return named | {"min_size": max(smallest, default=None), "max_size": min(largest, default=None)}


def _request(given: Namespace, shown: int, after: str | None, most: int = requests.MAX_PAGE) -> requests.ListEntries:
    limit = min(given.limit - shown, most) if given.limit else most
    return replace(requests.ListEntries(limit=limit, after=after), **_filters(given))


def _check_names(output: Output) -> None:
    # Nothing found for a name that does not exist is a typing error, not an answer.
    model, store = output.options.model, output.options.store
    if model is not None:
        output.client.call(requests.GetModel(name=model))
    if store is not None and all(one.store != store for one in output.client.call(requests.ListStores()).value):
        raise NotFound(f"no store {store}", hint="see: xpucachectl stores")
