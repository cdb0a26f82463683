"""Programs that change in their places: every flipped bit, other files, whatever their sizes and times."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.kinds.test_sycl_damage import look
from tests.support import catalogs
from xpucached.catalog import Catalog
from xpucached.catalog.entries import all_entries
from xpucached.catalog.scans import record_scan
from xpucached.domain.defects import CHANGED, Defect, RepairAction
from xpucached.domain.names import Architecture
from xpucached.domain.stores import EntryState
from xpucached.domain.trash import Repair
from xpucached.kinds import fs, sycl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.builders import SyclStore

pytestmark = pytest.mark.flow


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Catalog]:
    with closing(catalogs.fresh(tmp_path / "state" / "catalog.sqlite")) as catalog:
        yield catalog


def seen(index: Catalog, store: SyclStore) -> dict[str, Defect | None]:
    """Look at every file as `verify` does; give what is wrong with each entry, by its kernel."""
    index.write(record_scan, look(store.root), lambda _: Architecture("x86_64"))
    return {one.entry.kernels[0].name if one.entry.kernels else "": one.entry.defect for one in index.read(all_entries)}


@pytest.mark.parametrize("times", ["kept", "moved"])
def test_every_flipped_bit_is_found_after_a_first_look(index: Catalog, sycl_store: SyclStore, times: str) -> None:
    made = sycl_store.add("_ZTS1k", size=2000)
    assert seen(index, sycl_store) == {"_ZTS1k": None}
    for path in (made.bin, made.src):
        whole, before = path.read_bytes(), path.stat()
        for number in range(32):
            at = number * (len(whole) - 1) // 31
            content = bytearray(whole)
            content[at] ^= 1 << number % 8
            with path.open("r+b") as file:
                file.write(content)
            if times == "kept":
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            else:
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns - 10**12 * (number + 1)))
            assert set(seen(index, sycl_store).values()) - {None}, (path.suffix, at)
        with path.open("r+b") as file:
            file.write(whole)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert seen(index, sycl_store) == {"_ZTS1k": None}


def test_a_program_of_another_size_or_of_a_neighbour_is_found(index: Catalog, sycl_store: SyclStore) -> None:
    first, second = sycl_store.add("_ZTS1a", size=300), sycl_store.add("_ZTS1b", size=900)
    assert set(seen(index, sycl_store).values()) == {None}
    aside = sycl_store.root.parent / "aside"
    first.bin.rename(aside)
    second.bin.rename(first.bin)
    aside.rename(second.bin)
    assert set(seen(index, sycl_store).values()) == {CHANGED}


def test_what_a_runtime_writes_anew_is_trusted_anew(index: Catalog, sycl_store: SyclStore) -> None:
    made = sycl_store.add("_ZTS1k", size=300)
    seen(index, sycl_store)
    source, other = made.src.read_bytes(), sycl_store.add("_ZTS1o", size=900).bin.read_bytes()
    # As every runtime does where it finds no program: first it, then the source into the file that is there.
    made.bin.unlink()
    assert seen(index, sycl_store)["_ZTS1k"] == sycl.defects.BIN_MISSING
    made.bin.write_bytes(other)
    made.src.write_bytes(source)
    assert seen(index, sycl_store)["_ZTS1k"] is None


def test_intermediate_code_that_another_runtime_wrote_over_is_trusted_anew(
    index: Catalog, sycl_store: SyclStore
) -> None:
    path = sycl_store.add_intermediate(bitcode=b"BC\xc0\xde" + bytes(range(64))) / "ir.bin"
    assert set(seen(index, sycl_store).values()) == {None}
    first = path.read_bytes()

    # In its place: the same file, another program.
    path.write_bytes(first[:-1] + b"\0")
    assert set(seen(index, sycl_store).values()) == {None}

    with path.open("r+b") as file:
        before = path.stat()
        file.seek(40)
        file.write(b"\xff")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert set(seen(index, sycl_store).values()) == {CHANGED}


def test_what_may_not_be_read_is_made_readable_again(sycl_store: SyclStore) -> None:
    made = sycl_store.add("_ZTS1k")
    made.bin.chmod(0)
    (entry,) = look(sycl_store.root).entries
    assert entry.state is (EntryState.OK if os.geteuid() == 0 else EntryState.DEFECTIVE)
    assert sycl.doctor.mend([Repair(entry, RepairAction.READABLE)]) == {entry.id: True}
    assert made.bin.stat().st_mode & 0o400
    assert [one.state for one in look(sycl_store.root).entries] == [EntryState.OK]


def test_what_cannot_be_read_for_another_reason_was_not_mended(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sycl_store.add("_ZTS1k")
    (entry,) = look(sycl_store.root).entries

    def refuses(name: str, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", name)

    opening = fs._open
    monkeypatch.setattr(fs, "_open", lambda name, *rest: (refuses if name == "0.bin" else opening)(name, *rest))
    assert sycl.doctor.mend([Repair(entry, RepairAction.READABLE)]) == {entry.id: False}


def test_others_files_are_not_made_readable(sycl_store: SyclStore) -> None:
    made = sycl_store.add("_ZTS1k")
    elsewhere = sycl_store.root.parent / "secret"
    elsewhere.write_bytes(made.bin.read_bytes())
    elsewhere.chmod(0)
    made.bin.unlink()
    os.link(elsewhere, made.bin)
    (entry,) = look(sycl_store.root).entries
    assert sycl.doctor.mend([Repair(entry, RepairAction.READABLE)]) == {entry.id: False}
    assert elsewhere.stat().st_mode & 0o777 == 0
