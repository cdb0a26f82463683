"""The unit that asks registries, fenced in as it is, on a machine with systemd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY
from tests.support import bundles, hosts
from xpucached.bundle import trust

if TYPE_CHECKING:
    from pathlib import Path

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
        machine.run("useradd", "--create-home", "alice")
        assert '"checked":true' in machine.out("xpucachectl", "bundle", "verify", found, "--json", user="alice")
        # Whoever says that the driver may have changed has the registry asked before.
        assert "xpucached-pull.service" in machine.show("xpucached-refresh.service", "Wants")
