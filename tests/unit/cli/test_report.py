"""`xpucachectl report`: the file that it writes."""

from __future__ import annotations

import json
import os
import re
import stat
from typing import TYPE_CHECKING

from tests.support import api_stub, histories
from xpucached import codec
from xpucached.cli import main
from xpucached.cli.report import anonymous
from xpucached.domain.overview import Overview
from xpucached.errors import Conflict

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_report_is_one_file_for_its_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, victim = tmp_path / "report.html", tmp_path / "victim"
    victim.write_text("theirs")
    file.symlink_to(victim)
    with api_stub.running(tmp_path) as door:
        assert main(["--socket", str(door.path), "report", "--html", str(file)]) == 0
        assert main(["--socket", str(door.path), "report", "--html", str(tmp_path / "no" / "where.html")]) != 0
    said = capsys.readouterr()
    assert "the report cannot be written" in said.err
    assert said.out == f"{file}: {file.stat().st_size} bytes; open it in a browser\n"
    # What stood there is replaced, and not what it led to.
    assert victim.read_text() == "theirs"
    assert not file.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {one.name for one in tmp_path.iterdir() if one.name.endswith(".new")} == set()
    text = file.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*)</script>\n', text)
    assert data is not None
    assert codec.from_json(Overview, json.loads(data[1])) == histories.make_overview()


def test_what_is_no_file_is_not_replaced_by_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe, link, opened = tmp_path / "pipe", tmp_path / "link", tmp_path / "opened"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with api_stub.running(tmp_path) as door, (tmp_path / "file").open("w") as file:
        # As /dev/stdout is one, which may lead to a file.
        opened.symlink_to(f"/proc/self/fd/{file.fileno()}")
        for one in (pipe, link, opened):
            assert main(["--socket", str(door.path), "report", "--html", str(one)]) == Conflict.exit
            assert "no regular file: it stays" in capsys.readouterr().err
        assert stat.S_ISFIFO(pipe.lstat().st_mode)
        assert link.is_symlink()
        assert opened.is_symlink()


def test_a_report_has_any_name_that_files_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").mkdir()
    with api_stub.running(tmp_path) as door:
        for name in ("\N{CJK UNIFIED IDEOGRAPH-4E00}" * 85, "r" * 255):
            assert main(["--socket", str(door.path), "report", "--html", str(tmp_path / name)]) == 0
            assert (tmp_path / name).read_text(encoding="utf-8").startswith("<!doctype html>")
        for name in ("folder", "r" * 256):
            assert main(["--socket", str(door.path), "report", "--html", str(tmp_path / name)]) == Conflict.exit
    assert not [one for one in tmp_path.iterdir() if one.name.endswith(".new")]
    capsys.readouterr()


def test_a_report_for_others_names_nobody() -> None:
    told = codec.dumps(codec.to_json(anonymous(histories.make_overview()))).decode()
    for name in ("llama", "whisper", "example", "app.service", "logaddexp"):
        assert name not in told
    assert anonymous(histories.make_overview()).usage.models[1].model == "model-2"
