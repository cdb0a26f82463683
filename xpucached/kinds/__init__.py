"""The plug: what a cache kind must offer, and the table of all kinds.

A kind is a module that satisfies `Kind`.  To add one: write the module, put it into `KINDS`, add its test module and
its section in ``docs/kinds.md``.  Nothing else in the house changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from xpucached.kinds import sycl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from xpucached.domain.defects import StoreFault
    from xpucached.domain.host import Process
    from xpucached.domain.names import EntryKey, KindName, TrashRef
    from xpucached.domain.plans import NoRecipe, Recipe
    from xpucached.domain.stores import Entry, EntryId, FoundStore, KnownEntry, Scan, Store
    from xpucached.domain.targets import Target
    from xpucached.domain.trash import Repair, Restored, Trashed, TrashLabel


class Kind(Protocol):
    """One family of caches with one on-disk format.  Every function works with the rights of its caller."""

    @property
    def NAME(self) -> KindName:  # noqa: N802 - a constant of the module
        """The kind's name, as stored and typed."""

    @property
    def TRACING(self) -> Mapping[str, str]:  # noqa: N802 - a constant of the module
        """The variables that make a process tell on stderr which entries it uses; empty if it cannot."""

    @property
    def OFF(self) -> Mapping[str, str]:  # noqa: N802 - a constant of the module
        """The variables that make a process use no cache of this kind, whatever others say."""

    def enable(self, root: Path) -> Mapping[str, str]:
        """Give the variables that make a process use this store, and leave eviction to us: of `CACHE_VARIABLES`."""

    def locate(self, process: Process) -> tuple[Path, str] | None:
        """Tell where a process keeps its store, and how we know; None if it keeps none."""

    def enabled(self, process: Process) -> bool:
        """Tell whether a process uses its store at all."""

    def scan(
        self,
        found: FoundStore,
        now: datetime,
        known: Mapping[EntryKey, str],
        writer_since: datetime | None,
    ) -> Scan:
        """Look at a whole store.  Never raises for what it meets there.

        ``known`` maps keys to the stamps of an earlier look: entries that still have theirs come back as unchanged.
        ``writer_since`` is when the oldest live process that could be writing here started (None: there is none); a
        lock that is older was left behind.
        """

    def parts(
        self,
        found: FoundStore,
        now: datetime,
        known: Iterable[KnownEntry],
        writer_since: datetime | None,
        *,
        quick: bool = False,
    ) -> Iterator[Scan]:
        """Look at a store bit by bit, in the memory that a part takes.  Never raises for what it meets there.

        ``known`` comes in the order of the keys, and is taken as the look goes on.  Each part names what vanished
        where it looked; the last one says how the store is as a whole, and what is wrong there.  With ``quick`` only
        directories are looked at whose entries are known: what was written into a file in its place stays unseen.
        """

    def named(self, root: Path, trace: Iterable[str]) -> tuple[frozenset[EntryKey], frozenset[EntryKey]]:
        """Read a process's own trace: the keys it created, and those it used without creating."""

    def key(self, path: str) -> EntryKey | None:
        """Tell to which entry a file belongs, by its path below the root; None if to none."""

    def remove(
        self,
        entries: Sequence[Entry],
        notes: Mapping[EntryId, TrashLabel] | None = None,
        failed: Callable[[Path, OSError], None] | None = None,
    ) -> Mapping[EntryId, bool]:
        """Take entries out by the runtime's own rules: True if gone, False if busy or no longer the same.

        Those with a note go into the trash of their store, under that label, if there is room; the others for good.
        ``failed`` is told what the disk of a store, by its root, refused.
        """

    def mend(
        self, repairs: Sequence[Repair], failed: Callable[[Path, OSError], None] | None = None
    ) -> Mapping[EntryId, bool]:
        """Mend entries in their places (only those actions that leave them there): True if that was done.

        ``failed`` as for `remove`.
        """

    def trash(self, of: Store) -> tuple[Trashed, ...]:
        """Tell what is in a store's trash; of more than is fit for memory a part, another one each time."""

    def trash_size(self, of: Store) -> int:
        """Tell how many bytes of a disk a store's trash takes."""

    def restore(self, of: Store, refs: tuple[TrashRef, ...]) -> tuple[Restored, ...]:
        """Bring entries back to where the runtime finds them; where it has made them again, that one stays."""

    def discard(
        self, of: Store, refs: tuple[TrashRef, ...], failed: Callable[[Path, OSError], None] | None = None
    ) -> frozenset[TrashRef]:
        """Remove from a store's trash for good; give those that are gone.  ``failed`` as for `remove`."""

    def faults(self, found: FoundStore, now: datetime, writer_since: datetime | None) -> tuple[StoreFault, ...]:
        """Tell what is wrong with a store as a whole; ``writer_since`` as for `scan`."""

    def clear(self, store: Store, fault: StoreFault, now: datetime, writer_since: datetime | None) -> bool:
        """Put an end to a fault: True if it is over."""

    def sweep(self, entry: EntryId) -> bool:
        """Finish what a dead daemon of ours began with an entry: True if something of ours was there."""

    def recipe(self, entry: Entry) -> Recipe | NoRecipe:
        """Read what an entry was compiled from, or say why it cannot be compiled again."""

    def unusable(self, environment: Target, binary: bytes) -> str | None:
        """Say what is wrong with a compiled program that a driver gave; None if nothing is known to be."""

    def publish(self, recipe: Recipe, environment: Target, binary: bytes, into: Path | None = None) -> EntryKey | None:
        """Put a compiled program where the runtime looks for it, all at once: in its store, or in the one at ``into``.

        Gives its key; None if the runtime has written one meanwhile, which stays.  Raises OSError.
        """


KINDS: Final[Mapping[KindName, Kind]] = {kind.NAME: kind for kind in (sycl,)}
"""Every kind there is."""


def remove(
    entries: Sequence[Entry],
    notes: Mapping[EntryId, TrashLabel] | None = None,
    failed: Callable[[Path, OSError], None] | None = None,
) -> Mapping[EntryId, bool]:
    """Take entries of any kinds out; see `Kind.remove`."""
    results: dict[EntryId, bool] = {}
    for name in {entry.id.store.kind for entry in entries}:
        some = [entry for entry in entries if entry.id.store.kind == name]
        results.update(KINDS[name].remove(some, notes, failed))
    return results


def mend(repairs: Sequence[Repair], failed: Callable[[Path, OSError], None] | None = None) -> Mapping[EntryId, bool]:
    """Mend entries of any kinds in their places; see `Kind.mend`."""
    results: dict[EntryId, bool] = {}
    for name in {repair.entry.id.store.kind for repair in repairs}:
        some = [repair for repair in repairs if repair.entry.id.store.kind == name]
        results.update(KINDS[name].mend(some, failed))
    return results
