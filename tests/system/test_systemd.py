"""The host's service under a real systemd: users and their workers, a reboot, a driver that changes, deaths, rights."""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import hosts
from tests.support.builders import SyclStore
from tests.support.torches import APPLICATION
from xpucached import systemd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.runtimes import Runtime

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(240)]

RUNTIMES: Final = ("rt2025.2", "rt2025.3")
PLACE: Final = "/opt/runtimes"
DRIVER: Final = "/opt/driver"
LIBRARY: Final = f"{PLACE}/{RUNTIMES[0]}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

_PRESSURES: Final = ("CPU_PRESSURE", "MEMORY_PRESSURE", "IO_PRESSURE", "GPU_BUSY")

PROGRAM: Final = """
import os
import dpctl.tensor as t
x = t.ones(64, dtype="f4")
for name in ("exp", "sqrt", "abs"):
    getattr(t, name)(x)
os._exit(0)
"""

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

    def furnish(self) -> None:
        """Install all, and let people move in."""
        self.machine.install_project()
        self.machine.install_units()
        self.use_driver(RUNTIMES[0])
        self.machine.write("/etc/OpenCL/vendors/intel-cpu.icd", f"{DRIVER}/libintelocl.so\n")
        self.settle()

    def settle(self) -> None:
        """Let people move in, with a program that compiles."""
        machine = self.machine
        for name in ("alice", "bob", "carol", "dora", "eve"):
            machine.run("useradd", "--create-home", name)
        machine.run("useradd", "--system", "--create-home", "llm")
        machine.run("usermod", "--append", "--groups", "xpucached-admin", "dora")
        machine.write("/opt/app.py", PROGRAM)
        text = f"#!/bin/sh\nPYTHONPATH={LIBRARY} exec /usr/bin/python3 -W ignore /opt/app.py\n"
        machine.write("/usr/local/bin/app", text, 0o755)
        machine.write("/etc/ld.so.conf.d/runtime.conf", f"{PLACE}/{RUNTIMES[0]}/lib\n")
        machine.run("ldconfig")
        # However busy the host is on which the tests run, theirs go on.
        calm = "".join(f"Environment=XPUCACHED_THROTTLE_{name}=unlimited\n" for name in _PRESSURES)
        machine.write("/etc/systemd/system/xpucached-worker@.service.d/calm.conf", f"[Service]\n{calm}")
        machine.run("systemctl", "daemon-reload")
        machine.write("/etc/xpucached/xpucached.toml", '[workers]\nexclude = ["eve"]\n[schedule]\nsettle = "1s"\n')

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

    def users(self, user: str = "") -> dict[str, dict[str, object]]:
        """Give what the host's daemon says of each user."""
        done = self.machine.run("xpucachectl", "--system", "status", "--json", user=user, check=None)
        host = json.loads(done.stdout or "{}").get("data") or {"users": []}
        return {one["user"]: one for one in host["users"]}

    def until(self, user: str, **wanted: object) -> None:
        """Wait until the host's daemon says so of a user."""
        self.machine.until(
            lambda: wanted.items() <= self.users().get(user, {}).items(),
            f"{user} {wanted}, not {self.users().get(user)}",
        )

    def events(self, what: str, *words: str) -> list[dict[str, str]]:
        """Give the journal's messages with an id."""
        text = self.machine.journal(f"MESSAGE_ID={systemd.MESSAGES[what]}", "-o", "json", *words)
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def boot(debian: Path, runtime: Callable[[str], Runtime]) -> Callable[[], hosts.Machine]:
    """Give what makes machines."""
    binds = {runtime(name).root: f"{PLACE}/{name}" for name in RUNTIMES}
    return lambda: hosts.Machine(debian, {**hosts.needs(), **binds})


