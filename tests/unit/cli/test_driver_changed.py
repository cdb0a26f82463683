"""`xpucachectl driver-changed --wait`: it returns when nothing more comes, and its exit status tells."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from xpucached.api import requests
from xpucached.api.client import Answer, Client
from xpucached.cli import arguments, commands, driver_changed
from xpucached.cli.output import Output
from xpucached.codec import to_json
from xpucached.domain.status import Status
from xpucached.domain.users import HostStatus, UserStatus, WorkerState
from xpucached.errors import RequestError, Unavailable
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.api.endpoints import Request


class Daemon:
    """A daemon that says one thing after the other, and the last again and again; None: it does not answer."""

    def __init__(self, *said: Callable[[], object] | None) -> None:
        self.said = list(said)
        self.told = 0

    def call(self, request: Request[object]) -> Answer[object]:
        """Answer."""
        if isinstance(request, requests.Refresh):
            self.told += 1
            return Answer(None, None)
        say = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if say is None:
            raise Unavailable("no daemon answers")
        value = say()
        return Answer(to_json(value), type(value))


def host(*users: UserStatus) -> Callable[[], HostStatus]:
    """Say how a host stands, as of now."""
    return lambda: HostStatus("1", api_stub.NOW, "stamp", api_stub.NOW, (), users, datetime.now(UTC), 3600.0)


LATER = datetime.now(UTC) + timedelta(1)
WARM = UserStatus(
    "alice",
    1001,
    WorkerState.AWAKE,
    entries=3,
    warm=1,
    looked=api_stub.NOW + timedelta(1),
    seen=datetime.now(UTC) + timedelta(1),
)


def run(line: str, daemon: Daemon, table: object = commands._OF_HOST) -> int:
    """Do what a command line says."""
    options = arguments.parse(line.split())
    style = TextStyle(api_stub.NOW)
    output = Output(options, cast("Client", daemon), style, options.json, options.quiet)
    return cast("dict[str, Callable[[Output], int]]", table)["driver-changed"](output)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_changed, "_PAUSE", 0.01)


def test_a_user_is_called_by_name() -> None:
    assert [driver_changed._named(one) for one in ("0", "alice", "4294967290", "9" * 40)] == [
        "root",
        "alice",
        "4294967290",
        "9" * 40,
    ]


def test_of_who_runs_a_daemon_of_their_own_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    aside = replace(WARM, user="bob", uid=1002, state=WorkerState.ASIDE, warm=4, cold=1, entries=9)
    assert run("driver-changed --wait", Daemon(host(WARM, aside))) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("all is warm: 1 of 1 model, 1 user, after ")
    assert first.endswith("; of 1 user, aside or denied, nothing is known here")
    assert last.split()[:5] == ["bob", "aside", "?", "?", "?"]


def test_it_waits_until_nothing_more_comes(capsys: pytest.CaptureFixture[str]) -> None:
    old = replace(host(WARM)(), looked=api_stub.NOW)
    busy = host(replace(WARM, busy=True, cold=1, warm=0, sentence="warming"))
    # What looks settled for a moment, and a daemon that starts again, end no wait.
    daemon = Daemon(lambda: old, busy, host(WARM), busy, None, busy, host(WARM), host(WARM))
    assert run("driver-changed --wait", daemon) == 0
    assert (daemon.told, len(daemon.said)) == (1, 1)
    said = capsys.readouterr()
    assert said.out.startswith("all is warm: 1 of 1 model, 1 user, after ")
    assert said.err.splitlines()[:2] == ["waiting for a look at the driver", "waiting for 1 of 1 user: alice: warming"]


@pytest.mark.parametrize(
    ("one", "status", "state"),
    [
        (WARM, 0, "warm"),
        (replace(WARM, cold=1), 1, "cold"),
        (replace(WARM, state=WorkerState.FAILED, sentence="it died"), 2, "failed"),
    ],
)
def test_the_exit_status_tells(one: UserStatus, status: int, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("driver-changed --wait --json", Daemon(host(one))) == status
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["state"], data["users"][0]["user"], data["users"][0]["state"]) == (state, "alice", state)
    assert run("driver-changed --wait -q", Daemon(host(one))) == status
    assert capsys.readouterr().out == f"{state}\n"


def test_when_the_time_is_up_it_says_who_is_late(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert run("driver-changed --wait --timeout 1s", Daemon(host(WARM, replace(WARM, user="bob", busy=True)))) == 1
    assert 0.9 < time.monotonic() - began < 30
    said = capsys.readouterr().out
    assert said.startswith("the time is up, and not all is warm yet")
    assert "bob    waiting" in said
    with pytest.raises(Unavailable):
        run("driver-changed --wait --timeout 0.1s", Daemon(None))


def test_a_user_waits_for_their_own_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    warm = replace(api_stub.make_status(), problems=())

    def said(status: Status) -> Callable[[], Status]:
        return lambda: status

    daemon = Daemon(said(replace(warm, busy=True)), said(warm))
    assert run("driver-changed --wait", daemon, commands.COMMANDS) == 0
    assert "all is warm" in capsys.readouterr().out


def test_without_it_nobody_waits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("driver-changed", Daemon(None)) == 0
    assert capsys.readouterr().out == "told\n"
    with pytest.raises(RequestError, match="not together with"):
        arguments.parse(["driver-changed", "--wait", "--no-wait"])
