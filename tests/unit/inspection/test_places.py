"""Wheels and environments are walked within bounds, and what is not read is counted."""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support.builders import spirv
from tests.support.device_images import archives, program
from xpucached.domain.inspection import Inspection
from xpucached.errors import NotFound
from xpucached.inspection import content, devices, places, unpacking, zips
from xpucached.inspection.content import MemoryContent, Unreadable
from xpucached.inspection.report import Inspector
from xpucached.inspection.zips import ZipArchive

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = program(("spir64", spirv("a", "b"), ("a", "b")), ("spir64", spirv("c"), ("c",)))
NATIVE = archives()["15_pvc+bmg+dg2+arl-h+mtl-h+lnl-m.x"]


def wheel(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return made.getvalue()


PACKED = wheel(("a.so", LIBRARY))


def inspect(path: Path, *names: str, rate: float | None = None) -> Inspection:
    return Inspector(devices.asked(names or ("B580",)), rate=rate).inspect(str(path), [path])


def counts(value: Inspection) -> list[tuple[int, int, int, int]]:
    return [(one.ready, one.compiled, one.absent, one.unknown) for one in value.totals]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wheel_is_read(tmp_path: Path, method: int) -> None:
    path = tmp_path / "one.whl"
    path.write_bytes(
        wheel(
            ("pkg/lib.so", LIBRARY),
            ("pkg/lib.so.1", LIBRARY),
            ("pkg/kernels.dat", NATIVE),
            ("pkg/text.py", b"x" * 999),
            ("inside.zip", wheel(("a", LIBRARY))),
            method=method,
        )
    )
    value = inspect(path, "B580", "Wildcat Lake", "cpu", rate=0.5)

    assert [(one.name, one.images, one.kernels) for one in value.files] == [
        ("pkg/lib.so", 2, 3),
        ("pkg/kernels.dat", 1, 2),
    ]
    assert counts(value) == [(2, 3, 0, 0), (0, 3, 2, 0), (0, 3, 2, 0)]
    assert dict(value.skipped) == {places.COPIES: 1, "archives inside the archive": 1}
    size = len(spirv("a", "b")) + len(spirv("c"))
    assert [(one.compile_size, one.seconds) for one in value.totals] == [(size, size / 2)] * 3
    assert not value.unread


def test_an_environment_with_loops_pipes_and_links_is_walked_once(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/one.so").write_bytes(LIBRARY)
    os.link(tmp_path / "lib/one.so", tmp_path / "lib/two.so")
    (tmp_path / "lib/three.so").symlink_to("one.so")
    (tmp_path / "lib/copy.so").write_bytes(LIBRARY)
    (tmp_path / "lib/round").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "lib/pipe.so")
    (tmp_path / "torch-2.9.0+cpu.dist-info").mkdir()

    value = inspect(tmp_path)

    assert [one.name for one in value.files] == ["lib/copy.so"]
    assert dict(value.skipped) == {places.COPIES: 1}
    assert value.notes == ("torch 2.9.0+cpu is a build for processors: it brings no code for a GPU",)
    with pytest.raises(NotFound, match="no file"):
        inspect(tmp_path / "lib/pipe.so")
    with pytest.raises(NotFound, match="nothing"):
        inspect(tmp_path / "nothing")


def test_a_package_whose_own_folder_has_kernels_is_no_build_for_processors(tmp_path: Path) -> None:
    (tmp_path / "torch/lib").mkdir(parents=True)
    (tmp_path / "torch/lib/libtorch_xpu.so").write_bytes(LIBRARY)
    (tmp_path / "torch-2.9.0+xpu.dist-info").mkdir()

    assert inspect(tmp_path).notes == ()


def test_a_file_that_changes_meanwhile_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(LIBRARY)
    real = content.FileContent.read

    def read(one: content.FileContent, offset: int, length: int) -> bytes:
        os.utime(path, ns=(1, 1))
        return real(one, offset, length)

    monkeypatch.setattr(content.FileContent, "read", read)
    value = inspect(tmp_path)
    assert value.unread
    assert value.files == ()
    assert value.notes == ("lib.so: it changed while it was read",)


def test_a_file_that_is_cut_meanwhile_ends_its_reading(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(LIBRARY)
    with content.OpenFile(path) as opened:
        os.truncate(path, 10)
        with pytest.raises(Unreadable, match="shorter"):
            opened.content.read(0, 100)


def test_a_wheel_of_five_gigabytes_is_read_by_its_directory(tmp_path: Path) -> None:
    size, name, row = 5 << 30, b"weights.bin", b"lib.so"
    path = tmp_path / "large.whl"
    packed = zlib.compressobj(wbits=-15)
    body = packed.compress(LIBRARY) + packed.flush()
    with path.open("wb") as file:
        file.write(struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 0, 0, 0, 0, len(name), 0) + name)
        file.seek(size, os.SEEK_CUR)  # a hole
        at = file.tell()
        file.write(struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 8, 0, 0, 0, 0, 0, len(row), 0) + row + body)
        begin, full = file.tell(), 0xFFFFFFFF
        wide = struct.pack("<2H2Q", 1, 16, size, size)
        head = struct.pack(
            "<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 0, 0, 0, 1, full, full, len(name), len(wide), 0, 0, 0, 0, 0
        )
        file.write(head + name + wide)
        wide = struct.pack("<2HQ", 1, 8, at)
        sizes = (len(body), len(LIBRARY), len(row), len(wide))
        file.write(struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 8, 0, 0, 2, *sizes, 0, 0, 0, 0, full) + row + wide)
        length, end = file.tell() - begin, file.tell()
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, length, begin))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, full, full, 0))

    value = inspect(path)
    assert [(one.name, one.kernels) for one in value.files] == [("lib.so", 3)]
    assert not value.unread


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    data = bytearray(wheel(*((f"{number}.so", LIBRARY + bytes([number])) for number in range(3))))
    rows = [at for at in range(len(data)) if data[at : at + 4] == b"PK\1\2"]
    for row in rows:  # each names the first one's bytes, and claims the whole archive
        struct.pack_into("<I", data, row + 20, len(data) - 200)
        struct.pack_into("<I", data, row + 42, 0)
    path = tmp_path / "one.whl"
    path.write_bytes(data)
    value = inspect(path)

    assert value.unread
    assert any("overlap" in note for note in value.notes)


