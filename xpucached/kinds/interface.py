"""What a cache kind must offer, and what it may: small protocols, and `Kind`, one row of the table.

Each part is satisfied by a module.  A kind that lacks an optional part cannot do that; who asks for it says so.
Every function works with the rights of its caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from xpucached.kinds.portability import Portable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from xpucached.domain.activity import FileEvent, Program, WatchSpec
    from xpucached.domain.defects import Defect, StoreFault
    from xpucached.domain.diagnosis import RuntimeCheck
    from xpucached.domain.host import Host, OtherDriver, Process
    from xpucached.domain.libraries import SyclRuntime
    from xpucached.domain.models import Workload
    from xpucached.domain.names import Architecture, EntryKey, KindName, TrashRef
    from xpucached.domain.plans import CompilerSpec, NoRecipe, Recipe
    from xpucached.domain.recipes import RecordedRecipe, Recording
    from xpucached.domain.stores import Entry, EntryId, FoundStore, KnownEntry, Scan, Store
    from xpucached.domain.targets import Target
    from xpucached.domain.traces import RuntimeTrace
    from xpucached.domain.trash import Repair, Restored, Trashed, TrashLabel
    from xpucached.planning.activity import Activity, Half

    Failed = Callable[[Path, OSError], None]
    """Is told what the disk of a store, by its root, refused."""


# -- what each kind has -----------------------------------------------------------------------------------------------


class Discovery(Protocol):
    """Where programs keep stores of a kind, and how they are told to."""

    @property
    def LIBRARIES(self) -> tuple[str, ...]:  # noqa: N802 - a constant of the module
        """How the names of libraries begin by which a process shows that it may use a store."""

    @property
    def OFF(self) -> Mapping[str, str]:  # noqa: N802 - a constant of the module
        """The variables that make a process use no cache of this kind, whatever others say; empty if none can."""

    @property
    def EVERYWHERE(self) -> Mapping[str, str]:  # noqa: N802 - a constant of the module
        """The variables that leave eviction to us in whatever store a process uses; empty where `enable` says so."""

    @property
    def OPTION_VARIABLES(self) -> tuple[str, ...]:  # noqa: N802 - a constant of the module
        """Variables that change with which options programs are compiled: for the hint to a model that lacks them."""

    def enable(self, root: Path) -> Mapping[str, str]:
        """Return the variables that make a process use this store, and leave eviction to us: of `CACHE_VARIABLES`."""

    def locate(self, process: Process) -> tuple[Path, str] | None:
        """Return where a process keeps its store, and how we know; None if it keeps none.

        Process 0 is nobody's: it stands for any program of this user, and the answer is the standard place.
        """

    def enabled(self, process: Process) -> bool:
        """Return whether a process uses its store at all."""

    def bounds(self, process: Process) -> str:
        """Say by what a process leaves programs out of its store without a word; empty if by nothing."""

    def configuration(self, process: Process) -> str:
        """Return the file that says for a process, besides its variables, how it caches; empty if there is none."""

    def recognise(self, root: Path) -> bool:
        """Return whether a directory looks like a store of this kind.  Never raises for what it meets."""

    def writes(self, path: str) -> bool:
        """Return whether a program that has this file open may be in the midst of writing to a store."""


class Scanner(Protocol):
    """What is in a store."""

    def parts(
        self,
        found: FoundStore,
        now: datetime,
        known: Iterable[KnownEntry],
        writer_since: datetime | None,
        *,
        quick: bool = False,
        inside: bool = True,
    ) -> Iterator[Scan]:
        """Look at a store bit by bit, in the memory that a part takes.  Never raises for what it meets there.

        ``known`` comes in the order of the keys, and is taken as the look goes on; entries that still have the stamp
        that is known come back as unchanged.  Each part names what vanished where it looked; the last one says how
        the store is as a whole, and what is wrong there.  ``writer_since`` is when the oldest live process that could
        be writing here started (None: there is none); a lock that is older was left behind.  With ``quick`` only
        directories are looked at whose entries are known: what was written into a file in its place stays unseen.
        Without ``inside`` programs are not read: neither are kernels and options named, nor is damage in them seen,
        which whoever packs them sees.  It asks before each entry whether anybody wants it still (`cancellation.check`).
        """

    def key(self, path: str) -> EntryKey | None:
        """Return to which entry a file belongs, by its path below the root; None if to none."""

    def targets(self, host: Host) -> tuple[Target, ...]:
        """Return what entries of this kind would be valid for on this host now; empty if that cannot be said.

        It is asked with all devices, and with one alone: then the answer is what is valid for that one.
        """

    def architecture(self, target: Target) -> Architecture:
        """Return the generation of a target's device, as people call it.  Pure."""

    def built_from(self, key: EntryKey) -> tuple[str, str] | None:
        """Return what an entry was compiled from, and that with how it was: equal for entries that have it in common.

        None if its key does not tell.
        """


