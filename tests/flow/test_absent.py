"""While no daemon runs, and when it ends: a driver changes, and runs are cut short."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.flow.test_daemon import switch, warm
from tests.support.daemons import Daemon, daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.runtimes import Runtime


@pytest.fixture
def host(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that is not started yet."""
    with daemon(home, short_dir) as one:
        yield one


def led(host: Daemon, runtime: Runtime, driver: Path, extra: str = "") -> None:
    host.configure(
        f"""
        [driver]
        variables = {{ LD_LIBRARY_PATH = '{runtime.lib}', OCL_ICD_FILENAMES = '{driver}/libintelocl.so' }}
        [schedule]
        settle = '0.2s'
        {extra}
        """
    )


@pytest.mark.runtime
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replay", ["true", "false"])
def test_a_model_runs_once_when_the_driver_changed_meanwhile(
    host: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path, replay: str
) -> None:
    """By its files, and later by the configuration."""
    program, first = runtime("rt2025.2"), runtime("drv2025.3")
    link, own = tmp_path / "driver", tmp_path / "own"
    switch(link, first)
    switch(own, first)
    led(host, program, link, f"replay = {replay}")
    host.start()
    names = (*host.add_models(program), "trial")
    icd = f"OCL_ICD_FILENAMES={own}/libintelocl.so"
    host.ctl("model", "add", "trial", "--env", icd, "--", *program.program("first", "fifth"))
    host.ctl("prewarm", *names)
    for name in names:
        assert warm(host, name)
    for way, driver in (("files", runtime("drv2026.0")), ("configuration", runtime("drv2025.0"))):
        before = {name: len(host.rows("runs", name)) for name in names}
        assert host.end() == 0

        switch(own, driver)
        if way == "files":
            switch(link, driver)
        else:
            led(host, program, driver.lib, f"replay = {replay}")
        host.start()
        for name in names:
            host.until(lambda name=name, runs=before: len(host.rows("runs", name)) > runs[name])  # type: ignore[misc]
            warm(host, name)
        # Looks that follow find nothing to do.
        host.ctl("scan")
        host.until(host.idle)
        for name in names:
            runs = host.rows("runs", name)
            assert len(runs) == before[name] + 1
            assert runs[0]["reason"] == "driver-changed"


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_what_was_lost_while_no_daemon_ran_is_made_again_when_it_starts(
    host: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    program = runtime("rt2025.2")
    switch(tmp_path / "driver", program)
    led(host, program, tmp_path / "driver")
    host.start()
    names = host.add_models(program)
    host.ctl("prewarm", *names)
    before = {name: warm(host, name)["entries"] for name in names}
    assert host.end() == 0
    shutil.rmtree(host.home / ".cache" / "xpucached" / "sycl")

    host.start()
    for name in names:
        host.until(lambda name=name: len(host.rows("runs", name)) == 2)  # type: ignore[misc]
        assert warm(host, name)["entries"] == before[name]
    host.ctl("scan")
    host.until(host.idle)
    for name in names:
        newest, first = host.rows("runs", name)
        assert (first["reason"], newest["reason"]) == ("manual", "entries-lost")
    begun = [row["fields"] for row in host.rows("events") if row["topic"] == "run-started"]
    assert {row["model"]: row["occasion"] for row in begun} == dict.fromkeys(names, "boot")  # type: ignore[index]
    assert host.failed() == []


@pytest.mark.runtime
def test_what_the_end_of_the_host_cuts_short_is_no_failed_attempt(
    host: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    program = runtime("rt2025.2")
    switch(tmp_path / "driver", program)
    led(host, program, tmp_path / "driver", "[policy]\nattempts = 1\n")
    host.start()
    pids = tmp_path / "pids"
    script = f"echo $PPID $$ > {pids}.new; mv {pids}.new {pids}; exec sleep 600"
    host.ctl("model", "add", "slow", "--", "/bin/sh", "-c", script)
    host.ctl("prewarm", "slow", "--no-wait")
    host.until(pids.exists)
    supervisor, model = map(int, pids.read_text().split())
    # Systemd ends all groups at once, the one of the run a moment before the daemon's.
    for pid in (supervisor, model):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    host.until(lambda: not psutil.pid_exists(model))
    assert host.end() == 0

    led(host, program, tmp_path / "driver", "prewarm = false\n[policy]\nattempts = 1\n")
    host.start()
    assert [row["outcome"] for row in host.rows("runs", "slow")] == ["cancelled"]
    assert host.ask("model", "show", "slow")["warmth"] == "cold"


@pytest.mark.runtime
def test_models_of_a_home_that_is_away_wait_for_it_and_nothing_is_made_where_it_is_to_be_mounted(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    first, state = runtime("rt2025.2"), tmp_path / "daemon" / ".local" / "state" / "xpucached"
    settings = {"PATHS_STATE": str(state), "SCHEDULE_SETTLE": "0.2s", "POLICY_RETRY_AFTER": "0s"}
    variables = {"LD_LIBRARY_PATH": str(first.lib), "OCL_ICD_FILENAMES": f"{first.lib}/libintelocl.so"}
    variables |= {f"XPUCACHED_{name}": value for name, value in settings.items()}
    models, work = home / ".config" / "xpucached" / "models.d", home / "work"
    models.mkdir(parents=True)
    work.mkdir()
    words = ", ".join(f"'{word}'" for word in first.program("first", "fifth"))
    (models / "net.toml").write_text(f"command = [{words}]\ndirectory = '{work}'\n")
    with daemon(tmp_path / "daemon", short_dir, **variables) as host:
        host.start()
        warm(host, "net")
        runs = len(host.rows("runs", "net"))
        assert host.end() == 0

        home.rename(tmp_path / "away")
        home.mkdir()
        host.start()
        host.ctl("prewarm", "--stale", check=None)
        host.until(host.idle)
        found = host.ask("model", "show", "net")
        assert (found["warmth"], "its file is away" in str(found["why"])) == ("waiting", True)
        assert "models-away" in host.ctl("status").stdout
        assert host.ctl("status", "--check", check=None).returncode == 1
        assert (len(host.rows("runs", "net")), list(home.iterdir())) == (runs, [])

        home.rmdir()
        (tmp_path / "away").rename(home)
        warm(host, "net")
        assert "models-away" not in host.ctl("status").stdout


@pytest.mark.runtime
def test_a_program_that_uses_no_cache_runs_once_when_the_driver_changed_meanwhile(
    host: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    link = tmp_path / "driver"
    switch(link, runtime("drv2025.3"))
    led(host, runtime("rt2025.2"), link, "replay = false\n[policy]\nretry_after = '0s'")
    host.start()
    host.ctl("model", "add", "app", "--", "/bin/true")
    host.ctl("prewarm", "app", check=None)
    host.until(host.idle)
    before = len(host.rows("runs", "app"))
    assert host.end() == 0

    switch(link, runtime("drv2026.0"))
    host.start()
    host.until(lambda: len(host.rows("runs", "app")) > before)
    # Whatever is to be tried again comes before this one, by its name.
    models = host.config.with_name("models.d")
    models.mkdir(exist_ok=True)
    (models / "later.toml").write_text('command = ["/bin/true"]\n')
    host.until(lambda: any(row["model"] == "later" and row["finished"] for row in host.rows("runs")))
    assert len(host.rows("runs", "app")) == before + 1
