"""Door: the trash, and what a thorough look found, for people.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.domain.defects import Effect, RepairAction
from xpucached.domain.trash import LISTED, Unproven
from xpucached.printing import plain
from xpucached.render.host import problems
from xpucached.render.text import Cell, Colour, TextStyle, age, count, seconds, size, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.domain.reports import TrashReport, VerifyReport
    from xpucached.domain.trash import Comparison, Finding, Trashed


def trash(values: Sequence[Trashed], style: TextStyle, owners: Sequence[str] = ()) -> str:
    """Write one line for each thing in the trash."""
    if not values:
        return "the trash is empty"
    rows: list[list[str | Cell]] = [
        [
            one.ref,
            Cell("quarantine", Colour.RED)
            if one.quarantined
            else "trash"
            if one.whole
            else Cell("torn", Colour.YELLOW),
            one.reason,
            size(one.allocated),
            age(one.at, style.now),
            one.driver or "-",
            str(one.store.root),
            one.detail,
        ]
        for one in values
    ]
    heads = ("REF", "WHERE", "REASON", "SIZE", "SINCE", "DRIVER", "STORE", "WHY")
    text = table(heads, rows, style, right="SIZE", owners=owners)
    total = f"{len(values)} in the trash, {size(sum(one.allocated for one in values))}"
    more = "; there is more in it, of which no more is listed" if len(values) >= LISTED else ""
    return f"{text}\n{total}{more}"


def trash_report(report: TrashReport, style: TextStyle) -> str:
    """Write what came back, and what is gone for good."""
    lines: list[str] = []
    for one in report.restored:
        back = one.key is not None
        word = style.paint("back" if back else "left", Colour.GREEN if back else Colour.YELLOW)
        lines.append(f"{word}  {plain(one.entry or one.ref)}  {plain(one.detail or one.key or '')}")
    if report.dropped:
        lines.append(f"{len(report.dropped)} gone for good, freed {size(report.freed)}")
    return "\n".join(lines) or "nothing in the trash can come back or go"


def verification(report: VerifyReport, style: TextStyle) -> str:
    """Write what was found and mended."""
    rows: list[list[str | Cell]] = [
        [
            one.ref or "-",
            one.defect or one.fault or "-",
            Cell(one.effect, None if one.effect is Effect.HARMLESS else Colour.RED),
            _remedy(one, fix=report.fix),
            str(one.store.root),
            f"{one.message} ({one.detail})" if one.detail else one.message,
        ]
        for one in report.findings
    ]
    # The doctor reads no entries: it looks at the stores as a whole.
    entries = f"{count(report.entries, 'entry')} in " if report.entries else ""
    looked = f"looked at {entries}{count(report.stores, 'store')} in {seconds(report.seconds)}"
    compared = f"\n{comparison(report.deep, style)}" if report.deep is not None else ""
    if dark := _unread(report):
        words = f"{dark}: whether anything is wrong there is unknown"
        compared = f"\n{style.paint(words, Colour.RED)}; see: xpucachectl stores{compared}"
    if report.damaged:
        words = f"{count(report.damaged, 'damaged entry')} known to make programs hang, fail or compile again"
        compared = f"\n{style.paint(words, Colour.RED)}; mend: xpucachectl verify --fix{compared}"
    if untrusted := problems(report.untrusted, style):
        looked = f"{untrusted}\n{looked}"
    if not rows:
        wrong = f"nothing {'else ' if untrusted else ''}is wrong" if entries else "no file in them makes programs hang"
        if report.damaged:
            wrong = "nothing is wrong with them as a whole"
        return f"{looked}: {f'not everything could be read; in the rest {wrong}' if dark else wrong}{compared}"
    heads = ("REF", "WHAT", "COSTS", "FATE", "STORE", "WHY")
    text = table(heads, rows, style)
    done = sum(one.done for one in report.findings)
    left = sum(not one.done and one.effect is not Effect.HARMLESS for one in report.findings)
    hint = "" if report.fix or not left else "\nmend it: --fix"
    return f"{text}\n{looked}: {len(rows)} found, {done} mended, {left} left{hint}{compared}"


def _unread(report: VerifyReport) -> str:
    """Return what could not be read, in words; empty if all could."""
    stores = f"{count(report.unread, 'store')} could not be looked at" if report.unread else ""
    parts = f"{report.unread_parts} directories or entries could not be read" if report.unread_parts else ""
    return ", and ".join(filter(None, (stores, parts)))


def comparison(found: Comparison, style: TextStyle) -> str:
    """Write what compiling entries again said of them."""
    again = f", compiled again in {seconds(found.compile_seconds)}" if found.compile_seconds else ""
    lines = [f"{style.paint('proven good', Colour.GREEN)}: {count(found.proven, 'entry')}{again}"]
    for why, number in found.unproven.items():
        some = ""
        if why is Unproven.OTHER_BYTES:
            named = " ".join(found.differing[:_NAMED])
            some = f": {plain(named)}{' …' if number > _NAMED else ''}"
        lines.append(f"not proven: {number} {_UNPROVEN[why]}{some}")
    lines += [f"  {plain(words)}" for words in found.failures]
    return "\n".join(lines)


_NAMED = 5

_UNPROVEN = {
    Unproven.OTHER_BYTES: "came out otherwise, which alone is no damage",
    Unproven.OTHER_DRIVER: "for a driver that is not in use here",
    Unproven.FAILED: "that the compiler did not compile",
    Unproven.CHANGED: "that a program wrote meanwhile",
    Unproven.KIND: "of a kind that only its programs can compile",
    Unproven.UNRECORDED: "of which no run told how they are compiled",
    Unproven.NATIVE: "compiled ahead of time, with nothing to compile",
    Unproven.CONSTANTS: "with specialization constants",
    Unproven.SEVERAL: "linked from several images",
    Unproven.DAMAGED: "damaged",
    Unproven.UNREADABLE: "that cannot be read, or are too large",
    Unproven.FOREIGN: "written by somebody else",
}


_DONE = {
    RepairAction.UNLOCK: "unlocked",
    RepairAction.READABLE: "readable",
    RepairAction.SWAP_BACK: "swapped back",
    RepairAction.REBUILD: "rebuilt",
    RepairAction.CLOSE_GAP: "moved down",
    RepairAction.QUARANTINE: "quarantined",
    RepairAction.TRASH: "in the trash",
    RepairAction.CLEAR: "cleared",
    RepairAction.LEAVE: "left",
}


def _remedy(one: Finding, *, fix: bool) -> Cell:
    if one.done:
        return Cell(_DONE[one.action], Colour.GREEN)
    if one.action is RepairAction.LEAVE:
        return Cell("left")
    return Cell("busy", Colour.YELLOW) if fix else Cell(f"would {one.action}")
