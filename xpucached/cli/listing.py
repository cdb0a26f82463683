"""Door: `xpucachectl ls`, page by page: each is printed before the next one is asked for, and none is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import fields, replace

from xpucached import codec
from xpucached.api import requests
from xpucached.api.endpoints import VERSION
from xpucached.cli.output import say
from xpucached.domain.queries import EntryQuery
from xpucached.errors import NotFound, Unavailable
from xpucached.render import entries

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from xpucached.api.client import Answer
    from xpucached.cli.output import Output
    from xpucached.domain.queries import EntryPage

_MOST_PAGES: Final = 10_000
"""Ten million entries, if they are full."""

_LONGEST_CURSOR: Final = 20


def ls(output: Output) -> int:
    """Print the entries that match; gives the exit status."""
    shown, last = 0, ""
    for answer in _pages(output):
        page = answer.value
        if not shown and not page.entries:
            _check_names(output)
        before, shown = shown, shown + len(page.entries)
        if output.json:
            last = _dump(answer, first=not before)
        elif output.quiet:
            say("\n".join(one.entry.id.ref for one in page.entries))
        elif page.entries:
            say(("\n" if before else "") + entries.entries(page.entries, output.style))
            last = entries.entry_total(page, shown)
        elif not shown:
            narrowed = any(one is not None for one in _filters(output.options).values())
            last = "no entries match" if narrowed else "no entries"
    say(last)
    return 0


def _dump(answer: Answer[EntryPage], *, first: bool) -> str:
    """Print a page's entries as they stood on the wire; gives what stands behind the last one.

    All pages come out as one: whoever asked does not care how they travelled.
    """
    data = dict(answer.data) if isinstance(answer.data, dict) else {}
    rows = codec.dumps(data.pop("entries")).decode("ascii")[1:-1]
    before = f'{{"api":{VERSION},"data":{{"entries":[' if first else "," if rows else ""
    print(before + rows, end="")
    return f"],{codec.dumps(data).decode('ascii')[1:]}}}"


def _pages(output: Output) -> Iterator[Answer[EntryPage]]:
    """Ask for page after page.  Raises `Unavailable` for one that does not go on from the one before."""
    shown, after = 0, None
    for _ in range(_MOST_PAGES):
        answer = output.client.call(_request(output.options, shown, after))
        page = answer.value
        if len(page.entries) > requests.MAX_PAGE or not _goes_on(page, after):
            break
        yield answer
        shown, after = shown + len(page.entries), page.next
        if after is None or (output.options.limit and shown >= output.options.limit):
            return
    raise Unavailable(
        "the pages of entries do not go on, or do not end", hint="the entries printed so far may be wrong, too"
    )


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


def _request(given: Namespace, shown: int, after: str | None) -> requests.ListEntries:
    limit = min(given.limit - shown, requests.MAX_PAGE) if given.limit else requests.MAX_PAGE
    return replace(requests.ListEntries(limit=limit, after=after), **_filters(given))


def _check_names(output: Output) -> None:
    # Nothing found for a name that does not exist is a typing error, not an answer.
    model, store = output.options.model, output.options.store
    if model is not None:
        output.client.call(requests.GetModel(name=model))
    if store is not None and all(one.store != store for one in output.client.call(requests.ListStores()).value):
        raise NotFound(f"no store {store}", hint="see: xpucachectl stores")
