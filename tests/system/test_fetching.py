"""The unit that asks registries, fenced in as it is, on a machine with systemd."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY
from tests.support import bundles, hosts
from xpucached.bundle import trust

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.hosts import Machine

pytestmark = pytest.mark.timeout(240)

REGISTRY: Final = """
import signal
from tests.support import registries
with registries.small() as one:
    one.account = False
    print(one.host, flush=True)
    signal.pause()
"""


def test_what_a_registry_has_is_there_before_the_daemon_starts(debian: Path, tmp_path: Path) -> None:
    trust.keygen(tmp_path / "key")
    bundles.signed(tmp_path / "bundle", str(tmp_path / "key.key"))
    with hosts.boot(debian, hosts.needs()) as machine:
        machine.install_project()
        machine.install_units()
        machine.put(REPOSITORY / "tests", "/opt/more/tests")
        machine.put(tmp_path / "bundle", "/root/bundle")
        machine.write("/opt/more/registry.py", REGISTRY)
        run = ("--unit=registry", "--property=StandardOutput=file:/run/registry", "--setenv=PYTHONPATH=/opt/more")
        machine.run("systemd-run", *run, "/opt/xpucached/bin/python", "/opt/more/registry.py")
        machine.until(lambda: machine.inside("/run/registry").exists() and machine.read("/run/registry"), "a registry")
        place = f"{machine.read('/run/registry').strip()}/caches/app:v1"
        machine.run("xpucachectl", "bundle", "push", "/root/bundle", place)
        machine.write("/etc/xpucached/xpucached.toml", f'[bundles]\npull = ["{place}"]\n')
        machine.run("systemctl", "enable", "xpucached-pull.service")
        machine.put(tmp_path / "key.pub", "/etc/xpucached/trust.d/release.pub")
        # What the daemon's account owned there, as in earlier states, is the unit's own now.
        folder = "/var/cache/xpucached-bundles"
        machine.run("install", "-d", "-o", "xpucached", folder, f"{folder}/{'0' * 12}-{'0' * 12}")

        machine.run("useradd", "--create-home", "alice")
        # In this order: what has ended when it is asked for again runs again, and the service waits for that, too.
        machine.run("systemctl", "start", "xpucached-pull.service", "xpucached.service")
        assert machine.show("xpucached-pull.service", "Result") == "success", machine.journal("-u", "xpucached-pull")
        began, ended = (
            int(machine.show(unit, when))
            for unit, when in (
                ("xpucached.service", "ExecMainStartTimestampMonotonic"),
                ("xpucached-pull.service", "ExecMainExitTimestampMonotonic"),
            )
        )
        assert ended <= began
        (found,) = machine.out("sh", "-c", f"ls -d {folder}/*").split()
        # It is nobody whom workers trust, and owns what it fetched alone.
        owners = machine.out("find", "/var", "/etc", "/run", "-user", "xpucached-pull", "-not", "-path", f"{found}/*")
        assert set(owners.split()) == {folder, found}
        assert '"checked":true' in machine.out("xpucachectl", "bundle", "verify", found, "--json", user="alice")
        _pushes(machine, place)
        # Whoever says that the driver may have changed has the registry asked before.
        assert "xpucached-pull.service" in machine.show("xpucached-refresh.service", "Wants")


def _pushes(machine: Machine, place: str) -> None:
    """See a user of the host's service push: what was compiled for him the worker's catalog knows."""
    config = "/home/alice/.config/xpucached"
    machine.run("mkdir", "-p", config, user="alice")
    machine.run("xpucachectl", "bundle", "keygen", f"{config}/push", user="alice")
    machine.write(f"{config}/xpucached.toml", f'[bundles]\npush = "{place.rpartition(":")[0]}-{{user}}:{{host}}"\n')
    machine.run("xpucachectl", "scan", user="alice")
    told = json.loads(machine.out("xpucachectl", "bundle", "send", "--json", user="alice"))["data"]
    host = machine.out("uname", "-n").casefold()
    assert (told["reference"], told["digest"]) == (f"{place.rpartition(':')[0]}-alice:{host}", "")
    assert json.loads(machine.out("xpucachectl", "status", "--json", user="alice"))["data"]["pushed"]["error"] == ""
