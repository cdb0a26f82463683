"""The machines that other tests boot do what these believe, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from tests import REPOSITORY
from tests.support import hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

BOOT_AND_WAIT: Final = """
import sys, time
from pathlib import Path
from tests.support import hosts
with hosts.boot(Path(sys.argv[1]), {}) as machine:
    print(machine._process.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def machine(debian: Path) -> Iterator[hosts.Machine]:
    """Return a running machine."""
    with hosts.boot(debian, hosts.needs()) as one:
        one.run("useradd", "--create-home", "alice")
        yield one


def test_exit_statuses_and_output_come_back(machine: hosts.Machine) -> None:
    done = machine.run("sh", "-c", "echo out; echo err >&2; cat; exit 7", check=7, given=b"given\n")

    assert (done.stdout, done.stderr) == ("out\ngiven\n", "err\n")
    with pytest.raises(hosts.MachineError, match="status 1, not 0"):
        machine.run("false")


def test_systemd_is_the_first_process_and_all_is_well(machine: hosts.Machine) -> None:
    assert machine.read("/proc/1/comm") == "systemd\n"
    assert not machine.out("systemctl", "--failed", "--no-legend")


def test_a_user_s_command_has_a_session_if_wanted(machine: hosts.Machine) -> None:
    words = ("sh", "-c", "id -un; echo ${XDG_RUNTIME_DIR:-none}")

    assert machine.out(*words, user="alice") == "alice\nnone"
    assert machine.out(*words, user="alice", session=True) == "alice\n/run/user/1000"


def test_files_come_in_as_root_s(machine: hosts.Machine, tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True, mode=0o700)
    (tmp_path / "folder" / "inner" / "file").write_text("text")
    machine.put(tmp_path / "folder", "/srv/new/other")
    machine.write("/srv/new/tool", "#!/bin/sh\necho it runs\n", 0o755)

    assert machine.out("stat", "-c", "%U %a", "/srv/new/other/inner") == "root 755"
    assert machine.out("cat", "/srv/new/other/inner/file", user="alice") == "text"
    assert machine.out("/srv/new/tool", user="alice") == "it runs"


def test_what_is_written_outlives_a_reboot_but_not_the_machine(debian: Path) -> None:
    with hosts.boot(debian, {}) as one:
        before = one.read("/proc/sys/kernel/random/boot_id")
        one.write("/var/lib/kept", "kept")
        one.reboot()

        assert one.read("/var/lib/kept") == "kept"
        assert one.read("/proc/sys/kernel/random/boot_id") != before
    assert not (debian / "var/lib/kept").exists()


def test_the_project_runs_there(machine: hosts.Machine) -> None:
    machine.install_project()

    assert machine.out("xpucachectl", "--version", user="alice").startswith("xpucachectl ")
    assert "in order" in machine.out("xpucached", "--system", "--check")


def test_a_killed_run_leaves_no_machine(debian: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", BOOT_AND_WAIT, debian],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        text=True,
    )
    assert run.stdout is not None
    with run, run.stdout:
        holder = psutil.Process(int(run.stdout.readline()))
        family = [holder, *holder.children(recursive=True)]
        os.kill(run.pid, signal.SIGKILL)
        psutil.wait_procs(family, timeout=20)

    # Whoever adopts the ended takes leave of them sooner or later.
    assert [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    end = time.monotonic() + 20
    while time.monotonic() < end and Path(f"/proc/{family[-1].pid}").exists():
        time.sleep(0.05)
    assert len(family) > 3
