"""`xpucachectl` for all users of a host: lists as one, whose failure is whose, and bounds."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self, cast

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from xpucached import answers
from xpucached.api import requests
from xpucached.api.client import Answer, Client
from xpucached.cli import arguments, commands, connect, errands, everyone, following, progress
from xpucached.cli.output import Output
from xpucached.codec import to_json
from xpucached.domain.jobs import Event, Job, JobState
from xpucached.domain.models import Outcome
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.queries import EntryPage
from xpucached.domain.stores import Lookups, StoreStatus
from xpucached.domain.users import HostStatus, UserStatus, WorkerState
from xpucached.errors import Conflict, NotFound, RequestError, Unavailable, XpucachedError
from xpucached.render import entries as rendered_entries
from xpucached.render import jobs
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from xpucached.api.endpoints import Request
    from xpucached.domain.plans import IndexedEntry
    from xpucached.domain.queries import EntryQuery

ALICE, BOB = UserStatus("alice", 1001, WorkerState.AWAKE), UserStatus("bob", 1002, WorkerState.ASLEEP)
CAROL: Final = UserStatus("carol", 1003)


class Host:
    """A host's daemon that only tells whom it looks after."""

    def __init__(self, *users: UserStatus) -> None:
        self.users = users

    def call(self, _request: Request[HostStatus]) -> Answer[HostStatus]:
        """Tell of the users."""
        said = HostStatus("1", api_stub.NOW, "stamp", None, (), self.users)
        return Answer(to_json(said), HostStatus)


def run(line: str, *users: UserStatus) -> int:
    """Do what a command line says, as somebody who may ask for all users."""
    options = arguments.parse(line.split())
    output = Output(
        options, cast("Client", Host(*users)), TextStyle(api_stub.NOW + timedelta(days=1)), options.json, options.quiet
    )
    return commands._OF_HOST[options.verb](output)


@pytest.fixture
def workers(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, api_stub.Running]]:
    """Let alice and bob have a worker each, and nobody else."""
    with contextlib.ExitStack() as stack:
        there = {}
        for name in ("alice", "bob"):
            service = api_stub.Standin()
            mine = ModelName(f"{name}s")
            service.registered = {mine: api_stub.make_model(mine)}
            (short_dir / name).mkdir()
            there[name] = stack.enter_context(api_stub.running(short_dir / name, service=service))

        def of_user(user: str, largest: int | None = None) -> Client:
            if user not in there:
                raise Unavailable(f"the worker of {user} does not answer", hint="see: journalctl")
            return Client(there[user].path, largest=largest)

        monkeypatch.setattr(connect, "of_user", of_user)
        yield there


