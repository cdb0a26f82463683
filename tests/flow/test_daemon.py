"""A real daemon on a real socket: start, refuse, reload, die, come back; with real runtimes, upgrade."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests import REPOSITORY
from tests.support import catalogs, forks, runtimes
from tests.support.builders import SyclStore
from tests.support.daemons import PATIENCE, Daemon, daemon
from xpucached.domain.jobs import JobState, Progress
from xpucached.domain.reports import ScanReport
from xpucached.errors import CatalogError, Conflict
from xpucached.kinds.sycl import entry_format
from xpucached.service.jobs import Jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.runtimes import Runtime
    from xpucached.domain.jobs import Job
    from xpucached.service.jobs import Handle

OLD = "2024.18.7.0.11_160000"


@pytest.fixture
def host(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon without any driver."""
    with daemon(home, short_dir) as one:
        one.configure("[schedule]\nsettle = '0.2s'\n")
        yield one


def with_store(host: Daemon, store: SyclStore, extra: str = "") -> None:
    host.configure(f"[stores]\npaths = ['{store.root}']\n{extra}[schedule]\nsettle = '0.2s'\n")


# -- start and stop -----------------------------------------------------------------------------------------------


def test_without_driver_it_runs_and_says_what_is_missing(host: Daemon, sycl_store: SyclStore) -> None:
    sycl_store.add("_ZTS3one", driver=OLD)
    sycl_store.add("_ZTS3two", driver="other")
    with_store(host, sycl_store)
    host.start()
    status = host.ask("status")
    assert status["verdict"] == "no-device"
    assert "No device" in host.ctl("status").stdout.splitlines()[0]
    assert {row["driver"] for row in host.rows("ls")} == {OLD, "other"}
    assert [row["driver"] for row in host.rows("ls", "--driver", OLD)] == [OLD]
    refused = host.ctl("prewarm", "--all", check=None)
    assert refused.returncode == 69
    assert "device" in refused.stderr
    assert host.ctl("status", "--check", check=None).returncode != 0
    assert host.end() == 0
    assert not (host.run / "xpucached" / "xpucached.sock").exists() or host.ctl("status", check=None).returncode == 69


def test_a_check_knows_nothing_between_a_change_of_the_driver_and_its_answer(host: Daemon) -> None:
    host.start()
    host.until(lambda: host.ask("status")["looked"] is not None)
    before = host.ask("status")
    host.configure("[schedule]\nsettle = '3s'\n")
    host.ctl("driver-changed")
    host.until(lambda: not host.ask("status")["look_due"])
    assert str(host.ask("status")["looked"]) > str(before["looked"])

    assert host.process is not None
    host.process.send_signal(signal.SIGHUP)
    # It is told once more while it waits until nothing happens any more.
    host.until(lambda: host.ask("status")["look_due"] is True)
    checked = host.ctl("status", "--check", check=None)
    assert checked.returncode == 3
    assert "no look at it has ended well since" in checked.stdout
    host.until(lambda: not host.ask("status")["look_due"])
    assert "no look at it has ended well since" not in host.ctl("status", "--check", check=None).stdout


def test_a_refused_configuration_is_not_known_to_be_well(host: Daemon) -> None:
    host.start()
    host.configure("[schedule]\nsettle = 'soon'\n")
    assert host.process is not None
    host.process.send_signal(signal.SIGHUP)
    host.until(lambda: host.ctl("status", "--check", check=None).stdout.count("is refused") > 0)
    assert host.ctl("status", "--check", check=None).returncode == 3


HELD = """
import os, sys
from xpucached.server import unix_sockets
bind = unix_sockets.bind
def held(*given):
    one = bind(*given)
    os.dup(one.fileno())
    return one
unix_sockets.bind = held
from xpucached.daemon.main import main
sys.exit(main(["--user"]))
"""


def test_a_child_that_is_being_started_at_the_end_is_no_other_daemon(host: Daemon) -> None:
    # Until it is another program it holds what the daemon had open: its socket is not closed with the daemon's own.
    host.words = ("-c", HELD)
    host.start()
    assert host.end() == 0, host.log.read_text()
    assert not (host.run / "xpucached" / "xpucached.sock").exists()


