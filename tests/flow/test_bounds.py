"""What a hostile neighbour, or a program of the user's own, can make large: what we read and keep of it is bounded.

Calls and objects are counted here, and no seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import psutil
import pytest
from msgspec.structs import replace

from tests import INSTANCE, REPOSITORY
from tests.kinds.test_sycl_damage import look
from tests.support import catalogs, many_files
from tests.support.builders import sycl_target
from xpucached import deadlines, quantities, sockets
from xpucached.catalog.scans import record_scan
from xpucached.catalog.stores import all_stores
from xpucached.domain.defects import RepairAction
from xpucached.domain.host import OtherDriver, Process
from xpucached.domain.models import Workload
from xpucached.domain.names import Architecture, EntryKey, TrashRef
from xpucached.domain.plans import EvictReason, Policy, Recipe
from xpucached.domain.reports import TrashReport
from xpucached.domain.stores import EntryId, FoundStore, Scan, Store, StoreOrigin, StoreState
from xpucached.domain.trash import Repair, Trashed, TrashLabel
from xpucached.errors import NotFound
from xpucached.host import drivers, elf, pressure, process_table
from xpucached.host.pressure import PressureMeter
from xpucached.host.python_packages import PYTHON
from xpucached.host.roots import HostRoots
from xpucached.host.shell_words import SHELLS
from xpucached.kinds import listing, sycl
from xpucached.kinds import trash as kinds_trash
from xpucached.kinds.sycl import (
    entry_format,
    locks,
    makers,
    mender,
    preflight,
    recipes,
    remover,
    runtimes,
    scanner,
    trash_files,
)
from xpucached.kinds.sycl.scan_state import OURS
from xpucached.libexec import interpreters, process_tree, supervisor
from xpucached.libexec.interpreters import Interpreters
from xpucached.processes import environ, signals
from xpucached.processes.output import Trace
from xpucached.processes.reports import read_seen
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import cache_files, owners, store_finder, trash
from xpucached.service.context import Context, Locks
from xpucached.service.owners import named_by
from xpucached.settings import loading
from xpucached.watch import places

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.builders import SyclStore

PROGRAM = "import os, sys; some = [open('/dev/null') for _ in range(int(sys.argv[1]))]; print(1, flush=True); input()"


@contextlib.contextmanager
def program(variables: Mapping[str, str], files: int = 0) -> Iterator[int]:
    """Return the number of a live program with these variables that has so many files open."""
    words = [sys.executable, "-c", PROGRAM, str(files)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(variables)) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.communicate(b"\n")


def seen(pid: int) -> Process:
    (one,) = [one for one in process_table.processes(os.getuid()) if one.pid == pid]
    return one


LONG = {f"PADDING_{number}": "x" * 100_000 for number in range(12)}


def test_variables_that_are_too_long_are_unknown_and_not_read_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    class Counting(environ.Environments):
        def read(self, pid: int) -> bytes | None:
            before = self.left
            found = super().read(pid)
            read.append((pid, before - self.left))
            return found

    monkeypatch.setattr(environ, "LONGEST", 1 << 20)
    monkeypatch.setattr(environ, "Environments", Counting)
    monkeypatch.setattr(process_table, "_Share", functools.partial(process_table._Share, environments=Counting()))
    with program({"SYCL_CACHE_DIR": "/first", **LONG, "SYCL_CACHE_PERSISTENT": "1"}) as pid:
        # Half of them would say something else than all.
        assert seen(pid).variables == {}
        assert dict(read)[pid] <= environ.LONGEST + environ._STEP
        monkeypatch.setattr(environ, "LONGEST", 2 << 20)
        assert seen(pid).variables == {"SYCL_CACHE_DIR": "/first", "SYCL_CACHE_PERSISTENT": "1"}


def test_what_all_processes_together_have_is_read_up_to_a_bound() -> None:
    environments = environ.Environments(left=1000)
    with program({"A": "x" * 600}) as pid:
        assert environments.read(pid) == b"A=" + b"x" * 600 + b"\0"
        assert [environments.read(pid) for _ in range(100)] == [None] * 100
    assert environments.left == 0
    assert environments.passed_over == 100


def test_of_many_telling_variables_none_is_kept() -> None:
    with program({f"XDG_{number}": "x" for number in range(process_table._VARIABLES + 1)}) as pid:
        assert seen(pid).variables == {}
    with program({f"XDG_{number}": "x" * 60_000 for number in range(5)}) as pid:
        assert seen(pid).variables == {}
    with program({f"XDG_{number}": "x" for number in range(process_table._VARIABLES)}) as pid:
        assert len(seen(pid).variables) == process_table._VARIABLES


def test_what_is_kept_of_all_processes_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "_Share", functools.partial(process_table._Share, variables=1000))
    with contextlib.ExitStack() as stack:
        pids = {stack.enter_context(program({"XDG_A": "x" * 400})) for _ in range(4)}
        kept = [one.variables for one in process_table.processes(os.getuid()) if one.pid in pids]
    assert sum(len(value) for some in kept for value in some.values()) <= 1000
    assert kept.count({}) >= 2


def test_who_has_too_much_mapped_may_have_anything_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    with program({}) as pid:
        assert seen(pid).known
        monkeypatch.setattr(process_table, "_LONGEST_MAPS", 100)
        monkeypatch.setattr(process_table, "_last", {})
        one = seen(pid)
        assert (one.known, one.libraries) == (False, ())
        # It could be writing to a cache.
        assert process_table.writer_since([one], sycl.discovery.LIBRARIES, sycl.discovery.writes) == one.started


def test_libraries_of_one_process_and_of_all_are_bounded(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    row = "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /lib/libsycl.so.{}\n"
    maps.write_text("".join(row.format(number) for number in range(1000)))
    assert process_table._libraries(maps, sycl.discovery.LIBRARIES, process_table._Share()) is None
    maps.write_text("".join(row.format(number) for number in range(10)))
    share = process_table._Share(mapped=25)
    found = [process_table._libraries(maps, sycl.discovery.LIBRARIES, share) for _ in range(4)]
    assert [len(some) if some is not None else None for some in found] == [10, 10, None, None]
    share = process_table._Share(maps=2 * len(maps.read_bytes()) + 10)
    assert [process_table._libraries(maps, sycl.discovery.LIBRARIES, share) is None for _ in range(4)] == [
        False,
        False,
        True,
        True,
    ]


def test_of_more_processes_than_we_look_at_it_is_known_that_they_are_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(process_table, "_variables", lambda pid, _: asked.append(pid))
    monkeypatch.setattr(process_table, "_Share", functools.partial(process_table._Share, processes=0))
    with program({"SYCL_CACHE_DIR": "/first"}) as pid:
        one = seen(pid)
    assert (one.variables, one.libraries, one.known) == ({}, (), False)
    assert not asked
    assert len(caplog.records) == 1


def test_open_files_of_one_process_and_of_all_are_looked_at_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    readlink = os.readlink

    def counting(path: str, *, dir_fd: int | None = None) -> str:
        asked.append(path)
        return readlink(path, dir_fd=dir_fd)

    with program({}, files=500) as pid:
        monkeypatch.setattr(os, "readlink", counting)
        monkeypatch.setattr(process_table, "_OPEN", 100)
        assert process_table.held(frozenset({Path("/dev")}))[Path("/dev")] >= {"null"}
        assert sum(path.startswith(f"/proc/{pid}/") for path in asked) <= 101
        monkeypatch.setattr(process_table, "_OPEN_IN_ALL", 50)
        asked.clear()
        process_table.held(frozenset({Path("/dev")}))
        assert len([path for path in asked if "/fd/" in path]) <= 50 + len(os.listdir("/proc"))
        # Whose files are too many to look at may have one of a cache open.
        asked.clear()
        assert process_table._may_be_writing(pid, sycl.discovery.writes, HostRoots(), iter(range(1000, 0, -1)))
        assert len(asked) <= 101


def test_long_paths_of_open_files_are_not_kept(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 200) / ("y" * 200)
    deep.mkdir(parents=True)
    names = ("near", f"{'x' * 200}/{'y' * 200}/far")
    script = "import sys; some = [open(name, 'w') for name in sys.argv[1:]]; print(1, flush=True); input()"
    words = [sys.executable, "-c", script, *names]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert process_table.held(frozenset({tmp_path})) == {tmp_path: {"near"}}
        child.communicate(b"\n")


def test_a_run_s_mark_is_looked_for_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environ, "LONGEST", 1 << 20)
    with program({**LONG, signals.MARK: "bounds-1:x"}) as pid:
        assert signals.end_marked("bounds-1:") == 0
        monkeypatch.setattr(environ, "LONGEST", 2 << 20)
        os.kill(pid, 0)
    words = [sys.executable, "-c", PROGRAM, "0"]
    variables = {**LONG, signals.MARK: "bounds-2:x"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert signals.end_marked("bounds-2:") == 1
        child.wait()


# -- stores -----------------------------------------------------------------------------------------------------------

NOTE = TrashLabel(datetime(2026, 1, 1, tzinfo=UTC), EvictReason.UNUSED, "not used")
DEAD = f"xpucached {replace(makers.ourselves(), pid=999_999_999, began=0)}\n".encode()


def of(store: SyclStore) -> Store:
    return Store(sycl.NAME, store.root)


def discarded(store: SyclStore, number: int) -> list[Path]:
    """Put so many entries into the trash; give what lies there."""
    for one in range(number):
        store.add(f"_ZTS{one}k")
    entries = look(store.root).entries
    assert all(sycl.remover.remove(entries, {one.id: NOTE for one in entries}).values())
    return sorted((store.root / entry_format.TRASH).iterdir())


def counting(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[object]:
    """Count the calls of a function: what they were asked first is in the list."""
    calls: list[object] = []
    real = getattr(owner, name)

    def called(*args: object, **more: object) -> object:
        calls.append(args[0] if args else None)
        return real(*args, **more)

    monkeypatch.setattr(owner, name, called)
    return calls


def test_a_trash_without_end_is_told_in_parts_and_weighed_as_a_whole(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {path.name for path in discarded(sycl_store, 12)}
    monkeypatch.setattr(kinds_trash, "MOST", 5)
    size = sycl.trash_files.trash_size(of(sycl_store))
    seen: list[str] = []
    while found := sycl.trash_files.trash(of(sycl_store), seen[-1] if seen else ""):
        assert len(found) <= 5
        seen += [one.ref for one in found]
    assert seen == sorted(there)
    monkeypatch.setattr(kinds_trash, "MOST", 12)
    assert size == sycl.trash_files.trash_size(of(sycl_store))
    assert {one.ref for one in sycl.trash_files.trash(of(sycl_store))} == there
    assert sycl.trash_files.trash_size(of(sycl_store)) == sum(
        one.allocated for one in sycl.trash_files.trash(of(sycl_store))
    )


def test_long_labels_in_the_trash_are_kept_up_to_a_bound(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in discarded(sycl_store, 5):
        label = path / "about.json"
        label.write_text(json.dumps({**json.loads(label.read_text()), "detail": "x" * 2000}))
    monkeypatch.setattr(kinds_trash, "_TEXT", 5000)
    first = sycl.trash_files.trash(of(sycl_store))
    assert len(first) == 2
    assert len(sycl.trash_files.trash(of(sycl_store), first[-1].ref)) == 2


def keeper_of(store: SyclStore, policy: Policy = Policy()) -> trash.TrashKeeper:  # noqa: B008 - it is frozen
    """Return a keeper of one store's trash."""
    status = SimpleNamespace(id=of(store), state=StoreState.OK, owner=0, store=store.root, allocated=0)
    context = SimpleNamespace(
        catalog=SimpleNamespace(read=lambda _: [status]),
        write=_nothing,
        turn=lambda _: contextlib.nullcontext(),
        locks=Locks(),
        events=SimpleNamespace(post=lambda *_: None, flush=_nothing),
        problems=SimpleNamespace(failed=lambda *_: None, worked=lambda *_: None),
        settings=SimpleNamespace(policy=policy),
        clock=lambda: NOTE.at,
        trusts_the_clock=lambda: True,
    )
    scanner = SimpleNamespace(scan_stores=_nothing)
    return trash.TrashKeeper(context, scanner)  # type: ignore[arg-type] # all that it asks


