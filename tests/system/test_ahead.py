"""A driver that is downloaded by apt is prepared for before it is installed, as an administrator would see it."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import driver_packages, hosts
from tests.support.house import House, binds

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.runtimes import Runtime

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(300)]

OLD, NEW = "2025.20", "2026.20"

EXAMPLES: Final = Path(__file__).parents[2] / "examples/driver-update"


def test_what_was_downloaded_is_ready_before_it_is_installed(
    debian: Path, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    first = driver_packages.driver(tmp_path, runtime("rt2025.2"), OLD)
    second = driver_packages.driver(tmp_path, runtime("drv2025.3"), NEW)
    driver_packages.index(
        tmp_path,
        {one: driver_packages.control(driver_packages.NAME, version) for one, version in ((first, OLD), (second, NEW))},
    )
    with hosts.boot(debian, {**binds(runtime), tmp_path: "/srv"}) as machine:
        house = House(machine)
        machine.install_project()
        machine.install_units()
        machine.run("dpkg", "-i", f"/srv/{first.name}")
        house.settle(("carol", "dora", "eve"))
        machine.run("systemctl", "enable", "--now", "xpucached")
        house.ctl("model", "add", "hello", "--", "/usr/local/bin/app", user="alice")
        house.ctl("prewarm", "alice:hello")
        house.until("alice", warm=1)
        entries = house.entries("alice")
        before = {str(one["driver"]) for one in entries}
        assert len(before) == 1

        machine.write("/etc/apt/sources.list", "deb [trusted=yes] copy:/srv ./\n")
        machine.run("apt-get", "update", "-q")
        machine.run("apt-get", "install", "--download-only", "--yes", driver_packages.NAME)
        machine.until(
            lambda: "'ready'" in str(house.users().get("alice", {}).get("ahead")),
            lambda: f"readiness, not {house.users()['alice'].get('ahead')}",
            60,
        )
        assert machine.out("dpkg-query", "-W", "-f", "${Version}", driver_packages.NAME) == OLD
        said = house.ctl("--system", "status")
        assert "ready for driver" in said
        assert ", not installed yet: alice" in said
        made = [one for one in house.entries("alice") if one["origin"] == "built-ahead"]
        assert len(made) == len(entries)
        # What was unpacked is gone, and bob, who has nothing to compile, unpacked nothing.
        assert machine.out("find", "/var/lib/xpucached-worker", "-name", "unpacked-*") == ""
        assert house.users()["bob"]["ahead"] == []

        # As an administrator's script does it: the packages, and then all are warm.
        for one in EXAMPLES.iterdir():
            machine.put(one, f"/root/{one.name}")
        said = machine.out("/root/driver-update.sh", driver_packages.NAME)
        assert machine.out("dpkg-query", "-W", "-f", "${Version}", driver_packages.NAME) == NEW
        assert "alice" in said
        assert house.events("driver-changed")
        house.until("alice", warm=1, cold=0, ahead=[])
        runs = json.loads(house.ctl("--json", "runs", "hello", user="alice"))["data"]
        assert [one["created"] for one in runs[0]["passes"]] == [0] * len(runs[0]["passes"]), runs[0]
        after = house.entries("alice")
        assert Counter(one["origin"] for one in after) == Counter(one["origin"] for one in [*entries, *made])
        see_other_ways(machine, house)


def see_other_ways(machine: hosts.Machine, house: House) -> None:
    """See that a unit and a play wait for the same, and that the play fails with a model."""
    machine.run("mv", "/root/caches-warm.service", "/etc/systemd/system/")
    machine.write("/etc/systemd/system/llm.service", "[Service]\nType=oneshot\nExecStart=true\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "caches-warm")
    machine.run("systemctl", "start", "llm")
    assert machine.show("caches-warm.service", "ExecMainStatus") == "0"
    assert float(machine.show("caches-warm.service", "ExecMainExitTimestampMonotonic")) <= float(
        machine.show("llm.service", "ExecMainStartTimestampMonotonic")
    )
    if importlib.util.find_spec("ansible") is None:
        pytest.skip("ansible-core is not installed: what a play does is not known")
    assert play(machine).returncode == 0
    # A model that cannot be warmed ends the play.
    house.ctl("model", "add", "bad", "--", "/bin/false", user="bob")
    failed = play(machine)
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert "Kernel caches are warm for it" in failed.stdout


def play(machine: hosts.Machine) -> subprocess.CompletedProcess[str]:
    """Run the play on the machine itself; its packages are there already, and apt's module needs a library of apt's."""
    ansible = ["/opt/xpucached/bin/python", "-m", "ansible", "playbook", "-c", "local", "-i", "localhost,"]
    given = ["-e", "ansible_python_interpreter=/usr/bin/python3", "-e", "caches_timeout=30s", "--skip-tags", "packages"]
    return machine.run("env", "LC_ALL=C.UTF-8", *ansible, *given, "/root/driver-update.yml", check=None)
