"""What a hostile neighbour may leave in a store, and what must not come of it: no hang, no crash, no lost entry."""

from __future__ import annotations

import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import REPOSITORY
from tests.support import catalogs
from tests.support.builders import SyclStore, framed, native, spirv, string_hash
from tests.support.daemons import daemon
from xpucached.api import requests
from xpucached.binaries import zebin
from xpucached.catalog import Catalog
from xpucached.catalog.entries import all_entries
from xpucached.catalog.scans import record_scan
from xpucached.catalog.stores import all_stores
from xpucached.daemon.lock import alone
from xpucached.domain.names import Architecture, ModelName
from xpucached.domain.stores import Entry, EntryState, FoundStore, Scan, Store, StoreOrigin, StoreState
from xpucached.errors import CatalogError
from xpucached.kinds import demangling, images, listing, sycl
from xpucached.kinds.sycl import remover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.runtimes import Runtime


def look(root: Path) -> Scan:
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
    return sycl.scanner.scan(found, datetime.now(UTC), {}, None)


def only(scan: Scan) -> Entry:
    assert len(scan.entries) == 1
    return scan.entries[0]


def in_child(script: str, *, seconds: int = 20) -> str:
    """Run a script with little memory and little time; give what it prints."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=50,
        preexec_fn=limit,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# -- names ------------------------------------------------------------------------------------------------------------


def doubling(levels: int) -> bytes:
    """A name of which every parameter holds the one before it twice."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    parts = [f"S_IS{digits[level]}_S{digits[level]}_E" for level in range(1, levels)]
    return ("_Z1f1PI1AS0_E" + "".join(parts)).encode()


FORGED = {
    "each reference doubles what is printed": doubling(34),
    "each level has two readings": b"_ZTS" + b"DTsrU" * 80 + b"E" * 200,
    "casts have two readings": b"_Z1f" + b"cvT_I" * 300 + b"i" + b"E" * 300,
    "depth": b"_ZTS" + b"P" * 1900 + b"i",
    "templates in templates": b"_ZTS" + b"1aI" * 600 + b"i" + b"E" * 600,
    "a length of thousands of digits": b"_ZTS" + b"1" * 5000 + b"a",
    "digits of another script": "_ZTS٣abc²x".encode(),
    "only lengths": b"_ZTS" + b"1a" * 30_000,
    "long": b"_ZTS" + b"a" * 100_000,
    "no text": b"_ZTS\xff\xfe\x1b[2J\r\n",
}


@pytest.mark.parametrize("name", list(FORGED.values()), ids=list(FORGED))
def test_a_forged_name_costs_neither_time_nor_memory(name: bytes) -> None:
    shown = in_child(f"""
        from xpucached.kinds import images
        one = images.kernel({name!r})
        assert len(one.display) <= 5000
        print(ascii(one.display[:20]))
        """)
    assert shown


def test_a_deep_name_is_read_in_a_thread() -> None:
    script = f"""
        import threading
        from xpucached.kinds import images
        names = [b"_ZTS" + b"1aI" * 49 + b"i" + b"E" * 49, b"_ZTS" + b"F" * 99 + b"v" + b"E" * 99, {doubling(9)!r}]
        thread = threading.Thread(target=lambda: print([images.kernel(name).display[:9] for name in names]))
        thread.start()
        thread.join()
        """
    assert "a<a<a<a" in in_child(script)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("_ZTSN5dpctl6tensor7kernelsI3fooIfLb1EEEE", "dpctl::tensor::kernels<foo<float, true> >"),
        ("_ZTSZZ4mainENKUlRN4sycl7handlerEE_clES1_EUlvE0_", None),
        ("_ZTSN3fooIJiSt7complexIdELi1025ELNS_3barE5EEEE", None),
        ("_ZTSZN2at6native3xpu3addIfEEvPT_lEUlT_E_", None),
        ("_ZTSPFvRKA5_iM3fooDhE", None),
    ],
)
def test_what_kernels_are_really_named_is_demangled(name: str, shown: str | None) -> None:
    assert demangling.printed(name.encode()) is not None
    display = images.kernel(name.encode()).display
    assert not display.startswith("_Z")
    assert "…" not in display
    assert shown is None or display == shown


