"""Users as they come: without a home, with one that cannot be read or is full, without a shell; and a full /var."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

import pytest

from tests.support import hosts
from tests.support.house import House

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)

STATE: Final = ("/var/lib/xpucached", "/var/lib/xpucached-worker")


@pytest.fixture(scope="module")
def machine(debian: Path) -> Iterator[hosts.Machine]:
    """Return a machine with odd users, all of whom are looked after, and alice, who is as most are."""
    with hosts.serving(debian, move_in, '[workers]\ninclude = ["shellless"]\n') as one:
        yield one


def move_in(machine: hosts.Machine) -> None:
    machine.run("useradd", "--create-home", "alice")
    machine.run("useradd", "--no-create-home", "homeless")
    machine.run("useradd", "--create-home", "locked")
    # As root's is on a server that makes nobody of root, or a home that is not mounted.
    machine.run("chown", "root:root", "/home/locked")
    machine.run("chmod", "0", "/home/locked")
    machine.run("useradd", "--create-home", "crammed")
    fill(machine, "/home/crammed", f"mode=755,uid={machine.out('id', '-u', 'crammed')}")
    machine.run("useradd", "--create-home", "--shell", "/usr/sbin/nologin", "shellless")


def fill(machine: hosts.Machine, place: str, options: str) -> None:
    """Put a small file system there that has no room: who is over quota meets the same."""
    machine.run("mount", "-t", "tmpfs", "-o", f"size=64k,{options}", "none", place)
    machine.run("sh", "-c", f"head -c 1M /dev/zero >{place}/ballast", check=None)


def users(machine: hosts.Machine) -> Mapping[str, Mapping[str, object]]:
    said = json.loads(machine.out("xpucachectl", "--json", "status"))["data"]["users"]
    return {str(one["user"]): one for one in cast("list[dict[str, object]]", said)}


def looked_at(machine: hosts.Machine, *names: str) -> bool:
    known = House(machine).users()
    return all(name in known and known[name]["state"] in {"awake", "asleep"} and known[name]["seen"] for name in names)


def test_each_costs_nobody_but_its_own_row(machine: hosts.Machine) -> None:
    machine.until(lambda: looked_at(machine, "alice", "homeless", "crammed", "shellless"), "four users")
    failed = {"state": "failed"}.items()
    machine.until(lambda: failed <= House(machine).users().get("locked", {}).items(), "who cannot be looked after")
    said = machine.out("xpucachectl", "status")
    assert "the worker of locked fails since" in said
    assert "nobody else is concerned" in said
    checked = machine.run("xpucachectl", "status", "--check", check=None)
    assert (checked.returncode, "locked" in checked.stdout) != (0, False)
    refused = machine.run("xpucachectl", "--of", "locked", "model", "list", check=69)
    assert "the worker of locked does not answer: its configuration" in refused.stderr
    for name in ("homeless", "crammed", "shellless"):
        machine.run("xpucachectl", "--of", name, "model", "add", "m", "--", "/bin/true")
        assert json.loads(machine.out("xpucachectl", "--json", "--of", name, "model", "list"))["data"]


# Each of these puts back what it took, and waits for nothing that another one made: they come in any order, or alone.


def test_where_nothing_in_etc_can_be_written_it_starts_and_is_read_again(machine: hosts.Machine) -> None:
    machine.run("mount", "--bind", "/etc", "/etc")
    machine.run("mount", "-o", "remount,bind,ro", "/etc")
    try:
        machine.run("touch", "/etc/xpucached/new", check=1)
        # Workers are stopped with it: one that is started now is bound by the same.
        machine.run("systemctl", "stop", "xpucached")
        machine.run("systemctl", "start", "xpucached")
        machine.run("xpucachectl", "model", "add", "new", "--", "/bin/true", user="alice")
        assert "new" in machine.out("xpucachectl", "--of", "alice", "model", "list")
        before = machine.show("xpucached.service", "MainPID")
        machine.run("systemctl", "reload", "xpucached")
        machine.until(lambda: looked_at(machine, "alice"), "alice")
        assert machine.show("xpucached.service", "MainPID") == before
        # The files of this user may be, whose folder is locked.
        refused = [line for line in machine.out("xpucachectl", "status").splitlines() if "refused" in line]
        assert all("locked" in line for line in refused), refused
    finally:
        # Services that began meanwhile may hold it.
        machine.run("umount", "--lazy", "/etc")


def test_on_a_full_var_it_answers_and_goes_on_when_there_is_room(machine: hosts.Machine) -> None:
    machine.run("systemctl", "stop", "xpucached")
    for place in STATE:
        fill(machine, place, "mode=755")
    try:
        machine.run("systemctl", "start", "xpucached")
        assert "alice" in users(machine)
        machine.until(lambda: "cannot be written to /var/lib/xpucached" in machine.out("xpucachectl", "status"), "it")
        assert machine.run("xpucachectl", "status", "--check", check=None).returncode != 0
        for place in STATE:
            machine.run("mount", "-o", "remount,size=64m", place)
            machine.run("rm", f"{place}/ballast")
        machine.run("systemctl", "restart", "xpucached")
        machine.until(lambda: looked_at(machine, "alice", "homeless"), "them")
        assert "cannot be written" not in machine.out("xpucachectl", "status")
    finally:
        machine.run("systemctl", "stop", "xpucached")
        for place in STATE:
            machine.run("umount", "--lazy", place)
        machine.run("systemctl", "start", "xpucached")
