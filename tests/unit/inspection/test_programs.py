"""The images that a program registers are found, whatever its compiler's version; forged tables end."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from tests.support.builders import spirv
from tests.support.device_images import program
from xpucached.inspection import programs
from xpucached.inspection.content import MemoryContent, Unreadable
from xpucached.inspection.programs import FoundImage, LinkedProgram, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGES = (("spir64", spirv("a", "b"), ("a", "b")), ("spir64_gen", b"!<arch>\nnative", ("b",)), ("spir64", b"none", ()))


def found(data: bytes) -> list[FoundImage]:
    return list(LinkedProgram(MemoryContent(data)).images())


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("relocated", [False, True])
def test_images_are_found_with_their_kernels(version: int, newer: bool, relocated: bool) -> None:  # noqa: FBT001
    data = program(*IMAGES, version=version, newer=newer, relocated=relocated)

    assert [(one.target, data[one.offset : one.offset + one.size], one.kernels) for one in found(data)] == [
        (target, content, tuple(name.encode() for name in kernels)) for target, content, kernels in IMAGES
    ]


def test_what_is_no_row_is_none() -> None:
    assert found(program(("spir64x!", b"image", ()))) == []  # no target that a compiler knows
    assert found(program()) == []
    data = bytearray(program(*IMAGES[:1], relocated=False))
    row = data.index(struct.pack("<HBBI", 3, 4, 0, 0), 0x10000)
    struct.pack_into("<Q", data, row + 40, 1 << 40)  # it would end beyond the file
    assert found(bytes(data)) == []
    struct.pack_into("<Q", data, row + 40, 1)  # it would end before it begins
    assert found(bytes(data)) == []


def test_a_name_without_an_end_is_left_out() -> None:
    data = bytearray(program(("spir64", b"image", ("kernel",)), relocated=False))
    struct.pack_into("<Q", data, 0x10000 + 8, len(data) - 1)
    data[-1] = 1

    assert [one.kernels for one in found(bytes(data))] == [()]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF", b"\x7fELF\1\1" + bytes(60), b"\x7fELF\2\2" + bytes(60), program()[:0x10000]],
    ids=["empty", "short", "32 bits", "big endian", "cut"],
)
def test_what_does_not_hold_together_is_refused(data: bytes) -> None:
    made = bytearray(data)
    if data[:6] == b"\x7fELF\2\1":
        struct.pack_into("<Q", made, 64 + 56 + 32, 1 << 40)
    with pytest.raises(Unreadable):
        found(bytes(made))


def test_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_MOST_IMAGES", 2)
    with pytest.raises(Unreadable, match="more than 2 images"):
        found(program(*IMAGES))
    monkeypatch.undo()
    monkeypatch.setattr(programs, "MOST_KERNELS", 2)
    with pytest.raises(Unreadable, match="more kernels"):
        found(program(*IMAGES))
    monkeypatch.undo()
    monkeypatch.setattr(programs, "_MOST_WRITABLE", 10)
    with pytest.raises(Unreadable, match="writable"):
        found(program(*IMAGES))


def test_names_and_rows_that_are_looked_at_in_vain_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a million names may have no end, and each address may begin like a row."""
    monkeypatch.setattr(programs, "_MOST_TEXT", 600)
    with pytest.raises(Unreadable, match="names are longer"):
        found(program(("spir64", b"image", ("a", "b", "c"))))
    monkeypatch.undo()
    monkeypatch.setattr(programs, "_MOST_ROWS", 2)
    with pytest.raises(Unreadable, match="more images"):
        found(program(*(("spir64x!", b"image", ()) for _ in range(3))))


def test_segments_that_share_their_bytes_are_refused() -> None:
    data = bytearray(program(*IMAGES, relocated=False).ljust(0x20000, b"\0"))
    data[64:] = data[64:].ljust(0x30000, b"\0")
    (size,) = struct.unpack_from("<H", data, 54)
    (count,) = struct.unpack_from("<H", data, 56)
    table = bytes(data[64 : 64 + size * count])
    shared = struct.pack("<2I6Q", 1, 6, 0x10000, 0x10000, 0x10000, 0x10000, 0x10000, 8)
    struct.pack_into("<Q", data, 32, len(data))
    struct.pack_into("<H", data, 56, count + 8)
    with pytest.raises(Unreadable, match="writable"):
        found(bytes(data) + table + shared * 8)


class CountedSegments(list[Segment]):
    """Segments that count how often somebody goes through them."""

    walks = 0

    def __iter__(self) -> Iterator[Segment]:
        self.walks += 1
        return super().__iter__()


def test_the_segment_of_an_address_is_found_without_a_walk_through_all() -> None:
    """A file of some hundred KiB has hundreds of them, and names millions of addresses: it would take minutes."""
    linked = LinkedProgram(MemoryContent(program(*IMAGES, relocated=False)))
    linked.segments = CountedSegments(linked.segments)
    assert [one.kernels for one in linked.images()] == [(b"a", b"b"), (b"b",), ()]
    assert linked.segments.walks == 0


def test_of_segments_that_overlap_the_first_counts() -> None:
    spans = programs._Spans([(10, 5), (0, 12), (14, 10), (10, 5)])
    assert [spans.at(one) for one in (-1, 0, 9, 10, 14, 15, 23, 24)] == [None, 1, 1, 0, 0, 2, 2, None]
    assert programs._Spans([]).at(0) is None


def test_entries_that_never_end_are_bounded() -> None:
    data = bytearray(program(("spir64", b"image", ("kernel",)), relocated=False))
    row = data.index(struct.pack("<HBBI", 3, 4, 0, 0), 0x10000)
    struct.pack_into("<Q", data, row + 56, 1 << 62)  # the end of its entries

    assert len(found(bytes(data))[0].kernels) <= 5


def test_entries_without_names_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tables over one long stretch of entries that lead nowhere would be walked for hours."""
    data = program(("spir64", spirv("a"), tuple(f"k{number}" for number in range(100))), relocated=False)
    monkeypatch.setattr(programs, "_MOST_ENTRIES", 100)
    assert len(found(data)[0].kernels) == 100
    monkeypatch.setattr(programs, "_MOST_ENTRIES", 99)
    monkeypatch.setattr(LinkedProgram, "text", lambda *_: b"spir64" if len(_) > 2 else None)  # no kernel has a name
    with pytest.raises(Unreadable, match="more kernels"):
        found(data)


def test_holes_in_a_table_of_relocations_are_passed_over() -> None:
    """A file of 8 KiB has tens of millions of rows without a word, and each took its time in each segment."""
    at_once = programs._RELOCATIONS_AT_ONCE
    rows = bytearray(at_once)
    struct.pack_into("<3Q", rows, at_once - 24, 0x1008, 8, 7)
    given, data = bytes(rows + bytes(23)), bytearray(16)
    tracemalloc.start()
    try:
        programs._relocate([(0x1000, data)], given, 8)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert data == struct.pack("<2Q", 0, 7)
    assert most < at_once
