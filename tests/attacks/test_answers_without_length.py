"""Who answers in a daemon's place says how long the answer is, in ways that a library believes."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from xpucached.api import client as reading
from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.errors import XpucachedError

if TYPE_CHECKING:
    from pathlib import Path

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SENT = 64 << 20


def answering(place: Path, head: bytes, taken: list[int]) -> threading.Thread:
    """Answer one question by this, and then by bytes for as long as anybody reads them."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(place))
    listening.listen(1)

    def answer() -> None:
        with listening, listening.accept()[0] as one, contextlib.suppress(OSError):
            one.recv(1 << 16)
            one.sendall(head)
            for _ in range(SENT >> 16):
                one.sendall(b"x" * (1 << 16))
                taken.append(1 << 16)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "head",
    [
        CHUNKED + b"-1\r\n",
        CHUNKED + b"-5\r\n",
        CHUNKED + b"fffffff\r\n",
        b"HTTP/1.1 200 OK\r\nX: ",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
    ids=["negative", "nonsense", "huge", "head", "continued"],
)
@pytest.mark.parametrize("follow", [False, True])
def test_no_answer_is_read_beyond_its_bound(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, *, follow: bool
) -> None:
    monkeypatch.setattr(reading, "_LARGEST", 1 << 20)
    monkeypatch.setattr(reading, "_LONGEST_LINE", 1 << 20)
    taken: list[int] = []
    thread = answering(short_dir / "s", head, taken)
    with Client(short_dir / "s", largest=1 << 20) as client, pytest.raises(XpucachedError):
        next(client.follow(0)) if follow else client.call(requests.GetHello())
    thread.join(30)

    # And what fits into the two sockets.
    assert sum(taken) < 4 << 20
