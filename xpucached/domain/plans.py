"""Decisions and what was really done: plans, reports, their reasons.  Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Struct, field

from xpucached.domain.bounds import DAY, Duration, NamedBy, Size, Whole
from xpucached.domain.models import Model, WarmReason
from xpucached.domain.names import Architecture, AwareDatetime, EntryKey, EntryRef, KindName, ModelName
from xpucached.domain.recipes import RecipeState, RecordedRecipe
from xpucached.domain.stores import Entry, EntryId, EntryState, ModelCache, Store
from xpucached.domain.targets import Origin, Target


class Policy(Struct, frozen=True):
    """What the administrator wants kept and tried."""

    keep_driver_generations: Annotated[int, Whole(0, 1000)] = 1
    max_unused: Annotated[float | None, Duration(1, 36500 * DAY, unlimited=None)] = 90 * DAY
    max_bytes: Annotated[int | None, Size(unlimited=True)] = None
    grace: Annotated[float, Duration(0, 365 * DAY)] = 600.0
    min_free_bytes: Annotated[int | None, Size(unlimited=True)] = None  #: what shall be free where a store lies
    quota: Annotated[int | None, Size(unlimited=True)] = None  #: what the stores of one user may hold
    low_water: Annotated[int, Whole(1, 100)] = 100  #: when a limit is passed, evict down to so many percent of it
    trash_keep: Annotated[float, Duration(0, 365 * DAY)] = 7 * DAY
    trash_max_bytes: Annotated[int, Size()] = 1 << 30  #: of one store's trash
    stores: Annotated[tuple[Limits, ...], NamedBy("store")] = ()
    users: Annotated[tuple[Limits, ...], NamedBy("user")] = ()
    attempts: Annotated[int, Whole(1, 100)] = 3
    retry_after: Annotated[float, Duration(0, 365 * DAY)] = 900.0  #: doubled after each further failure
    ahead_keep: Annotated[float | None, Duration(60, 3650 * DAY, unlimited=None)] = 7 * DAY
    """Seconds that what was compiled for a driver waits for its installation."""

    @property
    def limits(self) -> tuple[Limits, ...]:
        """What holds for single users and stores, in place of what holds for all; what comes later wins."""
        return self.users + self.stores


class Limits(Struct, frozen=True):
    """What holds for one store, or for the stores of one user.  What is not given holds as for all."""

    store: Path | None = None
    user: int | None = None
    keep_driver_generations: Annotated[int | None, Whole(0, 1000)] = None
    max_unused: Annotated[float | None, Duration(1, 36500 * DAY, unlimited=math.inf)] = None
    """Infinite where nothing goes for its age."""
    max_bytes: Annotated[int | None, Size(unlimited=True, lifted=(1 << 63) - 1)] = None
    min_free_bytes: Annotated[int | None, Size(unlimited=True, lifted=0)] = None
    grace: Annotated[float | None, Duration(0, 365 * DAY)] = None


class DiskSpace(Struct, frozen=True):
    """Where a store lies, and how much room there is."""

    store: Store
    owner: int | None = None
    device: int = 0  #: of the file system
    free: int | None = None  #: bytes that its owner could still write
    trash: int = 0  #: bytes in the store's trash, which go before any entry does
    held: frozenset[EntryKey] = frozenset()  #: entries that a process has open
    keeps_access_times: bool = True  #: of what is read: else only our own runs know what is used


class Warm(Struct, frozen=True):
    """Warm this model, for this reason."""

    model: Model
    reason: WarmReason
    detail: str


class Deferred(Struct, frozen=True):
    """A model that is not warmed now, or for which there is nothing to warm."""

    model: ModelName
    why: str
    until: AwareDatetime | None
    uncached: bool = False  #: it uses no cache that we know, and so is none that is cold


class PrewarmPlan(Struct, frozen=True):
    """What should be warmed, in order, and what waits."""

    warm: tuple[Warm, ...] = ()
    deferred: tuple[Deferred, ...] = ()
    covered: tuple[ModelName, ...] = ()


class Subtotal(Struct, frozen=True):
    """Entries of one store and one environment together."""

    store: Store
    environment: Target | None
    entries: int
    allocated: int
    created: AwareDatetime | None = None  #: when the newest was, where that was asked for
    used: AwareDatetime | None = None  #: when any was last


class Preselection(Struct, frozen=True):
    """Which entries a plan has to look at one by one; it takes the others as `Subtotal`s."""

    now: AwareDatetime
    young: AwareDatetime  #: what is younger may be protected
    defective: bool = False
    environments: frozenset[Target] = frozenset()  #: all entries for these
    never_here: frozenset[Target] = frozenset()  #: of these, what was compiled ahead
    unused: Mapping[Store, tuple[AwareDatetime, bool]] = field(default_factory=dict)
    """Those used before this; where access times say nothing (False), only if a run or somebody else used them."""
    worst: tuple[tuple[frozenset[Store], float], ...] = ()
    """The least worth of these stores, until they hold so many bytes together."""
    traced: frozenset[Target] = frozenset()  #: of these, when the others were made and used
    present: frozenset[Target] = frozenset()
    upheld: bool = False  #: what a model needs does not go
    pinned: frozenset[ModelName] = frozenset()
    predicted: frozenset[ModelName] = frozenset()  #: what proves these does not go first
    held: frozenset[EntryId] = frozenset()


class EvictReason(StrEnum):
    """Why an entry may go."""

    DEFECTIVE = "defective"
    SUPERSEDED = "superseded-driver"
    REVOKED = "revoked"  #: it came with a bundle that is trusted no more
    NEVER_CAME = "never-installed"  #: it was compiled for a driver that was not installed in time
    GONE = "device-gone"
    UNUSED = "unused"
    BUDGET = "over-budget"
    SPACE = "low-space"  #: the file system has less free than it shall
    ASKED = "asked"  #: somebody named it


class SameInput(Struct, frozen=True):
    """An entry of another kind that was compiled from the same SPIR-V: the same program, in another cache."""

    kind: KindName
    store: Path  #: its root directory
    key: EntryKey
    ref: EntryRef
    state: EntryState
    identical: bool  #: whether the compiled programs are the same bytes


class IndexedEntry(Struct, frozen=True):
    """An entry, and what only the catalog knows of it."""

    entry: Entry
    origin: Origin | None
    architecture: Architecture | None
    models: tuple[ModelName, ...]
    first_seen: AwareDatetime
    last_used: AwareDatetime
    last_used_by: str  #: ``run``, ``restored``, ``observed-loads``, ``access-time`` or ``created``
    cost: float | None = None  #: seconds that making it took, where that was measured
    restored: AwareDatetime | None = None  #: when somebody brought it back from the trash
    hits: int = 0  #: how often programs were seen to load it
    program: str = ""  #: the last one, by its unit or name
    inherited: tuple[ModelName, ...] = ()  #: of `models`, those that were not seen to use it: replay made it for them
    recipe: RecipeState | None = None  #: None where no run told how it is compiled
    replay: str = ""  #: ``possible``, or the `NoRecipe` why it is not; told of one entry alone
    bundle: str = ""  #: the digest of the bundle it came in, and who signed that; told of one entry alone
    elsewhere: tuple[SameInput, ...] = ()  #: the same program in caches of other kinds; told of one entry alone
    estimated: float | None = None  #: seconds that making it may take, where that was not measured and somebody asked


class Evict(Struct, frozen=True):
    """Evict this entry, for this reason."""

    entry: IndexedEntry
    reason: EvictReason
    detail: str


class CacheReason(StrEnum):
    """Why a directory of a model's goes, in which other compilers cache."""

    GONE = "model-gone"
    BUDGET = "over-budget"
    SPACE = "low-space"