@pytest.mark.parametrize(
    "name",
    [
        "_ZTS",
        "_ZTS3fo",
        "_ZTSN3fooE3bar",
        "_ZTS1aIXplT_T_EE",
        "_ZTSDTcl1aEE",
        "_ZTS1aIDpT_E",
        "_ZTSS",
        "_ZTS0",
        "_Zsr1a",
    ],
)
def test_what_has_two_readings_or_none_is_not(name: str) -> None:
    assert demangling.printed(name.encode()) is None


# -- images -----------------------------------------------------------------------------------------------------------


def test_headers_inside_instructions_are_not_walked_again_and_again() -> None:
    header = struct.pack("<5I", 0x07230203, 0x10000, 0, 1, 0)
    image = header + (struct.pack("<I", 6 << 16 | 1) + header) * 200_000
    began = time.process_time()
    assert images.kernels(image) == ()
    # Two hundred thousand walks of as many instructions would take hours.
    assert time.process_time() - began < 30


def overlapping(sections: int, name: int, size: int, begin: bytes = b".text.") -> bytes:
    """An ELF all sections of which are the same bytes, and have one name."""
    names = b"\0" + begin + b"a" * name + b"\0" + b"a" * size
    start = 64 + 64 * sections
    rows = struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, start, len(names), 0, 0, 1, 0) * sections
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 0xFF04, 205, 0, 0, 0, 64, 0, 64, 0, 0, 64, sections, 0)
    return head + rows + names


def test_sections_that_share_their_bytes_cost_no_more_than_the_file() -> None:
    began = time.process_time()
    assert len(images.kernels(overlapping(60_000, 9, 4 << 20))) == 1
    assert images.damage(overlapping(60_000, 9, 4 << 20), intel=True) == "its sections overlap"
    assert images.kernels(overlapping(60_000, 4 << 20, 9)) == ()
    assert images.damage(overlapping(60_000, 4 << 20, 9), intel=True) is not None
    with pytest.raises(ValueError, match="its sections overlap"):
        zebin.read(overlapping(60_000, 0, 4 << 20, b".spv"))
    assert time.process_time() - began < 30


def test_the_names_of_one_image_are_bounded_together() -> None:
    every = images.kernels(spirv(*(f"_ZTS{number:05}" + "a" * 30_000 for number in range(100))))
    assert 0 < sum(len(kernel.name) for kernel in every) <= 1 << 20
    assert all(len(kernel.display) < 5000 for kernel in every)


# -- the store --------------------------------------------------------------------------------------------------------


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = catalogs.fresh(tmp_path / "state" / "catalog.sqlite")
    yield opened
    opened.close()


def test_text_of_any_kind_reaches_the_catalog(sycl_store: SyclStore, catalog: Catalog) -> None:
    options = "\x1b]0;owned\x07\0\r\n\u202e -cl-fast"
    sycl_store.add(device="GPU \x1b[2J\0\n/x", options=options, kernel="_ZTS\x1b[31m")
    surrogate = b"P/\xed\xa0\x80\xff/v/d"
    image = spirv("k")
    leaf = sycl_store.root.joinpath(*(str(string_hash(part)) for part in (surrogate, image, b"", b"\xff\xfe")))
    leaf.mkdir(parents=True)
    (leaf / "0.src").write_bytes(framed(surrogate, b"\xff\xfe", b"", image))
    (leaf / "0.bin").write_bytes(struct.pack("<Q", 1) + framed(native()))
    catalog.write(record_scan, look(sycl_store.root), lambda _: Architecture("unknown"))
    kept = {one.entry.options for one in catalog.read(all_entries)}
    assert kept == {options, r"\xff\xfe"}


def test_files_of_eight_exabytes_do_not_overflow_the_catalog(sycl_store: SyclStore, catalog: Catalog) -> None:
    try:
        with open("/dev/shm/xpucached-probe", "xb") as probe:  # noqa: PTH123 - the only file system for it
            os.unlink(probe.name)  # noqa: PTH108
            os.truncate(probe.fileno(), (1 << 63) - 4096)
    except OSError:
        pytest.skip("no file system with files of such a size")
    place = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="xpu-"))
    try:
        store = SyclStore(place / "libsycl_cache", sycl_store.defaults)
        for kernel in ("_ZTS1a", "_ZTS1b"):
            slot = store.add(kernel)
            for path in (slot.bin, slot.src):
                os.truncate(path, (1 << 63) - 4096)
        catalog.write(record_scan, look(store.root), lambda _: Architecture("unknown"))
        (status,) = catalog.read(all_stores)
        assert status.entries == 2
        assert status.size == (1 << 63) - 1  # as far as JSON has numbers
        assert status.allocated < 1 << 20
    finally:
        shutil.rmtree(place)


