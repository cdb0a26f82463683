"""Which mangled names may be given to libstdc++'s demangler.  Pure.

That demangler trusts its input: where the grammar of expressions is ambiguous it tries both readings, at every level
again, so that a forged name of 600 bytes keeps it busy for ever; and each reference back into a name can double what it
prints, so that 40 of them take all memory there is.  Nothing stops it once it began.  So a name is read here first:
types, names, templates and lambdas, which is what kernels are named by, and nothing that has two readings.
"""

from __future__ import annotations

import functools
from typing import Final

_LONGEST: Final = 2000
"""The demangler takes stack in proportion to a name's length."""

_DEEPEST: Final = 100
"""So many types inside of types; real ones reach thirty."""

_PRINTED: Final = 1 << 20
"""A name that may be longer than this for people is not demangled."""

_DIGITS: Final = b"0123456789"
_SEQUENCE: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BUILTIN: Final = b"vwbcahstijlmxynofdegz"
_EXTENDED: Final = b"dfehisunac"
_STANDARD: Final = b"absiod"
_OPERATORS: Final = frozenset(
    b"nw na dl da ps ng ad de co pl mi ml dv rm an or eo aS pL mI mL dV rM aN oR eO ls rs lS rS eq ne lt gt le ge ss "
    b"nt aa oo pp mm cm pm pt cl ix qu".split()
)


def printed(name: bytes) -> int | None:
    """Bound the length of a name for people, in bytes; None if it must not be demangled."""
    return _bound(name) if len(name) <= _LONGEST else None


@functools.lru_cache(256)
def _bound(name: bytes) -> int | None:
    reader = _Reader(name)
    try:
        reader.whole()
    except ValueError:
        return None
    bound = len(name) << reader.references
    return bound if bound <= _PRINTED else None


class _Reader:
    """Reads a name once, from left to right; raises ValueError for what is not plain."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.references = 0

    def whole(self) -> None:
        self._expect(b"_Z")
        if self._takes(b"TS") or self._takes(b"TI"):
            self._type()
        else:
            self._encoding()
        if self._at != len(self._text):
            raise ValueError

    # -- letters ------------------------------------------------------------------------------------------------------

    def _peek(self) -> bytes:
        return self._text[self._at : self._at + 1]

    def _takes(self, token: bytes) -> bool:
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def _expect(self, token: bytes) -> None:
        if not self._takes(token):
            raise ValueError

    def _run(self, letters: bytes) -> bytes:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in letters:
            self._at += 1
        return self._text[start : self._at]

    def _number(self, *, least: int = 0) -> int:
        digits = self._run(_DIGITS)
        if not least <= len(digits) <= 9:  # noqa: PLR2004 - more overflow somewhere
            raise ValueError
        return int(digits or b"0")

    def _digit(self) -> None:
        """Read one digit behind which no other one follows: whose that is has two readings."""
        if len(self._run(_DIGITS)) != 1:
            raise ValueError

    # -- types --------------------------------------------------------------------------------------------------------

    def _type(self) -> None:
        self._run(b"rVKPRO")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError
        letter = self._peek()
        if letter and letter in _BUILTIN:
            self._at += 1
        elif letter == b"D":
            self._extended()
        elif self._takes(b"F"):
            self._takes(b"Y")
            self._types()
        elif self._takes(b"A"):
            self._number()
            self._expect(b"_")
            self._type()
        elif self._takes(b"M"):
            self._type()
            self._type()
        elif letter == b"T":
            self._reference()
            self._arguments()
        else:
            self._name()
        self._depth -= 1

    def _types(self) -> None:
        while not self._takes(b"E"):
            self._type()

    def _extended(self) -> None:
        self._expect(b"D")
        letter = self._peek()
        if letter and letter in _EXTENDED:
            self._at += 1
        elif not self._takes(b"F16_") and not self._takes(b"F16b"):
            self._expect(b"v")
            self._number(least=1)
            self._expect(b"_")
            self._type()

    def _reference(self) -> None:
        """Read ``S_``, ``S1A_`` or ``T0_``, and the short forms of the standard library."""
        if self._takes(b"T"):
            self._number()
        else:
            self._expect(b"S")
            letter = self._peek()
            if letter and letter in _STANDARD:
                self._at += 1
                return
            self._run(_SEQUENCE)
        self._expect(b"_")
        self.references += 1

    def _arguments(self) -> None:
        """Read template arguments, if there are any."""
        if self._takes(b"I"):
            self._until_end()

    def _until_end(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError
        while not self._takes(b"E"):
            if self._takes(b"J"):
                self._until_end()
            elif self._takes(b"L"):
                self._literal()
            else:
                self._type()
        self._depth -= 1

    def _literal(self) -> None:
        if self._peek() == b"Z":
            # The demangler reads on as after ``_Z``.
            raise ValueError
        if self._takes(b"_Z"):
            self._encoding()
        else:
            self._type()
            self._takes(b"n")
            self._run(_DIGITS)
        self._expect(b"E")

    # -- names --------------------------------------------------------------------------------------------------------

    def _encoding(self) -> None:
        self._name()
        while self._at < len(self._text) and self._peek() != b"E":
            self._type()

    def _name(self) -> None:
        if self._takes(b"N"):
            self._nested()
            return
        if self._takes(b"Z"):
            self._local()
            return
        if self._peek() == b"S" and not self._takes(b"St"):
            self._reference()
        else:
            self._unqualified()
        self._arguments()

    def _nested(self) -> None:
        self._run(b"rVK")
        if not self._takes(b"R"):
            self._takes(b"O")
        first = True
        named = False  # a constructor, or a destructor, prints its name once more
        while first or not self._takes(b"E"):
            letter = self._peek()
            if first and letter in {b"S", b"T"}:
                named = not self._takes(b"St")
                if named:
                    self._reference()
            elif not first and letter == b"I":
                self._arguments()
            elif named and letter in {b"C", b"D"}:
                self._at += 1
                self._digit()
                named = False
            elif not first and self._takes(b"B"):
                self._identifier()
            elif self._text[self._at : self._at + 2] in _OPERATORS:
                self._at += 2
                named = False
            else:
                self._takes(b"L")
                named = self._peek().isdigit()
                self._unqualified()
            first = False

    def _local(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError
        self._encoding()
        self._expect(b"E")
        if not self._takes(b"s"):
            self._name()
        if self._takes(b"__"):
            self._number(least=2)
            self._expect(b"_")
        elif self._takes(b"_"):
            self._digit()
        self._depth -= 1

    def _unqualified(self) -> None:
        if self._takes(b"Ul"):
            self._types()
            self._number()
            self._expect(b"_")
        elif self._takes(b"Ut"):
            self._number()
            self._expect(b"_")
        else:
            self._identifier()

    def _identifier(self) -> None:
        length = self._number(least=1)
        if length == 0 or self._at + length > len(self._text):
            raise ValueError
        self._at += length
