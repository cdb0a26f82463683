"""Replay's two ends: what an entry was compiled from, and putting the result in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.support.builders import SyclStore, native, spirv, sycl_target
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import NoRecipe, Recipe
from xpucached.domain.stores import Entry, EntryId, FoundStore, Scan, Store, StoreOrigin
from xpucached.kinds import sycl
from xpucached.kinds.sycl import entry_format, recipes
from xpucached.libexec import driver_calls

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "OpenCL 3.1 (Build 0)"
NEW = sycl_target("Intel(R) OpenCL", "Intel(R) Xeon(R) Processor", VERSION, "2026.1")


def look(root: Path) -> Scan:
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
    return sycl.scanner.scan(found, datetime.now(UTC), {}, None)


def only(store: SyclStore) -> Entry:
    (entry,) = look(store.root).entries
    return entry


def recipe_of(store: SyclStore) -> Recipe:
    found = sycl.recipes.recipe(only(store))
    assert isinstance(found, Recipe)
    return found


def test_a_recipe_is_all_that_was_compiled(sycl_store: SyclStore) -> None:
    image = spirv("_ZTS3foo", size=5000)
    slot = sycl_store.add(image=image, options=" -ze-opt-level=2")
    slot.src.chmod(0o640)
    found = recipe_of(sycl_store)
    assert (found.input, found.options) == (image, b" -ze-opt-level=2")
    assert found.facts == {"file-mode": "640", "directory-mode": "755", "access-time": "kept"}


def test_the_group_s_bit_of_directories_comes_with_the_one_above_and_is_not_asked_for(sycl_store: SyclStore) -> None:
    sycl_store.root.mkdir()
    sycl_store.root.chmod(0o2755)
    slot = sycl_store.add()
    assert slot.leaf.stat().st_mode & 0o7777 == 0o2755
    found = recipe_of(sycl_store)
    # Who is kept from making such directories by a filter of system calls, as by systemd, may make these.
    assert found.facts["directory-mode"] == "755"
    key = sycl.recipes.publish(found, NEW, native())
    assert key is not None
    made = (sycl_store.root / key).parent
    assert {one.stat().st_mode & 0o7777 for one in (made, *made.parents[:3])} == {0o2755}


def test_who_shares_a_store_may_go_where_something_is_published_whatever_our_mask_is(sycl_store: SyclStore) -> None:
    leaf = sycl_store.add().leaf
    for one in (leaf, *leaf.parents[:3]):
        one.chmod(0o2775)
    mask = os.umask(0o077)
    try:
        key = sycl.recipes.publish(recipe_of(sycl_store), NEW, native())
    finally:
        os.umask(mask)
    assert key is not None
    made = (sycl_store.root / key).parent
    assert [one.stat().st_mode & 0o777 for one in (made, *made.parents[:3])] == [0o775] * 4


def test_of_long_options_and_constants_the_beginning_is_told(sycl_store: SyclStore) -> None:
    sycl_store.add(options="x" * ((64 << 10) + 1), constants=bytes((4 << 10) + 1))
    entry = only(sycl_store)
    assert (len(entry.options), len(entry.constants)) == (64 << 10, 2 * (4 << 10))


@pytest.mark.parametrize(
    ("image", "constants", "reason"),
    [
        (native(300), b"", NoRecipe.NATIVE),
        (spirv("_ZTS1a"), b"\1\2", NoRecipe.CONSTANTS),
        (spirv("_ZTS1a") + spirv("_ZTS1b"), b"", NoRecipe.SEVERAL),
    ],
)
def test_what_cannot_be_compiled_again(sycl_store: SyclStore, image: bytes, constants: bytes, reason: NoRecipe) -> None:
    sycl_store.add(image=image, constants=constants)
    assert sycl.recipes.recipe(only(sycl_store)) is reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_somebody_else_wrote_reaches_no_compiler_of_ours(sycl_store: SyclStore) -> None:
    slot = sycl_store.add()
    entry = only(sycl_store)
    os.chown(slot.src, 12345, 12345)
    assert sycl.recipes.recipe(entry) is NoRecipe.FOREIGN


def test_what_does_not_hash_to_its_own_place_is_no_recipe(sycl_store: SyclStore) -> None:
    slot = sycl_store.add()
    entry = only(sycl_store)
    data = bytearray(slot.src.read_bytes())
    data[-1] ^= 1
    slot.src.write_bytes(data)
    assert sycl.recipes.recipe(entry) is NoRecipe.DAMAGED
    slot.src.unlink()
    os.mkfifo(slot.src)
    assert sycl.recipes.recipe(entry) is NoRecipe.UNREADABLE


def test_published_is_what_the_runtime_would_have_written(sycl_store: SyclStore) -> None:
    old = sycl_store.add(kernel="_ZTS3foo", options="-O1")
    old.leaf.chmod(0o750)
    binary = native(900)
    key = sycl.recipes.publish(recipe_of(sycl_store), NEW, binary)
    assert key is not None
    made = sycl_store.root / f"{key}.bin"
    want = SyclStore(sycl_store.root.parent / "want").add(
        kernel="_ZTS3foo", options="-O1", version=VERSION, driver=NEW.toolchain, binary=binary
    )
    assert made.read_bytes() == want.bin.read_bytes()
    assert made.with_suffix(".src").read_bytes() == want.src.read_bytes()
    assert made.parent.relative_to(sycl_store.root) == want.leaf.relative_to(sycl_store.root.parent / "want")
    assert made.parent.stat().st_mode & 0o777 == 0o750
    assert sorted(path.name for path in made.parent.iterdir()) == ["0.bin", "0.src", "0_access_time.txt"]
    entries = look(sycl_store.root).entries
    assert {entry.environment for entry in entries} == {
        NEW,
        sycl_target(NEW.family, NEW.device, "OpenCL 3.0 (Build 0)", sycl_store.defaults["driver"]),
    }
    assert all(entry.defect is None for entry in entries)
    assert not (sycl_store.root / recipes.STAGING).exists()


def test_what_a_program_wrote_meanwhile_stays(sycl_store: SyclStore) -> None:
    sycl_store.add(kernel="_ZTS3foo")
    found = recipe_of(sycl_store)
    theirs = sycl_store.add(kernel="_ZTS3foo", version=VERSION, driver=NEW.toolchain, binary=native(77))
    before = theirs.bin.read_bytes()
    assert sycl.recipes.publish(found, NEW, native(900)) is None
    assert theirs.bin.read_bytes() == before
    assert not (sycl_store.root / recipes.STAGING).exists()


def test_links_in_the_way_are_not_followed(sycl_store: SyclStore, tmp_path: Path) -> None:
    sycl_store.add(kernel="_ZTS3foo")
    found = recipe_of(sycl_store)
    outside = tmp_path / "outside"
    outside.mkdir()
    device = SyclStore(tmp_path / "want").add(version=VERSION, driver=NEW.toolchain).leaf.parent.parent.parent.name
    (sycl_store.root / device).symlink_to(outside)
    with pytest.raises(OSError, match=r".+"):
        sycl.recipes.publish(found, NEW, native(900))
    assert list(outside.iterdir()) == []
    (sycl_store.root / recipes.STAGING).mkdir(exist_ok=True)
    (sycl_store.root / recipes.STAGING).rmdir()
    (sycl_store.root / recipes.STAGING).symlink_to(outside)
    with pytest.raises(OSError, match=r".+"):
        sycl.recipes.publish(found, NEW, native(900))
    assert list(outside.iterdir()) == []


def test_a_name_that_is_no_utf_8_has_one_spelling(sycl_store: SyclStore) -> None:
    raw = b"A\xff\xc3 GPU \xe2\x82\xac"
    spelled = driver_calls.text(raw)
    assert (entry_format.text(raw), entry_format.data(spelled)) == (spelled, raw)
    sycl_store.add(kernel="_ZTS3foo")
    told = sycl_target(NEW.family, spelled, VERSION, NEW.toolchain)
    key = sycl.recipes.publish(recipe_of(sycl_store), told, native(900))
    made = next(one for one in look(sycl_store.root).entries if one.id.key == key)
    assert (made.environment, made.defect) == (told, None)
    assert raw in (sycl_store.root / f"{key}.src").read_bytes()


KILLED = """
import os, signal, sys
from datetime import datetime, UTC
from pathlib import Path
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.kinds import sycl
from xpucached.kinds.sycl import recipes
root = Path(sys.argv[1])
found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "t")
entry = sycl.scanner.scan(found, datetime.now(UTC), {}, None).entries[0]
recipes.LeafBatch._place = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
sycl.recipes.publish(sycl.recipes.recipe(entry), sycl.targets.parse("P/D/V/X"), b"x" * 100)
"""


@pytest.mark.flow
def test_what_a_killed_daemon_was_making_is_cleared(sycl_store: SyclStore) -> None:
    sycl_store.add()
    done = subprocess.run([sys.executable, "-c", KILLED, str(sycl_store.root)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list((sycl_store.root / recipes.STAGING).iterdir())
    scan = look(sycl_store.root)
    assert scan.ours == (EntryKey(recipes.STAGING),)
    assert scan.foreign == 0
    assert sycl.remover.sweep(EntryId(scan.found.store, scan.ours[0]))
    assert not (sycl_store.root / recipes.STAGING).exists()
    assert look(sycl_store.root).ours == ()
