"""A bundle's recipes in parts, by the workers of a real Dask cluster, one of which dies with its part half done."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent import futures
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest
from msgspec.structs import replace

from tests.flow.test_bundles import CTL, compiled, content, done
from tests.unit.bundle.test_hostile_manifests import recipes
from xpucached.bundle import writing
from xpucached.bundling import farming, importing, part_journals
from xpucached.domain.bundles import BundleReplayReport, BundleSource, ExportBundle, MadeEntry, ReplayBundle
from xpucached.domain.imports import EntriesCame
from xpucached.domain.names import EntryKey, KindName
from xpucached.errors import NoCluster, XpucachedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.runtimes import Runtime

KERNELS = tuple(f"kernel{number}" for number in range(8))


@contextmanager
def dask(*words: str) -> Iterator[psutil.Process]:
    """Start a program of Dask's."""
    code = "import sys; from dask.__main__ import main; sys.argv[0] = 'dask'; main()"
    started = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield psutil.Process(started.pid)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.mark.runtime
def test_a_worker_that_is_killed_changes_nothing_of_what_comes(
    runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    first, other = runtime("rt2025.2"), runtime("drv2025.3")
    assert compiled(first, tmp_path / "store", *KERNELS) == (0, len(KERNELS))
    done(ExportBundle(tmp_path / "bundle", tmp_path / "store", recipes_only=True))
    done(ReplayBundle(tmp_path / "bundle", tmp_path / "alone", driver_root=other.root))
    port = free_port()

    def start(root: Path, into: str) -> subprocess.Popen[bytes]:
        words = ["replay", "--bundle", tmp_path / "bundle", "--into", tmp_path / into, "--driver-root", root, "--json"]
        command = [*CTL, *map(str, words), "--on", f"dask://127.0.0.1:{port}"]
        quickly = os.environ | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
        return subprocess.Popen(
            command, env=quickly if into == "none" else None, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def told(one: subprocess.Popen[bytes], status: int = 0) -> dict[str, object]:
        output, complaint = one.communicate(timeout=200)
        assert one.returncode == status, output + complaint
        found: dict[str, object] = json.loads(output)
        return found

    assert "no scheduler answers" in str(told(start(other.root, "none"), 69))
    with ExitStack() as stack:
        stack.enter_context(dask("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"))
        place = f"tcp://127.0.0.1:{port}"
        words = ("worker", place, "--nthreads=1", "--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path))
        workers = [stack.enter_context(dask(*words, f"--name={name}")) for name in ("a", "b")]
        both = start(other.root, "both")
        # Whoever has a child asks its driver or compiles, in the middle of a part.
        until = time.monotonic() + 100
        while not ((tmp_path / "both").exists() and workers[0].children()):
            assert both.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        workers[0].kill()
        report = told(both)["data"]
        assert isinstance(report, dict)
        assert (report["rebuilt"] + report["present"], report["failures"]) == (len(KERNELS), [])
        assert content(tmp_path / "both") == content(tmp_path / "alone")

        # The worker that is left serves another driver; what is there is not made again.
        again = told(start(first.root, "both"))["data"]
        assert isinstance(again, dict)
        assert (again["rebuilt"], again["workers"]) == (len(KERNELS), 1)
        assert content(tmp_path / "both") == content(tmp_path / "alone") | content(tmp_path / "store")


def test_what_a_worker_made_elsewhere_is_not_called_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = BundleReplayReport((), tmp_path, 1, 0)
    monkeypatch.setattr(farming, "_PATIENCE", 0.05)
    monkeypatch.setattr(farming, "_LOOK", 0.01)
    one = EntriesCame("sha256:1", BundleSource(), (MadeEntry(KindName("sycl"), tmp_path, EntryKey("1"), "", ""),))

    def replayed(_order: object, _progress: object, came: Callable[[EntriesCame], None]) -> object:
        came(replace(one, coming=True))
        came(one)
        return report, (tmp_path / "a",)

    monkeypatch.setattr(importing, "replayed", replayed)
    came: list[EntriesCame] = []
    order = ReplayBundle(tmp_path, tmp_path, cluster="tcp://none:1")
    said: list[tuple[int, int, str]] = []
    with futures.ThreadPoolExecutor(2) as pool:
        with pytest.raises(NoCluster, match="is not here"):
            farming.in_parts(order, pool, 3, 3, lambda *words: said.append(words), "compiling")
        (tmp_path / "a").mkdir()
        (tmp_path / "a/0.bin").touch()
        done_ = farming.in_parts(order, pool, 3, 3, lambda *words: said.append(words), "compiling", came.append)
        assert (done_.rebuilt, set(came)) == (3, {one})
        assert [words[0] for words in said] == [1, 2, 3]

        def fail(*_: object) -> None:
            raise MemoryError("none is left")

        # A worker that is killed has said of whom it is before it puts an entry there; who does its part finds it.
        def die(_order: object, _progress: object, came: Callable[[EntriesCame], None]) -> object:
            came(replace(one, coming=True))
            raise MemoryError("it is killed")

        monkeypatch.setattr(importing, "replayed", die)
        with pytest.raises(NoCluster, match="killed"):
            farming.in_parts(order, pool, 1, 1, lambda *_: None, "compiling")
        monkeypatch.setattr(importing, "replayed", lambda *_: (replace(report, rebuilt=0, present=1), ()))
        came.clear()
        farming.in_parts(order, pool, 1, 1, lambda *_: None, "compiling", came.append)
        assert set(came) == {one}
        came.clear()
        farming.in_parts(order, pool, 1, 1, lambda *_: None, "compiling", came.append)
        assert came == []
        assert not list(tmp_path.glob(".*"))

        monkeypatch.setattr(importing, "replayed", fail)
        with pytest.raises(XpucachedError, match="MemoryError: none is left"):
            farming.in_parts(order, pool, 3, 3, lambda *_: None, "compiling")


def test_two_replays_into_one_directory_leave_each_other_what_says_of_whom_entries_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / os.fsdecode(b"store \xff")
    into.mkdir()
    source = BundleSource(os.fsdecode(b"release \xff"))
    one = EntriesCame("sha256:1", source, (MadeEntry(KindName("sycl"), into, EntryKey("1"), "", ""),))
    report = BundleReplayReport((), into, 0, 1)
    order = ReplayBundle(tmp_path / os.fsdecode(b"bundle \xff"), into, cluster="tcp://none:1")
    came: list[EntriesCame] = []
    monkeypatch.setattr(importing, "replayed", lambda *_: (report, ()))
    with part_journals.PartJournal(into) as journal:
        # A worker of another one is at it; it is killed.
        journal.note(replace(one, coming=True))
        with futures.ThreadPoolExecutor(1) as pool:
            farming.in_parts(order, pool, 1, 1, lambda *_: None, "compiling")
        journal.note(replace(one, bundle="sha256:2", coming=True))
    with futures.ThreadPoolExecutor(1) as pool:
        farming.in_parts(order, pool, 1, 1, lambda *_: None, "compiling", came.append)
    assert set(came) == {one, replace(one, bundle="sha256:2")}
    assert not list(into.iterdir())


def test_a_journal_that_was_taken_for_left_behind_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = EntriesCame("sha256:1", BundleSource(), (), coming=True)
    hold, held = writing.hold, list[bool | None]()

    def slowly(descriptor: int) -> bool | None:
        if not held:
            journal.path.unlink()
        held.append(hold(descriptor))
        return held[-1]

    monkeypatch.setattr(writing, "hold", slowly)
    with part_journals.PartJournal(tmp_path) as journal:
        journal.note(one)
        ((path, noted, written),) = part_journals.left(tmp_path)
        assert (path, noted, written, held) == (journal.path, (one,), True, [True, True, False])


def test_a_scheduler_is_not_asked_over_tls_without_certificates(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    words = [
        "--bundle",
        recipes(tmp_path / "bundle", b""),
        "--into",
        tmp_path / "into",
        "--on",
        "dask+tls://127.0.0.1:1",
    ]
    command = [*CTL, "replay", *map(str, words), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, "Traceback" in told.stderr) == (69, False)
    assert "cannot be asked over TLS" in told.stdout
    assert "certificates" in told.stdout
