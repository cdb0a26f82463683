"""A store that is named is gone through once, and what is exported is what a scan and a second reading would give."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support.builders import native, sycl_target
from xpucached.bundling import drivers, exporting
from xpucached.bundling.drivers import UsedDriver
from xpucached.domain.bundles import Compression, ExportBundle, ExportReport
from xpucached.domain.host import Host, OtherDriver
from xpucached.errors import NotFound
from xpucached.kinds.sycl import portable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.builders import Slot, SyclStore


@pytest.fixture(autouse=True)
def _driver(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Host(surveyed=datetime.now(UTC), boot="", kernel="", stamp="")
    used = UsedDriver(OtherDriver((sycl_target(*sycl_store.defaults.values()),), "", {}), here, {})
    monkeypatch.setattr(drivers, "used", lambda *_: contextlib.nullcontext(used))


def both(
    store: SyclStore, place: Path, monkeypatch: pytest.MonkeyPatch, device: str | None = None, driver: str | None = None
) -> tuple[ExportReport, int]:
    """Export a store in both ways, which give the same; give the report, and how many were packed on the way."""
    met: list[bool] = []
    walk = portable._Walk._leaf

    def leaf(*given: object) -> object:
        for one in walk(*given):  # type: ignore[arg-type]
            met.append(one.content is not None)
            yield one

    def exported(name: str) -> ExportReport:
        order = ExportBundle(place / name, store.root, device=device, driver=driver, compression=Compression.GZIP)
        return exporting.export(order, lambda *_: None)

    with monkeypatch.context() as patch:
        patch.setattr(portable._Walk, "_leaf", leaf)
        quick = exported("quick")
        patch.setattr(portable, "walk", lambda _: None)
        slow = exported("slow")
    assert replace(quick, view=slow.view) == slow
    assert quick.view.digest == slow.view.digest
    return quick, sum(met)


def _second_slot(store: SyclStore, first: Slot) -> None:
    (first.leaf / "1.bin").write_bytes(first.bin.read_bytes())
    (first.leaf / "1.src").write_bytes(first.src.read_bytes())


def _higher_slot(_: SyclStore, first: Slot) -> None:
    for path in first.leaf.iterdir():
        path.rename(path.with_name(path.name.replace("0", "1", 1)))


def _locked(_: SyclStore, first: Slot) -> None:
    (first.leaf / "0.lock").touch()


def _foreign(_: SyclStore, first: Slot) -> None:
    (first.leaf / "notes.txt").touch()


def _damaged(_: SyclStore, first: Slot) -> None:
    first.bin.write_bytes(first.bin.read_bytes()[:-100])


def _cut(_: SyclStore, first: Slot) -> None:
    first.src.write_bytes(first.src.read_bytes()[:-1])


def _half(_: SyclStore, first: Slot) -> None:
    first.bin.unlink()


def _link(_: SyclStore, first: Slot) -> None:
    first.bin.rename(first.leaf / "aside")
    first.bin.symlink_to("aside")


def _pipe(_: SyclStore, first: Slot) -> None:
    first.src.unlink()
    os.mkfifo(first.src)


def _misplaced(_: SyclStore, first: Slot) -> None:
    first.leaf.rename(first.leaf.with_name("12345"))


def _constants(store: SyclStore, _: Slot) -> None:
    store.add("_ZTS5const", constants=b"\1\2")


def _unlike(store: SyclStore, _: Slot) -> None:
    store.add("_ZTS4flaw", binary=b"MINE" + native(300))


def _several(store: SyclStore, _: Slot) -> None:
    store.add("_ZTS3two", image=b"\x7fELF" + bytes(100))


def _other_device(store: SyclStore, _: Slot) -> None:
    store.add("_ZTS1a", device="another")


@pytest.mark.parametrize(
    ("odd", "plain"),
    [
        *((_second_slot, 3), (_higher_slot, 3), (_locked, 3), (_foreign, 3), (_damaged, 3), (_cut, 3), (_half, 3)),
        *((_link, 3), (_pipe, 3), (_misplaced, 3), (_constants, 4), (_unlike, 4), (_several, 5), (_other_device, 5)),
    ],
)
def test_what_is_odd_is_looked_at_as_a_scan_does(
    odd: Callable[[SyclStore, Slot], None],
    plain: int,
    sycl_store: SyclStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = sycl_store.add("_ZTS1a")
    for number in range(3):
        sycl_store.add("_ZTS1b", options=f"-D{number}")
    odd(sycl_store, first)
    report, packed = both(sycl_store, tmp_path, monkeypatch)
    assert packed == plain
    assert report.recipes >= 3


def test_what_was_asked_for_is_exported(sycl_store: SyclStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("this", "that", "these"):
        sycl_store.add("_ZTS1a", device=device)
    report, packed = both(sycl_store, tmp_path, monkeypatch, device="th")
    assert (report.recipes, packed, len(report.view.members)) == (1, 3, 4)
    (tmp_path / "x/y").mkdir(parents=True)
    report, packed = both(sycl_store, tmp_path / "x", monkeypatch, device="thi")
    assert (report.recipes, packed, len(report.view.members)) == (1, 1, 2)
    with pytest.raises(NotFound, match="no entry matches"):
        both(sycl_store, tmp_path / "x" / "y", monkeypatch, driver="none")


def test_a_store_with_more_than_numbered_directories_is_scanned(
    sycl_store: SyclStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sycl_store.add()
    sycl_store.add_intermediate()
    report, packed = both(sycl_store, tmp_path, monkeypatch)
    assert packed == 0
    assert report.skipped
