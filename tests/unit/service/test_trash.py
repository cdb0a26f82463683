"""What in the trash is meant by the references that somebody gives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from xpucached.domain.names import EntryKey, KindName, TrashRef
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import EntryId, Store
from xpucached.domain.trash import Trashed
from xpucached.service import trash


def trashed(number: int) -> Trashed:
    store, at = Store(KindName("sycl"), Path("/store")), datetime(2026, 5, 4, tzinfo=UTC)
    key = EntryKey(f"1/2/3/{number}/0")
    said = (store, key, at, EvictReason.UNUSED, "", False, "", "", 1)
    return Trashed(TrashRef(f"{number:012x}"), *said, whole=True)


class Given(dict[str, list[Trashed]]):
    """References, which are gone through no more than once, however much is in the trash."""

    gone_through = 0

    def __iter__(self) -> Iterator[str]:
        self.gone_through += 1
        return super().__iter__()


def test_what_is_meant_by_references_is_looked_up_for_each_thing_and_not_compared_with_each_of_them() -> None:
    some = [trashed(number) for number in range(300)]
    entry = EntryId(some[7].store, some[7].key).ref
    refs = [some[3].ref, some[299].ref[:11], entry, entry[:9], "f" * 12]
    items, entries = (Given({ref: [] for ref in refs}) for _ in range(2))
    trash._match(some, items, entries)
    assert items.gone_through + entries.gone_through <= 2
    assert {ref: [one.key for one in found] for ref, found in items.items() if found} == {
        some[3].ref: [some[3].key],
        # As many as tell that several are meant.
        some[299].ref[:11]: [one.key for one in some if one.ref.startswith(some[299].ref[:11])][:6],
    }
    assert {ref: found for ref, found in entries.items() if found} == {entry: [some[7]], entry[:9]: [some[7]]}
