"""`inspect` as whoever sits at a terminal sees it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from xpucached import cli
from xpucached.domain.inspection import Inspection
from xpucached.render.inspection import inspection
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from pathlib import Path


def on_a_terminal(*given: str, home: Path) -> tuple[int, str]:
    """Run a command on a pseudo-terminal; give its status, and all that the terminal got."""
    ours, theirs = pty.openpty()
    environ = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "TERM": "xterm", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "xpucached.cli", "--user", *given]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as started:
        os.close(theirs)
        got = bytearray()
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # Linux says so when the other end is closed.
                break
            if not piece:
                break
            got += piece
    os.close(ours)
    return started.returncode, got.decode()


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("", 64, "no name is empty"),
        ("/etc/passwd", 66, "/etc/passwd: neither a library"),
        ("/no/such", 66, "xpucachectl: /no/such: no such file\n"),
    ],
)
def test_what_cannot_be_inspected_is_refused(
    target: str, status: int, said: str, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    assert cli.main(["--user", "inspect", target, "--device", "cpu"]) == status
    assert said in capsys.readouterr().err


def test_one_of_something_is_not_several(tmp_path: Path) -> None:
    told = Inspection("x", (), (), (), 1, (("folders that are too deep", 1), ("copies of what was read", 1)), (), 0.1)
    said = inspection(told, TextStyle(datetime(2026, 5, 4, tzinfo=UTC)))
    assert "1 folder that is too deep" in said
    assert "1 copy of what was read" in said


def test_what_is_read_is_shown_on_a_terminal_and_leaves_no_trace(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    for number in range(20):
        (folder / f"lib{number}.so").write_bytes(b"\x7fELF" + bytes(2000))
    status, got = on_a_terminal("inspect", str(folder), "--device", "B580", home=tmp_path)
    assert status in {0, 1}
    # Control characters that are made visible are what nobody is to see; the bar's own are real.
    assert "\\x" not in got
    assert "\x1b[" in got
    assert "lib9.so: it is no" in got


def test_a_file_is_read_without_what_only_a_daemon_needs(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"\x7fELF" + bytes(2000))
    words = ["--socket", str(tmp_path / "none"), "inspect", str(tmp_path), "--device", "B580"]
    program = "import sys; from xpucached.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "xpucached.inspection.report" in loaded
    # A small wheel is read in no time: most of it is the start.
    assert not {"http.client", "xpucached.api.client", "xpucached.codec", "tempfile"} & loaded
