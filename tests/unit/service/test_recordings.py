"""What is made of what the programs of a run tell."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.stores import Entry, EntryId, Kernel, Store
from xpucached.processes.results import RunResult
from xpucached.service.recordings import never_twice

if TYPE_CHECKING:
    from xpucached.service.context import Context

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
STORE: Final = Store(KindName("full"), Path("/store"))


class Name(str):
    """A kernel's name that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def entry(key: str, kernel: str) -> IndexedEntry:
    name = Name(kernel)
    made = Entry(EntryId(STORE, EntryKey(key)), "s", 1, 1, NOW, None, None, kernels=(Kernel(name, name),))
    return IndexedEntry(made, None, None, (), NOW, NOW, "run")


def test_what_many_entries_have_in_common_is_found_without_comparing_each_with_each() -> None:
    count = 300
    first = [entry(f"a{number}", f"kernel {number}") for number in range(count)]
    last = [entry(f"b{number}", f"kernel {number}") for number in range(count - 1, -1, -1)]
    noted: list[EntryId] = []
    catalog = SimpleNamespace(read=lambda *_: (*first, *last), write=lambda _, entries: noted.extend(entries))
    passes = [
        RunResult(None, 1.0, 1.0, 1, 0, "", "", created=frozenset(one.entry.id for one in some))
        for some in (first, last)
    ]
    Name.compared = 0
    told = never_twice(cast("Context", SimpleNamespace(catalog=catalog)), passes)
    assert told.startswith(f"; {count} of them have another key at each start")
    assert told.endswith(f": kernel 0, kernel 1, kernel 10 and {count - 3} more")
    assert sorted(noted) == sorted(one.entry.id for one in (*first, *last))
    assert Name.compared < 20 * count