class Remover(Protocol):
    """How entries go."""

    def remove(
        self,
        entries: Sequence[Entry],
        notes: Mapping[EntryId, TrashLabel] | None = None,
        failed: Failed | None = None,
    ) -> Mapping[EntryId, bool]:
        """Take entries out by the runtime's own rules: True if gone, False if busy or no longer the same.

        Those with a note go into the trash of their store, under that label, if there is room and the kind has a
        trash; the others for good.  When nobody wants it any more no other one is begun with
        (`cancellation.until_cancelled`).
        """

    def sweep(self, entry: EntryId) -> bool:
        """Finish what a dead daemon of ours began with an entry: True if something of ours was there."""


# -- what only some have ----------------------------------------------------------------------------------------------


class Trash(Protocol):
    """Without it, what is removed is gone."""

    def trash(self, of: Store, after: str = "") -> tuple[Trashed, ...]:
        """Return what is in a store's trash, in the order of the refs; of more than is fit for memory the first ones.

        ``after`` is the last ref that was told before; nothing comes after the last one.
        """

    def trash_size(self, of: Store) -> int:
        """Return how many bytes of a disk a store's trash takes."""

    def restore(self, of: Store, refs: tuple[TrashRef, ...]) -> tuple[Restored, ...]:
        """Bring entries back to where the runtime finds them; where it has made them again, that one stays."""

    def discard(self, of: Store, refs: tuple[TrashRef, ...], failed: Failed | None = None) -> frozenset[TrashRef]:
        """Remove from a store's trash for good; give those that are gone."""


class Recorder(Protocol):
    """Without it, a run's entries are those that are new in the store after it."""

    @property
    def MARKS(self) -> tuple[bytes, ...]:  # noqa: N802 - a constant of the module
        """What lines hold in which a process tells; any other line is its own."""

    def variables(self, store: Store) -> Mapping[str, str]:
        """Return the variables that make a process tell which entries of this store it uses."""

    def read(self, store: Store, lines: Iterable[str]) -> Recording:
        """Read some of the lines in which a process told of this store, as they come."""

    def unkept(self, stores: Sequence[Store], lines: Iterable[str]) -> str:
        """Say what lines tell of programs that were compiled and kept in none of these stores; empty if nothing."""

    def why_untold(self, directory: Path) -> str:
        """Say why processes that work in this directory tell nothing, as the rest of a sentence; empty if they do."""

    def why_not_kept(self, host: Host) -> str:
        """Say why programs on this host keep nothing of this kind, as the rest of a sentence; empty if they do."""

    def collect(self, store: Store, before: frozenset[EntryKey], host: Host) -> Recording:
        """Read what processes told in files, and take these away: after each pass.

        ``before`` is what the store held when the pass began, ``host`` what its programs meet.  Recipes are given for
        entries that do not hold all from which they were compiled.  Raises nothing for what it meets.
        """

    def predict(self, entry: EntryId, told: RecordedRecipe, target: Target) -> EntryKey | None:
        """Return under which key programs will look for an entry when only its compiler is another.

        Without asking a driver, and only what is sure: None if nobody can predict it.  Raises OSError if the entry
        cannot be read now, which says nothing.
        """

    @property
    def COMMON(self) -> str:  # noqa: N802 - a constant of the module
        """The part of a recipe that all programs for a device have in common; empty if there is none."""

    def derive(self, entry: EntryId, alike: Sequence[RecordedRecipe]) -> RecordedRecipe | None:
        """Return how an entry is compiled that no run told of, if that is sure; None if it cannot be.

        ``alike`` are recipes of other entries that may be for the same device and driver: one for each `COMMON` part.
        Raises OSError if the entry cannot be read now, which says nothing.
        """

    def forget(self, store: Store, *, begins: bool = False) -> None:
        """Take away, unread, what processes left in files before a pass.  Raises nothing for what it meets.

        Where one ``begins``, `collect` says of it whether anybody else has taken away what was left since.
        """


class Follower(Protocol):
    """Takes what one run tells, line by line."""

    def take(self, line: str, at: float) -> None:
        """Take one line, and when it was heard, in seconds of a clock that only goes on."""

    def told(self) -> RuntimeTrace:
        """Return what was told so far.  Looks on disk for what is said to be there."""


class Tracer(Protocol):
    """Without it, of a program that is no model only what is new in the store after it is told."""

    @property
    def VARIABLES(self) -> Mapping[str, str]:  # noqa: N802 - a constant of the module
        """The variables that make processes tell on stderr what they compile, and change nothing else."""

    @property
    def MARKS(self) -> tuple[bytes, ...]:  # noqa: N802 - a constant of the module
        """How what they tell begins, wherever in a line; it ends with the line."""

    def follow(self) -> Follower:
        """Return what takes the lines of one run."""


class ActivityReader(Protocol):
    """Without it, nobody sees which entries programs load."""

    @property
    def WATCH(self) -> WatchSpec:  # noqa: N802 - a constant of the module
        """Which files of a store are watched; ``xpucached-watch`` has the same in a table of its own."""

    def interpret(
        self, events: Iterable[tuple[FileEvent, Program]], boot: datetime, halves: frozenset[Half] = frozenset()
    ) -> Activity:
        """Return which entries were loaded, and which were made, by whom.

        ``boot`` is when `FileEvent.at` was zero; ``halves`` is what an earlier answer left open.
        """

    def is_half(self, path: str) -> bool:
        """Return whether writing this file makes no entry yet, because another one follows."""


