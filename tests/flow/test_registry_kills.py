"""Killed at any of its calls, a push leaves what its tag named, and a pull nothing or all; the next does the rest."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import bundles, forks, registries
from tests.support.bundles import content
from xpucached.bundling import registries as bundling
from xpucached.domain.bundles import PullBundle, PushBundle, RegistryAccess
from xpucached.registry import client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KILLS: Final = int(os.environ.get("XPUCACHED_REGISTRY_KILLS", "50"))
"""Of pushes, and of pulls.  With those of exports (`test_exporting.py`) and imports (`test_importing.py`) it is 200."""

POINTS: Final = {
    *("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"),
    *("socket.connect", "http.client.send", "tests.read", "tests.wrote"),
}
"""Calls before which a program may die, as Python tells of them; the last two are told by us."""


class Server:
    """A registry in a process of its own: nobody forks a process in which others' threads are at work."""

    def __init__(self, place: Path) -> None:
        (ours, self._asks), (self._hears, theirs) = os.pipe(), os.pipe()
        self._pid = forks.copy(lambda: self._serve(ours, theirs, (self._asks, self._hears)))
        os.close(ours)
        os.close(theirs)
        self.host = self.ask(b"begin")
        registries.log_in(place / ".docker", self.host)

    def _serve(self, orders: int, answers: int, others: tuple[int, int]) -> None:
        for one in others:
            os.close(one)
        with registries.small() as registry:
            held: dict[str, dict[str, object]] = {}
            while order := os.read(orders, 1):
                if order == b"k":
                    held = {name: dict(getattr(registry, name)) for name in ("blobs", "manifests", "uploads")}
                if order == b"r":
                    for name, what in held.items():
                        setattr(registry, name, dict(what))
                os.write(answers, registry.host.encode() + b"\n")

    def ask(self, order: bytes) -> str:
        """Have it keep what it has now (``keep``), or have that again (``return``); give where it is."""
        os.write(self._asks, order[:1])
        return os.read(self._hears, 100).decode().strip()

    def close(self) -> None:
        os.close(self._asks)
        os.close(self._hears)
        assert os.waitpid(self._pid, 0)[1] == 0


@pytest.fixture
def server(home: Path) -> Iterator[Server]:
    with contextlib.closing(Server(home)) as one:
        yield one


def killed(work: Callable[[], object], at: int, told: Path) -> bool:
    """Do it in a copy of this process that kills itself before its ``at``-th call; give whether there were so many.

    0: it tells how many it makes.
    """

    def run() -> None:
        count = 0

        def meet(event: str, _: object) -> None:
            nonlocal count
            if event in POINTS:
                count += 1
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        read = http.client.HTTPResponse.read

        def reading(self: http.client.HTTPResponse, amount: int | None = None) -> bytes:
            sys.audit("tests.read")
            data = read(self, amount)
            sys.audit("tests.wrote")
            return data

        setattr(http.client.HTTPResponse, "read", reading)  # noqa: B010 - of this copy alone
        sys.addaudithook(meet)
        work()
        if not at:
            told.write_text(str(count), encoding="ascii")

    pid = forks.copy(run)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in {0, -signal.SIGKILL}
    return status != 0


def moments(work: Callable[[], object], told: Path) -> Iterator[int]:
    """Yield before which of its calls it shall be killed; each once, before any comes again."""
    assert not killed(work, 0, told)
    count = int(told.read_text(encoding="ascii"))
    told.unlink()
    assert count > 20
    draw = random.Random(20)  # noqa: S311 - which moments
    left: list[int] = []
    for _ in range(KILLS):
        left = left or draw.sample(range(1, count + 1), count)
        yield left.pop()


@pytest.mark.flow
def test_no_moment_leaves_a_broken_state(
    server: Server, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A layer goes in several pieces.
    monkeypatch.setattr(client, "_CHUNK", 150)
    plain = bundles.tar(bundles.good())
    other = bundles.forge(tmp_path / "other", bundles.packed(plain), bundles.facts(plain, made_by="x"))
    known = [content(one) for one in (bundle, other)]
    assert known[0] != known[1]
    access = RegistryAccess(plain_http=True)
    place, dest, told = f"{server.host}/kills:v1", tmp_path / "dest", tmp_path / "told"

    def push(which: Path) -> None:
        bundling.push(PushBundle(which, place, access), lambda *_: None)

    def pull() -> None:
        bundling.pull(PullBundle(place, dest, access), lambda *_: None)

    def pulled() -> dict[str, bytes]:
        pull()
        found = content(dest)
        shutil.rmtree(dest)
        return found

    push(other)
    assert pulled() == known[1]
    server.ask(b"keep")
    found, dead = [], 0
    for at in moments(lambda: push(bundle), told):
        server.ask(b"return")
        dead += killed(lambda: push(bundle), at, told)
        found.append(pulled())
        assert found[-1] in known
    assert known[1] in found
    push(bundle)
    assert pulled() == known[0]

    left = 0
    for at in moments(pull, told):
        shutil.rmtree(dest, ignore_errors=True)
        dead += killed(pull, at, told)
        if dest.exists():
            assert content(dest) == known[0]
            shutil.rmtree(dest)
        else:
            left += 1
        assert pulled() == known[0]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "other"]
    assert left
    assert dead > KILLS
