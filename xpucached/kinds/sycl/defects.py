"""What can be wrong with entries of a SYCL store, by the file that is at fault, and with a store as a whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

from xpucached.domain.defects import Defect, Effect, RepairAction, StoreFault, declared


class Generation(StrEnum):
    """Runtimes that meet every kind of damage alike."""

    UP_TO_2025_0 = "2025.0"  #: 2024.2 and 2025.0: the count at the head of a program's file is honoured
    FROM_2025_1 = "2025.1"  #: it is not looked at


_PROGRAM: Final = (RepairAction.REBUILD, RepairAction.QUARANTINE)

BIN_EMPTY: Final = Defect("bin-empty", Effect.GROWS, "the binary is empty: compiled again at every start", _PROGRAM)
BIN_TRUNCATED: Final = Defect(
    "bin-truncated", Effect.GROWS, "the binary is cut short: compiled again at every start", _PROGRAM
)
BIN_MISSING: Final = Defect(
    "bin-missing", Effect.ONCE, "the binary is missing: compiled once more, then whole again", _PROGRAM
)
# Who may not read it does not know that it is damaged: it goes only if another one takes its place.
BIN_UNREADABLE: Final = Defect(
    "bin-unreadable",
    Effect.GROWS,
    "the binary cannot be read: compiled again at every start",
    (RepairAction.READABLE, RepairAction.REBUILD),
)
BIN_NOT_A_FILE: Final = Defect(
    "bin-not-a-file", Effect.GROWS, "the binary is not a regular file: compiled again at every start", _PROGRAM
)
BIN_FIFO: Final = Defect("bin-fifo", Effect.HANGS, "the binary is a named pipe: the application hangs")
BIN_LENGTH_ABSURD: Final = Defect(
    "bin-length-absurd",
    Effect.ONCE,
    "the binary announces an impossible length: compiled once more into another slot",
    _PROGRAM,
)
BIN_COUNT_WRONG: Final = Defect(
    "bin-count-wrong",
    Effect.GROWS,
    "the binary counts other than one program: runtimes up to 2025.0 compile at every start",
    _PROGRAM,
    passing=True,
)
BIN_PAYLOAD_DAMAGED: Final = Defect(
    "bin-payload-damaged",
    Effect.FAILS,
    "the compiled program is damaged: the application fails at every start",
    _PROGRAM,
)
BIN_TRAILING: Final = Defect(
    "bin-trailing", Effect.HARMLESS, "bytes follow the compiled program: the runtime ignores them"
)
SRC_EMPTY: Final = Defect("src-empty", Effect.DEAD, "the source is empty: never read again")
SRC_TRUNCATED: Final = Defect("src-truncated", Effect.DEAD, "the source is cut short: never read again")
SRC_MISSING: Final = Defect("src-missing", Effect.DEAD, "the source is missing: never read again")
SRC_UNREADABLE: Final = Defect(
    "src-unreadable", Effect.DEAD, "the source cannot be read: never read again", (RepairAction.READABLE,)
)
SRC_NOT_A_FILE: Final = Defect("src-not-a-file", Effect.DEAD, "the source is not a regular file: never read again")
SRC_FIFO: Final = Defect("src-fifo", Effect.HANGS, "the source is a named pipe: the application hangs")
SRC_LENGTH_ABSURD: Final = Defect(
    "src-length-absurd", Effect.FAILS, "the source announces an impossible length: the application fails at every start"
)
SRC_UNPARSABLE: Final = Defect(
    "src-unparsable", Effect.HARMLESS, "the source's device line is not platform/device/version/driver"
)
SRC_TOO_LARGE: Final = Defect(
    "src-too-large", Effect.HARMLESS, "the source is larger than we read: only its head was looked at"
)
SRC_TRAILING: Final = Defect("src-trailing", Effect.HARMLESS, "bytes follow the source: the runtime ignores them")
MISPLACED: Final = Defect("misplaced", Effect.DEAD, "the entry lies where no program looks for it")
# Where programs use another slot by now, what nobody has read since its writer died must not come before it.
STALE_LOCK: Final = Defect(
    "stale-lock",
    Effect.DEAD,
    "a lock was left behind by a program that died: the slot is skipped",
    (RepairAction.UNLOCK,),
    superseded=(RepairAction.TRASH,),
    passing=True,
)
LOCK_ONLY: Final = Defect(
    "lock-only", Effect.GROWS, "only a lock was left behind: compiled again at every start", passing=True
)
INTERRUPTED: Final = Defect(
    "interrupted", Effect.DEAD, "the program that wrote it died half-way: never read again", passing=True
)
BEHIND_GAP: Final = Defect(
    "behind-gap",
    Effect.HIDDEN,
    "a lower slot is missing: not read until the gap is closed",
    (RepairAction.CLOSE_GAP,),
    whole=True,
)
SHADOWED: Final = Defect(
    "shadowed",
    Effect.HIDDEN,
    "a lower slot with the same source is damaged and is tried first",
    (),
    whole=True,
    covers=True,
)
DUPLICATE: Final = Defect(
    "duplicate",
    Effect.DEAD,
    "a lower slot holds the same program: never read",
    (RepairAction.TRASH,),
    whole=True,
    uncovered=SHADOWED,
)
LINK: Final = Defect("link", Effect.HARMLESS, "a symbolic link, which we do not follow; the runtime does")
LINK_AWAY: Final = Defect(
    "link-away",
    Effect.HANGS,
    "a symbolic link out of the store's file system: the application may hang, or find what it needs",
)
DANGLING_LINK: Final = Defect(
    "dangling-link", Effect.GROWS, "a symbolic link to nothing: compiled again at every start"
)
SKELETON: Final = Defect("skeleton", Effect.DEAD, "an empty shell that the runtime's own eviction left")

DEFECTS: Final = declared(Defect, globals())

_BY_GENERATION: Final[Mapping[str, Mapping[Generation, Effect]]] = {
    BIN_COUNT_WRONG.code: {Generation.UP_TO_2025_0: Effect.GROWS, Generation.FROM_2025_1: Effect.HARMLESS},
}
"""Of what does not cost the programs of every runtime the same."""


def effect_for(defect: Defect, readers: Collection[str]) -> Effect:
    """Return what a defect costs the programs of these runtimes, the worst of them; of all where none is named."""
    effects = _BY_GENERATION.get(defect.code)
    if effects is None:
        return defect.effect
    named = [one for one in Generation if one in readers]
    return max((effects[one] for one in named or Generation), key=tuple(Effect).index)


EVICTION_ON: Final = StoreFault(
    "runtime-eviction",
    Effect.HARMLESS,
    "the runtime's own eviction is on (SYCL_CACHE_MAX_SIZE); it should leave eviction to us",
    clearable=False,
)
SIZE_LOCK: Final = StoreFault(
    "size-lock",
    Effect.HANGS,
    "cache_size.txt.lock was left behind: programs with SYCL_CACHE_MAX_SIZE set hang",
)
SIZE_GARBAGE: Final = StoreFault(
    "size-garbage",
    Effect.FAILS,
    "cache_size.txt holds no number: programs with SYCL_CACHE_MAX_SIZE set get an exception",
)
SIZE_MISSING: Final = StoreFault(
    "size-missing",
    Effect.HANGS,
    "its root cannot be written: programs with SYCL_CACHE_MAX_SIZE set hang at their first miss",
    clearable=False,
)
BARRIER: Final = StoreFault(
    "eviction-barrier",
    Effect.HANGS,
    "the file …_eviction_in_progress beside it exists: every program that wants to write here hangs",
)
BLOCKED: Final = StoreFault(
    "blocked",
    Effect.GROWS,
    "something that is no directory stands where programs need one: they compile at every start",
)

FAULTS: Final = declared(StoreFault, globals())
