"""Where a slot of a leaf goes, the highest one that stays comes down: programs stop at the first empty number."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.kinds.test_sycl_damage import look
from xpucached.kinds import sycl
from xpucached.kinds.sycl import remover

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.builders import SyclStore

FILES = ("src", "bin", "access_time")


class Leaf:
    """A leaf with three slots, each with content of its own."""

    def __init__(self, store: SyclStore) -> None:
        self.store = store
        self.slots = [store.add(slot=number, size=300 + number) for number in range(3)]
        for number, one in enumerate(self.slots):
            one.access_time.write_text(str(number))
            one.src.write_bytes(one.src.read_bytes() + bytes(number))

    def contents(self) -> list[list[bytes | None]]:
        """Return what each slot holds, file by file."""
        paths = [[getattr(slot, name) for name in FILES] for slot in self.slots]
        return [[path.read_bytes() if path.exists() else None for path in files] for files in paths]

    def locks(self) -> list[str]:
        """Return which slots are locked."""
        return sorted(path.name for path in self.slots[0].leaf.glob("*.lock"))

    def remove_lowest(self) -> bool:
        """Remove slot 0; tell whether that was done."""
        lowest = min(look(self.store.root).entries, key=lambda one: one.id.key)
        return sycl.remover.remove([lowest])[lowest.id]


GONE = [None, None, None]


@pytest.fixture
def leaf(sycl_store: SyclStore) -> Leaf:
    return Leaf(sycl_store)


def without_links(monkeypatch: pytest.MonkeyPatch, before: Callable[[], object] = lambda: None) -> None:
    """Refuse to link programs and sources; (locks appear by a link from /proc, or without one)."""
    real = os.link

    def link(source: str, *given: object, **more: object) -> None:
        if source.endswith((".bin", ".src")):
            before()
            raise PermissionError
        real(source, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_the_highest_slot_comes_down(leaf: Leaf, monkeypatch: pytest.MonkeyPatch, *, links: bool) -> None:
    if not links:
        without_links(monkeypatch)
    _, second, third = leaf.contents()
    assert leaf.remove_lowest()
    assert leaf.contents() == [third, second, GONE]
    assert leaf.locks() == []


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_what_a_program_writes_meanwhile_stays_in_its_place(
    leaf: Leaf, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    """It has the lock of the highest slot when that should come down."""
    if links:
        monkeypatch.setattr(remover, "pause", lambda step: leaf.slots[2].lock.touch() if step == "linked" else None)
    else:
        without_links(monkeypatch, leaf.slots[2].lock.touch)
    _, second, third = leaf.contents()
    assert leaf.remove_lowest()
    assert leaf.contents() == [third if links else GONE, second, third]
    assert leaf.locks() == ["2.lock"]


def test_a_slot_that_is_being_written_is_passed_over(leaf: Leaf) -> None:
    _, second, third = leaf.contents()
    leaf.slots[2].lock.touch()
    assert leaf.remove_lowest()
    assert leaf.contents() == [second, GONE, third]
    assert leaf.locks() == ["2.lock"]


@pytest.mark.parametrize(
    ("staying", "locked", "moves", "left"),
    [
        ({11}, None, 1, {0}),
        ({0, 11}, None, 1, {0, 1}),
        ({1, 3, 5, 7, 9, 11}, None, 3, {0, 1, 2, 3, 4, 5}),
        ({0, 1, 2}, None, 0, {0, 1, 2}),
        ({10, 11}, 11, 1, {0, 11}),
        ({11}, 11, 0, {11}),
    ],
)
def test_what_stays_comes_down_once_and_not_into_each_place(
    sycl_store: SyclStore,
    monkeypatch: pytest.MonkeyPatch,
    staying: set[int],
    locked: int | None,
    moves: int,
    left: set[int],
) -> None:
    slots = [sycl_store.add(slot=number, size=300 + number) for number in range(12)]
    before = {slots[number].bin.read_bytes() for number in staying}
    entries = [one for one in look(sycl_store.root).entries if int(one.id.key.rpartition("/")[2]) not in staying]
    if locked is not None:
        slots[locked].lock.touch()
    steps: list[str] = []
    monkeypatch.setattr(remover, "pause", steps.append)
    assert all(sycl.remover.remove(entries).values())
    assert steps.count("linked") == moves
    assert {number for number, slot in enumerate(slots) if slot.bin.exists()} == left
    assert {slots[number].bin.read_bytes() for number in left} == before


def test_a_link_comes_down_as_a_link(leaf: Leaf, tmp_path: Path) -> None:
    source, theirs = leaf.slots[2].src, tmp_path / "theirs"
    source.rename(theirs)
    source.symlink_to(theirs)
    assert leaf.remove_lowest()
    assert leaf.slots[0].src.readlink() == theirs
    assert theirs.stat().st_nlink == 1
