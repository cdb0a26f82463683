"""Real children that print, crash, hang, fork and ignore signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests import INSTANCE
from xpucached.domain.models import Outcome, Workload
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.stores import EntryId, Store
from xpucached.domain.workloads import RunSpec, Variant
from xpucached.kinds import sycl
from xpucached.processes import conversation, supervised
from xpucached.processes.output import Trace
from xpucached.processes.results import RunResult
from xpucached.processes.supervised import ProcessStarter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xpucached.processes.results import RunResult

KEY = "1/2/3/4"


STORE = Store(KindName("sycl"), Path("/nowhere/store"))


def entry(key: str) -> EntryId:
    return EntryId(STORE, EntryKey(key))


def named(lines: Iterable[str]) -> tuple[frozenset[EntryId], frozenset[EntryId]]:
    """Read a trace of two words a line."""
    created: set[EntryId] = set()
    used: set[EntryId] = set()
    for line in lines:
        event, _, key = line.removeprefix("[Persistent Cache]: ").partition(" ")
        if event in ("stored", "hit"):
            (created if event == "stored" else used).add(entry(key))
    return frozenset(created), frozenset(used)


trace = Trace(sycl.trace.MARKS, named)


def execute(command: tuple[str, ...], directory: Path, *, timeout: float = 20, **variables: str) -> RunResult:
    workload = Workload(command, directory, variables, timeout)
    return asyncio.run(ProcessStarter(os.environ, INSTANCE).execute(workload, {}, trace, polite=True))


def shell(script: str, directory: Path, *, timeout: float = 20) -> RunResult:
    return execute(("/bin/sh", "-c", script), directory, timeout=timeout)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_ends_by_itself(tmp_path: Path) -> None:
    done = shell("echo out; echo err >&2; pwd", tmp_path)
    assert (done.outcome, done.exit_status) == (None, 0)
    assert set(done.output.splitlines()) == {"out", "err", str(tmp_path)}
    assert not done.traced


def test_figures_are_those_of_the_child(tmp_path: Path) -> None:
    burn = "import time; block = bytearray(80 << 20)\nwhile time.process_time() < 0.4: pass"
    done = execute((sys.executable, "-c", burn), tmp_path)
    assert done.cpu_seconds >= 0.4
    assert done.seconds >= 0.4
    assert done.peak_rss > 80 << 20


def test_trace_is_read_and_kept_out_of_the_output(tmp_path: Path) -> None:
    lines = [f"[Persistent Cache]: stored {KEY}/0", "words", f"[Persistent Cache]: hit {KEY}/1"]
    done = shell("printf '%s\\n' " + " ".join(f"'{line}'" for line in lines) + " >&2", tmp_path)
    assert done.created == {entry(f"{KEY}/0")}
    assert done.used == {entry(f"{KEY}/1")}
    assert done.traced
    assert done.output == "words"


def test_last_line_needs_no_end(tmp_path: Path) -> None:
    assert shell(f"printf '[Persistent Cache]: hit {KEY}/0' >&2", tmp_path).used == {entry(f"{KEY}/0")}


@pytest.mark.parametrize(
    ("script", "detail", "status"),
    [
        ("exit 3", "exit status 3", 3),
        ("kill -SEGV $$", "ended by SIGSEGV", -11),
        ("nothing-like-it", "exit status 127", 127),
    ],
)
def test_failures(tmp_path: Path, script: str, detail: str, status: int) -> None:
    done = shell(script, tmp_path)
    assert (done.outcome, done.detail, done.exit_status) == (Outcome.FAILED, detail, status)


def test_what_cannot_be_started(tmp_path: Path) -> None:
    done = execute((str(tmp_path / "nowhere"),), tmp_path)
    assert (done.outcome, done.exit_status) == (Outcome.FAILED, None)
    assert "could not be started" in done.detail
    gone = execute(("/bin/true",), tmp_path / "gone")
    assert gone.outcome is Outcome.FAILED


def test_time_limit_ends_even_who_ignores_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpucached.processes.conversation.GRACE", 0.5)
    done = shell('trap "" TERM; echo $$ > pid; sleep 60 & sleep 60; sleep 60', tmp_path, timeout=5)
    assert (done.outcome, done.exit_status) == (Outcome.TIMED_OUT, -9)
    assert not alive(int((tmp_path / "pid").read_text()))


FORKING = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
open("new", "w").write(str(os.getpid()))
os.rename("new", "pid")
time.sleep(60)
"""


