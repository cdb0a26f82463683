"""Compiling entries again: what proves them, and what takes a damaged one's place."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

from tests.builders import native
from tests.daemons import daemon
from tests.kinds.test_sycl_damage import look
from tests.test_daemon import driven
from tests.test_replay import checksum_and_trace
from xpucached import render, settings
from xpucached.catalog import Catalog
from xpucached.dispatch import Dispatch
from xpucached.domain import (
    Architecture,
    Comparison,
    Defect,
    Effect,
    Environment,
    Flaw,
    Host,
    MendAction,
    OtherDriver,
    Remedy,
    Unproven,
    VerifyReport,
)
from xpucached.kinds import sycl
from xpucached.kinds.sycl import layout
from xpucached.render.text import Look
from xpucached.service import comparing
from xpucached.service.comparing import Comparing
from xpucached.service.events import Events
from xpucached.service.observing import Observing
from xpucached.service.verifying import Verifying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.builders import Slot, SyclStore
    from tests.daemons import Daemon
    from tests.runtimes import Runtime

COMPILER: Final = """import json, os, pathlib, sys
answers = os.fdopen(int(sys.argv[sys.argv.index("--fd") + 1]), "wb", 0)
answers.write(b'{"ready": true}\\n')
while line := sys.stdin.buffer.readline():
    head = json.loads(line)
    options = sys.stdin.buffer.read(head["options"]).decode()
    sys.stdin.buffer.read(head["image"])
    made = pathlib.Path(PLACE, options)
    if made.exists():
        content = made.read_bytes()
        answers.write(json.dumps({"binary": len(content), "seconds": 0.5}).encode() + b"\\n" + content)
    else:
        answers.write(b'{"error": "it does not like this"}\\n')
"""
"""A compiler that makes of a program what lies under its options' name."""


class Handle:
    def progress(self, done: int, total: int, detail: str = "") -> None: ...