class Rebuilder(Protocol):
    """Without it, an entry is made by its program only: after a driver change the model must run."""

    def lineage_key(self, key: EntryKey) -> str | None:
        """Give the part of a key that stays when the toolchain changes; None if there is none, or a recipe says it."""

    def compiler(self, target: Target, place: Path) -> CompilerSpec:
        """Say which child compiles for a target.

        ``place`` is a directory of its own, empty before each recipe: there its driver may keep what it makes.
        """

    def recipe(self, entry: Entry, recorded: RecordedRecipe | None = None) -> Recipe | NoRecipe:
        """Read what an entry was compiled from, or say why it cannot be compiled again.

        ``recorded`` is what a run told of it: what the entry itself lacks.
        """

    def expected_key(self, recipe: Recipe, target: Target) -> EntryKey | None:
        """Tell under which key programs will look for what is compiled for a target; None if nobody can predict it."""

    def made(
        self, recipe: Recipe, environment: Target, host: Host, binary: bytes, place: Path
    ) -> tuple[Recipe, bytes] | str:
        """Return a recipe with what is known since it was compiled, and the program; or what speaks against it.

        ``binary`` is what the child answered, ``place`` where its driver may have kept it, and ``host`` what programs
        meet that use this driver.  Raises OSError if the driver kept nothing, which says nothing of the recipe.
        """

    def unusable(self, environment: Target, binary: bytes) -> str | None:
        """Return what is wrong with a compiled program that a driver gave; None if nothing is known to be."""

    def publish(self, recipe: Recipe, environment: Target, binary: bytes, into: Path | None = None) -> EntryKey | None:
        """Put a compiled program where the runtime looks for it, all at once: in its store, or in the one at ``into``.

        Gives its key; None if the runtime has written one meanwhile, which stays.  Raises OSError.
        """

    def confirm(
        self,
        targets: Collection[Target],
        driver: OtherDriver,
        workloads: Sequence[Workload],
        now: datetime,
        timeout: float = 60.0,
    ) -> str:
        """Find out whether programs will look where `publish` puts what is for these targets; say how that is known.

        ``workloads`` are those of the models that use this driver.  Raises `Unconfirmed` if they will not.  Blocks.
        """


class Doctor(Protocol):
    """Without it, nothing is known to be wrong with a store as a whole, and nothing is mended in its place."""

    @property
    def FAULTS(self) -> tuple[StoreFault, ...]:  # noqa: N802 - a constant of the module
        """All that can be wrong with a store as a whole."""

    def faults(self, found: FoundStore, now: datetime, writer_since: datetime | None) -> tuple[StoreFault, ...]:
        """Return what is wrong with a store as a whole; ``writer_since`` as for `Scanner.parts`."""

    def clear(self, store: Store, fault: StoreFault, now: datetime, writer_since: datetime | None) -> bool:
        """Put an end to a fault: True if it is over."""

    def mend(self, repairs: Sequence[Repair], failed: Failed | None = None) -> Mapping[EntryId, bool]:
        """Mend entries in their places (only those actions that leave them there): True if that was done."""

    def take_up(self, store: Store, begun: Mapping[EntryKey, datetime]) -> int:
        """Let the next look find what of these lies in quarantine, and can be compiled again; give how many that is.

        ``begun`` tells of each since when it was to go: what is in quarantine longer was not meant.  Only where nothing
        has come into its place, and without what is damaged of it.  Raises OSError.
        """


class Preflight(Protocol):
    """Without it, no runtime is known with which the cache should stay off."""

    def runtimes(self, program: Path, variables: Mapping[str, str]) -> tuple[SyclRuntime, ...]:
        """Return the runtimes that a program with these variables finds, in the order in which it looks."""

    def mapped(self, libraries: Iterable[Path], since: datetime) -> tuple[SyclRuntime, ...]:
        """Return the runtimes among the libraries that processes had mapped, the first of which began at ``since``."""

    def readers(self, libraries: Iterable[Path]) -> frozenset[str]:
        """Return which runtimes are among libraries, by how they meet damage; empty if one cannot be told."""

    def check(
        self, runtime: SyclRuntime, variables: Mapping[str, str], now: datetime, timeout: float = 60.0
    ) -> RuntimeCheck:
        """Find out whether programs crash when the cache is on with this runtime.  Blocks."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One type of cache, with one on-disk format: a row of the table."""

    name: KindName  #: as stored and typed
    defects: tuple[Defect, ...]  #: all that its scanner finds wrong with entries; a code means the same in every kind
    discovery: Discovery
    scanner: Scanner
    remover: Remover
    trash: Trash | None = None
    recorder: Recorder | None = None
    tracer: Tracer | None = None
    activity: ActivityReader | None = None
    rebuilder: Rebuilder | None = None
    doctor: Doctor | None = None
    preflight: Preflight | None = None
    portable: Portable | None = None