async def _nothing(*_: object) -> None:
    return


HANDLE: Final = SimpleNamespace(progress=lambda *_: None)


@pytest.fixture
def parted(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the refs in a trash that holds more than is looked at at a time."""
    refs = [path.name for path in discarded(sycl_store, 12)]
    monkeypatch.setattr(kinds_trash, "MOST", 3)
    monkeypatch.setattr(trash, "_MOST", 5)
    return refs


def test_in_a_trash_of_any_size_what_is_named_is_found(sycl_store: SyclStore, parted: list[str]) -> None:
    keeper = keeper_of(sycl_store)
    assert {one.ref for one in asyncio.run(keeper._named(parted))} == set(parted)
    entries = [EntryId(one.store, one.key).ref for one in asyncio.run(keeper._named(parted))]
    assert {one.ref for one in asyncio.run(keeper._named(entries))} == set(parted)
    with pytest.raises(NotFound, match="nothing"):
        asyncio.run(keeper._named(["x"]))
    with pytest.raises(NotFound, match="several"):
        asyncio.run(keeper._named([""]))


def test_all_of_a_trash_of_any_size_goes_when_that_is_asked(sycl_store: SyclStore, parted: list[str]) -> None:
    report: TrashReport = asyncio.run(keeper_of(sycl_store).emptying(())(HANDLE))  # type: ignore[arg-type] # all that it asks
    assert set(report.dropped) == set(parted)
    assert not (sycl_store.root / entry_format.TRASH).exists()


def test_all_of_a_trash_of_any_size_comes_back_when_that_is_asked(sycl_store: SyclStore, parted: list[str]) -> None:
    work = keeper_of(sycl_store).restoring((), everything=True)
    report: TrashReport = asyncio.run(work(HANDLE))  # type: ignore[arg-type] # all that it asks
    assert {one.ref for one in report.restored if one.key is not None} == set(parted)
    assert not (sycl_store.root / entry_format.TRASH).exists()


@pytest.mark.parametrize("left", [0, 4])
def test_a_trash_of_any_size_is_kept_within_its_bound(sycl_store: SyclStore, parted: list[str], left: int) -> None:
    each = trash_files.trash_size(of(sycl_store)) // len(parted)
    keeper = keeper_of(sycl_store, Policy(trash_max_bytes=each * left))
    report = asyncio.run(keeper.tidy())
    assert len(report.dropped) == len(parted) - left
    assert trash_files.trash_size(of(sycl_store)) == each * left


def test_a_trash_that_is_read_at_once_is_read_only_once(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    discarded(sycl_store, 4)
    read = counting(monkeypatch, kinds_trash, "loads")
    asyncio.run(keeper_of(sycl_store).tidy())
    assert len(read) == 4


@pytest.mark.parametrize("size", [0, 1])
def test_what_comes_back_to_a_leaf_without_end_reads_only_so_much_of_it(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    made = sycl_store.add("_ZTS6kernel")
    leaf, source = made.src.parent, made.src.read_bytes()
    entries = look(sycl_store.root).entries
    assert all(sycl.remover.remove(entries, {one.id: NOTE for one in entries}).values())
    leaf.mkdir(parents=True, exist_ok=True)
    for slot in range(200):
        (leaf / f"{slot}.src").write_bytes(bytes(len(source) + size))
    monkeypatch.setattr(trash_files, "_COMPARED", 10 * 4096, raising=False)
    read = counting(monkeypatch, trash_files, "_content")
    (item,) = trash_files.trash(of(sycl_store))
    (told,) = trash_files.restore(of(sycl_store), (item.ref,))
    assert told.key is not None
    assert told.key.endswith("/200")
    assert len(read) <= (1 if size else 11)


def test_of_a_full_leaf_in_the_trash_only_what_is_ours_is_looked_at(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (item,) = discarded(sycl_store, 1)
    many_files.add(item / "leaf", (name for one in range(3000) for name in (f"foreign-{one}", f"{one + 1}.bin")))
    stats = counting(monkeypatch, os, "stat")
    (one,) = sycl.trash_files.trash(of(sycl_store))
    assert one.whole
    assert len(stats) <= kinds_trash._FILES + 20
    assert not [name for name in stats if str(name).startswith("foreign")]
    # Bit by bit it goes all the same.
    monkeypatch.undo()
    for path in (item / "leaf").glob("foreign-*"):
        path.unlink()
    assert {one.ref} in [sycl.trash_files.discard(of(sycl_store), (one.ref,)) for _ in range(6)]
    assert not item.exists()


def forged(store: SyclStore, number: int) -> Path:
    """Put the locks of a dead daemon beside so many halves of entries; give their leaf."""
    leaf = store.add("_ZTS6kernel").src.parent
    for slot in range(1, number + 1):
        (leaf / f"{slot}.bin").write_bytes(b"half")
        (leaf / f"{slot}.lock").write_bytes(DEAD)
    return leaf


def test_the_trash_is_read_once_for_all_that_a_dead_daemon_left(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    discarded(sycl_store, 30)
    forged(sycl_store, 20)
    scan = look(sycl_store.root)
    assert len(scan.ours) == 20
    read = counting(monkeypatch, kinds_trash, "loads")
    assert all(sycl.remover.sweep(EntryId(scan.found.store, key)) for key in scan.ours)
    assert len(read) == 30
    # What was taken out meanwhile is known.
    monkeypatch.undo()
    discarded(sycl_store, 1)
    assert look(sycl_store.root).entries == ()


def test_where_the_rest_of_an_entry_cannot_be_looked_for_nothing_of_it_is_removed(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    discarded(sycl_store, 4)
    leaf = forged(sycl_store, 1)
    (key,) = look(sycl_store.root).ours
    monkeypatch.setattr(kinds_trash, "MOST", 3)
    assert not sycl.remover.sweep(EntryId(of(sycl_store), key))
    assert (leaf / "1.bin").read_bytes() == b"half"
    assert (leaf / "1.lock").exists()
    monkeypatch.setattr(kinds_trash, "MOST", 4)
    (sycl_store.root / entry_format.TRASH / "more").mkdir()
    assert sycl.remover.sweep(EntryId(of(sycl_store), key))
    assert not (leaf / "1.lock").exists()


def test_so_many_removals_are_finished_after_a_look_and_the_rest_after_the_next(sycl_store: SyclStore) -> None:
    leaf = forged(sycl_store, OURS + 50)
    scan = look(sycl_store.root)
    assert len(set(scan.ours)) == len(scan.ours) == OURS
    # However little changes until then, the next look goes there again.
    found = FoundStore(of(sycl_store), StoreOrigin.FOUND, "test")
    (later, *_) = sycl.scanner.parts(found, datetime.now(UTC) + timedelta(hours=1), (), None)
    assert {one.place for one in later.entries} == {None}
    for key in scan.ours:
        sycl.remover.sweep(EntryId(scan.found.store, key))
    rest = look(sycl_store.root)
    for key in rest.ours:
        sycl.remover.sweep(EntryId(scan.found.store, key))
    assert not list(leaf.glob("*.lock"))
    assert [one.defect for one in look(sycl_store.root).entries] == [None]


def test_gaps_are_closed_in_as_many_steps_as_there_are_slots_and_not_more_than_so_many(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf = sycl_store.add("_ZTS6kernel").src.parent
    for slot in range(2, 400, 2):
        for suffix in (".src", ".bin"):
            (leaf / f"{slot}{suffix}").write_bytes((leaf / f"0{suffix}").read_bytes() + b"%d" % slot)
    monkeypatch.setattr(remover, "_LINGER", 0.0)
    entries = [one for one in look(sycl_store.root).entries if one.defect == sycl.defects.BEHIND_GAP]
    repairs = [Repair(one, RepairAction.CLOSE_GAP) for one in entries]
    monkeypatch.setattr(mender, "_GAPS", 10, raising=False)
    looks = counting(monkeypatch, remover, "slot_in")
    done = sycl.doctor.mend(repairs)
    assert set(done.values()) == {False}
    assert len(looks) <= 10 * len(entries)
    there = {int(path.stem) for path in leaf.glob("*.src")}
    assert len(there) == 200
    assert there >= set(range(20))
    assert 21 not in there
    monkeypatch.setattr(mender, "_GAPS", 1000)
    looks.clear()
    assert set(sycl.doctor.mend(repairs).values()) == {True}
    assert len(looks) <= 20 * len(entries)
    assert {int(path.stem) for path in leaf.glob("*.src")} == set(range(200))
    assert not list(leaf.glob("*.lock"))


def test_a_leaf_is_not_listed_for_each_of_its_slots(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for slot in range(60):
        made = sycl_store.add("_ZTS6kernel", slot=slot)
        made.src.write_bytes(made.src.read_bytes() + bytes(slot))
    entries = look(sycl_store.root).entries
    calls = counting(monkeypatch, os, "listdir")
    names = counting(monkeypatch, listing, "names")
    assert all(sycl.remover.remove(entries, {one.id: NOTE for one in entries}).values())
    assert len(calls) + len(names) <= 3


def test_a_directory_without_end_makes_a_store_unreadable_and_forgets_nothing(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf = sycl_store.add("_ZTS6kernel").src.parent
    for number in range(20):
        (leaf / f"foreign-{number}").touch()
    monkeypatch.setattr(listing, "_NAMES", 10)
    found = FoundStore(of(sycl_store), StoreOrigin.FOUND, "test")
    (*_, last) = sycl.scanner.parts(found, datetime.now(UTC), (), None)
    assert last.state is StoreState.UNREADABLE
    assert last.vanished == ()
    assert "more than 10 names" in last.notes[0]


# -- what programs name -----------------------------------------------------------------------------------------------


def named(pid: int, **variables: str) -> Process:
    return Process(pid, 0, datetime(2026, 1, 1, tzinfo=UTC), "app", None, variables)


def test_programs_name_so_many_stores_and_each_question_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [named(pid, SYCL_CACHE_DIR=f"/store/{pid}") for pid in range(1, 1001)]
    first, whole = named_by(sycl.KIND, some)
    assert len(first) == 200
    assert not whole
    located = counting(monkeypatch, sycl.discovery, "locate")
    first, whole = named_by(sycl.KIND, [named(pid, SYCL_CACHE_DIR="/store") for pid in range(1, 1001)])
    assert len(first) == 1
    assert whole
    assert len(located) == 1


@pytest.mark.parametrize("bound", ["_NAMED", "STORES", None])
def test_more_stores_than_are_looked_at_are_a_problem_of_their_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str | None
) -> None:
    some = [named(pid, SYCL_CACHE_DIR=str(tmp_path / f"{pid}")) for pid in range(1, 6)]
    monkeypatch.setattr(process_table, "processes", lambda *_: some)
    known = [
        SimpleNamespace(
            id=Store(sycl.NAME, tmp_path / f"known{number}"),
            origin=StoreOrigin.FOUND,
            state=StoreState.OK,
            via="",
            kind=sycl.NAME,
            store=tmp_path / f"known{number}",
        )
        for number in range(5)
    ]
    monkeypatch.setattr(store_finder, "all_models", "models")
    monkeypatch.setattr(store_finder, "all_stores", "stores")
    catalog = SimpleNamespace(read=lambda what: known if what == "stores" else [])
    if bound is not None:
        monkeypatch.setattr(owners if bound == "_NAMED" else store_finder, bound, 3)
    config = loading.load(None, user=True, environ={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    context = SimpleNamespace(settings=config, catalog=catalog, base={}, clock=lambda: datetime.now(UTC))
    finder = store_finder.StoreFinder(context)  # type: ignore[arg-type] # all that it asks
    finder.find()
    assert [one.code for one in finder.problems] == ([] if bound is None else ["too-many-stores"])


def test_how_a_store_was_found_is_told_though_its_words_are_no_text(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, said = tmp_path / "store", tmp_path / "a\udcff.conf"
    said.write_text(f"SYCL_CACHE_DIR={store}\nSYCL_CACHE_PERSISTENT=1\n")
    monkeypatch.setattr(process_table, "processes", lambda *_given: (named(1, SYCL_CONFIG_FILE_NAME=str(said)),))
    with contextlib.closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        config = loading.load(None, user=True, environ=os.environ)
        stores, _ = store_finder.StoreFinder(Context(config, catalog, {})).find()
        (found,) = [one for one in stores if one.store.root == store]
        catalog.write(record_scan, Scan(found, datetime.now(UTC), StoreState.OK, 0), lambda _: Architecture("x86_64"))
        assert {one.via for one in catalog.read(all_stores)} == {rf"{tmp_path}/a\udcff.conf"}


def test_so_many_folders_of_a_program_are_searched_for_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counting(monkeypatch, os.path, "realpath")
    sycl.discovery.locate(named(7, LD_LIBRARY_PATH=":".join(f"/lib/{number}" for number in range(5000))))
    assert len(asked) <= 100


# -- what a model's program does, and files that it leads to -----------------------------------------------------------


@pytest.mark.parametrize("name", ["two\nlines", "back\\slash", "\\012"])
def test_whatever_a_mapped_file_is_called_it_is_seen(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(bytes(4096))
    maps = process_tree.Maps()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        maps.look([os.getpid()])
    assert str(path) in maps.files


def test_a_script_that_another_one_becomes_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "_pages", lambda pid: (pid, ["1000"]))
    (tmp_path / "a.sh").write_text("echo; read x; exec sh b.sh\n")
    (tmp_path / "b.sh").write_text("echo; read x\n")
    maps = process_tree.Maps()
    words = ["/bin/sh", "a.sh"]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asked:
        assert asked.stdout is not None
        assert asked.stdin is not None
        for _ in range(2):
            asked.stdout.readline()
            for _ in range(2):
                maps.look([asked.pid], now=True)
            asked.stdin.write(b"\n")
            asked.stdin.flush()
    assert [one["words"] for one in maps.interpreters.report()] == [["/bin/sh", "a.sh"], ["sh", "b.sh"]]


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("train.py -c a.yaml", "train.py"),
        ("-W ignore -u train.py", "train.py"),
        ("-m net.train -c a", "net.train"),
        ("-O train.py", "train.py"),
        ("-OO -Wonce train.py", "train.py"),
        ("-Wdefault::DeprecationWarning -Xpycache_prefix=/x -X importtime train.py", "train.py"),
        ("-mtorch.distributed.run train.py", "torch.distributed.run"),
        ("-um net.train -c a", "net.train"),
        ("--check-hash-based-pycs always -bb train.py", "train.py"),
        ("-uc text train.py", ""),
        ("-ctext train.py", ""),
        ("-", ""),
        ("", ""),
    ],
)
def test_what_a_python_runs_is_told_from_its_options(words: str, script: str) -> None:
    assert interpreters._script(words.split(), python=True) == script


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("-eo pipefail run.sh -c", "run.sh"),
        ("-O extglob run.sh", "run.sh"),
        ("+x --norc run.sh", "run.sh"),
        ("-m run.sh", "run.sh"),
        ("-lc text", ""),
        ("-c text", ""),
        ("-", ""),
        ("", ""),
    ],
)
def test_what_a_shell_runs_is_told_from_its_options(words: str, script: str) -> None:
    assert interpreters._script(words.split(), python=False) == script


def test_what_is_written_for_all_programs_at_any_time_is_none_of_a_model_s(tmp_path: Path) -> None:
    """As SSSD does when a name is looked up: each model that knows its user's name was changed, without end."""
    path = tmp_path / "mesa_shader_cache_db" / "index"
    path.parent.mkdir()
    path.write_bytes(bytes(2 << 20))
    maps = process_tree.Maps()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        maps.look([os.getpid()])
    for one in (b"/var/lib/sss/mc/passwd", b"/var/cache/nscd/passwd", b"/run/nscd/group", b"/var/lib/weights"):
        maps._note(one, code=False)
    assert [one for one, code in maps.files.items() if not code and one.startswith("/var/")] == ["/var/lib/weights"]
    assert str(path) not in maps.files


def test_steps_of_one_script_leave_room_for_another(tmp_path: Path) -> None:
    found = Interpreters()
    for name in ("step.sh", "last.sh"):
        (tmp_path / name).write_text("echo; read x\n")
    steps = [["/bin/sh", "step.sh", str(number)] for number in range(interpreters._MOST)]
    for words in (*steps, ["/bin/sh", "last.sh"]):
        with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asked:
            assert asked.stdout is not None
            asked.stdout.readline()
            for _ in range(2):
                found.look(asked.pid)
            asked.kill()
    assert found.report()[-1]["words"] == ["/bin/sh", "last.sh"]


def test_maps_of_a_process_tree_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "_LINES", 5)
    with contextlib.ExitStack() as stack:
        pids = [stack.enter_context(program({})) for _ in range(3)]
        maps = process_tree.Maps()
        for turn in range(1, 4):
            maps.look(pids, now=True)
            assert set(maps._sizes) == set(pids[:turn])


