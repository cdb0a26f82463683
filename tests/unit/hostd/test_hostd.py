"""The host's daemon: whom it looks after, what it believes, what it passes on, and what it remembers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import os
import pwd
import re
import resource
import socket
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, TypeVar, cast

import pytest
from msgspec.structs import fields, replace

from tests.support import api_stub, users
from tests.test_docs import codes, page, rows, section
from xpucached import codec, sockets, systemd
from xpucached.api import host_requests, looking, requests
from xpucached.api.client import Client
from xpucached.api.endpoints import Request
from xpucached.cli import arguments
from xpucached.daemon import account, host_daemon, rights, user_daemon
from xpucached.domain import readiness
from xpucached.domain.checks import CheckState, Level, check_host
from xpucached.domain.host import Problem
from xpucached.domain.jobs import Event, Job, JobState
from xpucached.domain.models import Warmth
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.readiness import Readiness
from xpucached.domain.secrecy import HIDDEN, of_event
from xpucached.domain.status import Status, StatusSummary, Verdict
from xpucached.domain.users import HostStatus, SavedState, UserSocket, UserStatus, WorkerState
from xpucached.errors import Busy, Conflict, Denied, NotFound, SettingsError, Unavailable, XpucachedError
from xpucached.host import driver_stamp, staged
from xpucached.host.roots import HostRoots
from xpucached.hostd import figures, stamps, units, user_client
from xpucached.hostd.sentences import stranger
from xpucached.hostd.supervisor import HostDaemon
from xpucached.hostd.users import ManagedUsers, managed_users, read_users
from xpucached.hostd.worker_follower import __name__ as worker_follower
from xpucached.server import http_listener, unix_sockets
from xpucached.server.connection import ConnectionLimits
from xpucached.server.hosting import HostRoutes
from xpucached.server.metrics_port import MetricsPort
from xpucached.settings import loading, model_files
from xpucached.settings.sections import Workers
from xpucached.settings.values import filled
from xpucached.threads import renew
from xpucached.watchd import __main__ as watchd

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_values
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from xpucached.settings import Settings

K = TypeVar("K")
T = TypeVar("T")

OURS: Final = os.getuid()


# -- what may be tended ---------------------------------------------------------------------------------------------


def test_what_may_be_tended_names_no_path_and_no_command() -> None:
    free = {"model", "models", "name", "id", "dry_run", "all", "stale", "force", "limit", "timeout", "full", "reasons"}
    free |= {"since", "until", "top", "format"}  # times, numbers, one of two words
    for row in requests.ENDPOINTS:
        for one in fields(row.request):
            if one.name in free:
                continue
            for value in (Path("/x"), (Path("/x"),), "ab", ("ab",), True):
                asked = _with(row.request, one.name, value)
                assert asked is None or not host_requests.is_tending(asked), (row.path, one.name, value)


def _with(kind: type[Request[object]], name: str, value: object) -> Request[object] | None:
    """Make a request with one field set; None where it does not fit."""
    try:
        asked = kind(**{name: value})
    except (AttributeError, TypeError, ValueError):
        return None
    return None if asked == _plain(kind) else asked


def _plain(kind: type[Request[object]]) -> Request[object] | None:
    try:
        return kind()
    except (TypeError, ValueError):
        return None


@pytest.mark.parametrize(
    "asked",
    [
        requests.GetStatus(),
        requests.GetSummary(),
        requests.PrewarmModels(models=(ModelName("x"),)),
        requests.EvictEntries(),
        requests.EvictEntries(dry_run=True),
        requests.ReplayEntries(),
        requests.ScanStores(),
        requests.Refresh(),
    ],
)
def test_what_policies_do_by_themselves_may_be_asked_for(asked: Request[object]) -> None:
    assert host_requests.is_tending(asked)


@pytest.mark.parametrize(
    "asked",
    [
        requests.AddModel(name=ModelName("x"), command=("/bin/true",), directory=Path("/")),
        requests.RemoveModel(name=ModelName("x")),
        requests.EmptyTrash(),
        requests.RestoreTrash(all=True),
        requests.VerifyStores(fix=True),
        requests.ListEntries(),
        requests.GetConfig(),
        requests.GetEnv(),
        looking.ListEvents(),
        requests.CancelJob(id=JobId("1")),
    ],
)
def test_everything_else_may_not(asked: Request[object]) -> None:
    assert not host_requests.is_tending(asked)


def test_a_worker_gives_the_host_s_daemon_what_may_be_tended_and_others_nothing(short_dir: Path) -> None:
    refused = lambda _uid, _right: False  # noqa: E731 - nobody is the owner
    with (
        api_stub.running(short_dir, allowed=refused, tends=lambda uid: uid == OURS) as there,
        Client(there.path) as client,
    ):
        assert client.call(requests.GetStatus()).value.verdict is Verdict.WARM
        assert "secret" not in str(client.call(requests.ListModels()).data)
        for asked in (requests.GetConfig(), requests.ListEntries(), requests.EmptyTrash()):
            with pytest.raises(Denied):
                client.call(asked)
    with (
        api_stub.running(short_dir, allowed=refused) as there,
        Client(there.path) as client,
        pytest.raises(Denied, match="another user's"),
    ):
        client.call(requests.GetStatus())


# -- who is looked after ------------------------------------------------------------------------------------------


def test_people_and_the_named_are_looked_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "login.defs").write_text("UID_MIN 500\n# UID_MAX 9\nUID_MAX\t2000\n")
    names = {
        "root": 0,
        "daemon": 2,
        "old": 499,
        "first": 500,
        "last": 2000,
        "llm": 300,
        "nobody": 65534,
        "me": OURS,
        "svc": 1500,
        "far": 1234567890,
    }
    shells = {"svc": "/usr/sbin/nologin", "llm": "/bin/false"}
    known = [
        pwd.struct_passwd((name, "x", uid, uid, "", "/", shells.get(name, "/bin/sh"))) for name, uid in names.items()
    ]
    monkeypatch.setattr(pwd, "getpwall", lambda: known)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: next(one for one in known if one.pw_name == name))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: next(one for one in known if one.pw_uid == uid))

    def who(owners: tuple[str, ...] = (), **wanted: object) -> set[str]:
        return set(managed_users(filled(Workers, wanted), owners, tmp_path, host_daemon=OURS).values())

    assert who() == {"first", "last"}
    assert who(("llm", "root", "nobody")) == {"first", "last", "llm"}
    assert who(include=["499"], exclude=["first"], humans=True) == {"old", "last"}
    assert who(humans=False, include=["last"]) == {"last"}
    assert who(("1234567890",), humans=False) == {"far"}
    # An account that nobody logs in to is named, or has no worker.
    assert who(include=["svc", "daemon", "root", "65534"], humans=False) == {"svc", "daemon"}


# -- one house, without systemd -------------------------------------------------------------------------------------


@dataclass
class WorkerUnitsStub:
    """What stands in for systemd: it notes what it is told."""

    started: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    on_start: Callable[[int], object] = lambda _uid: None

    async def start(self, uid: int, /) -> None:
        self.started.append(uid)
        self.on_start(uid)

    async def stop(self, uid: int, /) -> None:
        self.stopped.append(uid)

    async def unit_state(self, uid: int, /) -> units.UnitState:
        return units.UnitState(active=uid < 0, failed=False)


def make(tmp_path: Path, worker_units: WorkerUnitsStub, place: Path) -> HostDaemon:
    config = loading.load(None, user=False, environ={"XPUCACHED_SCHEDULE_SETTLE": "0"})
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)
    paths = replace(config.paths, state=state, socket=tmp_path / "s", models=tmp_path / "models.d")
    config = replace(config, paths=paths)
    runtime = tmp_path / "host"
    runtime.mkdir(exist_ok=True)
    made = HostDaemon(config, worker_units, lambda _uid: place, lambda: api_stub.NOW, runtime=runtime)
    made._people = {OURS: "me", OURS + 1: "other"}
    made._known.said = {uid: UserStatus(name, uid) for uid, name in made._people.items()}
    return made


def go(one: HostDaemon, work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await work()
        finally:
            await one.stop()

    asyncio.run(run())


def test_a_worker_that_answers_is_heard_and_told(tmp_path: Path, short_dir: Path) -> None:
    worker_units = WorkerUnitsStub()
    with api_stub.running(short_dir) as there:
        one = make(tmp_path, worker_units, there.path)

        async def work() -> None:
            assert await one.wake(OURS) == UserSocket("me", OURS, there.path)
            await one._workers._quiet(OURS)

        go(one, work)
    said = one._known.said[OURS]
    assert worker_units.started == []
    assert (said.state, said.verdict, said.seen, said.models) == (
        WorkerState.AWAKE,
        Verdict.WARM,
        api_stub.NOW,
        ("resnet",),
    )
    # The next life knows it.
    assert make(tmp_path, worker_units, there.path)._memory.recall().of()[OURS] == said


def test_ten_thousand_models_of_a_user_are_heard_of(tmp_path: Path, short_dir: Path) -> None:
    models = tuple(api_stub.make_model(f"model-{number}") for number in range(10_000))
    standin = api_stub.Standin()

    async def status() -> Status:
        return replace(api_stub.make_status(), models=models)

    standin.status = status  # type: ignore[method-assign]
    with api_stub.running(short_dir, service=standin) as there:
        one = make(tmp_path, WorkerUnitsStub(), there.path)

        async def work() -> None:
            await one._workers._quiet(OURS)

        go(one, work)
    said = one._known.said[OURS]
    assert (said.state, said.warm, len(said.models)) == (WorkerState.AWAKE, 10_000, 1000)


def test_what_a_worker_says_of_its_models_is_kept_in_bounds() -> None:
    names = [*(f"m{number}" for number in range(998)), "x" * 8000, "\x1b[31m", "lost"]
    problems = tuple(Problem(f"{number}" * 1000, "", "") for number in range(1000))
    said = replace(api_stub.make_status(), models=tuple(map(api_stub.make_model, names)), problems=problems)

    kept = user_client.digest(UserStatus("me", OURS), StatusSummary.of(said), api_stub.NOW)

    assert kept.models == tuple(names[:998])
    assert kept.warm + kept.cold == 1001
    assert len(codec.dumps(codec.to_json(kept))) < 20_000


def test_what_is_known_is_written_beside_the_loop_and_not_at_each_change(tmp_path: Path, short_dir: Path) -> None:
    with api_stub.running(short_dir) as there:
        one = make(tmp_path, WorkerUnitsStub(), there.path)
        file = tmp_path / "state" / "users.json"

        async def work() -> None:
            await one._workers._quiet(OURS)
            assert not file.exists()

        go(one, work)
    assert file.exists()


def motd(tmp_path: Path) -> Path:
    """Make the directory for what those are shown who log in; give its file."""
    (tmp_path / "motd.d").mkdir()
    return tmp_path / "motd.d/60-xpucached"


def shown(tmp_path: Path, state: WorkerState = WorkerState.ASLEEP) -> str:
    """Let a daemon live for whom somebody's models are cold; give what is shown meanwhile."""
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._known.said[OURS + 1] = replace(one._known.said[OURS + 1], state=state, cold=7, warm=5)
    one._memory.keep(one._saved())
    file = tmp_path / "motd.d/60-xpucached"
    said = file.read_text() if file.is_file() else ""

    async def work() -> None:
        pass

    go(one, work)
    return said


