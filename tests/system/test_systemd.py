"""The host's service under a real systemd: users and their workers, a reboot, a driver that changes, rights."""

from __future__ import annotations

import functools
import json
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY
from tests.support import hosts
from tests.support.asking import values
from tests.support.house import PLACE, RUNTIMES, House, binds, drivers
from xpucached.daemon import worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.runtimes import Runtime

PORT: Final = "127.0.0.1:9845"
DROP_IN: Final = "/etc/systemd/system/xpucached.service.d"
EXAMPLES: Final = REPOSITORY / "systemd/examples"
FIGURES: Final = f"import urllib.request as r; print(r.urlopen('http://{PORT}/v1/metrics', timeout=9).read().decode())"
LOOK: Final = """
import json, subprocess, urllib.error, urllib.request
web = subprocess.Popen(["xpucachectl", "web"], stdout=subprocess.PIPE, text=True)
place, _, token = web.stdout.readline().strip().partition("/#")
def get(path, token):
    asked = urllib.request.Request(f"{place}/v1/{path}", headers={"Authorization": f"Bearer {token}"})
    try:
        return json.load(urllib.request.urlopen(asked, timeout=60))["data"]
    except urllib.error.HTTPError as error:
        return error.code
host, alice = get("overview", token), get("users/alice/overview", token)
refused = [get("overview", ""), get("users/alice/overview", "x")]
print(json.dumps({"host": host, "alice": alice, "refused": refused}))
web.terminate()
web.wait()
"""

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def house(debian: Path, runtime: Callable[[str], Runtime]) -> Iterator[House]:
    """Return a house in which the service runs, and alice has a model that is warm."""
    with hosts.boot(debian, binds(runtime)) as machine:
        one = House(machine)
        one.furnish()
        machine.run("systemctl", "enable", "--now", "xpucached")
        # What comes from his own configuration: a worker that does not stay.
        machine.run("install", "-d", "-o", "carol", "-g", "carol", "/home/carol/.config/xpucached")
        machine.write("/home/carol/.config/xpucached/xpucached.toml", '[workers]\nidle = "1s"\n')
        one.ctl("model", "add", "hello", "--env", "TOKEN=secret", "--", "/usr/local/bin/app", user="alice")
        one.ctl("prewarm", "alice:hello")
        one.until("alice", warm=1, state="awake", verdict="warm")
        # Nobody asked for him: when his worker has looked it leaves.
        one.until("bob", state="asleep")
        yield one


def test_from_enable_to_disable(debian: Path, runtime: Callable[[str], Runtime]) -> None:
    """Enabled, rebooted, another driver, killed, disabled: the models are warm before they are served."""
    with hosts.boot(debian, binds(runtime)) as machine:
        one = House(machine)
        one.furnish(excluded=("carol", "dora", "eve"))
        one.run_app("alice", "/home/alice/.cache/libsycl_cache")
        one.run_app("bob", "/home/bob/.cache/xpucached/sycl")
        one.declare()
        machine.run("systemctl", "enable", "--now", "xpucached")

        # Each one's cache is indexed by his own worker, and the models are warmed as the user whom their files name.
        machine.until(lambda: min(len(one.entries(user)) for user in ("alice", "bob")) >= 3, "the caches to be known")
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

        one.use_driver(RUNTIMES[0])
        see_wait(one)

        let_it_listen(one)

        # Who dies comes back, and knows what it knew.
        before = one.users()["llm"]["entries"]
        machine.kill("xpucached.service")
        machine.until(lambda: machine.show("xpucached.service", "NRestarts") == "1", "the daemon")
        machine.until(lambda: one.users().get("llm", {}).get("entries") == before, "what it knew")
        assert 'xpucached_models{warmth="warm"} ' in machine.out("python3", "-c", FIGURES, user="alice")
        assert "metrics-port" not in one.ctl("status", "--json")
        uid = str(one.users()["llm"]["uid"])
        one.ctl("--of", "llm", "status")
        machine.kill(f"xpucached-worker@{uid}.service")
        machine.until(lambda: machine.show(f"xpucached-worker@{uid}.service", "NRestarts") == "1", "the worker")
        known = one.ctl("--of", "llm", "model", "list")
        assert "served" in known
        assert "loaded" in known

        # Disabled and stopped, nothing of ours runs; the caches are their owners' and stay.
        machine.run("systemctl", "disable", "--now", "xpucached")
        machine.until(
            lambda: machine.run("pgrep", "-f", "xpucached --(worker|system)", check=None).returncode == 1, "the end"
        )
        assert machine.out("ls", "/home/bob/.cache/xpucached/sycl")
        assert not machine.out("systemctl", "list-units", "--state=failed", "--no-legend", "xpucached*")


