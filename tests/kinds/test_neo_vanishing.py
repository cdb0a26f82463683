"""Entries of the GPU driver's cache that go while it is looked at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from xpucached.domain.names import EntryKey
from xpucached.domain.stores import FoundStore, KnownEntry, Store, StoreOrigin
from xpucached.kinds import listing
from xpucached.kinds.neo import kind as neo
from xpucached.kinds.neo import scanner

if TYPE_CHECKING:
    from pathlib import Path

KEY = EntryKey("f/d/fda88f9b82d687e4.l0_cache")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("there", ["nothing", "directory"])
def test_what_is_no_entry_any_more_has_vanished_if_it_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, *, known: bool
) -> None:
    root = tmp_path / "root"
    (root / "f" / "d").mkdir(parents=True)
    if there == "directory":
        (root / KEY).mkdir()
    else:
        names = listing.names
        last = KEY.rpartition("/")[2]

        def before(directory: int) -> list[str]:
            """List an entry that is gone by the time it is looked at."""
            found = list(names(directory))
            return found or [last]

        monkeypatch.setattr(listing, "names", before)
    rows = [KnownEntry(KEY, "stamp")] if known else []
    found = FoundStore(Store(neo.KIND.name, root), StoreOrigin.FOUND, "test")
    (part,) = scanner.parts(found, datetime.now(UTC) + timedelta(hours=1), rows, None)
    assert (part.entries, part.unchanged) == ((), ())
    assert list(part.vanished or ()) == [row.key for row in rows]
    assert part.foreign == (there == "directory")
