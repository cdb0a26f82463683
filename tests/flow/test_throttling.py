"""Throttling: with how much effort a run goes, when it starts, when it stands still, and what holds it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import INSTANCE
from tests.support.daemons import daemon
from xpucached.domain.models import Outcome, WarmReason, Workload
from xpucached.domain.names import ModelName
from xpucached.domain.throttling import Pressure, RunCause, RunPriority, ThrottlePolicy
from xpucached.host import core_slots
from xpucached.host.core_slots import RunSlot
from xpucached.host.pressure import PressureMeter
from xpucached.host.process_times import family
from xpucached.host.roots import HERE, HostRoots
from xpucached.planning import throttling
from xpucached.planning.throttling import strained
from xpucached.processes.cgroup import Cgroup
from xpucached.processes.output import Trace
from xpucached.processes.pause import RunLimits
from xpucached.processes.results import RunResult
from xpucached.processes.supervised import ProcessStarter
from xpucached.service.throttle import PauseWatcher, Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from tests.support.runtimes import Runtime
    from xpucached.service.context import Context

GAP: Final = throttling.run_priority(WarmReason.LOST)

# -- decisions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", WarmReason)
def test_every_reason_has_an_effort(reason: WarmReason) -> None:
    made = throttling.run_priority(reason)

    assert (made.occasion is RunCause.MANUAL) is (reason is WarmReason.MANUAL)
    assert made.waits is made.pauses is (reason is not WarmReason.MANUAL)


def test_who_waits_gets_most_and_a_gap_least() -> None:
    order = [WarmReason.MANUAL, WarmReason.DRIVER, WarmReason.NEVER, WarmReason.LOST]
    efforts = [throttling.run_priority(reason) for reason in order]

    assert efforts == sorted(efforts, key=lambda one: -one.cpu_weight)
    assert [one.nice for one in efforts] == sorted(one.nice for one in efforts)
    assert len({one.occasion for one in efforts}) == 4


def test_what_nobody_waits_for_disturbs_least() -> None:
    efforts = {reason: throttling.run_priority(reason) for reason in WarmReason}

    assert [reason for reason, one in efforts.items() if one.idle_io] == [
        *(WarmReason.NEVER, WarmReason.CHANGED, WarmReason.PROGRAM, WarmReason.LOST, WarmReason.RETRY)
    ]
    # What somebody asked for runs as what he starts himself: 100 is what everything has.
    asked = efforts[WarmReason.MANUAL]
    assert (asked.nice, asked.cpu_weight, asked.io_weight) == (0, 100, 100)
    for one in (*efforts.values(), throttling.run_priority(WarmReason.LOST, booting=True)):
        # A run yields to what has no settings at all, and is never stopped for good.
        assert 1 <= one.cpu_weight == one.io_weight <= 100
        assert 0 <= one.nice < 19


def test_what_is_cold_at_the_start_is_not_let_wait_as_long_as_a_gap() -> None:
    assert throttling.run_priority(WarmReason.LOST, booting=True).occasion is RunCause.BOOT
    assert throttling.run_priority(WarmReason.MANUAL, booting=True).occasion is RunCause.MANUAL
    # Then all is cold, as after another driver.
    assert replace(throttling.run_priority(WarmReason.LOST, booting=True), occasion=RunCause.DRIVER) == (
        throttling.run_priority(WarmReason.DRIVER)
    )


@pytest.mark.parametrize(
    ("window", "minute", "is_open"),
    [
        (None, 0, True),
        ((60, 120), 59, False),
        ((60, 120), 60, True),
        ((60, 120), 120, False),
        ((22 * 60, 6 * 60), 23 * 60, True),
        ((22 * 60, 6 * 60), 0, True),
        ((22 * 60, 6 * 60), 12 * 60, False),
    ],
)
def test_a_window_may_go_over_midnight(window: tuple[int, int] | None, minute: int, *, is_open: bool) -> None:
    assert throttling.is_open(ThrottlePolicy(window), minute) is is_open


minutes = st.integers(0, 24 * 60 - 1)


@given(minutes, minutes, minutes)
def test_a_window_and_its_opposite_are_never_open_together(begin: int, end: int, minute: int) -> None:
    if begin != end:
        assert throttling.is_open(ThrottlePolicy((begin, end)), minute) is not throttling.is_open(
            ThrottlePolicy((end, begin)), minute
        )


@pytest.mark.parametrize(
    ("strain", "why"),
    [
        (Pressure(), ""),
        (Pressure(1, 1, 1, 1), ""),
        (Pressure(cpu=90), "the processor"),
        (Pressure(memory=11), "memory"),
        (Pressure(io=50), "the disk"),
        (Pressure(gpu=25), "a GPU"),
    ],
)
def test_what_speaks_against_a_start(strain: Pressure, why: str) -> None:
    said = strained(strain, ThrottlePolicy(), starting=True)

    assert said.startswith(why)
    assert bool(said) is bool(why)


@pytest.mark.parametrize("name", ["cpu", "memory", "io", "gpu"])
def test_as_much_as_is_let_pass_passes(name: str) -> None:
    limits = {"cpu": "cpu_pressure", "memory": "memory_pressure", "io": "io_pressure", "gpu": "gpu_busy"}
    throttle = replace(ThrottlePolicy(), **{limits[name]: 7})
    assert strained(Pressure(**{name: 7.0}), throttle, starting=True) == ""
    said = strained(Pressure(**{name: 7.6}), throttle, starting=True)
    assert said.endswith("8 % of the time (7 % are let pass)")
    idle = replace(throttle, only_when_idle=True)
    assert strained(Pressure(**{name: 1.0}), idle, starting=True) == ""
    assert strained(Pressure(**{name: 1.1}), idle, starting=True).endswith("(1 % are let pass)")


def test_the_processor_is_shared_while_a_run_goes_on() -> None:
    assert strained(Pressure(cpu=100), ThrottlePolicy(), starting=False) == ""
    assert strained(Pressure(gpu=100), ThrottlePolicy(), starting=False)


def test_only_when_idle_asks_for_nearly_nothing_and_no_limit_for_nothing_at_all() -> None:
    assert strained(Pressure(cpu=5), ThrottlePolicy(only_when_idle=True), starting=True)
    assert not strained(Pressure(cpu=5), ThrottlePolicy(only_when_idle=True), starting=False)
    free = ThrottlePolicy(cpu_pressure=None, memory_pressure=None, io_pressure=None, gpu_busy=None)
    assert not strained(Pressure(100, 100, 100, 100), free, starting=True)


# -- what others feel -------------------------------------------------------------------------------------------------


def pretend(proc: Path, pid: int, client: int, text: str, pdev: str = "0000:03:00.0") -> None:
    """Make a process that has a GPU open, as the kernel describes it."""
    fds, infos = proc / str(pid) / "fd", proc / str(pid) / "fdinfo"
    fds.mkdir(parents=True, exist_ok=True)
    infos.mkdir(exist_ok=True)
    (fds / "3").unlink(missing_ok=True)
    (fds / "3").symlink_to("/dev/dri/renderD128")
    (fds / "4").unlink(missing_ok=True)
    (fds / "4").symlink_to("/dev/null")
    head = f"pos:\t0\nflags:\t02\ndrm-driver:\ti915\ndrm-client-id:\t{client}\ndrm-pdev:\t{pdev}\n"
    (infos / "3").write_text(head + text)


def test_pressure_is_what_the_kernel_says(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "memory").write_text(
        "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=3.00 avg60=0.00 avg300=0.00 total=1\n"
    )
    (tmp_path / "pressure" / "io").write_text("nonsense")

    assert PressureMeter(HostRoots(proc=tmp_path)).look() == Pressure(None, 12.5, None, None)


def test_a_gpu_is_busy_with_others_and_our_own_work_does_not_count(tmp_path: Path) -> None:
    meter = PressureMeter(HostRoots(proc=tmp_path))
    pretend(tmp_path, 10, 1, "drm-engine-render:\t0 ns\ndrm-engine-capacity-video:\t2\n")
    pretend(tmp_path, 11, 2, "drm-engine-compute:\t0 ns\n")
    first = meter.look([11])
    # A century of work: whatever the clock says, it never rested.
    pretend(tmp_path, 11, 2, "drm-engine-compute:\t3000000000000000000 ns\n")
    ours = meter.look([11])
    pretend(tmp_path, 10, 1, "drm-engine-render:\t3000000000000000000 ns\n")
    theirs = meter.look([11])

    assert (first.gpu, ours.gpu, theirs.gpu) == (None, 0.0, 100.0)


def test_the_xe_driver_counts_cycles(tmp_path: Path) -> None:
    meter = PressureMeter(HostRoots(proc=tmp_path))
    pretend(tmp_path, 10, 1, "drm-cycles-ccs:\t0\ndrm-total-cycles-ccs:\t1000\n")
    meter.look()
    pretend(tmp_path, 10, 1, "drm-cycles-ccs:\t1000\ndrm-total-cycles-ccs:\t2000\n")

    assert meter.look().gpu == 100.0


def test_a_gpu_whose_clock_began_anew_is_as_busy_as_it_was_between_two_looks(tmp_path: Path) -> None:
    """As after the machine slept, with a program that had the GPU work for long before."""
    meter = PressureMeter(HostRoots(proc=tmp_path))
    seen = []
    for worked, clock in ((0, 9_000), (3_000, 20), (3_500, 1_020), (3_500, 2_020)):
        pretend(tmp_path, 10, 1, f"drm-cycles-ccs:\t{10**9 + worked}\ndrm-total-cycles-ccs:\t{clock}\n")
        seen.append(meter.look().gpu)

    assert seen == [None, 0.0, 50.0, 0.0]


def test_a_family_is_a_process_and_what_descends_from_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert family(os.getpid()) >= {os.getpid(), child.pid}
        assert family(child.pid) == {child.pid}
        child.communicate(b"\n")
    assert family(child.pid) == {child.pid}


# -- standing still ---------------------------------------------------------------------------------------------------


class Pretend(PressureMeter):
    """A meter that shows what it is told to."""

    def __init__(self, *strains: Pressure) -> None:
        super().__init__()
        self.strains = list(strains)

    def look(self, without: Collection[int] = ()) -> Pressure:
        assert without
        return self.strains.pop(0)


def answers(
    strains: Sequence[Pressure], times: Sequence[float], wanted: Sequence[bool] = ()
) -> tuple[list[bool], list[str]]:
    said: list[str] = []
    clock, waits = iter(times), iter(wanted)
    watcher = PauseWatcher(
        ThrottlePolicy(), Pretend(*strains), said.append, lambda: next(clock), lambda: next(waits, False)
    )
    return [watcher.pause(os.getpid()) for _ in strains], said


def test_a_run_stands_still_while_the_gpu_works_for_others() -> None:
    paused, said = answers([Pressure(), Pressure(gpu=50), Pressure(gpu=50), Pressure(gpu=1)], range(4))

    assert paused == [False, True, True, False]
    assert len(said) == 2
    assert said[0].startswith("paused: a GPU is busy")


def test_pressure_that_comes_back_with_the_run_is_the_run_s_own() -> None:
    high, low = Pressure(memory=50), Pressure(memory=1)
    paused, _ = answers([high, low, high, high, high], [0, 10, 12, 13, 1000])

    assert paused == [True, False, False, False, True]


def test_pressure_that_comes_back_much_later_is_not() -> None:
    high, low = Pressure(io=80), Pressure(io=1)

    assert answers([high, low, high], [0, 10, 100])[0] == [True, False, True]


def test_a_run_that_somebody_waits_for_goes_on_and_stands_still_again_after_that() -> None:
    high = Pressure(io=80)
    paused, said = answers([high] * 5, [0, 10, 12, 14, 16], [False, True, True, False, False])

    # Pressure that was there all the time is not taken for the run's own.
    assert paused == [True, False, False, True, True]
    assert [one.partition(":")[0] for one in said] == ["paused", "goes on, as somebody waits for its end", "paused"]


def run(script: str, directory: Path, run_limits: RunLimits, *, timeout: float = 20) -> RunResult:
    workload = Workload((sys.executable, "-c", script), directory, {}, timeout)
    return asyncio.run(
        ProcessStarter(os.environ, INSTANCE).execute(
            workload,
            {},
            Trace(),
            polite=True,
            run_limits=run_limits,
        )
    )


COUNT: Final = """
import pathlib, subprocess, sys, time
# The work is done by a grandchild in a session of its own.
code = "import pathlib, time\\nfor number in range(60): pathlib.Path('count').write_text(str(number)); time.sleep(0.05)"
subprocess.run([sys.executable, "-c", code], start_new_session=True, check=True)
"""


def test_all_that_a_run_started_stands_still_and_that_time_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpucached.processes.pause._PACE", 0.2)
    seen: list[str] = []
    asked: list[int] = []

    def pause(pid: int) -> bool:
        asked.append(pid)
        with_count = (tmp_path / "count").exists()
        if with_count and len(seen) < 3:
            # What was told to stop a moment ago may be in the middle of a write.
            time.sleep(0.2)
            seen.append((tmp_path / "count").read_text())
            return True
        return False

    done = run(COUNT, tmp_path, RunLimits(GAP, pause))

    assert (done.outcome, done.detail) == (None, "")
    assert (tmp_path / "count").read_text() == "59"
    # From the second look on nothing moved.
    assert seen[1] == seen[2] != "59"
    assert len(set(asked)) == 1
    assert done.seconds > 0


def test_patience_ends(tmp_path: Path) -> None:
    done = run("print('done')", tmp_path, RunLimits(GAP, lambda _: True, max_wait=0.0))

    assert (done.outcome, done.output) == (None, "done")


def test_a_run_that_stands_still_can_be_ended(tmp_path: Path) -> None:
    stands = threading.Event()

    def pause(_pid: int) -> bool:
        stands.set()
        return True

    async def cancel() -> None:
        starter = ProcessStarter(os.environ, INSTANCE)
        workload = Workload((sys.executable, "-c", "import time; time.sleep(600)"), tmp_path, {}, 600)
        work = starter.execute(workload, {}, Trace(), polite=True, run_limits=RunLimits(GAP, pause))
        task = asyncio.create_task(work)
        await asyncio.to_thread(stands.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


def test_models_wait_until_the_host_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    felt = [Pressure(cpu=99)]

    def always(_self: PressureMeter, _without: Collection[int] = ()) -> Pressure:
        return felt[0]

    monkeypatch.setattr(PressureMeter, "look", always)
    now = datetime(2026, 6, 1, 12, tzinfo=UTC)
    throttle = Throttle(context(ThrottlePolicy(), lambda: now))
    net, other = ModelName("net"), ModelName("other")

    busy = asyncio.run(throttle.busy())
    assert busy.startswith("the processor is busy")
    assert not throttle.admit([net], busy)
    now += timedelta(minutes=5)
    felt[0] = Pressure(io=99)
    assert not throttle.admit([net, other], asyncio.run(throttle.busy()))
    # Each since it began to wait, and for what holds it up now.
    assert [(name, one.since.minute, one.why[:8]) for name, one in throttle.waiting.items()] == [
        (net, 0, "the disk"),
        (other, 5, "the disk"),
    ]
    felt[0] = Pressure()
    assert asyncio.run(throttle.busy()) == ""
    assert throttle.admit([net, other], "")
    assert throttle.waiting == {}
    assert not throttle.admit([], "")


def test_who_holds_all_places_for_runs_for_ever_only_delays_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may lock the files, and never let go."""
    felt, now = [Pressure()], [0.0]
    monkeypatch.setattr(PressureMeter, "look", lambda *_: felt[0])
    monkeypatch.setattr("xpucached.service.throttle._SPAN", 0.0)
    monkeypatch.setattr("xpucached.service.throttle.time", SimpleNamespace(monotonic=lambda: now[0]))
    (tmp_path / "xpucached-host").mkdir()
    core_slots.make(tmp_path / "xpucached-host", 1)
    places = HostRoots(run=tmp_path)
    others = [RunSlot(places) for _ in range(2)]
    assert all(one.hold() for one in others)
    some = [Throttle(context(ThrottlePolicy(max_wait=120.0), places=places)) for _ in range(20)]
    net = ModelName("net")

    def may(throttle: Throttle) -> bool:
        return throttle.admit([net], asyncio.run(throttle.hold()))

    def went() -> int:
        now[0] += 2
        return sum(may(one) for one in some if one.waiting)

    assert not any(may(one) for one in some)
    assert {one.waiting[net].why for one in some} == {"models of other users are run, two at a time"}
    counts = [went() for _ in range(60)]
    # Not all at once: each sees what the one before it makes of the host.
    assert sum(counts) == 20
    assert max(counts) < 20
    # Anew each time; and a moment in which the host is busy does not set that back.
    assert not any(may(one) for one in some)
    for look in range(120):
        felt[0] = Pressure(cpu=99 if look % 10 == 0 else 0)
        went()
    felt[0] = Pressure()
    assert not any(one.waiting for one in some)
    assert not may(some[0])
    now[0] += 1700
    felt[0] = Pressure(cpu=99)
    assert not may(some[0])
    now[0] += 1700
    felt[0] = Pressure()
    assert not may(some[0]), "they waited for a calm host, and would all begin in the same moment"
    others[0].give_back()
    assert may(some[0])
    assert not may(some[1])
    assert asyncio.run(Throttle(context(ThrottlePolicy(max_wait=0.0), places=places)).hold()) == ""
    for one in (*others, some[0]._context.run_slot):
        one.give_back()


