"""A user's daemon gives root a byte of its answer now and then: root waits for it no longer than for any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.users import User

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
