"""The name that the driver gives an entry: a hash of all that decides about the program.  Pure.

It is no cryptographic one, and stands in compute-runtime's ``hash.h``; numbers are little-endian, and what is left of a
piece that is no multiple of four bytes is mixed in as one number of its own.
"""

from __future__ import annotations

import struct
from typing import Final

_WORD: Final = 0xFFFFFFFF
_BEGIN: Final = (0x428A2F98, 0x71374491, 0xB5C0FBCF)
_PIECE: Final = 1 << 16

State = tuple[int, int, int]


def begun() -> State:
    """Return the state of a hash before the first byte."""
    return _BEGIN


def update(state: State, data: bytes) -> State:
    """Take a piece in; where one piece ends and the next begins matters."""
    whole = len(data) & ~3
    for begin in range(0, whole, _PIECE):
        state = _mixed(state, struct.unpack_from(f"<{min(_PIECE, whole - begin) // 4}I", data, begin))
    rest = 0
    for byte in data[whole:]:
        rest = (rest | byte) << 8
    return _mixed(state, (rest & _WORD,)) if whole < len(data) else state


def value(state: State) -> int:
    """Return the hash of what was taken in."""
    return state[1] << 32 | state[2]


def _mixed(state: State, words: tuple[int, ...]) -> State:
    first, high, low = state
    for word in words:
        a, b, c = first ^ word, high, low
        a = (a - b - c) & _WORD ^ (c >> 13)
        b = (b - c - a) & _WORD ^ (a << 8 & _WORD)
        c = (c - a - b) & _WORD ^ (b >> 13)
        a = (a - b - c) & _WORD ^ (c >> 12)
        b = (b - c - a) & _WORD ^ (a << 16 & _WORD)
        c = (c - a - b) & _WORD ^ (b >> 5)
        a = (a - b - c) & _WORD ^ (c >> 3)
        b = (b - c - a) & _WORD ^ (a << 10 & _WORD)
        c = (c - a - b) & _WORD ^ (b >> 15)
        first, high, low = a, b, c
    return first, high, low
