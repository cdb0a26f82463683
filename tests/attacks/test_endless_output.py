"""A model's program prints without end, keeps its pipes, or says what was never asked: it costs its own run only."""

from __future__ import annotations

import asyncio
import os
import selectors
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.daemons import daemon
from xpucached.domain.models import Outcome, Workload
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import EntryId, FoundStore, Store, StoreOrigin
from xpucached.domain.workloads import RunSpec
from xpucached.kinds import sycl
from xpucached.processes import child, conversation, output
from xpucached.processes.reports import read_seen, read_told
from xpucached.processes.results import RunResult
from xpucached.processes.supervised import ProcessStarter
from xpucached.service.recordings import trace

if TYPE_CHECKING:
    from collections.abc import Iterable

STORE: Final = FoundStore(Store(sycl.NAME, Path("/nowhere/store")), StoreOrigin.FOUND, "test")

named: Final = trace([STORE])


def run(script: str, directory: Path, *, seconds: float = 60.0, exercise: RunSpec | None = None) -> RunResult:
    workload = Workload(("/bin/sh", "-c", script), directory, timeout=seconds, exercise=exercise or RunSpec())
    return asyncio.run(ProcessStarter(os.environ, "endless").execute(workload, {}, named, polite=False))


@pytest.mark.parametrize("script", ["yes", "yes >&2", "exec cat /dev/zero", "exec tr '\\0' x </dev/zero >&2"])
def test_a_program_that_prints_without_end_is_ended(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_MOST", 64 << 20)
    done = run(script, tmp_path)
    assert (done.outcome, done.detail) == (Outcome.FAILED, "it printed more than 64 MiB, and was ended")
    assert len(done.output) < 64 << 10


GARBAGE: Final = "[Persistent Cache]: stored /nowhere/store/x/\\0/../y garbage [kernel_compiler Persistent Cache]: "


@pytest.mark.parametrize(
    "script",
    [
        f"yes '{GARBAGE}' >&2",
        f"while :; do echo '{GARBAGE}' $$; done >&2",
        "yes '*** Code caching: '",
    ],
)
def test_a_trace_without_end_ends_with_its_time(script: str, tmp_path: Path) -> None:
    done = run(script, tmp_path, seconds=3.0)
    assert done.outcome in {Outcome.TIMED_OUT, Outcome.FAILED}


def test_who_makes_us_work_waits_four_times_as_long() -> None:
    reading, writing = os.pipe()
    heard = output.ChildOutput(named)
    supervisor = child.start(["/bin/sh", "-c", "exec sleep 100"], variables={}, stdout=child.PIPE)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            pipes = conversation.ChildPipes(supervisor, heard, {})
            os.write(writing, f"{GARBAGE}\n".encode() * 100)
            assert conversation._read_some(selector, pipes)
            # Nothing is read of it now, though there may be more, until it has rested.
            assert list(pipes.resting) == [reading]
            assert not selector.get_map()
            os.write(writing, b"more\n")
            pipes.resting[reading] = 0.0
            assert conversation._read_some(selector, pipes)
    finally:
        os.close(reading)
        os.close(writing)
        child.end(supervisor)
    assert heard.text == "more"


def _entries(lines: Iterable[str]) -> frozenset[EntryId]:
    return frozenset(EntryId(STORE.store, EntryKey(line)) for line in lines)


def test_a_trace_that_names_too_much_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_MOST_ENTRIES", 100)
    monkeypatch.setattr(
        "tests.attacks.test_endless_output.named",
        output.Trace(named.marks, lambda lines: (_entries(lines), frozenset())),
    )
    script = "n=0; while :; do n=$((n+1)); echo '[Persistent Cache]: '$n; done >&2"
    done = run(script, tmp_path)
    assert done.outcome is Outcome.FAILED
    assert done.detail == "its trace names more than 100 entries, and it was ended"


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("exec >&- 2>&-; sleep 1; exit 0", None),
        ("exec >&- 2>&-; sleep 1000", Outcome.TIMED_OUT),
        ("yes & exit 0", None),
        ("setsid yes >&2 & exit 0", None),
        ("(trap '' TERM HUP; while :; do sleep 1; done) & exit 0", None),
        ("kill -STOP $$", Outcome.TIMED_OUT),
        ("kill -STOP $PPID; sleep 1000", Outcome.TIMED_OUT),
    ],
)
def test_who_closes_keeps_or_stops_is_ended_in_time(script: str, outcome: Outcome | None, tmp_path: Path) -> None:
    # The last of them stops its supervisor, which is then killed after its time.
    done = run(script, tmp_path, seconds=60.0 if outcome is None else 3.0)
    assert done.outcome is outcome


