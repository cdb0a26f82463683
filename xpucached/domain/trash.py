"""What was taken out of a store but is still there, and what is wrong with a store as a whole.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from xpucached.domain.defects import Defect, Effect, RepairAction
from xpucached.domain.names import AwareDatetime, EntryKey, EntryRef, TrashRef
from xpucached.domain.plans import EvictReason, NoRecipe
from xpucached.domain.stores import Entry, EntryId, Store

UNTRUSTED: Final = frozenset({"revoked-entries", "revocations-unknown"})
"""The codes of problems with what came from elsewhere and is trusted no more, or perhaps not."""

LISTED: Final = 100_000
"""So many things in the trashes of all stores are listed, and no more."""


class TrashLabel(Struct, frozen=True):
    """Why an entry goes into the trash: what stands on its label there."""

    at: AwareDatetime
    reason: EvictReason
    detail: str


class Trashed(Struct, frozen=True):
    """An entry in the trash of its store."""

    ref: TrashRef
    store: Store
    key: EntryKey  #: where it was
    at: AwareDatetime
    reason: EvictReason
    detail: str
    quarantined: bool  #: damaged: it is kept as evidence, and not given back
    device: str
    driver: str
    allocated: int
    whole: bool  #: all its files are there


class Restored(Struct, frozen=True):
    """What became of one that should come back."""

    ref: TrashRef
    key: EntryKey | None  #: where it is now; None if it could not come back
    detail: str = ""
    entry: EntryRef | None = None  #: what it is called there


class DropReason(StrEnum):
    """Why something leaves the trash for good."""

    EXPIRED = "expired"
    OVER_BOUND = "over-bound"  #: the trash holds more than it may
    PRESSURE = "pressure"  #: the stores or the disk need the room
    DEBRIS = "debris"  #: what a killed daemon left of a removal: nothing to give back
    ASKED = "asked"


class Drop(Struct, frozen=True):
    """Drop this for good, for this reason."""

    item: Trashed
    reason: DropReason


class Repair(Struct, frozen=True):
    """Do this about that entry."""

    entry: Entry
    action: RepairAction
    other: Entry | None = None  #: where its program lies now, if in another entry's place
    why: str = ""  #: it is not compiled again, if that would be the better way


class Finding(Struct, frozen=True):
    """Something that is not as it should be, and what was done about it."""

    store: Store
    key: EntryKey | None  #: None for the store as a whole
    ref: EntryRef | None
    defect: str | None  #: the code of an entry's
    fault: str | None  #: the code of a store's
    effect: Effect
    message: str
    detail: str
    action: RepairAction
    done: bool

    @classmethod
    def of(
        cls, entry: EntryId, defect: Defect, effect: Effect, detail: str, action: RepairAction, *, done: bool
    ) -> Finding:
        """Make one about an entry."""
        return cls(entry.store, entry.key, entry.ref, defect.code, None, effect, defect.message, detail, action, done)


class Unproven(StrEnum):
    """Why compiling an entry again says nothing of it."""

    OTHER_BYTES = "other-bytes"  #: other bytes came out, as they may of one compiler, too: that alone is no damage
    OTHER_DRIVER = "other-driver"  #: no driver in use here is the one that it was compiled for
    FAILED = "compiler-failed"
    CHANGED = "changed"  #: a program wrote it anew meanwhile, or is writing it
    KIND = NoRecipe.KIND.value
    UNRECORDED = NoRecipe.UNRECORDED.value
    NATIVE = NoRecipe.NATIVE.value
    CONSTANTS = NoRecipe.CONSTANTS.value
    SEVERAL = NoRecipe.SEVERAL.value
    DAMAGED = NoRecipe.DAMAGED.value
    UNREADABLE = NoRecipe.UNREADABLE.value
    FOREIGN = NoRecipe.FOREIGN.value


class Comparison(Struct, frozen=True):
    """What compiling entries again from their own sources said of them."""

    proven: int = 0  #: the same bytes came out: these are good
    unproven: Mapping[Unproven, int] = field(default_factory=dict)
    differing: tuple[EntryRef, ...] = ()  #: of which other bytes came out: the first hundred
    failures: tuple[str, ...] = ()  #: the first few, in the compilers' own words
    compile_seconds: float = 0.0
