"""What is exported, what is left out, and that a bundle is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support import forks
from tests.support.builders import native, sycl_target
from xpucached.bundling import drivers, sources
from xpucached.bundling.__main__ import carry_out
from xpucached.bundling.drivers import UsedDriver
from xpucached.catalog import Catalog
from xpucached.catalog.builds import record_build, record_import
from xpucached.catalog.scans import record_scan
from xpucached.domain.bundles import (
    BundleContent,
    BundleSource,
    Compression,
    ExportBundle,
    ExportReport,
    InspectBundle,
    MadeEntry,
)
from xpucached.domain.host import Host, OtherDriver
from xpucached.domain.names import Architecture, EntryKey
from xpucached.domain.plans import Built
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.domain.targets import Origin
from xpucached.errors import AlreadyThere, BadBundle, Conflict, Denied, DiskError, NotFound
from xpucached.kinds import sycl
from xpucached.kinds.sycl import portable
from xpucached.kinds.table import KINDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.builders import SyclStore
    from xpucached.domain.bundles import BundleOrder, BundleReport


def done(order: BundleOrder) -> BundleReport:
    return carry_out(order, lambda *_: None)


def exported(store: SyclStore, dest: Path) -> ExportReport:
    report = done(ExportBundle(dest, store.root, recipes_only=True, compression=Compression.GZIP))
    assert isinstance(report, ExportReport)
    return report


@pytest.mark.parametrize("name", ["folder", "file.tar"])
def test_what_is_there_stays(name: str, sycl_store: SyclStore, tmp_path: Path) -> None:
    sycl_store.add("_ZTS1a")
    exported(sycl_store, tmp_path / name)
    before = (tmp_path / name).stat()

    with pytest.raises(AlreadyThere):
        exported(sycl_store, tmp_path / name)

    assert (tmp_path / name).stat() == before


def test_what_is_no_bundle_is_refused(sycl_store: SyclStore, tmp_path: Path) -> None:
    sycl_store.add("_ZTS1a")
    with pytest.raises(NotFound):
        done(InspectBundle(tmp_path / "none"))
    with pytest.raises(BadBundle, match="oci-layout is missing"):
        done(InspectBundle(sycl_store.root))
    with pytest.raises(NotFound, match="no store"):
        done(ExportBundle(tmp_path / "x", tmp_path, recipes_only=True))
    with pytest.raises(NotFound, match=f"{tmp_path}/none cannot be read: No such file"):
        done(ExportBundle(tmp_path / "x", tmp_path / "none", recipes_only=True))
    (tmp_path / "app.py").write_text("print(1)\n")
    with pytest.raises(BadBundle, match=f"{tmp_path}/app.py is no bundle") as caught:
        done(InspectBundle(tmp_path / "app.py"))
    assert "bundle export" in caught.value.hint
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadBundle, match="neither a folder nor a file"):
        done(InspectBundle(tmp_path / "pipe"))


def test_a_store_that_may_not_be_read_is_told_from_what_is_none(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    before = os.geteuid()
    # Root may read everything.
    os.seteuid(before or 65534)
    try:
        with pytest.raises(Denied, match=f"{closed} may not be read"):
            sources._store(closed, None)
    finally:
        os.seteuid(before)


def test_what_cannot_travel_is_left_out_and_said(sycl_store: SyclStore, tmp_path: Path) -> None:
    sycl_store.add("_ZTS1a")
    sycl_store.add("_ZTS1b", constants=b"\1")
    sycl_store.add("_ZTS1c", image=b"\x7fELF" + bytes(60))
    sycl_store.add("_ZTS1d").bin.write_bytes(b"")

    told = exported(sycl_store, tmp_path / "a")

    assert told.recipes == 1
    assert sorted(told.skipped.values()) == [1, 1]
    assert [one.facts.content for one in told.view.members] == [BundleContent.RECIPES]


def test_a_recipe_that_nobody_would_read_does_not_travel(sycl_store: SyclStore, tmp_path: Path) -> None:
    sycl_store.add("_ZTS1a")
    sycl_store.add("_ZTS1b", options="-D" + "x" * 200_000)
    told = exported(sycl_store, tmp_path / "a")
    assert (told.recipes, told.skipped) == (1, {"no recipe: its build options are too long": 1})
    done(InspectBundle(tmp_path / "a", deep=True))


def test_a_damaged_program_or_one_that_is_replaced_meanwhile_does_not_travel(
    sycl_store: SyclStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, damaged = sycl_store.add("_ZTS1a"), sycl_store.add("_ZTS1b", binary=native(300)[:200])
    entries = {one.id.key: one for one in sources._scanned(sources._store(sycl_store.root, None))}
    found = {
        leaf.bin.parent: entries[EntryKey(str(leaf.bin.relative_to(sycl_store.root).with_suffix("")))]
        for leaf in (whole, damaged)
    }

    files, _ = portable.pack(found[whole.bin.parent])
    assert sorted(files.values()) == sorted([whole.bin.read_bytes(), whole.src.read_bytes()])
    with pytest.raises(ValueError, match="its program is damaged"):
        portable.pack(found[damaged.bin.parent])

    def replaced(directory: int, name: str) -> tuple[bytes, os.stat_result]:
        told = before(directory, name)
        shutil.copy(whole.src, tmp_path / "new")
        (tmp_path / "new").rename(whole.src)
        return told

    before = portable._read
    monkeypatch.setattr(portable, "_read", replaced)
    with pytest.raises(ValueError, match="a program is writing it"):
        portable.pack(found[whole.bin.parent])


@pytest.mark.flow
@pytest.mark.parametrize("name", ["folder", "file.tar"])
def test_a_killed_export_leaves_what_was_there(name: str, sycl_store: SyclStore, tmp_path: Path) -> None:
    for number in range(30):
        sycl_store.add(f"_ZTS{number}")
    dest = tmp_path / "there" / name
    dest.parent.mkdir()
    began = time.monotonic()
    exported(sycl_store, dest)
    whole = time.monotonic() - began
    draw = random.Random(name)  # noqa: S311 - which moments
    broken = 0
    for _ in range(25):
        shutil.rmtree(dest) if dest.is_dir() else dest.unlink(missing_ok=True)
        pid = forks.copy(partial(exported, sycl_store, dest))
        time.sleep(draw.uniform(0, whole * 1.2))
        forks.kill(pid)
        if dest.exists():
            done(InspectBundle(dest, deep=True))
        else:
            broken += 1
    assert broken
    shutil.rmtree(dest) if dest.is_dir() else dest.unlink(missing_ok=True)
    exported(sycl_store, dest)

    done(InspectBundle(dest, deep=True))
    assert [path.name for path in dest.parent.iterdir()] == [name]


@pytest.mark.flow
def test_what_came_with_what_is_revoked_is_given_out_no_more_whenever_a_daemon_last_looked(
    sycl_store: SyclStore, home: Path, tmp_path: Path
) -> None:
    for name in ("_ZTS1a", "_ZTS1b", "_ZTS1c"):
        sycl_store.add(name)
    settings, now = drivers.settings(), datetime.now(UTC)
    found = FoundStore(Store(sycl.NAME, sycl_store.root), StoreOrigin.CONFIGURED, "named")
    (part,) = KINDS[sycl.NAME].scanner.parts(found, now, (), None)
    key, bundle = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
    settings.paths.state.mkdir(parents=True)
    with contextlib.closing(Catalog.open(settings.paths.state / "catalog.sqlite")) as catalog:
        for one, signed in zip(part.entries, ((key,), (), None), strict=True):
            if signed is not None:
                made = MadeEntry(
                    sycl.NAME, sycl_store.root, one.id.key, one.digest or "", "", 1.5, 0, "release", *signed
                )
                catalog.write(record_import, (made,), bundle, BundleSource("release", *signed), now)
        catalog.write(record_scan, part, lambda target: Architecture(target.device))
    order = ExportBundle(tmp_path / "bundle", recipes_only=True)

    def left_out() -> tuple[int, object]:
        # A store that is named may be one that the catalog knows.
        told: list[tuple[int, object]] = []
        for one in (order, replace(order, store=sycl_store.root)):
            shutil.rmtree(order.dest, ignore_errors=True)
            report = done(one)
            assert isinstance(report, ExportReport)
            told.append((report.recipes, report.skipped))
        assert told[0] == told[1]
        return told[0]

    assert left_out() == (3, {})
    keys = home / ".config/xpucached/trust.d"
    keys.mkdir(parents=True)
    (keys / "revoked").write_text(f"{key}\n")
    assert left_out() == (2, {"what it came with is revoked here": 1})
    (keys / "revoked").write_text(f"{bundle}\n")
    assert left_out() == (1, {"what it came with is revoked here": 2})
    with sources.selected(replace(order, made_here=True), settings) as chosen:
        assert (chosen.entries, chosen.revoked) == ((), 2)
    # Also where programs travel, by a walk through the store.
    walked = ExportBundle(tmp_path / "programs", sycl_store.root)
    report = done(walked)
    assert isinstance(report, ExportReport)
    assert {one.facts.content: one.facts.entries for one in report.view.members} == dict.fromkeys(BundleContent, 1)
    assert report.skipped == {"what it came with is revoked here": 2}
    (keys / "revoked").write_text("release\n")
    for refused in (ExportBundle(tmp_path / "mine", recipes_only=True), replace(walked, dest=tmp_path / "mine")):
        with pytest.raises(Conflict, match="line 1 is no digest"):
            done(refused)
    assert not (tmp_path / "mine").exists()


def test_only_what_was_compiled_here_is_given_out_as_made_here(
    sycl_store: SyclStore, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog says what was; another program may lie there since."""
    target, now = sycl_target(*sycl_store.defaults.values()), datetime.now(UTC)
    here = Host(surveyed=now, boot="", kernel="", stamp="")
    used = UsedDriver(OtherDriver((target,), "", {}), here, {})
    monkeypatch.setattr(drivers, "used", lambda *_: contextlib.nullcontext(used))
    slots = [sycl_store.add(name) for name in ("_ZTS1a", "_ZTS1b", "_ZTS1c")]
    found = FoundStore(Store(sycl.NAME, sycl_store.root), StoreOrigin.CONFIGURED, "named")
    (part,) = KINDS[sycl.NAME].scanner.parts(found, now, (), None)
    state = drivers.settings().paths.state
    state.mkdir(parents=True)
    assert home in state.parents
    with contextlib.closing(Catalog.open(state / "catalog.sqlite")) as catalog:
        for one in part.entries:
            catalog.write(record_build, Built(one.id, target, Origin.REBUILT, "", 1, 1.0, one.digest or ""), now)
        catalog.write(record_scan, part, lambda target: Architecture(target.device))
    program = native(400)
    slots[0].bin.write_bytes(struct.pack("<QQ", 1, len(program)) + program)
    slots[1].bin.unlink()
    report = done(ExportBundle(tmp_path / "bundle", made_here=True))
    assert isinstance(report, ExportReport)
    assert report.skipped == {"another program lies where it was compiled": 1, "it is there no more": 1}
    assert [one.facts.entries for one in report.view.members] == [1]
    # What is there and cannot be read is not nothing.
    for slot in slots:
        shutil.rmtree(slot.bin.parent)
        slot.bin.parent.symlink_to("/")
    with pytest.raises(DiskError, match="3 entries: it cannot be read"):
        done(ExportBundle(tmp_path / "none", made_here=True))
