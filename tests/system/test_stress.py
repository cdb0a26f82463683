"""Real programs on one store, while it is scanned, evicted from, verified and restored, and the daemon is killed.

A short round here; `make stress` lets it go on for two minutes (XPUCACHED_STRESS_SECONDS), and kills the daemon 500
times (``python -m tests.support.kills``).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import random
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.daemons import Daemon, daemon
from tests.support.kills import Campaign
from xpucached.cli import arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.builders import SyclStore
    from tests.support.runtimes import Runtime

SECONDS: Final = float(os.environ.get("XPUCACHED_STRESS_SECONDS") or 15)
PROGRAMS: Final = ("rt2025.2", "rt2025.2", "rt2025.3", "rt2024.2")
OLD: Final = "2024.18.7.0.11_160000"


def verbs(parser: argparse.ArgumentParser, before: str = "") -> Iterator[str]:
    """Yield every command that there is."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield f"{before} {name}".strip()
                yield from verbs(child, f"{before} {name}".strip())


@dataclass(slots=True)
class Record:
    """What came of it all."""

    results: dict[str, list[tuple[int, object, str]]] = field(default_factory=dict)
    kills: int = 0
    commands: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


def program(real: Runtime, workload: Path, root: Path, record: Record, stop: threading.Event) -> None:
    """Start again and again: cold where its entries have just been evicted, warm where not."""
    while True:
        done = subprocess.run(
            [real.python, "-W", "ignore", workload, "small"],
            env=real.environment(root),
            capture_output=True,
            text=True,
            check=False,
        )
        said = json.loads(done.stdout or "{}")
        record.results.setdefault(real.name, []).append((done.returncode, said.get("checksum"), done.stderr[-500:]))
        if stop.is_set():
            return


def neighbours(store: SyclStore, stop: threading.Event) -> None:
    """Entries of an old driver come all the time, whole and damaged, alone and several in a leaf."""
    for number in itertools.count():
        if stop.is_set():
            return
        for slot in range(1 + number % 3):
            made = store.add(f"_ZTS{len(str(number)) + 1}k{number}", driver=OLD, age=7200, slot=slot, size=300 + slot)
            if number % 4 == slot:
                made.cut(made.bin, 20)
            for path in (made.bin, made.src, made.access_time):
                # The daemon may have been faster.
                if path.exists():
                    os.utime(path, (time.time() - 7200, time.time() - 7200))
        time.sleep(0.05)


def keeper(host: Daemon, record: Record, chance: random.Random, stop: threading.Event) -> None:
    """Ask the daemon for everything that changes stores; now and then kill it in the middle."""
    there = set(verbs(arguments._parser()))
    while not stop.is_set():
        wanted = [["scan", "--full"], ["evict"], ["evict", "named"], ["evict", "--reason", "defective"], ["replay"]]
        if "verify" in there:
            wanted += [["verify"], ["verify", "--fix"]]
        if "trash restore" in there:
            wanted += [["trash", "restore", "some"]]
        words = chance.choice(wanted)
        if words == ["evict", "named"]:
            # The programs' own entries: their next start is a cold one.
            rows = json.loads(host.ctl("ls", "--json", check=None).stdout or "{}").get("data", {}).get("entries", [])
            refs = [row["ref"] for row in rows if row["driver"] != OLD]
            words = ["evict", *chance.sample(refs, min(5, len(refs)))]
        elif words[:2] == ["trash", "restore"]:
            rows = json.loads(host.ctl("trash", "list", "--json", check=None).stdout or "{}").get("data", [])
            rows = rows if isinstance(rows, list) else rows.get("entries", [])
            words = ["trash", "restore", *[row["ref"] for row in chance.sample(rows, min(3, len(rows)))]]
        client = subprocess.Popen(
            [*host.client, *words], env=host.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if chance.random() < 0.3:
            time.sleep(chance.uniform(0.1, 0.7))
            assert host.end(signal.SIGKILL) == -signal.SIGKILL
            record.kills += 1
            client.communicate()
            host.start()
            continue
        _, said = client.communicate()
        record.commands[" ".join(words[:1])] = record.commands.get(" ".join(words[:1]), 0) + 1
        if client.returncode == 70:
            record.refused.append(f"{words}: {said}")


@pytest.mark.runtime
@pytest.mark.timeout(120 + 3 * SECONDS)
def test_programs_feel_nothing_of_all_that_goes_on(
    home: Path, short_dir: Path, sycl_store: SyclStore, runtime: Callable[[str], Runtime], workload: Path
) -> None:
    record = Record()
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
                failures.append(error)
                stop.set()

        return run

    with daemon(home, short_dir) as host:
        host.configure(
            f"[stores]\npaths = ['{sycl_store.root}']\n[policy]\ngrace = '0s'\nmax_unused = '1h'\n"
            "[schedule]\nsettle = '0.1s'\nreplay = false\n"
        )
        host.start()
        works: list[Callable[[], None]] = [
            functools.partial(program, runtime(name), workload, sycl_store.root, record, stop) for name in PROGRAMS
        ]
        works.append(lambda: neighbours(sycl_store, stop))
        works.append(lambda: keeper(host, record, random.Random(11), stop))  # noqa: S311 - a test's own luck
        threads = [threading.Thread(target=guarded(work)) for work in works]
        for thread in threads:
            thread.start()
        stop.wait(SECONDS)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures

        starts = {name: len(results) for name, results in record.results.items()}
        print(f"starts: {starts}, commands: {record.commands}, kills: {record.kills}")
        for name, results in record.results.items():
            assert {status for status, _, _ in results} == {0}, (name, results)
            assert len({checksum for _, checksum, _ in results}) == 1, (name, results)
            assert results[0][1] is not None
        assert record.kills > 0
        assert record.commands
        assert not record.refused
        host.ctl("evict")
        host.ctl("scan", "--full")
        left = [path for path in sycl_store.root.rglob("*") if path.name.endswith(".lock") or path.name == ".xpucached"]
        assert left == []
        truth = {
            str(path.relative_to(sycl_store.root).with_suffix(""))
            for path in sycl_store.root.glob("[0-9]*/[0-9]*/[0-9]*/[0-9]*/*.bin")
        }
        assert {row["key"] for row in host.rows("ls")} == truth
        assert {row["state"] for row in host.rows("ls")} <= {"ok"}
        assert "Traceback" not in host.log.read_text()
        # After all that everything that is stored is read again as what it is: nothing is compiled a second time.
        real = runtime(PROGRAMS[0])
        command: list[str | Path] = [real.python, "-W", "ignore", workload, "small"]
        variables = real.environment(sycl_store.root, trace=True)
        subprocess.run(command, env=variables, capture_output=True, check=True)
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        assert "has been cached" not in done.stderr


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_daemon_killed_at_random_moments_of_its_jobs_loses_nothing(
    tmp_path: Path, short_dir: Path, runtime: Callable[[str], Runtime]
) -> None:
    """A sample: ``python -m tests.support.kills`` kills it in every kind of job."""
    jobs = ("prewarm", "replay", "evict", "verify")
    tally = Campaign(tmp_path / "w", short_dir, runtime("rt2025.2"), runtime("drv2025.3"), 2, jobs).run(5)
    assert tally.wrong == []
    assert tally.kills.total() == 5
    assert tally.beside > 1