def test_where_everything_is_let_pass_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PressureMeter, "look", None)
    free = ThrottlePolicy(cpu_pressure=None, memory_pressure=None, io_pressure=None, gpu_busy=None)

    assert asyncio.run(Throttle(context(free)).busy()) == ""


def context(
    throttle: ThrottlePolicy, clock: Callable[[], datetime] = lambda: datetime.now(UTC), places: HostRoots = HERE
) -> Context:
    """Return as much of what observes as restraint asks for."""
    settings = SimpleNamespace(throttle=throttle)
    return cast("Context", SimpleNamespace(settings=settings, clock=clock, run_slot=RunSlot(places)))


# -- control groups ---------------------------------------------------------------------------------------------------


def systemd(place: Path, script: str) -> tuple[dict[str, str], Path]:
    """Put a ``systemd-run`` into a directory, and say that systemd runs."""
    program = place / "bin" / "systemd-run"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(place)}, place


WORDS: Final = """echo "$XDG_RUNTIME_DIR $*" >> "LOG"
while [ "$1" != "${1#-}" ]; do [ "$1" = -- ] && { shift; break; }; shift; done
exec "$@"
"""


def fenced(
    tmp_path: Path, script: str, run_priority: RunPriority, execute: Callable[[ProcessStarter], RunResult]
) -> RunResult:
    variables, running = systemd(tmp_path, script)
    starter = ProcessStarter({**os.environ, **variables}, INSTANCE)
    starter._cgroup = Cgroup(variables, running)
    return execute(starter)


