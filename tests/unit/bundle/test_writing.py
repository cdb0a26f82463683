"""What lies beside while a bundle is made: nobody takes away what somebody works at, wherever that one is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xpucached.bundle.writing import LayoutWriter

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_one_in_another_container_makes_stays_and_what_a_killed_one_left_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    dest = tmp_path / "there/bundle"
    left = dest.parent / f".{dest.name}.partial-1"
    left.mkdir()
    with monkeypatch.context() as inside:
        # Nobody has this number here.
        inside.setattr(os, "getpid", lambda: 1 << 23)
        other = LayoutWriter(dest)
    with other, LayoutWriter(dest) as mine:
        assert not left.exists()
        other.put_file("index.json", b"{}")
        mine.finish()

    assert list(dest.parent.iterdir()) == [dest]