def let_it_listen(one: House) -> None:
    """Name a port for figures, which needs the unit's leave; that takes effect when the daemon starts anew."""
    machine, file = one.machine, "/etc/xpucached/xpucached.toml"
    machine.write(file, f'{machine.read(file)}\n[metrics]\nlisten = "{PORT}"\n')
    machine.run("systemctl", "reload", "xpucached")
    assert "the unit forbids it" in one.ctl("status")
    machine.put(EXAMPLES / "metrics-port.conf", f"{DROP_IN}/metrics-port.conf")
    machine.run("systemctl", "daemon-reload")


def see_wait(one: House) -> None:
    """See that a script waits until everybody is warm for the driver that is there now."""
    said = json.loads(one.machine.out("xpucachectl", "driver-changed", "--wait", "--json"))["data"]
    users = {user["user"]: user for user in said["users"]}
    assert (said["state"], users["llm"]["state"], users["llm"]["warm"], users["llm"]["cold"]) == ("warm", "warm", 2, 0)
    assert users["alice"]["state"] == users["bob"]["state"] == "warm"
    # What it says is what anybody sees then: nothing is left to be done.
    assert one.users()["llm"]["warm"] == 2
    assert not one.users()["llm"]["busy"]


# -- rights ---------------------------------------------------------------------------------------------------------

ALICES: Final = "/run/xpucached-worker/1000/xpucached.sock"


def test_a_user_sees_only_himself(house: House) -> None:
    assert set(house.users("bob")) == {"bob"}
    assert {"alice", "bob", "carol", "dora"} <= set(house.users())
    assert "hello" not in house.ctl("model", "list", user="bob")
    assert "hello" in house.ctl("model", "list", user="alice")

    # systemd tells everybody what a worker told it.
    told: list[str] = []

    def looked() -> bool:
        house.ctl("status", user="alice")
        show = ("systemctl", "show", "--property=StatusText", "--value", "xpucached-worker@1000.service")
        told.append(house.machine.out(*show, user="bob").strip())
        return told[-1] not in {"", "looking at the host"}

    house.machine.until(looked, "what systemd says of alice's worker")
    assert told[-1] == worker.STATUS


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
    house.ctl("status", user="alice")
    assert machine.out("stat", "-c", "%U:%G %a", ALICES) == "alice:xpucached 660"
    found = machine.run("find", "/run", "-xdev", "-writable", "-type", "d", user="alice", check=None).stdout
    # Where the distribution lets everybody write is a small file system of its own.
    assert set(found.split()) <= {"/run/lock"}
    # Nor does she keep what her worker had: it goes with it, and comes with the next one.
    machine.run("systemctl", "stop", "xpucached-worker@1000.service")
    # systemd stops the socket when it sees that the worker has ended, and whoever stops that does not wait for it.
    machine.until(lambda: machine.run("stat", ALICES, check=None).returncode)
    assert '"verdict"' in house.ctl("status", "--json", user="alice")


