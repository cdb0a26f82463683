"""How daemons read their configuration: where it is, what that loads, and what becomes of one that cannot be read."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from xpucached.daemon import configuration, host_daemon, user_daemon
from xpucached.domain.triggers import DriverChanged, ModelsChanged, Trigger
from xpucached.errors import SettingsError
from xpucached.settings import Settings, loading

ENVIRON = {"HOME": "/home/me", "XDG_RUNTIME_DIR": "/run/user/1"}


def test_a_path_leads_where_links_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "elsewhere" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "link").symlink_to(inner)
    (inner.parent / "xpucached.toml").write_text("[policy]\nattempts = 4\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path = Path("link/../xpucached.toml")

    found = loading.load(path, user=True, environ=ENVIRON)
    assert (found.policy.attempts, found.file) == (4, tmp_path / path)


def test_a_path_from_a_directory_that_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(SettingsError, match=r"x\.toml: the directory in which this was started is gone"):
        loading.load(Path("x.toml"), user=True, environ=ENVIRON)
    assert loading.load(None, user=True, environ=ENVIRON).file == Path("/home/me/.config/xpucached/xpucached.toml")


def test_only_a_worker_reads_what_the_host_declares_besides() -> None:
    assert loading.load(None, user=True, environ=ENVIRON).host_models is None
    worker = loading.load(None, user=True, environ=ENVIRON, worker=True)
    assert worker.host_models == Path("/etc/xpucached/models.d")


@pytest.mark.flow
def test_no_daemon_loads_what_only_migrations_need() -> None:
    code = (
        "import sys, xpucached.daemon.main, xpucached.daemon.user_daemon, xpucached.daemon.host_daemon; "
        "print([one for one in ('alembic', 'mako') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_a_configuration_whose_file_system_does_not_answer_keeps_the_host_s_old_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_daemon, "_READING", 0.1)
    answer = threading.Event()

    def load() -> Settings:
        answer.wait(20)
        raise SettingsError("too late")

    # Nothing is taken over: there is nobody who could take it.
    daemon = SimpleNamespace(settings_problems=())

    async def reload() -> None:
        await asyncio.wait_for(host_daemon._reload(daemon, None, load), 10)  # type: ignore[arg-type]

    asyncio.run(reload())
    answer.set()
    assert "the old configuration stays: the new configuration cannot be read now: its file system" in caplog.text
    assert [one.code for one in daemon.settings_problems] == ["bad-settings"]


def test_a_configuration_whose_file_system_does_not_answer_keeps_a_user_s_old_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(user_daemon, "_READING", 0.1)
    answer = threading.Event()
    monkeypatch.setattr(configuration, "load", lambda _options: answer.wait(20))
    taken: list[Trigger] = []
    context = SimpleNamespace(settings_problems=())
    # Of a daemon no more than what a reload that fails needs: whatever else it touched would be an error.
    daemon = SimpleNamespace(_options=None, _take=taken.append, _service=SimpleNamespace(context=context))

    async def reload() -> None:
        await asyncio.wait_for(user_daemon.Daemon._reload(daemon), 10)  # type: ignore[arg-type]

    try:
        asyncio.run(reload())
    finally:
        answer.set()
    assert "the old configuration stays: the new configuration cannot be read now: its file system" in caplog.text
    assert [one.code for one in context.settings_problems] == ["bad-settings"]
    # A look at the rest is due all the same.
    assert taken == [ModelsChanged(), DriverChanged()]