def test_second_daemon_on_the_same_state_is_refused(host: Daemon) -> None:
    host.start()
    second = subprocess.run(
        [sys.executable, "-m", "xpucached", "--user"],
        env={**host.environment, "XPUCACHED_PATHS_SOCKET": str(host.run / "other" / "s")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 73
    assert "another xpucached" in second.stderr
    assert host.ask("status")["pid"] == host.process.pid  # type: ignore[union-attr]


def test_second_daemon_on_the_same_socket_is_refused(host: Daemon) -> None:
    host.start()
    second = subprocess.run(
        [sys.executable, "-m", "xpucached", "--user"],
        env={**host.environment, "XPUCACHED_PATHS_STATE": str(host.home / "elsewhere")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 73
    assert host.ask("status")["verdict"] == "no-device"


def test_catalog_of_a_newer_version_is_refused_untouched(host: Daemon) -> None:
    host.start()
    host.end()
    path = host.state / "catalog.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = path.read_bytes()
    host.start(ready=False)
    assert host.process is not None
    assert host.process.wait(30) == 74
    host.process = None
    assert path.read_bytes() == before
    assert "newer" in host.log.read_text()


def test_corrupt_catalog_is_set_aside_and_rebuilt(host: Daemon, sycl_store: SyclStore) -> None:
    sycl_store.add()
    with_store(host, sycl_store)
    host.start()
    host.end()
    (host.state / "catalog.sqlite").write_bytes(b"no database at all" * 500)
    host.start()
    assert len(host.rows("ls")) == 1
    assert list(host.state.glob("catalog.sqlite.corrupt-*"))
    assert any(event["topic"] == "catalog-rebuilt" for event in host.rows("events"))


def test_the_look_of_a_start_is_shown_as_a_job_with_what_came_of_it(host: Daemon, sycl_store: SyclStore) -> None:
    sycl_store.add()
    with_store(host, sycl_store)
    host.start()
    job = host.ask("jobs", "scan-0")
    assert (job["kind"], job["state"]) == ("scan", "done")
    assert job["report"]["added"] == 1  # type: ignore[index]
    assert job["progress"]["done"] == job["progress"]["total"] > 0  # type: ignore[index]
    # The next look is nobody's job.
    host.ctl("scan")
    assert sorted(str(row["id"]) for row in host.rows("jobs")) == ["scan-0", "scan-1"]


def test_what_came_to_its_end_has_done_all_of_it() -> None:
    async def ended() -> Job:
        jobs = Jobs(lambda: datetime.now(UTC))

        async def work(handle: Handle) -> ScanReport:
            handle.progress(8, 9, "here")
            return ScanReport(0, 0, 0, 0, 0, 0.0)

        return await jobs.wait(jobs.start("scan", work).id, 5)

    job = asyncio.run(ended())
    assert (job.state, job.progress) == (JobState.DONE, Progress(9, 9))


def test_what_the_daemon_does_anyway_fails_for_itself_and_is_not_cancelled() -> None:
    async def attended() -> None:
        jobs = Jobs(lambda: datetime.now(UTC))
        began, go_on = asyncio.Event(), asyncio.Event()

        async def work(handle: Handle) -> ScanReport:
            handle.progress(1, 2, "here")
            began.set()
            await go_on.wait()
            raise CatalogError("no room")

        attending = asyncio.create_task(jobs.attend("scan", work))
        await began.wait()
        (job,) = jobs.running()
        assert (job.id, job.progress) == ("scan-0", Progress(1, 2, "here"))
        with pytest.raises(Conflict, match="ends by itself"):
            await jobs.cancel("scan-0")
        go_on.set()
        with pytest.raises(CatalogError, match="no room"):
            await attending
        failed = jobs.job("scan-0")
        assert failed.state is JobState.FAILED
        assert failed.error is not None
        assert failed.error.code == "catalog"

    asyncio.run(attended())


def test_damaged_configuration_is_refused_with_its_line(host: Daemon) -> None:
    host.configure("[policy]\ngrace = '10m'\nkeep_driver_generation = 3\n")
    host.start(ready=False)
    assert host.process is not None
    assert host.process.wait(30) == 78
    host.process = None
    assert f"{host.config}:3" in host.log.read_text()
    assert "keep_driver_generation" in host.log.read_text()


def test_in_the_background_of_a_shell_it_logs_to_a_file(host: Daemon) -> None:
    catalogs.put(host.state / "catalog.sqlite")
    ours, theirs = os.openpty()
    words = ["setsid", "--ctty", "--wait", "sh", "-mc", '"$0" -m xpucached --user & wait', sys.executable]
    shell = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=host.environment)
    os.close(theirs)
    shown = b""
    try:
        host.log.write_text("")
        host.until(lambda: host.ask("status").get("verdict") not in (None, "starting"))
        os.kill(int(str(host.ask("status")["pid"])), signal.SIGTERM)
        with contextlib.suppress(OSError):  # the other end is closed
            while some := os.read(ours, 4096):
                shown += some
        shell.wait(PATIENCE)
    finally:
        if shell.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((host.state / "lock").read_text()), signal.SIGKILL)
        shell.wait(60)
        os.close(ours)
    file = host.state / "xpucached.log"
    assert f"its log is {file}" in shown.decode()
    assert b"answers on" not in shown
    assert "answers on" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_reload_takes_a_good_configuration_and_refuses_a_bad_one(host: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        figures = f"[metrics]\nlisten = '127.0.0.1:{port}'\n"
        host.configure(figures)
        # A port that is taken is a problem, and no reason not to start.
        host.start()
        assert "Address already in use" in str(host.ask("status")["problems"])
    assert host.process is not None
    assert "not-reloaded" not in host.ctl("config", "show").stdout
    host.configure("[policy]\ngrace = 'soon'\n")
    # It is seen, and said what has it read.
    host.until(lambda: f"to have it read: kill -HUP {host.process.pid}" in host.ctl("config", "show").stdout)  # type: ignore[union-attr]
    assert "not-reloaded" in host.ctl("status").stdout
    host.process.send_signal(signal.SIGHUP)
    host.until(lambda: "xpucached.toml:2" in host.ctl("status").stdout)
    assert "42" not in str(host.ask("config", "show")["policy.grace"])
    host.configure(f"[policy]\ngrace = '42s'\n{figures}")
    host.process.send_signal(signal.SIGHUP)
    host.until(lambda: "42" in str(host.ask("config", "show")["policy.grace"]))
    host.until(lambda: "not-reloaded" not in host.ctl("status").stdout)
    host.until(lambda: "xpucached.toml:2" not in host.ctl("status").stdout)
    host.until(lambda: "metrics-port" not in str(host.ask("status")["problems"]))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/metrics", timeout=20) as answer:
        assert b"\nxpucached_entries{" in answer.read()

    def closed() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) != 0

    # Who watches, too; and what a daemon keeps for its life is said, and is refused with all that stands beside it.
    assert host.ask("status")["watching"]["mode"] != "polling"  # type: ignore[index]
    host.configure("[watch]\nmode = 'polling'\n")
    host.process.send_signal(signal.SIGHUP)
    host.until(closed)
    host.until(lambda: host.ask("status")["watching"]["mode"] == "polling")  # type: ignore[index]
    host.configure("[paths]\nsocket_mode = '0666'\n[watch]\nmode = 'auto'\n")
    host.process.send_signal(signal.SIGHUP)
    host.until(lambda: "restart-needed" in str(host.ask("status")["problems"]))
    assert host.ask("status")["watching"]["mode"] == "polling"  # type: ignore[index]


def test_model_files_are_read_again_when_they_change(host: Daemon) -> None:
    host.start()
    folder = host.config.parent / "models.d"
    folder.mkdir()
    (folder / "one.toml").write_text("command = ['/bin/true']\n")
    host.until(lambda: [row["name"] for row in host.rows("model", "list")] == ["one"])
    (folder / "one.toml").write_text("command = '/bin/true'\n")
    (folder / "two.toml").write_text("command = ['/bin/true']\n")
    host.until(lambda: [row["name"] for row in host.rows("model", "list")] == ["one", "two"])
    assert "one.toml:1" in host.ctl("status").stdout
    assert host.ctl("model", "remove", "two", check=None).returncode == 65
    (folder / "two.toml").unlink()
    host.until(lambda: [row["name"] for row in host.rows("model", "list")] == ["one"])


def test_a_model_that_is_registered_is_warmed_without_being_asked_for(host: Daemon) -> None:
    host.configure("[schedule]\nscan_interval = '1d'\nsettle = '0.2s'\n")
    host.start()
    words = ("model", "add", "net", "--device", "cpu", "--", "/bin/sh", "-c", "true {device}")
    assert "It is warmed by itself in a moment" in host.ctl(*words).stdout
    host.until(lambda: [row["outcome"] for row in host.rows("runs")] == ["uncached"])


@pytest.mark.runtime
def test_who_chooses_its_store_itself_is_told_how_to_name_it(
    host: Daemon, tmp_path: Path, runtime: Callable[[str], Runtime]
) -> None:
    driven(host, runtime("rt2025.2"), tmp_path / "driver")
    host.start()
    own = tmp_path / "own"
    script = f'export SYCL_CACHE_DIR={own}; exec "$@"'
    words = ("--", "/bin/sh", "-c", script, "sh", *runtime("rt2025.2").program("first"))
    host.ctl("model", "add", "net", *words)
    host.ctl("prewarm", "net")
    run = host.rows("runs", "net")[0]
    assert run["outcome"] == "uncached"
    assert "a cache of its own choice (model add --store PATH)" in str(run["detail"])

    host.ctl("model", "add", "net", "--replace", "--store", str(own), *words)
    host.ctl("prewarm", "--force", "net")
    assert host.rows("runs", "net")[0]["outcome"] == "warmed"


def test_a_start_looks_once_at_every_store(host: Daemon, sycl_store: SyclStore) -> None:
    sycl_store.add()
    with_store(host, sycl_store)
    host.start()

    def scanned() -> list[object]:
        return [row["scanned"] for row in host.rows("stores") if row["store"] == str(sycl_store.root)]

    first = scanned()
    folder = host.config.parent / "models.d"
    folder.mkdir()
    for number in (1, 2):
        # The look that sees the second file begins after whatever the start had asked for is done.
        (folder / f"m{number}.toml").write_text("command = ['/bin/true']\n")
        host.until(lambda number=number: len(host.rows("model", "list")) == number)  # type: ignore[misc]
    assert scanned() == first
    assert len(first) == 1


def test_who_mistypes_a_model_is_told_which_there_are(host: Daemon) -> None:
    host.start()
    for name in ("llama-7b", "llama-13b", "bert"):
        host.ctl("model", "add", name, "--", "/bin/true")

    for words in (
        ("prewarm", "lama-7b"),
        ("model", "show", "lama-7b"),
        ("model", "history", "lama-7b"),
        ("model", "remove", "lama-7b"),
        ("why", "lama-7b"),
        ("env", "lama-7b"),
        ("runs", "lama-7b"),
        ("ls", "--model", "lama-7b"),
        ("replay", "--model", "lama-7b"),
    ):
        refused = host.ctl(*words, check=66).stderr.splitlines()
        assert refused == [
            "xpucachectl: no model lama-7b",
            "hint: did you mean llama-7b or llama-13b? see: xpucachectl --user model list",
        ], words
    assert host.ctl("why", "resnet", check=66).stderr.splitlines()[1:] == ["hint: see: xpucachectl --user model list"]


def test_systemd_gives_the_socket_and_hears_how_it_is(host: Daemon) -> None:
    path = host.run / "given"
    notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notifications.bind(str(host.run / "notify"))
    notifications.settimeout(PATIENCE)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    start = (
        "import os, sys\n"
        f"os.dup2({listener.fileno()}, 3)\n"
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'xpucached', '--user'])\n"
    )
    with host.log.open("ab") as log:
        host.process = subprocess.Popen(
            [sys.executable, "-c", start],
            env={**host.environment, "NOTIFY_SOCKET": str(host.run / "notify"), "WATCHDOG_USEC": "300000"},
            pass_fds=(3, listener.fileno()) if listener.fileno() != 3 else (3,),
            stdout=log,
            stderr=log,
        )
    listener.close()
    heard: list[str] = []

    def hear() -> None:
        # All the time, as systemd does: what nobody reads keeps back what comes after it.
        with contextlib.suppress(TimeoutError):
            while "STOPPING=1" not in heard:
                heard.extend(notifications.recv(4096).decode().split("\n"))

    hearing = threading.Thread(target=hear)
    hearing.start()
    host.until(lambda: {"READY=1", "WATCHDOG=1"} <= set(heard))
    assert json.loads(host.ctl("--socket", str(path), "status", "--json").stdout)["data"]["verdict"]
    host.process.send_signal(signal.SIGHUP)
    host.until(lambda: any(line.startswith("MONOTONIC_USEC=") for line in heard))
    assert "RELOADING=1" in heard
    assert host.end() == 0
    assert path.exists()
    hearing.join()
    assert "STOPPING=1" in heard
    notifications.close()