class Bench:
    """A store, and a daemon's parts that verify it with such a compiler."""

    def __init__(self, store: SyclStore, place: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.made = place / "made"
        self.made.mkdir()
        tool = place / "compiler"
        tool.write_text(f"#!{sys.executable}\nPLACE = {os.fspath(self.made)!r}\n{COMPILER}")
        tool.chmod(0o755)
        self.catalog = catalog
        environment = Environment(*(store.defaults[part] for part in ("platform", "device", "version", "driver")))
        catalog.record_host(Host(datetime.now(UTC), "boot", "6", "stamp", environments=(environment,)))
        driver = OtherDriver((environment,), "stamp", {}, (os.fspath(tool),))
        monkeypatch.setattr(comparing, "drivers_in_use", lambda _observing: (driver,))
        environ = {"XPUCACHED_STORES_FOUND": "false", "XPUCACHED_STORES_PATHS": os.fspath(store.root)}
        config = settings.load(None, user=True, environ={**os.environ, **environ})

        def clock() -> datetime:
            return datetime.now(UTC)

        self.observing = Observing(config, catalog, {}, clock, Events(clock))

    def add(self, options: str, binary: bytes | None = None, **given: object) -> Slot:
        """Add an entry; what is compiled of it is what it has, or ``binary``; nothing if that is empty."""
        content = native(300 + len(options))
        slot = self.store.add(options=options, binary=content, **given)  # type: ignore[arg-type]
        if binary != b"":
            (self.made / options).write_bytes(binary or content)
        return slot

    def verify(self, *, fix: bool = False, deep: bool = False) -> VerifyReport:
        async def work() -> VerifyReport:
            compare = Comparing(self.observing, Dispatch(os.environ, "test"))
            verifying = Verifying(self.observing, compare, asyncio.Lock())
            return await verifying.work(fix=fix, deep=deep)(Handle())  # type: ignore[arg-type]

        return asyncio.run(work())

    def found(self, report: VerifyReport) -> dict[str, tuple[Flaw | None, MendAction, bool, str]]:
        """Give what a report says, by the options of the entry at that place."""
        options = {one.entry.id.ref: one.entry.options for one in self.catalog.all_entries()}
        return {
            options.get(one.ref, "") if one.ref else "": (one.flaw, one.action, one.done, one.detail)
            for one in report.findings
        }


@pytest.fixture
def bench(sycl_store: SyclStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with closing(Catalog.open(tmp_path / "state" / "catalog.sqlite")) as catalog:
        yield Bench(sycl_store, tmp_path, catalog, monkeypatch)


def flip(path: Path, at: int = -40, bit: int = 0x10) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    with path.open("r+b") as file:
        file.write(content)


def test_equal_bytes_prove_an_entry_and_others_prove_nothing(bench: Bench) -> None:
    bench.add("-same")
    bench.add("-otherwise", native(999))
    bench.add("-refused", b"")
    bench.add("-constants", constants=b"\1\2")
    bench.add("-another", driver="2019.1")
    before = {path: path.read_bytes() for path in bench.store.root.rglob("*") if path.is_file()}

    report = bench.verify(fix=True, deep=True)

    assert report.findings == ()
    deep = report.deep
    assert deep is not None
    assert deep.proven == 1
    assert deep.unproven == dict.fromkeys(
        (Unproven.OTHER_BYTES, Unproven.FAILED, Unproven.CONSTANTS, Unproven.OTHER_DRIVER), 1
    )
    refs = {one.entry.options: one.entry.id.ref for one in bench.catalog.all_entries()}
    assert deep.differing == (refs["-otherwise"],)
    assert [words.partition(": ")[::2] for words in deep.failures] == [(refs["-refused"], "it does not like this")]
    # Other bytes alone are no damage: nothing has moved, not even with --fix.
    assert {path: path.read_bytes() for path in bench.store.root.rglob("*") if path.is_file()} == before


def test_a_damaged_program_is_compiled_again_where_its_driver_is_here(bench: Bench) -> None:
    slots = {name: bench.add(f"-{name}") for name in ("changed", "cut", "gone", "directory", "refused", "another")}
    whole = {name: slot.bin.read_bytes() for name, slot in slots.items()}
    (bench.made / "-refused").unlink()
    other = bench.store.add(options="-elsewhere", driver="2019.1", size=500)
    bench.verify()
    flip(slots["changed"].bin)
    slots["cut"].cut(slots["cut"].bin, 30)
    slots["gone"].bin.unlink()
    slots["directory"].bin.unlink()
    slots["directory"].bin.mkdir()
    for slot in (slots["refused"], other):
        slot.cut(slot.bin, 30)

    report = bench.verify(fix=True)

    assert sorted((one.action, one.done) for one in report.findings) == [
        *[(MendAction.QUARANTINE, True)] * 2,
        *[(MendAction.REBUILD, True)] * 4,
    ]
    assert {name for name, slot in slots.items() if slot.bin.is_file() and slot.bin.read_bytes() == whole[name]} == {
        *("changed", "cut", "gone", "directory", "another")
    }
    assert not slots["refused"].src.exists()
    assert not other.src.exists()
    assert [one.detail for one in report.findings if "it does not like this" in one.detail]
    assert bench.verify().findings == ()


def test_what_changed_and_is_what_its_compiler_makes_is_trusted_from_then_on(bench: Bench) -> None:
    slot = bench.add("-k")
    bench.verify()
    flip(slot.bin)
    (bench.made / "-k").write_bytes(slot.bin.read_bytes()[16:])
    assert [one.flaw for one in bench.verify().findings] == [Flaw.BIN_CHANGED]
    report = bench.verify(deep=True)
    assert report.deep is not None
    assert (report.deep.proven, report.findings) == (1, ())
    assert bench.verify().findings == ()
    flip(slot.bin, -50)
    assert [one.flaw for one in bench.verify(deep=True).findings] == [Flaw.BIN_CHANGED]


def test_programs_in_each_other_s_places_change_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.observing._surveying, "host", replace(bench.observing.present, environments=()))
    slots = [bench.store.add(options=f"-{number}", size=300 + 100 * number) for number in range(6)]
    whole = [slot.bin.read_bytes() for slot in slots]
    bench.verify()
    # Two change places by their names, three in a ring by what is in them, and one is only another's copy.
    aside = bench.store.root.parent / "aside"
    slots[0].bin.rename(aside)
    slots[1].bin.rename(slots[0].bin)
    aside.rename(slots[1].bin)
    for number, content in ((2, whole[3]), (3, whole[4]), (4, whole[2]), (5, whole[0])):
        with slots[number].bin.open("r+b") as file:
            file.write(content)
            file.truncate()

    report = bench.verify(fix=True)

    assert [slot.bin.read_bytes() for slot in slots[:5]] == whole[:5]
    assert not slots[5].bin.exists()
    assert {one.action for one in report.findings if one.done} == {MendAction.SWAP_BACK, MendAction.QUARANTINE}
    assert sum(one.action is MendAction.QUARANTINE for one in report.findings) == 1
    assert all(one.done for one in report.findings)
    assert not list(bench.store.root.rglob("*.lock"))
    assert bench.verify().findings == ()


def test_a_pair_that_a_program_is_writing_stays(bench: Bench) -> None:
    first, second = (bench.store.add(options=f"-{size}", size=size) for size in (300, 500))
    bench.verify()
    one, two = first.bin.read_bytes(), second.bin.read_bytes()
    first.bin.write_bytes(two)
    second.bin.write_bytes(one)
    bench.verify()
    entries = sorted((one.entry for one in bench.catalog.all_entries()), key=lambda one: one.options)
    pair = [Remedy(entries[0], MendAction.SWAP_BACK, entries[1]), Remedy(entries[1], MendAction.SWAP_BACK, entries[0])]
    second.take_lock()
    assert set(sycl.mend(pair).values()) == {False}
    assert not first.lock.exists()
    assert (first.bin.read_bytes(), second.bin.read_bytes()) == (two, one)
    second.lock.unlink()
    assert set(sycl.mend(pair).values()) == {True}
    assert (first.bin.read_bytes(), second.bin.read_bytes()) == (one, two)


def test_a_program_of_more_than_we_take_into_memory_has_a_digest(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "READ_LIMIT", 4096)
    slot = bench.store.add(size=3 << 20)
    bench.verify()
    assert [one.entry.digest for one in bench.catalog.all_entries()] == [None]
    bench.verify()
    expected = hashlib.blake2b(slot.bin.read_bytes()[16:], digest_size=16).hexdigest()
    assert [one.entry.digest for one in bench.catalog.all_entries()] == [expected]
    flip(slot.bin, 2 << 20)
    assert [one.flaw for one in bench.verify().findings] == [Flaw.BIN_CHANGED]


def test_each_fate_and_each_reason_has_words(bench: Bench) -> None:
    bench.add("-otherwise", native(999))
    report = bench.verify(deep=True)
    shown = Look(datetime.now(UTC))
    assert "not proven: 1 came out otherwise, which alone is no damage" in render.keeping.verification(report, shown)
    deep = Comparison(1, dict.fromkeys(Unproven, 1))
    assert len(render.keeping.comparison(deep, shown).splitlines()) == 1 + len(Unproven)
    (entry,) = bench.catalog.all_entries()
    for action in MendAction:
        finding = Defect.of(entry.entry.id, Flaw.BIN_CHANGED, Effect.FAILS, "", action, done=True)
        assert render.keeping.verification(VerifyReport(True, 1, 1, (finding,)), shown)  # noqa: FBT003


@pytest.fixture
def real(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Give a daemon that is not started yet."""
    with daemon(home, short_dir) as one:
        yield one


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_flipped_bits_in_what_real_runtimes_wrote_are_found_and_mended(
    real: Daemon, runtime: Callable[[str], Runtime], workload: Path, tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    root = tmp_path / "cache"
    truth, made, _ = checksum_and_trace(first, first, workload, root)
    checksum_and_trace(first, second, workload, root)
    binaries = sorted(root.glob("[0-9]*/*/*/*/0.bin"))
    assert len(binaries) == 2 * made

    # Every flipped bit is found after one look at what was whole, wherever it is.
    with closing(Catalog.open(tmp_path / "catalog.sqlite")) as catalog:
        catalog.record_scan(look(root), lambda _: Architecture("x86_64"))
        chance = random.Random(9)  # noqa: S311 - the same bits each time
        found = 0
        for number in range(64):
            path = binaries[number % len(binaries)]
            at, bit = chance.randrange(path.stat().st_size), 1 << chance.randrange(8)
            flip(path, at, bit)
            catalog.record_scan(look(root), lambda _: Architecture("x86_64"))
            found += sum(one.entry.flaw is not None for one in catalog.all_entries())
            flip(path, at, bit)
        assert found == 64
        catalog.record_scan(look(root), lambda _: Architecture("x86_64"))
        assert {one.entry.flaw for one in catalog.all_entries()} == {None}

    # What the present driver compiled is compiled again from itself, what the other one did goes.
    driven(real, first, tmp_path / "driver", f"[stores]\npaths = ['{root}']\n")
    real.configure(real.config.read_text() + "replay = false\nevict = false\n")
    real.start()
    deep = real.ask("verify", "--deep")["verify"]["deep"]  # type: ignore[index]
    assert (deep["proven"], deep["unproven"]) == (made, {"other-driver": made})
    for path in binaries:
        flip(path)
    real.ctl("verify", "--fix")
    assert checksum_and_trace(first, first, workload, root) == (truth, 0, made)
    assert len(list(root.glob("[0-9]*/*/*/*/0.bin"))) == made
