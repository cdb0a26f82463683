"""What can be wrong with entries of the GPU driver's cache, and with a store as a whole.

Each was shown to driver 26.27 (``docs/kinds.md``).  The driver never writes over an entry that is there.
"""

from __future__ import annotations

from typing import Final

from xpucached.domain.defects import Defect, Effect, RepairAction, StoreFault, declared

_AWAY: Final = (RepairAction.TRASH,)

EMPTY: Final = Defect("entry-empty", Effect.GROWS, "the entry is empty: its program is compiled at every start", _AWAY)
DAMAGED: Final = Defect(
    "entry-damaged",
    Effect.FAILS,
    "the entry is damaged: the driver refuses it or crashes, and its program fails at every start",
)
FIFO: Final = Defect("entry-fifo", Effect.HANGS, "the entry is a named pipe: its program hangs", _AWAY)
MISPLACED: Final = Defect("entry-misplaced", Effect.DEAD, "the entry lies where no driver looks for it", _AWAY)
NOT_A_FILE: Final = Defect(
    "entry-not-a-file", Effect.GROWS, "the entry is no regular file: its program is compiled at every start", _AWAY
)
LINK: Final = Defect("entry-link", Effect.HARMLESS, "the entry is a link: the driver follows it, and we do not", ())
LINK_DANGLING: Final = Defect(
    "entry-link-dangling", Effect.ONCE, "the entry is a link to nothing: the driver writes in its place", _AWAY
)
LINK_AWAY: Final = Defect(
    "entry-link-away", Effect.UNKNOWN, "the entry is a link that leaves the file system: it is not asked where to", ()
)
FOREIGN: Final = Defect(
    "entry-foreign",
    Effect.HARMLESS,
    "the entry belongs to somebody else: the driver loads it, and we do not read it",
    (),
)
UNREADABLE: Final = Defect(
    "entry-unreadable", Effect.GROWS, "the entry may not be read: its program is compiled at every start", _AWAY
)
LARGE: Final = Defect("entry-large", Effect.HARMLESS, "the entry is larger than we read: it was not looked into", ())

DEFECTS: Final = declared(Defect, globals())

TOTAL_LOW: Final = StoreFault(
    "total-low",
    Effect.HARMLESS,
    "config.file counts less than there is: the driver lets the cache grow beyond its limit",
)
TOTAL_HIGH: Final = StoreFault(
    "total-high", Effect.ONCE, "config.file counts more than there is: the driver evicts before its limit is reached"
)
TOTAL_OVER: Final = StoreFault(
    "total-over",
    Effect.GROWS,
    "config.file counts more than the driver's limit although there is less: each write evicts all other entries",
)
TOTAL_BLOCKED: Final = StoreFault(
    "total-blocked",
    Effect.GROWS,
    "config.file is no file that the driver can open: nothing is cached any more",
)
BLOCKED: Final = StoreFault(
    "blocked",
    Effect.GROWS,
    "something stands where the driver needs a directory or an entry: some programs are compiled at every start",
    clearable=False,
)
LOCKED: Final = StoreFault(
    "lock-held",
    Effect.HANGS,
    "a program holds the lock of the cache: every program that has compiled something waits for it",
    clearable=False,
)
LEFT_BEHIND: Final = StoreFault(
    "left-behind", Effect.DEAD, "programs died while they wrote (cl_cache.XXXXXX): nobody counts or removes these files"
)

FAULTS: Final = declared(StoreFault, globals())