def test_a_store_that_changes_is_looked_at_again(host: Daemon, sycl_store: SyclStore) -> None:
    sycl_store.add("_ZTS3one")
    with_store(host, sycl_store)
    host.start()
    sycl_store.add("_ZTS3two")
    host.until(lambda: len(host.rows("ls")) == 2)
    shutil.rmtree(sycl_store.root)
    host.until(lambda: host.rows("ls") == [])
    sycl_store.add("_ZTS5three", driver="again")
    host.ctl("scan")
    assert len(host.rows("ls")) == 1


def test_stores_of_live_processes_are_found_and_kept(home: Path, short_dir: Path, sycl_store: SyclStore) -> None:
    sycl_store.add("_ZTS3one")
    default = home / ".cache" / "libsycl_cache"
    type(sycl_store)(default).add("_ZTS3two")
    with daemon(home, short_dir, XPUCACHED_STORES_FOUND="true") as one:
        # It looks at whatever this user's programs use; it must only look.
        one.configure("[schedule]\nevict = false\nreplay = false\nprewarm = false\n")
        program = subprocess.Popen(["/bin/sleep", "60"], env={"SYCL_CACHE_DIR": str(sycl_store.root)})
        try:
            one.start()
            found = {str(row["store"]): row for row in one.rows("stores")}
        finally:
            program.kill()
            program.wait()
        mine = found[str(sycl_store.root)]
        assert (mine["origin"], mine["state"], mine["entries"]) == ("found", "ok", 1)
        assert mine["via"] == f"process {program.pid} (sleep)"
        assert found[str(default)]["via"] == "the standard place"
        one.ctl("scan")
        assert str(sycl_store.root) in {row["store"] for row in one.rows("stores")}
        shutil.rmtree(sycl_store.root)
        one.ctl("scan")
        one.ctl("scan")
        assert str(sycl_store.root) not in {row["store"] for row in one.rows("stores")}


