"""Act: starts a model that is a server, waits until it is ready, sends it requests, and stops it.

``server_runner.py --fd N`` reads an order, one JSON object, on stdin, and tells on the descriptor how it went.  It is
started with no more than the standard library.  What the server prints goes where ours would.  Whatever it leaves is
ended by who started us.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypedDict

    class Sent(TypedDict):
        """A request, as ``processes/serving.py`` has read it."""

        method: str
        url: str
        body: str | None
        headers: dict[str, str]

    class ServerOrder(TypedDict):
        """What is asked for."""

        token: str
        command: list[str]
        ready_url: str
        ready_line: str
        ready_timeout: float
        requests: list[Sent]


_TICK = 0.1  # seconds between questions whether it is ready
_ANSWER = 5.0  # seconds for an answer to that question
_STOP = 30.0  # seconds in which it may end by itself when it is told to
_PIECE = 1 << 16
_SHOWN = 300  # characters of an answer that is a refusal
_MOST = 1 << 30  # bytes of one answer
_SHELL = 128
_SOCKETS = 100_000  # lines of the kernel's table that are read
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_LISTENS = "0A"  # how it says that somebody listens
_WELL = range(200, 400)


class Unusable(Exception):
    """It cannot be used; says why, and with which exit status this is told."""

    def __init__(self, why: str, status: int = 1) -> None:
        super().__init__(why)
        self.status = status


class ReadyLine:
    """Passes on what a server prints, and hears a text in it."""

    def __init__(self, text: str) -> None:
        self.found = threading.Event()
        self._text = text.encode()

    def follow(self, source: int, sink: int) -> None:
        """Pass on all that is read, in a thread of its own."""
        threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: int, sink: int) -> None:
        tail = b""
        with contextlib.suppress(OSError):
            while data := os.read(source, _PIECE):
                if self._text in tail + data:
                    self.found.set()
                tail = (tail + data)[-len(self._text) :]
                while data:
                    data = data[os.write(sink, data) :]


def _places(urls: Iterable[str]) -> list[tuple[str, int]]:
    return list(dict.fromkeys(_place(url) for url in urls))


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    # Not asked of anybody: this name means one place.
    host = "127.0.0.1" if parts.hostname in {None, "localhost"} else str(parts.hostname)
    return host, parts.port or 80


def _refuse_others(places: Iterable[tuple[str, int]]) -> None:
    """Raise `Unusable` if somebody answers already: requests would be sent there, and prove nothing.

    And if there are no such sockets to be had here, as in a unit that allows none.
    """
    try:
        socket.socket().close()
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            why = "no program may use the network here, not even this host's own: a drop-in for the unit allows that"
            raise Unusable(f"{why} (RestrictAddressFamilies=)") from error
    for host, port in places:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_ANSWER):
            why = "something else listens there already: stop it, or let the model's server take another port"
            raise Unusable(f"{host}:{port}: {why}")


def listeners(place: tuple[str, int], asking: tuple[str, int] | None = None) -> set[int]:
    """Return the numbers of the users whose programs listen there.  Raises `Unusable` if that is unknown.

    With the end of a connection that is ``asking`` there, also of who has taken that: he need not listen any more.
    """
    host, port = place
    wanted = {(one, port) for one in (*_written(host), "0" * (32 if ":" in host else 8), "0" * 32)}
    ends = set[str]() if asking is None else {f"{one}:{asking[1]:04X}" for one in _written(asking[0])}
    found: set[int] = set()
    for table in _TABLES:
        try:
            with open(table, encoding="ascii") as lines:  # noqa: PTH123 - quick to load
                if not lines.readline():
                    raise ValueError(f"{table} is empty")  # noqa: TRY301 - as for all else that is wrong with it
                for number, line in enumerate(lines):
                    if number >= _SOCKETS:
                        raise ValueError(f"{table} has more than {_SOCKETS} lines")  # noqa: TRY301 - as above
                    fields = line.split()
                    address, _, port_there = fields[1].partition(":")
                    # Those that listen come first: who has closed that meanwhile has what he took.
                    if (fields[3] == _LISTENS or fields[2] in ends) and (address, int(port_there, 16)) in wanted:
                        found.add(int(fields[7]))
        except FileNotFoundError as error:
            # A kernel without IPv6 has no table of it.
            if table == _TABLES[0]:
                raise _unknown(place, error) from error
        except (OSError, ValueError, IndexError) as error:
            raise _unknown(place, error) from error
    return found


def _written(host: str) -> tuple[str, ...]:
    """Return how the kernel writes an address, of IPv4 in both tables."""
    if ":" in host:
        words: tuple[int, ...] = struct.unpack("=4I", socket.inet_pton(socket.AF_INET6, host))
    else:
        words = struct.unpack("=4I", b"\0" * 10 + b"\xff\xff" + socket.inet_aton(host))
    whole = "".join(f"{one:08X}" for one in words)
    return (whole,) if ":" in host else (whole, whole[-8:])


def _unknown(place: tuple[str, int], error: Exception) -> Unusable:
    host, port = place
    return Unusable(f"it is unknown whose program listens at {host}:{port}, so no request is sent there: {error}")


def _refuse_strangers(place: tuple[str, int], asking: tuple[str, int] | None = None) -> bool:
    """Return whether somebody listens there.  Raises `Unusable` if that, or who is ``asking``, may be another user's.

    Whoever took the port before the server could would be sent the requests, with what may be secret in them.  Root's
    programs are trusted, as with all.
    """
    found = listeners(place, asking)
    for uid in sorted(found - {0, os.geteuid()}):
        raise Unusable(f"a program of user {uid} listens where the model's server should")
    return bool(found)


def _asked(method: str, url: str, body: bytes | None, headers: dict[str, str], patience: float | None) -> str:
    """Send a request, and read its answer to the end; return what is wrong with that, empty if nothing is."""
    host, port = _place(url)
    parts = urlsplit(url)
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    connection = http.client.HTTPConnection(host, port, timeout=patience)
    try:
        connection.connect()
        # Only now: who listened a moment ago may have gone, and somebody else have taken the port.
        if not _refuse_strangers((host, port), connection.sock.getsockname()[:2]):
            return "no answer: nobody listens there"
        connection.request(method, target, body, {"Connection": "close", **headers})
        answer = connection.getresponse()
        first = b""
        size = 0
        while data := answer.read1(_PIECE):
            first = first or data[:_SHOWN]
            size += len(data)
            if size > _MOST:
                return f"its answer has more than {_MOST >> 20} MiB"
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error}" if str(error) else f"no answer: {type(error).__name__}"
    finally:
        connection.close()
    if answer.status in _WELL:
        return ""
    return f"{answer.status} {answer.reason}: {first.decode('utf-8', 'replace')}"


def _ended(server: subprocess.Popen[bytes], when: str) -> None:
    """Raise `Unusable` if it has ended."""
    status = server.poll()
    if status is not None:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        # By a signal, as a shell tells of it: whether it crashes with the cache on is found out by that.
        told = 1 if status >= 0 else _SHELL - status
        raise Unusable(f"it ended {when} ({how}); a server has to stay in the foreground", told)


def _await(server: subprocess.Popen[bytes], order: ServerOrder, line: ReadyLine | None) -> None:
    """Return when it is ready.  Raises `Unusable` if it ends, or is late."""
    spent, last, wrong = 0.0, time.monotonic(), ""
    while True:
        _ended(server, "before it was ready")
        if line is not None:
            if line.found.wait(_TICK):
                return
        elif not _refuse_strangers(_place(order["ready_url"])):
            wrong = "no answer: nobody listens there"
            time.sleep(_TICK)
        elif not (wrong := _asked("GET", order["ready_url"], None, {}, _ANSWER)):
            # It may be somebody else's answer, if it has just ended.
            _ended(server, "before it was ready")
            return
        else:
            time.sleep(_TICK)
        now = time.monotonic()
        # Who stood still meanwhile, because we were paused, has not been slow.
        spent, last = spent + min(now - last, _ANSWER + 1), now
        if spent > order["ready_timeout"]:
            after = f"; {order['ready_url']}: {wrong}" if wrong else ""
            raise Unusable(f"it was not ready after {order['ready_timeout']:g} s{after}")


def _use(order: ServerOrder) -> None:
    server: subprocess.Popen[bytes] | None = None
    line = ReadyLine(order["ready_line"]) if order["ready_line"] else None
    requests = order["requests"]
    places = _places([*filter(None, [order["ready_url"]]), *(one["url"] for one in requests)])
    _refuse_others(places)
    try:
        server = subprocess.Popen(  # noqa: S603 - the command is the model's, registered by who may run it
            order["command"],
            stdin=subprocess.DEVNULL,
            stdout=None if line is None else subprocess.PIPE,
            stderr=None if line is None else subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Unusable(f"{order['command'][0]} could not be started: {error}") from error
    try:
        if line is not None and server.stdout is not None and server.stderr is not None:
            line.follow(server.stdout.fileno(), 1)
            line.follow(server.stderr.fileno(), 2)
        _await(server, order, line)
        for host, port in places:
            if not _refuse_strangers((host, port)):
                raise Unusable(f"nobody listens at {host}:{port}, where requests were to be sent")
        for number, one in enumerate(requests, 1):
            body = one["body"].encode() if one["body"] is not None else None
            wrong = _asked(one["method"], one["url"], body, one["headers"], None)
            if wrong:
                time.sleep(_TICK)
                _ended(server, f"while it was sent request {number}")
                raise Unusable(f"request {number}, {one['method']} {one['url']}: {wrong}")
        _ended(server, "before it was told to")
    finally:
        _stop(server)


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Tell it, and all of its group, to end; who does not is ended."""
    for number, patience in ((signal.SIGTERM, _STOP), (signal.SIGKILL, _STOP)):
        with contextlib.suppress(OSError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(patience)
            return


def main() -> int:
    """Do what the order says, and tell how it went."""
    parser = argparse.ArgumentParser(prog="server_runner")
    parser.add_argument("--fd", type=int, required=True)
    given = parser.parse_args()
    os.set_inheritable(given.fd, False)  # noqa: FBT003 - its only argument
    order: ServerOrder = json.load(sys.stdin)
    report, status = {"outcome": "", "problem": ""}, 0
    try:
        _use(order)
    except Unusable as error:
        report = {"outcome": "failed", "problem": str(error)}
        status = error.status
    line = json.dumps({"token": order["token"], "report": report}).encode() + b"\n"
    view = memoryview(b"\n" + line)
    while view:
        view = view[os.write(given.fd, view) :]
    return status


if __name__ == "__main__":
    sys.exit(main())
