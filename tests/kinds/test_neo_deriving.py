"""How an entry is compiled of which no run told: its name comes out of what it holds, with another one's recipe."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.kinds.test_neo_recorder import HOST, RECORDED
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import EntryId, Store
from xpucached.kinds.neo import deriving, recorder
from xpucached.kinds.neo.targets import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from xpucached.domain.recipes import RecordedRecipe

PLAIN, SPECIAL, LARGE, TEXT = (
    EntryKey(key)
    for key in (
        "f/d/fda88f9b82d687e4.l0_cache",
        "2/4/24c2875a139227f0.l0_cache",  # with specialization constants, which stand in no entry
        "f/7/f7827a5fb64ef597.l0_cache",  # with large registers, which the driver takes for an option of its own
        "1/4/14393921d7ce9d06.cl_cache",
    )
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shutil.copytree(RECORDED, tmp_path / "store")
    return Store(NAME, tmp_path / "store")


@pytest.fixture
def told(store: Store) -> Mapping[EntryKey, RecordedRecipe]:
    return {one.key: one for one in recorder.collect(store, frozenset(), HOST).recipes}


def test_what_was_compiled_from_spirv_needs_no_run_of_its_own(
    store: Store, told: Mapping[EntryKey, RecordedRecipe]
) -> None:
    every = {key: deriving.derive(EntryId(store, key), [told[one] for one in told if one != key]) for key in told}
    assert every == {key: told[key] if key == PLAIN else None for key in told}
    # Of the recipes the one that fits is found, wherever it stands.
    for alike in ([told[SPECIAL]], [told[TEXT], told[LARGE], told[SPECIAL]], [told[SPECIAL], told[TEXT]]):
        assert deriving.derive(EntryId(store, PLAIN), alike) == told[PLAIN]
    for alike in ([], [told[TEXT]], [told[LARGE]]):
        assert deriving.derive(EntryId(store, PLAIN), alike) is None


@pytest.mark.parametrize(
    "change",
    [
        {"key": EntryKey("24c2875a139227f0.l0_cache")},  # of a driver that looks elsewhere
        {"key": EntryKey("2/4/24c2875a139227f0.cl_cache")},
        {"key": EntryKey("none")},
        {"facts": {}},
        {"facts": {"options": "", "constants": "", "values": "", "ip": "1"}},
        {"facts": {"options": "", "constants": "", "values": "", "ip": ""}},  # of a driver that hashes no version
        {"facts": {"options": "", "constants": "x", "values": "", "ip": "83902464"}},
        {"parts": {}},
        {"parts": {"driver": b"{"}},
        {"parts": {"driver": b"{}"}},
    ],
)
def test_a_recipe_that_is_none_or_of_another_driver_tells_nothing(
    store: Store, told: Mapping[EntryKey, RecordedRecipe], change: dict[str, object]
) -> None:
    alike = replace(told[SPECIAL], **change)
    assert deriving.derive(EntryId(store, PLAIN), [alike]) is None
    assert deriving.derive(EntryId(store, PLAIN), [alike, told[SPECIAL]]) == told[PLAIN]


def test_an_entry_counts_only_as_it_was_compiled(store: Store, told: Mapping[EntryKey, RecordedRecipe]) -> None:
    path, alike = store.root / PLAIN, [told[SPECIAL]]
    content = path.read_bytes()
    at = content.index(b"\x03\x02\x23\x07")
    for wrong in (content[:100], b"", content[: at + 40] + b"\xff" + content[at + 41 :], b"\x7fELF" + bytes(200)):
        path.write_bytes(wrong)
        assert deriving.derive(EntryId(store, PLAIN), alike) is None
    path.write_bytes(content)
    copied = EntryKey("f/d/fda88f9b82d687e5.l0_cache")
    shutil.copy(path, store.root / copied)
    assert deriving.derive(EntryId(store, copied), alike) is None
    assert deriving.derive(EntryId(store, EntryKey("none")), alike) is None
    assert deriving.derive(EntryId(store, PLAIN), alike) == told[PLAIN]


def test_what_is_large_costs_nothing(
    store: Store, told: Mapping[EntryKey, RecordedRecipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, alike = store.root / PLAIN, [told[SPECIAL]]
    image = 1424
    for name, limit in (("_LONGEST", path.stat().st_size), ("_HASHED", image)):
        monkeypatch.setattr(deriving, name, limit - 1)
        assert deriving.derive(EntryId(store, PLAIN), alike) is None
        monkeypatch.setattr(deriving, name, limit)
        assert deriving.derive(EntryId(store, PLAIN), alike) == told[PLAIN]


def test_what_cannot_be_read_now_is_said(store: Store, told: Mapping[EntryKey, RecordedRecipe]) -> None:
    path, alike = store.root / PLAIN, [told[SPECIAL]]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        deriving.derive(EntryId(store, PLAIN), alike)
    os.mkfifo(path)
    with pytest.raises(OSError, match="not"):
        deriving.derive(EntryId(store, PLAIN), alike)
