"""A daemon that ends in the midst of each command, and comes back or not: a right answer, or a clear refusal.

The commands run in the test's own process, against a real server that is ended at each of their questions: before or
after it has done what was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from tests.support.command_line import run
from xpucached import codec
from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.cli import commands, progress
from xpucached.domain.jobs import Event, Job, JobState
from xpucached.domain.reports import ScanReport
from xpucached.errors import Restarted, Unavailable
from xpucached.service.jobs import Handle, Jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.api.endpoints import Request

REF: Final = api_stub.make_entry(1).entry.id.ref

LINES: Final = {
    "status": "status",
    "ls": "ls",
    "show": f"show {REF}",
    "stores": "stores",
    "df": "df",
    "devices": "devices",
    "model list": "model list",
    "model show": "model show resnet",
    "model history": "model history resnet",
    "model add": "model add net --directory / -- /bin/true",
    "model remove": "model remove resnet",
    "trash list": "trash list",
    "trash restore": "trash restore --all",
    "trash empty": "trash empty -y",
    "events": "events",
    "runs": "runs",
    "usage": "usage",
    "report": "report --html REPORT",
    "web": "",  # it serves until somebody ends it, and asks for each page anew
    "top": "top --once",
    "metrics": "metrics",
    "seen": "seen resnet",
    "why": "why resnet",
    "env": "env resnet",
    "config show": "config show",
    "version": "version",
    "prewarm": "prewarm resnet",
    "evict": "evict",
    "replay": "replay",
    "verify": "verify",
    "doctor": "doctor",
    "scan": "scan",
    "jobs": "jobs",
    "driver-changed": "driver-changed",
}
"""A command line for each command."""

CHANGES: Final = frozenset({"model add", "model remove", "trash restore", "trash empty", "evict"})
"""What may not be asked for twice."""
FOLLOWED: Final = frozenset({"prewarm", "replay", "verify", "doctor", "scan"})
"""What is begun anew by the daemon that comes after."""


class Standin(api_stub.Standin):
    """A daemon that knows no job of the one before, and gives its own jobs the same numbers."""

    lives = 0

    def _begin(self, kind: str) -> Job:
        job = replace(super()._begin(kind), created=api_stub.NOW + timedelta(seconds=self.lives))
        self.begun[job.id] = job
        return job


class Door:
    """The socket of a daemon that ends at one question, and is there again for the next ones, or never.

    What is asked goes on to a server.  Between two lives the socket is away, as without socket activation, or it stays
    there (``kept``), as with it.
    """

    def __init__(self, path: Path, server: api_stub.Running, *, kept: bool, after: bool, back: bool) -> None:
        self.path = path
        self._server = server
        self._kept = kept
        self._after = after
        self._back = back
        self.at = -1  #: at which question it ends, before it is done or after that
        self.asked: list[bytes] = []
        self._peers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._changing = threading.Lock()

    def _listen(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(os.fspath(self.path))
        self._socket.listen(16)
        self._begin(self._accept, self._socket)

    def _begin(self, work: Callable[[socket.socket], None], with_: socket.socket) -> None:
        self._threads.append(threading.Thread(target=work, args=(with_,)))
        self._threads[-1].start()

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changing:
            self._close()
            self._hang_up()
        for thread in self._threads:
            thread.join()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _hang_up(self) -> None:
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listening.accept()
                with self._changing:
                    self._peers.append(peer)
                    self._begin(self._talk, peer)

    def _talk(self, peer: socket.socket) -> None:
        """Pass on what is asked over one connection, until the client or this daemon ends."""
        with contextlib.suppress(OSError), peer, peer.makefile("rb") as questions:
            while question := _message(questions):
                with self._changing:
                    ends = len(self.asked) == self.at
                    self.asked.append(question)
                answer = b"" if ends and not self._after else self._ask(question)
                if ends:
                    with self._changing:
                        self._restart()
                    return
                peer.sendall(answer)
                if b"connection: close" in question.lower():
                    return

    def _ask(self, question: bytes) -> bytes:
        with self._server.connect() as there, there.makefile("rb") as answers:
            there.sendall(question)
            return _message(answers)

    def _restart(self) -> None:
        """End with all connections, and begin again, if it comes back."""
        self._server.service.begun.clear()
        Standin.lives += 1
        if not (self._kept and self._back):
            self._close()
        self._hang_up()
        if self._back and not self._kept:
            self._listen()


def _message(stream: BinaryIO) -> bytes:
    """Read a question or an answer with its body; empty at the end."""
    lines = [stream.readline()]
    while lines[-1].strip():
        lines.append(stream.readline())
    size = sum(int(one.split(b":")[1]) for one in lines if one.lower().startswith(b"content-length:"))
    return b"".join(lines) + stream.read(size)


@pytest.fixture
def daemon() -> Iterator[api_stub.Running]:
    with tempfile.TemporaryDirectory() as place, api_stub.running(Path(place), service=Standin()) as made:
        yield made


def test_there_is_a_line_for_each_command() -> None:
    assert LINES.keys() == commands.COMMANDS.keys()


ENDS: Final = [
    pytest.param(kept, after, back, id=f"{'kept' if kept else 'away'}-{'after' if after else 'before'}-{back}")
    for kept, after, back in ((True, True, True), (True, False, True), (False, True, True), (False, False, False))
]


@pytest.mark.parametrize(("kept", "after", "back"), ENDS)
def test_each_command_answers_rightly_or_says_that_the_daemon_ended(
    daemon: api_stub.Running,
    short_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    kept: bool,
    after: bool,
    back: bool,
) -> None:
    """Whichever of its questions the daemon ends at; what changes something is never asked for twice."""
    monkeypatch.setenv("XPUCACHED_SOCKET", str(short_dir / "s"))
    monkeypatch.setattr(progress, "_AWAY", 30.0 if back else 0.0)
    monkeypatch.setattr(progress, "_PAUSE", 0.02)
    known = dict(daemon.service.registered)

    def told(line: str, at: int) -> tuple[int, str, str, list[bytes]]:
        daemon.service.registered = dict(known)
        daemon.service.begun.clear()
        with Door(short_dir / "s", daemon, kept=kept, after=after, back=back) as door:
            door.at = at
            status, out, err = run(capsys, *line.replace("REPORT", str(short_dir / "r")).split())
        return status, out, err, [one.split(b" HTTP", 1)[0] for one in door.asked]

    for verb, line in LINES.items():
        if not line:
            continue
        status, out, _, asked = told(line, -1)
        assert asked, line
        for at, question in enumerate(asked):
            said = f"{line}, at {question!r}"
            now, shown, err, again = told(line, at)
            assert "Traceback" not in err, said
            changes = [one for one in again if not one.startswith(b"GET")]
            if now == Unavailable.exit != status:
                assert err.count("xpucachectl: ") >= 1, said
                assert "hint: " in err, said
                assert "ended" in err or "no daemon answers" in err, said
            elif verb != "version" or "no daemon answers" not in shown:
                # The same as if nothing had happened.
                assert (now, shown) == (status, out), (said, err)
            if verb not in FOLLOWED:
                assert len(changes) == len(set(changes)), (said, again)
            if verb in CHANGES and (not question.startswith(b"GET") or question.startswith(b"GET /v1/jobs/")):
                assert now == Unavailable.exit, said
            if verb in FOLLOWED and question.startswith(b"GET /v1/jobs/"):
                assert now == (status if back else Unavailable.exit), said
                assert ("begun anew" in err) is back, said


def test_a_job_of_the_same_name_is_not_taken_for_the_one_that_was_begun(
    daemon: api_stub.Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start numbers of jobs begin anew, and what the daemon does by itself has them first."""
    monkeypatch.setenv("XPUCACHED_SOCKET", str(daemon.path))
    client = Client(daemon.path)
    with contextlib.closing(client):
        begun = client.call(requests.EvictEntries()).value
        assert progress.asked(client, begun, 0.0).value.id == begun.id
        daemon.service.begun.clear()
        Standin.lives += 1
        other = client.call(requests.ScanStores()).value
        assert other.id == begun.id
        with pytest.raises(Restarted):
            progress.asked(client, begun, 0.0)
        with pytest.raises(Restarted):
            progress.wait(client, requests.EvictEntries(), begun, quiet=True)
        # What comes to the same is begun anew.
        scanned = progress.wait(client, requests.ScanStores(), begun, quiet=True).value
        assert (scanned.kind, scanned.state) == ("scan", JobState.DONE)
    assert "begun anew" in capsys.readouterr().err


