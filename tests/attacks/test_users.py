"""The users of the attacks are what the attacks take them for."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.users import User

WHO = "import os, sys; print(os.getresuid(), os.getresgid(), os.getgroups(), sorted(os.environ), os.getcwd())"
READ = "import sys; print(open(sys.argv[1]).read())"


def test_they_are_two_users_without_rights(attacker: User, victim: User, common: Path) -> None:
    assert attacker.uid != victim.uid
    for one in (attacker, victim):
        said = one.python(WHO).stdout
        assert said.startswith(f"({one.uid}, {one.uid}, {one.uid}) ({one.uid}, {one.uid}, {one.uid}) [] ")
        assert said.endswith(" /\n")
        assert "VIRTUAL_ENV" not in said
        assert one.python("import xpucached.daemon.user_daemon; print('here')").stdout == "here\n"
    secret = victim.home / "secret"
    secret.write_text("mine")
    victim.owns(secret)
    assert victim.python(READ, secret).stdout == "mine\n"
    assert "PermissionError" in attacker.python(READ, secret, check=1).stderr
    attacker.call("touch", common / "made", check=1)


def test_what_does_not_end_is_ended(attacker: User) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        attacker.call("sleep", "1000", timeout=0.2)