@pytest.fixture(scope="module")
def house(boot: Callable[[], hosts.Machine]) -> Iterator[House]:
    """Give a house in which the service runs, and alice has a model that is warm."""
    machine = boot()
    try:
        one = House(machine.start())
        one.furnish()
        machine.run("systemctl", "enable", "--now", "xpucached")
        # What comes from his own configuration: a worker that does not stay.
        machine.run("install", "-d", "-o", "carol", "-g", "carol", "/home/carol/.config/xpucached")
        machine.write("/home/carol/.config/xpucached/xpucached.toml", '[workers]\nidle = "1s"\n')
        one.ctl("model", "add", "hello", "--env", "TOKEN=secret", "--", "/usr/local/bin/app", user="alice")
        one.ctl("prewarm", "alice:hello")
        one.until("alice", warm=1, state="awake")
        one.until("bob", state="awake")
        yield one
    finally:
        machine.stop()


def test_from_enable_to_disable(boot: Callable[[], hosts.Machine]) -> None:
    """Enabled, rebooted, another driver, killed, disabled: the models are warm before they are served."""
    machine = boot()
    try:
        one = House(machine.start())
        one.furnish()
        one.run_app("alice", "/home/alice/.cache/libsycl_cache")
        one.run_app("bob", "/home/bob/.cache/xpucached/sycl")
        one.declare()
        machine.run("systemctl", "enable", "--now", "xpucached")

        # Each one's cache is indexed by his own worker, and the models are warmed as the user whom their files name.
        machine.until(lambda: min(int(str(one.users()[user]["entries"])) for user in ("alice", "bob")) >= 3)
        one.until("llm", warm=2, cold=0)
        entries = int(str(one.users()["llm"]["entries"]))
        assert "eve" not in one.users()
        assert machine.out("stat", "-c", "%U", "/home/llm/.cache/xpucached/sycl") == "llm"

        # After a reboot they are warm before they are served, even if their store was lost meanwhile.
        machine.run("systemctl", "enable", "served")
        machine.run("systemctl", "stop", "xpucached")
        machine.run("rm", "-r", "/home/llm/.cache/xpucached")
        machine.reboot()
        machine.until(lambda: machine.show("served.service", "ActiveState") == "active", "the service")
        assert machine.read("/home/llm/found").strip() == str(entries)
        for name in ("served", "loaded"):
            assert machine.show(f"xpucached-prewarm@{name}.service", "Result") == "success"
        one.until("llm", warm=2, cold=0)

        # The loader's cache is written anew at the end of an installation: nobody has to say anything.
        one.use_driver(RUNTIMES[1])
        machine.run("ldconfig")
        machine.until(lambda: one.events("driver-changed"), "the change")
        machine.until(lambda: len(drivers(one, "llm")) == 2, "the new generation")
        one.until("llm", warm=2, cold=0)
        machine.until(lambda: len(drivers(one, "alice")) == 2, "alice's new generation")
        # The old generation is kept: who has to go back finds it warm.
        assert min(drivers(one, "llm").values()) == entries
        assert len(drivers(one, "bob")) in {1, 2}

        # Who dies comes back, and knows what it knew.
        before = one.users()["llm"]["entries"]
        machine.kill("xpucached.service")
        machine.until(lambda: machine.show("xpucached.service", "NRestarts") == "1", "the daemon")
        machine.until(lambda: one.users().get("llm", {}).get("entries") == before, "what it knew")
        uid = str(one.users()["llm"]["uid"])
        one.ctl("--of", "llm", "status")
        machine.kill(f"xpucached-worker@{uid}.service")
        machine.until(lambda: machine.show(f"xpucached-worker@{uid}.service", "NRestarts") == "1", "the worker")
        known = one.ctl("--of", "llm", "model", "list")
        assert "served" in known
        assert "loaded" in known

        # Disabled and stopped, nothing of ours runs; the caches are their owners' and stay.
        machine.run("systemctl", "disable", "--now", "xpucached")
        machine.run("systemctl", "stop", "xpucached.socket", "xpucached-admin.socket")
        machine.until(
            lambda: machine.run("pgrep", "-f", "xpucached --(worker|system)", check=None).returncode == 1, "the end"
        )
        assert machine.out("ls", "/home/bob/.cache/xpucached/sycl")
        assert not machine.out("systemctl", "list-units", "--state=failed", "--no-legend", "xpucached*")
    finally:
        machine.stop()