def test_who_logs_in_is_not_told_how_many_models_others_have(tmp_path: Path) -> None:
    file = motd(tmp_path)
    file.write_text("what was there before, and longer than what is to be there " * 4)
    line = shown(tmp_path)
    assert "xpucachectl status" in line
    assert not any(character.isdigit() for character in line)
    assert len(line.splitlines()) == 1
    # Of a daemon that was stopped, or removed, nothing is told any more.
    assert file.read_text() == ""
    # Of who runs a daemon of their own nothing is known.
    assert shown(tmp_path, WorkerState.ASIDE) == ""


def test_what_is_shown_to_who_logs_in_is_a_file_that_root_made(tmp_path: Path) -> None:
    file, other = motd(tmp_path), tmp_path / "other"
    shown(tmp_path)
    assert not file.exists()

    other.write_text("other")
    file.symlink_to(other)
    shown(tmp_path)
    assert other.read_text() == "other"

    file.unlink()
    os.mkfifo(file)
    shown(tmp_path)


def test_a_worker_that_is_starting_is_asked_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    class Starting(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            nonlocal asked
            asked += 1
            return units.UnitState(active=True, failed=False)

    monkeypatch.setattr(f"{worker_follower}._ANSWER", 0.7)
    one = make(tmp_path, Starting(), tmp_path / "nobody")

    async def work() -> None:
        with pytest.raises(Unavailable):
            await one._workers._begin(OURS)

    go(one, work)
    # Before it is started, at once, after 0.1, 0.2 and 0.4 seconds, and when the time is up.
    assert asked <= 6


@pytest.mark.parametrize("by", ["condition", "start"])
def test_a_worker_is_waited_for_as_long_as_systemd_lets_it_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Also as long as its account is asked about: a directory, or a busy host, may take its time."""
    asked = 0

    class Starting(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            nonlocal asked
            asked += 1
            coming = asked != 5
            if by == "condition":
                return units.UnitState(active=True, failed=False, asked=coming)
            return units.UnitState(active=True, failed=False, starting=coming, coming=coming)

    for name, seconds in (("_ANSWER", 0.0), ("_WAITING", 0.0), ("_SOON", 0.001), ("_ENDING", 0.0)):
        monkeypatch.setattr(f"{worker_follower}.{name}", seconds)
    one = make(tmp_path, Starting(), tmp_path / "nobody")

    async def work() -> None:
        with pytest.raises(Unavailable):
            await one._workers._begin(OURS)
        assert asked == 5
        # Who asks for it is told so in time, and it goes on.
        with pytest.raises(Busy, match="the worker of me is starting"):
            await one.wake(OURS)
        assert one._workers.follows(OURS)

    go(one, work)


def test_a_worker_that_is_leaving_is_started_when_it_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it leaves, systemd would start the next one without its socket."""
    states = [units.UnitState(active=True, failed=False, ending=True)] * 3

    class Leaving(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            return states.pop() if states else units.UnitState(active=False, failed=False)

    monkeypatch.setattr(f"{worker_follower}._SOON", 0.001)
    left: list[bool] = []
    one = make(tmp_path, Leaving(on_start=lambda _uid: left.append(not states)), tmp_path / "nobody")

    async def work() -> None:
        with pytest.raises(Unavailable):
            await one._workers._begin(OURS)

    go(one, work)
    assert left == [True]


def test_a_worker_whose_socket_was_stopped_is_started_again_with_one(tmp_path: Path, short_dir: Path) -> None:
    gone = units.UnitState(active=False, failed=False)
    states = [units.UnitState(active=True, failed=False, running=True, deaf=True)]

    class Deaf(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            return states[-1]

        async def stop(self, uid: int, /) -> None:
            await super().stop(uid)
            states.append(gone)

    with api_stub.running(short_dir) as there:
        hidden = there.path.with_name("hidden")
        worker_units = Deaf(on_start=lambda _uid: hidden.rename(there.path))
        one = make(tmp_path, worker_units, there.path)

        async def work() -> None:
            one._workers.follow(OURS)
            async with asyncio.timeout(30.0):
                await one._workers._answering[OURS].wait()
                there.path.rename(hidden)
                assert await one.wake(OURS) == UserSocket("me", OURS, there.path)

        go(one, work)
    assert worker_units.stopped == [OURS]
    assert worker_units.started == [OURS]


@pytest.mark.parametrize("ended", [False, True])
def test_a_worker_that_was_silent_for_a_while_fails_no_more_though_nobody_asks(
    tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    """It was stopped and goes on, or the host was too busy; or it was ended, as we say how."""
    state = units.UnitState(active=True, failed=False, running=True)

    class Silent(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            return state

    for name, value in (("_ANSWER", 0.1), ("_ENDING", 0.0), ("_BEAT", 0.01), ("_SLOW_BEAT", 0.01)):
        monkeypatch.setattr(f"{worker_follower}.{name}", value)
    with api_stub.running(short_dir) as there:
        there.path.rename(hidden := there.path.with_name("hidden"))
        one = make(tmp_path, worker_units := Silent(), there.path)

        async def work() -> None:
            nonlocal state
            one._workers.follow(OURS)
            await one._workers._following[OURS]
            assert one._known.said[OURS].state is WorkerState.FAILED
            assert not one._workers.follows(OURS)
            if ended:
                state = units.UnitState(active=False, failed=False)
            else:
                hidden.rename(there.path)
            async with asyncio.timeout(30.0):
                while one._known.said[OURS].state is not (WorkerState.ASLEEP if ended else WorkerState.AWAKE):
                    one._known.changed.clear()
                    await one._known.changed.wait()

        go(one, work)
    assert one.status(None).problems == ()
    assert worker_units.started == [OURS]


def test_a_worker_that_never_leaves_is_given_up_and_seldom_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Stays(WorkerUnitsStub):
        async def unit_state(self, uid: int, /) -> units.UnitState:
            asked.append(uid)
            return units.UnitState(active=True, failed=False, ending=True)

    monkeypatch.setattr(f"{worker_follower}._SOON", 0.001)
    monkeypatch.setattr(f"{worker_follower}._GONE", 1)
    one = make(tmp_path, worker_units := Stays(), tmp_path / "nobody")

    async def work() -> None:
        with pytest.raises(Unavailable, match="does not end"):
            await one._workers._begin(OURS)

    go(one, work)
    assert worker_units.started == []
    # Each pause is twice the one before: 0.001 s, 0.002 s, … are more than a second after ten.
    assert len(asked) <= 11


@pytest.mark.parametrize(
    "came",
    [
        units.UnitState(active=True, failed=False, asked=True),
        units.UnitState(active=True, failed=False, starting=True, coming=True),
        units.UnitState(active=True, failed=False, starting=True),
        None,
    ],
    ids=["its account is asked about", "it starts", "it died, and pauses", "nobody came"],
)
def test_a_worker_that_was_stopped_while_it_started_has_not_failed(
    tmp_path: Path, came: units.UnitState | None
) -> None:
    """One whose process never came has: systemd may refuse it, as one that is masked."""
    states: list[units.UnitState] = []

    class Stopped(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            return states.pop() if states else units.UnitState(active=False, failed=False)

    worker_units = Stopped(on_start=lambda _uid: states.extend([came] if came else []))
    one = make(tmp_path, worker_units, tmp_path / "nobody")

    async def work() -> None:
        for _ in range(2):
            with pytest.raises(Unavailable, match="was stopped while it started" if came else "does not answer"):
                await one.wake(OURS)
            one._workers._unasked.clear()

    go(one, work)
    assert one._known.said[OURS].state is (WorkerState.ASLEEP if came else WorkerState.FAILED)
    # It is started for whoever asks next; one that fails rests.
    assert len(worker_units.started) == (2 if came else 1)


def test_a_worker_whose_account_cannot_be_asked_about_again_and_again_has_failed(tmp_path: Path) -> None:
    """What asks may not be there any more, as after an upgrade of Python: systemd takes that for a no."""
    states: list[units.UnitState] = []

    class Skipped(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            return states.pop() if states else units.UnitState(active=False, failed=False)

    asked = units.UnitState(active=True, failed=False, asked=True)
    one = make(tmp_path, Skipped(on_start=lambda _uid: states.append(asked)), tmp_path / "nobody")

    async def work() -> None:
        for why in ("was stopped while it started", "could not be asked about"):
            with pytest.raises(Unavailable, match=why):
                await one.wake(OURS)

    go(one, work)
    assert one._known.said[OURS].state is WorkerState.FAILED


def test_a_worker_that_is_stopped_while_it_starts_and_is_owed_news_is_waited_for(
    tmp_path: Path, short_dir: Path
) -> None:
    states: list[units.UnitState] = []

    class Stopped(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            return states.pop() if states else units.UnitState(active=False, failed=False)

    def start(_uid: int) -> None:
        if len(worker_units.started) == 1:
            states.append(units.UnitState(active=True, failed=False, starting=True, coming=True))
        else:
            hidden.rename(place)

    worker_units = Stopped(on_start=start)
    with api_stub.running(short_dir) as there:
        place, hidden = there.path, there.path.with_name("hidden")
        place.rename(hidden)
        one = make(tmp_path, worker_units, place)
        one._known.owed.add([OURS])

        async def work() -> None:
            async with asyncio.timeout(30.0):
                assert await one.wake(OURS) == UserSocket("me", OURS, place)

        go(one, work)
    assert len(worker_units.started) == 2


@pytest.mark.parametrize("error", [OSError("no answer"), ValueError("embedded null byte"), RuntimeError("?")], ids=str)
def test_a_user_database_that_fails_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails() -> list[pwd.struct_passwd]:
        raise error

    monkeypatch.setattr(pwd, "getpwall", fails)
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")

    async def work() -> None:
        await one.meet()

    go(one, work)
    assert [problem.code for problem in one.status(None).problems] == ["names-silent"]
    assert one._people == {OURS: "me", OURS + 1: "other"}


def test_who_was_looked_after_is_while_the_user_database_fails_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    go(before, lambda: asyncio.sleep(0))

    def fails() -> list[pwd.struct_passwd]:
        raise OSError("no answer")

    monkeypatch.setattr(pwd, "getpwall", fails)
    one = HostDaemon(before.settings, WorkerUnitsStub(), runtime=tmp_path / "host")

    async def work() -> None:
        await one.meet()
        assert one.find(None, OURS) == one.find("me", 0) == OURS
        with pytest.raises(Denied):
            one.find(None, OURS + 2)

    go(one, work)


def test_a_configuration_that_changed_since_is_said_not_to_be_in_effect(tmp_path: Path) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one.settings = replace(one.settings, file=tmp_path / "xpucached.toml", digest="")

    async def problems() -> list[tuple[str, str]]:
        await one.meet()
        return [(problem.code, problem.hint) for problem in one.status(None).problems]

    async def work() -> None:
        assert await problems() == []
        one.settings.file.write_text("[policy]\n")
        assert await problems() == [("not-reloaded", "to have it read: systemctl reload xpucached")]
        one.settings.file.unlink()
        assert await problems() == []

    go(one, work)


def test_a_name_in_the_configuration_that_nobody_has_is_told(tmp_path: Path) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one.settings = replace(
        one.settings, workers=replace(one.settings.workers, include=("nobody", "no-such-user", "a\0"))
    )
    go(one, one.meet)
    assert [(problem.code, problem.message) for problem in one.status(None).problems] == [
        ("no-such-user", f"workers.include names the user {name}, whom nobody knows")
        for name in ("no-such-user", "a\0")
    ]


def test_limits_in_the_host_s_configuration_for_somebody_unknown_are_told_until_he_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "xpucached.toml"
    file.write_text("[policy.users.dora]\ngrace = 2\n")
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one.settings = replace(loading.load(file, user=False, environ={}), paths=one.settings.paths)
    known = pwd.struct_passwd(("dora", "x", 34567, 34567, "", "/", ""))

    async def work() -> None:
        await one.meet()
        said = f"{file}:1: policy.users.dora: there is no user 'dora' on this host"
        assert [(problem.code, problem.message) for problem in one.status(None).problems] == [("no-such-user", said)]
        monkeypatch.setattr(pwd, "getpwnam", lambda _name: known)
        await one.meet()
        assert (one.status(None).problems, 34567 in one._people) == ((), False)

    go(one, work)


def test_a_directory_service_that_is_away_dismisses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"dora": 34567, "emil": 34568, "fritz": 34569}

    def account(uid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((next(name for name in there if there[name] == uid), "x", uid, uid, "", "/", ""))

    def find(wanted: object) -> pwd.struct_passwd:
        if wanted not in {*there, *there.values()}:
            raise KeyError(wanted)
        return account(there.get(wanted, wanted))  # type: ignore[call-overload] # a name or a number

    # Of fritz it does not tell unless it is asked for him.
    monkeypatch.setattr(pwd, "getpwall", lambda: [account(uid) for uid in there.values() if uid != 34569])
    monkeypatch.setattr(pwd, "getpwnam", find)
    monkeypatch.setattr(pwd, "getpwuid", find)

    def live(*include: str) -> tuple[set[str], set[int], list[tuple[str, str]]]:
        one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
        kept = one._memory.recall()
        one._known.said, one._people = dict(kept.of()), {uid: user.user for uid, user in kept.of().items()}
        one._known.said = {uid: replace(user, state=WorkerState.AWAKE) for uid, user in one._known.said.items()}
        one.settings = replace(one.settings, workers=replace(one.settings.workers, include=include))
        go(one, one.meet)
        return {*one._people.values()}, one._unwanted, [(told.code, told.message) for told in one.status(None).problems]

    assert live("fritz") == ({"dora", "emil", "fritz"}, set(), [])
    before = dict(there)
    there.clear()
    told = "the host's user database does not tell of dora, emil, fritz now; who is looked after stays as it was"
    assert live("fritz") == ({"dora", "emil", "fritz"}, set(), [("names-silent", told)])
    assert live("fritz") == ({"dora", "emil", "fritz"}, set(), [("names-silent", told)])
    # Who is not to be looked after any more is not, wherever he is.
    people, unwanted, _ = live()
    assert (people, unwanted) == ({"dora", "emil"}, {34569})
    there |= before
    assert live("fritz") == ({"dora", "emil", "fritz"}, set(), [])
    # It answers, and does not tell of him any more.
    del there["emil"]
    assert live("fritz") == ({"dora", "fritz"}, {34568}, [])
    # His number is somebody else's now.
    del there["fritz"]
    there["gustav"] = 34569
    people, unwanted, (problem,) = live("fritz")
    assert (people, unwanted, problem[0]) == ({"dora"}, {34569}, "no-such-user")


def test_who_is_in_the_host_s_own_file_is_there_and_who_is_not_any_more_is_gone(tmp_path: Path) -> None:
    config = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody").settings
    config = replace(config, workers=replace(config.workers, include=("no-such-user",)))
    line = "no-such-user:x:34567:1::/:/bin/sh\n"

    def read(text: str) -> ManagedUsers:
        (tmp_path / "passwd").write_text(text)
        return read_users(config, {}, {34567: "no-such-user"}, {}, tmp_path)

    found = read(f"+::::::\nroot\n{line}")
    assert (found.people.get(34567), [one.code for one in found.problems]) == ("no-such-user", ["names-silent"])
    found = read(line.replace("34567", "34568"))
    assert (found.people.get(34567), [one.code for one in found.problems]) == (None, ["no-such-user"])
    (tmp_path / "passwd").unlink()
    (tmp_path / "passwd").mkdir()
    with pytest.raises(IsADirectoryError):
        read_users(config, {}, {}, {}, tmp_path)


def test_who_is_told_by_name_stays_where_all_cannot_be_listed_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody").settings
    there = [pwd.struct_passwd((name, "x", uid, uid, "", "/", "")) for name, uid in (("anna", 34567), ("dora", 34568))]
    names: dict[object, pwd.struct_passwd] = {one.pw_name: one for one in there} | {one.pw_uid: one for one in there}
    (tmp_path / "passwd").write_text("anna:x:34567:1::/:/bin/sh\n")
    monkeypatch.setattr(pwd, "getpwnam", names.__getitem__)
    monkeypatch.setattr(pwd, "getpwuid", names.__getitem__)
    both = {34567: "anna", 34568: "dora"}
    monkeypatch.setattr(pwd, "getpwall", lambda: there)
    told = read_users(config, {}, {}, {}, tmp_path)
    monkeypatch.setattr(pwd, "getpwall", list)
    # However often: then the directory service is away.
    for _ in range(3):
        told = read_users(config, {}, told.people, told.elsewhere, tmp_path)
        assert (told.people, told.elsewhere, told.problems) == (both, {34568: True}, ())
    names.clear()
    told = read_users(config, {}, told.people, told.elsewhere, tmp_path)
    assert (told.people, [one.code for one in told.problems]) == (both, ["names-silent"])
    # One of the directory's is an account of the host's own now, which tells nothing of the directory.
    (tmp_path / "passwd").write_text("anna:x:34567:1::/:/bin/sh\nemil:x:34569:1::/:/bin/sh\n")
    emil = pwd.struct_passwd(("emil", "x", 34569, 34569, "", "/", ""))
    monkeypatch.setattr(pwd, "getpwall", lambda: [there[0], emil])
    all_three = both | {34569: "emil"}
    told = read_users(config, {}, all_three, {34568: True, 34569: True}, tmp_path)
    assert (told.people, told.elsewhere) == (all_three, {34568: True})


def test_without_a_free_descriptor_nobody_is_dismissed(tmp_path: Path) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one.settings = replace(one.settings, workers=replace(one.settings.workers, include=("daemon",)))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def work() -> None:
        await one.meet()
        people = dict(one._people)
        assert "daemon" in people.values()
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            await one.meet()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert one._people == people
        assert [problem.code for problem in one.status(None).problems] == ["names-silent"]

    go(one, work)


def test_model_files_that_cannot_be_read_just_now_dismiss_nobody(tmp_path: Path) -> None:
    account = next(one for one in pwd.getpwall() if one.pw_uid not in {0, OURS} and one.pw_uid < 500)
    models = tmp_path / "models.d"

    def live(change: Callable[[], object] = lambda: None) -> HostDaemon:
        """Let a daemon live in which something changes."""
        one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
        one._known.said = dict(one._memory.recall().of())

        async def work() -> None:
            await one.meet()
            change()
            await one.meet()

        go(one, work)
        return one

    def clear() -> None:
        file.unlink()
        models.rmdir()
        models.touch()

    models.mkdir()
    file = models / "net.toml"
    file.write_text(f'user = "{account.pw_name}"\ncommand = ["/bin/true"]\n')
    # An editor has written half of it; then a file takes the place of the directory.
    lives = [
        (live(lambda: file.write_text('user = "')), "not TOML: unterminated"),
        (live(), "not TOML: unterminated"),
        (live(clear), "model files cannot be read: Not a directory"),
        (live(), "model files cannot be read: Not a directory"),
    ]
    for one, why in lives:
        (problem,) = one.status(None).problems
        assert problem.code == "bad-settings"
        assert why in problem.message
        assert one._people[account.pw_uid] == one._known.said[account.pw_uid].user == account.pw_name
        assert one._unwanted == set()
        assert one.meaning((ModelName("net"),)) == (account.pw_uid, ("net",))
    # Without a file nobody is named.
    models.unlink()
    one = live()
    assert account.pw_uid not in one._people
    assert account.pw_uid not in one._known.said


def test_whose_model_file_is_written_is_woken_and_not_called_warm_before_he_has_told_of_it(tmp_path: Path) -> None:
    account = next(one for one in pwd.getpwall() if one.pw_uid not in {0, OURS} and one.pw_uid < 500)
    status = replace(api_stub.make_status(), problems=(), models=(api_stub.make_model("net"),), looked=api_stub.NOW)
    warm = StatusSummary.of(status)
    nothing = StatusSummary.of(replace(status, verdict=Verdict.NO_MODELS, models=(), entries=0))
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one.settings = replace(one.settings, workers=Workers(humans=False, include=(account.pw_name,)))
    models = tmp_path / "models.d"

    def write(name: str, text: str = 'command = ["/bin/true"]\n') -> None:
        models.mkdir(exist_ok=True)
        (models / f"{name}.toml").write_text(f'user = "{account.pw_name}"\n{text}')

    def shown(said: StatusSummary | None = None) -> tuple[bool, Readiness, bool]:
        """Tell whether he is to be told, and how he stands when his worker has."""
        one._looked = api_stub.NOW
        owed = account.pw_uid in one._known.owed
        one._known.owed.forget(account.pw_uid)
        if said is not None:
            one._known.note_summary(account.pw_uid, said)
        one._known.say(account.pw_uid, state=WorkerState.ASLEEP)
        judged = readiness.of_host(one.status(None), api_stub.NOW).state
        return owed, judged, CheckState.COLD in check_host(one.status(None), api_stub.NOW).states

    async def work() -> None:
        await one.meet()
        assert shown(nothing) == (False, Readiness.NOTHING, False)
        # He had nothing, and the host declares something for him.
        write("net")
        await one.meet()
        assert shown() == (True, Readiness.COLD, True)
        assert check_host(one.status(None), api_stub.NOW).states == (CheckState.COLD,)
        assert one._concerns(one._known.said[account.pw_uid])
        await one.meet()
        assert shown(warm) == (False, Readiness.WARM, False)
        # What he knows of is warm, and another one comes.
        write("second")
        await one.meet()
        assert shown() == (True, Readiness.COLD, True)
        assert one.status(None).users[0].cold == 1
        # One is corrected.
        write("net", 'command = ["/bin/true"]\ntimeout = 60\n')
        await one.meet()
        assert shown()[0]
        (models / "second.toml").unlink()
        await one.meet()
        assert shown() == (True, Readiness.WARM, False)

    go(one, work)
    # The next life finds what was written meanwhile, and nothing else.
    for wrote in (False, True):
        one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
        one.settings = replace(one.settings, workers=Workers(humans=False, include=(account.pw_name,)))
        one._known.said = dict(one._memory.recall().of())
        if wrote:
            write("third")
        go(one, one.meet)
        assert (account.pw_uid in one._known.owed) is wrote


def test_who_had_nothing_is_asked_again_when_nobody_has_heard_of_him_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_stamp, "fingerprint", lambda _variables: "stamp")
    monkeypatch.setattr(stamps, "beside", lambda _patterns: "")
    monkeypatch.setattr(HostDaemon, "meet", _nobody_new)
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._memory.note_boot()
    hours = {1: 1, 2: 23, 3: 24, 4: -1}
    one._known.said = {
        uid: UserStatus(str(uid), uid, WorkerState.ASLEEP, seen=api_stub.NOW - timedelta(hours=ago))
        for uid, ago in hours.items()
    }

    async def work() -> None:
        rounds: asyncio.Queue[list[int]] = asyncio.Queue()
        monkeypatch.setattr(one._workers, "follow_owed", lambda: rounds.put_nowait(list(one._known.owed)))
        looks = asyncio.create_task(one._look_after_all())
        assert await rounds.get() == []
        one.look()
        assert await rounds.get() == []
        one._rounds.ask(everybody=True)
        # Whom the clock has seen only in the future it has not seen.
        assert await rounds.get() == [3, 4]
        looks.cancel()
        await asyncio.wait([looks])

    go(one, work)


def test_a_configuration_that_is_refused_is_shown_until_another_one_is_taken(tmp_path: Path) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    answers: list[Settings | SettingsError] = [SettingsError("workers.idle: expected a time"), one.settings]

    def load() -> Settings:
        answer = answers.pop(0)
        if isinstance(answer, SettingsError):
            raise answer
        return answer

    async def work() -> None:
        port = MetricsPort(functools.partial(host_daemon._figures, one))
        await host_daemon._reload(one, port, load)
        (problem,) = one.status(None).problems
        assert (problem.code, "workers.idle" in problem.message) == ("bad-settings", True)
        assert one.status(OURS).problems == ()
        await host_daemon._reload(one, port, load)
        assert one.status(None).problems == ()

    go(one, work)


def test_a_name_that_can_be_none_is_nobody_s(tmp_path: Path) -> None:
    assert managed_users(Workers(humans=False), ("a\0b",), tmp_path) == {}


def test_strangers_are_sent_away_before_they_take_a_place(tmp_path: Path, short_dir: Path) -> None:
    one = make(tmp_path, WorkerUnitsStub(), short_dir / "nobody")
    path = short_dir / "d" / "s"

    async def work() -> None:
        # Nobody is known yet, so nobody is a stranger.
        one._people = {}
        assert one.admits(OURS + 9)
        one._people = {OURS + 1: "other"}
        assert [one.admits(uid) for uid in (0, OURS, OURS + 1, OURS + 9)] == [True, True, True, False]
        routes = HostRoutes(one, "1", ConnectionLimits(), admin=False)
        listener = http_listener.HttpListener(routes, ConnectionLimits(), lambda uid: one.admits(uid + 9), stranger())
        await listener.start([unix_sockets.bind(path, 0o600)])
        try:
            client = Client(path)
            with client, pytest.raises(Denied, match="does not look after you") as caught:
                await asyncio.to_thread(client.call, requests.GetHello())
            assert "systemctl --user start xpucached" in caught.value.hint
            assert not listener._places.held
        finally:
            await listener.stop()

    go(one, work)


def test_one_that_does_not_is_started_and_its_silence_is_told(tmp_path: Path, short_dir: Path) -> None:
    worker_units = WorkerUnitsStub()
    one = make(tmp_path, worker_units, short_dir / "nobody")

    async def work() -> None:
        with pytest.raises(Unavailable, match="the worker of me does not answer"):
            await one.wake(OURS)

    go(one, work)
    assert worker_units.started == [OURS]
    assert one._known.said[OURS].state is WorkerState.FAILED


def test_a_question_for_which_no_thread_can_be_started_takes_no_place(
    tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with api_stub.running(short_dir) as there:
        one = make(tmp_path, WorkerUnitsStub(), there.path)

        asked: list[Request[object]] = []
        ask = user_client.ask

        def note(uid: int, request: Request[object], *words: object, **options: object) -> object:
            asked.append(request)
            return ask(uid, request, *words, **options)  # type: ignore[arg-type] # as it came

        async def work() -> None:
            monkeypatch.setattr(user_client, "ask", note)
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", full)
                for own in (False, True) * 5:
                    with pytest.raises(Busy, match="no thread"):
                        await one._user_clients.ask(OURS, requests.GetStatus(), own=own)
            for own in (False, True):
                async with asyncio.timeout(30):
                    await one._user_clients.ask(OURS, requests.GetHello(), own=own)
            # What was refused is not asked when there are threads again.
            assert asked == [requests.GetHello(), requests.GetHello()]

        go(one, work)


def test_where_no_thread_can_be_started_that_is_why_a_worker_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", full)
            with pytest.raises(Unavailable, match="systemctl cannot be started: can't start new thread"):
                await units.start(1000)

    asyncio.run(work())


def test_one_that_fails_is_not_started_at_each_question(
    tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_units = WorkerUnitsStub()
    one = make(tmp_path, worker_units, short_dir / "nobody")
    one._known.said[OURS + 1] = replace(one._known.said[OURS + 1], state=WorkerState.FAILED)

    async def work() -> None:
        told = []
        for _ in range(3):
            with pytest.raises(Unavailable, match="the worker of me does not answer") as caught:
                await one.wake(OURS)
            told.append(caught.value.message)
        assert (worker_units.started, len(set(told))) == ([OURS], 1)
        # Whom we did not start a moment ago is started.
        with pytest.raises(Unavailable):
            await one.wake(OURS + 1)
        monkeypatch.setattr(f"{worker_follower}._PAUSE", 0.0)
        with pytest.raises(Unavailable):
            await one.wake(OURS)

    go(one, work)
    assert worker_units.started == [OURS, OURS + 1, OURS]


def test_one_that_died_a_moment_ago_is_waited_for_by_all_who_ask(
    tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def quiet(_uid: int) -> bool:
        return True

    with contextlib.ExitStack() as second:
        worker_units = WorkerUnitsStub(on_start=lambda _uid: bool(second.enter_context(api_stub.running(short_dir))))
        first = contextlib.ExitStack()
        there = first.enter_context(api_stub.running(short_dir))
        one = make(tmp_path, worker_units, there.path)
        # Who follows a worker asks it every now and then; here never, so that nobody has noticed.
        monkeypatch.setattr(one._workers, "_quiet", quiet)

        async def work() -> None:
            assert await one.wake(OURS) == UserSocket("me", OURS, there.path)
            await one._workers._answering[OURS].wait()
            await asyncio.to_thread(first.close)
            assert await asyncio.gather(*(one.wake(OURS) for _ in range(3))) == [UserSocket("me", OURS, there.path)] * 3

        go(one, work)
        assert worker_units.started == [OURS]


@pytest.mark.flow
@pytest.mark.parametrize("asked", [False, True])
def test_one_that_died_and_is_started_again_by_systemd_is_heard_again(
    tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch, *, asked: bool
) -> None:
    """Nobody asks for it, and what it said in its first life is not all that is known of it for ever."""
    asks = [asked]

    class Restarting(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            first = bool(asks and asks.pop())
            return units.UnitState(active=True, failed=False, asked=first, starting=not first)

    monkeypatch.setattr(f"{worker_follower}._SLOW_BEAT", 0.05)
    worker_units = Restarting()
    with contextlib.ExitStack() as second:
        first = contextlib.ExitStack()
        there = first.enter_context(api_stub.running(short_dir))
        one = make(tmp_path, worker_units, there.path)

        async def work() -> None:
            await one.wake(OURS)
            before = one._workers._answering[OURS]
            await before.wait()
            await asyncio.to_thread(first.close)
            async with asyncio.timeout(30):
                while one._workers._answering[OURS] is before:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                second.enter_context(api_stub.running(short_dir))
                await one._workers._answering[OURS].wait()

        go(one, work)
    # A start would end the pause that systemd makes before it starts one again.
    assert worker_units.started == []


@pytest.mark.parametrize(
    ("deaths", "news", "told", "started"), [(1, 0, 1, [OURS]), (0, 1, 2, []), (9, 0, 0, [OURS]), (0, 0, 1, [])]
)
def test_what_a_worker_could_not_be_told_it_is_told_in_its_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int, news: int, told: int, started: list[int]
) -> None:
    """One that goes to sleep just when the driver changes, or is being told of one change when the next one comes."""
    alive, heard, last = True, 0, asyncio.Event()

    def begin(_uid: int) -> None:
        nonlocal alive
        alive = True

    async def ask(_uid: int, request: Request[object], **_: object) -> object:
        nonlocal alive, heard, deaths, news
        if isinstance(request, requests.Refresh) and deaths:
            alive, deaths = False, deaths - 1
        if not alive:
            raise Unavailable("it went to sleep")
        if isinstance(request, requests.Refresh):
            heard += 1
            if news:
                news -= 1
                one._known.owe(lambda _one: True)
            if heard == told:
                last.set()
        return SimpleNamespace(value=StatusSummary.of(api_stub.make_status()))

    monkeypatch.setattr(f"{worker_follower}._SLOW_BEAT", 0.0)
    worker_units = WorkerUnitsStub(on_start=begin)
    one = make(tmp_path, worker_units, tmp_path / "nobody")
    monkeypatch.setattr(one._user_clients, "ask", ask)
    one._known.owe(lambda _one: True)

    async def work() -> None:
        one._workers.follow(OURS)
        async with asyncio.timeout(30):
            await asyncio.wait(
                {asyncio.create_task(last.wait()), one._workers._following[OURS]}, return_when=asyncio.FIRST_COMPLETED
            )
            while OURS in one._known.owed:  # noqa: ASYNC110 - it is told nobody
                await asyncio.sleep(0)

    go(one, work)
    assert (heard, worker_units.started) == (told, started)


@pytest.mark.parametrize(("entries", "told"), [(0, {1, 2, 3}), (1, {1, 2})])
def test_only_who_has_something_keeps_his_turn_until_his_worker_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int, told: set[int]
) -> None:
    """Else a change of the driver takes a host of many users, of whom few have anything, as long as if all had."""
    nothing = replace(api_stub.make_status(), models=(), entries=entries, verdict=Verdict.NO_MODELS)
    heard: set[int] = set()
    beats, often = 0, asyncio.Event()

    async def ask(uid: int, request: Request[object], **_: object) -> object:
        nonlocal beats
        if isinstance(request, requests.Refresh):
            heard.add(uid)
        beats += uid == 1
        if beats == 100:
            often.set()
        return SimpleNamespace(value=StatusSummary.of(nothing))

    for name, value in (("_BEAT", 0.0), ("_SLOW_BEAT", 0.0), ("_LEAVING", 1_000_000)):
        monkeypatch.setattr(f"{worker_follower}.{name}", value)
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    monkeypatch.setattr(one._user_clients, "ask", ask)
    one._known.said = {uid: UserStatus(f"user{uid}", uid, WorkerState.ASLEEP) for uid in (1, 2, 3)}
    one._known.owe(lambda _one: True)

    async def work() -> None:
        one._workers.follow_owed()
        async with asyncio.timeout(30):
            await often.wait()

    go(one, work)
    assert heard == told


@pytest.mark.parametrize("running", [False, True])
def test_what_one_that_fails_was_to_be_told_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, running: bool
) -> None:
    class Failing(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            return units.UnitState(active=running, failed=not running, running=running)

    async def ask(_uid: int, request: Request[object], **_: object) -> object:
        if isinstance(request, requests.Refresh):
            raise Unavailable("it crashed, or stands still")
        return SimpleNamespace(value=StatusSummary.of(api_stub.make_status()))

    monkeypatch.setattr(f"{worker_follower}._ENDING", 0.0)
    one = make(tmp_path, Failing(), tmp_path / "nobody")
    monkeypatch.setattr(one._user_clients, "ask", ask)
    one._known.owe(lambda _one: True)

    async def work() -> None:
        one._workers.follow(OURS)
        await one._workers._following[OURS]

    go(one, work)
    assert one._known.said[OURS].state is WorkerState.FAILED
    assert OURS in one._known.owed


@pytest.mark.parametrize("name", ["", "a\r\nX: y", "ě", "x" * 70_000, "scan-1 "])
def test_a_job_has_no_name_that_no_header_can_hold(name: str) -> None:
    job = Job(JobId("scan-1"), "scan", JobState.RUNNING, api_stub.NOW)
    assert user_client.outward(7, job).id == "7.scan-1"
    with pytest.raises(Unavailable, match="no job has such a name"):
        user_client.outward(7, replace(job, id=JobId(name)))


@pytest.mark.flow
@pytest.mark.parametrize(
    ("said", "active"),
    [
        ("ActiveState=active", True),
        ("ActiveState=inactive\nJob=77", True),
        ("ActiveState=inactive", False),
        ("ActiveState=failed\nJob=", False),
    ],
)
def test_one_that_waits_for_its_turn_is_not_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, *, active: bool
) -> None:
    """What systemd was asked to start has no other state yet, only a job."""
    script = tmp_path / "systemctl"
    script.write_text(f"#!/bin/sh\ncat <<END\n{said}\nEND\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    assert asyncio.run(units.unit_state(1000)).active is active


@pytest.mark.flow
def test_whether_it_may_start_is_asked_before_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, denial = tmp_path / "systemctl", tmp_path / "run/denied"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sockets, "denial_path", lambda _uid: str(denial))

    def state(said: str) -> tuple[bool, bool, bool]:
        script.write_text(f"#!/bin/sh\ncat <<END\n{said}\nEND\n")
        script.chmod(0o755)
        found = asyncio.run(units.unit_state(1000))
        return found.active, found.starting, found.denied

    assert state("ActiveState=activating\nSubState=condition") == (True, False, False)
    monkeypatch.setattr(account, "refusal", lambda _uid: "it has expired")
    assert account.admit(1000, denial) == "it has expired"
    assert denial.read_text() == "it has expired\n"
    assert state("ActiveState=inactive") == (False, False, True)
    assert state("ActiveState=active") == (True, False, False)
    monkeypatch.setattr(account, "refusal", lambda _uid: None)
    assert account.admit(1000, denial) is None
    assert state("ActiveState=inactive") == (False, False, False)


@pytest.mark.flow
@pytest.mark.parametrize(
    ("load", "why"),
    [("not-found", "is not installed"), ("masked", "is masked"), ("loaded", "polkit refuses it")],
)
def test_where_no_worker_can_be_started_the_first_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: str, why: str
) -> None:
    script = tmp_path / "systemctl"
    script.write_text(
        f"#!/bin/sh\ncase $* in *start*) echo Interactive authentication required. >&2; exit 1;;\n"
        f"*polkit*) echo LoadState={load};; *) echo ActiveState=inactive;; esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    monkeypatch.setattr(one._workers._units, "start", lambda _uid: units.start(1000))

    async def attend() -> None:
        one._workers.follow(OURS, urgent=True)
        await asyncio.wait({one._workers._following[OURS]}, timeout=30)

    async def work() -> None:
        await one._compare()
        await attend()
        judged = check_host(one.status(None), api_stub.NOW)
        assert (judged.level, judged.states[0]) == (Level.CRITICAL, CheckState.WORKER_FAILED)
        assert judged.sentence.startswith("no worker can be started, for systemd does not let the host's daemon: ")
        assert why in judged.sentence
        # It goes when one could be started.
        monkeypatch.setattr(one._workers._units, "start", WorkerUnitsStub().start)
        await attend()
        assert one._workers.forbidden is None

    go(one, work)


@pytest.mark.flow
@pytest.mark.parametrize(("status", "refused"), [("78", True), ("1", False)])
def test_a_worker_whose_configuration_is_refused_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, *, refused: bool
) -> None:
    script = tmp_path / "systemctl"
    script.write_text(f"#!/bin/sh\necho ActiveState=failed\necho ExecMainStatus={status}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    monkeypatch.setattr(one._workers._units, "unit_state", lambda _uid: units.unit_state(1000))
    one._known.said[OURS] = replace(one._known.said[OURS], problems=("bad-settings", "no-gpu"))

    async def work() -> None:
        await one._compare()
        one._workers.follow(OURS, urgent=True)
        await asyncio.wait({one._workers._following[OURS]}, timeout=30)

    go(one, work)
    said = one._known.said[OURS]
    assert said.state is WorkerState.FAILED
    assert ("bad-settings" in said.problems) is refused
    # One user's typo is that user's: nothing critical of the host.
    one._known.said.pop(OURS + 1)
    assert (check_host(one.status(None), api_stub.NOW).level is Level.WARNING) is refused


def test_what_was_seen_before_a_boot_is_not_known_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_stamp, "fingerprint", lambda _variables: "stamp")
    monkeypatch.setattr(HostDaemon, "meet", _nobody_new)
    seen = UserStatus("me", OURS, WorkerState.ASLEEP, seen=api_stub.NOW, looked=api_stub.NOW, models=(ModelName("x"),))

    def live(one: HostDaemon) -> None:
        async def work() -> None:
            looked = asyncio.Event()
            monkeypatch.setattr(one._workers, "follow_owed", looked.set)
            looks = asyncio.create_task(one._look_after_all())
            await looked.wait()
            looks.cancel()
            await asyncio.wait([looks])

        go(one, work)

    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._known.said = {OURS: seen}
    assert check_host(one.status(None), api_stub.NOW).states[0] is CheckState.STARTING
    live(one)
    assert one._known.said[OURS] == replace(seen, looked=None)
    assert check_host(one.status(None), api_stub.NOW).states[0] is CheckState.UNHEARD
    # A daemon that is started again meanwhile goes by what was seen since.
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._known.said = {OURS: seen}
    live(one)
    assert one._known.said[OURS] == seen


def test_words_do_not_keep_anybody_from_being_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_stamp, "fingerprint", lambda _variables: "stamp")
    monkeypatch.setattr(stamps, "beside", lambda _patterns: "")
    monkeypatch.setattr(HostDaemon, "meet", _nobody_new)
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one.settings = replace(one.settings, workers=replace(one.settings.workers, every=0.05))
    one._memory.note_boot()
    one._known.said = {OURS: UserStatus("me", OURS, WorkerState.ASLEEP, seen=api_stub.NOW, models=(ModelName("x"),))}

    async def work() -> None:
        owed = asyncio.Event()

        def follow_owed() -> None:
            # Somebody says again and again that something may have changed.
            one.look()
            if OURS in one._known.owed:
                owed.set()

        monkeypatch.setattr(one._workers, "follow_owed", follow_owed)
        looks = asyncio.create_task(one._look_after_all())
        async with asyncio.timeout(30):
            await owed.wait()
        looks.cancel()
        await asyncio.wait([looks])

    go(one, work)


def test_who_has_no_worker_is_asked_again_with_everybody_and_not_at_each_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers = ["a"]
    monkeypatch.setattr(driver_stamp, "fingerprint", lambda _variables: drivers[-1])
    monkeypatch.setattr(stamps, "beside", lambda _patterns: "")
    monkeypatch.setattr(HostDaemon, "meet", _nobody_new)
    aside, fails = OURS, OURS + 1
    worker_units = WorkerUnitsStub()
    one = make(tmp_path, worker_units, tmp_path / "nobody")
    worker_units.on_start = lambda uid: one.step_aside(uid) if uid == aside else None

    async def work() -> None:
        rounds: asyncio.Queue[None] = asyncio.Queue()
        follow_owed = one._workers.follow_owed

        def noted() -> None:
            follow_owed()
            rounds.put_nowait(None)

        async def started() -> list[int]:
            await rounds.get()
            if tasks := list(one._workers._following.values()):
                await asyncio.wait(tasks)
            assert [row.state for row in one.status(None).users] == [WorkerState.ASIDE, WorkerState.FAILED]
            found, worker_units.started = sorted(worker_units.started), []
            return found

        monkeypatch.setattr(one._workers, "follow_owed", noted)
        looks = asyncio.create_task(one._look_after_all())
        assert await started() == [aside, fails]
        for _ in range(3):
            one.look()
            assert await started() == []
        drivers.append("b")
        one.look()
        assert await started() == [aside, fails]
        one.take_settings(one.settings)
        assert await started() == [aside, fails]
        looks.cancel()
        await asyncio.wait([looks])

    go(one, work)


async def _nobody_new(_one: HostDaemon) -> None:
    """Take those that are known for all that there are."""


def test_a_boot_is_noted_when_what_was_forgotten_for_it_is_written_down(tmp_path: Path) -> None:
    memory = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")._memory
    assert memory.first_since_boot()
    assert memory.first_since_boot()
    memory.note_boot()
    assert not memory.first_since_boot()


def test_what_a_worker_says_of_its_look_is_kept_and_is_never_from_the_future(tmp_path: Path) -> None:
    later = api_stub.NOW + timedelta(days=1)
    jobs = (Job(JobId("1"), "replay", JobState.QUEUED, api_stub.NOW),)
    models = (replace(api_stub.make_model("bad"), warmth=Warmth.FAILED), api_stub.make_model("good"))
    said = replace(api_stub.make_status(jobs=jobs), models=models, looked=later)

    kept = user_client.digest(UserStatus("me", OURS), StatusSummary.of(said), api_stub.NOW)

    assert (kept.looked, kept.failed, kept.working) == (api_stub.NOW, (ModelName("bad"),), True)
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._owners = {ModelName("bad"): OURS, ModelName("others"): OURS + 1}
    one._known.said[OURS] = kept
    assert [row.declared for row in one.status(None).users] == [("bad",), ("others",)]


def test_whose_worker_is_at_work_or_has_yet_to_be_told_is_known(tmp_path: Path) -> None:
    status = api_stub.make_status()
    for said, busy in ((status, False), (replace(status, busy=True), True), (replace(status, look_due=True), True)):
        assert user_client.digest(UserStatus("me", OURS), StatusSummary.of(said), api_stub.NOW).busy is busy
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._known.owe(lambda known: known.uid == OURS)
    assert [row.due for row in one.status(None).users] == [True, False]
    # One that failed is told when somebody starts it, and not before.
    one._known.say(OURS, state=WorkerState.FAILED)
    assert not one.status(None).users[0].due
    one._workers._following[OURS] = cast("asyncio.Task[None]", SimpleNamespace(done=lambda: False))
    assert one.status(None).users[0].due


def test_one_that_steps_aside_is_told_apart(tmp_path: Path, short_dir: Path) -> None:
    one = make(tmp_path, WorkerUnitsStub(), short_dir / "nobody")
    one._workers._units = WorkerUnitsStub(on_start=one.step_aside)

    async def work() -> None:
        with pytest.raises(Conflict, match="runs a daemon of their own") as caught:
            await one.wake(OURS)
        # Whoever asked, root too, reaches that one by what is printed.
        assert f"sudo -u '#{OURS}' xpucachectl --user status" in caught.value.hint

    go(one, work)
    assert one._known.said[OURS].state is WorkerState.ASIDE


def test_one_for_whose_account_nothing_may_be_run_is_no_failure(tmp_path: Path, short_dir: Path) -> None:
    class Denied(WorkerUnitsStub):
        async def unit_state(self, _uid: int, /) -> units.UnitState:
            return units.UnitState(active=False, failed=False, denied=True)

    worker_units = Denied()
    one = make(tmp_path, worker_units, short_dir / "nobody")
    one._known.said[OURS] = replace(one._known.said[OURS], warm=3, cold=1, declared=(ModelName("m"),))
    one._known.owe(lambda _one: True)

    async def work() -> None:
        for _ in range(2):
            with pytest.raises(Conflict, match="has no worker: the host's PAM lets nothing be run"):
                await one.wake(OURS)

    go(one, work)
    # Whoever asks, root is not made to ask PAM again and again.
    assert worker_units.started == [OURS]
    shown = one.status(OURS)
    assert (shown.users[0].state, shown.users[0].due, shown.known, shown.problems) == (
        WorkerState.DENIED,
        False,
        (),
        (),
    )
    assert readiness.of_host(replace(shown, looked=api_stub.NOW), api_stub.NOW).state is readiness.Readiness.DENIED


def test_an_answer_is_believed_only_from_its_user(tmp_path: Path, short_dir: Path) -> None:
    other = OURS or users.NOBODY
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_dir / "s"))
        # Who listens is who that is now.  Root may: systemd listens for workers.
        os.seteuid(other)
        try:
            listener.listen()
        finally:
            os.seteuid(OURS)
        with pytest.raises(Unavailable, match=f"user {other} listens on"):
            user_client.ask(other + 1, requests.GetStatus(), lambda _uid: short_dir / "s")
    with api_stub.running(short_dir) as there:
        assert user_client.ask(OURS, requests.GetStatus(), lambda _uid: there.path).value.verdict is Verdict.WARM


def test_a_worker_that_has_more_models_than_are_read_is_said_to_have(
    tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_client, "LARGEST_FOR_ADMINISTRATORS", 100_000)
    with api_stub.running(short_dir) as there:
        there.service.registered = {ModelName(f"m{number}"): api_stub.make_model(f"m{number}") for number in range(300)}
        one = make(tmp_path, WorkerUnitsStub(), there.path)
        one._known.said[OURS] = replace(one._known.said[OURS], state=WorkerState.AWAKE)
        refused: list[XpucachedError] = []

        async def work() -> None:
            try:
                await one.tend(OURS, requests.ListModels(), admin=True)
            except XpucachedError as error:
                refused.append(error)
            shown = await one.tend(OURS, requests.GetModel(name=ModelName("m7")), admin=True)
            assert json.loads(shown)["name"] == "m7"

        go(one, work)
    assert [(error.code, "ask for less" in error.hint) for error in refused] == [("too-large", True)]


def test_a_socket_that_may_not_be_opened_yet_is_one_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> socket.socket:
        raise PermissionError

    # systemd makes it, and gives it to the user a moment later.
    monkeypatch.setattr(sockets, "connect", refuses)
    with pytest.raises(Unavailable, match="you may not open"):
        user_client.ask(OURS, requests.GetHello())


@contextmanager
def liar(path: Path, answer: bytes | Callable[[bytes], bytes]) -> Iterator[None]:
    """Answer every request with the same bytes, or with what is given for it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(16)

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                try:
                    request = client.recv(1 << 16)
                    client.sendall(answer if isinstance(answer, bytes) else answer(request))
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def http(body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (length or len(body)) + body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"hello\r\n\r\n",
        http(b"not json"),
        http(b'{"api": 1, "data": {"verdict": "very warm"}}'),
        http(b'{"api": 1, "data": [[[[]]]]}'),
        http(b'{"api": 1, "data": {}}', 1 << 60),
        http(b"[" * 100_000),
        http(b'{"api": 1, "error": {"code": "internal", "message": "' + b"x" * 5000 + b'"}}'),
        http(b" " * (user_client.LARGEST + 2)),
    ],
    ids=lambda answer: answer[-20:].decode("ascii", "replace"),
)
def test_a_worker_that_lies_costs_only_its_own_row(tmp_path: Path, short_dir: Path, answer: bytes) -> None:
    one = make(tmp_path, WorkerUnitsStub(), short_dir / "s")
    other = one._known.said[OURS + 1]

    async def work() -> None:
        one._workers.follow(OURS, urgent=True)
        await asyncio.wait({one._workers._following[OURS]}, timeout=30)
        assert one._workers._following[OURS].done()

    with liar(short_dir / "s", answer):
        go(one, work)
    assert one._known.said[OURS].state is WorkerState.FAILED
    assert len(one._known.said[OURS].sentence) <= 300
    assert one._known.said[OURS + 1] == other
    assert {row.user for row in one.status(None).users} == {"me", "other"}


def test_driver_files_that_do_not_answer_hold_up_nobody_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._known.said = {4: UserStatus("has-a-model", 4, WorkerState.ASLEEP, models=(ModelName("x"),))}
    one._stamp = "before"
    answers = threading.Event()

    def silent(_variables: object) -> str:
        answers.wait(30)
        return "after"

    monkeypatch.setattr(driver_stamp, "fingerprint", silent)
    monkeypatch.setattr("xpucached.hostd.supervisor._COMPARING", 0.1)

    async def work() -> None:
        for _ in range(2):
            async with asyncio.timeout(10):
                await one._compare()
            assert (one._stamp, one._looked, set(one._known.owed)) == ("before", None, set())
            assert [problem.code for problem in one.status(None).problems] == ["driver-files-silent"]
            assert CheckState.NO_ANSWER in check_host(one.status(None), api_stub.NOW).states
        answers.set()
        while one._stamp == "before":
            await one._compare()
            await asyncio.sleep(0.01)
        assert one.status(None).problems == ()
        assert (one._looked, set(one._known.owed)) == (api_stub.NOW, {4})

    go(one, work)


def test_whatever_is_wrong_with_the_driver_s_files_or_our_own_users_are_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._stamp = "before"

    def stumble(_variables: object) -> str:
        raise ValueError("embedded null byte")

    monkeypatch.setattr(driver_stamp, "fingerprint", stumble)

    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> None:
        await one._compare()
        (problem,) = one.status(None).problems
        assert (problem.code, "embedded null" in problem.message) == ("driver-files-silent", True)
        assert (one._stamp, one._looked) == ("before", None)
        # No file answers where there is no thread to ask it; what is kept and shown then waits.
        renew(asyncio.get_running_loop())
        one._known.changed.set()
        tasks = [asyncio.create_task(one._write()), asyncio.create_task(figures.keep(one, str(tmp_path)))]
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", full)
            await asyncio.sleep(0)
            async with asyncio.timeout(30):
                while "state-not-kept" not in {found.code for found in one.status(None).problems}:
                    await one._compare()
                    await asyncio.sleep(0)
            await one._compare()
            assert "new thread" in next(
                found.message for found in one.status(None).problems if found.code == "driver-files-silent"
            )
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    go(one, work)


def test_a_change_of_the_driver_wakes_whom_it_concerns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._known.said = {
        1: UserStatus("never-asked", 1),
        2: UserStatus("empty", 2, WorkerState.ASLEEP, seen=api_stub.NOW),
        3: UserStatus("has-entries", 3, WorkerState.ASLEEP, seen=api_stub.NOW, entries=1),
        4: UserStatus("has-a-model", 4, WorkerState.ASLEEP, seen=api_stub.NOW, models=(ModelName("x"),)),
    }
    found = iter(["a", "a", "b"])
    monkeypatch.setattr(driver_stamp, "fingerprint", lambda _variables: next(found))
    monkeypatch.setattr(staged, "stamp", lambda _patterns: "")

    async def work() -> None:
        await one._compare()
        assert (one._changed, set(one._known.owed)) == (None, set())
        await one._compare()
        assert (one._changed, set(one._known.owed)) == (None, set())
        await one._compare()

    go(one, work)
    # Who had nothing when he was last asked may have something by now; those who had are woken first.
    assert (one._changed, list(one._known.owed)) == (api_stub.NOW, [1, 3, 4, 2])
    # Killed now, the next life still owes it.
    assert list(make(tmp_path, WorkerUnitsStub(), tmp_path)._known.owed) == [1, 3, 4, 2]


def test_nobody_is_called_warm_between_a_change_of_the_driver_and_the_end_of_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    seen = UserStatus("x", 3, WorkerState.ASLEEP, Verdict.WARM, seen=api_stub.NOW, looked=api_stub.NOW, entries=1)
    one._known.said, one._stamp = {3: seen}, "a"
    found = iter(["a", "b"])
    monkeypatch.setattr(driver_stamp, "fingerprint", lambda _variables: next(found))
    looking, goes_on = threading.Event(), threading.Event()

    def silent(_patterns: object) -> str:
        looking.set()
        goes_on.wait(30)
        return "another"

    def judged() -> Readiness:
        return readiness.of_host(one.status(None), api_stub.NOW).state

    async def work() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(staged, "stamp", lambda _patterns: "")
            await one._compare()
        assert judged() is Readiness.WARM
        monkeypatch.setattr(one, "_clock", lambda: api_stub.NOW + timedelta(seconds=1))
        monkeypatch.setattr(staged, "stamp", silent)
        look = asyncio.create_task(one._compare())
        await asyncio.to_thread(looking.wait, 30)
        # Its files are compared, and what was downloaded does not answer yet.
        meanwhile = judged(), one._looked
        goes_on.set()
        await look
        assert meanwhile == (Readiness.WAITING, api_stub.NOW)
        assert (judged(), one._looked, set(one._known.owed)) == (Readiness.WAITING, one._clock(), {3})

    go(one, work)


def test_a_change_of_the_driver_that_the_clock_had_ahead_is_none_of_the_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    monkeypatch.setattr(driver_stamp, "fingerprint", lambda _variables: "b")
    monkeypatch.setattr(stamps, "beside", lambda _patterns: "")
    ahead = api_stub.NOW + timedelta(hours=2)
    said = StatusSummary.of(replace(api_stub.make_status(), looked=api_stub.NOW, problems=()))
    one._known.said = {3: UserStatus("x", 3, seen=ahead, entries=1, looked=ahead - timedelta(hours=1))}
    one._stamp, one._changed = "b", ahead

    def unheard() -> bool:
        return CheckState.UNHEARD in check_host(one.status(None), api_stub.NOW).states

    async def work() -> None:
        # He has not looked since, by a clock that was ahead for both; then it was set back.
        await one._compare()
        assert (one.status(None).changed, unheard(), set(one._known.owed)) == (api_stub.NOW, True, {3})
        one._known.note_summary(3, said)
        assert not unheard()
        one._known.owed.forget(3)
        await one._compare()
        assert (unheard(), set(one._known.owed)) == (False, set())

    go(one, work)


def beside_one_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostDaemon:
    """Make a daemon that knows of a user with an entry and of one without, on a host whose driver stays the same."""
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._known.said = {
        2: UserStatus("empty", 2, seen=api_stub.NOW),
        3: UserStatus("x", 3, seen=api_stub.NOW, entries=1),
    }
    one._stamp = "a"
    monkeypatch.setattr(driver_stamp, "fingerprint", lambda _variables: "a")
    return one


def test_a_driver_that_was_downloaded_wakes_whom_it_concerns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = beside_one_driver(tmp_path, monkeypatch)
    found = iter(["", "x", "x", "x", "x"])
    monkeypatch.setattr(staged, "stamp", lambda _patterns: next(found))

    async def work() -> None:
        await one._compare()
        assert set(one._known.owed) == set()
        await one._compare()
        # It is not the driver that changed: what is known of the users is not older for that.
        assert (one._changed, set(one._known.owed)) == (None, {3})
        one._known.owed.forget(3)
        await one._compare()
        assert set(one._known.owed) == set()

    go(one, work)
    again = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    again._stamp, again._known.said = "a", one._known.said
    go(again, again._compare)
    assert set(again._known.owed) == set()


def test_a_key_that_is_revoked_for_all_wakes_whom_it_concerns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = beside_one_driver(tmp_path, monkeypatch)
    monkeypatch.setattr(staged, "stamp", lambda _patterns: "")
    monkeypatch.setattr("xpucached.hostd.stamps.HOST_KEYS", tmp_path / "trust.d")

    async def work() -> None:
        await one._compare()
        (tmp_path / "trust.d").mkdir()
        await one._compare()
        assert set(one._known.owed) == set()
        for text in ("first", "second"):
            (tmp_path / "trust.d/revoked").write_text(text)
            await one._compare()
            assert (one._changed, set(one._known.owed)) == (None, {3})
            one._known.owed.forget(3)
            await one._compare()
            assert set(one._known.owed) == set()

    go(one, work)


def test_whose_a_model_is(tmp_path: Path) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    me = pwd.getpwuid(OURS).pw_name
    one._people = {OURS: me, OURS + 1: "other"}
    one._known.said[OURS] = replace(one._known.said[OURS], models=(ModelName("mine"), ModelName("a:b")))
    one._owners = {ModelName("declared"): OURS, ModelName("other:mine"): OURS}

    def meaning(*names: str) -> object:
        return one.meaning(tuple(map(ModelName, names)))

    async def work() -> None:
        # A name alone is the host's to give; a user's own model is under that user's name or number.
        assert meaning("declared") == (OURS, ("declared",))
        assert meaning("other:mine") == (OURS, ("other:mine",))
        assert meaning(f"{me}:mine", f"{OURS}:a:b", "declared") == (OURS, ("mine", "a:b", "declared"))
        assert meaning("other:theirs") == (OURS + 1, ("theirs",))
        for names, error in (
            (("mine",), NotFound),
            (("lost",), NotFound),
            (("nobodys",), NotFound),
            (("stranger:mine",), NotFound),
            (("other:",), NotFound),
            (("declared", "other:theirs"), Conflict),
        ):
            with pytest.raises(error):
                meaning(*names)
        with pytest.raises(NotFound, match="declares no model declraed") as caught:
            meaning("declraed")
        assert caught.value.hint.startswith("did you mean declared? a user's model is USER:NAME")
        assert [one.own(ModelName(name), OURS) for name in ("x", f"{me}:x", "other:x", f"{me}:")] == [
            *("x", "x", "other:x", f"{me}:"),
        ]
        with pytest.raises(NotFound):
            one.find("nobody-of-that-name", OURS)
        with pytest.raises(Denied, match="does not look after you"):
            one.find(None, 12345)

    go(one, work)


@pytest.mark.parametrize("state", [WorkerState.AWAKE, WorkerState.FAILED, WorkerState.ASLEEP])
def test_a_number_that_another_account_has_now_is_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: WorkerState
) -> None:
    worker_units = WorkerUnitsStub()
    one = make(tmp_path, worker_units, tmp_path / "nobody")
    awake = UserStatus("former", 5000, state, seen=api_stub.NOW, models=(ModelName("hers"),))
    stays = UserStatus("stays", 5001, WorkerState.AWAKE, seen=api_stub.NOW, models=(ModelName("his"),))
    one._known.said = {5000: awake, 5001: stays}
    known = [pwd.struct_passwd((name, "x", uid, uid, "", "/", "")) for name, uid in (("latter", 5000), ("stays", 5001))]
    monkeypatch.setattr(pwd, "getpwall", lambda: known)

    async def work() -> None:
        if state is WorkerState.ASLEEP:
            # It waits for its turn to be started.
            one._workers.follow(5000)
        await one.meet()
        await one._dismiss()
        assert not one._workers.follows(5000)

    go(one, work)
    assert (one._known.said, worker_units.stopped) == ({5000: UserStatus("latter", 5000), 5001: stays}, [5000])


class Counting(dict[K, T]):
    """Counts how often all of it is walked through."""

    walks = 0

    def __iter__(self) -> Iterator[K]:
        self.walks += 1
        return super().__iter__()

    def values(self) -> dict_values[K, T]:
        self.walks += 1
        return super().values()

    def items(self) -> dict_items[K, T]:
        self.walks += 1
        return super().items()


def test_who_asks_for_himself_costs_no_walk_through_all_users(tmp_path: Path) -> None:
    """Anybody may ask, in the loop that administrators wait for, on a host of tens of thousands."""
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._people = people = Counting({OURS + number: f"u{number}" for number in range(3)})
    one._known.said = said = Counting({uid: UserStatus(name, uid) for uid, name in people.items()})
    one._owners = owners = Counting({ModelName(f"m{number}"): OURS + number % 3 for number in range(4)})
    people.walks = 0

    async def work() -> None:
        for _ in range(5):
            assert [row.uid for row in one.status(OURS + 1).users] == [OURS + 1]
            assert one.status(OURS + 7).users == ()
            assert one.find("u2", OURS) == OURS + 2
        assert (said.walks, people.walks, owners.walks) == (0, 1, 1)
        (row,) = one.status(OURS).users
        assert row.declared == ("m0", "m3")
        one._owners = {ModelName("m3"): OURS}
        assert one.status(OURS).users[0].declared == ("m3",)
        one._people = {OURS: "u2"}
        assert one.find("u2", OURS) == OURS

    go(one, work)


def test_all_users_are_shown_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._known.said = {5003: UserStatus("c", 5003), 5001: UserStatus("z", 5001)}
    known = [(5001, "z"), (5000, "b"), (5003, "c"), (5002, "a")]
    monkeypatch.setattr(pwd, "getpwall", lambda: [pwd.struct_passwd((n, "x", u, u, "", "/", "")) for u, n in known])

    async def work() -> None:
        await one.meet()
        one._known.say(5000, state=WorkerState.ASLEEP)

    go(one, work)
    assert [row.user for row in one.status(None).users] == ["a", "b", "c", "z"]


def test_what_was_remembered_may_be_lost(tmp_path: Path) -> None:
    for damage in (b"", b"{", b"[]", b'{"stamp": 1}', b"\xff"):
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state" / "users.json").write_bytes(damage)

        assert make(tmp_path, WorkerUnitsStub(), tmp_path)._stamp == ""


def test_what_cannot_be_written_down_is_a_problem_until_it_can(tmp_path: Path) -> None:
    one = make(tmp_path, WorkerUnitsStub(), tmp_path)
    (tmp_path / "state").rmdir()
    one._memory.keep(SavedState())
    (said,) = one.status(None).problems
    assert (said.code, "No such file" in said.message, "df " in said.hint) == ("state-not-kept", True, True)
    (tmp_path / "state").mkdir()
    one._memory.keep(SavedState())
    assert one.status(None).problems == ()


# -- models of the host ---------------------------------------------------------------------------------------------


def test_a_worker_and_the_host_s_daemon_agree_whose_a_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = pwd.getpwuid(os.getuid())
    usual = pwd.getpwnam
    # As a directory service does, for which names are the same in capitals.
    monkeypatch.setattr(pwd, "getpwnam", lambda name: own if name == "Somebody" else usual(name))
    folder = tmp_path / "models.d"
    folder.mkdir()
    names = {"a": own.pw_name, "b": str(own.pw_uid), "c": "Somebody", "d": f"0{own.pw_uid}"}
    for name, user in names.items():
        (folder / f"{name}.toml").write_text(f'user = "{user}"\ncommand = ["/bin/true"]\n')
    config = loading.load(None, user=False, environ={})
    found = read_users(replace(config, paths=replace(config.paths, models=folder)), {}, {}, {})
    mine, _ = model_files.models(folder, user=own.pw_name, uid=own.pw_uid)

    assert [model.name for model in mine] == sorted(found.owners) == ["a", "b"]
    assert [(one.code, one.message) for one in found.problems] == [
        ("no-such-user", f"a model file names the user {names[name]}, who is {own.pw_name} here") for name in "cd"
    ]


def test_a_model_of_the_host_is_its_user_s(tmp_path: Path) -> None:
    for name, text in {
        "a": 'user = "llm"\ncommand = ["/bin/true"]\n',
        "b": 'user = "other"\ncommand = ["/bin/true"]\n',
        "c": 'command = ["/bin/true"]\n',
    }.items():
        (tmp_path / f"{name}.toml").write_text(text)
    mine, problems = model_files.models(tmp_path, user="llm")
    owners, _ = model_files.owners(tmp_path)
    own, refused = model_files.models(tmp_path)

    assert [model.name for model in mine] == ["a"]
    assert owners == {"a": "llm", "b": "other"}
    assert [one.subject for one in problems] == [str(tmp_path / "c.toml")]
    assert "user: is required here" in problems[0].message
    # In one's own directory nobody else's name counts.
    assert [model.name for model in own] == ["c"]
    assert {one.subject for one in refused} == {str(tmp_path / "a.toml"), str(tmp_path / "b.toml")}


# -- files alone ----------------------------------------------------------------------------------------------------


@pytest.mark.flow
def test_the_fingerprint_changes_with_files_and_with_nothing_else(tmp_path: Path) -> None:
    places = HostRoots(tmp_path / "sys", tmp_path / "proc", tmp_path / "etc", tmp_path / "dev", (tmp_path / "lib",))
    firmware = tmp_path / "firmware"
    (firmware / "xe").mkdir(parents=True)
    (tmp_path / "lib").mkdir()

    def stamp() -> str:
        return driver_stamp.fingerprint({}, places, (firmware, tmp_path / "link"))

    seen = [stamp()]
    assert stamp() == seen[0]
    (firmware / "xe" / "guc.bin").write_text("1")
    seen.append(stamp())
    (firmware / "xe" / "guc.bin").write_text("12")
    seen.append(stamp())
    (tmp_path / "lib" / "libze_intel_gpu.so.1").write_text("driver")
    seen.append(stamp())
    assert len(set(seen)) == 4
    # Links to nothing hide none of the others, in whatever order they are found.
    for number in range(8):
        (firmware / "xe" / f"{number}").symlink_to("nothing")
    seen.append(stamp())
    for name in ("guc.bin", "huc.bin"):
        (firmware / "xe" / name).write_text("123")
        seen.append(stamp())
    assert len(set(seen)) == 7
    # Under two names it is still one file.
    (tmp_path / "link").symlink_to(firmware)
    assert stamp() == seen[-1]
    (tmp_path / "unrelated").touch()
    assert stamp() == seen[-1]


# -- systemd --------------------------------------------------------------------------------------------------------


def test_what_systemd_is_told_is_one_line_whatever_it_quotes(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(short_dir / "n"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(short_dir / "n"))
        systemd.notify("READY=1", "STATUS=it said: x\nMAINPID=1\udcff")
        assert manager.recv(4096) == rb"READY=1" + b"\n" + rb"STATUS=it said: x\x0aMAINPID=1\udcff"


def test_without_a_descriptor_systemd_and_the_journal_are_told_nothing_and_all_goes_on(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(short_dir / "n"))
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")

    def none(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none)
    systemd.notify("WATCHDOG=1", patience=0.0)
    systemd.tell("started", "a line", place=short_dir / "j")


def test_systemd_that_does_not_read_keeps_nobody_waiting(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(short_dir / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(short_dir / "notify"))
        began = time.monotonic()
        # More than the kernel keeps for who does not read (net.unix.max_dgram_qlen).
        for _ in range(600):
            systemd.notify("WATCHDOG=1", patience=0.0)
        systemd.notify("STOPPING=1", patience=0.1)
        assert time.monotonic() - began < 60
        assert listener.recv(100) == b"WATCHDOG=1"


def test_a_journal_that_does_not_read_keeps_nobody_waiting(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(short_dir / "journal"))
        telling = threading.Thread(target=_tell_often, args=(short_dir / "journal",), daemon=True)
        telling.start()
        telling.join(20)
        assert not telling.is_alive()
        assert b"MESSAGE=a line" in journal.recv(4096)


def _tell_often(journal: Path) -> None:
    for _ in range(600):
        systemd.tell("started", "a line", place=journal)


def test_the_watcher_does_not_wait_for_systemd(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(short_dir / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(short_dir / "notify"))
        watchdog = watchd._Watchdog()

        def beat() -> None:
            for _ in range(600):
                watchdog.beat()

        beating = threading.Thread(target=beat, daemon=True)
        beating.start()
        beating.join(20)
        assert not beating.is_alive()
        assert listener.recv(100) == b"WATCHDOG=1"


def test_an_answer_of_somebody_else_is_bounded_more_than_one_s_own(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = http(b'{"api": 1, "data": [' + b"0," * 1_100_000 + b"0]}")
    with liar(short_dir / "s", many):
        with Client(short_dir / "s", owner=OURS) as client:
            assert isinstance(client.call(requests.GetStatus()).data, list)
        monkeypatch.setattr(os, "geteuid", lambda: OURS + 1)
        with Client(short_dir / "s", owner=OURS) as client, pytest.raises(XpucachedError, match="than 1000000 values"):
            client.call(requests.GetStatus())


def test_the_journal_gets_fields_that_cannot_be_forged(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(short_dir / "j"))
        systemd.tell("evicted", "two\nPRIORITY=0", {"removed": "2"}, short_dir / "j")
        text = journal.recv(1 << 16)
    assert b"MESSAGE\n" + struct.pack("<Q", 14) + b"two\nPRIORITY=0\n" in text
    assert f"MESSAGE_ID={systemd.MESSAGES['evicted']}\n".encode() in text
    assert b"XPUCACHED_REMOVED=2\n" in text
    # Nobody listens: nothing fails.
    systemd.tell("alarm", "x", place=short_dir / "j")


def test_every_message_is_in_the_manual_with_its_id() -> None:
    told = dict(row[:2] for row in rows(section(page("docs/operations.md"), "The log")))

    assert {name.strip("`"): id_.strip("`") for name, id_ in told.items()} == dict(systemd.MESSAGES)
    assert len(set(systemd.MESSAGES.values())) == len(systemd.MESSAGES)


CATALOG: Final = Path(__file__).parents[3] / "systemd/catalog/xpucached.catalog"
"""What `journalctl -x` adds to our messages."""


def catalog_texts() -> dict[str, str]:
    """Return the texts of the journal's catalog by their ids."""
    _, *parts = re.split(r"^-- ([0-9a-f]{32})$", CATALOG.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_journal_s_catalog_explains_every_message() -> None:
    texts = catalog_texts()
    assert list(texts) == list(systemd.MESSAGES.values())
    told = {name.strip("`"): told for name, _, _, told in rows(section(page("docs/operations.md"), "The log"))}
    for what, id_ in systemd.MESSAGES.items():
        assert "\nSubject: " in texts[id_]
        # journalctl leaves the name of a field that is not there.
        named = {name.removeprefix("XPUCACHED_") for name in re.findall(r"@(\w+)@", texts[id_])}
        assert named <= set(re.findall(r"`(\w+)`", told[what])) - {"USER", "STAMP", "APPEARED", "VANISHED"}
        # What it says to run can be run.
        commands = re.findall(r"xpucachectl (.+)$", texts[id_], re.MULTILINE)
        assert commands
        for command in commands:
            arguments.parse(command.replace("@XPUCACHED_MODEL@", "m").replace(" REF", " a1b2c3").split())
    # `doctor --fix` leaves entries as they are.
    assert "out what is damaged: xpucachectl verify --fix\n" in texts[systemd.MESSAGES["alarm"]]


def test_the_host_s_daemon_is_an_account_and_nobody_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "ACCOUNT", "nobody-of-that-name")
    account = rights.HostDaemonAccount()
    account.ask(60.0)
    assert not account.is_(OURS)
    monkeypatch.setattr(sockets, "ACCOUNT", pwd.getpwuid(OURS).pw_name)
    for _ in range(2):  # the first one may be about the other name still
        account.ask(60.0)
    assert account.is_(OURS)
    assert not account.is_(OURS + 1)


def test_who_connects_to_a_worker_does_not_wait_for_the_user_database(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    ours = pwd.getpwuid(OURS)
    asked: list[str] = []

    def silent(name: str) -> pwd.struct_passwd:
        asked.append(name)
        answered.wait(60.0)
        return ours

    monkeypatch.setattr(pwd, "getpwnam", silent)
    account = rights.HostDaemonAccount()
    try:
        for _ in range(3):
            assert not account.is_(OURS)
        assert len(asked) <= 1
    finally:
        answered.set()
    account.ask(60.0)
    assert account.is_(OURS)


# -- the wire -------------------------------------------------------------------------------------------------------


def test_every_request_to_the_host_s_daemon_is_in_the_manual() -> None:
    told = [row[0] for row in rows(section(page("docs/protocol.md"), "The host's daemon")) if codes(row[0])]

    assert sorted(told) == sorted(f"`{one.method} {one.path}`" for one in host_requests.ENDPOINTS)


@pytest.mark.parametrize(
    "value",
    [
        HostStatus("1", api_stub.NOW, "s", None, (), (UserStatus("x", 1), UserStatus("y", 2, verdict=Verdict.COLD))),
        UserSocket("x", 1, Path("/run/x")),
    ],
)
def test_values_of_the_host_s_daemon_travel(value: object) -> None:
    wire = json.loads(json.dumps(codec.to_json(value)))
    manual = page("docs/protocol.md")

    assert codec.from_json(type(value), wire) == value
    assert set(wire) <= set(codes(section(manual, type(value).__name__)))


def test_a_worker_whose_user_has_no_name_now_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []

    def nameless(_uid: int) -> pwd.struct_passwd:
        raise KeyError

    async def events(_since: int) -> AsyncIterator[Event]:
        none: tuple[Event, ...] = ()
        for one in none:
            yield one

    monkeypatch.setattr(pwd, "getpwuid", nameless)
    monkeypatch.setattr(systemd, "tell", lambda *words: told.append(words[2]))
    context = SimpleNamespace(events=SimpleNamespace(began=0, subscribe=events))
    service = SimpleNamespace(context=context)
    worker = SimpleNamespace(_options=SimpleNamespace(worker=True), _service=service)
    asyncio.run(user_daemon.Daemon._tell(worker))  # type: ignore[arg-type] # nothing else of it is asked

    assert told == [{"user": str(OURS)}]


def test_the_journal_hears_what_happened_and_not_what_it_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[object, ...]] = []

    async def events(_since: int) -> AsyncIterator[Event]:
        yield Event(1, api_stub.NOW, "compiling-while-serving", "a secret", {"unit": "x.service", "command": "--token"})
        yield Event(2, api_stub.NOW, "replayed", "2 entries rebuilt in 1.0 s, 0 failed", {"rebuilt": "2"})
        yield Event(3, api_stub.NOW, "model-added", "net", {"model": "net"})

    monkeypatch.setattr(systemd, "tell", lambda *words: told.append(words))
    context = SimpleNamespace(events=SimpleNamespace(began=0, subscribe=events))
    daemon = SimpleNamespace(_options=SimpleNamespace(worker=False), _service=SimpleNamespace(context=context))
    asyncio.run(user_daemon.Daemon._tell(daemon))  # type: ignore[arg-type] # nothing else of it is asked

    assert told[1:] == [
        ("compiling-while-serving", systemd.SENTENCES["compiling-while-serving"], {"unit": "x.service"}),
        ("replayed", "2 entries rebuilt in 1.0 s, 0 failed", {"rebuilt": "2"}),
    ]
    # What an event itself may not say has a sentence of ours, and only that.
    for what in systemd.MESSAGES.keys() - {"started", "model-warmed", "model-failed"}:
        hidden = of_event(Event(1, api_stub.NOW, what, "a secret", {})).message == HIDDEN
        assert hidden == (what in systemd.SENTENCES)
