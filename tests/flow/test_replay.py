"""Replay: the compiler in its child, and the whole way with real drivers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import psutil
import pytest
from msgspec.structs import replace

from tests import INSTANCE
from tests.flow import test_bounds
from tests.flow.test_daemon import driven, switch, warm
from tests.kinds.test_sycl_damage import look
from tests.support.builders import SyclStore, bomb, framed, native, spirv, sycl_target
from tests.support.daemons import daemon
from tests.support.runtimes import told
from xpucached.catalog import Catalog
from xpucached.catalog.entries import all_entries
from xpucached.catalog.refusals import refused_by
from xpucached.catalog.surveys import record_survey
from xpucached.domain.host import Host, OtherDriver
from xpucached.domain.models import Model, Workload
from xpucached.domain.names import EntryKey, ModelName
from xpucached.domain.plans import Rebuild, Recipe, ReplayReason
from xpucached.domain.stores import EntryId, FoundStore, Store, StoreOrigin
from xpucached.domain.targets import Target
from xpucached.host import core_slots
from xpucached.host.core_slots import CoreBudget
from xpucached.host.roots import HostRoots
from xpucached.kinds import sycl
from xpucached.kinds.sycl import entry_format, trash_files
from xpucached.processes import compiler, driver_probe
from xpucached.processes.compiler import BuildFailed, BuildHung, CompilerKilled, NoCompiler
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import replay
from xpucached.service.context import Context
from xpucached.service.publish import Publisher
from xpucached.service.rebuild import RebuildJob, drivers_in_use
from xpucached.service.scan import StoreScanner
from xpucached.service.store_finder import StoreFinder
from xpucached.service.trash import TrashKeeper
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.support.daemons import Daemon
    from tests.support.runtimes import Runtime
    from xpucached.domain.plans import CompilerSpec
    from xpucached.domain.reports import ReplayReport
    from xpucached.service.jobs import Handle
    from xpucached.settings import Settings

FACTS = {"file-mode": "644", "directory-mode": "755", "access-time": "kept"}
NEW = sycl_target("Intel(R) OpenCL", "CPU", "OpenCL 3.0", "2")
STORE = Store(sycl.NAME, Path("/store"))


# -- the compiler in its child ------------------------------------------------------------------------------------


def written(filled: Path, root: Path) -> list[Path]:
    """Copy a store that a real program filled, and give its sources."""
    shutil.copytree(filled, root)
    return sorted(root.glob("[0-9]*/*/*/*/0.src"))


def recipe_from(path: Path) -> Recipe:
    source = entry_format.source(path.read_bytes(), path.stat().st_size)
    ident = EntryId(Store(sycl.NAME, path.parents[4]), EntryKey("0"))
    return Recipe(ident, source.image, source.options, FACTS)


@pytest.fixture
def real_compiler(runtime: Callable[[str], Runtime]) -> Iterator[compiler.CompilerProcess]:
    """Return a compiler of the real driver."""
    real = runtime("rt2025.2")
    variables = {"LD_LIBRARY_PATH": str(real.lib), "OCL_ICD_FILENAMES": str(real.driver)}
    (answer,) = driver_probe.ask(variables).answers
    compiler = ProcessStarter(os.environ, INSTANCE).compiler(
        sycl.rebuilder.compiler(sycl.targets.target_of(answer), STORE.root), variables
    )
    yield compiler
    compiler.close()


@pytest.mark.runtime
def test_compiled_is_byte_for_byte_what_the_runtime_makes(
    real_compiler: compiler.CompilerProcess, filled: Path, tmp_path: Path
) -> None:
    sources = written(filled, tmp_path / "cache")
    assert sources
    for path in sources:
        binary, seconds = real_compiler.build(recipe_from(path), threading.Event())
        assert binary == path.with_suffix(".bin").read_bytes()[16:]
        assert seconds > 0


@pytest.mark.runtime
def test_what_the_compiler_refuses_costs_that_entry_alone(
    real_compiler: compiler.CompilerProcess, filled: Path, tmp_path: Path
) -> None:
    path = written(filled, tmp_path / "cache")[0]
    good = recipe_from(path)
    ident = good.entry
    hostile = (
        Recipe(ident, b"no SPIR-V", b"", FACTS),
        Recipe(ident, spirv("_ZTS3foo"), b"", FACTS),
        Recipe(ident, good.input[:20] + b"\xff" * 400, b"", FACTS),
        Recipe(ident, good.input, b"--no-such-option -I/etc \xff", FACTS),
        Recipe(ident, good.input[:200] + b"\xff" * 400 + good.input[600:], b"", FACTS),
    )
    for one in hostile:
        with pytest.raises(BuildFailed):
            real_compiler.build(one, threading.Event())
        binary, _ = real_compiler.build(good, threading.Event())
        assert binary == path.with_suffix(".bin").read_bytes()[16:]


@pytest.mark.runtime
def test_a_compiler_that_dies_or_hangs_is_replaced(
    real_compiler: compiler.CompilerProcess,
    filled: Path,
    tmp_path: Path,
) -> None:
    good = recipe_from(written(filled, tmp_path / "cache")[0])
    real_compiler.build(good, threading.Event())
    assert real_compiler._child is not None
    # As a host does that runs out of memory: that is not held against the program.
    os.kill(real_compiler._child.pid, signal.SIGKILL)
    with pytest.raises(CompilerKilled, match="was killed"):
        real_compiler.build(good, threading.Event())
    real_compiler.build(good, threading.Event())
    os.kill(real_compiler._child.pid, signal.SIGSEGV)
    with pytest.raises(BuildFailed, match="SIGSEGV") as crash:
        real_compiler.build(good, threading.Event())
    assert not isinstance(crash.value, NoCompiler)
    real_compiler.build(good, threading.Event())
    os.kill(real_compiler._child.pid, signal.SIGSTOP)
    with pytest.raises(BuildHung, match="longer than"):
        real_compiler.build(good, threading.Event(), 0.5)
    assert real_compiler.build(good, threading.Event())[0]
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(BuildFailed, match="cancelled"):
        real_compiler.build(good, cancelled)


@pytest.mark.runtime
def test_a_compiler_for_another_environment_does_not_start(runtime: Callable[[str], Runtime]) -> None:
    real = runtime("rt2025.2")
    variables = {"LD_LIBRARY_PATH": str(real.lib), "OCL_ICD_FILENAMES": str(real.driver)}
    compiler = ProcessStarter(os.environ, INSTANCE).compiler(sycl.rebuilder.compiler(NEW, STORE.root), variables)
    ident = EntryId(STORE, EntryKey("0"))
    with pytest.raises(NoCompiler, match="no OpenCL device is"):
        compiler.build(Recipe(ident, b"x", b"", FACTS), threading.Event())


# -- the whole way ------------------------------------------------------------------------------------------------


@pytest.fixture
def replayer(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that is not started yet."""
    with daemon(home, short_dir) as one:
        yield one


