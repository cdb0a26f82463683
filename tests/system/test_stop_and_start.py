"""Stopped, started again, disabled: what ends with the host's service, what comes back, and what who asks meets."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import hosts
from xpucached import sockets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)

WORKER: Final = "xpucached-worker@1000.service"
SOCKET: Final = "xpucached-worker@1000.socket"
DROP_IN: Final = f"/run/systemd/system/{WORKER}.d/test.conf"

PARTS: Final = ("xpucached.socket", "xpucached-admin.socket", "xpucached-driver.path", "xpucached-refresh.timer")


@pytest.fixture(scope="module")
def machine(debian: Path) -> Iterator[hosts.Machine]:
    """Return a machine on which the service is enabled, and alice has nothing yet."""
    with hosts.serving(debian, lambda one: one.run("useradd", "--create-home", "alice")) as one:
        one.until(lambda: "awake" in one.out("xpucachectl", "status"), "alice's worker")
        yield one


def states(machine: hosts.Machine) -> set[str]:
    return {machine.show(part, "ActiveState") for part in PARTS}


def running(machine: hosts.Machine) -> bool:
    return machine.run("pgrep", "-f", "xpucached --(worker|system)", check=None).returncode == 0


def test_who_asks_while_it_starts_again_waits_and_is_not_refused(machine: hosts.Machine) -> None:
    since = machine.show("xpucached.socket", "ActiveEnterTimestampMonotonic")
    machine.run("systemctl", "restart", "--no-block", "xpucached")
    for words in (("--system", "status"), ("status",), ("model", "list")):
        assert machine.out("xpucachectl", *words, user="alice")
    machine.run("systemctl", "restart", "xpucached")
    assert machine.out("xpucachectl", "status", user="alice")
    # The socket is the one that was: nobody meets a door that is not there.
    assert machine.show("xpucached.socket", "ActiveEnterTimestampMonotonic") == since


def instead(machine: hosts.Machine, text: str) -> None:
    """Have alice's worker be another one."""
    machine.write(DROP_IN, text)
    machine.run("systemctl", "daemon-reload")


def as_it_was(machine: hosts.Machine) -> None:
    """Have it be itself again."""
    machine.run("rm", "-f", DROP_IN)
    machine.run("systemctl", "daemon-reload")


def stays(machine: hosts.Machine) -> None:
    """Ask alice's worker by way of the host's daemon, which hears of it so: who is asked does not leave so soon."""
    machine.out("xpucachectl", "--of", "alice", "status")
    machine.until(lambda: "awake" in machine.out("xpucachectl", "status"), "alice's worker")


def test_a_worker_that_died_is_not_asleep(machine: hosts.Machine) -> None:
    # Longer than the host's daemon takes to ask one that has nothing to do.
    instead(machine, "[Service]\nRestartSec=20s\n")
    stays(machine)
    machine.run("systemctl", "kill", "--signal=KILL", "xpucached-worker@1000.service")
    seen: list[str] = []

    def starts() -> bool:
        seen.append(machine.out("xpucachectl", "status"))
        return "starting" in seen[-1]

    machine.until(starts, "its start")
    assert not any("asleep" in one for one in seen)
    as_it_was(machine)
    stays(machine)


def leave(machine: hosts.Machine) -> None:
    """Let alice's worker leave, as one does whom nobody needs, and take long to end."""
    instead(machine, "[Service]\nExecStopPost=/bin/sleep 3\n")
    assert machine.out("xpucachectl", "status", user="alice")
    machine.kill(WORKER, signal.SIGTERM)
    # It has ended by itself: what comes after that is not forgotten when the units are read again.
    machine.until(lambda: machine.show(WORKER, "SubState") == "stop-post", "its leave")
    machine.until(lambda: machine.show(SOCKET, "ActiveState") == "inactive", "its socket's end")
    as_it_was(machine)


def test_who_asks_while_his_worker_leaves_is_answered(machine: hosts.Machine) -> None:
    leave(machine)
    asked = machine.run("xpucachectl", "model", "list", user="alice", check=None)
    assert asked.returncode == 0, asked.stderr


def test_a_worker_that_came_without_its_socket_comes_again_with_it(machine: hosts.Machine) -> None:
    leave(machine)
    # As systemd does by itself for whoever asks it too early: the socket is refused, and the service is not.
    machine.run("systemctl", "start", "--no-block", WORKER)
    machine.until(lambda: re.search("(?s)gave no socket.*answers on", machine.journal("-u", WORKER)), "one with it")


