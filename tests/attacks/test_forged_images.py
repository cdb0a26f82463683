"""Forged images: few bytes that would cost memory or time out of all proportion."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from xpucached.domain.stores import FoundStore, Kernel, Store, StoreOrigin
from xpucached.kinds import images, sycl
from xpucached.kinds.sycl import reader

if TYPE_CHECKING:
    from types import FrameType

    import pytest

    from tests.support.builders import SyclStore


def sharing_a_name(sections: int, length: int) -> bytes:
    """Return an ELF whose sections are empty and share one name: a few bytes more for each."""
    names = b"\0.text." + b"a" * length + b"\0"
    row = struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, 0, 0, 0, 0, 1, 0)
    table = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64 * (sections + 2), len(names), 0, 0, 1, 0)
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 0xFF04, 205, 0, 0, 0, 64, 0, 64, 0, 0, 64, sections + 1, 0)
    return head + table + row * sections + names


def test_names_of_sections_that_share_their_bytes_cost_no_memory() -> None:
    image = sharing_a_name(1000, 60_000)
    tracemalloc.start()
    try:
        wrong = images.damage(image, intel=True)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert wrong == "its section names overlap"
    assert most < 8 << 20


def test_sections_of_one_kernel_may_share_its_name() -> None:
    assert images.damage(sharing_a_name(3, 1000), intel=True) is None


def test_a_file_full_of_magic_numbers_is_searched_at_once() -> None:
    steps = 0

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal steps
        steps += 1

    magic = b"\x03\x02\x23\x07" * 5000
    crooked = struct.pack("<5I", 0x07230203, 0x10000, 0, 1, 0)
    for image in (magic, magic + b"\0" + crooked * 5000):
        steps = 0
        sys.setprofile(count)
        try:
            images.kernels(image)
        finally:
            sys.setprofile(None)
        assert steps < 1000


def test_a_device_with_an_endless_name_is_none(sycl_store: SyclStore) -> None:
    sycl_store.add(device="d" * 4000, driver="x" * 2000)
    sycl_store.add(device="d" * 2000, driver="x" * 1000)
    found = FoundStore(Store(sycl.NAME, sycl_store.root), StoreOrigin.FOUND, "test")
    entries = sycl.scanner.scan(found, datetime.now(UTC), {}, None).entries

    assert sorted(one.defect.code if one.defect else "" for one in entries) == ["", "src-unparsable"]
    assert sorted(len(one.environment.device) if one.environment else 0 for one in entries) == [0, 2000]
    assert all(len(one.detail) < 1000 for one in entries)


def test_kernels_are_looked_for_where_a_program_would_look(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = sycl_store.add()
    leaf = slot.src.parent
    for number in range(3):
        other = leaf.with_name(str(int(leaf.name) // 10 + number))
        other.mkdir()
        (other / "0.src").hardlink_to(slot.src)
        (other / "0.bin").hardlink_to(slot.bin)
    searched: list[int] = []
    kernels = images.kernels
    monkeypatch.setattr(reader, "_HEAD", 16)

    def search(data: bytes) -> tuple[Kernel, ...]:
        searched.append(len(data))
        return kernels(data)

    monkeypatch.setattr(images, "kernels", search)
    found = FoundStore(Store(sycl.NAME, sycl_store.root), StoreOrigin.FOUND, "test")
    entries = sycl.scanner.scan(found, datetime.now(UTC), {}, None).entries

    assert [one.defect for one in entries if one.defect] == [sycl.defects.MISPLACED] * 3
    assert sum(length > 16 for length in searched) == 1
