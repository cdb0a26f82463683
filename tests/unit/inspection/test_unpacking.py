"""What is compressed is judged as a whole, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from xpucached.bundle import packing
from xpucached.inspection import devices, report, unpacking
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