def test_what_a_user_puts_beside_the_catalog_does_not_become_his(house: House) -> None:
    machine, place = house.machine, "/var/lib/xpucached-worker/1001"
    machine.run("usermod", "--append", "--groups", "users", "bob")
    machine.run("install", "-d", "-m", "2775", "-g", "users", "/var/lib/shared")
    machine.run("install", "-o", "alice", "-m", "0600", "/etc/hostname", "/var/lib/shared/secret")
    house.ctl("status", user="bob")
    # What he cannot read, but may move; and a group of his that is not the one of a directory that systemd would make.
    machine.run("sh", "-ec", f"mv /var/lib/shared/secret {place}; chgrp users {place}", user="bob")
    before = machine.show("xpucached-worker@1001.service", "InvocationID")
    machine.run("systemctl", "restart", "xpucached-worker@1001.service")

    assert machine.show("xpucached-worker@1001.service", "InvocationID") != before
    assert machine.out("stat", "-c", "%U %a", f"{place}/secret") == "alice 600"
    assert machine.out("stat", "-c", "%U %a", place) == "bob 700"
    assert '"verdict"' in house.ctl("status", "--json", user="bob")
    machine.run("sh", "-ec", f"rm -r /var/lib/shared {place}/secret; chgrp bob {place}")


def test_the_directory_of_a_catalog_is_given_to_a_number_and_to_nobody_of_that_name(house: House) -> None:
    machine, place = house.machine, "/var/lib/xpucached-worker/1001"
    machine.run("sh", "-c", "echo 1001:x:555:555::/:/bin/sh >>/etc/passwd")
    try:
        assert machine.out("stat", "-c", "%u", place) == "1001"
        machine.run("systemctl", "restart", "xpucached-worker@1001.service", check=None)
        assert machine.out("stat", "-c", "%u", place) == "1001"
    finally:
        machine.run("sed", "-i", "/^1001:/d", "/etc/passwd")
    machine.run("systemctl", "restart", "xpucached-worker@1001.service")


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
    assert "needs a user" in house.ctl("env", check=64)


def test_root_without_a_user_means_all_of_them(house: House) -> None:
    house.ctl("--of", "bob", "model", "add", "bobs", "--", "/bin/false")
    try:
        for words in (("model", "list"), ("ls",), ("runs",), ("jobs",), ("stores",), ("trash", "list"), ("events",)):
            done = house.machine.run("xpucachectl", *words, "--json", check=None)
            parts = {one["user"]: one for one in json.loads(done.stdout)["data"]["users"]}
            # Whoever runs a daemon of their own for another test is named, and nobody is left out.
            assert {"alice", "bob", "carol", "dora"} <= set(parts)
            assert {"alice", "bob", "carol"} <= {user for user, one in parts.items() if "data" in one}, done.stderr
        rows = house.ctl("model", "list", check=None).splitlines()
        assert [row.split()[:2] for row in rows if row.startswith(("USER", "alice", "bob"))] == [
            ["USER", "NAME"],
            ["alice", "hello"],
            ["bob", "bobs"],
        ]
        # What takes longer is begun at each one's, and told of each one.
        done = house.machine.run("xpucachectl", "scan", "--json", check=None)
        scans = {one["user"]: one.get("data", {}).get("state") for one in json.loads(done.stdout)["data"]["users"]}
        assert (scans["alice"], scans["bob"]) == ("done", "done"), done.stderr
        said = house.ctl("prewarm", "--stale", check=1)
        assert "hello" in said
        # It is run now, or has just been by itself.
        assert "not warm: bobs" in said or "bob: not every model is warm" in said
        # An administrator gets what may be tended, of everybody, too.
        said = house.ctl("--system", "model", "list", user="dora", check=None)
        assert "hello" in said
        assert "bobs" in said
        assert "hello" not in house.ctl("--system", "model", "list", user="bob", check=None)
    finally:
        house.ctl("--of", "bob", "model", "remove", "bobs")


def test_root_looks_at_what_workers_said_and_at_each_user_s_page(house: House) -> None:
    machine = house.machine
    # What a test before did may have made it cold: another one puts files beside its program.
    house.ctl("--of", "alice", "prewarm", "hello")
    # A worker that has just been started says so until it has looked at everything.
    house.until("alice", warm=1, verdict="warm")
    told = {one["user"]: one for one in json.loads(house.ctl("usage", "--json"))["data"]["users"]}
    assert {"alice", "bob", "carol"} <= set(told)
    assert (told["alice"]["warm"], told["alice"]["verdict"]) == (1, "warm")
    assert told["alice"]["allocated"] == sum(int(str(one["allocated"])) for one in house.entries("alice")) > 0
    assert "alice" in house.ctl("top")
    house.ctl("report", "--html", "/root/host.html")
    assert '"user":"alice"' in machine.read("/root/host.html")
    assert machine.out("stat", "-c", "%a", "/root/host.html") == "600"
    # The host's page leads to those of the users.  Who has no token gets neither.
    seen = json.loads(machine.out("python3", "-c", LOOK))
    assert seen["host"]["users"]
    assert [(one["model"], one["warmth"], one["since"] is None) for one in seen["alice"]["models"]] == [
        ("hello", "warm", False)
    ]
    assert seen["refused"] == [401, 401]


