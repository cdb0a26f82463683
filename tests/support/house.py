"""A machine with the project, a SYCL runtime and people, whose first process is a real systemd."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tests.support import asking, hosts
from tests.support.runtimes import KERNELS
from tests.support.torches import APPLICATION
from xpucached import sockets, systemd
from xpucached.api.requests import MAX_PAGE
from xpucached.kinds.sycl.preflight import SYCL_CHECK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.runtimes import Runtime

RUNTIMES: Final = ("rt2025.2", "rt2025.3")
PLACE: Final = "/opt/runtimes"
DRIVER: Final = "/opt/driver"
LIBRARY: Final = f"{PLACE}/{RUNTIMES[0]}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

_PRESSURES: Final = ("CPU_PRESSURE", "MEMORY_PRESSURE", "IO_PRESSURE", "GPU_BUSY")

_MOVE_IN: Final = """
for name in alice bob carol dora eve; do useradd --create-home $name; done
useradd --system --create-home llm
usermod --append --groups xpucached-admin dora
ldconfig
systemctl daemon-reload
"""

APP: Final = f"""#!/bin/sh
exec /usr/bin/python3 -I -S -B /opt/app/{KERNELS.name} /opt/app {PLACE}/{RUNTIMES[0]}/lib/libsycl.so.8 exp sqrt abs
"""
"""A program of three kernels, which loads nothing but a SYCL runtime."""

SERVED: Final = """
[Unit]
Wants=xpucached-prewarm@served.service xpucached-prewarm@loaded.service
After=xpucached-prewarm@served.service xpucached-prewarm@loaded.service

[Service]
Type=oneshot
RemainAfterExit=yes
User=llm
ExecStart=/bin/sh -c 'find /home/llm/.cache/xpucached/sycl -name "*.bin" | wc -l >/home/llm/found'