def test_daemons_that_it_forks_are_ended(tmp_path: Path) -> None:
    (tmp_path / "fork.py").write_text(FORKING)
    done = shell(f"{sys.executable} fork.py & while ! test -e pid; do sleep 0.05; done", tmp_path)
    assert done.outcome is None
    assert not alive(int((tmp_path / "pid").read_text()))


AWAY = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
# Nothing is left by which it could be known: no session, no group, no environment, no descriptor, no directory.
os.closerange(0, 256)
os.chdir("/")
told = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
os.execve(sys.executable, [sys.executable, "-c", told, sys.argv[1]], {})
"""


def test_a_daemon_that_left_everything_behind_is_ended(tmp_path: Path) -> None:
    (tmp_path / "away.py").write_text(AWAY)
    pid = tmp_path / "pid"
    done = shell(f"{sys.executable} away.py {pid}; while ! test -s {pid}; do sleep 0.05; done", tmp_path)
    assert done.outcome is None
    assert not alive(int(pid.read_text()))


def test_a_daemon_is_ended_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpucached.processes.conversation.GRACE", 0.5)
    (tmp_path / "away.py").write_text(AWAY)
    pid = tmp_path / "pid"
    done = shell(f"trap '' TERM; {sys.executable} away.py {pid}; while :; do sleep 1; done", tmp_path, timeout=10)
    assert done.outcome is Outcome.TIMED_OUT
    assert not alive(int(pid.read_text()))


def test_who_writes_without_end_to_the_descriptor_for_answers_is_ended(tmp_path: Path) -> None:
    flood = """
import os
names = [name for name in os.listdir("/proc/self/fd") if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}")]
answers = [int(name) for name in names]
while answers:
    os.write(answers[0], bytes(1 << 16))
"""
    done = execute((sys.executable, "-c", flood), tmp_path, timeout=60)
    assert done.outcome is Outcome.FAILED
    assert done.detail == "it wrote more than 16 MiB to the descriptor for answers, and was ended"


def test_a_supervisor_that_fails_ends_the_family_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path(supervised.__file__).parents[1] / "libexec" / "supervisor.py"
    (tmp_path / "supervisor.py").write_text(f"""
import importlib.util, sys
found = importlib.util.spec_from_file_location("real", {str(real)!r})
real = importlib.util.module_from_spec(found)
found.loader.exec_module(real)
def machine():
    raise OSError(23, "Too many open files in system")
