"""What a command cannot do for its surroundings it says in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xpucached import cli
from xpucached.errors import DiskError, RequestError, Unavailable


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


def test_that_nobody_answers_is_json_for_monitoring_that_reads_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert cli.main(["--user", "status", "--check", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == Unavailable.code
    assert cli.main(["--user", "status", "--check"]) == 3
    assert capsys.readouterr().out.startswith("XPUCACHED UNKNOWN - no daemon answers")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("env", "net"), "hint: say whose: xpucachectl --of USER env; or ask your own: xpucachectl --user\n"),
        (("run", "net", "--", "true"), "hint: ask your own: xpucachectl --user\n"),
    ],
)
def test_who_asks_the_hosts_daemon_is_told_what_is_not_refused_next(
    words: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert cli.main(["--system", *words]) == RequestError.exit
    assert capsys.readouterr().err.endswith(hint)


@pytest.mark.parametrize(
    "words",
    [
        *(["run", "--", "true"], ["trace", "--", "true"]),
        *(["bundle", "import", "b"], ["bundle", "export", "b"], ["bundle", "verify", "b"], ["bundle", "fetch"]),
        ["replay", "--bundle", "b", "--into", "d"],
    ],
)
def test_what_works_with_one_s_own_files_takes_no_other_user(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--of", "nobody", *words]) == RequestError.exit
    assert "of yours, and --of names another user\nhint: leave out --of, or" in capsys.readouterr().err


def ended(
    module: str, *words: str | Path, unbuffered: str = "", before: str = 'exec "$@" > /dev/full'
) -> tuple[int, str]:
    """Run a program whose output goes nowhere; give its exit status and the last line of what it said."""
    command = ["/bin/sh", "-c", before, "sh", sys.executable, "-m", module, *words]
    variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=variables, check=False)
    return done.returncode, done.stderr.strip().rpartition("\n")[2]


@pytest.mark.flow
def test_where_an_answer_cannot_be_written_that_is_said(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    said = "xpucachectl: the answer cannot be written: No space left on device"
    assert ended("xpucached.cli", "bundle", "keygen", tmp_path / "key") == (DiskError.exit, said)


@pytest.mark.flow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("xpucached.cli", ["--version"]),
        ("xpucached.cli", ["status", "--help"]),
        ("xpucached", ["--version"]),
        ("xpucached.watchd", ["--help"]),
    ],
)
def test_so_it_is_where_nothing_but_the_manual_was_asked_for(program: str, words: list[str], unbuffered: str) -> None:
    status, said = ended(program, *words, unbuffered=unbuffered)
    assert (status, said.endswith("the answer cannot be written: No space left on device")) == (DiskError.exit, True), (
        said
    )


@pytest.mark.flow
@pytest.mark.parametrize("words", [["--version"], ["ls", "--help"], ["version"]])
def test_an_output_that_is_closed_is_none_that_took_the_answer(words: list[str]) -> None:
    said = "xpucachectl: the answer cannot be written: Bad file descriptor"
    assert ended("xpucached.cli", *words, before='exec "$@" >&-') == (DiskError.exit, said)


@pytest.mark.flow
@pytest.mark.parametrize("closed", ["<&-", "2>&-"])
@pytest.mark.parametrize(
    "words",
    [
        ["--user", "driver-changed", "--no-wait"],
        ["--user", "trash", "empty"],
        ["trace", "--", "true"],
        ["bundle", "inspect", "none"],
        ["fleet", "diff", "-"],
    ],
)
def test_with_stdin_or_stderr_closed_a_command_ends_as_without(words: list[str], closed: str, tmp_path: Path) -> None:
    variables = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    tmp_path.chmod(0o700)
    usual, without = (
        subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" {how}', "sh", sys.executable, "-m", "xpucached.cli", *words],
            capture_output=True,
            cwd=tmp_path,
            env=variables,
            check=False,
        )
        for how in ("</dev/null", closed)
    )
    assert (without.returncode, without.stdout) == (usual.returncode, usual.stdout), without.stderr