def test_an_administrator_looks_and_tends_but_decides_nothing(house: House) -> None:
    assert {"alice", "bob"} <= set(house.users("dora"))
    assert "hello" in house.ctl("--of", "alice", "model", "list", user="dora")
    # What a test before did may have made it cold.
    house.ctl("--of", "alice", "prewarm", "hello", user="dora")
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
    house.ctl("status", user="alice")  # what does not run cannot be killed
    done = house.machine.run("systemctl", "--no-ask-password", *words, user="xpucached", check=None)

    assert done.returncode != 0
    assert "denied" in done.stderr.lower() or "authentication required" in done.stderr.lower(), done.stderr


def test_polkit_grants_the_daemon_workers_and_no_unit_of_its_own_making(house: House) -> None:
    house.machine.run("systemctl", "--no-ask-password", "start", "xpucached-worker@1000.service", user="xpucached")
    transient = ("systemd-run", "--no-ask-password", "--unit=xpucached-worker@4242.service", "id")

    assert house.machine.run(*transient, user="xpucached", check=None).returncode != 0


def test_the_processes_have_the_rights_that_the_manual_says(house: House) -> None:
    machine = house.machine
    house.ctl("status", user="alice")  # who has nothing to do sleeps
    for unit in ("xpucached.service", "xpucached-worker@1000.service"):
        status = machine.read(f"/proc/{machine.show(unit, 'MainPID')}/status")
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert {lines[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0000000000000000"}
        assert lines["NoNewPrivs"] == "1"
    pid = machine.show("xpucached.service", "MainPID")
    assert machine.out("nsenter", "-m", "-t", pid, "ls", "/home") == ""
    assert "dri" not in machine.out("nsenter", "-m", "-t", pid, "ls", "/dev")
    assert "user-1000.slice/" in machine.show("xpucached-worker@1000.service", "ControlGroup")
    # What all users' compilers share: everybody can hold a core, and nobody write there.
    cores = "/run/xpucached-host/cores"
    numbers = {str(number) for number in range(int(machine.out("nproc")))}
    assert set(machine.out("ls", cores).split()) == numbers | {"next", "run-0", "run-1"}
    machine.run("flock", "-n", f"{cores}/0", "true", user="alice")
    assert machine.run("touch", f"{cores}/x", user="alice", check=None).returncode != 0


# -- life -----------------------------------------------------------------------------------------------------------


def test_a_worker_with_nothing_to_do_goes_and_comes_when_it_is_wanted(house: House) -> None:
    house.until("carol", state="asleep")

    assert "daemon" in house.ctl("status", user="carol")
    house.until("carol", state="asleep")


def test_a_worker_steps_aside_for_its_user_s_own_daemon(house: House) -> None:
    machine = house.machine
    machine.run("loginctl", "enable-linger", "dora")
    house.ctl("model", "add", "first", "--", "/bin/true", user="dora")
    machine.run("systemctl", "--user", "start", "xpucached", user="dora", session=True)
    house.until("dora", state="aside")
    # Whichever of the two is new takes over what was registered at the other one.
    assert "first" in machine.out("xpucachectl", "model", "list", user="dora", session=True)

    assert '"verdict"' in machine.out("xpucachectl", "status", "--json", user="dora", session=True)
    # Root's every command reaches the one that works; an administrator is told who that is.
    machine.run("xpucachectl", "model", "add", "own", "--", "/bin/true", user="dora", session=True)
    assert "own" in house.ctl("--of", "dora", "model", "list")
    assert "own" in house.ctl("model", "list")
    house.ctl("--of", "dora", "model", "remove", "own")
    refused = house.ctl("--of", "dora", "scan", user="dora", check=65)
    assert "runs a daemon of their own" in refused
    assert " xpucachectl --user status" in refused
    assert "verdict" in machine.out("runuser", "-u", "dora", "--", "xpucachectl", "--user", "status", "--json")
    # Started while that one runs, as at each boot, hers goes at once, and for systemd that is no failure.
    unit = f"xpucached-worker@{house.users()['dora']['uid']}.service"
    machine.run("systemctl", "start", unit)
    machine.until(lambda: machine.show(unit, "ActiveState") in {"inactive", "failed"}, "her worker to go")
    assert machine.show(unit, "ActiveState") == "inactive"
    house.until("dora", state="aside")
    machine.run("systemctl", "--user", "stop", "xpucached.socket", "xpucached.service", user="dora", session=True)
    assert '"verdict"' in house.ctl("--of", "dora", "status", "--json")
    house.ctl("--of", "dora", "model", "remove", "first")


def test_for_an_account_that_has_expired_nothing_is_run(house: House) -> None:
    machine = house.machine
    machine.run("useradd", "--create-home", "gina")
    machine.run("systemctl", "reload", "xpucached")
    machine.until(lambda: "gina" in house.users(), "her to be known")
    house.ctl("scan", user="gina")
    uid = machine.out("id", "-u", "gina")
    unit = f"xpucached-worker@{uid}.service"
    machine.run("systemctl", "stop", unit)
    machine.run("chage", "--expiredate", "2020-01-01", "gina")
    models = "/home/gina/.config/xpucached/models.d"
    machine.run("install", "-d", "-o", "gina", models)
    machine.write(f"{models}/hers.toml", 'command = ["/usr/bin/touch", "/home/gina/ran"]\n')
    # What root runs for it has nothing of hers: Python as pip installs it for all would read this.
    site = "/home/gina/.local/lib/python3.11/site-packages"
    machine.run("install", "-d", site)
    machine.write(f"{site}/hers.pth", "import os; os.system('id -u > /home/gina/site')\n")

    assert "lets nothing be run for this account" in house.ctl("--of", "gina", "prewarm", "hers", check=65)
    house.until("gina", state="denied")
    assert machine.show(unit, "ActiveState") == "inactive"
    assert "expired" in machine.journal("--unit", unit)
    assert machine.out("systemctl", "list-units", "--failed", "--plain", "--no-legend", "xpucached*") == ""
    assert "aside or denied" in house.ctl("status", "--check", check=None)
    machine.run("systemctl", "start", unit)
    assert not {"ran", "site"} & {file.name for file in machine.inside("/home/gina").iterdir()}

    # An administrator's word takes the place of ours; what the host's own stacks count is left alone.
    machine.run("chage", "--expiredate", "-1", "gina")
    theirs = machine.read("/etc/pam.d/common-account")
    machine.write("/etc/pam.d/common-account", "account required pam_deny.so\n")
    machine.write("/etc/pam.d/xpucached-worker", "account required pam_deny.so\n")
    machine.run("systemctl", "start", unit)
    assert machine.show(unit, "ActiveState") == "inactive"
    # Its word is no other's: with a drop-in who was denied is it no more.
    drop_in = f"/etc/systemd/system/{unit}.d/whoever.conf"
    machine.write(drop_in, "[Service]\nExecCondition=\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", unit)
    machine.run("systemctl", "stop", unit)
    assert not machine.inside(f"/run/xpucached-worker/{uid}/denied").exists()
    machine.run("rm", drop_in, "/etc/pam.d/xpucached-worker")
    machine.run("systemctl", "daemon-reload")

    # A password that is to be changed is nobody's end.
    machine.run("chage", "--expiredate", "-1", "--lastday", "0", "gina")
    machine.run("systemctl", "start", unit)
    house.ctl("--of", "gina", "scan")
    house.until("gina", state="awake")
    machine.write("/etc/pam.d/common-account", theirs)
    machine.run("systemctl", "stop", unit)
    machine.run("userdel", "--remove", "gina")


def test_who_answers_nothing_about_an_account_is_no_reason_to_say_that_it_is_denied(
    house: House, tmp_path: Path
) -> None:
    machine = house.machine
    machine.run("useradd", "--create-home", "gus")
    # Whoever had the number before has no worker any more by then.
    house.until("gus", state="asleep")
    uid = machine.out("id", "-u", "gus")
    unit = f"xpucached-worker@{uid}.service"
    # That is a failure, and told.
    module = tmp_path / "pam_sss.so"
    silent = ["cc", "-shared", "-fPIC", "-o", str(module), "-x", "c", "-"]
    subprocess.run(silent, input=b"int pam_sm_acct_mgmt(void) { return 9; }", check=True)
    machine.put(module, "/usr/lib/x86_64-linux-gnu/security/pam_sss.so")
    machine.write("/etc/pam.d/xpucached-worker", "account required pam_sss.so\n")
    machine.run("systemctl", "start", unit, check=1)
    assert "PAM cannot say" in machine.journal("--unit", unit)
    assert not machine.inside(f"/run/xpucached-worker/{uid}/denied").exists()
    machine.run("systemctl", "stop", unit)
    machine.run("rm", "/etc/pam.d/xpucached-worker")
    # By our own lines it is not asked of who is the host's own, and who has no line in /etc/shadow has not expired.
    shadow = machine.read("/etc/shadow")
    machine.run("sed", "-i", "/^gus:/d", "/etc/shadow")
    machine.run("systemctl", "start", unit)
    assert machine.show(unit, "ActiveState") == "active"
    machine.run("systemctl", "stop", unit)
    machine.write("/etc/shadow", shadow)
    machine.run("rm", "/usr/lib/x86_64-linux-gnu/security/pam_sss.so")
    machine.run("userdel", "--remove", "gus")


def test_the_configuration_is_read_again(house: House) -> None:
    machine = house.machine
    text = machine.read("/etc/xpucached/xpucached.toml")
    machine.run("useradd", "frank")
    machine.run("systemctl", "reload", "xpucached")
    house.until("frank", state="asleep")
    house.ctl("--of", "frank", "scan")
    unit = f"xpucached-worker@{house.users()['frank']['uid']}.service"
    assert machine.show(unit, "ActiveState") == "active"
    machine.write("/etc/xpucached/xpucached.toml", text.replace('"eve"', '"eve", "frank"'))
    machine.run("systemctl", "reload", "xpucached")

    machine.until(lambda: "frank" not in house.users(), "frank to go")
    machine.until(lambda: machine.show(unit, "ActiveState") == "inactive", "his worker to go")


def test_what_only_root_may_read_is_refused_by_check_as_by_the_service(house: House) -> None:
    machine = house.machine
    machine.run("xpucached", "--check")
    machine.run("chmod", "600", "/etc/xpucached/xpucached.toml")
    refused = machine.run("xpucached", "--check", check=78)
    machine.run("chmod", "644", "/etc/xpucached/xpucached.toml")

    assert "xpucached.toml: cannot be read: Permission denied" in refused.stderr


def sleeps(machine: hosts.Machine) -> bool:
    """Return whether a model of number 4321 runs."""
    return machine.run("pgrep", "-u", "4321", "-x", "sleep", check=None).returncode == 0


def test_who_gets_a_number_again_gets_no_models_with_it(house: House) -> None:
    machine = house.machine
    place = "/var/lib/xpucached-worker/4321"
    machine.run("useradd", "--create-home", "--uid", "4321", "former")
    machine.run("systemctl", "reload", "xpucached")
    machine.until(lambda: "former" in house.users(), "her to be known")
    house.ctl("model", "add", "hers", "--", "/bin/sleep", "600", user="former")
    house.ctl("prewarm", "--no-wait", "hers", user="former")
    machine.until(lambda: sleeps(machine), "her model to run")
    # Though her worker runs, with her model, and nobody says a word to the service.
    assert machine.show("xpucached-worker@4321.service", "ActiveState") == "active"
    machine.run("userdel", "--remove", "former")
    assert not sleeps(machine)
    assert machine.show("xpucached-worker@4321.service", "ActiveState") == "inactive"
    machine.until(lambda: "former" not in house.users(), "her to go")
    machine.run("useradd", "--create-home", "--uid", "4321", "latter")
    machine.run("systemctl", "reload", "xpucached")
    machine.until(lambda: "latter" in house.users(), "him to be known")

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
    # Whom a test before left cold would wait for a calm host, and the line is of all of them.
    house.ctl("prewarm", "--stale", check=None)
    house.ctl("model", "add", "cold-one", "--", "/bin/false", user="bob")
    house.ctl("prewarm", "bob:cold-one", check=None)
    house.until("bob", cold=1)

    machine.until(lambda: "not all kernel caches" in machine.read("/run/motd.d/60-xpucached"), "the line")
    house.ctl("model", "remove", "cold-one", user="bob")
    house.until("bob", cold=0)
    machine.until(lambda: machine.read("/run/motd.d/60-xpucached") == "", lambda: f"no line beside {house.users()}")
    assert machine.out("stat", "-c", "%F", "/run/motd.d/60-xpucached").startswith("regular")
    machine.run("ln", "-sfn", "/etc/shadow", "/run/motd.d/60-xpucached", user="xpucached", check=1)


def test_systemd_accepts_the_units_where_they_are_installed(house: House) -> None:
    found = house.machine.out("sh", "-c", "ls /usr/lib/systemd/system/xpucached*").split()
    names = [name.replace("@.", "@1000.") for name in found]
    # An instance has no file of its own: verified under its name it is read from the template.
    instances = [name.rsplit("/", 1)[1] for name in names]
    done = house.machine.run("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", *instances, check=None)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_sees_what_its_user_s_daemon_would_and_models_may_make_what_he_may(house: House) -> None:
    machine = house.machine
    # Tools that copy a directory keep the group's bit, which all below a project's directory have.
    line = "mkdir -p -m 2755 /home/bob/copy && exec /usr/local/bin/app"
    house.ctl("model", "add", "copies", "--", "/bin/sh", "-c", line, user="bob")
    try:
        house.ctl("prewarm", "copies", user="bob")
        assert machine.out("stat", "-c", "%a", "/home/bob/copy") == "2755"

        # Who shares a store reads what a model compiles there, as if its user had started it.
        store = str(house.entries("bob")[0]["store"])
        assert machine.out("sh", "-c", f"find {store} -mindepth 1 -type d -printf '%m\\n' | sort -u") == "755"
        assert machine.out("sh", "-c", f"find {store} -name '*.bin' -printf '%m\\n' | sort -u") == "644"
        # What is the daemon's own is made for him alone.
        assert machine.out("find", f"/var/lib/xpucached-worker/{house.users()['bob']['uid']}", "-perm", "/077") == ""

        entry = f"{house.entries('bob')[0]['store']}/{house.entries('bob')[0]['key']}.bin"
        machine.run("mv", entry, "/home/bob/kept.bin", user="bob")
        machine.run("ln", "-s", "/home/bob/kept.bin", entry, user="bob")
        house.ctl("--of", "bob", "scan")
        found = [one["defect"] for one in house.entries("bob") if one["defect"]]
        assert found == ["link"]
    finally:
        house.ctl("model", "remove", "copies", user="bob")
        machine.run("sh", "-c", "rm -rf /home/bob/copy /home/bob/kept.bin /home/bob/.cache/xpucached/sycl/*")
        house.ctl("--of", "bob", "scan")


@pytest.mark.parametrize("place", ["/tmp/bobs", "/var/tmp/bobs"])
def test_what_a_worker_warms_is_where_its_user_s_programs_look(house: House, place: str) -> None:
    machine = house.machine
    house.ctl("model", "add", "there", "--store", place, "--", "/usr/local/bin/app", user="bob")
    try:
        house.ctl("prewarm", "there", user="bob")
        house.until("bob", warm=1, cold=0)
        assert machine.out("find", place, "-name", "*.bin", user="bob")
    finally:
        house.ctl("model", "remove", "there", user="bob")
        machine.run("rm", "-rf", place)


def test_of_what_a_worker_runs_it_is_known_which_modules_it_is_made_of(house: House) -> None:
    machine = house.machine
    machine.write("/home/bob/own.py", "")
    text = "import sys; sys.path.append('/home/bob'); __import__('o' + 'wn')"
    words = ("/bin/sh", "-c", f'python3 -c "{text}" && exec /usr/local/bin/app')
    house.ctl("model", "add", "computed", "--", *words, user="bob")
    try:
        house.ctl("prewarm", "computed", user="bob")
        machine.write("/home/bob/own.py", "A = 2\n")
        told = functools.partial(house.ctl, "runs", "computed", user="bob")
        # It is run once more by itself, at the next look at the host.
        house.ctl("driver-changed", "--no-wait", user="bob")
        machine.until(lambda: "program-changed" in told(), told)
    finally:
        house.ctl("model", "remove", "computed", user="bob")
        machine.run("rm", "/home/bob/own.py")


def test_a_model_that_is_a_server_needs_a_drop_in_and_is_alone_in_its_network(house: House) -> None:
    machine, uid = house.machine, house.users()["bob"]["uid"]
    unit, port = f"xpucached-worker@{uid}.service", 8123
    place = f"/etc/systemd/system/{unit}.d/server-models.conf"
    machine.put(REPOSITORY / "tests/support/server.py", "/opt/app/server.py")
    machine.write("/opt/app/requests.jsonl", '{"path": "/build", "body": ""}\n')
    server = ("/usr/bin/python3", "-I", "-S", "-B", "/opt/app/server.py", port, "/opt/app")
    asked = ("--ready-url", f"http://127.0.0.1:{port}/", "--requests", "/opt/app/requests.jsonl")
    words = ("model", "add", "server", *asked, "--", *server, f"{PLACE}/{RUNTIMES[0]}/lib/libsycl.so.8", "exp")
    house.ctl(*map(str, words), user="bob")
    try:
        house.ctl("prewarm", "server", user="bob", check=1)
        assert "RestrictAddressFamilies=" in house.ctl("model", "show", "server", user="bob")
        machine.put(EXAMPLES / "server-models.conf", place)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "try-restart", unit)
        house.ctl("prewarm", "server", user="bob")
        house.until("bob", warm=1, cold=0)
        interfaces = machine.read(f"/proc/{machine.show(unit, 'MainPID')}/net/dev").splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    finally:
        house.ctl("model", "remove", "server", user="bob")
        machine.run("rm", "-f", place)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "try-restart", unit)


