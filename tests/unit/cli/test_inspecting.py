"""What is said of a file that cannot be looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.cli import inspecting_models

if TYPE_CHECKING:
    from pathlib import Path


def test_what_may_not_be_looked_at_is_not_called_absent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert inspecting_models._why_absent(tmp_path / "none") == "no such file"
    assert inspecting_models._why_absent(tmp_path / "file/below") == "not a directory"
    assert inspecting_models._why_absent(tmp_path / ("n" * 300)) == "file name too long"
