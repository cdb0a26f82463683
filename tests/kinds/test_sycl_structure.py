"""Compiled programs whose tables do not hold together: damage from before anybody looked."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from tests.support.builders import native
from xpucached.kinds import images
from xpucached.kinds.sycl import structure

SYMBOLS, STRINGS, RELOCATIONS = 1, 2, 3


def program() -> bytearray:
    """Make an object with two symbols, their names, and a relocation."""
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0) + struct.pack("<IBBHQQ", 1, 0, 0, 5, 0, 0)
    relocation = struct.pack("<QQq", 8, 1 << 32 | 1, 0)
    info = b"kernels:\n  - name: k\n"
    sections = ((b".symtab", symbols), (b".strtab", b"\0k\0"), (b".rela.text", relocation), (b".ze_info", info))
    made = bytearray(native(1000, *sections))
    struct.pack_into("<H", made, 16, 1)
    for number, kind, link, info_of, size in (
        (SYMBOLS, 2, STRINGS, 1, 24),
        (STRINGS, 3, 0, 0, 0),
        (RELOCATIONS, 4, SYMBOLS, 5, 24),
    ):
        row = 64 + 64 * number
        struct.pack_into("<I", made, row + 4, kind)
        struct.pack_into("<II", made, row + 40, link, info_of)
        struct.pack_into("<Q", made, row + 56, size)
    return made


def content(made: bytearray, number: int) -> int:
    return int(struct.unpack_from("<Q", made, 64 + 64 * number + 24)[0])


def test_a_program_whose_tables_hold_together_is_whole() -> None:
    assert images.damage(bytes(program()), intel=True) is None


@pytest.mark.parametrize(
    ("number", "at", "words"),
    [
        (SYMBOLS, 24 + 2, "the name of a symbol lies outside"),
        (SYMBOLS, 24 + 6, "a symbol lies in no section"),
        (STRINGS, 2, "its strings have no end"),
        (RELOCATIONS, 2, "a relocation lies outside"),
        (RELOCATIONS, 8 + 6, "a relocation names no symbol"),
        (4, 3, ".ze_info is no text"),
    ],
)
def test_a_flipped_bit_in_a_table_is_found_at_the_first_look(number: int, at: int, words: str) -> None:
    made = program()
    made[content(made, number) + at] ^= 0x10 if number != 4 else 0x60
    found = images.damage(bytes(made), intel=True)
    assert found is not None
    assert words in found


@pytest.mark.parametrize(("row", "at"), [(SYMBOLS, 56), (SYMBOLS, 40), (RELOCATIONS, 40), (RELOCATIONS, 44)])
def test_a_table_that_leads_nowhere_is_found(row: int, at: int) -> None:
    made = program()
    made[64 + 64 * row + at] ^= 0x40
    assert images.damage(bytes(made), intel=True) is not None


def field(made: bytearray, number: int, at: int, form: str, value: int) -> bytes:
    """Forge a field of a section's row: its type 4, offset 24, size 32, link 40, info 44, size of a row 56."""
    struct.pack_into(f"<{form}", made, 64 + 64 * number + at, value)
    return bytes(made)


@pytest.mark.parametrize(
    ("number", "at", "form", "value", "words"),
    [
        (SYMBOLS, 56, "Q", 23, "its symbols have another size"),
        (SYMBOLS, 32, "Q", 47, "its symbols have another size"),
        (SYMBOLS, 40, "I", 7, "its symbols have no names"),
        (SYMBOLS, 40, "I", 4, "its symbols have no names"),
        (STRINGS, 32, "Q", 1, "the name of a symbol lies outside"),
        (RELOCATIONS, 56, "Q", 16, "its relocations have another size"),
        (RELOCATIONS, 32, "Q", 23, "its relocations have another size"),
        (RELOCATIONS, 40, "I", 7, "its relocations are for nothing"),
        (RELOCATIONS, 40, "I", STRINGS, "its relocations are for nothing"),
        (RELOCATIONS, 44, "I", 7, "its relocations are for nothing"),
        (RELOCATIONS, 44, "I", STRINGS, "a relocation lies outside"),
    ],
)
def test_each_field_of_a_table_is_checked(number: int, at: int, form: str, value: int, words: str) -> None:
    found = images.damage(field(program(), number, at, form, value), intel=True)
    assert found is not None
    assert found.endswith(words)


def test_a_relocation_counts_from_its_section_in_objects_only() -> None:
    made = program()
    size = struct.unpack_from("<Q", made, 64 + 64 * 5 + 32)[0]
    place = content(made, RELOCATIONS)
    struct.pack_into("<Q", made, place, size - 1)
    assert images.damage(bytes(made), intel=True) is None
    struct.pack_into("<Q", made, place, size)
    assert images.damage(bytes(made), intel=True) == "section 3: a relocation lies outside"
    struct.pack_into("<H", made, 16, 3)
    assert images.damage(bytes(made), intel=True) is None


def test_a_relocation_names_one_of_the_symbols() -> None:
    made = program()
    struct.pack_into("<Q", made, content(made, RELOCATIONS) + 8, 2 << 32)
    assert images.damage(bytes(made), intel=True) == "section 3: a relocation names no symbol"