def test_a_size_lock_that_vanishes_does_not_make_the_store_vanish(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime holds that lock for microseconds; a scan that met it took the whole store for missing."""
    sycl_store.add()
    listed = listing.names

    def stale(path: int) -> list[str]:
        names = listed(path)
        return [*names, "cache_size.txt.lock"] if any(len(name) > 15 for name in names) else names

    monkeypatch.setattr(listing, "names", stale)
    assert look(sycl_store.root).state is StoreState.OK
    assert len(look(sycl_store.root).entries) == 1


def test_a_directory_bound_into_the_store_is_not_the_stores(sycl_store: SyclStore, tmp_path: Path) -> None:
    sycl_store.add()
    other = SyclStore(tmp_path / "other", sycl_store.defaults)
    bound = other.add("_ZTS5other").leaf.parents[2]
    (sycl_store.root / "77").mkdir()
    script = f"""
        from datetime import UTC, datetime
        from pathlib import Path
        from xpucached.domain.stores import FoundStore, Store, StoreOrigin
        from xpucached.kinds import sycl
        found = FoundStore(Store(sycl.NAME, Path({str(sycl_store.root)!r})), StoreOrigin.FOUND, "test")
        scan = sycl.scanner.scan(found, datetime.now(UTC), {{}}, None)
        print(len(scan.entries), scan.foreign)
        """
    steps = f"mount --bind '{bound}' '{sycl_store.root}/77' || exit 77; exec '{sys.executable}' -c \"$0\""
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", steps, textwrap.dedent(script)]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    done = subprocess.run(inside, capture_output=True, text=True, timeout=50, check=False)
    if done.returncode in (1, 77) and not done.stdout and "Traceback" not in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.stdout.split() == ["1", "1"], done.stderr


def test_a_daemon_without_descriptors_finds_nobody_guilty(sycl_store: SyclStore) -> None:
    for number in range(3):
        sycl_store.add(f"_ZTS{number}")
    shown = in_child(f"""
        import os, resource
        from datetime import UTC, datetime
        from pathlib import Path
        from xpucached.domain.stores import FoundStore, Store, StoreOrigin
        from xpucached.kinds import sycl
        found = FoundStore(Store(sycl.NAME, Path({str(sycl_store.root)!r})), StoreOrigin.FOUND, "test")
        whole = sycl.scanner.scan(found, datetime.now(UTC), {{}}, None)
        assert all(entry.defect is None for entry in whole.entries), whole
        held = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                held.append(os.open("/", os.O_RDONLY))
        except OSError:
            pass
        for _ in range(9):
            os.close(held.pop())
            scan = sycl.scanner.scan(found, datetime.now(UTC), {{}}, None)
            whole = scan.state == "ok" and len(scan.entries) == 3 and scan.foreign == 0
            blind = scan.state == "unreadable" and not scan.entries and "open files" in scan.notes[0]
            print(scan.state)
            assert whole or blind, scan
            assert all(entry.defect is None for entry in scan.entries), scan
        """)
    assert "unreadable" in shown
    assert shown.rstrip().endswith("ok")


# -- removal ----------------------------------------------------------------------------------------------------------


def test_a_leaf_that_grew_for_months_is_emptied_in_time(sycl_store: SyclStore) -> None:
    """A damaged slot makes one more at every start; it was two hours for these."""
    first = sycl_store.add()
    for suffix in (".bin", ".src"):
        content = (first.leaf / f"0{suffix}").read_bytes()
        for number in range(1, 4000):
            (first.leaf / f"{number}{suffix}").write_bytes(content)
    scan = look(sycl_store.root)
    assert len(scan.entries) == 4000
    victims = [entry for entry in scan.entries if entry.state is EntryState.DEFECTIVE]
    assert len(victims) == 3999
    began = time.process_time()
    assert all(sycl.remover.remove(victims).values())
    assert time.process_time() - began < 20
    assert only(look(sycl_store.root)).state is EntryState.OK


def test_slots_that_share_their_files_go_at_once(sycl_store: SyclStore) -> None:
    """Tools that save space make hard links; removing one changes the others, which passed for written anew."""
    first = sycl_store.add()
    for number in range(1, 9):
        for suffix in (".bin", ".src"):
            (first.leaf / f"{number}{suffix}").hardlink_to(first.leaf / f"0{suffix}")
    victims = [entry for entry in look(sycl_store.root).entries if entry.state is EntryState.DEFECTIVE]
    assert len(victims) == 8
    assert all(sycl.remover.remove(victims).values())
    assert sorted(path.name for path in first.leaf.iterdir()) == ["0.bin", "0.src", "0_access_time.txt"]


def test_slots_that_stay_above_move_down_one_by_one(sycl_store: SyclStore) -> None:
    slots = [sycl_store.add(slot=number, options="", binary=native(300 + number)) for number in range(6)]
    scan = look(sycl_store.root)
    victims = [entry for entry in scan.entries if entry.id.key[-1] in "013"]
    kept = {slots[number].bin.read_bytes() for number in (2, 4, 5)}
    assert all(sycl.remover.remove(victims).values())
    leaf = slots[0].leaf
    assert sorted(path.name for path in leaf.glob("*.bin")) == ["0.bin", "1.bin", "2.bin"]
    assert {path.read_bytes() for path in leaf.glob("*.bin")} == kept
    assert not list(leaf.glob("*.lock"))


def test_a_slot_written_meanwhile_is_not_left_behind_a_gap(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        sycl_store.add(slot=number)
    scan = look(sycl_store.root)
    unlocked: list[str] = []

    def write(step: str) -> None:
        if step == "unlocked" and not unlocked:
            unlocked.append(step)
            sycl_store.add(slot=2, binary=native(999))  # the first free number, as a program takes it

    monkeypatch.setattr(remover, "pause", write)
    assert all(sycl.remover.remove([entry for entry in scan.entries if not entry.id.key.endswith("/0")]).values())
    assert [entry.id.key[-2:] for entry in look(sycl_store.root).entries] == ["/0", "/1"]


@pytest.mark.parametrize("make", ["pipe", "hard link", "link"])
def test_the_size_is_corrected_past_a_trap(sycl_store: SyclStore, tmp_path: Path, make: str) -> None:
    """A pipe of that name stopped the daemon for ever; a link let it write over somebody's file."""
    sycl_store.add()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    trap = sycl_store.root / "cache_size.txt.xpucached"
    traps: dict[str, Callable[[], None]] = {
        "pipe": lambda: os.mkfifo(trap),
        "hard link": lambda: trap.hardlink_to(victim),
        "link": lambda: trap.symlink_to(victim),
    }
    traps[make]()
    (sycl_store.root / "cache_size.txt").write_text("100000")
    assert all(sycl.remover.remove(look(sycl_store.root).entries).values())
    assert victim.read_text() == "precious"
    assert 0 < int((sycl_store.root / "cache_size.txt").read_text()) < 100_000
    assert not os.path.lexists(trap)


def test_a_lock_made_anew_since_the_scan_is_respected(sycl_store: SyclStore) -> None:
    slot = sycl_store.add(without=("bin", "src"), access_time=False)
    slot.take_lock(age=3600)
    entry = only(look(sycl_store.root))
    assert entry.state is EntryState.DEFECTIVE
    slot.lock.unlink()
    slot.take_lock()
    assert not any(sycl.remover.remove([entry]).values())
    assert slot.lock.exists()
    future = time.time() + timedelta(days=1).total_seconds()
    os.utime(slot.lock, (future, future))
    assert all(sycl.remover.remove([only(look(sycl_store.root))]).values())


# -- the state directory ----------------------------------------------------------------------------------------------


def test_a_pipe_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(CatalogError, match="not a regular file"), alone(tmp_path):
        pytest.fail("it was taken for a lock")


# -- the wire ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/a\0b", "x", "../x", ""])
def test_a_path_that_names_no_place_is_refused(path: str) -> None:
    """A null character came as far as the disk, and a relative path meant the daemon's own directory."""
    with pytest.raises(ValueError, match="stores"):
        requests.ScanStores(stores=(Path(path),))
    with pytest.raises(ValueError, match="stores"):
        requests.ReplayEntries(stores=(Path(path),))
    with pytest.raises(ValueError, match="store"):
        requests.AddModel(name=ModelName("m"), command=("/bin/true",), directory=Path("/"), store=Path(path))
    with pytest.raises(ValueError, match="directory"):
        requests.AddModel(name=ModelName("m"), command=("/bin/true",), directory=Path(path))


def test_a_loop_of_links_can_be_scanned(home: Path, short_dir: Path) -> None:
    """`Path.resolve` raises for it, and the job ended with an error of ours."""
    loop = home / "loop"
    loop.symlink_to(loop)
    with daemon(home, short_dir) as one:
        one.start()
        one.ctl("scan", str(loop), check=None)
        (job,) = [row for row in one.rows("jobs") if row["kind"] == "scan" and row["id"] != "scan-0"]
        assert "internal" not in str(job)
        assert one.ask("status")
        assert "Traceback" not in one.log.read_text()


@pytest.mark.runtime
def test_a_file_in_the_place_of_our_store_fails_the_run_and_not_the_daemon(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime]
) -> None:
    real = runtime("rt2025.3")
    (home / ".cache" / "xpucached").mkdir(parents=True)
    (home / ".cache" / "xpucached" / "sycl").write_text("no directory")
    variables = {"OCL_ICD_FILENAMES": str(real.driver), "LD_LIBRARY_PATH": str(real.lib)}
    with daemon(home, short_dir, **variables) as one:
        one.start()
        one.ctl("model", "add", "m", "--", "/bin/true")
        said = one.ctl("prewarm", "m", "--wait", check=None)
        assert "cannot be made" in said.stdout + said.stderr
        assert "Traceback" not in one.log.read_text()