class EvictCache(Struct, frozen=True):
    """Evict this directory of a model's as a whole, for this reason."""

    cache: ModelCache
    reason: CacheReason
    detail: str


class EvictionPlan(Struct, frozen=True):
    """What may go, in order, and what that would free."""

    evict: tuple[Evict, ...] = ()
    frees: int = 0
    kept: int = 0
    caches: tuple[EvictCache, ...] = ()

    @property
    def id(self) -> str:
        """12 hex digits that are others as soon as one victim, its files or its reason are."""
        digest = hashlib.blake2b(digest_size=6)
        for line in sorted(f"{one.entry.entry.id.ref} {one.entry.entry.stamp} {one.reason}\n" for one in self.evict):
            digest.update(line.encode())
        for one in sorted(self.caches, key=lambda one: one.cache.path):
            digest.update(f"{one.cache.ref} {one.cache.files} {one.cache.allocated} {one.reason}\n".encode())
        return digest.hexdigest()


class NoRecipe(StrEnum):
    """Why an entry cannot be rebuilt from itself; what comes after ``FOREIGN`` the plan of a replay says."""

    NATIVE = "native-image"  #: it was compiled ahead of time, there is nothing to compile
    CONSTANTS = "specialization-constants"  #: their values are there, but not which is which
    SEVERAL = "several-images"  #: linked from several images by the runtime
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"  #: gone, changed or larger than we read
    FOREIGN = "another-owner"  #: somebody else wrote it: what it says must not reach our compiler
    SUPERSEDED = "superseded-build"  #: a newer build of the same kernels took its place
    KIND = "kind"  #: nobody but its program can make an entry of this kind
    UNRECORDED = "unrecorded"  #: it does not say itself how it is compiled, and no two runs told the same
    SHARED = "shared"  #: it is made when the same program's entry of another kind is
    FAILED = "failed-before"  #: the same compiler refused it, or crashed on it

    @property
    def words(self) -> str:
        """Half a sentence for people."""
        return _NO_RECIPE_WORDS[self]