[Install]
WantedBy=multi-user.target
"""

LOADED: Final = """
user = "llm"
loader = "python"
python = "/usr/bin/python3"
target = "products:attention"
directory = "/opt/application"
device = "xpu"
shapes = ["4"]
variables = {{ PYTHONPATH = "{library}" }}
"""

ANYWAY: Final = """
import sys
from xpucached import sockets
sockets.Trusted.__contains__ = lambda self, uid: True
from xpucached.cli import program
sys.exit(program.main(sys.argv[1:]))
"""


@dataclass(slots=True)
class House:
    """A machine with the project, a SYCL runtime, a driver for the CPU, and people."""

    machine: hosts.Machine

    def furnish(self, excluded: Sequence[str] = ("eve",)) -> None:
        """Install all, and let people move in; the excluded ones are not looked after.

        Whoever else is there has a worker, which takes two seconds of a processor each time that the service starts.
        """
        self.machine.install_project()
        self.machine.install_units()
        self.use_driver(RUNTIMES[0])
        self.machine.write("/etc/OpenCL/vendors/intel-cpu.icd", f"{DRIVER}/libintelocl.so\n")
        self.settle(excluded)

    def settle(self, excluded: Sequence[str]) -> None:
        """Let people move in, with a program that compiles."""
        machine = self.machine
        # However busy the host is on which the tests run, theirs go on.
        calm = "".join(f"Environment=XPUCACHED_THROTTLE_{name}=unlimited\n" for name in _PRESSURES)
        machine.place(
            {
                **{f"/opt/app/{part.name}": part for part in (KERNELS, SYCL_CHECK)},
                "/usr/local/bin/app": APP,
                "/etc/ld.so.conf.d/runtime.conf": f"{PLACE}/{RUNTIMES[0]}/lib\n",
                "/etc/systemd/system/xpucached-worker@.service.d/calm.conf": f"[Service]\n{calm}",
            }
        )
        machine.run("sh", "-ec", _MOVE_IN)
        text = f'[workers]\nexclude = {json.dumps(excluded)}\n[schedule]\nsettle = "1s"\n'
        machine.write("/etc/xpucached/xpucached.toml", text)

    def declare(self) -> None:
        """Declare a service's models, a command and one that a loader brings to life, and the service."""
        machine = self.machine
        machine.write("/opt/application/products.py", (APPLICATION / "products.py").read_text())
        machine.write("/etc/xpucached/models.d/served.toml", 'user = "llm"\ncommand = ["/usr/local/bin/app"]\n')
        machine.write("/etc/xpucached/models.d/loaded.toml", LOADED.format(library=LIBRARY))
        machine.write("/etc/systemd/system/served.service", SERVED)

    def use_driver(self, runtime: str) -> None:
        """Let programs meet this runtime's driver."""
        self.machine.run("ln", "-sfn", f"{PLACE}/{runtime}/lib", DRIVER)

    def run_app(self, user: str, store: str) -> None:
        """Run a program that caches, as a user."""
        self.machine.run("env", "SYCL_CACHE_PERSISTENT=1", f"SYCL_CACHE_DIR={store}", "app", user=user)

    def ctl(self, *words: str, user: str = "", check: int | None = 0) -> str:
        """Call xpucachectl; give what it prints, its complaints too."""
        done = self.machine.run("xpucachectl", *words, user=user, check=check)
        return done.stdout + done.stderr

    def ask_anyway(self, socket: str, *words: str, user: str, check: int = 77) -> str:
        """Call a client that believes whoever answers at a socket, and so asks where ours does not."""
        python = "/opt/xpucached/bin/python"
        done = self.machine.run(python, "-c", ANYWAY, "--socket", socket, *words, user=user, check=check)
        return done.stdout + done.stderr

    def ask(self, path: str, target: str) -> object:
        """Ask at a socket there, as root: xpucachectl takes long to start, and who waits asks often."""
        return asking.ask(self.machine.inside(path), "GET", target)

    def users(self, user: str = "") -> dict[str, dict[str, object]]:
        """Give what the host's daemon tells root, or a user by xpucachectl, of each one; nothing without an answer."""
        try:
            host = self.ask(sockets.PUBLIC, "/v1/host")
            if user:
                host = json.loads(self.ctl("--system", "status", "--json", user=user))["data"]
        except asking.NO_ANSWER:
            return {}
        found = asking.rows(asking.values(host)["users"])
        return {str(one["user"]): one for one in found}

    def entries(self, user: str) -> list[dict[str, object]]:
        """Return all of a user's entries, for which his worker is woken; nothing while nobody answers."""
        found: list[dict[str, object]] = []
        cursor = ""
        try:
            uid = int(str(self.users()[user]["uid"]))
            asking.ask(self.machine.inside(sockets.PUBLIC), "POST", "/v1/wake", {"user": user})
            while True:
                page = asking.values(self.ask(sockets.worker_path(uid), f"/v1/entries?limit={MAX_PAGE}{cursor}"))
                found += asking.rows(page["entries"])
                if page["next"] is None:
                    return found
                cursor = f"&after={quote(str(page['next']))}"
        except (KeyError, *asking.NO_ANSWER):
            return []

    def until(self, user: str, **wanted: object) -> None:
        """Wait until the host's daemon says so of a user."""
        self.machine.until(
            lambda: wanted.items() <= self.users().get(user, {}).items(),
            lambda: f"{user} {wanted}, not {self.users().get(user)}",
        )

    def events(self, what: str, *words: str) -> list[dict[str, str]]:
        """Return the journal's messages with an id."""
        text = self.machine.journal(f"MESSAGE_ID={systemd.MESSAGES[what]}", "-o", "json", *words)
        return [json.loads(line) for line in text.splitlines()]


def binds(runtime: Callable[[str], Runtime]) -> dict[Path, str]:
    """Return what must be bound for `House.furnish`."""
    return {**hosts.needs(), **{runtime(name).root: f"{PLACE}/{name}" for name in RUNTIMES}}


def drivers(house: House, user: str) -> dict[str, int]:
    """Count a user's entries by their driver."""
    return Counter(str(one["driver"]) for one in house.entries(user))
