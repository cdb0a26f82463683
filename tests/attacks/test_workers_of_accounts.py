"""Somebody who has taken over the host's daemon starts workers as accounts of the system: they end at once."""

from __future__ import annotations

import os
import pwd
import subprocess
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from xpucached import sockets
from xpucached.hostd import users
from xpucached.settings import loading
from xpucached.settings.sections import Workers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.users import User


@pytest.mark.parametrize("who", ["nobody", "daemon", "no account"])
def test_an_account_of_the_system_has_no_worker(attacker: User, victim: User, who: str) -> None:
    uid = {"nobody": attacker.uid, "daemon": pwd.getpwnam("daemon").pw_uid, "no account": victim.uid}[who]
    home = victim.home / "worker"
    home.mkdir()
    victim.home.chmod(0o755)
    os.chown(home, uid, uid)
    # As the unit starts it.
    done = subprocess.run(
        [victim.program, "-m", "xpucached", "--worker"],
        env={
            **victim.environment,
            "XPUCACHED_PATHS_STATE": str(home / "state"),
            "XPUCACHED_PATHS_SOCKET": str(home / "s"),
        },
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 78, done.stderr
    assert f"user {uid} has no worker" in done.stderr
    assert "include in [workers]" in done.stderr
    assert list(home.iterdir()) == []


def test_who_logs_in_or_is_named_has_one_and_the_host_s_own_account_never(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"alice": 1000, "svc": 1001, "llm": 300, sockets.ACCOUNT: 301, "root": 0}
    shells = {"svc": "/usr/sbin/nologin"}
    known = [
        pwd.struct_passwd((name, "x", uid, uid, "", "/", shells.get(name, "/bin/sh"))) for name, uid in names.items()
    ]
    monkeypatch.setattr(pwd, "getpwall", lambda: known)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: next(one for one in known if one.pw_name == name))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: next(one for one in known if one.pw_uid == uid))
    assert [uid for uid in names.values() if users.may_have_worker(uid, None, had=False)] == [1000]
    # A mistake in any key stops nobody's worker.
    assert [uid for uid in names.values() if users.may_have_worker(uid, None, had=True)] == [1000, 1001, 300]
    everyone = Workers(include=tuple(names))
    found = users.managed_users(everyone, (), host_daemon=301)
    assert sorted(found) == [300, 1000, 1001]


def test_while_model_files_cannot_be_read_who_had_a_worker_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = [pwd.struct_passwd((name, "x", uid, uid, "", "/", "")) for name, uid in (("llm", 300), ("root", 0))]
    monkeypatch.setattr(pwd, "getpwall", list)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {one.pw_name: one for one in accounts}[name])
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {one.pw_uid: one for one in accounts}[uid])
    read = loading.load(None, user=False, environ={})
    config = replace(read, paths=replace(read.paths, models=tmp_path / "models.d"))

    def may(uid: int = 300, *, had: bool = True) -> bool:
        return users.may_have_worker(uid, config, had=had)

    assert not may()
    config.paths.models.touch()
    assert (may(), may(had=False), may(0), may(301)) == (True, False, False, False)
    config.paths.models.unlink()
    config.paths.models.mkdir()
    (config.paths.models / "net.toml").write_text('user = "ll')
    assert (may(), may(had=False)) == (True, False)
    config = replace(config, workers=Workers(exclude=("llm",)))
    assert not may()