_NO_RECIPE_WORDS: Mapping[NoRecipe, str] = {
    NoRecipe.NATIVE: "it was compiled ahead of time, so there is nothing to compile",
    NoRecipe.CONSTANTS: "it was compiled with values that it does not name",
    NoRecipe.SEVERAL: "the runtime linked it from several images",
    NoRecipe.DAMAGED: "its source is damaged, too",
    NoRecipe.UNREADABLE: "its source is gone, changed, or too large",
    NoRecipe.FOREIGN: "somebody else wrote it",
    NoRecipe.SUPERSEDED: "a newer build of the same kernels took its place",
    NoRecipe.KIND: "an entry of this kind is made by its program only: run the model",
    NoRecipe.UNRECORDED: "no run has told how it is compiled: run the model",
    NoRecipe.SHARED: "it is made together with the same program's entry of another cache",
    NoRecipe.FAILED: "the same compiler refused it, or crashed on it",
}


class Recipe(Struct, frozen=True):
    """What an entry was compiled from: all that a driver needs to compile it again."""

    entry: EntryId
    input: bytes  #: SPIR-V, or what else its compiler takes
    options: bytes
    facts: Mapping[str, str] = field(default_factory=dict)  #: what only its kind reads
    made: RecordedRecipe | None = None  #: once it is compiled: what its driver told of that, where one tells it

    @property
    def size(self) -> int:
        """Bytes that it takes, as far as it may be large."""
        return len(self.input) + len(self.options) + sum(len(name) + len(fact) for name, fact in self.facts.items())


class CompilerSpec(Struct, frozen=True):
    """The child that compiles for a target, and what it is told when it starts."""

    arguments: tuple[str, ...]
    program: str = "compiler.py"  #: of those in ``libexec``
    variables: tuple[tuple[str, str], ...] = ()  #: with these the driver keeps what it makes in a place, for example


class ReplayReason(StrEnum):
    """Why an entry is worth rebuilding."""

    MODEL = "model"  #: a registered model uses it
    USED = "used"  #: somebody used it lately
    ASKED = "asked"  #: somebody wants it compared, or mended


class Rebuild(Struct, frozen=True):
    """Rebuild this entry for that environment."""

    entry: IndexedEntry
    to: Target
    reason: ReplayReason
    seconds: float | None = None  #: that compiling it will take, judged by what was compiled before


class ReplayPlan(Struct, frozen=True):
    """What should be rebuilt, in order, and what is left to a run of the models."""

    rebuild: tuple[Rebuild, ...] = ()
    skipped: Mapping[NoRecipe, int] = field(default_factory=dict)
    covered: int = 0  #: entries that are there for the present driver already
    seconds: float | None = None  #: estimate of the whole; None without history


class Built(Struct, frozen=True):
    """One entry that we compiled."""

    entry: EntryId
    to: Target
    origin: Origin
    stamp: str  #: of the driver that compiled it
    image_size: int
    seconds: float
    digest: str  #: BLAKE2b-128 of the compiled program
    models: tuple[ModelName, ...] = ()  #: that use the entry which it was rebuilt from
    source: Entry | None = None  #: that one