def drivers(house: House, user: str) -> dict[str, int]:
    """Count a user's entries by their driver."""
    text = house.machine.run("xpucachectl", "--of", user, "ls", "--json", check=None).stdout
    found: dict[str, int] = {}
    for one in (json.loads(text or "{}").get("data") or {"entries": []})["entries"]:
        name = one["driver"]
        found[name] = found.get(name, 0) + 1
    return found


# -- rights ---------------------------------------------------------------------------------------------------------

ALICES: Final = "/run/xpucached-worker/1000/xpucached.sock"


def test_a_user_sees_only_himself(house: House) -> None:
    assert set(house.users("bob")) == {"bob"}
    assert {"alice", "bob", "carol", "dora"} <= set(house.users())
    assert "hello" not in house.ctl("model", "list", user="bob")
    assert "hello" in house.ctl("model", "list", user="alice")


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--json"),
        ("model", "list"),
        ("ls",),
        ("prewarm", "hello"),
        ("evict",),
        ("model", "remove", "hello"),
        ("model", "add", "mine", "--", "/bin/true"),
        ("jobs", "--cancel", "prewarm-1"),
        ("config", "show"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("way", ["through the host's daemon", "at the worker's socket"])
def test_a_user_is_refused_at_anothers(house: House, words: tuple[str, ...], way: str) -> None:
    if way == "at the worker's socket":
        # Nobody else can even connect, whoever a client believes.
        assert "you may not open" in house.ctl("--socket", ALICES, *words, user="bob", check=77)
        said = house.ask_anyway(ALICES, *words, user="bob")
    else:
        said = house.ctl("--of", "alice", *words, user="bob", check=77)

    assert "another user's" in said or "you may not open" in said or "administrators" in said


def test_a_user_can_neither_wake_warm_nor_stop_anothers(house: House) -> None:
    machine = house.machine
    before = machine.show("xpucached-worker@1000.service", "MainPID")

    # It is his own worker that is asked, whatever the name: what alice has, no answer tells.
    for name in ("hello", "alice:hello", "nothing"):
        assert f"no model {name}" in house.ctl("--system", "prewarm", name, user="bob", check=66)
    assert "administrators" in house.ctl("--system", "driver-changed", user="bob", check=77)
    for verb in ("stop", "restart", "kill"):
        words = ("systemctl", "--no-ask-password", verb, "xpucached-worker@1000.service")
        assert machine.run(*words, user="bob", check=None).returncode != 0
    assert machine.run("kill", before, user="bob", check=None).returncode != 0
    assert machine.run("ls", "/var/lib/xpucached-worker/1000", user="bob", check=None).returncode != 0
    assert machine.show("xpucached-worker@1000.service", "MainPID") == before


def test_a_user_can_put_nothing_into_run(house: House) -> None:
    """It is in memory, all of the host shares it, and without room there systemd does nothing more."""
    machine = house.machine
    assert machine.out("stat", "-c", "%U:%G %a", ALICES) == "alice:xpucached 660"
    found = machine.run("find", "/run", "-xdev", "-writable", "-type", "d", user="alice", check=None).stdout
    # Where the distribution lets everybody write is a small file system of its own.
    assert set(found.split()) <= {"/run/lock"}
    # Nor does she keep what her worker had: it goes with it, and comes with the next one.
    machine.run("systemctl", "stop", "xpucached-worker@1000.service")
    assert machine.run("stat", ALICES, check=None).returncode != 0
    assert '"verdict"' in house.ctl("status", "--json", user="alice")


def test_who_is_not_looked_after_is_told_so(house: House) -> None:
    said = house.ctl("status", user="eve", check=77)

    assert "does not look after you" in said
    assert "systemctl --user start xpucached" in said
    assert "no user nobody-knows" in house.ctl("--of", "nobody-knows", "status", check=66)


def test_root_does_everything_at_anybodys(house: House) -> None:
    house.ctl("--of", "bob", "model", "add", "of-root", "--", "/bin/true")

    assert "of-root" in house.ctl("--of", "bob", "model", "list")
    # It is bob's now: he sees it, and it would run as him.
    assert "of-root" in house.ctl("model", "list", user="bob")
    house.ctl("--of", "bob", "model", "remove", "of-root")
    assert "needs a user" in house.ctl("ls", check=64)


def test_an_administrator_looks_and_tends_but_decides_nothing(house: House) -> None:
    assert {"alice", "bob"} <= set(house.users("dora"))
    assert "hello" in house.ctl("--of", "alice", "model", "list", user="dora")
    assert "warm already" in house.ctl("--of", "alice", "prewarm", "hello", user="dora")
    assert "warm already" in house.ctl("--system", "prewarm", "alice:hello", user="dora")
    assert "USER:NAME" in house.ctl("--system", "prewarm", "hello", user="dora", check=66)
    house.ctl("--of", "alice", "scan", user="dora")
    house.ctl("--of", "alice", "evict", "--dry-run", user="dora")
    house.ctl("--of", "alice", "replay", "--dry-run", user="dora")
    assert "secret" not in house.ctl("--of", "alice", "model", "show", "hello", "--json", user="dora")
    for words in (
        ("model", "add", "x", "--", "/bin/true"),
        ("model", "remove", "hello"),
        ("scan", "/home/bob"),
        ("replay", "--into", "/tmp/x", "--driver-root", "/tmp"),
        ("evict", "0123456789ab"),
        ("verify", "--fix"),
        ("env",),
    ):
        house.ctl("--of", "alice", *words, user="dora", check=77)


def test_the_host_s_daemon_may_only_tend(house: House) -> None:
    assert '"verdict"' in house.ask_anyway(ALICES, "status", "--json", user="xpucached", check=0)
    for words in (
        ("model", "add", "x", "--", "/bin/true"),
        ("scan", "/home/bob"),
        ("config", "show"),
        ("trash", "empty"),
    ):
        house.ask_anyway(ALICES, *words, user="xpucached")


@pytest.mark.parametrize(
    "words",
    [
        ("start", "xpucached-worker@0.service"),
        ("start", "xpucached-worker@01000.service"),
        ("start", "xpucached-worker@alice.service"),
        ("restart", "xpucached-worker@1000.service"),
        ("kill", "xpucached-worker@1000.service"),
        ("start", "xpucached-refresh.service"),
        ("stop", "dbus.service"),
        ("start", "rescue.target"),
        ("daemon-reload",),
        ("enable", "xpucached-worker@1000.service"),
        ("reboot",),
    ],
    ids=" ".join,
)
def test_polkit_denies_the_daemon_everything_else(house: House, words: tuple[str, ...]) -> None:
    done = house.machine.run("systemctl", "--no-ask-password", *words, user="xpucached", check=None)

    assert done.returncode != 0
    assert "denied" in done.stderr.lower() or "authentication required" in done.stderr.lower(), done.stderr


def test_polkit_grants_the_daemon_workers_and_no_unit_of_its_own_making(house: House) -> None:
    house.machine.run("systemctl", "--no-ask-password", "start", "xpucached-worker@1000.service", user="xpucached")
    transient = ("systemd-run", "--no-ask-password", "--unit=xpucached-worker@4242.service", "id")

    assert house.machine.run(*transient, user="xpucached", check=None).returncode != 0


def test_the_processes_have_the_rights_that_the_manual_says(house: House) -> None:
    machine = house.machine
    for unit in ("xpucached.service", "xpucached-worker@1000.service"):
        status = machine.read(f"/proc/{machine.show(unit, 'MainPID')}/status")
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert {lines[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0000000000000000"}
        assert lines["NoNewPrivs"] == "1"
    pid = machine.show("xpucached.service", "MainPID")
    assert machine.out("nsenter", "-m", "-t", pid, "ls", "/home") == ""
    assert "dri" not in machine.out("nsenter", "-m", "-t", pid, "ls", "/dev")
    assert "user-1000.slice/" in machine.show("xpucached-worker@1000.service", "ControlGroup")


# -- life -----------------------------------------------------------------------------------------------------------


def test_a_worker_with_nothing_to_do_goes_and_comes_when_it_is_wanted(house: House) -> None:
    house.until("carol", state="asleep")

    assert "daemon" in house.ctl("status", user="carol")
    house.until("carol", state="asleep")


def test_a_worker_steps_aside_for_its_user_s_own_daemon(house: House) -> None:
    machine = house.machine
    machine.run("loginctl", "enable-linger", "dora")
    machine.run("systemctl", "--user", "start", "xpucached", user="dora", session=True)
    house.until("dora", state="aside")

    assert '"verdict"' in machine.out("xpucachectl", "status", "--json", user="dora", session=True)
    assert "runs a daemon of their own" in house.ctl("--of", "dora", "status", check=65)
    machine.run("systemctl", "--user", "stop", "xpucached.socket", "xpucached.service", user="dora", session=True)
    assert '"verdict"' in house.ctl("--of", "dora", "status", "--json")


def test_the_configuration_is_read_again(house: House) -> None:
    machine = house.machine
    text = machine.read("/etc/xpucached/xpucached.toml")
    machine.run("useradd", "frank")
    machine.run("systemctl", "reload", "xpucached")
    machine.until(lambda: house.users().get("frank", {}).get("state") == "awake", "frank")
    unit = f"xpucached-worker@{house.users()['frank']['uid']}.service"
    assert machine.show(unit, "ActiveState") == "active"
    machine.write("/etc/xpucached/xpucached.toml", text.replace('"eve"', '"eve", "frank"'))
    machine.run("systemctl", "reload", "xpucached")

    machine.until(lambda: "frank" not in house.users(), "frank to go")
    machine.until(lambda: machine.show(unit, "ActiveState") == "inactive", "his worker to go")


def test_who_gets_a_number_again_gets_no_models_with_it(house: House) -> None:
    machine = house.machine
    place = "/var/lib/xpucached-worker/4321"
    machine.run("useradd", "--create-home", "--uid", "4321", "former")
    machine.run("systemctl", "reload", "xpucached")
    house.until("former", state="awake")
    house.ctl("model", "add", "hers", "--", "/bin/false", user="former")
    machine.run("systemctl", "stop", "xpucached-worker@4321.service")
    machine.run("userdel", "--remove", "former")
    machine.run("systemctl", "reload", "xpucached")
    machine.until(lambda: "former" not in house.users(), "her to go")
    machine.run("useradd", "--create-home", "--uid", "4321", "latter")
    machine.run("systemctl", "reload", "xpucached")
    house.until("latter", state="awake")

    assert "no models" in house.ctl("model", "list", user="latter")
    told = house.ctl("status", user="latter")
    assert "of the account former" in told
    assert "(catalog-rebuilt)" in told
    assert machine.read(f"{place}/owner") == "latter\n"
    assert machine.out("sh", "-c", f"ls {place}/catalog.sqlite.another-account-*")
    machine.run("systemctl", "stop", "xpucached-worker@4321.service")
    machine.run("userdel", "--remove", "latter")
    machine.run("systemctl", "reload", "xpucached")
    machine.until(lambda: "latter" not in house.users(), "him to go")


def test_a_hook_never_fails(house: House) -> None:
    house.ctl("driver-changed", "--no-wait")
    house.ctl("driver-changed", "--no-wait", user="eve")
    house.ctl("--socket", "/run/nobody", "driver-changed", "--no-wait")

    assert "told" in house.ctl("driver-changed")


def test_the_journal_has_messages_that_others_can_wait_for(house: House) -> None:
    (warmed,) = [one for one in house.events("model-warmed") if one.get("XPUCACHED_MODEL") == "hello"][:1]

    assert (warmed["XPUCACHED_USER"], warmed["XPUCACHED_OUTCOME"]) == ("alice", "warmed")
    assert warmed["_SYSTEMD_UNIT"] == "xpucached-worker@1000.service"
    assert {one.get("XPUCACHED_USER") for one in house.events("started")} >= {None, "alice", "bob"}


def test_who_logs_in_is_told_of_cold_models(house: House) -> None:
    machine = house.machine
    house.ctl("model", "add", "cold-one", "--", "/bin/false", user="bob")
    house.ctl("prewarm", "bob:cold-one", check=None)
    house.until("bob", cold=1)

    machine.until(lambda: "not all kernel caches" in machine.read("/run/motd.d/60-xpucached"), "the line")
    house.ctl("model", "remove", "cold-one", user="bob")
    house.until("bob", cold=0)
    machine.until(lambda: machine.read("/run/motd.d/60-xpucached") == "", "no line")
    assert machine.out("stat", "-c", "%F", "/run/motd.d/60-xpucached").startswith("regular")
    machine.run("ln", "-sfn", "/etc/shadow", "/run/motd.d/60-xpucached", user="xpucached", check=1)


def test_systemd_accepts_the_units_where_they_are_installed(house: House) -> None:
    found = house.machine.out("sh", "-c", "ls /usr/lib/systemd/system/xpucached*").split()
    names = [name.replace("@.", "@1000.") for name in found]
    # An instance has no file of its own: verified under its name it is read from the template.
    instances = [name.rsplit("/", 1)[1] for name in names]
    done = house.machine.run("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", *instances, check=None)

    assert (done.returncode, done.stderr) == (0, "")


# -- death ----------------------------------------------------------------------------------------------------------

OLD: Final = "2024.18.7.0.11_160000"

DEATHS: Final = """
[Service]
Environment=XPUCACHED_POLICY_GRACE=0s
Environment=XPUCACHED_POLICY_MAX_UNUSED=1d
Environment=XPUCACHED_SCHEDULE_EVICT=false
Environment=XPUCACHED_SCHEDULE_REPLAY=false
Environment=XPUCACHED_POLICY_RETRY_AFTER=1s
"""

# A driver that only this worker meets.
OWN_DRIVER: Final = """
Environment=XPUCACHED_SCHEDULE_REPLAY=true
BindReadOnlyPaths=/opt/next:/etc/OpenCL/vendors
"""


_KILL: Final = """
pid() {{ systemctl show --value --property=MainPID {unit}; }}
state() {{ systemctl show --value --property=SubState {unit}; }}
before=$(pid)
worker=$(systemctl show --value --property=MainPID {worker})
{begin} >/dev/null 2>&1 &
for i in $(seq 3000); do
    if {moment}; then pid; exec systemctl kill --kill-who=main --signal=KILL {unit}; fi
    sleep 0.01
done
exit 99
"""


@dataclass(slots=True)
class Victim:
    """A user of a house in whose worker's life there is death."""

    house: House
    name: str
    store: str = ""
    uid: int = 0

    @property
    def unit(self) -> str:
        """His worker's."""
        return f"xpucached-worker@{self.uid}.service"

    def move_in(self, entries: int, folder: Path) -> None:
        """Come with a store: one that a program filled, and byte-exact entries, every third of which may go."""
        machine = self.house.machine
        machine.run("useradd", "--create-home", self.name)
        self.uid = int(machine.out("id", "-u", self.name))
        self.store = f"/home/{self.name}/.cache/libsycl_cache"
        self.house.run_app(self.name, self.store)
        made = SyclStore(folder / "libsycl_cache")
        for number in range(entries):
            if number % 3 == 0:
                made.add(f"_ZTS5a{number:05d}", driver=OLD, age=9e5)
            else:
                made.add(f"_ZTS5a{number:05d}")
        if entries:
            machine.put(made.root, self.store)
            # Unpacking them was no use of them.
            machine.run("sh", "-c", f"find {self.store} -type f -mtime +9 -exec touch --date='10 days ago' {{}} +")
            machine.run("chown", "-R", f"{self.name}:", self.store)
        machine.write(f"/etc/systemd/system/{self.unit}.d/deaths.conf", DEATHS)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "reload", "xpucached")
        self.house.until(self.name, state="awake", entries=len(self.on_disk()))

    def on_disk(self, where: str = "-not -path '*/.xpucached.trash/*'") -> set[str]:
        """Give the entries that are there."""
        words = f"find {self.store} -name '[0-9]*.bin' {where} -printf '%P\\n'"
        return {line.removesuffix(".bin") for line in self.house.machine.out("sh", "-c", words).split()}

    def in_catalog(self) -> dict[str, str]:
        """Give the entries that his worker knows, and the state of each."""
        text = self.house.machine.run("xpucachectl", "--of", self.name, "ls", "--json", check=None).stdout
        return {
            one["key"]: one["state"] for one in (json.loads(text or "{}").get("data") or {"entries": []})["entries"]
        }

    def die(self, who: str, moment: str, begin: str) -> None:
        """Kill a unit at the moment at which something holds, and see it come back by itself.

        Both are a shell's: ``begin`` leads to that moment; $worker is the worker's process.
        """
        machine = self.house.machine
        unit = self.unit if who == "worker" else "xpucached.service"
        others = {name: one["entries"] for name, one in self.house.users().items() if name != self.name}
        deaths = self._deaths(unit)
        killed = machine.out("sh", "-c", _KILL.format(unit=unit, worker=self.unit, begin=begin, moment=moment))
        machine.until(lambda: machine.show(unit, "MainPID") not in {killed, "0"}, f"{unit} to come back")
        machine.until(lambda: machine.show(unit, "ActiveState") == "active", f"{unit} to be ready")
        assert self._deaths(unit) == deaths + 1
        # Nobody else noticed, and the host's daemon knows of everybody what it knew.
        machine.until(
            lambda: others.items() <= {name: one["entries"] for name, one in self.house.users().items()}.items(),
            f"what was known of the others: {others}",
        )

    def _deaths(self, unit: str) -> int:
        said = self.house.machine.journal("_PID=1", f"UNIT={unit}")
        return said.count("Main process exited, code=killed, status=9/KILL")

    def is_whole(self) -> None:
        """See that the catalog is what the disk is, and that nothing of ours is left there."""
        machine = self.house.machine
        machine.until(lambda: self.in_catalog().keys() == self.on_disk(), "the catalog to equal the disk")
        assert set(self.in_catalog().values()) == {"ok"}
        words = f"find {self.store} -name '*.lock' -o -name .xpucached"
        machine.until(lambda: machine.out("sh", "-c", words) == "", "locks of ours to go")


@pytest.fixture
def victim(house: House, request: pytest.FixtureRequest) -> Iterator[Victim]:
    """Give a user who has not moved in yet, and who leaves the house as it was."""
    one = Victim(house, f"v{zlib.crc32(request.node.name.encode()):08x}")
    yield one
    house.machine.run("systemctl", "stop", one.unit)
    house.machine.run("userdel", "--remove", one.name)
    # The next one may get his number.
    house.machine.run("rm", "-r", f"/var/lib/xpucached-worker/{one.uid}")
    house.machine.run("systemctl", "reload", "xpucached")
    house.machine.until(lambda: one.name not in house.users(), f"{one.name} to be forgotten")


WHO: Final = pytest.mark.parametrize("who", ["worker", "daemon"])


@WHO
def test_killed_while_it_starts(victim: Victim, who: str, tmp_path: Path) -> None:
    """In the middle of its start, and when it has just said that it is ready and asks the driver."""
    victim.move_in(30, tmp_path)
    before = victim.on_disk()
    unit = victim.unit if who == "worker" else "xpucached.service"
    for moment in ("start", "running"):
        begin = f"systemctl restart {unit}"
        victim.die(who, f'[ "$(pid)" != "$before" ] && [ "$(state)" = {moment} ]', begin)
        victim.is_whole()
        assert victim.on_disk() == before


@WHO
def test_killed_while_it_scans(victim: Victim, who: str, tmp_path: Path) -> None:
    victim.move_in(3000, tmp_path)
    before = victim.on_disk()
    reads = f"ls -l /proc/$worker/fd 2>/dev/null | grep -q ' {victim.store}/'"
    victim.die(who, reads, f"xpucachectl --of {victim.name} scan --full")

    victim.is_whole()
    assert victim.on_disk() == before


@WHO
def test_killed_while_it_replays(victim: Victim, who: str, tmp_path: Path) -> None:
    machine = victim.house.machine
    victim.move_in(0, tmp_path)
    before = victim.on_disk()
    machine.write("/opt/next/intel-cpu.icd", f"{PLACE}/{RUNTIMES[1]}/lib/libintelocl.so\n")
    machine.write(f"/etc/systemd/system/{victim.unit}.d/deaths.conf", f"{DEATHS}{OWN_DRIVER}")
    machine.run("systemctl", "daemon-reload")
    victim.die(
        who, f"pgrep -u {victim.uid} -f xpucached.libexec.compiler >/dev/null", f"systemctl restart {victim.unit}"
    )

    # It goes on where it stopped, and nobody says so.
    machine.until(lambda: len(victim.on_disk()) == 2 * len(before), "the new generation")
    victim.is_whole()
    assert before < victim.on_disk()


@WHO
def test_killed_while_it_warms(victim: Victim, who: str, tmp_path: Path) -> None:
    machine = victim.house.machine
    victim.move_in(0, tmp_path)
    model = f"echo $$ >/home/{victim.name}/ran; app; sleep 2"
    machine.run("xpucachectl", "--of", victim.name, "model", "add", "m", "--", "/bin/sh", "-c", model)
    victim.die(who, f"[ -s /home/{victim.name}/ran ]", f"xpucachectl --of {victim.name} prewarm m")

    victim.house.until(victim.name, warm=1, cold=0)
    victim.is_whole()
    runs = json.loads(machine.out("xpucachectl", "--of", victim.name, "runs", "m", "--json"))["data"]
    outcomes = [one["outcome"] for one in runs]
    assert outcomes[0] == "warmed"
    assert ("lost" in outcomes) is (who == "worker")


@WHO
def test_killed_while_it_evicts(victim: Victim, who: str, tmp_path: Path) -> None:
    victim.move_in(900, tmp_path)
    before = victim.on_disk()
    trash = f"{victim.store}/.xpucached.trash"
    victim.die(who, f'[ "$(ls {trash} 2>/dev/null)" ]', f"xpucachectl --of {victim.name} evict")

    if who == "daemon":
        # The worker does not notice.
        victim.house.machine.until(lambda: len(victim.on_disk("-path '*/.xpucached.trash/*'")) == 300, "the end of it")
    victim.is_whole()
    # However far it came: what is not in its place is in the trash, and what was to stay stays.
    left = victim.on_disk()
    assert left <= before
    trashed = victim.on_disk("-path '*/.xpucached.trash/*'")
    assert len(left) + len(trashed) == len(before)
    assert len(left) >= len(before) - 300


# -- who watches ----------------------------------------------------------------------------------------------------


def test_workers_hear_from_who_watches(house: House) -> None:
    machine = house.machine
    machine.run("systemctl", "start", "xpucached-watch")

    def mode() -> str:
        house.ctl("--of", "alice", "scan")
        text = machine.run("xpucachectl", "--of", "alice", "status", "--json").stdout
        return str(json.loads(text)["data"]["watching"]["mode"])

    try:
        # The next look finds it, and who asks for a look need not wait for another one.
        assert mode().startswith("fanotify")
        assert machine.show("xpucached-watch.service", "ActiveState") == "active"
    finally:
        machine.run("systemctl", "stop", "xpucached-watch")
    machine.until(lambda: mode() == "inotify", "inotify again")
