"""What a host of many users costs: memory and time when all are looked at, and what `status` takes then.

Usage: ``python bench/users.py RUNTIMES [--users N,N…] [--later SECONDS]``, with a Debian of ``tools/debian.py`` in
``RUNTIMES/debian``.

For each number of users a Debian is booted, each user gets a store of 74 entries, and the host's service is started.
Until every user was looked at, and then for some minutes, the memory of all of its processes is added up (PSS: what is
shared counts once).  It prints a table with the slopes; the ratios are what counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from bench import stores  # noqa: E402 - found beside us
from tests.support import hosts  # noqa: E402 - as above
from tests.support.house import House, binds  # noqa: E402 - as above
from tests.support.runtimes import Runtime  # noqa: E402 - as above
from tools import debian  # noqa: E402 - as above

ENTRIES: Final = 74
PATIENCE: Final = 1800.0
CALLS: Final = 9
_MB: Final = 1024.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What the processes of the service take together."""

    megabytes: float
    workers: int


def memory(machine: hosts.Machine) -> Memory:
    """Add up the processes of ours that a machine runs."""
    inside = os.readlink(machine.inside("/proc/1/ns/pid"))
    kilobytes, workers = 0, 0
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if b"xpucached" not in command or os.readlink(process / "ns/pid") != inside:
                continue
            fields = (process / "smaps_rollup").read_text().splitlines()
            kilobytes += next(int(line.split()[1]) for line in fields if line.startswith("Pss:"))
            workers += b"--worker" in command
    return Memory(kilobytes / _MB, workers)


def measured(root: Path, runtimes: Path, users: int, later: float) -> dict[str, float]:
    """Boot, start the service, and see what it takes."""
    found: dict[str, float] = {"users": users}
    with (
        tempfile.TemporaryDirectory() as kept,
        hosts.boot(root, binds(lambda name: Runtime(name, runtimes / name))) as machine,
    ):
        house = House(machine)
        house.furnish(excluded=("alice", "bob", "carol", "dora", "eve"))
        store = stores.store(Path(kept) / "store", ENTRIES)
        for number in range(users):
            name = f"user{number:03d}"
            machine.run("useradd", "--create-home", name)
            machine.put(store, f"/home/{name}/.cache/libsycl_cache")
            machine.run("chown", "-R", f"{name}:", f"/home/{name}")
        began = time.monotonic()
        machine.run("systemctl", "start", "xpucached")
        peak = Memory(0.0, 0)
        while time.monotonic() - began < PATIENCE:
            peak = max(peak, memory(machine), key=lambda one: one.megabytes)
            known = house.users()
            if len(known) == users and all(one["entries"] == ENTRIES for one in known.values()):
                break
            time.sleep(0.3)
        found |= {"all seen, s": time.monotonic() - began, "peak, MB": peak.megabytes, "workers then": peak.workers}
        answers = []
        for _ in range(CALLS):
            asked = time.monotonic()
            house.users()
            answers.append((time.monotonic() - asked) * 1000)
        found["host's answer, ms"] = statistics.median(answers)
        time.sleep(later)
        rest = memory(machine)
        return found | {"later, MB": rest.megabytes, "workers later": rest.workers}


def main() -> None:
    """Measure each number of users, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtimes", type=Path)
    parser.add_argument("--users", default="1,11,20,100")
    parser.add_argument("--later", type=float, default=300.0, help="seconds after which the memory is looked at again")
    asked = parser.parse_args()
    root = debian.root(asked.runtimes / "debian", hosts.SUITES[sys.version_info[:2]])
    if reason := hosts.why_not(root):
        sys.exit(reason)
    rows = [measured(root, asked.runtimes, int(users), asked.later) for users in asked.users.split(",")]
    print("| " + " | ".join(rows[0]) + " |")
    print("| " + " | ".join("---:" for _ in rows[0]) + " |")
    for row in rows:
        print("| " + " | ".join(f"{value:.1f}" for value in row.values()) + " |")
    first, last = rows[0], rows[-1]
    if last["users"] > first["users"]:
        for what in ("peak, MB", "later, MB", "all seen, s"):
            slope = (last[what] - first[what]) / (last["users"] - first["users"])
            print(f"{what}: {slope:.2f} for each user more")


if __name__ == "__main__":
    main()
