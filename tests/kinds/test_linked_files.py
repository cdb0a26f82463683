"""A file that is linked into many places of a store is looked at in each, and does not fill the catalog from each."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.support.builders import SyclStore, native, spirv
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import Entry, FoundStore, Store, StoreOrigin
from xpucached.kinds.neo.kind import KIND as NEO
from xpucached.kinds.sycl import KIND as SYCL
from xpucached.kinds.sycl import portable
from xpucached.kinds.walking import StoreWalk, told

if TYPE_CHECKING:
    from pathlib import Path

    from xpucached.kinds.interface import Kind

MANY = tuple(f"kernel{number:04}" for number in range(200))
FEW = ("a", "b")


def look(kind: Kind, root: Path, *, inside: bool = True) -> dict[str, Entry]:
    found = FoundStore(Store(kind.name, root), StoreOrigin.FOUND, "test")
    parts = kind.scanner.parts(found, datetime.now(UTC) + timedelta(minutes=5), (), None, inside=inside)
    return {one.id.key: one for part in parts for one in part.entries}


def linked(leaf: Path, times: int, *suffixes: str) -> None:
    """Link files of an entry into other leaves of its store."""
    for number in range(times):
        there = leaf.parents[3] / "1" / str(number) / "1" / "1"
        there.mkdir(parents=True)
        for suffix in suffixes:
            os.link(leaf / f"0{suffix}", there / f"0{suffix}")


@pytest.mark.parametrize("suffixes", [(".src", ".bin"), (".src",), (".bin",)])
def test_a_source_or_a_program_with_many_links_names_its_kernels_once(
    sycl_store: SyclStore, suffixes: tuple[str, ...]
) -> None:
    names = tuple((b".text." + name.encode(), b"code") for name in MANY)
    slot = sycl_store.add(image=spirv(*MANY), binary=native(256, *names), options=f"-D{'x' * 2000}")
    linked(slot.leaf, 20, *suffixes)

    every = look(SYCL, sycl_store.root)
    assert len(every) == 21
    heavy = [one for one in every.values() if told(one) > StoreWalk.LIGHT]
    # Once by the source, and where that is missing once by the program.
    assert [len(one.kernels) for one in heavy] == [len(MANY)] * (1 + (".src" not in suffixes))


@pytest.mark.parametrize("before", [True, False])
def test_where_a_linked_source_belongs_it_tells_all(sycl_store: SyclStore, before: bool) -> None:  # noqa: FBT001
    slot = sycl_store.add(image=spirv(*MANY), options=f"-D{'x' * 2000}")
    level = sycl_store.root / ("0" if before else "9" * 19)
    for number in range(3):
        there = level / str(number) / "1" / "1"
        there.mkdir(parents=True)
        os.link(slot.leaf / "0.src", there / "0.src")

    told_by = {key: (len(one.kernels), len(one.options)) for key, one in look(SYCL, sycl_store.root).items()}
    mine = told_by.pop(EntryKey(f"{slot.leaf.relative_to(sycl_store.root)}/0"))
    assert mine == (len(MANY), 2002)
    assert set(told_by.values()) == {(0, 0)}


def test_what_tells_little_tells_it_in_each_place(sycl_store: SyclStore) -> None:
    slot = sycl_store.add(image=spirv(*FEW))
    linked(slot.leaf, 3, ".src", ".bin")
    assert [len(one.kernels) for one in look(SYCL, sycl_store.root).values()] == [len(FEW)] * 4


def test_an_entry_of_the_gpu_driver_with_many_links_names_its_kernels_once(tmp_path: Path) -> None:
    for number, names in enumerate((MANY, FEW)):
        first = tmp_path / f"{number:016x}.cl_cache"
        first.write_bytes(native(256, *((b".text." + name.encode(), b"code") for name in names)))
        for link in range(1, 5):
            os.link(first, tmp_path / f"{number:015x}{link:x}.l0_cache")

    every = look(NEO, tmp_path)
    assert sorted(len(one.kernels) for one in every.values()) == [0] * 4 + [len(FEW)] * 5 + [len(MANY)]


def test_two_equal_programs_of_which_somebody_made_one_file_both_name_their_kernels(tmp_path: Path) -> None:
    first = tmp_path / f"{1:016x}.cl_cache"
    first.write_bytes(native(256, *((b".text." + name.encode(), b"code") for name in MANY)))
    os.link(first, tmp_path / f"{2:016x}.cl_cache")
    assert [len(one.kernels) for one in look(NEO, tmp_path).values()] == [len(MANY)] * 2


def test_who_keeps_all_entries_is_told_no_names_and_options(sycl_store: SyclStore, tmp_path: Path) -> None:
    slot = sycl_store.add(image=spirv(*MANY), options=f"-D{'x' * 2000}")
    for number in range(1, 20):
        for suffix in (".src", ".bin"):
            os.link(slot.leaf / f"0{suffix}", slot.leaf / f"{number}{suffix}")
    (tmp_path / f"{1:016x}.cl_cache").write_bytes(native(256, *((b".text." + name.encode(), b"") for name in MANY)))
    every = [*look(SYCL, sycl_store.root, inside=False).values(), *look(NEO, tmp_path, inside=False).values()]
    walk = portable.walk(Store(SYCL.name, sycl_store.root))
    assert walk is not None
    every += [packed.entry for _, some in walk.values() for packed in some]
    assert len(every) == 20 + 1 + 20
    assert sum(map(told, every)) == 0