# -- real runtimes ------------------------------------------------------------------------------------------------


def switch(link: Path, runtime: Runtime) -> None:
    """Put another driver in place, atomically, as a package manager does."""
    beside = link.with_suffix(".new")
    beside.symlink_to(runtime.lib)
    beside.replace(link)


def driven(host: Daemon, rt: Runtime, link: Path, extra: str = "") -> None:
    switch(link, rt)
    host.configure(
        f"""
        {extra}
        [driver]
        variables = {{ LD_LIBRARY_PATH = '{rt.lib}', OCL_ICD_FILENAMES = '{link}/libintelocl.so' }}
        [schedule]
        settle = '0.2s'
        """
    )


def topics(host: Daemon) -> list[object]:
    return [event["topic"] for event in host.rows("events")]


def warm(host: Daemon, name: str) -> dict[str, object]:
    host.until(lambda: host.ask("model", "show", name)["warmth"] in ("warm", "failed"))
    found = host.ask("model", "show", name)
    assert found["warmth"] == "warm", found
    return found


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_driver_upgrade_is_noticed_warmed_and_tidied(
    host: Daemon, runtime: Callable[[str], Runtime], workload: Path, tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    link = tmp_path / "driver"
    driven(host, first, link, "[policy]\nkeep_driver_generations = 0\ngrace = '0s'\n")
    host.start()
    assert host.ask("status")["verdict"] == "no-models"
    host.add_models(first)
    host.ctl("model", "add", "app", "--", str(first.python), "-W", "ignore", str(workload), "small")
    assert host.ctl("status", "--check", check=None).returncode == 1
    names = ("app", "net", "loaded")
    host.ctl("prewarm", *names)
    before = {name: warm(host, name)["entries"] for name in names}
    entries = host.rows("ls", "--model", "app")
    assert len(entries) == before["app"]
    assert entries
    assert host.ctl("status", "--check").returncode == 0
    drivers = {row["driver"] for row in entries}
    assert len(drivers) == 1
    assert all(row["kernels"] and row["state"] == "ok" for row in entries)
    # A second prewarming has nothing to do.
    assert host.ask("prewarm", *names)["report"]["runs"] == []  # type: ignore[index]

    switch(link, second)
    host.until(lambda: host.ask("status")["changes"] != [])
    host.until(lambda: {row["driver"] for row in host.rows("ls")}.isdisjoint(drivers))
    assert {name: warm(host, name)["entries"] for name in names} == before
    # That it is done is told after the last entry went.
    host.until(lambda: "evicted" in topics(host))
    assert topics(host).index("driver-changed") < topics(host).index("evicted")
    # The program itself now compiles nothing.
    real = first.environment(host.home / ".cache/xpucached/sycl", driver=second.driver, trace=True)
    done = subprocess.run(
        [first.python, "-W", "ignore", workload, "small"], env=real, capture_output=True, text=True, check=True
    )
    assert "has been cached" not in done.stderr
    assert done.stderr.count("using cached device binary") == before["app"]


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_driver_that_the_daemons_own_variables_name_is_watched(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    link = tmp_path / "driver"
    switch(link, runtime("rt2025.2"))
    variables = {
        "LD_LIBRARY_PATH": str(runtime("rt2025.2").lib),
        "OCL_ICD_FILENAMES": str(link / "libintelocl.so"),
    }
    with daemon(home, short_dir, **variables) as one:
        one.configure("[schedule]\nsettle = '0.2s'\n")
        one.start()
        one.until(lambda: str(link / "libintelocl.so") in {file["path"] for file in one.ask("devices")["driver"]})  # type: ignore[attr-defined]
        before = one.ask("devices")["environments"]
        switch(link, runtime("drv2025.3"))
        one.until(lambda: one.ask("status")["changes"] != [])
        one.until(lambda: one.ask("devices")["environments"] != before)


@pytest.mark.runtime
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["rt2024.2", "rt2025.1", "rt2025.3", "rt2026.2"])
def test_every_runtimes_trace_is_understood(
    host: Daemon, runtime: Callable[[str], Runtime], workload: Path, tmp_path: Path, name: str
) -> None:
    real = runtime(name)
    if name != "rt2026.2":
        driven(host, real, tmp_path / "driver")
    host.start()
    program = [str(real.python), "-W", "ignore", str(workload), "small"]
    added = host.ctl("model", "add", "net", "--", *program)
    if name == "rt2026.2":
        # Nothing leads to the driver that lies beside dpnp: the line that is printed for that is typed as it stands.
        assert "libintelocl.so" not in str(host.ask("env", "net"))
        line = next(one for one in added.stderr.splitlines() if " --replace " in one)
        host.ctl(*shlex.split(line)[1:])
    host.ctl("prewarm", "net")
    cold, proof = list[dict[str, int]](host.rows("runs", "net")[0]["passes"])  # type: ignore[call-overload]
    assert cold["created"] == proof["used"] == len(host.rows("ls", "--model", "net")) > 0
    assert proof["created"] == 0
    if name == "rt2026.2":
        # That one is dpnp's: in a shell that knows nothing of it, the program finds all of it.
        bare = {key: host.environment[key] for key in ("PATH", "XDG_RUNTIME_DIR")} | {"HOME": str(host.home)}
        bare |= {"PYTHONPATH": str(REPOSITORY), "SYCL_CACHE_TRACE": "5"}
        words = [sys.executable, "-m", "xpucached.cli", "--user", "run", "net", "--", *program]
        done = subprocess.run(words, env=bare, capture_output=True, text=True, check=True)
        created, used = runtimes.told(host.home / ".cache/xpucached/sycl", done.stderr.splitlines())
        assert (created, len(used)) == (frozenset(), proof["used"])


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_model_that_keeps_its_stderr_is_judged_by_its_store(
    host: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    real = runtime("rt2025.2")
    driven(host, real, tmp_path / "driver")
    host.start()
    quiet = f"exec {' '.join(real.program('first', 'second'))} 2>/dev/null"
    host.ctl("model", "add", "quiet", "--", "/bin/sh", "-c", quiet)
    host.ctl("prewarm", "quiet")
    assert host.ask("model", "show", "quiet")["warmth"] == "warm"
    assert "no trace" in str(host.rows("runs", "quiet")[0]["detail"])
    assert len(host.rows("ls", "--model", "quiet")) == len(host.rows("ls"))


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_driver_that_is_away_for_a_moment_is_no_change(
    host: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    real = runtime("rt2025.2")
    link = tmp_path / "driver"
    driven(host, real, link)
    host.start()
    names = host.add_models(real)
    host.ctl("prewarm", *names)
    link.unlink()
    host.until(lambda: any(row["code"] == "no-opencl-driver" for row in host.ask("status")["problems"]))  # type: ignore[attr-defined]
    assert host.ask("status")["verdict"] == "warm"
    switch(link, real)
    host.until(lambda: not any(row["code"] == "no-opencl-driver" for row in host.ask("status")["problems"]))  # type: ignore[attr-defined]
    assert host.ask("status")["changes"] == []
    assert [len(host.rows("runs", name)) for name in names] == [1, 1]
    link.unlink()
    host.until(lambda: host.ask("status")["verdict"] == "no-device")


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_going_back_to_the_old_driver_needs_nothing(
    host: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    link = tmp_path / "driver"
    driven(host, first, link)
    host.start()
    names = host.add_models(first)
    host.ctl("prewarm", *names)
    proofs = {name: host.rows("runs", name)[0]["id"] for name in names}
    switch(link, second)
    for name in names:
        host.until(lambda name=name: len(host.rows("runs", name)) == 2)  # type: ignore[misc]
        warm(host, name)
    switch(link, first)
    host.until(lambda: len([row for row in host.rows("events") if row["topic"] == "driver-changed"]) == 2)
    host.until(host.idle)
    assert host.failed() == []
    # What was proven with it then is proven now: it is warm at once, and nothing is run.
    for name, proof in proofs.items():
        assert f"run {proof} proved it" in str(warm(host, name)["why"])
        assert len(host.rows("runs", name)) == 2


@pytest.mark.runtime
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pinned", [True, False])
def test_what_was_evicted_of_models_is_made_again_once_and_what_is_pinned_stays(
    host: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path, *, pinned: bool
) -> None:
    real = runtime("rt2025.2")
    driven(host, real, tmp_path / "driver", "[policy]\ngrace = '0s'\nmax_bytes = 1\n")
    host.start()
    names = host.add_models(real, *["--pinned"] * pinned)
    host.ctl("prewarm", *names)
    before = {name: {row["ref"] for row in host.rows("ls", "--model", name)} for name in names}
    alone = before["loaded"] - before["net"]
    assert alone

    # By itself it takes what nobody needs, and nothing that it would only make again, however far over the budget.
    host.end()
    SyclStore(host.home / ".cache/xpucached/sycl").add(driver=OLD, age=9e6)
    host.start()
    host.until(lambda: any(row["topic"] == "evicted" for row in host.rows("events")))
    host.until(host.idle)
    assert {row["ref"] for row in host.rows("ls")} == before["net"] | before["loaded"]
    # By name goes what one of them alone needs, and by the budget all that both need.
    named = host.ctl("evict", str(min(map(str, alone))), check=65 if pinned else 0)
    if pinned:
        assert "a pinned model needs it" in named.stderr
    else:
        host.until(lambda: len(host.rows("runs", "loaded")) == 2)
        warm(host, "loaded")
    removed = host.ask("evict")["report"]["removed"]  # type: ignore[index]
    assert set(removed) == (set() if pinned else before["net"] | before["loaded"])
    wanted = {"net": 1, "loaded": 1} if pinned else {"net": 2, "loaded": 3}
    host.until(lambda: {name: len(host.rows("runs", name)) for name in names} == wanted)
    for name in names:
        assert warm(host, name)["entries"] == len(before[name])
    # Looks that follow find nothing to do.
    host.ctl("scan")
    host.until(host.idle)
    assert host.failed() == []
    for name in names:
        assert {row["ref"] for row in host.rows("ls", "--model", name)} == before[name]
        runs = host.rows("runs", name)
        assert [row["reason"] for row in runs[:-1]] == ["entries-lost"] * (wanted[name] - 1)


@pytest.mark.runtime
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["rt2024.2", "rt2025.1", "rt2025.3", "rt2026.2"])
def test_caches_of_every_runtime_are_shown_and_left_alone(
    host: Daemon, runtime: Callable[[str], Runtime], workload: Path, tmp_path: Path, name: str
) -> None:
    real = runtime(name)
    root = tmp_path / "cache"
    done = subprocess.run(
        [real.python, "-W", "ignore", workload, "small"],
        env=real.environment(root),
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    before = everything(root)
    host.configure(f"[stores]\npaths = ['{root}']\n")
    host.start()
    host.ctl("scan", "--full")
    rows = host.rows("ls")
    assert len(rows) == len(list(root.glob("[0-9]*/*/*/*/0.src")))
    for row in rows:
        assert row["driver"] == told["driver"]
        assert row["device"] == told["device"]
        assert (row["state"], row["defect"], row["options"], row["image"]) == ("ok", None, "", "spirv")
        assert row["kernels"]
    assert host.end() == 0
    assert everything(root) == before


def everything(root: Path) -> dict[str, tuple[int, int, int, int, bytes]]:
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        found[str(path)] = (
            status.st_mode,
            status.st_ino,
            status.st_mtime_ns,
            status.st_atime_ns if path.is_file() else 0,  # listing a directory, as this does, is a use of it
            path.read_bytes() if path.is_file() else b"",
        )
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return found


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_programs_do_not_feel_scans_and_evictions(
    host: Daemon, runtime: Callable[[str], Runtime], workload: Path, tmp_path: Path, sycl_store: SyclStore
) -> None:
    """Real programs start again and again, cold and warm, while everything around them is scanned and evicted."""
    real = runtime("rt2025.2")
    root = sycl_store.root
    with_store(host, sycl_store, "[policy]\ngrace = '0s'\nmax_unused = '1h'\n")
    host.start()
    results: list[tuple[int, str]] = []
    late: list[str] = []
    enough, broken = threading.Event(), threading.Event()

    def program(*, cold: bool) -> None:
        for number in itertools.count():
            # Some starts of each, and as many more as there are evictions to meet.
            if broken.is_set() or number > (2 if enough.is_set() else 40):
                return
            done = subprocess.run(
                [real.python, "-W", "ignore", workload, "small"],
                env=real.environment(root, trace=True),
                capture_output=True,
                text=True,
                check=False,
            )
            results.append((done.returncode, json.loads(done.stdout or "{}").get("checksum")))
            if number > 0 or not cold:
                late.extend(line for line in done.stderr.splitlines() if "has been cached" in line)

    def neighbours() -> None:
        """Entries that may go, whole and damaged, come all the time."""
        for number in itertools.count():
            if not any(thread.is_alive() for thread in threads[:3]):
                return
            slot = sycl_store.add(f"_ZTS{len(str(number)) + 1}k{number}", driver=OLD, age=7200)
            if number % 2:
                slot.cut(slot.bin, 20)
            for path in (slot.bin, slot.src, slot.access_time):
                os.utime(path, (time.time() - 7200, time.time() - 7200))
            time.sleep(0.01)

    threads = [threading.Thread(target=program, kwargs={"cold": True}) for _ in range(3)]
    threads.append(threading.Thread(target=neighbours))
    for thread in threads:
        thread.start()
    evicted = 0
    try:
        while any(thread.is_alive() for thread in threads[:3]):
            report = host.ask("evict")["report"]
            evicted += len(report["removed"])  # type: ignore[index]
            host.ctl("scan", "--full")
            if evicted > 10:
                enough.set()
    finally:
        broken.set()
        for thread in threads:
            thread.join()
    assert evicted > 10
    assert {status for status, _ in results} == {0}
    assert len({checksum for _, checksum in results}) == 1
    # The first start of each may compile beside the others; after that nothing is compiled again.
    assert late == []
    host.ctl("evict")
    assert list(root.rglob("*.lock")) == []
    truth = {str(path.relative_to(root).with_suffix("")) for path in root.glob("[0-9]*/*/*/*/*.bin")}
    host.ctl("scan", "--full")
    assert {row["key"] for row in host.rows("ls")} == truth


@pytest.mark.timeout(600)
def test_killed_at_any_moment_nothing_is_lost(host: Daemon, sycl_store: SyclStore) -> None:
    with_store(host, sycl_store, "[policy]\ngrace = '0s'\nmax_unused = '1d'\n")
    host.configure(host.config.read_text() + "evict = false\n")
    chance = random.Random(7)  # noqa: S311 - a test's own luck, the same each time
    keep = {sycl_store.add(f"_ZTS5keep{number}").leaf for number in range(5)}
    trash = sycl_store.root / entry_format.TRASH
    for round_ in range(6):
        for number in range(300):
            slot = sycl_store.add(f"_ZTS9go{round_:03d}{number:04d}", driver=OLD, age=9e5)
            for path in (slot.bin, slot.src):
                os.utime(path, (time.time() - 9e5, time.time() - 9e5))
        host.start()
        kept = len(list(trash.glob("*")))
        with Path(os.devnull).open("wb") as nowhere:
            client = forks.start(forks.CTL, ["--user", "evict"], host.environment, nowhere.fileno(), nowhere.fileno())
        while client.poll() is None and len(list(trash.glob("*"))) == kept:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.2))
        assert host.end(signal.SIGKILL) == -signal.SIGKILL
        client.wait(30)
        host.start()
        assert list(sycl_store.root.rglob("*.lock")) == []
        there = [path.relative_to(sycl_store.root) for path in sycl_store.root.rglob("*.bin")]
        truth = {str(path.with_suffix("")) for path in there if path.parts[0] != entry_format.TRASH}
        assert {row["key"] for row in host.rows("ls")} == truth
        assert all(row["state"] == "ok" for row in host.rows("ls"))
        assert all((leaf / "0.bin").exists() for leaf in keep)
        # However far it came: what is not in its place is in the trash, whole.
        assert len(there) == len(keep) + 300 * (round_ + 1)
        assert sum(bool(row["whole"]) for row in host.rows("trash", "list")) == len(there) - len(truth)
        assert host.end() == 0


def test_killed_while_a_model_runs(host: Daemon, tmp_path: Path, runtime: Callable[[str], Runtime]) -> None:
    driven(host, runtime("rt2025.2"), tmp_path / "driver", "[policy]\nattempts = 1\n")
    host.start()
    host.ctl("model", "add", "slow", "--", "/bin/sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    host.ctl("prewarm", "slow", "--no-wait")
    host.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    child = psutil.Process(int((tmp_path / "pid").read_text()))
    host.end(signal.SIGKILL)
    # Its supervisor hears of it, and ends it.
    host.until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    host.configure(host.config.read_text() + "prewarm = false\n")
    host.start()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert host.rows("runs", "slow")[0]["outcome"] == "lost"


@pytest.mark.runtime
def test_stopping_ends_the_running_model(host: Daemon, tmp_path: Path, runtime: Callable[[str], Runtime]) -> None:
    driven(host, runtime("rt2025.2"), tmp_path / "driver")
    host.start()
    host.ctl("model", "add", "slow", "--", "/bin/sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    host.ctl("prewarm", "slow", "--no-wait")
    host.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    pid = int((tmp_path / "pid").read_text())
    assert host.end() == 0
    assert not psutil.pid_exists(pid)
    host.configure(host.config.read_text() + "prewarm = false\n")
    host.start()
    assert host.rows("runs", "slow")[0]["outcome"] == "cancelled"


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("command", "outcome"),
    [("exit 3", "failed"), ("kill -SEGV $$", "failed"), ("sleep 60", "timed-out")],
)
def test_a_model_that_fails_is_shown_and_not_tried_for_ever(
    host: Daemon, tmp_path: Path, runtime: Callable[[str], Runtime], command: str, outcome: str
) -> None:
    driven(host, runtime("rt2025.2"), tmp_path / "driver", "[policy]\nattempts = 1\n")
    host.start()
    limit = "3s" if outcome == "timed-out" else "90s"
    host.ctl("model", "add", "bad", "--timeout", limit, "--", "/bin/sh", "-c", f"echo evidence; {command}")
    failed = host.ctl("prewarm", "bad", check=None)
    assert failed.returncode == 1
    assert "not warm: bad" in failed.stdout
    # The daemon may have tried it by itself just before; after a failure it does so no more.
    runs = host.rows("runs", "bad")
    assert {run["outcome"] for run in runs} == {outcome}
    assert "evidence" in str(runs[0]["output"])
    host.ctl("scan")
    time.sleep(0.5)
    assert len(host.rows("runs", "bad")) == len(runs)
    assert host.ask("model", "show", "bad")["warmth"] == "failed"
    assert host.ctl("status", "--check", check=None).returncode == 2
