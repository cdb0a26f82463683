"""A driver that is downloaded by apt is prepared for before it is installed, as an administrator would see it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support import driver_packages, hosts
from tests.support.house import House, binds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.runtimes import Runtime

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(300)]

OLD, NEW = "2025.20", "2026.20"


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

        machine.run("apt-get", "install", "--yes", driver_packages.NAME)
        machine.until(lambda: house.events("driver-changed"), "the change")
        house.ctl("driver-changed", "--wait")
        house.until("alice", warm=1, cold=0, ahead=[])
        runs = json.loads(house.ctl("--json", "runs", "hello", user="alice"))["data"]
        assert [one["created"] for one in runs[0]["passes"]] == [0] * len(runs[0]["passes"]), runs[0]
        after = house.entries("alice")
        assert Counter(one["origin"] for one in after) == Counter(one["origin"] for one in [*entries, *made])
