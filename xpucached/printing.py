"""Text on its way to a terminal or a log: what a terminal would obey or hide is shown instead.  Pure, quick to load.

Whatever `xpucachectl` and the daemon print goes through here last (`Clean`, `logs`), so that no place that forgets it
lets an escape sequence through.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    class Stream(Protocol):
        """Where text goes."""

        def write(self, text: str, /) -> object:
            """Write a text."""

        def flush(self) -> object:
            """Write what is not written yet."""


# Python calls every space but one unprintable; terminals show them all.
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_BYTE, _SHORT = 0xFF, 0xFFFF

LONGEST = 16 << 10
"""Characters of one text that are shown: more than any path has, and less than would fill a terminal."""

COLOURS = frozenset({"0", "1", "2", "31", "32", "33"})
"""The colours that we use, as their SGR numbers; no other sequence reaches a terminal."""


def safe(text: str) -> str:
    r"""Show what a terminal would obey or hide (escapes, direction marks, lone surrogates) as ``\x1b``, ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in _SPACES else _shown(one) for one in text)


def plain(text: str, longest: int = LONGEST) -> str:
    """Write a sentence in one line, whatever values it quotes; what is left out at its end becomes ``…``."""
    kept = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return safe(" ".join(kept.split()))


BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-")
"""Characters that no shell takes for more than themselves."""


_IN_QUOTES = str.maketrans({"'": "'\"'\"'", "\\": "'\\\\'"})


def in_quotes(text: str) -> str:
    """Return a text as one word of any shell: in the quotes of fish a backslash before a quote hides that."""
    return f"'{text.translate(_IN_QUOTES)}'"


def quoted(text: str) -> str:
    r"""Quote a word for who copies it into a shell: it is the same word when it was shown, also by `plain`.

    What would be written otherwise there (several spaces, the end of a line, escapes) stands as ``$'\x0a'``.
    """
    if text and BARE.issuperset(text):
        return text
    if plain(text, len(text)) == text:
        return in_quotes(text)
    return f"$'{''.join(map(_in_shell, text))}'"


def command(words: Iterable[str]) -> str:
    """Write a command line, each word `quoted`."""
    return " ".join(map(quoted, words))


def _in_shell(character: str) -> str:
    # Where a shell takes no more than the quotes for its own, none is in between.
    if character.isprintable() and character not in " \\'":
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def encodable(text: str) -> str:
    r"""Return a text that can be stored and sent: what is no Unicode is written out, as ``\udcff``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def lines(text: str) -> str:
    """Make a text of several lines safe; our own colours stay."""
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    if line.isprintable():
        return line
    first, *others = line.split("\x1b[")
    parts = [safe(first)]
    for piece in others:
        number, end, rest = piece.partition("m")
        parts.append(f"\x1b[{number}m{safe(rest)}" if end and number in COLOURS else f"\\x1b[{safe(piece)}")
    return "".join(parts)


def _shown(character: str) -> str:
    code = ord(character)
    if code <= _BYTE:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _SHORT else f"\\U{code:08x}"


class Clean:
    """A stream through which only safe text goes; for the rest it is the one beneath."""

    def __init__(self, beneath: Stream) -> None:
        self._beneath = beneath

    def write(self, text: str) -> int:
        """Write a text as `lines` makes it."""
        self._beneath.write(lines(text))
        return len(text)

    def flush(self) -> None:
        """Write what is not written yet."""
        self._beneath.flush()

    def __getattr__(self, name: str) -> object:
        """Return what else the stream beneath has: its descriptor, its encoding, whether it is a terminal."""
        return getattr(self._beneath, name)
