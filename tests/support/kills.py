"""The whole daemon, killed at random moments of every kind of job, while real programs use its store.

``python -m tests.support.kills --kills 500 --seed 1`` (``make stress``); the tests kill a few times.  After each start
what must hold is looked up on the disk and over the socket, with nothing of ours in between but the formats:

* nothing is lost: what was ever written whole lies in the store, or whole in the trash, byte for byte, unless somebody
  emptied the trash of it
* no lock and no half-made leaf is left, and no process of the daemon that died
* the catalog says what the disk says; models, runs and the trash's contents are those from before
* the programs beside it never fail, never wait, and compile nothing a second time
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import hashlib
import http.client
import json
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from tests import REPOSITORY
from tests.support.asking import ask, rows, values
from tests.support.builders import SyclStore
from tests.support.daemons import Daemon, daemon
from tests.support.runtimes import Runtime, look_up
from xpucached.catalog import migrating, opening, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.builders import Slot

OLD: Final = "2024.18.7.0.11_160000"
PATIENCE: Final = 180.0
_AGAIN: Final = 0.35
"""So often it is killed once more as it comes up."""
_USUAL: Final = 0.6
"""Seconds that a job or a start takes, where that was not seen."""
MODELS: Final = {name: [f"{name}{number}" for number in range(3)] for name in ("one", "two", "loaded")}
"""The kernels of each model; the last one is brought to life by a loader, the others are commands."""
PASSING: Final = ("passing-command", "passing-loaded")
"""Models that are registered and forgotten again."""
BESIDE: Final = ["beside0", "beside1", "beside2"]


@dataclass(slots=True)
class Tally:
    """What came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    amid: Counter[str] = field(default_factory=Counter)
    beside: int = 0
    wrong: list[str] = field(default_factory=list)


