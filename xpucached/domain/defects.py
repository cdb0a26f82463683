"""What can be wrong with an entry or a store, and what that costs the programs that meet it.  Pure.

Each cache kind has a table of its own of these; what is decided about them is decided by what stands in the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from msgspec import Struct


class Effect(StrEnum):
    """What a defect costs the programs that use the store."""

    HARMLESS = "harmless"  #: the runtime still uses the entry
    DEAD = "dead"  #: never read again, only takes space
    HIDDEN = "hidden"  #: whole, but not read until a lower slot is mended
    ONCE = "once"  #: compiled once more, then mended by the runtime itself
    GROWS = "grows"  #: compiled at every start, one more slot each time
    FAILS = "fails"  #: the program fails at every start
    HANGS = "hangs"  #: the program waits for ever
    UNKNOWN = "unknown"  #: this version does not know the defect, so nothing is done about it


BEARABLE: Final = frozenset({Effect.HARMLESS, Effect.HIDDEN, Effect.UNKNOWN})
"""For these nothing has to go.  A hidden entry is whole: once the damaged one before it is gone, it is found again."""


class RepairAction(StrEnum):
    """What `verify --fix` does about a finding."""

    UNLOCK = "unlock"  #: the lock of a dead program goes, the entry stays
    READABLE = "readable"  #: its owner, and who may read the rest of it, may read it again
    SWAP_BACK = "swap-back"  #: its program lies in another entry's place: the two change places
    REBUILD = "rebuild"  #: compiled again from its own source; the damaged one is kept as evidence
    CLOSE_GAP = "close-gap"  #: the highest slot moves down to where the runtime finds it
    QUARANTINE = "quarantine"  #: it leaves the store, and is kept as evidence
    TRASH = "trash"  #: whole but never read: it leaves the store, and can come back
    CLEAR = "clear"  #: a file that makes programs hang goes, what blocks them is moved aside
    LEAVE = "leave"  #: the runtime does not mind, or a program is at work there


class Defect(Struct, frozen=True):
    """Why an entry cannot be used as it is, and what is to be done about it."""

    code: str  #: as stored, typed and shown: one word means the same in every kind
    effect: Effect  #: the worst that it costs, where the runtime is not known
    message: str  #: one sentence for people
    repairs: tuple[RepairAction, ...] = (RepairAction.QUARANTINE,)  #: what is done, the best first; nothing: it stays
    superseded: tuple[RepairAction, ...] = ()  #: what is done instead, where its group has an entry that is used
    whole: bool = False  #: there is a program to be compared: another may be tried first, or it may be good after all
    passing: bool = False  #: it ends or begins without a change of the entry's files
    covers: bool = False  #: whole, and takes the place of the damaged one that comes before it; see `Entry.before`
    uncovered: Defect | None = None  #: what it is once the one that comes before it is found to be damaged


CHANGED: Final = Defect(
    "bin-changed",
    Effect.FAILS,
    "the compiled program changed after it was written: the application may fail",
    (RepairAction.SWAP_BACK, RepairAction.REBUILD, RepairAction.QUARANTINE),
    whole=True,
)
"""What only the catalog sees, of entries of any kind: no runtime writes over a compiled program."""


def unknown(code: str) -> Defect:
    """Return what stands for a defect that nobody here knows: one of another version, or of a kind that is gone."""
    return Defect(code, Effect.UNKNOWN, "this version does not know what that is", ())


class StoreFault(Struct, frozen=True):
    """What is wrong with a store as a whole: who died in it, what stands in the way."""

    code: str  #: as shown
    effect: Effect
    message: str  #: one sentence for people
    clearable: bool = True  #: whether we can put an end to it


_Row = TypeVar("_Row", Defect, StoreFault)


def declared(row: type[_Row], names: Mapping[str, object]) -> tuple[_Row, ...]:
    """Return what a module declares of defects or of faults, in its order."""
    return tuple(one for one in names.values() if isinstance(one, row))
