"""How long it takes to decide about a large store and to evict half of it, beside tools that only delete by age.

Usage: ``python bench/evict.py [ENTRIES] [DIRECTORY]`` (100000, the system's directory for temporary files).

One store is written, half of its entries unused for 40 days, and copied for each tool: ``find -delete``,
``systemd-tmpfiles --clean`` and ``ccache --evict-older-than`` (its own layout, as many files of the same sizes) where
they are installed, and ours, into the trash and for good.  Every tool removes what is older than 30 days; ours also
takes the runtime's lock for each slot that is not alone in its leaf, keeps a label, and knows why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from tests.builders import SyclStore  # noqa: E402 - the tests' own, found beside us
from xpucached import host, planning  # noqa: E402 - as above
from xpucached.catalog import Catalog  # noqa: E402 - as above
from xpucached.domain import (  # noqa: E402 - as above
    EvictReason,
    FoundStore,
    Host,
    Note,
    Policy,
    Store,
    StoreOrigin,
)
from xpucached.kinds import sycl  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpucached.domain import Entry, EntryId, EvictionPlan

DAY: Final = 86400.0


def fill(root: Path, entries: int) -> None:
    """Write a store; every second entry was last used 40 days ago."""
    store = SyclStore(root)
    for number in range(entries):
        days = 40 if number % 2 else 1
        slot = store.add(f"_ZTS{number:07}", age=days * DAY)
        moment = time.time() - days * DAY
        for path in (slot.bin, slot.src, slot.access_time):
            os.utime(path, (moment, moment))


def fill_ccache(root: Path, entries: int) -> None:
    """Write as many files where ccache keeps its results."""
    for number in range(entries):
        name = f"{number * 2654435761 % (1 << 32):08x}"
        folder = root / name[0] / name[1]
        folder.mkdir(parents=True, exist_ok=True)
        moment = time.time() - (40 if number % 2 else 1) * DAY
        for suffix, size in (("R", 800), ("M", 300), ("T", 19)):
            path = folder / f"{name[2:]}{'0' * 20}{suffix}"
            path.write_bytes(bytes(size))
            os.utime(path, (moment, moment))


def count(root: Path) -> int:
    """Count the files that are left where programs look."""
    return sum(len(files) for place, _, files in os.walk(root) if ".xpucached" not in place)


def timed(work: Callable[[], object]) -> float:
    """Give the seconds that something takes, with nothing left to be written."""
    os.sync()
    began = time.monotonic()
    work()
    return time.monotonic() - began


def command(words: list[str], **variables: str) -> Callable[[], object]:
    """Give a run of another tool."""
    return lambda: subprocess.run(words, env={**os.environ, **variables}, check=True, capture_output=True)


def ours(root: Path, state: Path) -> tuple[EvictionPlan, list[tuple[str, float]]]:
    """Look and decide as the daemon does; give the plan, and how long each step took."""
    catalog = Catalog.open(state / "catalog.sqlite")
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.CONFIGURED, "bench")
    now = datetime.now(UTC)
    steps: list[tuple[str, float]] = []
    steps.append(("first look", timed(lambda: catalog.record_scan(sycl.scan(found, now, {}, None), host.architecture))))
    known = catalog.stamps(found.store)
    steps.append(
        ("look again", timed(lambda: catalog.record_scan(sycl.scan(found, now, known, None), host.architecture)))
    )
    entries = catalog.all_entries()
    steps.append(("read the catalog", timed(catalog.all_entries)))
    nobody = Host(now, "", "", "")
    policy = Policy(max_unused=30 * DAY, grace=0.0)

    def plan(policy: Policy) -> EvictionPlan:
        return planning.plan_eviction(entries, nobody, (), frozenset(), {}, policy, now + timedelta(seconds=1))

    steps.append(("plan: unused", timed(lambda: plan(policy))))
    half = sum(one.entry.allocated for one in entries) // 2
    steps.append(("plan: over a budget of half", timed(lambda: plan(Policy(max_unused=None, max_bytes=half)))))
    catalog.close()
    return plan(policy), steps


def main() -> int:  # noqa: PLR0915 - one measurement after the other
    """Measure, and print a table."""
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    place = Path(tempfile.mkdtemp(dir=sys.argv[2] if len(sys.argv) > 2 else None))  # noqa: PLR2004 - the second word
    try:
        pristine = place / "pristine"
        fill(pristine, entries)
        print(f"{entries} entries, {count(pristine)} files", flush=True)
        rows: list[tuple[str, float, int]] = []

        def copied(name: str) -> Path:
            target = place / name
            command(["cp", "-a", os.fspath(pristine), os.fspath(target)])()
            for folder, _, files in os.walk(target):
                for file in files:
                    # To copy a file is to use it.
                    path = Path(folder, file)
                    moment = path.stat().st_mtime
                    os.utime(path, (moment, moment))
            return target

        def measure(name: str, root: Path, work: Callable[[], object]) -> None:
            rows.append((name, timed(work), count(root)))
            print(f"{name}: {rows[-1][1]:.2f} s, {rows[-1][2]} files left", flush=True)
            shutil.rmtree(root)

        root = copied("find")
        words = ["find", os.fspath(root), "-type", "f", "-mtime", "+30", "-delete"]
        empty = ["find", os.fspath(root), "-mindepth", "1", "-type", "d", "-empty", "-delete"]
        measure("find -delete", root, lambda: (command(words)(), command(empty)()))
        if shutil.which("systemd-tmpfiles"):
            root = copied("tmpfiles")
            rules = place / "rules.conf"
            rules.write_text(f"e {root} - - - m:30d\n")
            measure("systemd-tmpfiles --clean", root, command(["systemd-tmpfiles", "--clean", os.fspath(rules)]))
        if shutil.which("ccache"):
            root = place / "ccache"
            fill_ccache(root, entries)
            old = ["ccache", "--evict-older-than", "30d"]
            measure("ccache --evict-older-than", root, command(old, CCACHE_DIR=os.fspath(root)))
        for name, trashing in (("xpucached, for good", False), ("xpucached, into the trash", True)):
            root = copied(name.replace(" ", "-"))
            state = place / f"state-{trashing}"
            state.mkdir()
            plan, steps = ours(root, state)
            victims = [one.entry.entry for one in plan.evict]
            at = datetime.now(UTC)
            notes = {one.id: Note(at, EvictReason.UNUSED, "unused") for one in victims} if trashing else {}
            if not trashing:
                for step, seconds in steps:
                    print(f"{step}: {seconds:.2f} s", flush=True)

            def remove(victims: list[Entry] = victims, notes: Mapping[EntryId, Note] = notes) -> None:
                if not victims or not all(sycl.remove(victims, notes).values()):
                    message = "not everything went"
                    raise RuntimeError(message)

            if trashing:
                seconds = timed(remove)
                print(f"{name}: {seconds:.2f} s, {count(root)} files left", flush=True)
                store = Store(sycl.NAME, root)
                refs = tuple(one.ref for one in sycl.trash(store))
                print(f"trash empty: {timed(lambda refs=refs, store=store: sycl.discard(store, refs)):.2f} s")
            else:
                measure(name, root, remove)
        return 0
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    sys.exit(main())
