"""How entries of a kind travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from xpucached.domain.bundles import RecipeLine
    from xpucached.domain.names import EntryKey
    from xpucached.domain.plans import Recipe
    from xpucached.domain.stores import Entry, Store
    from xpucached.domain.targets import Target
    from xpucached.kinds.batches import Batch


class Packed(NamedTuple):
    """An entry that was met, and what `Portable.pack` gives of it; None: it is not plain, and has to be asked."""

    entry: Entry
    content: tuple[Mapping[str, bytes], Recipe] | None = None


class Portable(Protocol):
    """Without it, entries stay on their host."""

    @property
    def FORMAT(self) -> str:  # noqa: N802 - a constant of the module
        """How its runtime lays files out, in a word; empty where compiled programs do not travel, but recipes."""

    def is_file(self, name: str) -> bool:
        """Return whether a file of a bundle may be called so, by its path below the kind's folder.  Pure."""

    def place(self, key: EntryKey) -> EntryKey | None:
        """Return the key under which an entry travels; None if it does not.  Pure."""

    def pack(self, entry: Entry) -> tuple[Mapping[str, bytes], Recipe]:
        """Return the files of an entry as they travel, by their paths below the kind's folder, and what `unpack` does.

        Raises as it does, and OSError.
        """

    def unpack(self, store: Store, target: Target, files: Mapping[str, bytes]) -> tuple[Recipe, bytes]:
        """Take apart what lay in one directory of a bundle, for `batch`.

        Raises ValueError unless all of it belongs together, to that place, and to that target.
        """

    def batch(self, root: Path) -> Batch:
        """Begin to put programs into a store; what was not published goes at the end.  Raises OSError."""

    def lineage(self, recipe: Recipe) -> str:
        """Return what stays of an entry's key whatever compiles it."""

    def facts(self, recipe: Recipe) -> Mapping[str, str]:
        """Return what of a recipe's facts travels: what changes the program."""

    def recipe(self, store: Store, line: RecipeLine, given: bytes) -> Recipe:
        """Return a recipe that travelled, with what it is compiled from.

        Raises ValueError unless it is one that could be exported, and is called as `lineage` says.
        """

    def walk(self, store: Store) -> Mapping[Target, tuple[int, Iterator[Packed]]] | None:
        """Go through a store once; give for each target about how many entries there are, and these.

        They come in the order of the keys under which they travel, and what is plain is packed on the way.  None where
        a look at all of it is needed to say what it holds.  Raises OSError, and so do the iterators.
        """