FAMILY: Final = """
import os, sys, threading
from xpucached.libexec import process_tree
gone, stays = os.pipe()
def fork(work):
    if os.fork() == 0:
        os.closerange(stays, stays + 1)
        work()
        os.read(gone, 1)
        os._exit(0)
def two():
    fork(lambda: None)
def by_a_thread():
    thread = threading.Thread(target=fork, args=(two,))
    thread.start()
    thread.join()
fork(os.setsid)
fork(by_a_thread)
while len(process_tree.process_tree()) < 4:
    pass
asked, listdir = [], os.listdir
os.listdir = lambda path: asked.append(path) or listdir(path)
print(sorted(process_tree.descendants()) == sorted(process_tree.process_tree()), asked.count("/proc"))
os.path.exists = lambda path: False
print(sorted(process_tree.descendants()) == sorted(process_tree.process_tree()), asked.count("/proc"))
"""


def test_a_process_tree_is_followed_without_a_look_at_the_rest_of_the_host() -> None:
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        pytest.skip("this kernel does not list the children of a process")
    words = [sys.executable, "-c", FAMILY]
    said = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    # The last without such lists.
    assert said.splitlines() == ["True 1", "True 3"]


def test_the_temporary_directory_is_looked_at_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        (tmp_path / str(number)).write_bytes(bytes(4096))
    watch = process_tree.ProcessTreeUse(1 << 40, 1 << 40, str(tmp_path))
    assert watch.exceeded([]) is None
    monkeypatch.setattr(process_tree, "_FILES", 100)
    monkeypatch.setattr(process_tree, "_LOOK", 0.0)
    watch = process_tree.ProcessTreeUse(1 << 40, 1 << 40, str(tmp_path))
    while (exceeded := watch.exceeded([])) is None:
        # A busy machine takes more than a moment for it.
        pass
    outcome, said = exceeded
    assert outcome == "over-disk"
    assert "more than 100 files" in said