def test_lists_of_all_users_are_one_with_an_owner_in_each_row(
    workers: Mapping[str, api_stub.Running], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("model list", BOB, ALICE) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["USER", "NAME"]
    assert [row.split()[:2] for row in rows] == [["alice", "alices"], ["bob", "bobs"]]
    # Each is called as `prewarm` takes it.
    assert run("-q model list", BOB, ALICE) == 0
    assert capsys.readouterr().out == "alice:alices\nbob:bobs\n"
    assert len(workers) == 2


def test_no_worker_names_what_would_be_another_user_s(
    workers: Mapping[str, api_stub.Running], capsys: pytest.CaptureFixture[str]
) -> None:
    lie = ModelName("x\nbob:payroll")
    workers["alice"].service.registered = {lie: api_stub.make_model(lie)}
    assert run("-q model list", ALICE, BOB) == 0
    assert capsys.readouterr().out == "alice:x bob:payroll\nbob:bobs\n"


def test_what_has_no_name_is_no_line_of_names(
    workers: Mapping[str, api_stub.Running], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = api_stub.make_store()

    async def stores() -> tuple[StoreStatus, ...]:
        return (store, replace(store, cache=api_stub.make_cache()))

    monkeypatch.setattr(workers["alice"].service, "stores", stores)
    assert run("-q stores", ALICE) == 0
    assert capsys.readouterr().out == f"alice:{store.store}\n"


@pytest.mark.parametrize("line", ["stores", "runs", "trash list", "ls"])
@pytest.mark.usefixtures("workers")
def test_every_list_says_whose_each_row_is(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line, ALICE, BOB) == 0
    written = capsys.readouterr().out
    assert {"alice", "bob"} <= set(written.split())


@pytest.mark.usefixtures("workers")
def test_whose_worker_fails_is_named_and_the_others_answers_stand(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("model list", ALICE, CAROL, BOB) == 1
    said = capsys.readouterr()
    assert "alices" in said.out
    assert "bobs" in said.out
    assert said.err == "xpucachectl: carol: the worker of carol does not answer (see: journalctl)\n"

    assert run("--json model list", ALICE, CAROL) == 1
    whole = json.loads(capsys.readouterr().out)["data"]["users"]
    assert [(one["user"], one["uid"], "data" in one) for one in whole] == [
        ("alice", 1001, True),
        ("carol", 1003, False),
    ]
    assert whole[0]["data"][0]["name"] == "alices"
    assert whole[1]["error"]["code"] == "unavailable"


@pytest.mark.usefixtures("workers")
def test_who_runs_a_daemon_of_their_own_is_named_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connect, "of_user", refusing(Conflict("carol runs a daemon of their own")))
    assert run("model list", replace(CAROL, state=WorkerState.ASIDE)) == 0
    assert "carol runs a daemon" in capsys.readouterr().err
    # But a worker that only says so is one that does not answer.
    assert run("model list", CAROL) == 1


def refusing(error: XpucachedError) -> Callable[..., Client]:
    """Return a way to workers that all refuse."""

    def of_user(_user: str, **_: object) -> Client:
        raise error

    return of_user


def test_what_nobody_knows_is_a_typing_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "of_user", refusing(NotFound("no model net")))
    with pytest.raises(NotFound):
        run("runs net", ALICE, BOB)


def test_an_answer_that_is_too_long_or_cannot_be_read_is_its_user_s_failure(
    workers: Mapping[str, api_stub.Running], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = {f"m{number}": api_stub.make_model(f"m{number}") for number in range(300)}
    workers["alice"].service.registered = many
    monkeypatch.setattr(everyone, "_TOGETHER", 200_000)
    monkeypatch.setattr(everyone, "_SMALLEST", 1000)
    assert run("model list", ALICE, BOB) == 1
    said = capsys.readouterr()
    assert "bobs" in said.out
    assert "m7" not in said.out
    assert "alice: the daemon's answer cannot be read: it has more than 100000 bytes (ask for less: one by" in said.err
    assert run("model list --json", ALICE, BOB) == 1
    parts = json.loads(capsys.readouterr().out)["data"]["users"]
    assert ("data" in parts[1], parts[0]["error"]["code"]) == (True, "too-large")


def stumbling(write: Callable[..., str]) -> Callable[..., str]:
    """Return what writes values for people, but stumbles over those in which alice stands."""

    def written(*values: object) -> str:
        text = write(*values)
        return str(10**5000) if "alice" in text or "FAILED" in repr(values) else text

    return written


@pytest.mark.parametrize("line", ["model list", "-q model list", "ls", "prewarm --all"])
def test_an_answer_that_cannot_be_written_for_people_is_its_user_s_failure(
    line: str,
    workers: Mapping[str, api_stub.Running],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workers["alice"].service.outcome = Outcome.FAILED
    for one in workers.values():
        one.service.known = entries(3)
    look = answers.of(requests.ListModels)
    assert look.merged is not None
    assert look.names is not None
    merged = replace(look.merged, write=stumbling(look.merged.write))
    forged = replace(look, names=stumbling(look.names), merged=merged)
    monkeypatch.setitem(answers._LOOKS, requests.ListModels, forged)
    monkeypatch.setattr(rendered_entries, "entries", stumbling(rendered_entries.entries))
    monkeypatch.setattr(jobs, "prewarming", stumbling(jobs.prewarming))
    assert run(line, ALICE, BOB) == 1
    said = capsys.readouterr()
    assert "bob" in said.out
    assert "alice" not in said.out
    assert "xpucachectl: alice: what it said cannot be read: ValueError\n" in said.err


def test_figures_that_no_daemon_gives_are_written_all_the_same(
    workers: Mapping[str, api_stub.Running], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def stores() -> tuple[StoreStatus, ...]:
        return (replace(api_stub.make_store(), lookups=Lookups(0, 0)),)

    monkeypatch.setattr(workers["alice"].service, "stores", stores)
    assert run("stores", ALICE, BOB) == 0
    assert "programs found 0 of 0 entries that they looked for, 0 %" in capsys.readouterr().out


def entries(number: int) -> list[IndexedEntry]:
    """Return so many entries."""
    return [api_stub.make_entry(one) for one in range(number)]


def test_entries_come_page_by_page_and_user_after_user(
    workers: Mapping[str, api_stub.Running], capsys: pytest.CaptureFixture[str]
) -> None:
    workers["alice"].service.known = entries(1300)
    workers["bob"].service.known = entries(3)
    assert run("-q ls", ALICE, BOB) == 0
    names = capsys.readouterr().out.split()
    assert len(set(names)) == 1303
    assert [name.partition(":")[0] for name in names] == ["alice"] * 1300 + ["bob"] * 3

    assert run("--json ls", ALICE, CAROL, BOB) == 1
    whole = json.loads(capsys.readouterr().out)["data"]["users"]
    assert [(one["user"], len(one.get("data", {}).get("entries", []))) for one in whole] == [
        ("alice", 1300),
        ("bob", 3),
        ("carol", 0),
    ]
    assert (whole[0]["data"]["total"], whole[0]["data"]["next"]) == (1300, None)

    assert run("ls --limit 1301", ALICE, BOB) == 0
    *rows, total = capsys.readouterr().out.splitlines()
    assert sum(row.startswith("bob ") for row in rows) == 1
    assert total == "1301 of 1303 entries, 5.1 MiB, of 2 users"


@pytest.mark.parametrize("breaks_off", [0, 1])
def test_entries_as_json_are_json_where_nobody_is_and_where_pages_break_off(
    workers: Mapping[str, api_stub.Running],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    breaks_off: int,
) -> None:
    async def again_and_again(_query: EntryQuery) -> EntryPage:
        shown.append(1)
        return EntryPage((api_stub.make_entry(1),), 9, 9, "7" if len(shown) <= breaks_off else "0")

    shown: list[int] = []
    monkeypatch.setattr(workers["alice"].service, "entries", again_and_again)
    workers["bob"].service.known = entries(3)
    assert run("--json ls", ALICE, BOB) == 1
    said = capsys.readouterr()
    alice, bob = json.loads(said.out)["data"]["users"]
    assert len(bob["data"]["entries"]) == 3
    assert alice.get("error", {}).get("code") == (None if breaks_off else Unavailable.code)
    assert len(alice.get("data", {}).get("entries", [])) == breaks_off
    assert "xpucachectl: alice: the pages of entries do not go on" in said.err

    assert run("--json ls") == 0
    assert json.loads(capsys.readouterr().out) == {"api": 1, "data": {"users": []}}


@pytest.mark.usefixtures("workers")
def test_what_happened_stands_in_the_order_of_time(
    workers: Mapping[str, api_stub.Running], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, minutes in (("alice", (1, 3)), ("bob", (2, 4))):
        workers[name].service.log = [
            Event(number, api_stub.NOW + timedelta(minutes=one), "evicted", f"at {one}", {})
            for number, one in enumerate(minutes, 1)
        ]
    assert run("events", ALICE, BOB) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [(row.split()[0], row[-1]) for row in rows] == [("alice", "1"), ("bob", "2"), ("alice", "3"), ("bob", "4")]


def test_what_happens_at_all_users_is_followed(
    workers: Mapping[str, api_stub.Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []

    def tell(_output: Output, user: UserStatus, one: Event) -> None:
        told.append((user.user, one.id))
        if len(told) == 5:
            raise KeyboardInterrupt

    workers["alice"].service.log = [Event(1, api_stub.NOW, "evicted", "one", {})]
    workers["bob"].service.log = []
    monkeypatch.setattr(following, "_tell", tell)
    monkeypatch.setattr(following, "_AGAIN", 0.1)
    awake = iter([1, 2, 3, 4])

    def users(_host: Client) -> tuple[UserStatus, ...]:
        number = next(awake, 5)
        # Bob's worker is there only later; what happened before is told all the same.
        if number in {3, 4}:
            for one in workers.values():
                one.do(functools.partial(one.service.happen, "something"))
        return (ALICE, replace(BOB, state=WorkerState.AWAKE if number > 3 else WorkerState.ASLEEP))

    monkeypatch.setattr(everyone, "users", users)
    with pytest.raises(KeyboardInterrupt):
        run("events -f", ALICE, BOB)
    assert sorted(told) == [("alice", 1), ("alice", 2), ("alice", 3), ("bob", 1), ("bob", 2)]


def test_numbers_of_events_are_each_user_s() -> None:
    with pytest.raises(XpucachedError, match="numbered for each user"):
        run("events --since 3", ALICE)


def test_the_jobs_of_all_users_are_listed(
    workers: Mapping[str, api_stub.Running], capsys: pytest.CaptureFixture[str]
) -> None:
    begun = workers["bob"].service.begun
    begun[JobId("scan-1")] = replace(workers["bob"].service._begin("scan"), id=JobId("scan-1"))
    assert run("jobs", ALICE, BOB) == 0
    assert "bob   scan-1" in capsys.readouterr().out


def test_whose_job_is_to_be_ended_has_to_be_said() -> None:
    for given, hint in (("prewarm-3", "--of USER jobs --cancel prewarm-3"), ("1001.2", "--of 1001 jobs --cancel 2")):
        with pytest.raises(RequestError, match="say whose job") as refused:
            run(f"jobs --cancel {given}", ALICE, BOB)
        assert (refused.value.hint or "").endswith(hint)


# -- what takes longer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("scan", "looked at 1 store"),
        ("prewarm --all", "warmed"),
        ("prewarm", "warm already  bert"),
        ("evict --dry-run", "would go"),
        ("evict", "evicted 1 entry"),
        ("replay --dry-run", "evict"),
    ],
)
def test_a_job_is_begun_for_each_user_and_seen_through(
    workers: Mapping[str, api_stub.Running], line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line, BOB, ALICE) == 0
    written = capsys.readouterr().out
    first, _, second = written.partition("\nbob\n")
    assert first.startswith("alice\n")
    if not line.startswith("replay"):  # of which the stand-in has no report
        assert said in first
        assert said in second
    assert [len(one.service.begun) for one in workers.values()] == [1, 1]


def test_the_worst_exit_status_counts_and_says_whose_it_is(
    workers: Mapping[str, api_stub.Running], capsys: pytest.CaptureFixture[str]
) -> None:
    workers["bob"].service.outcome = Outcome.FAILED
    assert run("prewarm --stale", ALICE, BOB) == 1
    assert "xpucachectl: bob: not every model is warm: 1 not" in capsys.readouterr().err
    # What is found is the stand-in's: a defect that nobody mended.
    assert run("verify", ALICE, BOB) == 1
    assert run("doctor", ALICE, BOB) == 1
    assert capsys.readouterr().out.count("bin-empty") == 4

    assert run("--json scan", ALICE, CAROL) == 1
    alice, carol = json.loads(capsys.readouterr().out)["data"]["users"]
    assert (alice["data"]["state"], alice["data"]["report"]["kind"]) == ("done", "scan")
    assert carol["error"]["code"] == "unavailable"


def test_jobs_that_go_on_are_named_with_what_ends_them(
    workers: Mapping[str, api_stub.Running], capsys: pytest.CaptureFixture[str]
) -> None:
    for one in workers.values():
        one.service.hold = True
    assert run("prewarm --all --timeout 1s", ALICE, BOB) == 1
    said = capsys.readouterr().err
    sudo = "sudo " if os.getuid() else ""
    assert f"job 1 of alice goes on; to end it: {sudo}xpucachectl --of alice jobs --cancel 1" in said
    assert run("scan --no-wait", ALICE, BOB) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("alice: job 2: scan running")


def test_a_job_that_ended_with_its_daemon_does_not_go_on(
    workers: Mapping[str, api_stub.Running], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers["alice"].service.hold = True

    def after_a_start(client: Client, job: Job, timeout: float) -> Answer[Job]:
        workers["alice"].service.begun.clear()
        return progress.asked(client, job, timeout)

    monkeypatch.setattr(errands, "asked", after_a_start)
    run("scan", ALICE, BOB)
    said = capsys.readouterr().err
    assert "alice: the daemon ended, and job 1 with it" in said
    assert "goes on" not in said


def test_two_users_jobs_go_on_at_a_time_and_who_takes_long_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    users = tuple(UserStatus(f"u{number}", 2000 + number) for number in range(5))
    release = threading.Event()
    going: list[str] = []
    most: list[int] = []

    class Worker:
        def __init__(self, user: str) -> None:
            self.user = user

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            going.remove(self.user)

        def call(self, _request: Request[object]) -> Answer[Job]:
            going.append(self.user)
            most.append(len(going))
            if self.user in {"u0", "u1"}:
                # These never end before all others have.
                assert release.wait(60)
            elif self.user == "u4":
                release.set()
            else:
                time.sleep(0.02)
            job = Job(JobId("scan-1"), "scan", JobState.DONE, api_stub.NOW)
            return Answer(to_json(job), Job)

    monkeypatch.setattr(connect, "of_user", lambda user, **_: Worker(user))
    monkeypatch.setattr(everyone, "_TICK", 0.05)
    monkeypatch.setattr(everyone, "_LONG", 0.5)
    assert run("scan", *users) == 0
    assert max(most) == 3
    assert capsys.readouterr().err.splitlines()[0] == "job running 0/5: users"


@pytest.mark.parametrize("line", ["evict 0123", "evict --plan 0123", "scan /x", "verify /x", "replay --model net"])
def test_what_is_one_user_s_is_asked_of_one_user(line: str) -> None:
    with pytest.raises(XpucachedError, match="for all users takes no names") as caught:
        run(line, ALICE)
    assert caught.value.hint == f"say whose: xpucachectl --of USER {line.split(maxsplit=1)[0]}"
