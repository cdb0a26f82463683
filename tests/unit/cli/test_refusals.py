"""What a command cannot do for its surroundings it says in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xpucached import cli
from xpucached.errors import DiskError


@pytest.mark.parametrize("command", [("bundle", "inspect", "x"), ("inspect", ".")])
def test_a_directory_that_is_gone_is_said_to_be(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    assert cli.main(command) == DiskError.exit
    assert "is gone" in capsys.readouterr().err


@pytest.mark.flow
def test_where_an_answer_cannot_be_written_that_is_said(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "xpucached.cli", "bundle", "keygen", tmp_path / "key"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
            check=False,
        )
    assert (done.returncode, "cannot be written: No space left" in done.stderr) == (DiskError.exit, True), done.stderr