def test_who_says_how_long_to_wait_waits_as_long_for_a_daemon_that_is_slow_to_come_back(
    daemon: api_stub.Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host the start of a worker takes long, and the unit that waits for a model has time."""
    monkeypatch.setattr(progress, "_AWAY", 0.0)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    call, away = Client.call, 0

    def calling(client: Client, request: Request[object]) -> object:
        nonlocal away
        away -= away > 0
        if away:
            raise Unavailable("it starts")
        return call(client, request)

    with contextlib.closing(Client(daemon.path)) as client:
        begun = client.call(requests.ScanStores()).value
        monkeypatch.setattr(Client, "call", calling)
        away = 20
        assert progress.wait(client, requests.ScanStores(), begun, quiet=True, limit=600.0).value.id == begun.id
        away = 20
        with pytest.raises(Restarted):
            progress.wait(client, requests.ScanStores(), begun, quiet=True)
    assert capsys.readouterr().err.count("went away") == 2


def test_who_follows_events_goes_on_with_the_daemon_that_comes_after(
    daemon: api_stub.Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [codec.dumps(codec.to_json(Event(at, api_stub.NOW, "evicted", f"no. {at}", {}))).decode() for at in (1, 2)]
    asked: list[int] = []

    def follow(_: Client, since: int) -> Iterator[str]:
        asked.append(since)
        if len(asked) > len(lines):
            raise Unavailable("no daemon answers")
        return iter(lines[since : since + 1])

    monkeypatch.setenv("XPUCACHED_SOCKET", str(daemon.path))
    monkeypatch.setattr(Client, "follow", follow)
    status, out, err = run(capsys, "events", "-f")
    assert (status, asked) == (Unavailable.exit, [0, 1, 2])
    assert [f"no. {at}" in line for at, line in enumerate(out.splitlines(), 1)] == [True, True]
    assert err.count("the daemon went away; waiting for it") == 2


def test_a_job_that_ends_with_its_daemon_was_not_cancelled_by_somebody() -> None:
    """Where the daemon ends in order, who waits still gets an answer: it says so, too."""

    async def end() -> Job:
        jobs = Jobs(lambda: api_stub.NOW)

        async def work(_: Handle) -> ScanReport:
            await asyncio.Event().wait()
            raise AssertionError

        job = jobs.start("scan", work)
        await asyncio.sleep(0)
        await jobs.stop()
        return jobs.job(job.id)

    job = asyncio.run(end())
    assert (job.state, job.error.code if job.error else None) == (JobState.CANCELLED, Restarted.code)
