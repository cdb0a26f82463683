"""Ask a daemon over its socket, with nothing of ours in between but the formats."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE: Final = 180.0


class Refusal(AssertionError):
    """The daemon answered that it will not."""


NO_ANSWER: Final = (Refusal, OSError, http.client.HTTPException)


def values(data: object) -> dict[str, object]:
    """Take an answer for what it must be."""
    assert isinstance(data, dict), data
    return data


def rows(data: object) -> list[dict[str, object]]:
    """Take an answer for a list of such."""
    assert isinstance(data, list), data
    return data


class SocketConnection(http.client.HTTPConnection):
    """The daemon's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, target: str, body: object = None) -> object:
    """Return the data of an answer.  Raises `Refusal`, or what there was instead of an answer."""
    with closing(SocketConnection(path)) as connection:
        text = None if body is None else json.dumps(body)
        connection.request(method, target, text, {"Content-Type": "application/json"} if text else {})
        response = connection.getresponse()
        answer = json.loads(response.read() or b'{"data": null}')
    if "error" in answer:
        raise Refusal(f"{method} {target}: {answer['error']}")
    return answer["data"]
