"""Somebody asks the host's daemon for models by name: no answer tells what others have, and nobody takes a name."""

from __future__ import annotations

import asyncio
import os
import stat
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests import REPOSITORY
from tests.unit.hostd.test_hostd import OURS, WorkerUnitsStub, make
from xpucached.api import requests
from xpucached.cli import arguments
from xpucached.domain.names import JobId, ModelName
from xpucached.errors import NotFound, XpucachedError
from xpucached.hostd.supervisor import HostDaemon
from xpucached.server.connection import ConnectionLimits, Peer
from xpucached.server.hosting import HostRoutes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from xpucached.domain.jobs import Job

ALICE, BOB = OURS + 1, OURS + 2
THERE = ("hers", "declared", "alice:hers", f"{ALICE}:hers")
NOT_THERE = ("nothing", "alice:nothing", "nobody-here:hers", "hres")


@pytest.fixture
def host_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostDaemon:
    """Return the daemon of a host on which alice has models and bob has none; it remembers who was to warm what."""
    one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    one._people = {ALICE: "alice", BOB: "bob"}
    one._known.said = {uid: replace(one._known.said[OURS], user=name, uid=uid) for uid, name in one._people.items()}
    one._known.said[ALICE] = replace(one._known.said[ALICE], models=(ModelName("hers"), ModelName("declared")))
    one._owners = {ModelName("declared"): 0}

    async def asked(_self: HostDaemon, uid: int, request: requests.PrewarmModels) -> Job:
        raise XpucachedError(f"uid {uid} has no model {' '.join(request.models)}")

    monkeypatch.setattr(HostDaemon, "prewarm", asked)
    return one


def answer(host_daemon: HostDaemon, name: str, uid: int) -> str:
    """Return what a user is told who wants a model warmed."""
    routes = HostRoutes(host_daemon, "1", ConnectionLimits(), admin=False)
    with pytest.raises(XpucachedError) as caught:
        asyncio.run(routes._call(requests.PrewarmModels(models=(ModelName(name),)), Peer(1, uid, uid)))
    return f"{caught.value.code}: {caught.value.message}; {caught.value.hint}".replace(name, "NAME")


def test_no_answer_tells_what_models_others_have(host_daemon: HostDaemon) -> None:
    told = {name: answer(host_daemon, name, BOB) for name in (*THERE, *NOT_THERE)}

    # It is bob's own worker that is asked, each time.
    assert set(told.values()) == {f"internal: uid {BOB} has no model NAME; "}


def test_nobody_takes_the_name_of_another_s_model(host_daemon: HostDaemon) -> None:
    before = answer(host_daemon, "alice:hers", 0)
    # Bob has models of all these names now.
    names = tuple(map(ModelName, ("hers", "declared", "alice:hers", f"{ALICE}:hers")))
    host_daemon._known.said[BOB] = replace(host_daemon._known.said[BOB], models=names)

    assert host_daemon.meaning((ModelName("alice:hers"),)) == (ALICE, ("hers",))
    assert host_daemon.meaning((ModelName("declared"),))[0] == 0
    assert answer(host_daemon, "alice:hers", 0) == before
    assert host_daemon.meaning((ModelName("bob:alice:hers"),)) == (BOB, ("alice:hers",))
    with pytest.raises(NotFound):
        host_daemon.meaning((ModelName("hers"),))


def test_nobody_gets_at_another_s_worker_by_a_name_that_is_a_number(
    host_daemon: HostDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bob's account is called as alice's number is."""
    asked: list[int] = []

    async def job(_self: HostDaemon, uid: int, _request: object) -> Job:
        asked.append(uid)
        raise XpucachedError("no such job")

    monkeypatch.setattr(HostDaemon, "job", job)
    host_daemon._people = {ALICE: "alice", BOB: str(ALICE)}

    assert answer(host_daemon, "hers", ALICE) == f"internal: uid {ALICE} has no model NAME; "
    routes = HostRoutes(host_daemon, "1", ConnectionLimits(), admin=False)
    with pytest.raises(XpucachedError, match="no such job"):
        asyncio.run(routes._call(requests.GetJob(id=JobId(f"{ALICE}.1")), Peer(1, ALICE, ALICE)))
    assert asked == [ALICE]
    # As a text it is the name, for an administrator's models as for everything else.
    assert host_daemon.find(str(ALICE), 0) == host_daemon.meaning((ModelName(f"{ALICE}:hers"),))[0] == BOB


def test_what_the_host_s_daemon_remembers_is_its_own(host_daemon: HostDaemon) -> None:
    before = os.umask(0)
    try:
        host_daemon._memory.keep(host_daemon._saved())
    finally:
        os.umask(before)

    file = host_daemon.settings.paths.state / "users.json"
    assert b"hers" in file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_name_that_looks_like_an_option_is_a_name() -> None:
    for name in ("--help", "--socket=/tmp/evil", "--of=root", "-q", "--"):
        options = arguments.parse(["--system", "prewarm", "--timeout", "10m", "--", name])
        assert options.models == [name]
        assert (options.socket, options.of, options.quiet) == (None, None, False)


def test_every_unit_that_hands_a_name_on_puts_it_behind_two_dashes() -> None:
    units = sorted((REPOSITORY / "systemd").rglob("*@.service"))
    lines = [line for unit in units for line in unit.read_text().splitlines()]
    found = [line for line in lines if line.startswith("ExecStart=") and "%" in line]

    assert len(units) == 3
    assert len(found) == 2
    # A worker's name is a number, wherever it stands: systemd has looked for a user of it before.
    assert [line for line in lines if line.startswith("ExecCondition=")] == ["ExecCondition=+xpucached --account %i"]
    # It has the user's HOME, and Python as pip installs it for all would read a site directory there.
    assert "Environment=PYTHONNOUSERSITE=1" in lines
    assert [line for line in lines if line.startswith("ExecStartPre=")] == [
        "ExecStartPre=+/usr/bin/install -d -o +%i -m 0700 /var/lib/xpucached-worker/%i",
        "ExecStartPre=+/usr/bin/rm -f /run/xpucached-worker/%i/denied",
    ]
    for line in found:
        assert line.endswith(" -- %i")


def test_a_mistyped_name_is_not_compared_with_the_models_of_everybody(
    host_daemon: HostDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def near(_typed: str, known: Sequence[str], **_: object) -> list[str]:
        compared.append(len(known))
        return []

    monkeypatch.setattr("difflib.get_close_matches", near)
    models = tuple(ModelName(f"net{number}") for number in range(1000))
    for uid in range(BOB, BOB + 20):
        host_daemon._people = {**host_daemon._people, uid: f"bob{uid}"}
        host_daemon._known.said[uid] = replace(host_daemon._known.said[ALICE], user=f"bob{uid}", uid=uid, models=models)
    host_daemon._owners = {ModelName(f"declared{number}"): 0 for number in range(9000)}
    for name in ("nothing", "nobody:nothing"):
        with pytest.raises(NotFound, match=name):
            host_daemon.meaning((ModelName(name),))
    assert max(compared) <= 2000
