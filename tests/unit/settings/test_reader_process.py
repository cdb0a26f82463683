"""`settings.reader_process`: another process reads the configuration, and it says what we would have read."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from tests.unit.settings.test_settings import FULL
from xpucached.daemon import configuration, host_daemon, user_daemon
from xpucached.domain.triggers import DriverChanged, ModelsChanged, Trigger
from xpucached.errors import SettingsError
from xpucached.processes import child
from xpucached.settings import Settings, loading, reader_process

ENVIRON = {"HOME": "/home/me", "XDG_RUNTIME_DIR": "/run/user/1"}


@pytest.mark.flow
def test_what_a_process_of_its_own_reads_is_what_we_would_have_read(tmp_path: Path) -> None:
    file = tmp_path / "xpucached.toml"
    file.write_text(FULL, encoding="utf-8")
    # A name that is no text: in the file there can be none.
    environ = {**ENVIRON, "XPUCACHED_PATHS_STATE": os.fsdecode(b"/s\xff"), "PYTHONPATH": "/nowhere"}

    found = reader_process.load(file, user=True, environ=environ, worker=True)

    assert found == loading.load(file, user=True, environ=environ, worker=True)
    assert found.policy.limits[1].max_unused == float("inf")


@pytest.mark.flow
def test_what_it_refuses_is_refused_with_the_same_words(tmp_path: Path) -> None:
    file = tmp_path / "xpucached.toml"
    file.write_text("[policy]\ngrace = -1\n[polcy]\n", encoding="utf-8")
    told = []
    for load in (reader_process.load, loading.load):
        with pytest.raises(SettingsError) as caught:
            load(file, user=True, environ=ENVIRON)
        told.append((caught.value.message, caught.value.hint))

    assert told[0] == told[1]


@pytest.mark.flow
def test_a_path_leads_where_links_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "elsewhere" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "link").symlink_to(inner)
    (inner.parent / "xpucached.toml").write_text("[policy]\nattempts = 4\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path = Path("link/../xpucached.toml")

    found = reader_process.load(path, user=True, environ=ENVIRON)

    assert found == loading.load(path, user=True, environ=ENVIRON)
    assert found.policy.attempts == 4


def test_where_no_process_can_be_started_we_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise BlockingIOError

    monkeypatch.setattr(child, "run", refused)

    assert reader_process.load(None, user=True, environ=ENVIRON) == loading.load(None, user=True, environ=ENVIRON)


@pytest.mark.parametrize("ended", [child.Ended(None), child.Ended(1, b"{}"), child.Ended(0, b"")])
def test_where_it_says_nothing_we_read_it(monkeypatch: pytest.MonkeyPatch, ended: child.Ended) -> None:
    monkeypatch.setattr(child, "run", lambda *_, **__: ended)

    assert reader_process.load(None, user=True, environ=ENVIRON) == loading.load(None, user=True, environ=ENVIRON)


def test_it_gets_our_variables_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}

    def run(_command: object, *, variables: dict[str, str], **_more: object) -> child.Ended:
        given.update(variables)
        return child.Ended(None)

    monkeypatch.setattr(child, "run", run)
    strange = {"API_TOKEN": "secret", "LD_PRELOAD": "/x.so", "PYTHONPATH": "/y", "PATH": "/z", "SYCL_CACHE_DIR": "/c"}
    reader_process.load(None, user=True, environ={**ENVIRON, **strange, "XPUCACHED_LOG_LEVEL": "debug"})

    assert given == {"PATH": os.defpath, "LANG": "C.UTF-8", **ENVIRON, "XPUCACHED_LOG_LEVEL": "debug"}


@pytest.mark.flow
def test_no_daemon_loads_what_only_reading_needs() -> None:
    code = (
        "import sys, xpucached.daemon.main, xpucached.daemon.user_daemon, xpucached.daemon.host_daemon; "
        "print([one for one in ('pydantic', 'pydantic_settings', 'alembic') if one in sys.modules])"
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
        await asyncio.wait_for(host_daemon._reload(daemon, load), 10)  # type: ignore[arg-type]

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
