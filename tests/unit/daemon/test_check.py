"""`xpucached --check` of the host's configuration."""

from __future__ import annotations

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
