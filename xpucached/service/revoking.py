"""What came with a bundle, or on the word of a key, that is revoked since: it is a problem until it is out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from xpucached import deadlines
from xpucached.bundle.revocations import Revocations, revocations
from xpucached.catalog.builds import revoked_entries
from xpucached.domain.host import Problem
from xpucached.domain.plans import Evict, EvictReason
from xpucached.domain.stores import UNSETTLED

if TYPE_CHECKING:
    from xpucached.service.context import Context

_NAMED: Final = 3
"""So many bundles are named in a sentence."""


def revoked(context: Context) -> tuple[Evict, ...]:
    """Return what is to go because it is revoked, whatever else would keep it; and note it as a problem.  Blocks."""
    folders = context.settings.key_folders
    try:
        known = deadlines.ask(("keys", *folders), lambda: revocations(folders))
    except TimeoutError as error:
        known = Revocations(doubt=f"what is revoked cannot be read: {error.strerror}")
    found = context.catalog.read(revoked_entries, known.digests)
    _note(context, Counter(came for _, came in found))
    if known.doubt:
        hint = "correct the file: one digest a line, behind a # what you like; nobody else may write it or its folder"
        context.problems.note(Problem("revocations-unknown", f"{known.doubt}; no key counts", hint))
    else:
        context.problems.clear("revocations-unknown")
    return tuple(
        Evict(one, EvictReason.REVOKED, f"it came with a bundle that is revoked: {came}")
        for one, came in found
        if one.entry.state not in UNSETTLED
    )


def _note(context: Context, bundles: Counter[str]) -> None:
    if not bundles:
        context.problems.clear("revoked-entries")
        return
    more = len(bundles) - _NAMED
    named = "; ".join(name for name, _ in bundles.most_common(_NAMED)) + (f"; and {more} more" if more > 0 else "")
    problem = Problem(
        "revoked-entries",
        f"{bundles.total()} entries came with what is revoked here, and programs may run them: {named}",
        "run: xpucachectl evict --reason revoked; the daemon takes them out at each look",
    )
    if problem not in context.problems.all():
        context.events.post("alarm", problem.message, {"revoked": str(bundles.total())})
    context.problems.note(problem)
