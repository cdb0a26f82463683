"""`xpucached --check` of a configuration, the host's or a user's."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from xpucached import sockets
from xpucached.daemon import account
from xpucached.daemon.main import main

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest


def test_a_name_that_nobody_has_is_told_and_is_no_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "xpucached.toml"
    file.write_text("[policy.users.no-such-user]\ngrace = 1\n")
    assert main(["--system", "--check", "--config", str(file)]) == 78
    shown = capsys.readouterr()
    assert f"{file}:1: policy.users.no-such-user: there is no user" in shown.err
    assert "in order" not in shown.out
    file.write_text("[policy.users.root]\ngrace = 1\n")
    assert main(["--system", "--check", "--config", str(file)]) == 0


def test_a_model_s_user_who_is_called_otherwise_here_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = tmp_path / "models.d", tmp_path / "xpucached.toml"
    folder.mkdir()
    file.write_text(f'[paths]\nmodels = "{folder}"\n')
    own = pwd.getpwuid(os.getuid())
    usual = pwd.getpwnam
    # As a directory service does, for which names are the same in capitals.
    monkeypatch.setattr(pwd, "getpwnam", lambda name: own if name == "Somebody" else usual(name))
    check = ["--system", "--check", "--config", str(file)]

    (folder / "net.toml").write_text(f'user = "{os.getuid()}"\ncommand = ["/bin/true"]\n')
    assert main(check) == 0
    assert "model files: 1\n" in capsys.readouterr().out
    (folder / "net.toml").write_text('user = "Somebody"\ncommand = ["/bin/true"]\n')
    assert main(check) == 78
    shown = capsys.readouterr()
    assert f"a model file names the user Somebody, who is {own.pw_name} here" in shown.err
    assert "model files: 1, 1 refused" in shown.out


def test_who_has_a_worker_alone_needs_no_directory_for_a_socket_to_be_told_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(environ: Mapping[str, str]) -> str:
        raise sockets.NoRuntimeDirectory

    # As in a shell of root's for an account that nobody logs in to.
    monkeypatch.setattr(sockets, "runtime_directory", nowhere)
    monkeypatch.delenv("XPUCACHED_SOCKET", raising=False)
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path))
    (tmp_path / "xpucached/models.d").mkdir(parents=True)
    assert main(["--user", "--check"]) == 0
    (tmp_path / "xpucached/models.d/net.toml").write_text("comand = 1\n")
    assert main(["--user", "--check"]) == 78
    assert "net.toml:1: comand: unknown key" in capsys.readouterr().err
    assert main(["--user"]) == 78
    assert "there is no directory for the socket" in capsys.readouterr().err


def test_what_its_unit_says_for_root_no_worker_hands_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    main(["--worker", "--check"])
    # A user's own packages count for what the models of this user are made of.
    assert "PYTHONNOUSERSITE" not in os.environ


def test_what_pam_says_is_asked_by_root_and_noted_or_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(account, "refusal", lambda _uid: "it has expired")
    monkeypatch.setattr(sockets, "denial_path", lambda _uid: str(tmp_path / "file/denied"))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["--account", "1"]) == 77
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "file").touch()
    assert main(["--account", "1"]) == 255
    assert "cannot be noted" in capsys.readouterr().err
    (tmp_path / "file").unlink()
    assert main(["--account", "1"]) == 1
    assert (tmp_path / "file/denied").read_text() == "it has expired\n"


def test_who_stumbles_over_what_pam_is_asked_has_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another status systemd would pass over the worker, as over one that is denied."""
    asked: list[tuple[object, ...]] = []

    class Pam:
        """A library that is asked, and does not answer."""

        def pam_start(self, *words: object) -> int:
            asked.append((words[0], words[1], *words[3:-1]))
            return 4

        pam_start_confdir = pam_start

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(sockets, "denial_path", lambda _uid: str(tmp_path / "denied"))
    monkeypatch.setattr("ctypes.CDLL", lambda _name: Pam())
    theirs = tmp_path / "xpucached-worker"
    monkeypatch.setattr(account, "_THEIRS", theirs)
    monkeypatch.setattr(
        "pwd.getpwuid", lambda _uid: pwd.getpwall()[0].__class__(("m\udcfcller", "x", 1, 1, "", "", ""))
    )
    assert main(["--account", "1"]) == 255
    theirs.touch()
    assert main(["--account", "1"]) == 255
    # Directories (AD, FreeIPA) deny a service that they have never heard of, and let systemd's for each user run.
    ours = account._OURS.parent
    assert asked == [(b"systemd-user", b"m\xfcller", os.fsencode(ours)), (b"xpucached-worker", b"m\xfcller")]
    assert {file.name for file in ours.iterdir()} == {"systemd-user", "other"}
    monkeypatch.setattr(account, "refusal", lambda _uid: {}[_uid])
    assert main(["--account", "1"]) == 255
