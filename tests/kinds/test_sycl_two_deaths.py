"""Two deaths one after the other, the second while the first is being cleared up, at every pair of moments."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from tests.kinds.test_sycl_damage import look
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import EntryId, Store
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import fs, sycl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.builders import SyclStore

pytestmark = pytest.mark.flow

NOTE: Final = TrashLabel(datetime(2026, 1, 1, tzinfo=UTC), EvictReason.UNUSED, "not used")
EVERY: Final = bool(os.environ.get("XPUCACHED_STRESS_SECONDS"))
CALLS: Final = ("rename", "unlink", "rmdir", "mkdir", "link")


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours catches it, and nothing is changed after it."""


class Life:
    """One life of a daemon: it ends before its ``last``-th change of the disk, and changes nothing after that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, links: bool) -> None:
        self.last: int | None = None
        self.changes = 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self._before(getattr(os, name), refused=name == "link" and not links))
        monkeypatch.setattr(fs, "appear", self._before(fs.appear))

    def _before(self, real: Callable[..., None], *, refused: bool = False) -> Callable[..., None]:
        def call(*args: object, **more: object) -> None:
            if self.last is not None:
                if self.changes >= self.last:
                    raise Killed
                self.changes += 1
            # (A lock of ours appears by a link from /proc, which a file system without links refuses earlier.)
            if refused and not str(args[0]).startswith("/proc/"):
                raise PermissionError
            real(*args, **more)

        return call

    def live(self, act: Callable[[], object], last: int | None) -> bool:
        """Let it live through an act, or die in it; tell if it died."""
        self.last, self.changes = (1 << 30 if last is None else last), 0
        try:
            act()
        except Killed:
            return True
        finally:
            self.last = None
        return False


def start(store: SyclStore) -> None:
    """What a daemon does at its start with what a dead one left."""
    for key in look(store.root).ours:
        sycl.remover.sweep(EntryId(Store(sycl.NAME, store.root), key))


def contents(root: Path) -> set[tuple[bytes, bytes]]:
    """Return what is whole: where a runtime looks, and in the trash."""
    found = set()
    for source in (*root.glob("[0-9]*/*/*/*/*.src"), *root.glob(".xpucached.trash/*/leaf/*.src")):
        binary = source.with_suffix(".bin")
        if binary.is_file():
            found.add((source.read_bytes(), binary.read_bytes()))
    return found


def usable(store: SyclStore) -> set[tuple[bytes, bytes]]:
    """Return what a program finds, or somebody could bring back."""
    whole = {one.ref for one in sycl.trash_files.trash(Store(sycl.NAME, store.root)) if one.whole}
    found = set()
    for source in store.root.glob("[0-9]*/*/*/*/*.src"):
        assert source.with_suffix(".bin").is_file(), source
        found.add((source.read_bytes(), source.with_suffix(".bin").read_bytes()))
    for source in store.root.glob(".xpucached.trash/*/leaf/*.src"):
        if source.parent.parent.name in whole:
            found.add((source.read_bytes(), source.with_suffix(".bin").read_bytes()))
    return found


def fill(store: SyclStore, slots: int) -> None:
    for number in range(slots):
        made = store.add("_ZTS1k", slot=number, size=300 + number)
        # Each with a source of its own, as several programs with one hash would have.
        made.src.write_bytes(made.src.read_bytes() + bytes(number))


def acts(store: SyclStore, what: str) -> Callable[[], object]:
    """Return an act on a filled store."""
    of = Store(sycl.NAME, store.root)
    entries = sorted(look(store.root).entries, key=lambda one: one.id.key)
    if what == "first goes":
        return lambda: sycl.remover.remove(entries[:1], {entries[0].id: NOTE})
    assert all(sycl.remover.remove(entries, {one.id: NOTE for one in entries}).values())
    refs = tuple(one.ref for one in sycl.trash_files.trash(of))
    if what == "one comes back":
        return lambda: sycl.trash_files.restore(of, refs[:1])

    def round_trip() -> None:
        sycl.trash_files.restore(of, refs)
        back = look(store.root).entries
        sycl.remover.remove(back, {one.id: NOTE for one in back})

    return round_trip


@pytest.mark.timeout(3600 if EVERY else 300)
@pytest.mark.parametrize("how", ["links", "no links"])
@pytest.mark.parametrize("what", ["first goes", "one comes back", "back and away"])
def test_two_deaths_lose_nothing(
    sycl_store: SyclStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, how: str
) -> None:
    life = Life(monkeypatch, links=how == "links")
    first, more = 0, True
    while more:
        # A sample of the second moments, another one for each first.
        second, again = (0 if EVERY else first % 5), True
        while again:
            store = type(sycl_store)(tmp_path / f"{first}-{second}" / "cache")
            fill(store, 2)
            every = contents(store.root)
            act = acts(store, what)
            more = life.live(act, first)
            again = life.live(partial(start, store), second)
            start(store)
            start(store)
            assert not list(store.root.rglob("*.lock")), (first, second)
            assert usable(store) == every, (first, second)
            second += 1 if EVERY else 5
        first += 1
