"""Three kinds that exist only in tests: one that can only what it must, one that can all, and one that only reads.

The last reads real entries of the GPU driver's cache, and leaves them alone.  An entry of a `FakeKind` is one file: its
first line names the target, what follows is its program.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.domain.activity import FileAct
from xpucached.domain.defects import Generation, StoreFault
from xpucached.domain.diagnosis import RuntimeCheck, Safety
from xpucached.domain.libraries import SyclRuntime
from xpucached.domain.names import EntryKey, KindName, TrashRef
from xpucached.domain.plans import EvictReason, NoRecipe, Recipe
from xpucached.domain.stores import Entry, EntryId, ImageFormat, Scan, Store, StoreState, UnchangedEntry, program_digest
from xpucached.domain.targets import Target
from xpucached.domain.trash import Restored, Trashed
from xpucached.kinds import fs, images
from xpucached.kinds.interface import Kind
from xpucached.planning.activity import Activity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from xpucached.domain.activity import FileEvent, Program
    from xpucached.domain.host import OtherDriver, Process
    from xpucached.domain.models import Workload
    from xpucached.domain.stores import FoundStore, KnownEntry
    from xpucached.domain.trash import Repair, TrashLabel
    from xpucached.planning.activity import Half

    Failed = Callable[[Path, OSError], None]

NEO: Final = Path(__file__).parent / "neo"
"""Entries that the GPU driver wrote."""

_TRASH: Final = ".xpucached.trash"


def _words(target: Target) -> str:
    return json.dumps([target.platform, target.device, target.version, target.driver])


@dataclass(frozen=True, eq=False)
class FakeKind:
    """What each of them must offer: one object that is all required parts."""

    name: KindName
    files: re.Pattern[str]  #: paths of entries below the root
    depth: int = 0  #: directories above an entry
    LIBRARIES: tuple[str, ...] = ()
    OFF: Mapping[str, str] = field(default_factory=dict)
    OPTION_VARIABLES: tuple[str, ...] = ()
    variable: str = ""
    MARKS: tuple[bytes, ...] = ()

    def enable(self, root: Path) -> Mapping[str, str]:
        return {self.variable: str(root)} if self.variable else {}

    def locate(self, process: Process) -> tuple[Path, str] | None:
        named = process.variables.get(self.variable)
        return (Path(named), process.name) if named else None

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
        """Give the entries in the order of their keys."""
        found: dict[EntryKey, os.stat_result] = {}
        with contextlib.suppress(OSError, ValueError):
            for path in root.glob("*/" * self.depth + "*"):
                key = self.key(str(path.relative_to(root)))
                if key is not None and stat.S_ISREG((status := path.lstat()).st_mode):
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
        entries = tuple(self.read(found.store, key, files[key]) for key in files.keys() - same)
        faults = self.faults(found, now, None)
        notes = tuple(fault.message for fault in faults)
        gone = tuple(before.keys() - files.keys())
        yield Scan(found, now, StoreState.OK, owner, entries, unchanged, 0, notes, vanished=gone, faults=faults)

    def read(self, store: Store, key: EntryKey, status: os.stat_result) -> Entry:
        head, _, program = (store.root / key).read_bytes().partition(b"\n")
        written = datetime.fromtimestamp(status.st_mtime, UTC)
        return Entry(
            EntryId(store, key),
            _stamp(status),
            status.st_size,
            status.st_blocks * 512,
            written,
            None,
            Target(*json.loads(head)),
            image=ImageFormat.SPIRV,
            kernels=images.kernels(program),
            digest=program_digest(program).hexdigest(),
        )

    def key(self, path: str) -> EntryKey | None:
        return EntryKey(path) if self.files.fullmatch(path) else None

    # -- taking away --------------------------------------------------------------------------------------------------

    def remove(
        self,
        entries: Sequence[Entry],
        notes: Mapping[EntryId, TrashLabel] | None = None,
        failed: Failed | None = None,  # noqa: ARG002 - the disks of tests are well
    ) -> Mapping[EntryId, bool]:
        return {one.id: self._remove(one, (notes or {}).get(one.id)) for one in entries}

    def _remove(self, entry: Entry, label: TrashLabel | None) -> bool:
        path = entry.id.store.root / entry.id.key
        if not path.is_file() or _stamp(path.stat()) != entry.stamp:
            return False
        self.take(entry.id, path, label)
        return True

    def take(self, entry: EntryId, path: Path, label: TrashLabel | None) -> None:  # noqa: ARG002 - it has no trash
        path.unlink()

    def sweep(self, entry: EntryId) -> bool:  # noqa: ARG002 - what it begins it ends at once
        return False

    def faults(self, found: FoundStore, now: datetime, writer_since: datetime | None) -> tuple[StoreFault, ...]:  # noqa: ARG002
        return ()


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


@dataclass(frozen=True, eq=False)
class FullKind(FakeKind):
    """All optional parts as well."""

    # -- the trash ----------------------------------------------------------------------------------------------------

    def take(self, entry: EntryId, path: Path, label: TrashLabel | None) -> None:
        if label is None:
            path.unlink()
            return
        trash = entry.store.root / _TRASH
        trash.mkdir(exist_ok=True)
        words = {"at": label.at.isoformat(), "reason": label.reason, "detail": label.detail}
        (trash / f"{path.name}.json").write_text(json.dumps(words))
        path.rename(trash / path.name)

    def trash(self, of: Store) -> tuple[Trashed, ...]:
        found: list[Trashed] = []
        if not os.path.isdir(of.root / _TRASH):  # noqa: PTH112 - pathlib may raise
            return ()
        for path in sorted((of.root / _TRASH).glob("*.json")):
            words, item = json.loads(path.read_text()), path.with_suffix("")
            at, size = datetime.fromisoformat(words["at"]), item.stat().st_blocks * 512
            reason, detail, key = EvictReason(words["reason"]), words["detail"], EntryKey(item.name)
            found.append(Trashed(TrashRef(item.name), of, key, at, reason, detail, False, "", "", size, True))  # noqa: FBT003
        return tuple(found)

    def trash_size(self, of: Store) -> int:
        return sum(one.allocated for one in self.trash(of))

    def restore(self, of: Store, refs: tuple[TrashRef, ...]) -> tuple[Restored, ...]:
        told: list[Restored] = []
        for ref in refs:
            item = of.root / _TRASH / ref
            if not item.exists() or (of.root / ref).exists():
                told.append(Restored(ref, None, "it is not there, or was made again"))
                continue
            item.rename(of.root / ref)
            item.with_name(f"{ref}.json").unlink()
            told.append(Restored(ref, EntryKey(ref), entry=EntryId(of, EntryKey(ref)).ref))
        return tuple(told)

    def discard(self, of: Store, refs: tuple[TrashRef, ...], failed: Failed | None = None) -> frozenset[TrashRef]:  # noqa: ARG002
        for ref in refs:
            for name in (ref, f"{ref}.json"):
                (of.root / _TRASH / name).unlink(missing_ok=True)
        return frozenset(refs)

    # -- what programs tell and do ------------------------------------------------------------------------------------

    def variables(self, root: Path) -> Mapping[str, str]:
        return {"FULL_TRACE": str(root)}

    def collect(
        self,
        root: Path,  # noqa: ARG002 - its lines name entries of one store
        lines: Iterable[str],
    ) -> tuple[frozenset[EntryKey], frozenset[EntryKey]]:
        told = [line.split(" ", 2) for line in lines if line.startswith("full: ") and line.count(" ") == 2]
        made = frozenset(EntryKey(name) for _, what, name in told if what == "made")
        used = frozenset(EntryKey(name) for _, what, name in told if what == "used")
        return made, used - made

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

    def lineage_key(self, key: EntryKey) -> str | None:
        return key.removesuffix(f".{self.name}").split("-")[0]

    def recipe(self, entry: Entry) -> Recipe | NoRecipe:
        try:
            program = (entry.id.store.root / entry.id.key).read_bytes().partition(b"\n")[2]
        except OSError:
            return NoRecipe.UNREADABLE
        return Recipe(entry.id, program, b"", b"", 0o600, 0o700, access_time=False)

    def unusable(self, environment: Target, binary: bytes) -> str | None:  # noqa: ARG002 - the same for all
        return None if binary else "it is empty"

    def publish(self, recipe: Recipe, environment: Target, binary: bytes, into: Path | None = None) -> EntryKey | None:
        root = into or recipe.entry.store.root
        key = EntryKey(f"{self.lineage_key(recipe.entry.key)}-{environment.fingerprint}.{self.name}")
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
        return (StoreFault.BLOCKED,) if os.path.lexists(found.store.root / "blocked") else ()

    def clear(self, store: Store, fault: StoreFault, now: datetime, writer_since: datetime | None) -> bool:  # noqa: ARG002
        (store.root / "blocked").unlink(missing_ok=True)
        return True

    def mend(self, repairs: Sequence[Repair], failed: Failed | None = None) -> Mapping[EntryId, bool]:  # noqa: ARG002
        return {one.entry.id: False for one in repairs}

    # -- runtimes -----------------------------------------------------------------------------------------------------

    def runtimes(self, program: Path, variables: Mapping[str, str]) -> tuple[SyclRuntime, ...]:  # noqa: ARG002
        return (SyclRuntime(program.with_name("libfull.so"), "full", 3),)

    def mapped(self, libraries: Iterable[Path], since: datetime) -> tuple[SyclRuntime, ...]:  # noqa: ARG002
        return tuple(SyclRuntime(path, "full", 3) for path in libraries if path.name.startswith(self.LIBRARIES))

    def readers(self, libraries: Iterable[Path]) -> frozenset[Generation]:  # noqa: ARG002
        return frozenset()

    def check(
        self,
        runtime: SyclRuntime,
        variables: Mapping[str, str],  # noqa: ARG002
        now: datetime,
        timeout: float = 60.0,  # noqa: ARG002
    ) -> RuntimeCheck:
        return RuntimeCheck(runtime.build, runtime.library, Safety.SAFE, "it is a fake", now)


class NeoReader(FakeKind):
    """Reads what the GPU driver wrote, and takes nothing away."""

    def recognise(self, root: Path) -> bool:
        return os.path.isfile(root / "config.file") and super().recognise(root)  # noqa: PTH113 - pathlib may raise

    def read(self, store: Store, key: EntryKey, status: os.stat_result) -> Entry:
        program = (store.root / key).read_bytes()
        return Entry(
            EntryId(store, key),
            _stamp(status),
            status.st_size,
            status.st_blocks * 512,
            datetime.fromtimestamp(status.st_mtime, UTC),
            None,
            binary=images.image_format(program),
            digest=program_digest(program).hexdigest(),
            kernels=images.kernels(program),
        )

    def remove(
        self,
        entries: Sequence[Entry],
        notes: Mapping[EntryId, TrashLabel] | None = None,  # noqa: ARG002 - nothing goes
        failed: Failed | None = None,  # noqa: ARG002
    ) -> Mapping[EntryId, bool]:
        return {one.id: False for one in entries}


_bare = FakeKind(KindName("bare"), re.compile(r"[0-9a-f-]+\.bare"))
_full = FullKind(
    KindName("full"),
    re.compile(r"[0-9a-f-]+\.full"),
    LIBRARIES=("libfull",),
    OFF={"FULL_CACHE": "0"},
    variable="FULL_CACHE_DIR",
    MARKS=(b"full: ",),
)
_neo = NeoReader(KindName("neo"), re.compile(r"([0-9a-f]/[0-9a-f]/)[0-9a-f]{16}\.(?:cl|l0)_cache"), depth=2)

BARE: Final = Kind(_bare.name, _bare, _bare, _bare)
FULL: Final = Kind(
    _full.name,
    _full,
    _full,
    _full,
    trash=_full,
    recorder=_full,
    activity=_full,
    rebuilder=_full,
    doctor=_full,
    preflight=_full,
)
NEO_READER: Final = Kind(_neo.name, _neo, _neo, _neo)


def fill(root: Path, kind: Kind, target: Target, names: Iterable[str] = ("a1", "b2", "c3")) -> None:
    """Put entries of a `FakeKind` into a store."""
    root.mkdir(parents=True, exist_ok=True)
    for name in names:
        (root / f"{name}.{kind.name}").write_bytes(f"{_words(target)}\n{name}".encode())
