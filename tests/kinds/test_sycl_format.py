"""The bytes of ``.src`` and ``.bin``, each length at its edge, and which names are places of entries."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.builders import framed
from xpucached.kinds.sycl import defects, entry_format
from xpucached.kinds.sycl.entry_format import ABSURD, Frame, Source, frame, is_place, source

if TYPE_CHECKING:
    from xpucached.domain.defects import Defect

FIELDS: Final = (b"device", b"options", b"", b"image")
SRC: Final = framed(*FIELDS)
NAMES: Final = ("device", "options", "constants", "image")


def read(data: bytes, size: int | None = None) -> Source:
    return source(data, len(data) if size is None else size)


# -- .src -------------------------------------------------------------------------------------------------------------


def test_a_source_has_four_fields_and_ends() -> None:
    assert read(SRC) == Source(*FIELDS, 5, complete=True, whole=True)
    assert read(b"") == Source(defect=defects.SRC_EMPTY, detail="0 bytes")
    assert read(framed(b"", b"", b"", b"")) == Source(complete=True, whole=True)


@pytest.mark.parametrize("end", range(1, len(SRC)))
def test_a_source_that_is_cut_short_anywhere_has_the_fields_before(end: int) -> None:
    found = read(SRC[:end])
    assert (found.defect, found.complete, found.whole, found.image_size) == (defects.SRC_TRUNCATED, False, False, 0)
    rest = SRC[:end]
    for name, field in zip(NAMES, FIELDS, strict=True):
        if len(rest) < 8:
            assert (getattr(found, name), found.detail) == (b"", f"ends at byte {end}, before the {name}")
            return
        assert getattr(found, name) == rest[8 : 8 + len(field)]
        if len(rest) < 8 + len(field):
            assert found.detail == f"the {name} announces {len(field)} bytes, {len(rest) - 8} follow"
            return
        rest = rest[8 + len(field) :]
    raise AssertionError(end)


@pytest.mark.parametrize(
    ("length", "defect"), [(ABSURD, defects.SRC_LENGTH_ABSURD), (ABSURD - 1, defects.SRC_TRUNCATED)]
)
def test_a_length_for_which_no_memory_can_be_had_is_absurd(length: int, defect: Defect) -> None:
    assert read(struct.pack("<Q", length) + b"x").defect is defect


def test_what_follows_the_image_is_told() -> None:
    found = read(SRC + b"xyz")
    assert (found.defect, found.detail) == (defects.SRC_TRAILING, "3 bytes follow the image")
    assert (found.complete, found.whole, found.image) == (True, True, b"image")
    # Also where it was not read to there.
    assert read(SRC, len(SRC) + 1).defect is defects.SRC_TRAILING


def test_of_a_large_source_only_the_image_may_lie_beyond_what_was_read() -> None:
    found = read(SRC[:-2], len(SRC))
    assert (found.defect, found.detail) == (defects.SRC_TOO_LARGE, "the image has 5 bytes")
    assert (found.complete, found.whole, found.image, found.image_size) == (True, False, b"ima", 5)
    found = read(SRC[:-5], len(SRC))
    assert (found.complete, found.whole, found.image, found.image_size) == (True, False, b"", 5)


@pytest.mark.parametrize(
    ("end", "detail"),
    [
        (7, "the device begins beyond byte 7"),
        (8, "the device ends beyond byte 8"),
        (13, "the device ends beyond byte 13"),
        (14, "the options begins beyond byte 14"),
        (21, "the options begins beyond byte 21"),
        (28, "the options ends beyond byte 28"),
        (29, "the constants begins beyond byte 29"),
        (37, "the image begins beyond byte 37"),
        (44, "the image begins beyond byte 44"),
    ],
)
def test_fields_before_the_image_must_lie_within_what_was_read(end: int, detail: str) -> None:
    found = read(SRC[:end], len(SRC))
    assert (found.defect, found.detail, found.complete, found.whole) == (defects.SRC_TOO_LARGE, detail, False, False)


# -- .bin -------------------------------------------------------------------------------------------------------------


def made(count: int, *programs: bytes, more: bytes = b"") -> bytes:
    return struct.pack("<Q", count) + framed(*programs) + more


def unframed(data: bytes, size: int | None = None) -> Frame:
    return frame(data[:16], len(data) if size is None else size, lambda offset: data[offset : offset + 8])


def test_a_frame_holds_one_program() -> None:
    assert unframed(made(1, b"code")) == Frame(16, 4)
    assert unframed(made(1, b"")) == Frame(16, 0)


@pytest.mark.parametrize(
    ("data", "defect", "detail"),
    [
        (b"", defects.BIN_EMPTY, "0 bytes"),
        (b"x", defects.BIN_TRUNCATED, "1 bytes are less than a header"),
        (made(1, b"")[:15], defects.BIN_TRUNCATED, "15 bytes are less than a header"),
        (made(1, b"code")[:-1], defects.BIN_TRUNCATED, "announces 4 bytes, 3 follow"),
        (struct.pack("<QQ", 1, ABSURD), defects.BIN_LENGTH_ABSURD, f"announces {ABSURD} bytes, 0 follow"),
        (struct.pack("<QQ", 1, ABSURD - 1), defects.BIN_TRUNCATED, f"announces {ABSURD - 1} bytes, 0 follow"),
    ],
)
def test_a_frame_that_has_no_program_says_why(data: bytes, defect: Defect, detail: str) -> None:
    assert unframed(data) == Frame(defect=defect, detail=detail)


def test_a_head_that_could_not_be_read_whole_is_none() -> None:
    assert frame(bytes(15), 100, lambda _: b"").defect is defects.BIN_TRUNCATED


@pytest.mark.parametrize(
    ("data", "defect", "detail"),
    [
        (made(2, b"one", b"two"), None, ""),
        (made(2, b"one", b""), None, ""),
        (made(64, *[b"x"] * 64), None, ""),
        (made(2, b"one", b"two", more=b"x"), defects.BIN_TRAILING, "1 bytes follow"),
        (made(1, b"one", more=b"x"), defects.BIN_TRAILING, "1 bytes follow"),
        (made(0, b"one"), defects.BIN_COUNT_WRONG, "counts 0 programs, holds 1"),
        (made(1, b"one", b"two"), defects.BIN_TRAILING, "11 bytes follow"),
        (made(3, b"one", b"two"), defects.BIN_COUNT_WRONG, "counts 3 programs, holds 2"),
        (made(2, b"one", b"two")[:-1], defects.BIN_COUNT_WRONG, "counts 2 programs, holds 1"),
        (made(2, b"one", b"")[:-1], defects.BIN_COUNT_WRONG, "counts 2 programs, holds 1"),
        (made(65, *[b"x"] * 65), defects.BIN_COUNT_WRONG, "counts 65 programs, holds 1"),
    ],
)
def test_older_runtimes_wrote_a_program_for_each_device(data: bytes, defect: Defect | None, detail: str) -> None:
    first = int.from_bytes(data[8:16], "little")
    assert unframed(data) == Frame(16, first, defect, detail)


# -- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("1/2/3/4/0", True),
        ("18446744073709551615/0/0/0/7", True),
        ("1/2/3/4", False),
        ("1/2/3/4/5/6", False),
        ("1/2/3/04/0", False),
        ("1/2/3/../0", False),
        ("x/2/3/4/0", False),
        ("1/2/3/4/x", False),
        (f"{entry_format.RTC}/1/2/3/0", True),
        (f"{entry_format.RTC}/1/2/3/4/0", False),
        (f"{entry_format.RTC}/{'A' * 43}=/ir", True),
        (f"{entry_format.RTC}/{'A' * 42}/ir", False),
        (f"{entry_format.RTC}/{'A' * 43}=/0", False),
        (f"{entry_format.RTC}/{'A' * 43}=", False),
        (f"1/{'A' * 43}=/ir", False),
        ("", False),
    ],
)
def test_a_key_names_a_slot_where_a_runtime_keeps_one(key: str, *, place: bool) -> None:
    assert is_place(key.split("/")) == place
