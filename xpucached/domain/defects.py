"""What can be wrong with an entry, and what that costs the programs that meet it.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final


class Effect(StrEnum):
    """What a defect costs the programs that use the store."""

    HARMLESS = "harmless"  #: the runtime still uses the entry
    DEAD = "dead"  #: never read again, only takes space
    HIDDEN = "hidden"  #: whole, but not read until a lower slot is mended
    ONCE = "once"  #: compiled once more, then mended by the runtime itself
    GROWS = "grows"  #: compiled at every start, one more slot each time
    FAILS = "fails"  #: the program fails at every start
    HANGS = "hangs"  #: the program waits for ever


class Generation(StrEnum):
    """Runtimes that meet every kind of damage alike."""

    UP_TO_2025_0 = "2025.0"  #: 2024.2 and 2025.0: the count at the head of a program's file is honoured
    FROM_2025_1 = "2025.1"  #: it is not looked at


class Defect(StrEnum):
    """Why an entry cannot be used as it is.  The names follow the file that is at fault."""

    BIN_EMPTY = "bin-empty"
    BIN_TRUNCATED = "bin-truncated"
    BIN_MISSING = "bin-missing"
    BIN_UNREADABLE = "bin-unreadable"
    BIN_NOT_A_FILE = "bin-not-a-file"
    BIN_FIFO = "bin-fifo"
    BIN_LENGTH_ABSURD = "bin-length-absurd"
    BIN_COUNT_WRONG = "bin-count-wrong"
    BIN_PAYLOAD_DAMAGED = "bin-payload-damaged"
    BIN_CHANGED = "bin-changed"
    BIN_TRAILING = "bin-trailing"
    SRC_EMPTY = "src-empty"
    SRC_TRUNCATED = "src-truncated"
    SRC_MISSING = "src-missing"
    SRC_UNREADABLE = "src-unreadable"
    SRC_NOT_A_FILE = "src-not-a-file"
    SRC_FIFO = "src-fifo"
    SRC_LENGTH_ABSURD = "src-length-absurd"
    SRC_UNPARSABLE = "src-unparsable"
    SRC_TOO_LARGE = "src-too-large"
    SRC_TRAILING = "src-trailing"
    MISPLACED = "misplaced"
    STALE_LOCK = "stale-lock"
    LOCK_ONLY = "lock-only"
    INTERRUPTED = "interrupted"
    BEHIND_GAP = "behind-gap"
    DUPLICATE = "duplicate"
    SHADOWED = "shadowed"
    LINK = "link"
    LINK_AWAY = "link-away"
    DANGLING_LINK = "dangling-link"
    SKELETON = "skeleton"

    @property
    def effect(self) -> Effect:
        """What it costs where the runtime is not known: the worst of what it costs with any."""
        return self.effect_for(())

    def effect_for(self, readers: Collection[Generation]) -> Effect:
        """Tell what it costs the programs of these runtimes, the worst of them; of all where none is named."""
        effects = _BY_GENERATION.get(self)
        if effects is None:
            return _EFFECTS[self]
        return max((effects[one] for one in readers or Generation), key=tuple(Effect).index)

    @property
    def message(self) -> str:
        """One sentence for people."""
        return _DEFECT_MESSAGES[self]


_EFFECTS: Mapping[Defect, Effect] = {
    Defect.BIN_EMPTY: Effect.GROWS,
    Defect.BIN_TRUNCATED: Effect.GROWS,
    Defect.BIN_MISSING: Effect.ONCE,
    Defect.BIN_UNREADABLE: Effect.GROWS,
    Defect.BIN_NOT_A_FILE: Effect.GROWS,
    Defect.BIN_FIFO: Effect.HANGS,
    Defect.BIN_LENGTH_ABSURD: Effect.ONCE,
    Defect.BIN_PAYLOAD_DAMAGED: Effect.FAILS,
    Defect.BIN_CHANGED: Effect.FAILS,
    Defect.BIN_TRAILING: Effect.HARMLESS,
    Defect.SRC_EMPTY: Effect.DEAD,
    Defect.SRC_TRUNCATED: Effect.DEAD,
    Defect.SRC_MISSING: Effect.DEAD,
    Defect.SRC_UNREADABLE: Effect.DEAD,
    Defect.SRC_NOT_A_FILE: Effect.DEAD,
    Defect.SRC_FIFO: Effect.HANGS,
    Defect.SRC_LENGTH_ABSURD: Effect.FAILS,
    Defect.SRC_UNPARSABLE: Effect.HARMLESS,
    Defect.SRC_TOO_LARGE: Effect.HARMLESS,
    Defect.SRC_TRAILING: Effect.HARMLESS,
    Defect.MISPLACED: Effect.DEAD,
    Defect.STALE_LOCK: Effect.DEAD,
    Defect.LOCK_ONLY: Effect.GROWS,
    Defect.INTERRUPTED: Effect.DEAD,
    Defect.BEHIND_GAP: Effect.HIDDEN,
    Defect.DUPLICATE: Effect.DEAD,
    Defect.SHADOWED: Effect.HIDDEN,
    Defect.LINK: Effect.HARMLESS,
    Defect.LINK_AWAY: Effect.HANGS,
    Defect.DANGLING_LINK: Effect.GROWS,
    Defect.SKELETON: Effect.DEAD,
}

_BY_GENERATION: Mapping[Defect, Mapping[Generation, Effect]] = {
    Defect.BIN_COUNT_WRONG: {Generation.UP_TO_2025_0: Effect.GROWS, Generation.FROM_2025_1: Effect.HARMLESS},
}
"""Of what does not cost the programs of every runtime the same."""

_DEFECT_MESSAGES: Mapping[Defect, str] = {
    Defect.BIN_EMPTY: "the binary is empty: compiled again at every start",
    Defect.BIN_TRUNCATED: "the binary is cut short: compiled again at every start",
    Defect.BIN_MISSING: "the binary is missing: compiled once more, then whole again",
    Defect.BIN_UNREADABLE: "the binary cannot be read: compiled again at every start",
    Defect.BIN_NOT_A_FILE: "the binary is not a regular file: compiled again at every start",
    Defect.BIN_FIFO: "the binary is a named pipe: the application hangs",
    Defect.BIN_LENGTH_ABSURD: "the binary announces an impossible length: compiled once more into another slot",
    Defect.BIN_COUNT_WRONG: "the binary counts other than one program: runtimes up to 2025.0 compile at every start",
    Defect.BIN_PAYLOAD_DAMAGED: "the compiled program is damaged: the application fails at every start",
    Defect.BIN_CHANGED: "the compiled program changed after it was written: the application may fail",
    Defect.BIN_TRAILING: "bytes follow the compiled program: the runtime ignores them",
    Defect.SRC_EMPTY: "the source is empty: never read again",
    Defect.SRC_TRUNCATED: "the source is cut short: never read again",
    Defect.SRC_MISSING: "the source is missing: never read again",
    Defect.SRC_UNREADABLE: "the source cannot be read: never read again",
    Defect.SRC_NOT_A_FILE: "the source is not a regular file: never read again",
    Defect.SRC_FIFO: "the source is a named pipe: the application hangs",
    Defect.SRC_LENGTH_ABSURD: "the source announces an impossible length: the application fails at every start",
    Defect.SRC_UNPARSABLE: "the source's device line is not platform/device/version/driver",
    Defect.SRC_TOO_LARGE: "the source is larger than we read: only its head was looked at",
    Defect.SRC_TRAILING: "bytes follow the source: the runtime ignores them",
    Defect.MISPLACED: "the entry lies where no program looks for it",
    Defect.STALE_LOCK: "a lock was left behind by a program that died: the slot is skipped",
    Defect.LOCK_ONLY: "only a lock was left behind: compiled again at every start",
    Defect.INTERRUPTED: "the program that wrote it died half-way: never read again",
    Defect.BEHIND_GAP: "a lower slot is missing: not read until the gap is closed",
    Defect.DUPLICATE: "a lower slot holds the same program: never read",
    Defect.SHADOWED: "a lower slot with the same source is damaged and is tried first",
    Defect.LINK: "a symbolic link, which we do not follow; the runtime does",
    Defect.LINK_AWAY: "a symbolic link out of the store's file system: the application may hang, or find what it needs",
    Defect.DANGLING_LINK: "a symbolic link to nothing: compiled again at every start",
    Defect.SKELETON: "an empty shell that the runtime's own eviction left",
}

BY_READERS: Final = tuple(_BY_GENERATION)
"""Defects that do not cost the programs of every runtime the same."""


class StoreFault(StrEnum):
    """What is wrong with a store as a whole: the runtime's own eviction, who died in it, what stands in the way."""

    EVICTION_ON = "runtime-eviction"
    SIZE_LOCK = "size-lock"
    SIZE_GARBAGE = "size-garbage"
    SIZE_MISSING = "size-missing"
    BARRIER = "eviction-barrier"
    BLOCKED = "blocked"

    @property
    def message(self) -> str:
        """One sentence for people."""
        return _FAULT_MESSAGES[self]

    @property
    def clearable(self) -> bool:
        """Whether we can put an end to it."""
        return self not in {StoreFault.EVICTION_ON, StoreFault.SIZE_MISSING}


_FAULT_MESSAGES = {
    StoreFault.EVICTION_ON: "the runtime's own eviction is on (SYCL_CACHE_MAX_SIZE); it should leave eviction to us",
    StoreFault.SIZE_LOCK: "cache_size.txt.lock was left behind: programs with SYCL_CACHE_MAX_SIZE set hang",
    StoreFault.SIZE_GARBAGE: "cache_size.txt holds no number: programs with SYCL_CACHE_MAX_SIZE set get an exception",
    StoreFault.SIZE_MISSING: (
        "its root cannot be written: programs with SYCL_CACHE_MAX_SIZE set hang at their first miss"
    ),
    StoreFault.BARRIER: (
        "the file …_eviction_in_progress beside it exists: every program that wants to write here hangs"
    ),
    StoreFault.BLOCKED: "something that is no directory stands where programs need one: they compile at every start",
}
