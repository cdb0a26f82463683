"""Fingerprints of real drivers, by the command itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.flow.test_bundles import CTL, ctl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.runtimes import Runtime


@pytest.mark.runtime
def test_one_driver_in_two_folders_is_equal_and_another_release_is_not(
    runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    def told(name: str, root: Path) -> dict[str, object]:
        text = ctl("fingerprint", "--json", "--driver-root", root, XPUCACHED_SOCKET=str(tmp_path / "none"))
        (tmp_path / f"{name}.json").write_text(text)
        found: dict[str, object] = json.loads(text)["data"]
        return found

    root = runtime("rt2025.2").root
    shutil.copytree(root / "lib", tmp_path / "moved" / "lib", symlinks=True, ignore=shutil.ignore_patterns("python*"))
    first, moved = told("first", root), told("moved", tmp_path / "moved")
    other = told("other", runtime("rt2025.1").root)

    assert first == moved
    assert first["fingerprint"]
    assert first["fingerprint"] != other["fingerprint"]
    assert first["host"] == os.uname().nodename
    # Nobody was there to say it.
    assert first["warm"] is None
    assert ctl("fleet", "diff", tmp_path / "first.json", tmp_path / "moved.json").startswith("all are equal: 2 hosts")
    table = ctl("fleet", "diff", tmp_path / "first.json", tmp_path / "moved.json", tmp_path / "other.json", status=1)
    assert "3 hosts, 2 fingerprints" in table
    assert "driver of" in table
    assert "libintelocl.so" in table


def test_what_stands_in_standard_input_may_take_more_room_where_it_is_handed_on() -> None:
    told = subprocess.run([*CTL, "fleet", "diff", "-"], input=bytes(6 << 20), capture_output=True, check=False)
    assert told.returncode == 1, told.stderr
    assert b"it has more than" in told.stdout
