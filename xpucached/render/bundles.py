"""Door: what is in a bundle, and what came of it, as text.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.bundles import (
    BundleContent,
    BundleReplayReport,
    DiffReport,
    ExportReport,
    FetchReport,
    ImportReport,
    InspectReport,
    KeyReport,
    PullReport,
    PushReport,
)
from xpucached.printing import plain, quoted
from xpucached.render.text import TextStyle, size, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xpucached.domain.bundles import BundleMember, BundleReport, BundleView, FetchedBundle, RecipeFailure
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
        case ImportReport():
            return _imported(of, style)
        case BundleReplayReport():
            return _replayed(of)
        case KeyReport():
            signing = f"xpucachectl bundle export --sign {quoted(str(of.secret))}"
            return (
                f"secret key {plain(str(of.secret))}, for: {signing}\n"
                f"public key {plain(str(of.public))}, for hosts that shall trust it: ~/.config/xpucached/trust.d,"
                " or /etc/xpucached/trust.d"
            )
        case PushReport():
            return _pushed(of)
        case FetchReport():
            return "\n".join(_fetched(one) for one in of.bundles)
        case PullReport():
            before = f", {size(of.kept)} were here from before" if of.kept else ""
            came = f"{size(of.fetched)} came from {plain(of.reference)}{before}; {of.signatures} signatures"
            return f"{_view(of.view, style)}\n\n{came}"


def names(of: BundleReport) -> str:
    """Return only the digest, or which members differ."""
    match of:
        case ExportReport() | InspectReport() | PullReport():
            return of.view.digest
        case PushReport():
            return of.digest
        case FetchReport():
            return "\n".join(str(one.path) for one in of.bundles if one.path is not None)
        case DiffReport():
            return "\n".join(_member(one.content, one.target) for one in of.changes)
        case ImportReport():
            return "\n".join(one.key for one in of.made)
        case BundleReplayReport():
            return str(of.into)
        case KeyReport():
            return str(of.public)


def _fetched(one: FetchedBundle) -> str:
    if one.error:
        return f"{plain(one.reference)}: {plain(one.error)}"
    return f"{plain(one.reference)}: {one.digest}, {'new' if one.new else 'there already'}"


def _pushed(of: PushReport) -> str:
    if not of.digest:
        what = "nothing can travel of what" if of.skipped else "nothing"
        words = f"{what} was compiled here from recipes for this driver: nothing was sent to {plain(of.reference)}"
    elif of.sent + of.mounted + of.present:
        mounted = f", {of.mounted} linked from another repository" if of.mounted else ""
        words = (
            f"pushed {of.digest} to {plain(of.reference)}\n"
            f"{of.sent} parts sent ({size(of.bytes)}), {of.present} there already{mounted}; {of.signatures} signatures"
        )
    else:
        words = f"{plain(of.reference)} names {of.digest} already: nothing was sent"
    return "\n".join((words, *_skipped(of.skipped)))


def _view(view: BundleView, style: TextStyle) -> str:
    rows = [_row(one) for one in view.members]
    head = f"bundle {view.digest}"
    head += f"\nsigned by {plain(view.signer)}" if view.signer else f"\nno trusted key: {plain(view.unsigned)}"
    if view.checked:
        head += "\nall of it was read, and is what it should be"
    heads = ("CONTENT", "FOR", "ENTRIES", "SIZE", "PACKED", "COMPILER")
    return head + "\n\n" + table(heads, rows, style, right="ENTRIES SIZE PACKED")


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


_MOST_FAILURES: Final = 10


def _failed(failures: Sequence[RecipeFailure]) -> list[str]:
    lines = [f"not compiled: {plain(one.key)}: {plain(one.why)}" for one in failures[:_MOST_FAILURES]]
    more = len(failures) - len(lines)
    return [*lines, f"and {more} others: see --json"] if more else lines


def _imported(of: ImportReport, style: TextStyle) -> str:
    lines = [_view(of.view, style), ""]
    for one in of.images:
        target = "" if one.target is None else f"{plain(one.target.device)}, {plain(one.target.toolchain)}: "
        words = {"publish": "taken in as they are", "rebuild": "recipes instead", "leave": "left"}[one.taking]
        lines.append(f"{one.entries} programs for {target}{words}{f': {plain(one.why)}' if one.why else ''}")
    if of.dry_run:
        return "\n".join((*lines, "nothing was done: this was a dry run"))
    counts = f"{of.published} published, {of.rebuilt} rebuilt, {of.present} there already, {len(of.failures)} failed"
    return "\n".join((*lines, counts, *_skipped(of.skipped), *_failed(of.failures)))


def _replayed(of: BundleReplayReport) -> str:
    targets = [f"for {plain(one.device)}, {plain(one.toolchain)}" for one in of.targets]
    counts = f"{of.rebuilt} rebuilt into {plain(str(of.into))}, {of.present} there already, {len(of.failures)} failed"
    where = (f"by {of.workers} workers",) if of.workers else ()
    return "\n".join((*targets, counts, *where, *_failed(of.failures)))


def _skipped(skipped: Mapping[str, int]) -> list[str]:
    return [f"left out: {count} entries: {plain(why)}" for why, count in sorted(skipped.items())]


def _member(content: BundleContent, target: Target | None) -> str:
    return content.value if target is None else f"{content} {plain(target.device)}, {plain(target.toolchain)}"


def _diff(of: DiffReport) -> str:
    if not of.changes:
        return "both hold the same"
    return "\n".join(f"{one.change} {_member(one.content, one.target)}: {plain(one.detail)}" for one in of.changes)