def test_others_go_on_while_one_prints_without_end(tmp_path: Path) -> None:
    async def both() -> tuple[RunResult, RunResult]:
        runner = ProcessStarter(os.environ, "endless")
        endless = Workload(("/bin/sh", "-c", "yes"), tmp_path, timeout=30.0)
        short = Workload(("/bin/sh", "-c", "sleep 0.1"), tmp_path, timeout=30.0)
        printing = asyncio.create_task(runner.execute(endless, {}, named, polite=False))
        done = await runner.execute(short, {}, named, polite=False)
        printing.cancel()
        try:
            return await printing, done
        except asyncio.CancelledError:
            return done, done

    assert asyncio.run(both())[1].outcome is None


# -- what ended it -----------------------------------------------------------------------------------------------


WRITE: Final = (
    "import os; f = os.open('big', os.O_WRONLY | os.O_CREAT); [os.write(f, bytes(1 << 20)) for _ in range(9)]"
)


@pytest.mark.parametrize(
    "script",
    [
        "head -c 9000000 /dev/zero > big; exit $?",
        "exec head -c 9000000 /dev/zero > big",
        f'exec /usr/bin/env python3 -c "{WRITE}"',
    ],
)
def test_too_large_a_file_is_said_to_be_that(script: str, tmp_path: Path) -> None:
    done = run(script, tmp_path, exercise=RunSpec(disk=4 << 20))
    assert done.outcome is Outcome.OVER_DISK
    assert done.detail == f"it wrote more than {4 << 20} bytes to one file, the limit (the model's disk)"


def test_the_last_line_that_a_failed_program_complained_with_comes_last(tmp_path: Path) -> None:
    done = run("echo 'ModuleNotFoundError: No module named x' >&2; sleep 0.2; echo bye; exit 1", tmp_path)
    assert done.detail == "exit status 1"
    assert done.output.splitlines() == ["bye", "ModuleNotFoundError: No module named x"]


def test_why_a_program_failed_is_printed_at_once(tmp_path: Path, home: Path, short_dir: Path) -> None:
    script = tmp_path / "bad.sh"
    script.write_text("for n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $n >&2; done; exit 3\n")
    with daemon(home, short_dir) as one:
        one.start()
        one.ctl("model", "add", "bad", "--device", "cpu", "--", "/bin/sh", str(script))
        said = one.ctl("prewarm", "bad", check=1).stdout
        listed = one.ctl("runs").stdout + one.ctl("model", "list").stdout
        # It is the owner's: the log may be others' to read.
        assert "line 12" not in one.log.read_text()
    assert "exit status 3: line 12" in said
    assert [line.strip() for line in said.splitlines() if line.startswith("    line")] == [
        f"line {number}" for number in range(3, 13)
    ]
    assert listed.count("line 12") == 2


# -- what the children say ---------------------------------------------------------------------------------------


DEEP: Final = b"[" * 500_000 + b"]" * 500_000


@pytest.mark.parametrize(
    "said",
    [
        DEEP,
        b'{"report": ' + DEEP + b', "token": "t"}',
        b'{"token": "t", "report": {"outcome": []}}',
        b'{"token": "t", "report": {"outcome": {}, "ran_on": []}}',
        b'{"token": "t", "report": {"ran_on": {}, "figures": {"tokens": 1e999}}}',
        b'{"token": "t", "report": {"evidence": {"a": 1}, "devices": 5, "device": 1}}',
        b'{"token": "t", "report": {"figures": {"tokens": ' + b"9" * 100_000 + b"}}}",
        b'"t"\n' * 200_000,
        b"\xff\xfe t\n",
    ],
)
def test_no_words_of_a_child_make_the_daemon_stumble(said: bytes) -> None:
    told = read_told(said, "t")
    assert told is None or told.outcome is None
    seen = read_seen(said.replace(b'"token": "t", "report": {', b"").replace(b"}}", b"}"))
    assert seen is None or seen.outcome is None


def test_a_device_that_cannot_be_written_down_is_none() -> None:
    told = read_told(b'{"token": "t", "report": {"devices": ["xpu:0", "\\udc80", 1]}}', "t")
    assert told is not None
    assert ascii(told.devices) == "('xpu:0',)"
