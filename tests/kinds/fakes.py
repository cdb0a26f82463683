"""Three kinds that exist only in tests: one can only what it must, one can all, and one has directories.

An entry of a `FakeKind` is one file: its first line names the target, what follows is its program.  Of a `NestKind` it
is a directory with two files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.domain.activity import FileAct, WatchSpec
from xpucached.domain.defects import Defect, Effect, RepairAction, StoreFault
from xpucached.domain.diagnosis import RuntimeCheck, Safety
from xpucached.domain.libraries import SyclRuntime
from xpucached.domain.names import Architecture, EntryKey, KindName
from xpucached.domain.plans import CompilerSpec, NoRecipe, Recipe
from xpucached.domain.recipes import RecordedRecipe, Recording
from xpucached.domain.stores import (
    Entry,
    EntryId,
    EntryState,
    ImageFormat,
    Scan,
    Store,
    StoreState,
    UnchangedEntry,
    program_digest,
)
from xpucached.domain.targets import Target
from xpucached.kinds import fs, images
from xpucached.kinds.interface import Kind
from xpucached.kinds.removal import PathRemover
from xpucached.kinds.trash import FOLDER, TrashFolder
from xpucached.planning.activity import Activity
from xpucached.processes import cancellation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from xpucached.domain.activity import FileEvent, Program
    from xpucached.domain.host import Host, OtherDriver, Process
    from xpucached.domain.models import Workload
    from xpucached.domain.stores import FoundStore, KnownEntry
    from xpucached.domain.trash import Repair
    from xpucached.planning.activity import Half

    Failed = Callable[[Path, OSError], None]

NEO: Final = Path(__file__).parent / "neo"
"""Entries that the GPU driver wrote."""

EMPTY: Final = Defect("full-empty", Effect.GROWS, "there is no program in it", (RepairAction.TRASH,))


def _words(target: Target) -> str:
    return json.dumps([target.family, target.device, target.toolchain])


@dataclass(frozen=True, eq=False)
class FakeKind:
    """What each of them must offer: one object that is all required parts."""

    name: KindName
    files: re.Pattern[str]  #: paths of entries below the root
    depth: int = 0  #: directories above an entry
    defects: tuple[Defect, ...] = ()  #: what is wrong with an entry without a program
    LIBRARIES: tuple[str, ...] = ()
    OFF: Mapping[str, str] = field(default_factory=dict)
    EVERYWHERE: Mapping[str, str] = field(default_factory=dict)
    OPTION_VARIABLES: tuple[str, ...] = ()
    variable: str = ""
    MARKS: tuple[bytes, ...] = ()
    KIND_OF_FILE = staticmethod(stat.S_ISREG)

    def enable(self, root: Path) -> Mapping[str, str]:
        return {self.variable: str(root)} if self.variable else {}

    def locate(self, process: Process) -> tuple[Path, str] | None:
        named = process.variables.get(self.variable)
        return (Path(named), process.name) if named else None

    def bounds(self, process: Process) -> str:  # noqa: ARG002
        return ""

    def configuration(self, process: Process) -> str:  # noqa: ARG002
        return ""

    def enabled(self, process: Process) -> bool:
        return self.variable in process.variables and not any(
            process.variables.get(name) == value for name, value in self.OFF.items()
        )

    def recognise(self, root: Path) -> bool:
        return next(self._files(root), None) is not None

    def writes(self, path: str) -> bool:
        return path.endswith(f".{self.name}")

    # -- looking ------------------------------------------------------------------------------------------------------

    def _files(self, root: Path) -> Iterator[tuple[EntryKey, os.stat_result]]:
        """Yield the entries in the order of their keys."""
        found: dict[EntryKey, os.stat_result] = {}
        with contextlib.suppress(OSError, ValueError):
            for path in root.glob("*/" * self.depth + "*"):
                key = self.key(str(path.relative_to(root)))
                cancellation.check()
                if key is not None and self.KIND_OF_FILE((status := path.lstat()).st_mode):
                    found[key] = status
        yield from sorted(found.items())

    def parts(
        self,
        found: FoundStore,
        now: datetime,
        known: Iterable[KnownEntry],
        writer_since: datetime | None,  # noqa: ARG002 - it knows no locks
        *,
        quick: bool = False,  # noqa: ARG002 - it looks at everything
        inside: bool = True,  # noqa: ARG002 - and names nothing
    ) -> Iterator[Scan]:
        root = found.store.root
        try:
            with fs.root_directory(os.fspath(root)) as (_, status):
                owner = status.st_uid
        except FileNotFoundError:
            yield Scan(found, now, StoreState.MISSING, None, vanished=())
            return
        except NotADirectoryError:
            yield Scan(found, now, StoreState.NOT_A_DIRECTORY, None, vanished=())
            return
        except OSError as error:
            yield Scan(found, now, StoreState.UNREADABLE, None, notes=(str(error),), vanished=())
            return
        before = {one.key: one.stamp for one in known}
        files = dict(self._files(root))
        same = {key for key, status in files.items() if before.get(key) == _stamp(status)}
        unchanged = tuple(UnchangedEntry(key, None) for key in same)
        entries = tuple(self.entry(found.store, key, files[key]) for key in files.keys() - same)
        faults = self.faults(found, now, None)
        notes = tuple(fault.message for fault in faults)
        gone = tuple(before.keys() - files.keys())
        yield Scan(found, now, StoreState.OK, owner, entries, unchanged, 0, notes, vanished=gone, faults=faults)

    def entry(self, store: Store, key: EntryKey, status: os.stat_result) -> Entry:
        head, _, program = (store.root / key).read_bytes().partition(b"\n")
        written = datetime.fromtimestamp(status.st_mtime, UTC)
        wrong = None if program or not self.defects else self.defects[0]
        return Entry(
            EntryId(store, key),
            _stamp(status),
            status.st_size,
            status.st_blocks * 512,
            written,
            None,
            Target(self.name, *json.loads(head)) if head else None,
            image=ImageFormat.SPIRV,
            kernels=images.kernels(program),
            digest=program_digest(program).hexdigest(),
            state=EntryState.DEFECTIVE if wrong else EntryState.OK,
            defect=wrong,
        )

    def targets(self, host: Host) -> tuple[Target, ...]:  # noqa: ARG002 - nobody can say
        return ()

    def architecture(self, target: Target) -> Architecture:
        return Architecture(target.device)

    def built_from(self, key: EntryKey) -> tuple[str, str] | None:
        return (key[0], key) if self.depth == 0 else None

    def key(self, path: str) -> EntryKey | None:
        return EntryKey(path) if self.files.fullmatch(path) else None

    def faults(self, found: FoundStore, now: datetime, writer_since: datetime | None) -> tuple[StoreFault, ...]:  # noqa: ARG002
        return ()


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


def stamp_of(directory: int, name: str) -> str:
    return _stamp(os.stat(name, dir_fd=directory, follow_symlinks=False))


@contextlib.contextmanager
def locked(root: int, key: EntryKey) -> Iterator[bool]:
    """Hold the lock that programs of `FULL` hold while they write, as those of the GPU driver do."""
    descriptor = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=root)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def count_down(root: int, key: EntryKey, freed: int) -> None:
    """Keep the number right that programs of `FULL` keep of their bytes."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open("size", os.O_RDWR | os.O_CLOEXEC, dir_fd=root)
        try:
            left = int(os.read(descriptor, 20)) - freed
            os.pwrite(descriptor, f"{left:020}".encode(), 0)
        finally:
            os.close(descriptor)


