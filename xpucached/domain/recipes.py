"""What a run told of its entries, and how those are compiled that do not say it themselves.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from xpucached.domain.names import EntryKey
from xpucached.domain.stores import EntryId
from xpucached.domain.targets import Target


class RecipeState(StrEnum):
    """What is known of how an entry is compiled, where runs told of it."""

    RECORDED = "recorded"
    ONCE = "once"  #: one pass told it so far; it counts when another one has asked for the same entry
    NEVER_AGAIN = "never-again"  #: the next pass compiled the same kernels under another key

    @property
    def words(self) -> str:
        """Half a sentence for people."""
        return _STATE_WORDS[self]


_STATE_WORDS: Mapping[RecipeState, str] = {
    RecipeState.RECORDED: "known: two passes asked for it, or its key comes out of what it holds",
    RecipeState.ONCE: "told by one pass; it counts when another has asked for the same entry",
    RecipeState.NEVER_AGAIN: "of no use: its program has another key for it at each start",
}


class RecordedRecipe(Struct, frozen=True):
    """From what a program had an entry compiled, where the entry itself does not hold all of it."""

    key: EntryKey
    target: Target
    lineage: str  #: stays when only the toolchain changes; see `Rebuilder.lineage_key`
    parts: Mapping[str, bytes]  #: what is long, by name: many recipes have the same
    facts: Mapping[str, str]  #: what is short


class Unpredicted(Struct, frozen=True):
    """An entry whose recipe is known, and a target of this host for which nobody has asked its kind yet."""

    entry: EntryId
    target: Target


class Recording(Struct, frozen=True):
    """What a program told of the entries of one store."""

    created: frozenset[EntryKey] = frozenset()
    used: frozenset[EntryKey] = frozenset()  #: without creating them
    recipes: tuple[RecordedRecipe, ...] = ()
    why_incomplete: str = ""  #: why programs may have told nothing there, or kept nothing; empty if they could