class Campaign:
    """One daemon, one store, two drivers, three models, and a program beside them."""

    def __init__(
        self, place: Path, run: Path, first: Runtime, second: Runtime, seed: int, kinds: Sequence[str] = ()
    ) -> None:
        """``kinds`` are the only ones in which it is killed, and how long these take is not seen before."""
        self.tally = Tally()
        self._measure = not kinds
        self._chance = random.Random(seed)  # noqa: S311 - a test's own luck
        self._store = SyclStore(place / "store")
        self._drivers = [first, second]
        self._runtime = first
        self._link = place / "driver"
        self._home = place / "home"
        self._run = run
        self._host: Daemon | None = None
        # Leaf and digest of a source: the digests of its program.  Slots of one leaf with one source are one program.
        self._whole: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._forgiven: set[tuple[str, str]] = set()  # what may be gone: somebody emptied the trash of it
        self._halves: set[tuple[str, str, str]] = set()
        self._models: set[str] = set()
        self._open: set[str] = set()  # whether these are registered nobody was told
        self._runs: set[int] = set()
        self._took: defaultdict[str, list[float]] = defaultdict(list)
        self._number = 0
        self._stop = threading.Event()
        self._kinds: dict[str, Callable[[], Callable[[], object]]] = {
            "scan": self._scan,
            "prewarm": self._prewarm,
            "replay": self._replay,
            "evict": self._evict,
            "verify": self._verify,
            "mend": self._mend,
            "restore": self._restore,
            "empty": self._empty,
            "driver": self._driver,
            "add": self._add,
            "remove": self._remove,
        }
        if kinds:
            self._kinds = {kind: self._kinds[kind] for kind in kinds}

    # -- the world ----------------------------------------------------------------------------------------------------

    def run(self, kills: int, *, every: Callable[[int, Tally], None] | None = None) -> Tally:
        """Kill the daemon so many times."""
        self._home.mkdir(parents=True)
        check_runtime = REPOSITORY / "xpucached" / "libexec" / "sycl_check.py"
        for program in (check_runtime, Path(__file__).with_name("kernels.py")):
            shutil.copyfile(program, self._home / program.name)
        self._switch()
        variables = {"HOME": str(self._home)}
        for name, folder in (("CACHE", ".cache"), ("CONFIG", ".config"), ("STATE", ".local/state")):
            variables[f"XDG_{name}_HOME"] = str(self._home / folder)
        with daemon(self._home, self._run, **variables) as host:
            self._host = host
            host.configure(
                f"[stores]\npaths = ['{self._store.root}']\n"
                f"[driver]\nvariables = {{ LD_LIBRARY_PATH = '{self._runtime.lib}',"
                f" OCL_ICD_FILENAMES = '{self._link}/libintelocl.so' }}\n"
                "[policy]\ngrace = '0s'\nmax_unused = '30d'\nattempts = 100\nretry_after = '1s'\n"
                "[schedule]\nsettle = '0.1s'\n"
            )
            self._starts()
            for name, kernels in MODELS.items():
                self._ask("POST", "/v1/models", self._model(name, kernels))
            self._job("/v1/prewarm", {"all": True})
            self._settled()
            # While no model runs, which would take these entries for its own: then it would take them out, too.
            self._beside(first=True)
            self._note()
            threads = [threading.Thread(target=self._beside)]
            for thread in threads:
                thread.start()
            try:
                self._kill_all(kills, every)
                self._last_look()
            finally:
                self._stop.set()
                for thread in threads:
                    thread.join()
            if host.process is not None:
                host.end()
        return self.tally

    def _kill_all(self, kills: int, every: Callable[[int, Tally], None] | None) -> None:
        starts: dict[str, Callable[[], None]] = {"open": lambda: None, "migrate": self._older}
        order: list[str] = []
        while (number := self.tally.kills.total()) < kills:
            if not order:
                # Each kind in turn, in an order of its own each time.
                order = self._chance.sample([*self._kinds, *starts], len(self._kinds) + len(starts))
            kind = order.pop()
            if kind in starts:
                self._kill_at_start(kind, starts[kind])
            else:
                self._kill_amid(kind)
                if number + 1 < kills and self._chance.random() < _AGAIN:
                    # What is to be finished by the next one may meet the same end there.
                    self._kill_at_start("open", starts["open"])
            self._starts()
            self._check(f"after kill {self.tally.kills.total()}, {kind}")
            if every is not None:
                every(self.tally.kills.total(), self.tally)

    @property
    def _daemon(self) -> Daemon:
        assert self._host is not None
        return self._host

    def _model(self, name: str, kernels: list[str]) -> dict[str, object]:
        common = {"name": name, "variables": {}, "store": str(self._store.root), "pinned": name == "one"}
        if not name.endswith("loaded"):
            return {**common, "command": self._command(kernels), "directory": "/"}
        options = {"directory": str(self._home), "library": str(self._library), "names": " ".join(kernels)}
        exercise = {"loader": "python", "python": sys.executable, "target": "kernels:use", "device": "cpu"}
        return {**common, "directory": str(self._home), "exercise": {**exercise, "steps": 1, "options": options}}

    @property
    def _library(self) -> Path:
        return self._runtime.lib / "libsycl.so.8"

    def _command(self, kernels: list[str]) -> list[str]:
        program = self._home / "kernels.py"
        return [sys.executable, "-I", "-S", "-B", str(program), str(self._home), str(self._library), *kernels]

    def _switch(self) -> None:
        """Put the other driver in place, as a package manager does."""
        beside = self._link.with_suffix(".new")
        beside.symlink_to(self._drivers[0].lib)
        beside.replace(self._link)
        self._drivers.reverse()

    def _beside(self, *, first: bool = False) -> None:
        """Start a program again and again, with one driver: it must find everything from its second start on."""
        variables = self._runtime.environment(self._store.root, trace=True)
        while not self._stop.is_set():
            try:
                done = subprocess.run(
                    self._command(BESIDE), env=variables, capture_output=True, text=True, check=False, timeout=PATIENCE
                )
            except subprocess.TimeoutExpired:
                self.tally.wrong.append("the program beside it hangs")
                return
            self.tally.beside += 1
            if done.returncode or done.stdout != f"built {len(BESIDE)}\n":
                self.tally.wrong.append(f"the program beside it fails: {done.returncode} {done.stderr[-500:]}")
            if first:
                return
            if "has been cached" in done.stderr:
                self.tally.wrong.append(f"the program beside it compiled again: {done.stderr[-500:]}")
            self._stop.wait(1.5)

    # -- asking it ----------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: object = None) -> object:
        return ask(self._run / "xpucached" / "xpucached.sock", method, path, body)

    def _job(self, path: str, body: object) -> object:
        job = values(self._ask("POST", path, body))
        return self._ask("GET", f"/v1/jobs/{job['id']}/wait?timeout={PATIENCE:.0f}")

    def _until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until what is given is false: that is, until nothing is wrong any more."""
        end = time.monotonic() + PATIENCE
        while wrong := holds():
            if time.monotonic() > end:
                status = json.dumps(self._ask("GET", "/v1/status"))[:3000]
                raise AssertionError(f"{what}: {wrong}\n{status}\n{self._daemon.log.read_text()[-6000:]}")
            time.sleep(0.1)

    def _starts(self) -> None:
        self._daemon.start(ready=False)

        def waits() -> str:
            process = self._daemon.process
            if process is not None and process.poll() is not None:
                raise AssertionError(f"it ended with {process.returncode}: {self._daemon.log.read_text()[-6000:]}")
            try:
                verdict = values(self._ask("GET", "/v1/status"))["verdict"]
            except (OSError, http.client.HTTPException) as error:
                return str(error)
            return "starting" if verdict == "starting" else ""

        self._until(waits, "it does not start")

    def _settled(self) -> None:
        """Wait until it has nothing to do and all models are warm."""

        def goes_on() -> object:
            status = values(self._ask("GET", "/v1/status"))
            # Not jobs alone: the news of a driver may just be on its way.
            cold = {one["name"]: one["why"] for one in rows(status["models"]) if one["warmth"] != "warm"}
            return cold or [job for job in rows(status["jobs"]) if job["state"] not in ("done", "failed", "cancelled")]

        self._until(goes_on, "it does not come to rest")

    # -- the ledger ---------------------------------------------------------------------------------------------------

    def _slots(self) -> Iterator[tuple[str, Path]]:
        """Yield the key of each entry on the disk, and its program's file."""
        # Pathlib's own stumbles over a directory that goes while it looks, as the daemon still tidies.
        for name in glob.iglob("[0-9]*/[0-9]*/[0-9]*/[0-9]*/*.bin", root_dir=self._store.root):  # noqa: PTH207
            yield name.removesuffix(".bin"), self._store.root / name

    @staticmethod
    def _digests(program: Path) -> tuple[str, str] | None:
        try:
            return tuple(  # type: ignore[return-value]
                hashlib.sha256(path.read_bytes()).hexdigest() for path in (program.with_suffix(".src"), program)
            )
        except FileNotFoundError:
            return None

    def _found(self) -> set[tuple[str, str, str]]:
        """Return what is in the store or in the trash: leaf, digest of the source, digest of the program."""
        found = {
            (key.rpartition("/")[0], *digests)
            for key, path in self._slots()
            if (digests := self._digests(path)) is not None
        }
        for about in (self._store.root / ".xpucached.trash").glob("*/about.json"):
            with contextlib.suppress(FileNotFoundError):
                leaf, _, slot = json.loads(about.read_bytes() or b"{}").get("key", "").rpartition("/")
                digests = self._digests(about.parent / "leaf" / f"{slot}.bin")
                if digests is not None:
                    found.add((leaf, *digests))
        return found

    def _note(self, besides: Sequence[Slot] = ()) -> None:
        """Write down what is there whole, so that it can be missed; what we cut ourselves is not."""
        for one in besides:
            if digests := self._digests(one.bin):
                self._halves.add((str(one.leaf.relative_to(self._store.root)), *digests))
        for leaf, source, program in self._found() - self._halves:
            self._whole[leaf, source].add(program)
        self._models = {str(one["name"]) for one in rows(self._ask("GET", "/v1/models"))}
        # Those of a model are forgotten with it.
        self._runs |= {
            int(str(one["id"])) for one in rows(self._ask("GET", "/v1/runs?limit=20")) if one["model"] not in PASSING
        }

    def _lost(self) -> dict[tuple[str, str], str]:
        found = self._found()
        return {
            (leaf, source): f"{leaf}; there: {self._traces(leaf)}"
            for (leaf, source), programs in self._whole.items()
            if (leaf, source) not in self._forgiven and not any((leaf, source, one) in found for one in programs)
        }

    def _traces(self, leaf: str) -> list[str]:
        """Return what is left of a leaf, to find out how it was lost."""
        found = [f"{path.name} {path.stat().st_size}" for path in (self._store.root / leaf).glob("*")]
        for about in (self._store.root / ".xpucached.trash").glob("*/about.json"):
            text = about.read_text()
            if leaf in text:
                found += [text, *(f"{path.name} {path.stat().st_size}" for path in about.parent.glob("leaf/*"))]
        return found

    def _check(self, when: str) -> None:
        """See that everything holds that must hold."""
        lost = self._lost()
        if lost:
            # A move from one place to the other is no loss: look once more, slowly.
            time.sleep(1)
            lost = self._lost()
        wrong = [f"lost: {one}" for one in lost.values()]
        for one in {*lost, *self._forgiven} & set(self._whole):
            del self._whole[one]
        self._forgiven.clear()
        models = {str(one["name"]) for one in rows(self._ask("GET", "/v1/models"))}
        if (models ^ self._models) - self._open:
            wrong.append(f"models: {sorted(models)}, not {sorted(self._models)}")
        self._open.clear()
        remembered = {int(str(one["id"])) for one in rows(self._ask("GET", "/v1/runs?limit=1000"))}
        missing = {one for one in self._runs if one > max(self._runs) - 900} - remembered
        if missing:
            wrong.append(f"runs are forgotten: {sorted(missing)}")
        for what, holds in (
            ("what was left", self._left),
            ("the catalog and the disk", self._differs),
            ("processes of the one before", self._orphans),
        ):
            try:
                self._until(holds, what)
            except AssertionError as error:
                wrong.append(str(error))
        log = self._daemon.log.read_text()
        if "Traceback" in log:
            wrong.append(log[max(0, log.index("Traceback") - 500) :][:4000])
            self._daemon.log.write_text("")
        self.tally.wrong += [f"{when}: {one}" for one in wrong]
        self._note()

    def _left(self) -> list[str]:
        return [
            str(path.relative_to(self._store.root))
            for path in self._store.root.rglob("*")
            if path.name.endswith(".lock") or path.name == ".xpucached"
        ]

    def _differs(self) -> list[str]:
        self._job("/v1/scan", {"full": False})
        told: set[str] = set()
        after = ""
        while True:
            page = values(self._ask("GET", f"/v1/entries?limit=1000{after}"))
            told |= {str(row["key"]) for row in rows(page["entries"]) if row["store"] == str(self._store.root)}
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        return sorted(told ^ {key for key, _ in self._slots()})

    def _orphans(self) -> list[str]:
        """Return the processes of a run that no living daemon of ours began."""
        alive = self._daemon.process
        assert alive is not None
        ours = {one.pid for one in psutil.Process(alive.pid).children(recursive=True)}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                variables = process.environ()
                if (
                    "XPUCACHED_RUN" in variables
                    and variables.get("HOME") == str(self._home)
                    and process.pid not in ours
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(f"{process.pid} {process.cmdline()}")
        return found

    # -- kinds of jobs: each prepares, and gives what begins it and waits for its end ----------------------------------

    def _kill_amid(self, kind: str) -> None:
        work = self._kinds[kind]()
        took = self._took[kind]
        if not took and self._measure:
            # How long it takes is seen first, and then it is killed as it begins anew.
            before = time.monotonic()
            work()
            took.append(time.monotonic() - before)
            self._note()
            work = self._kinds[kind]()
        usual = statistics.median(took or [_USUAL])
        delay = self._chance.uniform(0, 1.1 * usual)
        self.tally.kills[kind] += 1
        self.tally.amid[kind] += delay < usual

        def asks() -> None:
            # The daemon dies meanwhile.
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                work()

        asking = threading.Thread(target=asks)
        asking.start()
        time.sleep(delay)
        self._kill()
        asking.join()

    def _kill(self) -> None:
        process = self._daemon.process
        assert process is not None
        process.kill()
        process.wait()
        self._daemon.process = None

    def _kill_at_start(self, kind: str, prepare: Callable[[], None]) -> None:
        if self._daemon.process is not None:
            self._kill()
        took = self._took["open"]
        if not took and self._measure:
            begun = time.monotonic()
            self._starts()
            took.append(time.monotonic() - begun)
            self._kill()
        prepare()
        self._daemon.start(ready=False)
        time.sleep(self._chance.uniform(0, 1.1 * statistics.median(took or [_USUAL])))
        self.tally.kills[kind] += 1
        self.tally.amid[kind] += 1
        self._kill()

    def _older(self) -> None:
        """Make the catalog one of the revision before, with all that it holds."""
        path = self._daemon.state / "catalog.sqlite"
        beside = path.with_name("older")
        home = self._home / "migrations"
        if not home.exists():
            shutil.copytree(REPOSITORY / "migrations", home, ignore=shutil.ignore_patterns("__pycache__"))
            (newest,) = home.glob(f"versions/{tables.REVISION}*.py")
            newest.unlink()
        os.close(os.open(beside, os.O_CREAT | os.O_RDWR, 0o600))
        engine = opening.connections(beside)
        with engine.connect() as connection:
            migrating.migrate(connection, home)
        engine.dispose()
        with closing(sqlite3.connect(path)) as present:
            present.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with closing(sqlite3.connect(beside)) as old:
            old.execute("ATTACH ? AS present", (str(path),))
            names = "SELECT name FROM {}.sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
            shared = set(old.execute(names.format("main"))) & set(old.execute(names.format("present")))
            # The figures are kept up by triggers.
            for (table,) in sorted(shared - {("alembic_version",), ("sqlite_sequence",), ("figures",)}):
                columns = [
                    {row[1] for row in old.execute(f"PRAGMA {schema}.table_info('{table}')")}
                    for schema in ("main", "present")
                ]
                both = ", ".join(f'"{one}"' for one in sorted(columns[0] & columns[1]))
                copy = f'INSERT INTO main."{table}" ({both}) SELECT {both} FROM present."{table}"'  # noqa: S608 - ours
                old.execute(copy)
            old.commit()
            old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        beside.replace(path)
        for suffix in ("-wal", "-shm"):
            beside.with_name(beside.name + suffix).unlink(missing_ok=True)

    def _scan(self) -> Callable[[], object]:
        self._add_old(2)
        return lambda: self._job("/v1/scan", {"full": True})

    def _prewarm(self) -> Callable[[], object]:
        name = self._chance.choice(["two", "loaded"])
        self._take_out(name, 1)
        return lambda: self._job("/v1/prewarm", {"models": [name], "force": True})

    def _replay(self) -> Callable[[], object]:
        for name in ("two", "loaded"):
            self._take_out(name, 2)
        return lambda: self._job("/v1/replay", {})

    def _evict(self) -> Callable[[], object]:
        self._add_old(6)
        self._job("/v1/scan", {})
        return lambda: self._job("/v1/evict", {})

    def _verify(self) -> Callable[[], object]:
        self._add_old(3, cut=True)
        return lambda: self._job("/v1/verify", {"fix": True})

    def _mend(self) -> Callable[[], object]:
        """Cut programs of the present driver: what finds them by itself compiles them again."""
        entries = rows(values(self._ask("GET", "/v1/entries?model=two&driver=current"))["entries"])
        for entry in self._chance.sample(entries, min(2, len(entries))):
            program = self._store.root / f"{entry['key']}.bin"
            digests = self._digests(program)
            if digests is not None:
                leaf = str(entry["key"]).rpartition("/")[0]
                self._forgiven.add((leaf, digests[0]))
                os.truncate(program, program.stat().st_size - 20)
                self._halves.add((leaf, *(self._digests(program) or ("", ""))))

        def looks() -> None:
            self._ask("POST", "/v1/refresh")
            self._job("/v1/scan", {"full": True})
            time.sleep(0.3)
            self._settled()

        return looks

    def _restore(self) -> Callable[[], object]:
        refs = self._trashed()
        if not refs:
            self._evict()()
            refs = self._trashed()
        return lambda: self._job("/v1/trash/restore", {"refs": self._chance.sample(refs, min(4, len(refs)))})

    def _empty(self) -> Callable[[], object]:
        refs = self._trashed()
        if not refs:
            self._evict()()
            refs = self._trashed()
        going = self._chance.sample(refs, min(6, len(refs)))
        for ref in going:
            place = self._store.root / ".xpucached.trash" / ref
            leaf, _, slot = json.loads((place / "about.json").read_bytes())["key"].rpartition("/")
            digests = self._digests(place / "leaf" / f"{slot}.bin")
            if digests is not None:
                self._forgiven.add((leaf, digests[0]))
        return lambda: self._job("/v1/trash/empty", {"refs": going})

    def _driver(self) -> Callable[[], object]:
        def changes() -> None:
            self._switch()
            self._ask("POST", "/v1/refresh")
            time.sleep(0.3)
            self._settled()

        return changes

    def _add(self) -> Callable[[], object]:
        name = self._chance.choice(PASSING)
        if name in self._models:
            self._forget(name)

        def adds() -> object:
            self._open.add(name)
            self._ask("POST", "/v1/models", self._model(name, [name]))
            self._models.add(name)
            self._open.discard(name)
            return self._job("/v1/prewarm", {"models": [name]})

        return adds

    def _remove(self) -> Callable[[], object]:
        name = self._chance.choice(PASSING)
        if name not in self._models:
            self._ask("POST", "/v1/models", self._model(name, [name]))
            self._models.add(name)
        # While it is just being warmed, too.
        if self._chance.random() < 0.5:
            self._ask("POST", "/v1/prewarm", {"models": [name], "force": True})
        return lambda: self._forget(name)

    def _forget(self, name: str) -> None:
        self._open.add(name)
        self._models.discard(name)
        self._ask("DELETE", f"/v1/models/{name}")
        self._open.discard(name)

    def _trashed(self) -> list[str]:
        return [str(row["ref"]) for row in rows(self._ask("GET", "/v1/trash")) if not row["quarantined"]]

    def _take_out(self, model: str, count: int) -> None:
        """Evict some of a model's entries of the present driver by name, so that there is something to make again."""
        there = rows(values(self._ask("GET", f"/v1/entries?model={model}&driver=current"))["entries"])
        refs = [row["ref"] for row in self._chance.sample(there, min(count, len(there)))]
        if refs:
            self._job("/v1/evict", {"refs": refs})
            self._note()

    def _add_old(self, count: int, *, cut: bool = False) -> None:
        """Add what may go: entries of a driver of long ago, alone and several in a leaf, whole or not."""
        halves = []
        for _ in range(count):
            self._number += 1
            name = f"_ZTS{len(str(self._number)) + 1}k{self._number}"
            for slot in range(1 + self._number % 3):
                made = self._store.add(name, driver=OLD, age=90 * 86400, slot=slot, size=300)
                if cut and self._chance.random() < 0.6:
                    # Half a program, as a full disk leaves it: that one is not missed when it is mended.
                    made.cut(made.bin, 20)
                    halves.append(made)
        self._note(halves)

    def _last_look(self) -> None:
        """At the end all models are warm, and the programs themselves compile nothing."""
        self._job("/v1/prewarm", {"stale": True})
        self._settled()
        variables = self._runtime.environment(self._store.root, driver=self._link / "libintelocl.so", trace=True)
        for name, kernels in MODELS.items():
            done = subprocess.run(
                self._command(kernels), env=variables, capture_output=True, text=True, check=False, timeout=PATIENCE
            )
            if done.returncode or "has been cached" in done.stderr:
                self.tally.wrong.append(f"{name} is said to be warm: {done.returncode} {done.stderr[-500:]}")


def main() -> int:
    """Kill a daemon so many times, and say what came of it."""
    options = argparse.ArgumentParser(prog="python -m tests.support.kills", description=(__doc__ or "").splitlines()[0])
    options.add_argument("--kills", type=int, default=500)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--runtimes", type=Path, default=Path(os.environ.get("XPUCACHED_RUNTIMES") or ".runtimes"))
    given = options.parse_args()
    folder: Path = given.runtimes.absolute()
    first, second = look_up(folder, "rt2025.2"), look_up(folder, "drv2025.3")
    if first is None or second is None:
        raise SystemExit(f"no runtimes in {given.runtimes}: python3 tools/runtimes.py {given.runtimes} --test")
    begun = time.monotonic()

    def every(number: int, tally: Tally) -> None:
        if number % 10 == 0 or tally.wrong:
            print(f"{time.monotonic() - begun:6.0f} s, {number} kills, {tally.beside} starts beside", flush=True)
        for one in tally.wrong:
            print(f"WRONG {one}", flush=True)
        wrong.extend(tally.wrong)
        tally.wrong.clear()

    wrong: list[str] = []
    # What is found wrong is told at once, and the place stays for looking at.
    place, run = (Path(tempfile.mkdtemp(prefix="xpu-kills-")) for _ in range(2))
    with contextlib.ExitStack() as stack:
        tally = Campaign(place / "w", run, first, second, given.seed).run(given.kills, every=every)
        wrong.extend(tally.wrong)
        if not wrong:
            for made in (place, run):
                stack.callback(shutil.rmtree, made)
    for kind, count in sorted(tally.kills.items()):
        print(f"{kind:8} {count:4} kills, {tally.amid[kind]:4} before its usual end")
    print(f"{sum(tally.kills.values())} kills, {tally.beside} starts beside it, {len(wrong)} things wrong")
    for one in wrong:
        print(f"WRONG {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