@pytest.mark.parametrize(("place", "whole"), [(0, True), (6, True), (7, False), (0xFEFF, False), (0xFF00, True)])
def test_a_symbol_lies_in_a_section_or_has_a_place_of_its_own(place: int, *, whole: bool) -> None:
    made = program()
    struct.pack_into("<H", made, content(made, SYMBOLS) + 24 + 6, place)
    assert (images.damage(bytes(made), intel=True) is None) == whole


def test_names_of_symbols_begin_within_their_table() -> None:
    for name, whole in ((2, True), (3, False)):
        made = program()
        struct.pack_into("<I", made, content(made, SYMBOLS) + 24, name)
        assert (images.damage(bytes(made), intel=True) is None) == whole


def test_relocations_without_an_addend_have_two_numbers() -> None:
    made = program()
    for at, form, value in ((4, "I", 9), (56, "Q", 16), (32, "Q", 16)):
        field(made, RELOCATIONS, at, form, value)
    assert images.damage(bytes(made), intel=True) is None
    struct.pack_into("<Q", made, content(made, RELOCATIONS) + 8, 2 << 32)
    assert images.damage(bytes(made), intel=True) == "section 3: a relocation names no symbol"


def test_strings_begin_and_end_with_a_zero() -> None:
    for at in (0, 2):
        made = program()
        made[content(made, STRINGS) + at] = 1
        assert images.damage(bytes(made), intel=True) == "section 2: its strings have no end"
    assert images.damage(field(program(), 4, 4, "I", 3), intel=True) == "section 4: its strings have no end"
    # An empty table has none.
    empty = program()
    field(empty, STRINGS, 32, "Q", 0)
    found = images.damage(bytes(empty), intel=True)
    assert found == "section 1: the name of a symbol lies outside"


@pytest.mark.parametrize(
    ("kind", "flags", "found"),
    [(1, 6, True), (2, 0, True), (3, 2, True), (4, 0, True), (9, 0, True), (1, 3, False), (0, 0, False), (8, 6, False)],
)
def test_where_code_names_or_symbols_stand_no_page_of_zeros_does(kind: int, flags: int, *, found: bool) -> None:
    for zeros in (1023, 1024):
        made = field(bytearray(native(300, (b".a", b"\1" + bytes(zeros) + b"\1"))), 1, 4, "I", kind)
        told = images.damage(field(bytearray(made), 1, 8, "Q", flags), intel=True)
        assert (told == "section 1: a part of it is all zero") == (found and zeros == 1024)


def test_a_section_whose_name_is_gone_is_none() -> None:
    made = bytearray(native(300, (b".data", b"x")))
    assert images.damage(bytes(made), intel=True) is None
    made[content(made, 3) :] = bytes(len(made) - content(made, 3))
    assert images.damage(bytes(made), intel=True) == "section 1: its name is all zero"


def test_of_all_tables_so_many_rows_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    made = program()
    struct.pack_into("<H", made, content(made, SYMBOLS) + 24 + 6, 7)
    rows = 48 // 16
    monkeypatch.setattr(structure, "_ROWS", rows)
    assert images.damage(bytes(made), intel=True) is not None
    monkeypatch.setattr(structure, "_ROWS", rows - 1)
    assert images.damage(bytes(made), intel=True) is None
    # What one table took, the next has no more.
    made = program()
    struct.pack_into("<Q", made, content(made, RELOCATIONS) + 8, 2 << 32)
    monkeypatch.setattr(structure, "_ROWS", rows + 1)
    assert images.damage(bytes(made), intel=True) is not None
    monkeypatch.setattr(structure, "_ROWS", rows)
    assert images.damage(bytes(made), intel=True) is None


def test_a_section_of_text_may_be_filled_up_with_zeros() -> None:
    made = program()
    end = content(made, 4) + len(b"kernels:\n  - name: k\n")
    made[end - 1] = 0
    assert images.damage(bytes(made), intel=True) is None
    made[end - 3] = 0
    assert images.damage(bytes(made), intel=True) == "section 4: .ze_info is no text"
    # What has no bytes in the file is not read.
    assert images.damage(field(made, 4, 4, "I", 8), intel=True) is None


@pytest.mark.parametrize(
    ("end", "damage"),
    [
        (b"", None),
        (bytes(1 << 17), None),
        (b"\0x" + bytes(1 << 17), "section 1: .ze_info is no text"),
        (bytes(1 << 17) + b"x", "section 1: .ze_info is no text"),
    ],
)
@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, 10 << 20])
def test_text_is_looked_at_in_pieces_however_long_it_is(end: bytes, damage: str | None, size: int) -> None:
    made = native(10, (b".ze_info", b"x" * size + end))
    tracemalloc.start()
    try:
        found = structure.table_damage(made)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == damage
    # Of all of it one copy would be longer, and held others up meanwhile.
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        # The symbols take three rows, the relocations one more.
        (2, {RELOCATIONS}),
        (3, {SYMBOLS}),
        (4, {SYMBOLS, RELOCATIONS}),
    ],
)
def test_so_many_rows_are_looked_at_and_no_more(monkeypatch: pytest.MonkeyPatch, rows: int, found: set[int]) -> None:
    monkeypatch.setattr(structure, "_ROWS", rows)
    assert structure.table_damage(bytes(program())) is None
    damaged = set()
    for number, at in ((SYMBOLS, 24 + 2), (RELOCATIONS, 2)):
        made = program()
        made[content(made, number) + at] ^= 0x10
        if structure.table_damage(bytes(made)) is not None:
            damaged.add(number)
    assert damaged == found