def work(tmp_path: Path, run_limits: RunLimits) -> Callable[[ProcessStarter], RunResult]:
    workload = Workload((sys.executable, "-c", "print('done')"), tmp_path, {}, 60)

    def execute(starter: ProcessStarter) -> RunResult:
        return asyncio.run(starter.execute(workload, {}, Trace(), polite=True, run_limits=run_limits))

    return execute


def test_a_run_has_a_group_with_its_weights_and_limits(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = fenced(tmp_path, WORDS.replace("LOG", str(log)), GAP, work(tmp_path, RunLimits(GAP, max_wait=100, tasks=77)))
    asked, used = log.read_text().splitlines()

    assert (done.outcome, done.output) == (None, "done")
    assert asked.endswith("--scope --quiet --collect --no-ask-password true")
    for word in ("--property=CPUWeight=10", "--property=IOWeight=10", "--property=TasksMax=77", "MemoryMax="):
        assert word in used
    # One pass, what it may stand still, and what its end may take.
    assert "--property=RuntimeMaxSec=225s" in used
    assert used.startswith(f"{tmp_path} ")


@pytest.mark.parametrize("script", ["exit 1", 'case "$*" in *true) exit 0;; esac; echo denied >&2; exit 1'])
def test_where_no_group_is_to_be_had_a_run_goes_without(tmp_path: Path, script: str) -> None:
    done = fenced(tmp_path, script, GAP, work(tmp_path, RunLimits(GAP)))

    assert (done.outcome, done.output) == (None, "done")


def test_a_host_without_systemd_is_not_asked(tmp_path: Path) -> None:
    variables, _ = systemd(tmp_path, "touch asked")
    cgroup = Cgroup(variables, tmp_path / "none")

    assert cgroup.command(GAP, memory=1, tasks=1, seconds=1) == ()
    assert cgroup.variables == {}
    assert not list(tmp_path.rglob("asked"))


def test_the_nice_level_is_that_of_the_effort(tmp_path: Path) -> None:
    run_priority = replace(GAP, nice=7)
    done = run("import os; print(os.nice(0))", tmp_path, RunLimits(run_priority, isolate=False))

    assert done.outcome is not Outcome.FAILED
    assert done.output == "7"


# -- in the daemon ----------------------------------------------------------------------------------------------------


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_outside_its_window_only_what_is_asked_for_is_run(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime]
) -> None:
    real = runtime("rt2025.2")
    variables = f"{{ LD_LIBRARY_PATH = '{real.lib}', OCL_ICD_FILENAMES = '{real.driver}' }}"
    hour = time.localtime().tm_hour
    # Open in twelve hours, for one: whatever hour it is when this ends, it is not then.
    closed = f"{(hour + 12) % 24:02}:00-{(hour + 13) % 24:02}:00"
    with daemon(home, short_dir) as one:

        def configure(window: str) -> None:
            one.configure(
                f"[driver]\nvariables = {variables}\n[schedule]\nsettle = '0.1s'\nscan_interval = '1s'\n"
                f"[throttle]\nwindow = '{window}'\n"
            )

        configure(closed)
        one.start()
        for name in ("asked", "left"):
            one.ctl("model", "add", name, "--", *real.builder("parts"))
        one.ctl("prewarm", "asked")
        (ran,) = one.rows("runs")
        assert (ran["model"], ran["outcome"]) == ("asked", "warmed")
        looks = len(one.rows("jobs"))
        one.ctl("scan")
        # No job is begun only to find that this is not the time.
        assert {row["kind"] for row in one.rows("jobs")} == {"prewarm", "scan"}
        assert len(one.rows("jobs")) == looks + 1

        configure("always")
        assert one.process is not None
        one.process.send_signal(signal.SIGHUP)
        one.until(lambda: one.ask("model", "show", "left")["warmth"] == "warm")
        started = [row["fields"] for row in one.rows("events") if row["topic"] == "run-started"]
        assert [row["occasion"] for row in started] == ["manual", "new-model"]  # type: ignore[index]
        assert one.end() == 0
