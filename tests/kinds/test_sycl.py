"""The SYCL kind: names and bytes, locating, tracing, hostile stores, removal."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.builders import sycl_target
from tests.support.runtimes import told
from xpucached.domain.host import Process
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import (
    Entry,
    EntryId,
    EntryState,
    FoundStore,
    ImageFormat,
    Scan,
    Store,
    StoreOrigin,
    StoreState,
)
from xpucached.kinds import fs, images, sycl
from xpucached.kinds.sycl import entry_format, makers, recipes, remover
from xpucached.kinds.table import KINDS

GPU = (
    "Intel(R) oneAPI Unified Runtime over Level-Zero V2",
    "Intel(R) Arc(TM) Pro B70 Graphics",
    "20.2.0",
    "1.17.39395+14",
)
NOW = datetime.now(UTC)


def spirv(*names: str) -> bytes:
    """A module that a walker accepts: header, an entry point for each name, a function, the end."""
    words = [0x07230203, 0x00010400, 0x6000E, 100, 0, (2 << 16) | 17, 6]
    for name in names:
        text = name.encode() + b"\0"
        text += bytes(-len(text) % 4)
        words += [((3 + len(text) // 4) << 16) | 15, 6, 5, *struct.unpack(f"<{len(text) // 4}I", text)]
    words += [(5 << 16) | 54, 1, 2, 0, 3, (1 << 16) | 56]
    return struct.pack(f"<{len(words)}I", *words)


def elf(*sections: tuple[bytes, bytes]) -> bytes:
    """A 64-bit ELF with these sections, like the drivers write."""
    names = b"\0" + b"".join(name + b"\0" for name, _ in sections) + b".shstrtab\0"
    body = b""
    rows = [bytes(64)]
    count = len(sections) + 2
    start = 64 + 64 * count
    for name, content in sections:
        rows.append(
            struct.pack("<IIQQQQIIQQ", names.index(name + b"\0"), 1, 0, 0, start + len(body), len(content), 0, 0, 1, 0)
        )
        body += content
    rows.append(
        struct.pack("<IIQQQQIIQQ", names.index(b".shstrtab\0"), 3, 0, 0, start + len(body), len(names), 0, 0, 1, 0)
    )
    head = b"\x7fELF\x02\x01\x00" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 0xFF04, 205, 0, 0, 0, 64, 0, 64, 0, 0, 64, count, count - 1)
    return head + b"".join(rows) + body + names


ZEBIN = elf((b".text._ZTS3foo", b"\x01" * 64), (b".ze_info", b"version: '1.39'\n"))


def write(
    root: Path,
    identity: tuple[str, ...] = GPU,
    *,
    options: bytes = b"",
    constants: bytes = b"",
    image: bytes = b"",
    binary: bytes = ZEBIN,
    slot: int = 0,
    access: bool = True,
) -> Path:
    """Write an entry byte by byte as the runtime does; give its leaf."""
    device = "/".join(identity).encode()
    image = image or spirv("_ZTS3foo")
    names = (device, image, constants, options)
    leaf = root.joinpath(*(str(entry_format.string_hash(one)) for one in names))
    leaf.mkdir(parents=True, exist_ok=True)
    (leaf / f"{slot}.bin").write_bytes(struct.pack("<QQ", 1, len(binary)) + binary)
    fields = (device, options, constants, image)
    (leaf / f"{slot}.src").write_bytes(b"".join(struct.pack("<Q", len(one)) + one for one in fields))
    if access:
        (leaf / f"{slot}_access_time.txt").write_text(str(time.time_ns()))
    return leaf


def look(root: Path, known: dict[EntryKey, str] | None = None, writer_since: datetime | None = None) -> Scan:
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
    return sycl.scanner.scan(found, datetime.now(UTC), known or {}, writer_since)


def only(scan: Scan) -> Entry:
    assert len(scan.entries) == 1
    return scan.entries[0]


# -- names ------------------------------------------------------------------------------------------------------------


def test_hash_gives_the_runtimes_own_numbers() -> None:
    assert entry_format.string_hash(b"") == 6142509188972423790
    assert entry_format.string_hash("/".join(GPU).encode()) == 11704901656100020893
    v1 = ("Intel(R) oneAPI Unified Runtime over Level-Zero", *GPU[1:])
    assert entry_format.string_hash("/".join(v1).encode()) == 3257396811709339454


@given(st.binary(max_size=300))
def test_portable_hash_equals_the_native_one(data: bytes) -> None:
    assert entry_format.portable_hash(data) == entry_format.string_hash(data)


def test_device_is_parsed_from_the_right() -> None:
    found = sycl.targets.parse("Platform/A GPU/with a slash/20.1.0/1.2.3+4")
    assert found == sycl_target("Platform", "A GPU/with a slash", "20.1.0", "1.2.3+4")
    assert sycl.targets.parse("only/two") is None


def test_trailing_blank_of_a_version_is_kept(tmp_path: Path) -> None:
    identity = ("Intel(R) OpenCL Graphics", "Intel(R) Arc(TM) B390 GPU", "OpenCL 3.0 NEO ", "26.18.38308.4")
    write(tmp_path, identity)
    entry = only(look(tmp_path))
    assert entry.environment == sycl_target(*identity)
    assert entry.id.key.startswith("9913950736625544193/")


# -- what an entry says -----------------------------------------------------------------------------------------------


def test_every_field_is_read(tmp_path: Path) -> None:
    image = spirv("_ZTSN5dpctl6tensor3fooE", "_ZTSN2at6native3xpu3barE")
    leaf = write(tmp_path, options=b" -ze-opt-level=2", constants=b"\x01\x02", image=image)
    written = time.time_ns() - 3600 * 10**9
    (leaf / "0_access_time.txt").write_text(str(written))
    entry = only(look(tmp_path))
    assert entry.environment == sycl_target(*GPU)
    assert entry.options == " -ze-opt-level=2"
    assert entry.constants == "0102"
    assert entry.image is ImageFormat.SPIRV
    assert entry.image_size == len(image)
    assert entry.input == hashlib.sha256(image).hexdigest()
    assert entry.binary is ImageFormat.ELF
    assert [kernel.display for kernel in entry.kernels] == ["dpctl::tensor::foo", "at::native::xpu::bar"]
    assert [kernel.library for kernel in entry.kernels] == ["dpctl", "torch-xpu-ops"]
    assert entry.state is EntryState.OK
    assert entry.size == sum(path.stat().st_size for path in leaf.iterdir())
    assert abs(entry.created.timestamp() - written / 1e9) < 1e-3


def test_native_image_names_its_kernels_by_section(tmp_path: Path) -> None:
    write(tmp_path, image=ZEBIN)
    entry = only(look(tmp_path))
    assert entry.image is ImageFormat.ELF
    assert [kernel.name for kernel in entry.kernels] == ["_ZTS3foo"]


def test_archive_of_native_images(tmp_path: Path) -> None:
    member = ZEBIN + b"\n" * (len(ZEBIN) % 2)
    head = b"%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (b"dev/", 0, 0, 0, b"644", len(ZEBIN))
    write(tmp_path, image=b"!<arch>\n" + head + member)
    entry = only(look(tmp_path))
    assert entry.image is ImageFormat.ARCHIVE
    assert [kernel.display for kernel in entry.kernels] == ["foo"]


def test_several_modules_in_one_image(tmp_path: Path) -> None:
    write(tmp_path, image=spirv("_ZTS3one") + spirv("_ZTS3two"))
    assert [kernel.display for kernel in only(look(tmp_path)).kernels] == ["one", "two"]


def test_wrappers_are_stripped_from_kernel_names() -> None:
    assert images.kernel(b"_ZTSN4sycl3_V16detail19__pf_kernel_wrapperI3fooEE").display == "foo"
    long = b"_ZTSN5dpctl6tensor" + b"3foo" * 2000 + b"E"
    named = images.kernel(long)
    assert named.name == long.decode()
    assert named.display.startswith("dpctl::tensor::foo")
    assert named.library == "dpctl"


def test_old_runtimes_wrote_one_program_per_device(tmp_path: Path) -> None:
    leaf = write(tmp_path, access=False)
    frames = b"".join(struct.pack("<Q", len(ZEBIN)) + ZEBIN for _ in range(2))
    (leaf / "0.bin").write_bytes(struct.pack("<Q", 2) + frames)
    assert only(look(tmp_path)).defect is None
    (leaf / "0.bin").write_bytes(struct.pack("<Q", 0) + frames[: 8 + len(ZEBIN)])
    entry = only(look(tmp_path))
    # Who reads it is not known here, and the worst counts.
    assert (entry.defect, entry.state) == (sycl.defects.BIN_COUNT_WRONG, EntryState.DEFECTIVE)


def test_run_time_compiled_entries_of_both_layouts(tmp_path: Path) -> None:
    write(tmp_path)
    device = entry_format.string_hash("/".join(GPU).encode())
    old = tmp_path / "ext_kernel_compiler" / str(device) / "1" / "2"
    old.mkdir(parents=True)
    (old / "0.bin").write_bytes(struct.pack("<QQ", 1, len(ZEBIN)) + ZEBIN)
    bitcode = b"BC\xc0\xde" + b"\x01" * 60
    for key in ("Ab+-" * 11, "xY=_" * 22):
        new = tmp_path / "ext_kernel_compiler" / key
        new.mkdir()
        (new / "ir.bin").write_bytes(struct.pack("<QQ", 1, len(bitcode)) + bitcode)
        (new / "ir_access_time.txt").write_text("1700000000000000000")
    entries = {entry.id.key: entry for entry in look(tmp_path).entries}
    assert len(entries) == 4
    by_number = entries[EntryKey(f"ext_kernel_compiler/{device}/1/2/0")]
    assert by_number.environment == sycl_target(*GPU)
    ir = entries[EntryKey(f"ext_kernel_compiler/{'Ab+-' * 11}/ir")]
    assert (ir.environment, ir.binary, ir.state) == (None, ImageFormat.BITCODE, EntryState.OK)
    assert ir.created == datetime.fromtimestamp(1700000000, UTC)


def test_unchanged_leaves_are_not_read_again(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    write(tmp_path, options=b"-O1")
    first = look(tmp_path)
    known = {entry.id.key: entry.stamp for entry in first.entries}
    again = look(tmp_path, known)
    assert (len(again.entries), len(again.unchanged)) == (0, 2)
    (leaf / "0.bin").write_bytes((leaf / "0.bin").read_bytes()[:-1])
    third = look(tmp_path, known)
    assert only(third).defect == sycl.defects.BIN_TRUNCATED
    assert len(third.unchanged) == 1


def test_reading_leaves_access_times_alone(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    for path in (*leaf.iterdir(), leaf, tmp_path):
        os.utime(path, (1_600_000_000, 1_700_000_000))
    look(tmp_path)
    for path in (leaf / "0.bin", leaf / "0.src", leaf, tmp_path):
        assert path.stat().st_atime == 1_600_000_000


# -- locks and time ---------------------------------------------------------------------------------------------------


def test_lock_is_believed_while_a_program_may_hold_it(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    lock = leaf / "0.lock"
    lock.touch()
    then = time.time() - 60
    os.utime(lock, (then, then))
    older = datetime.now(UTC) - timedelta(hours=1)
    younger = datetime.now(UTC) - timedelta(seconds=10)
    assert only(look(tmp_path, writer_since=older)).state is EntryState.UNFINISHED
    assert only(look(tmp_path, writer_since=younger)).defect == sycl.defects.STALE_LOCK
    assert only(look(tmp_path, writer_since=None)).defect == sycl.defects.STALE_LOCK
    os.utime(lock)
    assert only(look(tmp_path, writer_since=None)).state is EntryState.UNFINISHED


def test_lock_changes_the_answer_though_no_file_changed(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    lock = leaf / "0.lock"
    lock.touch()
    known = {only(look(tmp_path)).id.key: only(look(tmp_path)).stamp}
    then = time.time() - 3600
    os.utime(lock, (then, then))
    assert only(look(tmp_path, known)).defect == sycl.defects.STALE_LOCK


# -- hostile stores ---------------------------------------------------------------------------------------------------


def test_state_of_the_root(tmp_path: Path) -> None:
    assert look(tmp_path / "nowhere").state is StoreState.MISSING
    (tmp_path / "file").write_text("")
    assert look(tmp_path / "file").state is StoreState.NOT_A_DIRECTORY
    os.mkfifo(tmp_path / "pipe")
    assert look(tmp_path / "pipe").state is StoreState.NOT_A_DIRECTORY
    write(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert look(tmp_path / "link").state is StoreState.OK
    assert only(look(tmp_path / "link")).state is EntryState.OK


@pytest.mark.parametrize("level", range(4))
def test_links_inside_a_store_are_never_followed(tmp_path: Path, level: int) -> None:
    root = tmp_path / "store"
    leaf = write(root)
    directory = [*reversed(leaf.parents), leaf][-4 + level]
    directory.rename(tmp_path / "outside")
    directory.symlink_to(tmp_path / "outside")
    scan = look(root)
    assert scan.entries == ()
    assert scan.foreign == 1


def test_foreign_files_are_counted_and_left(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    for path in (
        tmp_path / "README",
        leaf / "00.bin",
        leaf / "0.bin.tmp",
        leaf / "\udcff\n.src",
        leaf.parent / ("x" * 200),
        tmp_path / ("9" * 40),
    ):
        path.write_text("")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(leaf):
        listener.bind("0.sock")
    scan = look(tmp_path)
    assert only(scan).state is EntryState.OK
    assert scan.foreign == 8  # and the test's home


def test_sockets_and_devices_are_not_opened(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    (leaf / "0.src").unlink()
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(leaf):
        listener.bind("0.src")
    assert only(look(tmp_path)).defect == sycl.defects.SRC_NOT_A_FILE


def test_forged_lengths_cost_no_memory(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    with (leaf / "0.src").open("r+b") as file:
        file.truncate(1 << 40)
    entry = only(look(tmp_path))
    assert entry.defect == sycl.defects.SRC_TRAILING
    head = b"".join(struct.pack("<Q", len(one)) + one for one in ("/".join(GPU).encode(), b"", b""))
    for claim in (1 << 30, (1 << 34) - 1, 1 << 34, 1 << 62, (1 << 64) - 1):
        (leaf / "0.src").write_bytes(head + struct.pack("<Q", claim) + b"xx")
        expected = sycl.defects.SRC_LENGTH_ABSURD if claim >= 1 << 34 else sycl.defects.SRC_TRUNCATED
        entry = only(look(tmp_path))
        assert entry.defect is expected
        assert entry.environment == sycl_target(*GPU)


def test_huge_image_is_indexed_by_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_format, "READ_LIMIT", 4096)
    image = spirv("_ZTS3foo") + b"\1" * 8192
    write(tmp_path, image=image)
    entry = only(look(tmp_path))
    assert (entry.defect, entry.state) == (sycl.defects.SRC_TOO_LARGE, EntryState.OK)
    assert (entry.image_size, entry.input) == (len(image), None)
    assert [kernel.display for kernel in entry.kernels] == ["foo"]


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    entry_format.source(data, len(data))
    entry_format.source(data, len(data) + 1000)
    entry_format.frame(data[:16], len(data), lambda offset: data[offset : offset + 8])
    for prefix in (b"", b"\x7fELF\x02\x01", b"!<arch>\n", b"\x03\x02\x23\x07\x00\x00\x01\x00"):
        images.kernels(prefix + data)
        images.damage(prefix + data, intel=True)


@given(st.integers(0, len(ZEBIN) - 1), st.integers(0, 255))
def test_any_byte_of_an_elf_may_be_wrong(at: int, value: int) -> None:
    forged = ZEBIN[:at] + bytes([value]) + ZEBIN[at + 1 :]
    images.damage(forged, intel=True)
    images.kernels(forged)


@pytest.mark.skipif(os.getuid() != 0, reason="giving a file to another user takes root")
def test_file_that_its_owner_may_not_read(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    os.chown(leaf / "0.bin", 12345, 12345)
    (leaf / "0.bin").chmod(0o200)
    assert only(look(tmp_path)).defect == sycl.defects.BIN_UNREADABLE


def test_faults_of_a_store_are_noted(tmp_path: Path) -> None:
    root = tmp_path / "libsycl_cache"
    write(root)
    assert look(root).notes == ()
    (root / "cache_size.txt").write_text("12345")
    lock = root / "cache_size.txt.lock"
    lock.touch()
    os.utime(lock, (1_700_000_000, 1_700_000_000))
    barrier = tmp_path / "libsycl_cache_eviction_in_progress"
    barrier.touch()
    assert len(look(root).notes) == 2
    os.utime(barrier, (1_700_000_000, 1_700_000_000))
    assert len(look(root).notes) == 3


def test_what_keeps_writers_away_while_a_program_evicts_is_no_fault_and_stays(tmp_path: Path) -> None:
    root = tmp_path / "libsycl_cache"
    write(root)
    barrier = tmp_path / "libsycl_cache_eviction_in_progress"
    barrier.touch()
    now = datetime.now(UTC)
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
    assert not sycl.doctor.clear(found.store, sycl.defects.BARRIER, now, None)
    # A program that began before it may be evicting still.
    os.utime(barrier, (time.time() - 60, time.time() - 60))
    before, after = now - timedelta(hours=1), now
    assert sycl.doctor.faults(found, now, before) == ()
    assert not sycl.doctor.clear(found.store, sycl.defects.BARRIER, now, before)
    assert barrier.exists()
    assert sycl.doctor.faults(found, now, after) == (sycl.defects.BARRIER,)
    assert sycl.doctor.clear(found.store, sycl.defects.BARRIER, now, after)
    assert not barrier.exists()


@pytest.mark.parametrize(
    ("content", "garbage"),
    [("0", False), (str((1 << 64) - 1), False), (str(1 << 64), True), ("9" * 40, True), ("12x", True), ("", True)],
)
def test_a_size_that_no_runtime_can_read(tmp_path: Path, content: str, garbage: bool) -> None:  # noqa: FBT001
    write(tmp_path / "libsycl_cache")
    size = tmp_path / "libsycl_cache" / "cache_size.txt"
    size.write_text(content)
    assert (sycl.defects.SIZE_GARBAGE in look(size.parent).faults) is garbage


def test_a_size_that_cannot_be_read_just_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "libsycl_cache"
    write(root)
    (root / "cache_size.txt").write_text("garbage")

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fs, "read", fails)
    assert sycl.doctor.clear(Store(sycl.NAME, root), sycl.defects.SIZE_GARBAGE, NOW, None)
    assert (root / "cache_size.txt").exists()


# -- where stores are -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"SYCL_CACHE_DIR": "/a/b"}, "/a/b"),
        ({"SYCL_CACHE_DIR": "rel"}, "/work-dir/rel"),
        ({"SYCL_CACHE_DIR": "", "HOME": "/h", "SYCL_CACHE_PERSISTENT": "1"}, None),
        ({"SYCL_CACHE_PERSISTENT": "1", "HOME": "/h"}, "/h/.cache/libsycl_cache"),
        ({"SYCL_CACHE_PERSISTENT": "1", "HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/libsycl_cache"),
        ({"SYCL_CACHE_PERSISTENT": "1", "HOME": "/h", "XDG_CACHE_HOME": ""}, "/libsycl_cache"),
        ({"SYCL_CACHE_PERSISTENT": "0", "HOME": "/h"}, None),
        ({"HOME": "/h"}, None),
    ],
)
def test_a_process_tells_where_it_caches(variables: dict[str, str], expected: str | None) -> None:
    process = Process(7, 0, NOW, "app", Path("/work-dir"), variables)
    place = sycl.discovery.locate(process)
    assert (place and str(place[0])) == expected


def test_configuration_file_beside_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "sycl.conf").write_text("# comment\nSYCL_CACHE_PERSISTENT=1\nSYCL_CACHE_DIR=/from/file\n")
    process = Process(7, 0, NOW, "app", None, {"HOME": "/h"}, (tmp_path / "libsycl.so.8",))
    assert sycl.discovery.locate(process) == (Path("/from/file"), str(tmp_path / "sycl.conf"))
    named = Process(7, 0, NOW, "app", None, {"SYCL_CONFIG_FILE_NAME": str(tmp_path / "sycl.conf")})
    assert sycl.discovery.locate(named) == (Path("/from/file"), str(tmp_path / "sycl.conf"))
    wins = replace(process, variables={"SYCL_CACHE_DIR": "/env"})
    assert sycl.discovery.locate(wins) == (Path("/env"), "process 7 (app)")


def test_configuration_file_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "shared.conf").write_text("SYCL_CACHE_DIR=/from/file\n")
    (tmp_path / "sycl.conf").symlink_to("shared.conf")
    process = Process(7, 0, NOW, "app", None, {"HOME": "/h"}, (tmp_path / "libsycl.so.8",))
    assert sycl.discovery.locate(process) == (Path("/from/file"), str(tmp_path / "sycl.conf"))
    (tmp_path / "shared.conf").unlink()
    os.mkfifo(tmp_path / "shared.conf")
    assert sycl.discovery.locate(process) is None


def test_enable_leaves_eviction_to_us() -> None:
    assert sycl.discovery.enable(Path("/s"))["SYCL_CACHE_MAX_SIZE"] == "0"


# -- traces -----------------------------------------------------------------------------------------------------------


RUN_TIME = "ext_kernel_compiler/" + "Cb+-" * 11


def test_traces_of_all_runtimes() -> None:
    root = Path("/cache")
    key = "1/2/3/4"
    two = "".join(f"/cache/ext_kernel_compiler/7/8/9/{number}.bin;" for number in (1, 2))
    lines = [
        "*** Code caching: enabled",
        f"*** Code caching: device binary has been cached: /cache/{key}/0.bin",
        f"noise *** Code caching: using cached device binary: /cache/{key}/1.bin",
        f"[Persistent Cache]: using cached device binary: /cache/{key}/2.bin;/cache/{key}/3.bin;",
        f"[Persistent Cache]: device binary has been cached: /cache/{key}/4.bin",
        f"[Persistent Cache]: device binary has been cached: /other/{key}/5.bin",
        f"[kernel_compiler Persistent Cache]: storing device code IR: /cache/ext_kernel_compiler/{'Ab+-' * 11}",
        f"[kernel_compiler Persistent Cache]: using cached device code IR: /cache/{RUN_TIME}/ir.bin",
        "[Persistent Cache]: Failed to read binary file from /cache/1/2/3/4/9.bin",
        "[kernel_compiler Persistent Cache]: cache miss: OJY8ULcv9NocDrvwcy1xnsxpVg-+8GMHOCmyZ5iISHY=",
        "[kernel_compiler Persistent Cache]: binary has been cached: /cache/ext_kernel_compiler/7/8/9/0.bin",
        f"[kernel_compiler Persistent Cache]: using cached binary: {two}",
    ]
    created, used = told(root, lines)
    source = "ext_kernel_compiler/7/8/9"
    assert created == {f"{key}/0", f"{key}/4", f"ext_kernel_compiler/{'Ab+-' * 11}/ir", f"{source}/0"}
    assert used == {f"{key}/1", f"{key}/2", f"{key}/3", f"{RUN_TIME}/ir", f"{source}/1", f"{source}/2"}


def test_what_could_not_be_kept_was_compiled_all_the_same() -> None:
    made = "exception encountered making persistent cache: "
    lines = [
        "*** Code caching: using cached device binary: /cache/1/2/3/4/0.bin",
        "*** Code caching: Failed to aquire lock file: /cache/1/2/3/4/0.lock",
        "[Persistent Cache]: Failed to acquire lock file: /cache/1/2/3/5/0.lock Permission denied",
        "[Persistent Cache]: cache lock not owned /cache/1/2/3/5/0",
        f"[Persistent Cache]: {made}Failed to mkdir: /cache/1/2/3/6 (Permission denied)",
        f"[Persistent Cache]: {made}filesystem error: cannot create directories: Permission denied [/cache/1/2/3/7]",
        "[kernel_compiler Persistent Cache]: cache lock not owned /cache/ext_kernel_compiler/7/8/9/0",
        # Not a program's, and not this store's.
        "[Persistent Cache]: Failed to acquire lock file: /cache/1/2/3/4/0_access_time.txt.lock",
        "[Persistent Cache]: Failed to acquire lock file: /cache_eviction_in_progress.lock",
        "[Persistent Cache]: Failed to acquire lock file: /cache/cache_size.txt.lock",
        "[Persistent Cache]: cache lock not owned /cache2/1/2/3/8/0",
        f"[Persistent Cache]: {made}filesystem error: cannot create directories: Permission denied [/cache]",
    ]
    created, used = told(Path("/cache"), lines)
    assert created == {*(f"1/2/3/{number}/0" for number in range(4, 8)), "ext_kernel_compiler/7/8/9/0"}
    assert used == set()


# -- removal ----------------------------------------------------------------------------------------------------------


def names(root: Path) -> list[str]:
    """Everything below the root; a test's home lies there, too."""
    found = (str(path.relative_to(root)) for path in root.rglob("*"))
    return sorted(name for name in found if not name.startswith("home"))


