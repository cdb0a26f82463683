"""Compiled programs whose tables do not hold together: damage from before anybody looked."""

from __future__ import annotations

import struct

import pytest

from tests.support.builders import native
from xpucached.kinds import images

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
