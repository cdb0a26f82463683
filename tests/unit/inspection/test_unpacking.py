"""What is compressed is judged as a whole, or not at all."""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.unit.inspection.test_report import bundle
from xpucached.bundle import packing
from xpucached.inspection import device_code, devices, report, unpacking
from xpucached.inspection.content import Unreadable

if TYPE_CHECKING:
    from pathlib import Path

PLAIN: Final = bytes(range(256)) * 1000


@pytest.mark.skipif(packing.zstd() is None, reason="zstd is not installed: pip install 'xpucached[share]'")
def test_half_an_image_is_not_judged_as_if_it_were_all_of_it() -> None:
    zstd = packing.zstd()
    assert zstd is not None
    whole = zstd.compress(PLAIN)
    assert unpacking.unpacked(whole) == PLAIN
    with pytest.raises(Unreadable):
        unpacking.unpacked(whole, len(PLAIN) - 1)
    for cut in (1, 8, len(whole) // 2):
        with pytest.raises(Unreadable):
            unpacking.unpacked(whole[:-cut])


@pytest.mark.skipif(packing.zstd() is None, reason="zstd is not installed: pip install 'xpucached[share]'")
def test_what_a_file_unpacks_to_is_bounded_for_all_its_images_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zstd = packing.zstd()
    assert zstd is not None
    monkeypatch.setattr(report, "_FEW", 1 << 20)
    (tmp_path / "one.bin").write_bytes(zstd.compress(PLAIN))
    (tmp_path / "bomb.bin").write_bytes(zstd.compress(PLAIN * 40))
    found = report.Inspector(devices.asked(["cpu"])).inspect("x", [tmp_path])

    assert [file.name for file in found.files] == ["one.bin"]
    assert "bomb.bin" in str(found.notes)
    assert "unpacked without end" in str(found.notes)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a module of Python's the system's library unpacks."""
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    unpack = unpacking._unpacker.__wrapped__()
    if unpack is None:
        pytest.skip("libzstd is not installed")
    monkeypatch.setattr(unpacking, "_unpacker", lambda: unpack)


@pytest.mark.usefixtures("library")
def test_the_system_s_library_unpacks_a_whole_image_or_nothing() -> None:
    raw = b"\x28\xb5\x2f\xfd\x20\x03\x19\x00\x00abc"  # one frame of one block, as it is
    assert unpacking.unpacked(raw) == b"abc"
    for wrong in (raw[:-1], raw.replace(b"\x20\x03", b"\x20\x04"), raw.replace(b"\x20\x03", b"\x20\x02")):
        with pytest.raises(Unreadable, match="damaged"):
            unpacking.unpacked(wrong)
    with pytest.raises(Unreadable, match="too large"):
        unpacking.unpacked(raw, 2)


@pytest.mark.usefixtures("library")
def test_images_that_say_they_are_huge_take_no_more_than_the_file(tmp_path: Path) -> None:
    # With half a GiB for each, all of them would not be read within the test's time limit.
    frame = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 500 << 20) + b"\xff" * 11
    rows = [(b"sycl-x", len(frame) * number, len(frame)) for number in range(4000)]
    (tmp_path / "forged.o").write_bytes(bundle(*rows) + frame * len(rows))
    found = report.Inspector(devices.asked(["cpu"])).inspect("x", [tmp_path])

    assert not found.files
    assert "unpacked without end" in str(found.notes)


class _Hole:
    """A file that is nearly all hole: as large as somebody likes, and no bytes on the disk."""

    size = 1 << 40

    def read(self, _offset: int, length: int) -> bytes:
        assert length <= 1 << 20
        return unpacking.MAGIC.ljust(length, b"\0")


def test_a_compressed_image_that_is_larger_than_any_is_not_read() -> None:
    content = _Hole()
    assert device_code.read(content, 0, content.size).wrong == "it is larger than any image"