def _trash_of(kind: str, suffix: str, *, beside: bool) -> TrashFolder:
    pattern = re.compile(rf"[0-9a-f-]+\.{kind}")
    place = lambda names: len(names) == 1 and bool(pattern.fullmatch(names[0]))  # noqa: E731
    return TrashFolder(".gone", (suffix,), place, lambda name: bool(pattern.fullmatch(name)), beside=beside)


@dataclass(frozen=True, eq=False)
class FullKind(FakeKind):
    """All optional parts as well."""

    WATCH: WatchSpec = WatchSpec(r"[0-9a-f-]+\.full", 0)  # noqa: RUF009 - it is frozen
    FAULTS: tuple[StoreFault, ...] = (StoreFault("full-blocked", Effect.FAILS, "a file is in the way"),)

    # -- what programs tell and do ------------------------------------------------------------------------------------

    def variables(self, store: Store) -> Mapping[str, str]:
        return {"FULL_TRACE": str(store.root)}

    def unkept(self, stores: Sequence[Store], lines: Iterable[str]) -> str:  # noqa: ARG002
        return next((line for line in lines if line.startswith("full: unkept")), "")

    def why_untold(self, directory: Path) -> str:
        return "it is told to be silent" if (directory / "full.silent").exists() else ""

    def why_not_kept(self, host: Host) -> str:  # noqa: ARG002
        return ""

    def collect(self, store: Store, before: frozenset[EntryKey], host: Host) -> Recording:  # noqa: ARG002
        """Read the files in which programs say what they asked for: a target, and how it is compiled."""
        found: list[RecordedRecipe] = []
        for path in store.root.glob("*.told"):
            key, (family, device, toolchain), source = json.loads(path.read_text())
            target, lineage = Target(self.name, family, device, toolchain), f"by {source}"
            found.append(RecordedRecipe(key, target, lineage, {"source": source.encode()}, {"from": "told"}))
            path.unlink()
        asked = frozenset(one.key for one in found)
        return Recording(asked - before, asked & before, tuple(found))

    def predict(self, entry: EntryId, told: RecordedRecipe, target: Target) -> EntryKey | None:
        alike = target.lineage == told.target.lineage and target.toolchain == told.target.toolchain
        (entry.store.root / entry.key).stat()
        return EntryKey(f"{self.lineage_key(told.key)}-{target.fingerprint}.{self.name}") if alike else None

    COMMON = "driver"

    def derive(self, entry: EntryId, alike: Sequence[RecordedRecipe]) -> RecordedRecipe | None:
        """Tell how an entry is compiled if what lies beside it says like which other one."""
        (entry.store.root / entry.key).stat()
        beside = entry.store.root / f"{entry.key}.like"
        said = beside.read_text() if beside.exists() else None
        return next((replace(one, key=entry.key) for one in alike if one.key == said), None)

    def forget(self, store: Store, *, begins: bool = False) -> None:  # noqa: ARG002
        for path in store.root.glob("*.told"):
            path.unlink()

    def read(
        self,
        store: Store,  # noqa: ARG002 - its lines name entries of one store
        lines: Iterable[str],
    ) -> Recording:
        told = [line.split(" ", 2) for line in lines if line.startswith("full: ") and line.count(" ") == 2]
        made = frozenset(EntryKey(name) for _, what, name in told if what == "made")
        used = frozenset(EntryKey(name) for _, what, name in told if what == "used")
        return Recording(made, used - made)

    def interpret(
        self,
        events: Iterable[tuple[FileEvent, Program]],
        boot: datetime,
        halves: frozenset[Half] = frozenset(),
    ) -> Activity:
        loaded = tuple(
            (program, event.store, key, boot + timedelta(seconds=event.at))
            for event, program in events
            if event.act is FileAct.READ and (key := self.key(event.path)) is not None
        )
        return Activity(loaded, halves=halves)

    def is_half(self, path: str) -> bool:  # noqa: ARG002 - one file is all of an entry
        return False

    # -- compiling ----------------------------------------------------------------------------------------------------

    def targets(self, host: Host) -> tuple[Target, ...]:
        return tuple(Target(self.name, one.platform, one.device, one.driver) for one in host.answers)

    def compiler(self, target: Target, place: Path) -> CompilerSpec:
        return CompilerSpec(("--for", target.device), "full.py", (("FULL_CACHE_DIR", str(place)),))

    def lineage_key(self, key: EntryKey) -> str | None:
        return key.removesuffix(f".{self.name}").split("-")[0]

    def recipe(self, entry: Entry, recorded: RecordedRecipe | None = None) -> Recipe | NoRecipe:
        if recorded is not None:
            return Recipe(entry.id, recorded.parts["source"], b"", recorded.facts)
        try:
            program = (entry.id.store.root / entry.id.key).read_bytes().partition(b"\n")[2]
        except OSError:
            return NoRecipe.UNREADABLE
        return Recipe(entry.id, program, b"")

    def made(
        self,
        recipe: Recipe,
        environment: Target,  # noqa: ARG002 - it takes what it is given
        host: Host,  # noqa: ARG002
        binary: bytes,
        place: Path,  # noqa: ARG002
    ) -> tuple[Recipe, bytes] | str:
        return recipe, binary

    def unusable(self, environment: Target, binary: bytes) -> str | None:  # noqa: ARG002 - the same for all
        return None if binary else "it is empty"

    def expected_key(self, recipe: Recipe, target: Target) -> EntryKey | None:
        return EntryKey(f"{self.lineage_key(recipe.entry.key)}-{target.fingerprint}.{self.name}")

    def publish(self, recipe: Recipe, environment: Target, binary: bytes, into: Path | None = None) -> EntryKey | None:
        root = into or recipe.entry.store.root
        key = self.expected_key(recipe, environment)
        assert key is not None
        if (root / key).exists():
            return None
        (root / key).write_bytes(_words(environment).encode() + b"\n" + binary)
        return key

    def confirm(
        self,
        targets: Collection[Target],
        driver: OtherDriver,  # noqa: ARG002 - it believes whoever asks
        workloads: Sequence[Workload],  # noqa: ARG002
        now: datetime,  # noqa: ARG002
        timeout: float = 60.0,  # noqa: ARG002
    ) -> str:
        return f"{len(targets)} are what they are called"

    # -- what is wrong ------------------------------------------------------------------------------------------------

    def faults(self, found: FoundStore, now: datetime, writer_since: datetime | None) -> tuple[StoreFault, ...]:  # noqa: ARG002
        return self.FAULTS if os.path.lexists(found.store.root / "blocked") else ()

    def clear(self, store: Store, fault: StoreFault, now: datetime, writer_since: datetime | None) -> bool:  # noqa: ARG002
        (store.root / "blocked").unlink(missing_ok=True)
        return True

    def mend(self, repairs: Sequence[Repair], failed: Failed | None = None) -> Mapping[EntryId, bool]:  # noqa: ARG002
        return {one.entry.id: False for one in repairs}

    def take_up(self, store: Store, begun: Mapping[EntryKey, datetime]) -> int:  # noqa: ARG002
        return 0

    # -- runtimes -----------------------------------------------------------------------------------------------------

    def runtimes(self, program: Path, variables: Mapping[str, str]) -> tuple[SyclRuntime, ...]:  # noqa: ARG002
        return (SyclRuntime(program.with_name("libfull.so"), "full", 3),)

    def mapped(self, libraries: Iterable[Path], since: datetime) -> tuple[SyclRuntime, ...]:  # noqa: ARG002
        return tuple(SyclRuntime(path, "full", 3) for path in libraries if path.name.startswith(self.LIBRARIES))

    def readers(self, libraries: Iterable[Path]) -> frozenset[str]:  # noqa: ARG002
        return frozenset()

    def check(
        self,
        runtime: SyclRuntime,
        variables: Mapping[str, str],  # noqa: ARG002
        now: datetime,
        timeout: float = 60.0,  # noqa: ARG002
    ) -> RuntimeCheck:
        return RuntimeCheck(runtime.build, runtime.library, Safety.SAFE, "it is a fake", now)