@pytest.mark.parametrize("left", [("",), ("", ".lock"), (".lock",)])
def test_what_only_says_when_it_was_used_is_an_empty_shell(tmp_path: Path, left: tuple[str, ...]) -> None:
    leaf = write(tmp_path)
    for path in leaf.iterdir():
        path.unlink()
    for suffix in left:
        (leaf / f"0_access_time.txt{suffix}").touch()
    assert only(look(tmp_path)).defect == sycl.defects.SKELETON


def test_remove_leaves_nothing(tmp_path: Path) -> None:
    (write(tmp_path) / "0_access_time.txt.lock").touch()
    entry = only(look(tmp_path))
    assert sycl.remover.remove([entry]) == {entry.id: True}
    assert names(tmp_path) == []
    assert sycl.remover.remove([entry]) == {entry.id: True}


def test_remove_keeps_neighbours_and_foreign_files(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    write(tmp_path, options=b"-O1")
    (leaf / "notes.txt").write_text("mine")
    first = next(entry for entry in look(tmp_path).entries if entry.options == "")
    assert sycl.remover.remove([first])[first.id]
    assert [path.name for path in leaf.iterdir()] == ["notes.txt"]
    assert len(look(tmp_path).entries) == 1


def test_remove_refuses_what_was_written_anew(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    entry = only(look(tmp_path))
    (leaf / "0.bin").write_bytes((leaf / "0.bin").read_bytes())
    assert sycl.remover.remove([entry]) == {entry.id: False}
    assert (leaf / "0.bin").exists()


def test_remove_respects_a_lock(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    entry = only(look(tmp_path))
    (leaf / "0.lock").touch()
    before = names(tmp_path)
    assert sycl.remover.remove([entry]) == {entry.id: False}
    assert names(tmp_path) == before


@pytest.mark.parametrize("files", [("0.lock",), ("0.lock", "0.bin"), ("0.lock", "0.bin", "0.src")])
def test_remove_takes_what_a_dead_writer_left(tmp_path: Path, files: tuple[str, ...]) -> None:
    leaf = write(tmp_path)
    (leaf / "0.lock").touch()
    os.utime(leaf / "0.lock", (1_700_000_000, 1_700_000_000))
    for path in list(leaf.iterdir()):
        if path.name not in files:
            path.unlink()
    entry = only(look(tmp_path))
    assert entry.state is EntryState.DEFECTIVE
    assert sycl.remover.remove([entry]) == {entry.id: True}
    assert names(tmp_path) == []


def test_removing_a_lower_slot_moves_the_highest_down(tmp_path: Path) -> None:
    leaf = write(tmp_path, slot=0)
    for slot in (1, 2):
        write(tmp_path, slot=slot)
    (leaf / "0.bin").write_bytes(b"")
    entries = {entry.id.key[-1]: entry for entry in look(tmp_path).entries}
    assert entries["0"].defect == sycl.defects.BIN_EMPTY
    assert entries["2"].defect == sycl.defects.SHADOWED
    assert sycl.remover.remove([entries["0"]])[entries["0"].id]
    after = {entry.id.key[-1]: entry.defect for entry in look(tmp_path).entries}
    assert after == {"0": None, "1": sycl.defects.DUPLICATE}
    assert not list(leaf.glob("*.lock"))


def test_entry_stays_readable_while_it_moves_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = write(tmp_path, slot=0)
    write(tmp_path, slot=1)
    (leaf / "0.bin").write_bytes(b"")
    seen: list[tuple[str, bool]] = []

    def readable() -> bool:
        """Walk as the runtime does."""
        slot = 0
        while (leaf / f"{slot}.bin").exists() or (leaf / f"{slot}.src").exists():
            if not (leaf / f"{slot}.lock").exists() and (leaf / f"{slot}.bin").stat().st_size:
                return True
            slot += 1
        return False

    monkeypatch.setattr(remover, "pause", lambda step: seen.append((step, readable())))
    damaged = next(entry for entry in look(tmp_path).entries if entry.defect == sycl.defects.BIN_EMPTY)
    sycl.remover.remove([damaged])
    assert readable()
    moving = [step for step, _ in seen].index("linked")
    assert all(good for _, good in seen[moving:])


def test_the_runtimes_own_total_is_corrected(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    size = (leaf / "0.bin").stat().st_size + (leaf / "0.src").stat().st_size
    (tmp_path / "cache_size.txt").write_text(str(size + 5000))
    sycl.remover.remove([only(look(tmp_path))])
    assert (tmp_path / "cache_size.txt").read_text() == "5000"
    assert names(tmp_path) == ["cache_size.txt"]


def test_where_the_total_cannot_be_written_nothing_of_ours_is_left(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "cache_size.txt").write_text("5000")
    entry = only(look(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        assert sycl.remover.remove([entry])[entry.id]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["cache_size.txt"]
    assert (tmp_path / "cache_size.txt").read_text() == "5000"


def test_root_swapped_for_a_link_harms_nobody(tmp_path: Path) -> None:
    root, other = tmp_path / "store", tmp_path / "other"
    leaf = write(root)
    entry = only(look(root))
    victim = write(other)
    leaf.rename(tmp_path / "gone")
    leaf.symlink_to(victim)
    assert sycl.remover.remove([entry]) == {entry.id: False}
    assert {"0.bin", "0.src"} <= {path.name for path in victim.iterdir()}


KILLED = """
import os, sys, signal
from datetime import datetime, UTC
from pathlib import Path
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.kinds import sycl
from xpucached.kinds.sycl import remover
root, wanted = Path(sys.argv[1]), int(sys.argv[2])
found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
every = sycl.scanner.scan(found, datetime.now(UTC), {}, None).entries
entries = [entry for entry in every if entry.id.key.endswith("/0")]
steps = 0
def pause(step):
    global steps
    steps += 1
    if steps == wanted:
        os.kill(os.getpid(), signal.SIGKILL)
remover.pause = pause
sycl.remover.remove(entries)
"""


@pytest.mark.flow
@pytest.mark.parametrize("higher", [False, True], ids=["alone", "with a higher slot"])
def test_killed_between_any_two_steps(tmp_path: Path, *, higher: bool) -> None:
    """Whatever moment the daemon dies at, its successor leaves no lock and no half entry."""
    script = textwrap.dedent(KILLED)
    killed = 0
    for step in range(1, 20):
        root = tmp_path / str(step)
        leaf = write(root)
        if higher:
            write(root, slot=1, binary=ZEBIN + b"x")
        done = subprocess.run([sys.executable, "-c", script, str(root), str(step)], check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        killed += 1
        scan = look(root)
        for key in scan.ours:
            assert sycl.remover.sweep(EntryId(scan.found.store, key))
        after = look(root)
        assert not list(root.rglob("*.lock"))
        defects = [entry.defect for entry in after.entries]
        # A slot that had just been moved down may still have its twin above; the next eviction takes it.
        assert set(defects) <= {None, sycl.defects.DUPLICATE}
        if higher:
            assert (leaf / "0.bin").exists()
    assert killed >= 4


def test_sweep_leaves_other_peoples_locks(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    (leaf / "0.lock").touch()
    assert not sycl.remover.sweep(only(look(tmp_path)).id)
    assert (leaf / "0.lock").exists()


def test_lock_of_a_living_daemon_is_not_swept(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    (leaf / "0.lock").write_bytes(f"xpucached {maker(os.getppid())}\n".encode())
    scan = look(tmp_path)
    assert scan.ours == ()
    assert only(scan).state is EntryState.UNFINISHED


def maker(pid: int) -> makers.Maker:
    """Return a process as it would say itself."""
    return replace(makers.ourselves(), pid=pid, began=makers._began(pid) or 0)


@pytest.mark.parametrize(
    ("mark", "gone"),
    [
        ("nobody has the number", True),
        ("another process has the number now", True),
        ("ourselves", True),
        ("another container, whose first process it is", False),
        ("another host", False),
        ("an earlier version", False),
    ],
)
def test_what_an_xpucached_that_cannot_be_seen_made_is_judged_by_its_age(
    tmp_path: Path, mark: str, *, gone: bool
) -> None:
    leaf = write(tmp_path)
    made = {
        "nobody has the number": maker(999_999_999),
        "another process has the number now": replace(maker(os.getppid()), began=1),
        "ourselves": makers.ourselves(),
        "another container, whose first process it is": replace(makers.ourselves(), space=1),
        "another host": replace(makers.ourselves(), boot="0" * 32),
        "an earlier version": 999_999_999,
    }[mark]
    lock = leaf / "0.lock"
    lock.write_bytes(f"xpucached {made}\n".encode())
    staged = tmp_path / recipes.STAGING / f"{made}-0"
    staged.mkdir(parents=True)
    key = only(look(tmp_path)).id.key
    assert only(look(tmp_path)).state is (EntryState.DEFECTIVE if gone else EntryState.UNFINISHED)
    assert set(look(tmp_path).ours) == ({key, recipes.STAGING} if gone else set())
    # A look may be long ago, so who finishes looks again.
    assert sycl.remover.sweep(only(look(tmp_path)).id) is gone
    assert lock.exists() is not gone
    recipes.clear_staging(str(tmp_path))
    assert staged.exists() is not gone
    if gone:
        return
    for path in (lock, staged):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 601))
    assert set(look(tmp_path).ours) == {key, recipes.STAGING}
    assert sycl.remover.sweep(only(look(tmp_path)).id)
    assert recipes.clear_staging(str(tmp_path))
    assert not list(tmp_path.rglob("*.lock"))
    assert not staged.exists()


def test_what_cannot_be_removed_of_a_dead_daemon_s_keeps_nothing_else_there(tmp_path: Path) -> None:
    left = [tmp_path / recipes.STAGING / f"{maker(999_999_999)}-{number}" for number in range(4)]
    for place in left:
        place.mkdir(parents=True)
        (place / "0.bin").touch()
    (left[1] / "directory").mkdir()
    assert recipes.clear_staging(str(tmp_path))
    assert [place.exists() for place in left] == [False, True, False, False]


def test_two_daemons_do_not_finish_the_same_removal(tmp_path: Path) -> None:
    leaf = write(tmp_path)
    (leaf / "0.lock").write_bytes(f"xpucached {maker(999_999_999)}\n".encode())
    entry = only(look(tmp_path)).id
    with (leaf / "0.lock").open("rb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        assert not sycl.remover.sweep(entry)
        assert (leaf / "0.lock").exists()
    assert sycl.remover.sweep(entry)


def test_kinds_has_this_one() -> None:
    assert KINDS[sycl.NAME] is sycl.KIND


def test_damage_is_seen_in_real_shapes() -> None:
    assert images.damage(ZEBIN, intel=True) is None
    assert images.damage(bytes(100), intel=False)
    assert images.damage(b"junk" * 20, intel=True)
    assert images.damage(b"junk" * 20, intel=False) is None
    nested = elf((b".ocl.ir", b"BC\xc0\xde" + b"x" * 40), (b".ocl.obj", ZEBIN))
    assert images.damage(nested, intel=True) is None
    broken = elf((b".ocl.ir", b"BC\xc0\xde" + b"x" * 40), (b".ocl.obj", ZEBIN[:80]))
    assert images.damage(broken, intel=True)
    assert images.damage(ZEBIN[:-10], intel=True)
