"""What a user's daemon gives root comes a byte at a time, or the way to it never ends: root waits for neither."""

from __future__ import annotations

import os
import queue
import threading
from argparse import Namespace
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import silent_filesystem
from xpucached import sockets
from xpucached.api import client as api_client
from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.cli import connect, inspecting
from xpucached.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.users import User

PATIENCE: Final = 60.0
"""Seconds after which somebody is said to wait for ever."""

# For each connection it answers in 20 seconds: only who does not give up waits so long.
DRIPS: Final = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
while True:
    client, _ = listener.accept()
    client.recv(1 << 16)
    follows = sys.argv[2] == "follow"
    body = b'{"data": null}' + b" " * 186 + b"\\n"
    length = b"" if follows else b"Content-Length: %d\\r\\n" % len(body)
    client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\n" + length + b"\\r\\n")
    try:
        for byte in body:
            client.sendall(bytes([byte]))
            time.sleep(0.1)
    except OSError:
        pass
    client.close()
"""


@pytest.mark.parametrize("follow", [False, True], ids=["answer", "events"])
def test_who_answers_a_byte_at_a_time_does_not_hold_root(attacker: User, common: Path, *, follow: bool) -> None:
    path = common / "theirs" / "s"
    path.parent.mkdir()
    attacker.owns(path.parent)
    with attacker.start(attacker.program, "-c", DRIPS, path, "follow" if follow else "answer") as drips:
        try:
            assert drips.stdout is not None
            assert drips.stdout.readline() == "listens\n"
            with (
                Client(path, owner=attacker.uid, strict=True, patience=2.0) as client,
                pytest.raises(Unavailable, match="does not answer"),
            ):
                next(client.follow(0)) if follow else client.call(requests.GetHello())
        finally:
            drips.kill()


def test_the_way_to_a_user_s_daemon_that_never_answers_does_not_hold_root(
    attacker: User, common: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = common / "theirs"
    theirs.mkdir()
    attacker.owns(theirs)
    way = theirs / "xpucached/xpucached.sock"
    monkeypatch.setattr(sockets, "own_path", lambda _uid: str(way))
    monkeypatch.setattr(sockets, "PUBLIC", str(tmp_path / "none"))
    monkeypatch.setattr(sockets, "ADMIN", str(tmp_path / "none"))
    monkeypatch.delenv("XPUCACHED_SOCKET", raising=False)
    monkeypatch.setattr(api_client, "_WAY", 1.0)
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()

    def ask() -> None:
        runs = connect._runs_one(attacker.uid)
        with Client(way, owner=attacker.uid, strict=True) as client, pytest.raises(Unavailable):
            client.call(requests.GetHello())
        # Whoever became root may have kept that user's variables.
        listens = inspecting._somebody_listens(Namespace(socket=None))
        answers.put((runs, "--user" in connect._host()._hint, listens))

    with silent_filesystem.mounted(tmp_path / "away") as away:
        (theirs / "xpucached").symlink_to(away)
        os.lchown(theirs / "xpucached", attacker.uid, attacker.uid)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))
        # In a thread: the kernel lets none go that waits there, until the file system is no more.
        asking = threading.Thread(target=ask)
        asking.start()
        try:
            assert answers.get(timeout=PATIENCE) == (False, False, False)
            # A process does not end while a thread of it waits there, not even by a signal.
            asking.join(PATIENCE)
            assert not [one for one in threading.enumerate() if one is asking or one.name == "patience"]
        except queue.Empty:
            pytest.fail("root waits for ever")
        finally:
            monkeypatch.undo()
    asking.join()