def checksum_and_trace(
    real: Runtime, driver: Runtime, workload: Path, root: Path, **variables: str
) -> tuple[float, int, int]:
    done = subprocess.run(
        [real.python, "-W", "ignore", workload, "small"],
        env=real.environment(root, driver=driver.driver, trace=True) | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    created, used = told(root, done.stderr.splitlines())
    return json.loads(done.stdout)["checksum"], len(created), len(used)


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_driver_change_is_replayed_and_proven(
    replayer: Daemon, runtime: Callable[[str], Runtime], workload: Path, tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    link = tmp_path / "driver"
    driven(replayer, first, link)
    replayer.start()
    replayer.ctl("model", "add", "app", "--", str(first.python), "-W", "ignore", str(workload), "small")
    names = ("app", *replayer.add_models(first))
    replayer.ctl("prewarm", *names)
    entries = len(replayer.rows("ls"))
    assert "nothing to rebuild" in replayer.ctl("replay").stdout
    switch(link, second)
    replayer.until(lambda: any(event["topic"] == "replayed" for event in replayer.rows("events")))
    for name in names:
        replayer.until(lambda name=name: len(replayer.rows("runs", name)) == 2)  # type: ignore[misc]
        warm(replayer, name)
        newest = replayer.rows("runs", name)[0]
        assert [one["created"] for one in newest["passes"]] == [0]  # type: ignore[attr-defined]
    assert len(replayer.rows("ls", "--driver", "current")) == entries
    job = next(row for row in replayer.rows("jobs") if row["kind"] == "replay")
    report = replayer.ask("jobs", str(job["id"]))["report"]
    assert (report["rebuilt"], report["failed"]) == (entries, 0)  # type: ignore[index]

    # Of each model one that is damaged is mended where it lies, and none of them, of whatever sort, has to run for it.
    before = {name: len(replayer.rows("runs", name)) for name in names}
    refs: dict[str, dict[str, object]] = {}
    for name in names:
        mine = replayer.rows("ls", "--model", name, "--driver", "current")
        refs[name] = next(row for row in mine if row["models"] == [name])
        cut = Path(str(refs[name]["store"]), f"{refs[name]['key']}.bin")
        os.truncate(cut, cut.stat().st_size - 7)
    mended = replayer.ask("verify", "--fix")["report"]["findings"]  # type: ignore[index]
    assert {one["ref"]: one["action"] for one in mended} == dict.fromkeys(
        (one["ref"] for one in refs.values()), "rebuild"
    )
    assert replayer.rows("ls", "--state", "defective") == []
    for name in names:
        warm(replayer, name)

    # The driver of before comes back: its entries, and its proofs, are there still.
    switch(link, first)
    replayer.until(lambda: len(replayer.ask("status")["changes"]) == 2)  # type: ignore[arg-type]
    for name in names:
        assert replayer.ask("model", "show", name)["warmth"] == "warm"
    replayer.until(replayer.idle)
    assert {name: len(replayer.rows("runs", name)) for name in names} == before


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_what_is_asked_for_right_after_a_start_is_replayed_and_not_compiled_by_its_model(
    replayer: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    link = tmp_path / "driver"
    driven(replayer, first, link)
    replayer.start()
    names = replayer.add_models(first)
    replayer.ctl("prewarm", *names)
    assert replayer.end() == 0
    # As when a host boots with another driver, and a service that waits for its models asks in the first second.
    switch(link, second)
    replayer.start(ready=False)
    replayer.until(lambda: replayer.ctl("prewarm", *names, check=None).returncode == 0)
    for name in names:
        newest, *older = replayer.rows("runs", name)
        assert len(older) == 1
        assert [one["created"] for one in newest["passes"]] == [0]  # type: ignore[attr-defined]
        warm(replayer, name)


@pytest.mark.runtime
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["behind a link", "with dots", "removed"])
def test_a_replay_ends_well_however_the_drivers_own_cache_lies(
    replayer: Daemon,
    runtime: Callable[[str], Runtime],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    cache = home / ".cache"
    if how == "behind a link":
        (tmp_path / "disk").mkdir()
        cache.rmdir()
        cache.symlink_to(tmp_path / "disk")
    if how == "with dots":
        monkeypatch.setenv("XDG_CACHE_HOME", f"{home}/../{home.name}/.cache")
    link = tmp_path / "driver"
    driven(replayer, runtime("rt2025.2"), link)
    replayer.start()
    replayer.ctl("prewarm", *replayer.add_models(runtime("rt2025.2")))
    entries = len(replayer.rows("ls"))
    if how == "removed":
        (cache / "xpucached" / "neo").rmdir()
    switch(link, runtime("drv2025.3"))

    def ended() -> list[dict[str, object]]:
        return [row for row in replayer.rows("jobs") if row["kind"] == "replay" and row["state"] in ("done", "failed")]

    replayer.until(lambda: ended() != [])
    (job,) = ended()
    assert (job["state"], job["error"]) == ("done", None)
    report = replayer.ask("jobs", str(job["id"]))["report"]
    assert (report["rebuilt"], report["failed"]) == (entries, 0)  # type: ignore[index]


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_driver_that_is_away_finds_no_entry_guilty(
    replayer: Daemon, runtime: Callable[[str], Runtime], filled: Path, tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    link, root = tmp_path / "driver", tmp_path / "cache"
    shutil.copytree(filled, root)
    driven(replayer, first, link, f"[stores]\npaths = ['{root}']\n")
    with replayer.config.open("a") as file:
        file.write("replay = false\n")
    switch(link, second)
    replayer.start()
    entries = len(replayer.rows("ls"))
    command = [*replayer.client, "replay"]
    begun = subprocess.Popen(command, env=replayer.environment, stdout=subprocess.PIPE, text=True)
    # Whether it asks the driver just now, or compiles already: what is asked of it next finds none.
    replayer.until(lambda: any(one["kind"] == "replay" for one in replayer.rows("jobs")))
    # A package manager takes the old one away before it puts the same one there again.
    link.unlink()
    told, _ = begun.communicate()
    switch(link, second)
    stamped = [event for event in replayer.rows("events") if event["topic"] == "replayed"]
    assert stamped, told

    replayer.until(lambda: "no-opencl-driver" not in str(replayer.ask("status")["problems"]))
    report = replayer.ask("replay")["report"]

    assert report["skipped"] == {}  # type: ignore[index]
    assert len(replayer.rows("ls", "--driver", "current")) == entries


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_seven_drivers_in_one_store_in_any_direction(
    replayer: Daemon, runtime: Callable[[str], Runtime], workload: Path, tmp_path: Path
) -> None:
    real = runtime("rt2025.2")
    link, root = tmp_path / "driver", tmp_path / "cache"
    names = ("rt2025.2", "drv2025.3", "rt2024.2", "rt2026.2", "rt2025.1", "drv2026.0", "drv2025.0")
    drivers = [runtime(name) for name in names]
    truth, made, _ = checksum_and_trace(real, real, workload, root)
    driven(replayer, real, link, f"[stores]\npaths = ['{root}']\n[policy]\nkeep_driver_generations = 9\n")
    replayer.start()
    for number, driver in enumerate((*drivers[1:], drivers[0], drivers[3]), start=1):
        before = replayer.ask("devices")["environments"]
        switch(link, driver)
        replayer.until(lambda old=before: replayer.ask("devices")["environments"] not in ([], old))  # type: ignore[misc]
        replayer.ctl("replay")
        if number >= len(drivers):
            # Back to one that was here before: what it needs was kept.
            assert "nothing to rebuild" in replayer.ctl("replay").stdout
        result, *counts = checksum_and_trace(real, driver, workload, root)
        assert counts == [0, made]
        # An old driver may calculate wrongly on a CPU that is newer than it, whatever lies in the cache.
        off = {"SYCL_CACHE_PERSISTENT": "0"}
        assert result == truth or result == checksum_and_trace(real, driver, workload, root, **off)[0]
    assert len(replayer.rows("ls")) == made * len(drivers)


def beside(filled: Path, root: Path) -> tuple[list[Path], entry_format.Source, Callable[[bytes], object]]:
    """Copy what a real program filled; give its sources, one of them read, and what adds images as if it had."""
    sources = written(filled, root)
    good = entry_format.source(sources[0].read_bytes(), sources[0].stat().st_size)
    platform, device, version, driver = good.device.decode().split("/")
    store = SyclStore(root)

    def add(image: bytes) -> object:
        return store.add(image=image, platform=platform, device=device, version=version, driver=driver, age=5)

    return sources, good, add


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_hostile_entries_are_refused_once_and_the_rest_is_rebuilt(
    replayer: Daemon, runtime: Callable[[str], Runtime], filled: Path, tmp_path: Path
) -> None:
    second = runtime("drv2025.3")
    link, root = tmp_path / "driver", tmp_path / "cache"
    sources, good, add = beside(filled, root)
    for image in (spirv("_ZTS4evil"), spirv("_ZTS5worse"), good.image[:20] + b"\xff" * 400):
        add(image)
    driven(replayer, second, link, f"[stores]\npaths = ['{root}']\n")
    replayer.configure(replayer.config.read_text() + "replay = false\n")
    replayer.start()
    planned = replayer.ask("replay", "--dry-run")["report"]
    assert len(planned["plan"]["rebuild"]) == len(sources) + 3  # type: ignore[index]
    report = replayer.ask("replay")["report"]
    assert (report["rebuilt"], report["failed"]) == (len(sources), 3)  # type: ignore[index]
    assert len(report["failures"]) == 3  # type: ignore[index]
    again = replayer.ask("replay")["report"]
    assert (again["rebuilt"], again["failed"], again["skipped"]) == (0, 0, {"failed-before": 3})  # type: ignore[index]


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_compile_bombs_and_claims_of_gigabytes_cost_neither_memory_nor_the_rest(
    replayer: Daemon, runtime: Callable[[str], Runtime], filled: Path, tmp_path: Path
) -> None:
    second = runtime("drv2025.3")
    link, root = tmp_path / "driver", tmp_path / "cache"
    sources, good, add = beside(filled, root)
    # Where two are compiled at a time, the third comes to a compiler that took the place of one that was ended.
    for levels in range(34, 37):
        add(bomb(levels))
    for number, claim in enumerate((1 << 30, 1 << 62)):
        leaf = sources[0].parents[1] / str(number)
        shutil.copytree(sources[0].parent, leaf)
        head = framed(good.device, b"", b"") + struct.pack("<Q", claim)
        with (leaf / "0.src").open("wb") as stream:
            stream.write(head)
            stream.truncate(len(head) + (1 << 30))
    driven(replayer, second, link, f"[stores]\npaths = ['{root}']\n")
    text = replayer.config.read_text() + "replay = false\n"
    replayer.configure(text.replace("[driver]\n", "[driver]\ncompile_timeout = '5s'\n"))
    replayer.start()
    report = replayer.ask("replay")["report"]
    assert (report["rebuilt"], report["failed"]) == (len(sources), 3)  # type: ignore[index]
    assert any("took too long" in one or "longer than" in one for one in report["failures"])  # type: ignore[index]
    assert replayer.process is not None
    with Path(f"/proc/{replayer.process.pid}/status").open() as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak < 400 << 10
    left = psutil.Process(replayer.process.pid).children(recursive=True)
    assert not [one for one in left if any("libexec/compiler.py" in word for word in one.cmdline())]
    assert "nothing to rebuild" in replayer.ctl("replay").stdout


@pytest.mark.runtime
def test_a_compiler_that_takes_too_much_memory_is_ended(
    real_compiler: compiler.CompilerProcess,
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = recipe_from(written(filled, tmp_path / "cache")[0])
    monkeypatch.setattr(compiler, "_RESIDENT", 64 << 20)
    with pytest.raises(BuildFailed, match="of memory"):
        real_compiler.build(Recipe(good.entry, bomb(), b"", FACTS), threading.Event())
    monkeypatch.setattr(compiler, "_RESIDENT", 4 << 30)
    assert real_compiler.build(good, threading.Event())[0]


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_killed_and_cancelled_a_replay_goes_on_where_it_stopped(
    replayer: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    link, root = tmp_path / "driver", tmp_path / "cache"
    kernels = first.program(*(f"kernel{number}" for number in range(60)))
    subprocess.run(kernels, env=first.environment(root), check=True, capture_output=True)
    count = len(list(root.glob("[0-9]*/*/*/*/0.src")))
    driven(replayer, second, link, f"[stores]\npaths = ['{root}']\n")
    replayer.configure(replayer.config.read_text() + "replay = false\n")
    replayer.start()

    def rebuilt() -> int:
        return len(list(root.glob("[0-9]*/*/*/*/0.src"))) - count

    replayer.ctl("replay", "--no-wait")
    replayer.until(lambda: rebuilt() >= 3)
    job = next(row for row in replayer.rows("jobs") if row["kind"] == "replay")
    replayer.ctl("jobs", "--cancel", str(job["id"]))
    cancelled = rebuilt()
    assert cancelled < count
    replayer.ctl("replay", "--no-wait")
    replayer.until(lambda: rebuilt() >= cancelled + 3)
    assert replayer.process is not None
    compilers = psutil.Process(replayer.process.pid).children(recursive=True)
    assert compilers
    replayer.end(signal.SIGKILL)
    killed = rebuilt()
    assert killed < count
    replayer.start()
    assert psutil.wait_procs(compilers, timeout=10)[1] == []
    assert not (root / ".xpucached").exists()
    report = replayer.ask("replay")["report"]
    assert (report["rebuilt"], report["failed"]) == (count - killed, 0)  # type: ignore[index]
    assert {row["defect"] for row in replayer.rows("ls")} == {None}


FAKE: Final = """import json, os, signal, sys, time
answers = os.fdopen(int(sys.argv[sys.argv.index("--fd") + 1]), "wb", 0)
answers.write(b'{"ready": true}\\n')
while line := sys.stdin.buffer.readline():
    head = json.loads(line)
    options = sys.stdin.buffer.read(head["options"])
    sys.stdin.buffer.read(head["image"])
    if b"heavy" in options:
        os.kill(os.getpid(), signal.SIGKILL)
    while b"drips" in options:
        answers.write(b" ")
        time.sleep(0.01)
    made = b"made" if b"damaged" in options else MADE
    answers.write(json.dumps({"binary": len(made), "seconds": 0.5}).encode() + b"\\n" + made)
"""
"""A compiler that the kernel kills, as if out of memory, for some programs, and that others make do other things."""


def fake_compiler(place: Path) -> Path:
    """Return the program of such a compiler."""
    tool = place / "compiler"
    tool.write_text(f"#!{sys.executable}\n{FAKE.replace('MADE', repr(native()))}")
    tool.chmod(0o755)
    return tool


class Starter(ProcessStarter):
    """Counts the compilers."""

    compilers = 0

    def compiler(
        self, spec: CompilerSpec, variables: Mapping[str, str], command: Sequence[str] = (), place: str = "/"
    ) -> compiler.CompilerProcess:
        self.compilers += 1
        return super().compiler(spec, variables, command, place)


def rebuilt(
    store: SyclStore,
    place: Path,
    cores: CoreBudget | None = None,
    starter: ProcessStarter | None = None,
    models: Mapping[ModelName, Model] | None = None,
) -> tuple[Publisher, list[str]]:
    """Rebuild all of a store for another driver with that compiler; give what came of it, and what is refused since.

    Of ``models`` each has the next entry, and so on.
    """
    found = FoundStore(Store(sycl.NAME, store.root), StoreOrigin.FOUND, "test")

    def clock() -> datetime:
        return datetime.now(UTC)

    with contextlib.closing(Catalog.open(place / "catalog.sqlite")) as catalog:
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        context.cores = cores or context.cores
        StoreScanner(context, StoreFinder(context)).scan(found, None)
        entries = sorted(catalog.read(all_entries), key=lambda one: one.entry.options)
        old = entries[0].entry.environment
        assert old is not None
        to = replace(old, toolchain="new")
        if models:
            entries = [
                replace(one, models=(name,)) for one, name in zip(entries, itertools.cycle(models), strict=False)
            ]
        todo = [Rebuild(one, to, ReplayReason.USED) for one in entries]
        driver = OtherDriver((to,), "stamp", {}, (os.fspath(fake_compiler(place)),))
        results = Publisher(context, replay.ReplayRequest(), (driver,))
        job = RebuildJob(context, starter or ProcessStarter(os.environ, INSTANCE), todo, (driver,), results)
        job._models = models or {}
        job.work_off()
        results.close()
        results.check()
        return results, [str(one) for one in catalog.read(refused_by, "stamp")]


def test_a_rebuild_waits_for_a_core_that_other_users_hold(home: Path, sycl_store: SyclStore, short_dir: Path) -> None:
    sycl_store.add("_ZTS1k", options="-light")
    (home / "xpucached-host").mkdir()
    core_slots.make(home / "xpucached-host", 1)
    places = HostRoots(run=home)
    others = CoreBudget(places).slot()
    assert others.hold(threading.Event())
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(rebuilt, sycl_store, short_dir, CoreBudget(places))
        with pytest.raises(TimeoutError):
            work.result(1.5)
        others.give_back()
        results, _ = work.result(30)
    assert results.answered == 1
    # When it is over others have it again.
    assert others.hold(threading.Event())
    others.give_back()


class Waits:
    """A job's handle, which tells when its turn is waited for."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    def progress(self, _done: int, _total: int, detail: str = "") -> None:
        if detail == "waiting for its turn":
            self.waits.set()


@pytest.mark.parametrize("room", [False, True])
def test_a_replay_that_waited_is_planned_for_the_driver_that_came_meanwhile_and_the_trash_makes_room_for_it(
    home: Path, sycl_store: SyclStore, short_dir: Path, monkeypatch: pytest.MonkeyPatch, *, room: bool
) -> None:
    def clock() -> datetime:
        return datetime.now(UTC)

    monkeypatch.setattr(test_bounds, "NOTE", replace(test_bounds.NOTE, at=clock()))
    (gone,) = test_bounds.discarded(sycl_store, 1)
    for number in range(3):
        sycl_store.add(f"_ZTS{number}k", options="-light")
    command = (os.fspath(fake_compiler(short_dir)),)
    monkeypatch.setattr(replay, "confirm", lambda *_given: [])
    monkeypatch.setattr(
        replay, "drivers_in_use", lambda given: tuple(replace(one, command=command) for one in drivers_in_use(given))
    )
    (trash,) = trash_files.trash(Store(sycl.NAME, sycl_store.root))
    # As much as three entries and the trash take, or twice as many entries.
    limit = trash.allocated + (6 if room else 3) * sum(one.allocated for one in look(sycl_store.root).entries) // 3
    environ = {
        "XPUCACHED_STORES_FOUND": "false",
        "XPUCACHED_STORES_PATHS": os.fspath(sycl_store.root),
        "XPUCACHED_POLICY_MAX_BYTES": f"{limit}",
    }
    config = loading.load(None, user=True, environ={**os.environ, **environ})

    async def work(catalog: Catalog) -> tuple[ReplayReport, list[Target]]:
        def meet(driver: str) -> Context:
            environments = (sycl_target(**{**sycl_store.defaults, "driver": driver}),)
            catalog.write(record_survey, Host(clock(), "boot", "6", f"stamp {driver}", environments=environments))
            return Context(config, catalog, {}, clock)

        context, handle = meet("2"), Waits()
        scanner = StoreScanner(context, StoreFinder(context))
        replayer = replay.Replayer(
            context, scanner, TrashKeeper(context, scanner), ProcessStarter(os.environ, INSTANCE)
        )
        await context.locks.changing.acquire()
        replaying = asyncio.ensure_future(replayer.work(replay.ReplayRequest())(cast("Handle", handle)))
        await handle.waits.wait()
        context.host = meet("3").host
        context.locks.changing.release()
        report = await replaying
        await scanner.scan_stores(frozenset())
        builds = [one.entry.environment for one in catalog.read(all_entries) if one.entry.environment is not None]
        return report, builds

    with contextlib.closing(Catalog.open(short_dir / "catalog.sqlite")) as catalog:
        report, found = asyncio.run(work(catalog))
    assert (report.rebuilt, report.failed, {one.to.toolchain for one in report.plan.rebuild}) == (3, 0, {"3"})
    assert Counter(one.toolchain for one in found) == {sycl_store.defaults["driver"]: 3, "3": 3}
    assert gone.exists() == room


def compiles_there(
    store: SyclStore, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[tuple[str, ...], Settings]:
    """Return the command of a compiler, and settings, by which entries of one store are compiled, and none tried."""
    environ = {"XPUCACHED_STORES_FOUND": "false", "XPUCACHED_STORES_PATHS": os.fspath(store.root)}
    monkeypatch.setattr(replay, "confirm", lambda *_given: [])
    config = loading.load(None, user=True, environ={**os.environ, **environ})
    return (os.fspath(fake_compiler(short_dir)),), config


def test_a_driver_that_comes_while_a_plan_waits_for_a_thread_is_left_to_the_next_replay(
    home: Path, sycl_store: SyclStore, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sycl_store.add("_ZTS1k", options="-light")
    command, config = compiles_there(sycl_store, short_dir, monkeypatch)

    async def work(catalog: Catalog) -> ReplayReport:
        def meet(driver: str) -> Host:
            environments = (sycl_target(**{**sycl_store.defaults, "driver": driver}),)
            return Host(datetime.now(UTC), "boot", "6", f"stamp {driver}", environments=environments)

        def survey() -> None:
            context.host = meet("3")
            surveyed.set()

        def in_use(given: Context) -> tuple[OtherDriver, ...]:
            if handle.waits.is_set():
                # All threads have something to do until a survey has found another driver.
                loop.run_in_executor(None, surveyed.wait)
                loop.call_soon(survey)
            return tuple(replace(one, command=command) for one in drivers_in_use(given))

        monkeypatch.setattr(replay, "drivers_in_use", in_use)
        loop, handle, surveyed = asyncio.get_running_loop(), Waits(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        context = Context(config, catalog, {}, lambda: datetime.now(UTC))
        context.host = meet("2")
        scanner = StoreScanner(context, StoreFinder(context))
        starter = ProcessStarter(os.environ, INSTANCE)
        replayer = replay.Replayer(context, scanner, TrashKeeper(context, scanner), starter)
        await context.locks.changing.acquire()
        replaying = asyncio.ensure_future(replayer.work(replay.ReplayRequest())(cast("Handle", handle)))
        await handle.waits.wait()
        context.locks.changing.release()
        return await replaying

    with contextlib.closing(Catalog.open(short_dir / "catalog.sqlite")) as catalog:
        report = asyncio.run(work(catalog))
    assert (report.rebuilt, report.failed, [one.to.toolchain for one in report.plan.rebuild]) == (1, 0, ["2"])


def test_what_is_compiled_for_a_place_that_is_taken_is_not_compiled_again_at_each_look(
    home: Path, sycl_store: SyclStore, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sycl_store.add("_ZTS1k", options="-light")
    command, config = compiles_there(sycl_store, short_dir, monkeypatch)
    monkeypatch.setattr(
        replay, "drivers_in_use", lambda given: tuple(replace(one, command=command) for one in drivers_in_use(given))
    )

    async def work(catalog: Catalog) -> tuple[list[tuple[int, int]], list[bool]]:
        context = Context(config, catalog, {}, lambda: datetime.now(UTC))
        environments = (sycl_target(**{**sycl_store.defaults, "driver": "2"}),)
        context.host = Host(datetime.now(UTC), "boot", "6", "stamp", environments=environments)
        scanner = StoreScanner(context, StoreFinder(context))
        starter = ProcessStarter(os.environ, INSTANCE)
        replayer = replay.Replayer(context, scanner, TrashKeeper(context, scanner), starter)
        handle = cast("Handle", Waits())
        done, wanted = [], []
        for _ in range(2):
            report = await replayer.work(replay.ReplayRequest())(handle)
            done.append((report.rebuilt, report.present))
            wanted.append(await replayer.wanted())
            if report.rebuilt:
                # Something that is no entry is all that is left in its place, as where a server of files keeps it.
                (leaf,) = {path.parent for path in sycl_store.root.rglob("0.bin")} - {before}
                for file in leaf.iterdir():
                    file.unlink()
                (leaf / ".nfs0001").write_bytes(b"x")
        return done, wanted

    (before,) = {path.parent for path in sycl_store.root.rglob("0.bin")}
    with contextlib.closing(Catalog.open(short_dir / "catalog.sqlite")) as catalog:
        assert asyncio.run(work(catalog)) == ([(1, 0), (0, 1)], [False, False])


def test_models_whose_programs_have_homes_of_their_own_share_a_compiler(sycl_store: SyclStore, tmp_path: Path) -> None:
    models: dict[ModelName, Model] = {}
    for number in range(6):
        sycl_store.add(f"_ZTS{number}k", options="-light")
        home = {"HOME": f"/home/{number}", "XDG_CACHE_HOME": f"/srv/{number}/cache"}
        name = ModelName(f"m{number}")
        models[name] = Model(name, Workload(("/bin/true",), tmp_path, home, 60.0))
    starter = Starter(os.environ, INSTANCE)
    results, _ = rebuilt(sycl_store, tmp_path, starter=starter, models=models)
    assert (results.rebuilt, results.failures) == (6, [])
    assert starter.compilers == 1


@pytest.mark.parametrize("heavy", [4, 12])
def test_some_programs_whose_compilers_are_killed_do_not_stop_the_rest(
    home: Path, sycl_store: SyclStore, short_dir: Path, heavy: int
) -> None:
    for number in range(heavy):
        sycl_store.add(f"_ZTS{number}k", options="-heavy")
    for number in range(3):
        sycl_store.add(f"_ZTS{number}k", options="-light")
    results, refused = rebuilt(sycl_store, short_dir)

    # Where each compiler is killed there is an end, and nothing is held against any program.
    assert (results.rebuilt, len(results.failures)) == ((3, 4) if heavy == 4 else (0, 15))
    assert sum("after the other" in one for one in results.failures) == (0 if heavy == 4 else 5)
    assert not refused


def test_what_a_compiler_gives_that_no_program_can_load_is_not_published(
    home: Path, sycl_store: SyclStore, short_dir: Path
) -> None:
    sycl_store.add("_ZTS1k", options="-damaged")
    sycl_store.add("_ZTS2k", options="-light")
    results, refused = rebuilt(sycl_store, short_dir)

    assert (results.rebuilt, len(results.failures), len(refused)) == (1, 1, 1)
    assert "gave what no program can load" in results.failures[0]
    assert len(list(sycl_store.root.rglob("0.bin"))) == 3


@pytest.mark.timeout(30)
def test_a_compiler_that_answers_a_byte_at_a_time_has_no_more_time(sycl_store: SyclStore, tmp_path: Path) -> None:
    sycl_store.add("_ZTS1k", options="-drips")
    (entry,) = sycl.scanner.scan(
        FoundStore(Store(sycl.NAME, sycl_store.root), StoreOrigin.FOUND, "test"), datetime.now(UTC), {}, None
    ).entries
    recipe = sycl.recipes.recipe(entry)
    assert isinstance(recipe, Recipe)
    assert entry.environment is not None
    compiler = ProcessStarter(os.environ, INSTANCE).compiler(
        sycl.rebuilder.compiler(entry.environment, STORE.root), {}, (os.fspath(fake_compiler(tmp_path)),)
    )
    with pytest.raises(BuildHung, match=r"longer than 0\.5 s"):
        compiler.build(recipe, threading.Event(), 0.5)
    compiler.close()