def test_a_worker_whose_socket_alone_is_stopped_is_started_again_for_who_asks(machine: hosts.Machine) -> None:
    stays(machine)
    machine.run("systemctl", "stop", SOCKET)
    machine.run("xpucachectl", "model", "list", user="alice")
    assert machine.show(SOCKET, "ActiveState") == "active"
    # Nobody asks, and it is noticed all the same.
    stays(machine)
    machine.run("systemctl", "stop", SOCKET)
    machine.until(lambda: machine.inside(sockets.worker_path(1000)).exists(), "its socket")
    machine.until(lambda: re.search("alice +(awake|asleep)", machine.out("xpucachectl", "status")), "its end")


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("condition", "ExecCondition=/bin/sleep 600\n"),
        ("start-pre", "ExecStartPre=/bin/sleep 600\n"),
        ("start", "ExecStart=\nExecStart=/bin/sleep 600\n"),
    ],
)
def test_a_worker_that_is_stopped_while_it_starts_is_started_for_who_asks(
    machine: hosts.Machine, state: str, line: str
) -> None:
    machine.run("systemctl", "stop", WORKER)
    machine.until(lambda: "asleep" in machine.out("xpucachectl", "status"), "its end")
    instead(machine, f"[Service]\n{line}")
    machine.run("sh", "-c", "runuser -u alice -- xpucachectl model list >/run/told 2>&1 &")
    machine.until(lambda: machine.show(WORKER, "SubState") == state, "its start")
    # On a busy host it takes the host's daemon a while to see that.
    time.sleep(5)
    machine.run("systemctl", "stop", WORKER)
    machine.until(lambda: machine.read("/run/told"), "what alice is told")
    assert "was stopped while it started" in machine.read("/run/told")
    assert "asleep" in machine.out("xpucachectl", "status")
    as_it_was(machine)
    machine.run("xpucachectl", "model", "list", user="alice")


@pytest.mark.parametrize(
    "drop_in",
    [
        "[Service]\nExecStart=\nExecStart=/bin/sleep 0.5\nRestart=no\n",
        "[Unit]\nConditionPathExists=/nowhere\n",
        "[Unit]\nAssertPathExists=/nowhere\n",
        "masked",
    ],
    ids=["ends by itself", "condition", "assert", "masked"],
)
def test_a_worker_that_does_not_start_has_failed(machine: hosts.Machine, drop_in: str) -> None:
    machine.run("systemctl", "stop", "xpucached")
    if drop_in == "masked":
        machine.run("systemctl", "mask", "--runtime", WORKER)
    else:
        instead(machine, drop_in)
    machine.run("systemctl", "start", "xpucached")
    try:
        refused = machine.run("xpucachectl", "model", "list", user="alice", check=69)
        assert "the worker of alice does not answer" in refused.stderr
        assert "the worker of alice fails" in machine.out("xpucachectl", "status")
    finally:
        machine.run("systemctl", "unmask", "--runtime", WORKER)
        as_it_was(machine)
        machine.run("systemctl", "reset-failed", check=None)
        machine.run("systemctl", "restart", "xpucached")
    machine.until(lambda: not machine.run("xpucachectl", "model", "list", user="alice", check=None).returncode, "it")


def test_without_polkit_the_first_line_says_that_no_worker_can_be_started(machine: hosts.Machine) -> None:
    machine.run("systemctl", "stop", "xpucached-worker@1000.service")
    machine.run("systemctl", "mask", "--now", "polkit")
    try:
        machine.run("systemctl", "restart", "xpucached")
        machine.run("xpucachectl", "--of", "alice", "status", check=69)
        first = machine.out("xpucachectl", "status").splitlines()[0]
        assert "no worker can be started" in first
        assert "polkit is masked" in first
        assert machine.run("xpucachectl", "status", "--check", check=2).stdout.startswith(
            "XPUCACHED CRITICAL - no worker"
        )
    finally:
        machine.run("systemctl", "unmask", "polkit")
    machine.run("systemctl", "restart", "xpucached")
    machine.until(lambda: "no worker" not in machine.out("xpucachectl", "status"), "polkit")


def test_who_disables_it_ends_all_of_it_and_nothing_comes_back(machine: hosts.Machine) -> None:
    assert states(machine) == {"active"}
    machine.run("systemctl", "disable", "--now", "xpucached")
    machine.until(lambda: not running(machine), "the end")
    assert states(machine) == {"inactive"}
    assert {machine.show(part, "UnitFileState") for part in (*PARTS, "xpucached.service")} == {"disabled"}
    # Neither who asks, nor a package's hook, nor the loader's cache starts it again.
    machine.run("xpucachectl", "status", check=69)
    machine.run("xpucachectl", "status", user="alice", check=69)
    machine.run("xpucachectl", "--system", "driver-changed", "--no-wait")
    machine.run("ldconfig")
    machine.run("systemctl", "start", "xpucached-refresh.service")
    assert not running(machine)
    assert states(machine) == {"inactive"}

    # What is started again brings its parts along.
    machine.run("systemctl", "start", "xpucached")
    assert states(machine) == {"active"}
    assert machine.out("xpucachectl", "status")
    machine.run("systemctl", "stop", "xpucached")
    # Its sockets end after it, and who stopped it does not wait for them.
    machine.until(lambda: states(machine) == {"inactive"}, "all of it to end")
    machine.run("systemctl", "enable", "--now", "xpucached")
    machine.reboot()
    machine.until(lambda: states(machine) == {"active"}, "all of it")
    assert machine.out("xpucachectl", "status")