sys.modules["xpucached_libexec.process_tree"]._machine = machine
sys.exit(real.main())
""")
    monkeypatch.setattr(supervised, "LIBEXEC", tmp_path)
    # This one carries no mark by which it could be found later.
    script = f"env -i setsid sleep 600 & echo $! > {tmp_path}/pid; sleep 600"
    done = shell(script, tmp_path)
    assert (done.outcome, done.detail) == (
        Outcome.FAILED,
        "its supervisor could not go on: OSError(23, 'Too many open files in system')",
    )
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_model_that_ends_its_supervisor_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpucached.processes.supervised._MOMENT", 0.01)
    done = shell("echo $$ > pid; kill -KILL $PPID; sleep 60", tmp_path)
    assert done.outcome is Outcome.FAILED
    assert "supervisor was ended" in done.detail
    assert not alive(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("trap", ["", "trap 'exit 0' TERM; ", "trap '' TERM; "])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("whom", ["everybody", "supervisor"])
def test_what_the_end_of_the_host_ends_counts_as_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str, number: signal.Signals, whom: str
) -> None:
    """Systemd ends the group of a run before the daemon has heard that it is to end."""
    monkeypatch.setattr("xpucached.processes.supervised._MOMENT", 600.0)

    async def end() -> None:
        starter = ProcessStarter(os.environ, INSTANCE)
        script = f"{trap}echo $PPID $$ > pids.new; mv pids.new pids; while :; do sleep 0.1; done"
        workload = Workload(("/bin/sh", "-c", script), tmp_path)
        task = asyncio.create_task(starter.execute(workload, {}, trace, polite=True))
        while not (tmp_path / "pids").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        supervisor, model = map(int, (tmp_path / "pids").read_text().split())
        for pid in (supervisor, model) if whom == "everybody" else (supervisor,):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        # What is not held back is over by then.
        assert await asyncio.wait([task], timeout=1.0) == (set(), {task})
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not alive(model)

    asyncio.run(end())


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("kill -TERM $$", "ended by SIGTERM"),
        ("trap 'exit 0' TERM; kill -TERM $PPID; while :; do sleep 0.1; done", "somebody else told it to end (SIGTERM)"),
        ("trap 'kill -TERM $PPID; exit 0' TERM; kill -TERM $$", "somebody else told it to end (SIGTERM)"),
        ("exit 143", "exit status 143"),
    ],
)
def test_who_is_ended_while_the_daemon_goes_on_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, detail: str
) -> None:
    monkeypatch.setattr("xpucached.processes.supervised._MOMENT", 0.01)
    done = shell(script, tmp_path)
    assert (done.outcome, done.detail) == (Outcome.FAILED, detail)


def test_who_takes_all_memory_is_ended(tmp_path: Path) -> None:
    exercise = RunSpec(memory=200 << 20)
    devour = "import os\nblocks = []\nwhile True: blocks.append(bytearray(os.urandom(1 << 20) * 16))"
    workload = Workload((sys.executable, "-c", devour), tmp_path, {}, 20, exercise)
    done = asyncio.run(ProcessStarter(os.environ, INSTANCE).execute(workload, {}, trace, polite=True))
    assert done.outcome is Outcome.OVER_MEMORY
    assert done.exit_status == -9


def test_who_writes_a_file_without_end_is_ended(tmp_path: Path) -> None:
    workload = Workload(("/bin/sh", "-c", "exec cat /dev/zero > large"), tmp_path, {}, 20, RunSpec(disk=1 << 20))
    done = asyncio.run(ProcessStarter(os.environ, INSTANCE).execute(workload, {}, trace, polite=True))
    assert done.outcome is Outcome.OVER_DISK
    assert (tmp_path / "large").stat().st_size <= 1 << 20


def test_shared_memory_may_be_as_large_as_the_machine_s(tmp_path: Path) -> None:
    size = psutil.virtual_memory().total // 2 + (5 << 30)
    make = f"import os; os.ftruncate(os.memfd_create('store'), {size})"
    assert execute((sys.executable, "-c", make), tmp_path).outcome is None


def test_a_command_is_told_its_variant(tmp_path: Path) -> None:
    exercise = RunSpec(device="xpu", precisions=("float16",), shapes=("1x2",))
    workload = Workload(("/bin/echo", "--type={precision}", "{device} {shape} {else}"), tmp_path, {}, 20, exercise)
    variant = Variant("xpu:1", "float16", "1x2")
    done = asyncio.run(ProcessStarter(os.environ, INSTANCE).execute(workload, {}, trace, polite=True, variant=variant))
    assert done.output == "--type=float16 xpu:1 1x2 {else}"


def test_output_without_end_is_bounded(tmp_path: Path) -> None:
    done = shell("yes | head -c 20000000; printf 'the end'", tmp_path)
    assert done.outcome is None
    assert len(done.output) <= 17 << 10
    assert done.output.endswith("the end")


def test_garbage_on_every_descriptor(tmp_path: Path) -> None:
    done = shell("head -c 300000 /dev/urandom; head -c 300000 /dev/urandom >&2; printf '\\377\\000x'", tmp_path)
    assert done.outcome is None
    assert done.output.encode("utf-8")
    assert "\0" not in done.output


def test_variables_stand_above_each_other_and_ours_stay_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/nowhere")
    monkeypatch.setenv("XPUCACHED_SOCKET", "/run/nowhere")
    monkeypatch.setenv("LC_TIME", "base")
    for name in ("ANYTHING", "LD_PRELOAD", "PYTHONSTARTUP", "BASH_ENV"):
        monkeypatch.setenv(name, "")
    starter = ProcessStarter(os.environ, INSTANCE)
    workload = Workload(("/usr/bin/env",), tmp_path, {"ONE": "workload", "TWO": "workload"})
    done = asyncio.run(starter.execute(workload, {"TWO": "above"}, trace, polite=False))
    seen = dict(line.split("=", 1) for line in done.output.splitlines() if "=" in line)
    assert (seen["LC_TIME"], seen["ONE"], seen["TWO"]) == ("base", "workload", "above")
    assert "NOTIFY_SOCKET" not in seen
    assert "XPUCACHED_SOCKET" not in seen


async def begun(place: Path, script: str) -> asyncio.Task[RunResult]:
    """Run a script of a shell in a task of its own, until it has noted its process."""
    workload = Workload(("/bin/sh", "-c", script), place)
    task = asyncio.create_task(ProcessStarter(os.environ, INSTANCE).execute(workload, {}, trace, polite=True))
    while not (place / "pid").exists() or not (place / "pid").read_text().strip():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return task


def test_cancelled_task_ends_the_child_first(tmp_path: Path) -> None:
    async def cancel() -> None:
        task = await begun(tmp_path, "echo $$ > pid; exec sleep 60")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not alive(int((tmp_path / "pid").read_text()))

    asyncio.run(cancel())


def test_who_is_cancelled_once_more_waits_for_the_child_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "GRACE", 0.5)

    async def cancel() -> None:
        task = await begun(tmp_path, "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done")
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not alive(int((tmp_path / "pid").read_text()))

    asyncio.run(cancel())


def test_what_a_killed_predecessor_left_in_its_temporary_directories_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    place = Path(shell('echo "$TMPDIR"', tmp_path).output.strip())
    assert not place.exists()
    for left in (place, Path(str(place).replace(INSTANCE, "other")), tmp_path / "xpucached-check-1"):
        (left / "deep" / "deeper").mkdir(parents=True)
        (left / "link").symlink_to(elsewhere)
    (tmp_path / f"{place.name}x").symlink_to(elsewhere)
    if os.geteuid() == 0:
        os.chown(tmp_path / f"{place.name}x", 65534, -1, follow_symlinks=False)
    assert asyncio.run(ProcessStarter({}, INSTANCE).end_orphans()) == 0
    assert not place.exists()
    assert {one.name for one in tmp_path.iterdir()} >= {"elsewhere", "xpucached-check-1", f"{place.name}x"}
    assert (elsewhere / "kept").exists()
    assert Path(str(place).replace(INSTANCE, "other"), "deep").exists()


def test_orphans_of_a_killed_predecessor_are_ended(tmp_path: Path) -> None:
    child = subprocess.Popen(["/bin/sleep", "60"], env={"XPUCACHED_RUN": "mine:1"})
    other = subprocess.Popen(["/bin/sleep", "60"], env={"XPUCACHED_RUN": "theirs:1"})
    try:
        time.sleep(0.1)
        assert asyncio.run(ProcessStarter({}, "mine").end_orphans()) == 1
        assert child.wait(5) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


MAPPING = """
import ctypes, mmap, os, sys, time
library = ctypes.CDLL(sys.argv[1])
held = [mmap.mmap(os.open(one, os.O_RDONLY), 0, prot=mmap.PROT_READ) for one in sys.argv[2:]]
os.unlink(sys.argv[-1])
time.sleep(0.5)
"""


def test_tells_which_files_its_processes_mapped(tmp_path: Path) -> None:
    ours = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    library = next(word for word in ours if Path(word).name.startswith("libc.so"))
    copied, weights, gone = tmp_path / "lib copied.so", tmp_path / "weights", tmp_path / "gone"
    shutil.copyfile(library, copied)
    weights.write_bytes(bytes(8192))
    gone.write_bytes(bytes(8192))
    (tmp_path / "map.py").write_text(MAPPING)
    # A child of a child, too.
    words = " ".join(shlex.quote(str(word)) for word in (sys.executable, "map.py", copied, weights, gone))
    done = shell(f"{words}; true", tmp_path)
    assert done.outcome is None, done.output
    assert {str(copied), os.path.realpath(sys.executable)} <= set(done.mapped)
    assert str(weights) in done.mapped_data
    assert not [path for path in (*done.mapped, *done.mapped_data) if "gone" in path or path.startswith("/dev")]


MANY = """
import mmap, os, sys, time
held = []
for number in range(6000):
    name = f"{number:0200}"
    with open(name, "wb") as file:
        file.write(b"x" * 4096)
    with open(name, "rb") as file:
        held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
time.sleep(0.5)
"""


def test_a_library_that_is_replaced_while_it_is_mapped_is_told(tmp_path: Path) -> None:
    script = """
        import mmap, os, time
        for name in ("library", "data"):
            with open(name, "wb+") as file:
                file.write(bytes(8192))
            with open(name, "rb") as file:
                code = mmap.PROT_READ | (mmap.PROT_EXEC if name == "library" else 0)
                globals()[name] = mmap.mmap(file.fileno(), 8192, prot=code)
            os.rename("empty-" + name, name)
        time.sleep(0.3)
    """
    (tmp_path / "app.py").write_text(textwrap.dedent(script))
    for name in ("library", "data"):
        (tmp_path / f"empty-{name}").touch()
    done = execute((sys.executable, "app.py"), tmp_path)
    assert done.outcome is None, done.output
    assert str(tmp_path / "library") in done.mapped
    assert str(tmp_path / "data") not in done.mapped_data


def test_a_flood_of_mapped_files_is_bounded_and_hides_no_library(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(MANY)
    done = execute((sys.executable, "many.py"), tmp_path)
    assert done.outcome is None, done.output
    assert os.path.realpath(sys.executable) in done.mapped
    assert 0 < len(done.mapped_data) <= 1024
