"""Decide: whose entries these are.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.domain.models import Attribution

if TYPE_CHECKING:
    from xpucached.domain.stores import EntryId


def attribute(
    before: frozenset[EntryId],
    after: frozenset[EntryId],
    created: frozenset[EntryId],
    used: frozenset[EntryId],
    *,
    traced: bool | None = None,
) -> Attribution:
    """Return which entries a run made, and which it only used.

    ``before`` and ``after`` are what its store held, ``created`` and ``used`` what its own trace names.  With a trace
    only that counts, because others may compile beside us, and only what is there afterwards, because a trace also
    names what could not be written.  Without one all that is new is taken as the run's, and what it used is not known.
    ``traced`` None: there is a trace if it names anything.
    """
    if traced is None:
        traced = bool(created or used)
    if not traced:
        return Attribution(created=after - before)
    # What a runtime says it stored although it was there, it used.
    made = (created & after) - before
    return Attribution(made, ((created | used) & after) - made)
