"""`xpucached --check` of the host's configuration."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from xpucached.daemon.main import main

if TYPE_CHECKING:
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