class NestKind(FakeKind):
    """An entry is a directory: a file names the target, another one is the program."""

    KIND_OF_FILE = staticmethod(stat.S_ISDIR)

    def recognise(self, root: Path) -> bool:
        return any(os.path.isfile(root / key / "program") for key, _ in self._files(root))  # noqa: PTH113 - pathlib may raise

    def entry(self, store: Store, key: EntryKey, status: os.stat_result) -> Entry:
        place = store.root / key
        program, words = (place / "program").read_bytes(), (place / "target").read_text()
        return Entry(
            EntryId(store, key),
            _stamp(status),
            len(program) + len(words),
            status.st_blocks * 512,
            datetime.fromtimestamp(status.st_mtime, UTC),
            None,
            Target(self.name, *json.loads(words)) if words else None,
            digest=program_digest(program).hexdigest(),
        )

    def key(self, path: str) -> EntryKey | None:
        name, _, file = path.partition("/")
        return EntryKey(name) if self.files.fullmatch(name) and file in {"", "program", "target"} else None


_bare = FakeKind(KindName("bare"), re.compile(r"[0-9a-f-]+\.bare"))
_full = FullKind(
    KindName("full"),
    re.compile(r"[0-9a-f-]+\.full"),
    LIBRARIES=("libfull",),
    OFF={"FULL_CACHE": "0"},
    variable="FULL_CACHE_DIR",
    defects=(EMPTY,),
    MARKS=(b"full: ",),
)
_nest = NestKind(KindName("nest"), re.compile(r"[0-9a-f-]+\.nest"))
FULL_TRASH: Final = _trash_of("full", "", beside=True)
NEST_TRASH: Final = _trash_of("nest", FOLDER, beside=False)

BARE: Final = Kind(_bare.name, (), _bare, _bare, PathRemover(stamp_of))
NEST: Final = Kind(_nest.name, (), _nest, _nest, PathRemover(stamp_of, NEST_TRASH), trash=NEST_TRASH)
FULL: Final = Kind(
    _full.name,
    _full.defects,
    _full,
    _full,
    PathRemover(stamp_of, FULL_TRASH, locked, count_down),
    trash=FULL_TRASH,
    recorder=_full,
    activity=_full,
    rebuilder=_full,
    doctor=_full,
    preflight=_full,
)


def fill(root: Path, kind: Kind, target: Target, names: Iterable[str] = ("a1", "b2", "c3")) -> None:
    """Put entries of a `FakeKind` into a store."""
    root.mkdir(parents=True, exist_ok=True)
    for name in names:
        if kind is NEST:
            place = root / f"{name}.nest"
            place.mkdir()
            (place / "program").write_text(name)
            (place / "target").write_text(_words(target))
            continue
        (root / f"{name}.{kind.name}").write_bytes(f"{_words(target)}\n{name}".encode())
