"""The host's service under a real systemd: it, and a user's worker, killed at every moment of their lives."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import hosts
from tests.support.builders import SyclStore
from tests.support.house import PLACE, RUNTIMES, House, binds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.runtimes import Runtime

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(240)]

OLD: Final = "2024.18.7.0.11_160000"

FILLED: Final = "/opt/filled"
"""A store that a program filled, for all who move in."""

DEATHS: Final = """
[Service]
Environment=XPUCACHED_POLICY_GRACE=0s
Environment=XPUCACHED_POLICY_MAX_UNUSED=1d
Environment=XPUCACHED_SCHEDULE_EVICT=false
Environment=XPUCACHED_SCHEDULE_REPLAY=false
Environment=XPUCACHED_POLICY_RETRY_AFTER=1s
Environment=XPUCACHED_WORKERS_IDLE=unlimited
RestartSec=1s
"""

# A driver that only this worker meets.
OWN_DRIVER: Final = """
Environment=XPUCACHED_SCHEDULE_REPLAY=true
BindReadOnlyPaths=/opt/next:/etc/OpenCL/vendors
"""


# Asked often, so one program tells both.
_KILL: Final = """
pid() {{ systemctl show --value --property=MainPID {unit}; }}
comes() {{
    now=$(systemctl show --property=MainPID --property=SubState {unit})
    case "$now " in *MainPID=$before[!0-9]*) false;; *SubState=$1[!a-z-]*) true;; *) false;; esac
}}
before=$(pid)
worker=$(systemctl show --value --property=MainPID {worker})
{begin} >/tmp/begun 2>&1 &
for i in $(seq 3000); do
    if {moment}; then pid; exec systemctl kill --kill-who=main --signal=KILL {unit}; fi
    sleep 0.01
done
cat /tmp/begun
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
        # His worker may start as soon as he is there: what it is told is there before him, and no other one's.
        self.uid = 2000 + zlib.crc32(self.name.encode()) % 50_000
        machine.write(f"/etc/systemd/system/{self.unit}.d/deaths.conf", DEATHS)
        machine.run("systemctl", "daemon-reload")
        machine.run("useradd", "--create-home", "--uid", str(self.uid), self.name)
        cache = f"/home/{self.name}/.cache"
        self.store = f"{cache}/libsycl_cache"
        machine.run("sh", "-ec", f"mkdir -p {cache}; cp -r {FILLED} {self.store}", user=self.name)
        made = SyclStore(folder / "libsycl_cache")
        for number in range(entries):
            if number % 3 == 0:
                made.add(f"_ZTS5a{number:05d}", driver=OLD, age=9e5)
            else:
                made.add(f"_ZTS5a{number:05d}")
        if entries:
            # Their worker may look at any moment: what it sees is as old as it shall be.
            machine.put(made.root, f"{self.store}.new")
            # Unpacking them was no use of them.
            machine.run("sh", "-c", f"find {self.store}.new -type f -mtime +9 -exec touch --date='10 days ago' {{}} +")
            machine.run("chown", "-R", f"{self.name}:", f"{self.store}.new")
            # By their owner: what root makes is closed to their worker until it is given away.
            machine.run(
                "sh", "-c", f"cp -al {self.store}.new/. {self.store}/ && rm -r {self.store}.new", user=self.name
            )
        machine.run("systemctl", "reload", "xpucached")
        self.house.until(self.name, state="awake", entries=len(self.on_disk()))

    def on_disk(self, where: str = "-not -path '*/.xpucached.trash/*'") -> set[str]:
        """Return the entries that are there."""
        return {line.removesuffix(".bin") for line in self._find(f"-name '[0-9]*.bin' {where}")}

    def _find(self, words: str) -> list[str]:
        command = f"find {self.store} {words} -printf '%P\\n'"
        # What goes while it is looked for is no failure.
        return self.house.machine.run("sh", "-c", command, check=None).stdout.split()

    def in_catalog(self) -> dict[str, str]:
        """Return the entries that his worker knows, and the state of each."""
        return {str(one["key"]): str(one["state"]) for one in self.house.entries(self.name)}

    def die(self, who: str, moment: str, begin: str) -> None:
        """Kill a unit at the moment at which something holds, and see it come back by itself.

        Both are a shell's: ``begin`` leads to that moment; $worker is the worker's process.
        """
        machine = self.house.machine
        unit = self.unit if who == "worker" else "xpucached.service"
        others = {name: one["entries"] for name, one in self.house.users().items() if name != self.name}
        assert others
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
        machine.until(
            lambda: self.in_catalog() == dict.fromkeys(self.on_disk(), "ok") != {}, "the catalog to equal the disk"
        )
        machine.until(lambda: not self._find("'(' -name '*.lock' -o -name .xpucached ')'"), "locks of ours to go")


@pytest.fixture(scope="module")
def house(debian: Path, runtime: Callable[[str], Runtime]) -> Iterator[House]:
    """Return a house in which the service runs, and alice, who has a model that is warm, is the one who may notice."""
    with hosts.boot(debian, binds(runtime)) as machine:
        one = House(machine)
        one.furnish(excluded=("bob", "carol", "dora", "eve"))
        machine.run("systemctl", "enable", "--now", "xpucached")
        one.ctl("model", "add", "hello", "--", "/usr/local/bin/app", user="alice")
        one.ctl("prewarm", "alice:hello")
        one.until("alice", warm=1, state="awake")
        one.run_app("eve", "/home/eve/filled")
        machine.run("cp", "-r", "/home/eve/filled", FILLED)
        yield one


@pytest.fixture
def victim(house: House, request: pytest.FixtureRequest) -> Iterator[Victim]:
    """Return a user who has not moved in yet, and who leaves the house as it was."""
    one = Victim(house, f"v{zlib.crc32(request.node.name.encode()):08x}")
    yield one
    house.machine.run("systemctl", "stop", one.unit)
    house.machine.run("userdel", "--remove", one.name)
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
        victim.die(who, f"comes {moment}", begin)
        victim.is_whole()
        assert victim.on_disk() == before


@WHO
def test_killed_while_it_scans(victim: Victim, who: str, tmp_path: Path) -> None:
    victim.move_in(1500, tmp_path)
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
