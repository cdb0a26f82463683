"""Observe: the requests that are sent to a model that is a server: a file with one JSON object a line."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from typing import Final
from urllib.parse import urljoin

from msgspec import Struct, field

from xpucached import messages, reading, state_files
from xpucached.domain.workloads import is_loopback

_LARGEST: Final = 4 << 20
"""Bytes of a file."""
_MANY: Final = 10_000
"""Requests of a file."""
_METHOD: Final = re.compile(r"[A-Z]{1,20}", re.ASCII)
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,100}", re.ASCII)
_PATH: Final = re.compile(r"[!-~]{1,8192}", re.ASCII)
_KEYS: Final = ("method", "path", "body", "headers")


class BadRequestsFile(ValueError):
    """A file of requests cannot be used; says where and why."""


class ServerRequest(Struct, frozen=True):
    """One request."""

    method: str
    url: str
    body: str | None
    headers: dict[str, str] = field(default_factory=dict)


Ask = Callable[[object, Callable[[], bytes]], bytes]
"""Gives what a question about a place gives; `deadlines.ask` for one."""


def at_once(_place: object, question: Callable[[], bytes]) -> bytes:
    """Ask it as it is, for who can be interrupted."""
    return question()


def read(path: str, base: str, ask: Ask = at_once) -> tuple[ServerRequest, ...]:
    """Read the requests of a file; ``base`` is the URL that their paths are relative to, empty if there is none.

    Raises `BadRequestsFile`, also if ``ask`` says that its file system does not answer.  Blocks.
    """
    try:
        content = ask(path, lambda: _content(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise error if isinstance(error, BadRequestsFile) else BadRequestsFile(f"{path}: {why}") from error
    if len(content) > _LARGEST:
        raise BadRequestsFile(f"{path}: a file of requests has at most {_LARGEST >> 20} MiB")
    found: list[ServerRequest] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        if len(found) >= _MANY:
            raise BadRequestsFile(f"{path}: more than {_MANY} requests")
        try:
            found.append(_request(line, base))
        except (messages.BadMessage, ValueError) as error:
            raise BadRequestsFile(f"{path}:{number}: {error}") from error
    if not found:
        raise BadRequestsFile(f"{path}: there is no request in it; expected one JSON object a line")
    return tuple(found)


def _content(path: str) -> bytes:
    descriptor = reading.opened(path)
    with state_files.stream(descriptor) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadRequestsFile(f"{path}: expected a file of requests")
        return file.read(_LARGEST + 1)


def _request(line: bytes, base: str) -> ServerRequest:
    said = messages.members(messages.parse(line, largest=_LARGEST))
    unknown = sorted(set(said) - set(_KEYS))
    if unknown:
        raise ValueError(f"unknown key {unknown[0][:40]!r}; known are: {', '.join(_KEYS)}")
    path, body, headers = said.get("path"), said.get("body"), said.get("headers", {})
    if not isinstance(path, str) or _PATH.fullmatch(path) is None:
        raise ValueError('expected a path, such as "/v1/completions"')
    url = path if path.startswith("http://") else urljoin(base, path) if base and path.startswith("/") else ""
    if not url:
        raise ValueError("expected a path that begins with /, or without ready_url a whole URL")
    if not is_loopback(url):
        raise ValueError("expected a URL on this host, http://127.0.0.1:PORT/…: a model's requests go nowhere else")
    method = said.get("method", "GET" if body is None else "POST")
    if not isinstance(method, str) or _METHOD.fullmatch(method) is None:
        raise ValueError("method: expected a word such as GET or POST")
    if not isinstance(headers, dict):
        raise ValueError("headers: expected an object")  # noqa: TRY004 - it is what somebody wrote
    sent: dict[str, str] = {}
    for name, text in headers.items():
        if _HEADER.fullmatch(name) is None or not isinstance(text, str) or not (text.isascii() and text.isprintable()):
            raise ValueError("headers: expected names and texts in ASCII")
        sent[name] = text
    if body is not None and not isinstance(body, str):
        sent.setdefault("Content-Type", "application/json")
        body = json.dumps(body)
    return ServerRequest(method, url, body, sent)
