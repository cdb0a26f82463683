"""Door: words, figures and aligned columns for terminals.  Pure."""

from __future__ import annotations

import math
import unicodedata
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached.printing import plain, safe

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence
    from datetime import datetime


class Colour(StrEnum):
    """The colours that we use, as their SGR numbers."""

    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"


class TextStyle(Struct, frozen=True):
    """How to write: what "now" is for ages, how wide the terminal is (None: no limit), and whether it has colours."""

    now: datetime
    width: int | None = None
    colour: bool = False

    def paint(self, text: str, colour: Colour | None) -> str:
        """Colour a text, if colours are wanted."""
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colour and colour is not None and text else text


# -- words and figures ----------------------------------------------------------------------------------------------


def cells(text: str) -> int:
    """Return how many columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def cut(text: str, width: int) -> str:
    """Shorten a text to so many columns; what is left out becomes ``…``."""
    if cells(text) <= width:
        return text
    kept, used = "", 0
    for one in text:
        used += cells(one)
        if used > width - 1:
            break
        kept += one
    return kept + "…" if width > 0 else ""


def cut_within(text: str, width: int) -> str:
    """Shorten a name to so many columns by what stands before its end, for its end tells it from others."""
    if cells(text) <= width:
        return text
    end, used = "", 0
    for one in reversed(text):
        if used + cells(one) > (width - 1) // 2:
            break
        end, used = one + end, used + cells(one)
    return cut(text, width - used) + end


def size(count: int) -> str:
    """Write bytes: ``0 B``, ``1.5 KiB``, ``12 MiB``."""
    if count < 1024:  # noqa: PLR2004 - units are what they are
        return f"{count} B"
    amount = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1023.5 or unit == "TiB":  # noqa: PLR2004 - units are what they are
            return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"  # noqa: PLR2004 - units are what they are
    raise AssertionError


def seconds(count: float | None) -> str:
    """Write a duration: ``0.42 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``."""
    if count is None or not math.isfinite(count):
        return "-"
    if count < 9.995:  # noqa: PLR2004 - units are what they are
        return f"{count:.2f} s"
    whole = round(count)
    if whole < 60:  # noqa: PLR2004 - units are what they are
        return f"{whole} s"
    if whole < 3600:  # noqa: PLR2004 - units are what they are
        return f"{whole // 60} min {whole % 60} s".removesuffix(" 0 s")
    return f"{whole // 3600} h {whole % 3600 // 60} min".removesuffix(" 0 min")


_AGES: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def age(then: datetime | None, now: datetime) -> str:
    """Write how long ago something was: ``3 d ago``, ``just now``; ``never`` for None, and no future."""
    if then is None:
        return "never"
    passed = int((now - then).total_seconds())
    for length, unit in _AGES:
        if passed >= length:
            return f"{passed // length} {unit} ago"
    return "just now"


def count(number: int, noun: str) -> str:
    """Write ``1 entry``, ``2 entries``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


class Cell(Struct, frozen=True):
    """One cell of a table, in a colour."""

    text: str
    colour: Colour | None = None


_SENTENCES: Final = frozenset({"WHY", "DETAIL", "VALUE", "MODELS", "HOSTS"})
"""Heads of last columns that hold sentences or lists: these go on below, and are never cut."""

_CUT: Final = frozenset({"KERNELS"})
"""Heads of columns that may be cut: a kernel's name is as long as its compiler likes, and `show` has all of it."""

_READABLE: Final = 24
"""Columns that a sentence needs beside others; with less it stands below its row."""

_NARROWEST: Final = 12
"""Columns that what may be cut keeps."""

_LONGEST: Final = 0.75
"""The part of a terminal that a column may take: what is longer is whole, and what is beside it goes on below."""

_WIDEST: Final = 256
"""Columns that rows are aligned at where there is no terminal: what is longer moves what stands beside it."""