def test_a_directory_is_bounded_and_must_hold_together(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(wheel(("a.so", LIBRARY), ("b.so", LIBRARY)))
    assert len(list(ZipArchive(MemoryContent(bytes(data))).members())) == 2
    monkeypatch.setattr(zips, "_MOST_MEMBERS", 1)
    with pytest.raises(Unreadable, match="2 members"):
        ZipArchive(MemoryContent(bytes(data)))
    monkeypatch.undo()
    struct.pack_into("<H", data, len(data) - 12, 3)
    with pytest.raises(Unreadable, match="hold together"):
        list(ZipArchive(MemoryContent(bytes(data))).members())
    struct.pack_into("<I", data, len(data) - 6, 1 << 31)
    with pytest.raises(Unreadable, match="outside"):
        ZipArchive(MemoryContent(bytes(data)))
    with pytest.raises(Unreadable, match="no zip"):
        ZipArchive(MemoryContent(b"PK\3\4" + bytes(99)))


def test_names_of_packages_that_none_has_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "one.whl"
    path.write_bytes(
        wheel(*((f"{'a' * 60_000}{number}.dist-info/METADATA", b"x") for number in range(3)), ("b.so", b""))
    )
    found = places.SearchedFiles()
    assert list(found.contents(path)) == []
    assert found.packages == {}


def test_a_large_member_goes_to_a_file_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zips, "_IN_MEMORY", 100)
    archive = ZipArchive(MemoryContent(PACKED))
    (member,) = archive.members()
    with archive.unpack(member) as unpacked:
        assert unpacked.read(0, unpacked.size) == LIBRARY
    monkeypatch.setattr(zips, "_LARGEST", 1000)
    with (
        pytest.raises(Unreadable, match="it has 1 MiB unpacked: of a member at most 1 MiB are"),
        ZipArchive(MemoryContent(PACKED)).unpack(member),
    ):
        pass


def test_what_takes_more_than_half_of_what_is_free_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zips, "_LARGEST", 1 << 62)
    archive = ZipArchive(MemoryContent(PACKED))
    room = os.statvfs(tempfile.gettempdir())
    (member,) = archive.members()
    large = replace(member, size=room.f_blocks * room.f_frsize)
    said = f"that are free in {tempfile.gettempdir()} at most half are taken; TMPDIR names another place"
    with pytest.raises(Unreadable, match=re.escape(said)), archive.unpack(large):
        pass


