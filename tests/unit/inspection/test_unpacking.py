"""What is compressed is judged as a whole, or not at all."""

from __future__ import annotations

from typing import Final

import pytest

from xpucached.bundle import packing
from xpucached.inspection import unpacking
from xpucached.inspection.content import Unreadable

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