FULL_DISK = """
import os, sys, time
from pathlib import Path
from tests.support.builders import SyclStore
from tests.support.daemons import daemon
disk, run, place = map(Path, sys.argv[1:])
os.environ["HOME"] = str(disk)
for name in [name for name in os.environ if name.startswith("XDG_")]:
    del os.environ[name]
store = SyclStore(place / "store")
for number in range(300):
    slot = store.add(f"_ZTS4k{number:03d}", age=9e6, size=4000)
    for path in (slot.bin, slot.src, slot.access_time):
        os.utime(path, (time.time() - 9e6, time.time() - 9e6))
with daemon(disk, run) as one:
    one.configure(f"[stores]\\npaths = ['{store.root}']\\n[policy]\\nmax_unused = '1d'\\n[schedule]\\nevict = false\\n")
    one.start()
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError as error:
            print("full", error.errno)
    report = one.ask("evict")["report"]
    print("removed", len(report["removed"]), "left", len(list(store.root.glob("[0-9]*/**/*.bin"))))
    print("back", len(one.ask("trash", "restore", "--all")["report"]["restored"]))
    (disk / "ballast").unlink()
    one.ctl("scan")
    print("rows", len(one.rows("ls")), "locks", len(list(store.root.rglob("*.lock"))))
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("place", "back"), [("disk", 0), ("elsewhere", 300)])
def test_on_a_full_disk_evicting_still_makes_room(tmp_path: Path, short_dir: Path, place: str, back: int) -> None:
    disk, store = tmp_path / "disk", tmp_path / place
    disk.mkdir()
    words = f"'{disk}' '{short_dir}' '{store}'"
    steps = f"mount -t tmpfs -o size=12m,mode=700 none '{disk}' || exit 77; exec '{sys.executable}' -c \"$0\" {words}"
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", steps, textwrap.dedent(FULL_DISK)]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(inside, capture_output=True, text=True, check=False, env=variables)
    if done.returncode in (1, 77) and not done.stdout and "Traceback" not in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr}")
    # What makes no room where it lies goes into the trash there, and comes back.
    said = ["full 28", "removed 300 left 0", f"back {back}", f"rows {back} locks 0"]
    assert done.stdout.splitlines() == said, done.stdout + done.stderr
