"""Door: what is in a bundle, and what came of it, as text.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.domain.bundles import BundleContent, DiffReport, ExportReport, InspectReport
from xpucached.printing import plain
from xpucached.render.text import TextStyle, size, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain.bundles import BundleMember, BundleReport, BundleView
    from xpucached.domain.targets import Target


def report(of: BundleReport, style: TextStyle) -> str:
    """Write what came of an order."""
    match of:
        case ExportReport():
            lines = [_view(of.view, style), *_skipped(of.skipped), *(f"note: {plain(one)}" for one in of.notes)]
            return "\n".join(lines)
        case InspectReport():
            return _view(of.view, style)
        case DiffReport():
            return _diff(of)


def names(of: BundleReport) -> str:
    """Return only the digest, or which members differ."""
    match of:
        case ExportReport() | InspectReport():
            return of.view.digest
        case DiffReport():
            return "\n".join(_member(one.content, one.target) for one in of.changes)


def _view(view: BundleView, style: TextStyle) -> str:
    rows = [_row(one) for one in view.members]
    head = f"bundle {view.digest}"
    if view.checked:
        head += "\nall of it was read, and is what it should be"
    return head + "\n\n" + table(("CONTENT", "FOR", "ENTRIES", "SIZE", "PACKED", "COMPILER"), rows, style)


def _row(one: BundleMember) -> tuple[str, ...]:
    facts = one.facts
    for_ = "any driver" if facts.target is None else f"{plain(facts.target.device)}, {plain(facts.target.toolchain)}"
    known = (
        ""
        if facts.content is BundleContent.RECIPES
        else f"{len(facts.compiler)} files"
        if facts.compiler
        else "unknown"
    )
    return (facts.content.value, for_, str(facts.entries), size(facts.bytes), size(one.size), known)


def _skipped(skipped: Mapping[str, int]) -> list[str]:
    return [f"left out: {count} entries: {plain(why)}" for why, count in sorted(skipped.items())]


def _member(content: BundleContent, target: Target | None) -> str:
    return content.value if target is None else f"{content} {plain(target.device)}, {plain(target.toolchain)}"


def _diff(of: DiffReport) -> str:
    if not of.changes:
        return "both hold the same"
    return "\n".join(f"{one.change} {_member(one.content, one.target)}: {plain(one.detail)}" for one in of.changes)