def test_damaged_and_strangely_packed_members_are_named(tmp_path: Path) -> None:
    data = bytearray(wheel(("a.so", LIBRARY)))
    at = data.index(b"PK\1\2")
    struct.pack_into("<I", data, at + 20, 60)  # it ends too early
    path = tmp_path / "one.whl"
    path.write_bytes(data)
    assert "too early" in inspect(path).notes[0]
    lzma = tmp_path / "two.whl"
    lzma.write_bytes(wheel(("a.so", LIBRARY), method=zipfile.ZIP_LZMA))
    assert "not known" in inspect(lzma).notes[0]


def test_compressed_images_are_read_or_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not unpacking.available():
        pytest.skip("nothing here unpacks zstd")
    image = spirv("a" * 300)
    # One frame of one raw block, as the format has it: magic, sizes, block.
    frame = (
        unpacking.MAGIC + b"\x60" + struct.pack("<H", len(image) - 256) + (len(image) << 3 | 1).to_bytes(3, "little")
    )
    (tmp_path / "one.so").write_bytes(program(("spir64", frame + image, ("a",))))
    value = inspect(tmp_path)
    assert (value.files[0].forms, counts(value)) == ((("spirv", 1),), [(0, 1, 0, 0)])

    monkeypatch.setattr(unpacking, "_unpacker", lambda: None)
    value = inspect(tmp_path)
    assert (value.files[0].forms, counts(value)) == ((("compressed", 1),), [(0, 0, 0, 1)])
    assert "zstd" in value.files[0].notes[0]

    monkeypatch.undo()
    (tmp_path / "one.so").write_bytes(program(("spir64", unpacking.MAGIC + b"junk" * 9, ("a",))))
    assert inspect(tmp_path).files[0].forms == (("compressed", 1),)


def test_a_member_is_known_by_its_beginning_whatever_is_packed_before_it(tmp_path: Path) -> None:
    name, packer = b"a.so", zlib.compressobj(9, zlib.DEFLATED, -15)
    # Blocks of which nothing comes stand first.
    packed = b"\0\0\0\xff\xff" * 2000 + packer.compress(LIBRARY) + packer.flush()
    facts = struct.pack("<3I2H", zlib.crc32(LIBRARY), len(packed), len(LIBRARY), len(name), 0)
    head = b"PK\3\4" + struct.pack("<5H", 20, 0, 8, 0, 0) + facts + name + packed
    row = b"PK\1\2" + struct.pack("<6H", 20, 20, 0, 8, 0, 0) + facts + struct.pack("<3H2I", 0, 0, 0, 0, 0) + name
    path = tmp_path / "one.whl"
    path.write_bytes(head + row + b"PK\5\6" + struct.pack("<4H2IH", 0, 0, 1, 1, len(row), len(head), 0))

    assert zipfile.ZipFile(path).read("a.so") == LIBRARY
    assert counts(inspect(path)) == [(0, 3, 0, 0)]


def test_members_that_share_what_nothing_comes_of_are_not_searched_over_and_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blank, name, times = b"\0\0\0\xff\xff" * 20_000, b"a.so", 50
    facts = struct.pack("<3I2H", 1, len(blank), 1 << 20, len(name), 0)
    head = b"PK\3\4" + struct.pack("<5H", 20, 0, 8, 0, 0) + facts + name + blank
    rows = (b"PK\1\2" + struct.pack("<6H", 20, 20, 0, 8, 0, 0) + facts + bytes(14) + name) * times
    end = b"PK\5\6" + struct.pack("<4H2IH", 0, 0, times, times, len(rows), len(head), 0)
    archive = ZipArchive(content.MemoryContent(head + rows + end))
    members, read, lengths = list(archive.members()), content.MemoryContent.read, list[int]()

    def counted(one: content.MemoryContent, offset: int, length: int) -> bytes:
        lengths.append(length)
        return read(one, offset, length)

    monkeypatch.setattr(content.MemoryContent, "read", counted)
    for member in members:
        with pytest.raises(Unreadable):
            archive.beginning(member)
    assert sum(lengths) < 10 * len(blank)


def test_of_a_folder_no_more_names_are_held_than_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (tmp_path / f"{number:02}").touch()
    monkeypatch.setattr(places, "_MOST_FILES", 9)
    taken = list[str]()
    scandir = os.scandir

    def noted(rows: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for one in rows:
            taken.append(one.name)
            yield one

    @contextlib.contextmanager
    def counted(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(path) as rows:
            yield noted(rows)

    monkeypatch.setattr(os, "scandir", counted)
    assert "only the first 9 files" in str(inspect(tmp_path).notes)
    assert len(taken) == 10