def test_descriptors_of_a_process_tree_and_of_others_are_looked_at_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with program({}, files=500) as pid, program({}, files=500) as other:
        asked = counting(monkeypatch, os, "readlink")
        monkeypatch.setattr(process_tree, "_OPEN", 600)
        assert list(process_tree._drm([pid, other])) == []
        assert len(asked) == 600
        asked.clear()
        monkeypatch.setattr(pressure, "_OPEN_OF_ONE", 100, raising=False)
        PressureMeter().look()
        assert sum(str(path).startswith((f"/proc/{pid}/", f"/proc/{other}/")) for path in asked) == 200
        asked.clear()
        monkeypatch.setattr(pressure, "_OPEN", 20)
        PressureMeter().look()
        assert len(asked) == 20


@contextlib.contextmanager
def supervised(directory: Path, *command: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """Start a command under the supervisor; give it, and the descriptors for orders and of its report."""
    (hears, orders), (report, seen) = os.pipe(), os.pipe()
    given = os.memfd_create("environment")
    os.write(given, b"{}")
    os.lseek(given, 0, os.SEEK_SET)
    words = [sys.executable, supervisor.__file__, "--orders", str(hears), "--report", str(seen)]
    words += ["--environment", str(given), "--memory", str(1 << 40), "--disk", str(1 << 40)]
    words += ["--scratch", str(directory), "--directory", str(directory), "--", *command]
    with subprocess.Popen(words, pass_fds=(hears, seen, given)) as process:
        for descriptor in (hears, seen, given):
            os.close(descriptor)
        try:
            yield process, orders, report
        finally:
            os.close(orders)
            process.wait()
            os.close(report)


COMET = """
import os, sys, time
end = time.monotonic() + 15
if os.fork():
    time.sleep(0.5)
    os._exit(0)
os.setsid()
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
with open("alive", "w") as file:
    file.write("until its own end")
"""


def test_who_forks_and_ends_faster_than_anybody_looks_is_ended(tmp_path: Path) -> None:
    with supervised(tmp_path, sys.executable, "-c", COMET) as (process, _, report):
        process.wait()
        said = json.loads(os.read(report, 1 << 20))
    assert (said["status"], said["left"]) == (0, [])
    # It would live on for seconds, as another process each millisecond; so it is looked for in all of them.
    for _ in range(100):
        assert not [one for one in Path("/proc").glob("[0-9]*/cwd") if reached(one) == tmp_path]


def reached(link: Path) -> Path | None:
    with contextlib.suppress(OSError):
        return link.readlink()
    return None


def test_where_we_fail_while_we_listen_all_that_was_started_is_ended(tmp_path: Path) -> None:
    def failing(_: object) -> tuple[frozenset[EntryId], frozenset[EntryId]]:
        raise RuntimeError

    away = "env -i setsid sh -c 'echo $$ > new; mv new pid; exec sleep 50' & while [ ! -e pid ]; do sleep 0.01; done"
    workload = Workload(
        ("/bin/sh", "-c", f"{away}; echo '[Persistent Cache]: some words' >&2; sleep 50"), tmp_path, {}, 30
    )
    with pytest.raises(RuntimeError):
        asyncio.run(
            ProcessStarter(os.environ, INSTANCE).execute(workload, {}, Trace(sycl.trace.MARKS, failing), polite=True)
        )
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_whoever_goes_on_while_all_shall_stand_still_is_stopped_again(tmp_path: Path) -> None:
    with supervised(tmp_path, sys.executable, "-c", "import time; time.sleep(60)") as (process, orders, _):
        while not (children := psutil.Process(process.pid).children()):
            time.sleep(0.01)
        (child,) = children
        os.write(orders, b"p")
        for _ in range(3):
            while child.status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)
            child.send_signal(signal.SIGCONT)