# -- who watches ----------------------------------------------------------------------------------------------------


def test_workers_hear_from_who_watches(house: House) -> None:
    machine, store = house.machine, "/home/alice/.cache/libsycl_cache"
    house.run_app("alice", store)
    machine.run("systemctl", "start", "xpucached-watch")

    def watching() -> dict[str, object]:
        text = machine.run("xpucachectl", "--of", "alice", "status", "--json").stdout
        return values(json.loads(text)["data"]["watching"])

    def mode() -> str:
        house.ctl("--of", "alice", "scan")
        return str(watching()["mode"])

    try:
        # The next look finds it, and who asks for a look need not wait for another one.
        assert mode().startswith("fanotify")
        assert machine.show("xpucached-watch.service", "ActiveState") == "active"
        # No look finds out who wrote something.
        assert watching()["compiled"] == 0
        machine.run("sh", "-c", f"rm -r {store}/*")
        house.run_app("alice", store)
        machine.until(lambda: watching()["compiled"], "what a program compiled to be seen")
    finally:
        machine.run("systemctl", "stop", "xpucached-watch")
        machine.run("rm", "-r", store)
    machine.until(lambda: mode() == "inotify", "inotify again")


def test_who_watches_does_not_start_where_the_unit_takes_away_what_it_needs(house: House) -> None:
    machine, place = house.machine, "/etc/systemd/system/xpucached-watch.service.d/tight.conf"
    machine.write(place, "[Service]\nRestrictSUIDSGID=yes\n")
    machine.run("systemctl", "daemon-reload")
    try:
        machine.run("systemctl", "start", "xpucached-watch", check=1)
        assert machine.show("xpucached-watch.service", "ExecMainStatus") == "77"
        assert "RestrictSUIDSGID=" in machine.journal("-u", "xpucached-watch")
    finally:
        machine.run("rm", place)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "reset-failed", "xpucached-watch")