_COPIED: Final = 2 << 20
"""Characters of what is there to be copied: Linux takes no longer command line unless it is told to."""


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    style: TextStyle,
    *,
    right: str = "",
    owners: Sequence[str] = (),
) -> str:
    """Write aligned columns under their heads; with ``owners``, one for each row, whose each is stands first.

    ``right`` names the heads of columns that are aligned to the right.  Too wide a table loses the columns that say
    nothing, then others from the right, but for the first two and a sentence in the last one, which goes on below.
    No name is cut: what is too long has its line, and the rest of its row stands below.
    """
    if owners:
        heads, rows = ("USER", *heads), [[owner, *row] for owner, row in zip(owners, rows, strict=True)]
    cooked = [[one if isinstance(one, Cell) else Cell(one) for one in row] for row in rows]
    lines = [[Cell(head, Colour.BOLD) for head in heads]] + [
        [Cell(plain(one.text), one.colour) for one in row] for row in cooked
    ]
    widths = _widths(lines)
    if style.width is None:
        # One text that is very long does not fill every row with spaces.
        widths = [min(one, _WIDEST) for one in widths]
    elif _total(widths) > style.width:
        shown = _shown(heads, lines, style.width, kept=3 if owners else 2)
        heads = [heads[index] for index in shown]
        lines = [[line[index] for index in shown] for line in lines]
        widths = _widths(lines, style.width)
    last = len(heads) - 1
    below = False
    if style.width is not None and _total(widths) > style.width:
        room = style.width - _total(widths[:-1]) - 2
        if heads[last] in _CUT:
            widths[last] = max(room, _NARROWEST)
        elif heads[last] in _SENTENCES:
            below = room < min(_READABLE, widths[last])
            widths[last] = max(room, 1) if not below else 0
    aligned, sentence = frozenset(right.split()), heads[last] in _SENTENCES
    written: list[str] = []
    for line in lines:
        texts = [
            cut(one.text, width) if head in _CUT else one.text
            for one, width, head in zip(line, widths, heads, strict=True)
        ]
        rows, parts = list[list[str]](), list[str]()
        for index in range(last if sentence else last + 1):
            gap = " " * (widths[index] - cells(texts[index]))
            painted = style.paint(texts[index], line[index].colour)
            parts.append(gap + painted if heads[index] in aligned else painted if index == last else painted + gap)
            if index < last and style.width is not None and widths[index] < cells(texts[index]):
                # It is too long for its column: what is beside it goes on below, where it begins in the other rows.
                rows.append(parts)
                parts = [" " * _total(widths[: index + 1])]
        if sentence and not below:
            indent = _total(widths[:-1]) + 2 if last else 0
            parts.append(style.paint(fold(line[last].text, style, indent), line[last].colour))
        written += [text for one in [*rows, parts] if (text := "  ".join(one).rstrip())]
        if sentence and below and line[last].text and line is not lines[0]:
            written.append(f"    {style.paint(fold(line[last].text, style, 4), line[last].colour)}")
    return "\n".join(written)


def _shown(heads: Sequence[str], lines: Sequence[Sequence[Cell]], width: int, *, kept: int) -> list[int]:
    """Return which columns of a table that is too wide are shown."""
    told = [index for index in range(len(heads)) if any(line[index].text != "-" for line in lines[1:])]
    shown = told or [*range(len(heads))]
    widths = _widths(lines, width)
    stays = [shown[-1]] if shown and heads[shown[-1]] in _SENTENCES else []
    least = {index: _READABLE if index in stays else _NARROWEST if heads[index] in _CUT else 0 for index in shown}
    while _total([min(widths[one], least[one] or widths[one]) for one in shown]) > width:
        goes = [one for one in shown[kept:] if one not in stays]
        if not goes:
            break
        shown.remove(goes[-1])
    return shown


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1) if widths else 0


def fits(heads: Sequence[str], rows: Iterable[Sequence[str | Cell]], style: TextStyle) -> bool:
    """Return whether a table stays whole on this terminal."""
    texts = [[Cell(plain(one.text if isinstance(one, Cell) else one)) for one in row] for row in rows]
    return style.width is None or _total(_widths([[Cell(head) for head in heads], *texts])) <= style.width


def _widths(lines: Sequence[Sequence[Cell]], width: int | None = None) -> list[int]:
    """Return how wide columns are; too long texts do not count on a terminal of this ``width``, save in the last."""
    if not lines:
        return []
    most, last = int(width * _LONGEST) if width is not None else None, len(lines[0]) - 1
    return [
        max(
            taken
            for row, taken in enumerate(cells(line[index].text) for line in lines)
            if most is None or taken <= most or row == 0 or index == last
        )
        for index in range(last + 1)
    ]


def fold(text: str, style: TextStyle, indent: int = 0) -> str:
    """Break a sentence between words where the terminal ends; its first line begins after ``indent`` columns, too.

    A command of ours in it stays in one line, so that it can be copied, and so does a word that is too long.
    """
    if style.width is None or indent + cells(text) <= style.width:
        return text
    before, command, after = text.partition("xpucachectl ")
    words = before.split()
    if command:
        # What it stands behind without a space, as a bracket, belongs to it.
        beside = words.pop() if before and not before[-1].isspace() else ""
        words.append(beside + command + after)
    lines, taken = list[list[str]](), 0
    for word in words:
        # Each character is counted once: who said this may be no friend of who reads it.
        width = cells(word)
        if lines and taken + 1 + width <= style.width:
            lines[-1].append(word)
            taken += 1 + width
        else:
            lines.append([word])
            taken = indent + width
    return f"\n{' ' * indent}".join(map(" ".join, lines))


def facts(pairs: Iterable[tuple[str, str]], style: TextStyle, *, whole: Container[str] = ()) -> str:
    """Write names and values, one pair a line; pairs without a value are left out.

    Those that ``whole`` names are for copying: they are not broken where the terminal ends.
    """
    shown = [(plain(name), safe(text[:_COPIED]) if name in whole else plain(text)) for name, text in pairs if text]
    # One name that is very long does not fill every line with spaces.
    most = _WIDEST if style.width is None else int(style.width * _LONGEST)
    width = min(max((len(name) for name, _ in shown), default=0), most)
    return "\n".join(
        f"{style.paint(name.ljust(width), Colour.DIM)}  {text if name in whole else fold(text, style, width + 2)}"
        for name, text in shown
    )


def section(title: str, body: str, style: TextStyle) -> str:
    """Write a title above its body."""
    return f"{style.paint(title, Colour.BOLD)}\n{body}"
