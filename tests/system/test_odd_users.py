"""Users as they come: without a home, with one that cannot be read or is full, without a shell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import pytest

from tests.support import hosts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def machine(debian: Path) -> Iterator[hosts.Machine]:
    """Return a machine with odd users, all of whom are looked after, and alice, who is as most are."""
    with hosts.boot(debian, hosts.needs()) as one:
        one.install_project()
        one.install_units()
        one.run("useradd", "--create-home", "alice")
        one.run("useradd", "--no-create-home", "homeless")
        one.run("useradd", "--create-home", "locked")
        # As root's is on a server that makes nobody of root, or a home that is not mounted.
        one.run("chown", "root:root", "/home/locked")
        one.run("chmod", "0", "/home/locked")
        one.run("useradd", "--create-home", "crammed")
        fill(one, "/home/crammed", f"mode=755,uid={one.out('id', '-u', 'crammed')}")
        one.run("useradd", "--create-home", "--shell", "/usr/sbin/nologin", "shellless")
        one.write("/etc/xpucached/xpucached.toml", '[schedule]\nsettle = "0.2s"\n[workers]\ninclude = ["shellless"]\n')
        one.run("systemctl", "enable", "--now", "xpucached")
        yield one


def fill(machine: hosts.Machine, place: str, options: str) -> None:
    """Put a small file system there that has no room: who is over quota meets the same."""
    machine.run("mount", "-t", "tmpfs", "-o", f"size=64k,{options}", "none", place)
    machine.run("sh", "-c", f"head -c 1M /dev/zero >{place}/ballast", check=None)


def users(machine: hosts.Machine) -> Mapping[str, Mapping[str, object]]:
    said = json.loads(machine.out("xpucachectl", "--json", "status"))["data"]["users"]
    return {str(one["user"]): one for one in cast("list[dict[str, object]]", said)}


def looked_at(machine: hosts.Machine, *names: str) -> bool:
    known = users(machine)
    return all(known[name]["state"] in {"awake", "asleep"} and known[name]["seen"] for name in names)


def test_each_costs_nobody_but_its_own_row(machine: hosts.Machine) -> None:
    machine.until(lambda: looked_at(machine, "alice", "homeless", "crammed", "shellless"), "four users")
    machine.until(lambda: users(machine)["locked"]["state"] == "failed", "who cannot be looked after")
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