def test_a_device_is_not_opened_in_search_of_a_build_id(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = counting(monkeypatch, os, "open")
    assert elf.build_id(Path("/dev/null")) is None
    assert opened == []


def test_segments_that_share_their_notes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<HH", head, 54, 56, 256)
    row = bytearray(56)
    struct.pack_into("<I", row, 0, 4)
    struct.pack_into("<Q", row, 8, 64 + 256 * 56)
    struct.pack_into("<Q", row, 32, 1 << 16)
    file = tmp_path / "library.so"
    file.write_bytes(bytes(head) + bytes(row) * 256 + bytes(1 << 16))
    read: list[int] = []
    pread = os.pread

    def noting(descriptor: int, length: int, offset: int) -> bytes:
        data = pread(descriptor, length, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", noting)
    assert elf.build_id(file) is None
    assert sum(read) <= 64 + 256 * 56 + (1 << 16)


def test_what_blocks_a_store_is_looked_for_in_no_directory_without_end(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sycl_store.add()
    for number in range(10**15, 10**15 + 20):
        (sycl_store.root / str(number)).touch()
    found = FoundStore(of(sycl_store), StoreOrigin.FOUND, "test")
    assert sycl.defects.BLOCKED in sycl.doctor.faults(found, datetime.now(UTC), None)
    monkeypatch.setattr(listing, "_NAMES", 10)
    assert sycl.doctor.faults(found, datetime.now(UTC), None) == ()


def test_what_a_run_makes_is_looked_for_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_files, "MOST", 30)
    for number in range(100):
        (tmp_path / str(number)).mkdir()
    scanned = counting(monkeypatch, os, "scandir")
    cache_files.files([tmp_path])
    assert len(scanned) == 1
    for number in range(100):
        (tmp_path / str(number) / "file").touch()
    # What was not looked at is not known, and nothing is proven by it.
    assert cache_files.files([tmp_path / str(number) for number in range(100)]) is None
    assert cache_files.files([tmp_path / str(number) for number in range(10)]) is not None
    # Nor is what a disk does not tell just now: to take it for empty would prove that nothing came.
    scan = os.scandir

    def failing(path: str) -> Iterator[os.DirEntry[str]]:
        if path == os.fspath(tmp_path / "1"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", failing)
    assert cache_files.files([tmp_path / str(number) for number in range(10)]) is None
    assert [*(cache_files.files([tmp_path / "2", tmp_path / "none"]) or ())] == [os.fspath(tmp_path / "2" / "file")]


def test_a_disk_that_is_slow_is_given_what_came_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def slow(_descriptor: int) -> None:
        now[0] += 50.0

    monkeypatch.setattr(cache_files, "time", SimpleNamespace(monotonic=lambda: now[0]), raising=False)
    monkeypatch.setattr(os, "fsync", slow)
    for number in range(10):
        (tmp_path / str(number)).touch()
    found = cache_files.kept([tmp_path], {})
    assert (found == cache_files.files([tmp_path]), now) == (True, [150.0])


def test_of_a_store_with_devices_without_end_some_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        (tmp_path / str(number)).mkdir()
    monkeypatch.setattr(places, "_LISTED", 50, raising=False)
    asked = counting(monkeypatch, places, "_modified")
    assert len(places._devices(tmp_path)) == places._MOST_DEVICES
    assert len(asked) == 50


def test_the_trashes_of_all_stores_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = [Store(sycl.NAME, Path(f"/store/{number}")) for number in range(10)]

    def item(store: Store, number: int) -> Trashed:
        ref, key, at = TrashRef(f"{number:012x}"), EntryKey("1/2/3/4/0"), datetime(2026, 1, 1, tzinfo=UTC)
        return Trashed(
            ref,
            store,
            key,
            at,
            EvictReason.UNUSED,
            "",
            quarantined=False,
            device="",
            driver="",
            allocated=1,
            whole=True,
        )

    monkeypatch.setattr(trash, "_MOST", 25, raising=False)
    monkeypatch.setattr(
        trash_files,
        "trash",
        lambda store, after="": tuple(item(store, number) for number in range(10 if not after else 0)),
    )
    known = [SimpleNamespace(id=one, store=one.root, state=StoreState.OK) for one in stores]
    context = SimpleNamespace(catalog=SimpleNamespace(read=lambda _: known))
    keeper = trash.TrashKeeper(context, SimpleNamespace())  # type: ignore[arg-type] # all that it asks
    assert len(keeper._all()) == 25
    assert {one.store for _ in range(100) for one in keeper._all()} == set(stores)


def test_a_program_whose_name_is_cut_amid_a_character_has_a_name(tmp_path: Path) -> None:
    """The kernel keeps 15 bytes of it, and the catalog only text."""
    program = tmp_path / ("a" * 14 + "é-trainer")
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as running:
        try:
            (found,) = (one for one in process_table.processes(os.getuid(), ("libc",)) if one.pid == running.pid)
        finally:
            running.kill()
    assert found.name == program.name or found.name == "a" * 14 + "\\xc3"


def test_a_program_s_configuration_that_never_answers_holds_up_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(deadlines, "SECONDS", 0.1)
    monkeypatch.setattr(os.path, "realpath", lambda *_args, **_options: answered.wait(60))
    program = Process(7, os.getuid(), datetime.now(UTC), "app", None, {"SYCL_CONFIG_FILE_NAME": "/away/sycl.conf"})
    try:
        assert sycl.discovery._configuration(program) == ({}, "")
        assert not answered.is_set()
    finally:
        answered.set()


def test_a_program_that_is_being_put_in_place_is_not_swept(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the look comes before or after its directory is made."""
    sycl_store.root.mkdir(parents=True, exist_ok=True)
    made = recipes._staged
    swept: list[bool] = []

    @contextlib.contextmanager
    def sweeping(*given: object) -> Iterator[int]:
        with made(*given) as staging:  # type: ignore[arg-type]
            look = threading.Thread(target=lambda: swept.append(recipes.clear_staging(os.fspath(sycl_store.root))))
            look.start()
            # It waits for its turn, if it may not go on meanwhile.
            look.join(0.5)
            yield staging

    monkeypatch.setattr(recipes, "_staged", sweeping)
    entry = EntryId(of(sycl_store), EntryKey("1/2/3/4/0"))
    recipe = Recipe(entry, b"image", b"", {"file-mode": "600", "directory-mode": "700"})
    assert recipes.publish(recipe, sycl_target("p", "d", "v", "x"), b"program") is not None


def test_a_gap_that_somebody_holds_is_not_said_to_be_closed(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = sycl_store.add("a", slot=2)
    (entry,) = look(sycl_store.root).entries
    take = locks.take

    def quicker(leaf: int, name: str) -> object:
        (slot.leaf / f"{name}.lock").touch()
        return take(leaf, name)

    monkeypatch.setattr(locks, "take", quicker)
    assert list(sycl.doctor.mend([Repair(entry, RepairAction.CLOSE_GAP)]).values()) == [False]


def test_no_number_of_a_forged_report_is_more_than_the_catalog_holds() -> None:
    most = 99999999999999999999
    seen = read_seen(f'{{"status": {most}, "left": [{most}, 7], "engines": [["x", {most}], ["y", 1]]}}'.encode())
    assert seen is not None
    assert (seen.status, seen.left, seen.engines) == (None, (7,), {"y": 1})


@pytest.mark.parametrize(
    "forged",
    [
        '{"directory": "sub", "words": ["sh"], "variables": {}}',
        '{"directory": "/", "words": ["sh", 7], "variables": {}}',
        '{"directory": "/", "words": ["sh", "\\u0000"], "variables": {}}',
        '{"directory": "/", "words": ["sh", "\\udcff"], "variables": {}}',
        '{"directory": "/", "words": "sh", "variables": {}}',
        '{"directory": "/", "words": ["sh"], "variables": {"PATH": []}}',
        '{"directory": "/", "words": ["sh"]}',
        "[]",
    ],
)
def test_no_interpreter_of_a_forged_report_is_more_than_words_and_paths(forged: str) -> None:
    good = '{"directory": "/", "words": ["sh", "run.sh"], "variables": {"PATH": "/bin"}}'
    seen = read_seen(f'{{"interpreters": [{forged}, {good}]}}'.encode())
    assert seen is not None
    assert [one.words for one in seen.interpreters] == [("sh", "run.sh")]


def test_what_is_noted_as_an_interpreter_is_followed_as_one() -> None:
    pythons = interpreters._PYTHONS
    assert SHELLS | pythons == interpreters._NAMES
    assert all(PYTHON.match(f"{one}3.13t") for one in pythons)


def test_interpreters_are_noted_in_bounded_number_and_shells_leave_room_for_others(tmp_path: Path) -> None:
    found = Interpreters()
    shells = [["/bin/sh", str(tmp_path / f"{number}.sh")] for number in range(interpreters._MOST)]
    python, long = ([sys.executable, str(tmp_path / name)] for name in ("app.py", "long.py"))
    for _, script in (*shells, python, long):
        Path(script).write_text("print(flush=True); input()" if script.endswith(".py") else "echo; read x\n")
    given = {"PATH": "/p", "SECRET": "s"}
    for words in (*shells, python, [*long, *["x" * 1000] * 1000]):
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=given) as asked:
            assert asked.stdout is not None
            # It runs now, and not what forked it.
            asked.stdout.readline()
            for _ in range(2):
                found.look(asked.pid)
            asked.kill()
    *some, one, last = found.report()
    assert len(some) == interpreters._MOST // interpreters._SHARE
    assert (one["words"], one["variables"]) == (python, {"PATH": "/p"})
    assert len(str(last)) < 2 * interpreters._WORDS


@pytest.mark.timeout(20)
def test_a_driver_s_name_is_not_read_in_many_ways(tmp_path: Path) -> None:
    """Once in each way to divide these signs would be for ever, and nothing else would run meanwhile."""
    assert drivers._version(tmp_path / ("libintelocl.so.1" + "+" * 200 + "!"), 0) is None
    assert drivers._version(tmp_path / "libintelocl.so.2025.20.12+g1", 0) == "2025.20.12+g1"


def test_a_driver_s_file_from_the_end_of_time_is_a_file() -> None:
    assert (quantities.moment(10**21).year, quantities.moment(-(10**21)).year) == (9999, 1970)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        file = Path(place, "libze_loader.so.1")
        file.write_bytes(b"no library")
        os.utime(file, (10**12, 10**12))
        if file.stat().st_mtime < 10**12:
            pytest.skip("this file system keeps no such time")

        found = drivers.driver_files({"LD_LIBRARY_PATH": place})

    assert [one.modified.year for one in found if one.path == file] == [9999]


def test_a_library_is_read_no_further_than_it_was_long(tmp_path: Path) -> None:
    library = tmp_path / "libsycl.so.8"
    library.write_bytes(b"begin")
    stamp = (1, 2, 5, 3)
    with library.open("rb") as stream:
        begin = runtimes._digest(library, stream.fileno(), stamp)
    runtimes._KNOWN.pop(stamp)
    library.write_bytes(b"begin, and what somebody writes on and on")
    with library.open("rb") as stream:
        assert runtimes._digest(library, stream.fileno(), stamp) == begin
    runtimes._KNOWN.pop(stamp)


def test_what_a_runtime_writes_without_end_for_one_tiny_program_is_not_all_kept(
    tmp_path: Path, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        sycl_store.add(f"kernel{number}")
    monkeypatch.setattr("xpucached.kinds.known_cursor.PART", 10)
    taken: list[int] = []

    def parts(*given: object) -> Iterator[Scan]:
        for part in scanner_parts(*given):  # type: ignore[arg-type] # as it is called
            taken.append(len(part.entries))
            yield part

    scanner_parts = scanner.parts
    monkeypatch.setattr(scanner, "parts", parts)

    def build(_folder: Path, cache: Path, *_: object, **__: object) -> bool:
        cache.symlink_to(sycl_store.root)
        return True

    monkeypatch.setattr(preflight, "build_tiny_program", build)
    target = sycl_target("Intel(R) OpenCL", "cpu", "1", "2")
    found = preflight._written(tmp_path, [target], OtherDriver((target,), "", {}), datetime.now(UTC), 1.0)

    assert len(found) == 1
    assert len(taken) == 1
    assert taken[0] < 30


def test_a_way_that_begins_at_no_root_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sockets.UntrustedPeer):
        sockets.check_way("not/there/yet", Strangers())


class Strangers(sockets.Trusted):
    """Nobody is one of them."""

    def __contains__(self, uid: int) -> bool:
        return False
