"""What lies beside while a bundle is made: nobody takes away what somebody works at, wherever that one is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from xpucached.bundle import words
from xpucached.bundle.writing import LayoutWriter
from xpucached.domain.bundles import Compression
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("limit", "most"), [("MOST_FILES", 4), ("LARGEST_FILE", 9), ("LARGEST_BLOB", 9), ("EXPANSION", 0)]
)
def test_a_layer_that_nobody_would_read_is_not_made(
    limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, limit, most)
    with LayoutWriter(tmp_path / "bundle") as layout:
        layer = layout.layer(Compression.GZIP, words.LAYER)
        with pytest.raises(RequestError, match="nobody would read a layer"):  # noqa: PT012 - at some of them
            for number in range(2):
                layer.add(f"sycl/{number}/0.bin", bytes(1 << 20))
            layer.finish()
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]
