"""A user floods the public socket of the host's daemon; administrators, and systemd's watchdog, do not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.system.test_units import SYSTEMD
from tests.unit.hostd.test_hostd import WorkerUnitsStub, make
from xpucached import codec
from xpucached.daemon import host_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.users import User

UNIT: Final = SYSTEMD / "xpucached.service"
PINGS: Final = 3
ANSWERS: Final = 7  # for each ping
PATIENCE: Final = 120.0

# What systemd does: the sockets are the first descriptors, and a variable says for whom they are.  Each is moved out of
# the way first: to be the number that it must become would leave it closed for who comes next.
START: Final = """
import fcntl, os, sys
given = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[2:]]
for number, one in enumerate(given, 3):
    os.dup2(one, number)
    os.close(one)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""

DAEMON: Final = """
import sys
from xpucached.daemon.main import main
sys.exit(main(["--system"]))
"""

# The worst that a request could do: the code that takes it does not return before somebody says so.
STILL: Final = f"""
import os
from xpucached.server.connection import Connection
take = Connection.data_received
def wait(self, data):
    if self.transport.get_extra_info("sockname").endswith("public"):
        os.write(1, b"stands still")
        os.read(0, 1)
    take(self, data)
Connection.data_received = wait
{DAEMON}"""

# Each connection is of one kind.  For every line that it reads, it prints how many have ended so far.
FLOOD: Final = """
import itertools, os, select, socket, sys
head = b"POST /v1/prewarm HTTP/1.1\\r\\nHost: localhost\\r\\n"
def sized(body):
    return head + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body
kinds = [
    ("a head without an end", head, b""),
    ("a body in single bytes", head + b"Content-Length: 1000000\\r\\n\\r\\n", b" "),
    ("chunks of a byte", head + b"Transfer-Encoding: chunked\\r\\n\\r\\n" + b"1\\r\\n \\r\\n" * 40000, b""),
    ("thousands of requests", b"GET /v1/host HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n" * 5000, b""),
    ("deep JSON", sized(b"[" * 900000), b""),
    ("large JSON", sized(b'{"models": [' + b"1," * 400000 + b"1]}"), b""),
]
turns, open_now, ended = itertools.cycle(kinds), {}, 0
for _ in iter(int, 1):
    if select.select([0], [], [], 0)[0]:
        if not os.read(0, 4096):
            break
        print(ended, flush=True)
    while len(open_now) < 150:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.setblocking(False)
        try:
            one.connect(sys.argv[1])
        except OSError:
            one.close()
            break
        open_now[one] = next(turns)[1:]
    came, free, _ = select.select(list(open_now), [one for one, parts in open_now.items() if any(parts)], [], 0.1)
    for one in {*came, *free}:
        first, again = open_now[one]
        try:
            if one in came and not one.recv(1 << 16):
                raise ConnectionError
            if one in free:
                open_now[one] = first[one.send(first or again):], again
        except BlockingIOError:
            pass
        except OSError:
            one.close()
            del open_now[one]
            ended += 1
"""


@dataclass(frozen=True, slots=True)
class Host:
    """The host's daemon, and what it tells systemd."""

    public: Path
    admin: Path
    process: subprocess.Popen[bytes]
    _told: socket.socket

    def hear(self, line: bytes) -> None:
        """Wait until systemd is told this, from now on."""
        while select.select([self._told], [], [], 0)[0]:
            self._told.recv(4096)
        self.wait(line)

    def wait(self, line: bytes) -> None:
        """Wait until systemd is told this, or was before."""
        while line not in self._told.recv(4096).split(b"\n"):
            assert self.process.poll() is None


@contextlib.contextmanager
def running(account: User, place: Path, program: str) -> Iterator[Host]:
    """Run the host's daemon as its unit does: an account without rights, two sockets, and somebody who hears it."""
    state = place / "state"
    state.mkdir()
    account.owns(state)
    public, admin, notify = place / "public", place / "admin", place / "notify"
    with contextlib.ExitStack() as stack:
        given = []
        for path, mode in ((public, 0o666), (admin, 0o600)):
            one = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            one.bind(str(path))
            path.chmod(mode)
            one.listen(64)
            given.append(one.fileno())
        told = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        told.bind(str(notify))
        notify.chmod(0o666)
        told.settimeout(PATIENCE)
        process = subprocess.Popen(
            account.words(START, program, *map(str, given)),
            env={
                **account.environment,
                "LISTEN_FDS": "2",
                "LISTEN_FDNAMES": "public:admin",
                "NOTIFY_SOCKET": str(notify),
                "WATCHDOG_USEC": "3000000",
                "XPUCACHED_PATHS_STATE": str(state),
                "XPUCACHED_PATHS_SOCKET": str(public),
                "RUNTIME_DIRECTORY": str(state),
                # It looks after nobody, so it takes nobody for a stranger.
                "XPUCACHED_WORKERS_HUMANS": "false",
            },
            pass_fds=given,
            cwd="/",
            user=account.uid,
            group=account.uid,
            extra_groups=[],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            host = Host(public, admin, process, told)
            host.wait(b"READY=1")
            yield host
        finally:
            told.close()  # what is told now, nobody hears, and nobody who tells it must wait
            process.terminate()
            try:
                _, errors = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                _, errors = process.communicate()
            print(errors.decode())
        assert process.returncode == 0


def ask(place: Path) -> None:
    """Ask how the host stands, and see that the answer says so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(PATIENCE)
        one.connect(str(place))
        one.sendall(b"GET /v1/host HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: one.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head, answer
    assert "users" in json.loads(body)["data"]


def ended(flood: subprocess.Popen[str]) -> int:
    """Ask the attacker how many connections have ended so far."""
    assert flood.stdin is not None
    assert flood.stdout is not None
    flood.stdin.write("\n")
    flood.stdin.flush()
    return int(flood.stdout.readline())


def test_administrators_and_systemd_do_not_wait_while_the_public_socket_is_flooded(
    attacker: User, victim: User, common: Path
) -> None:
    """What counts is that they come while the flood goes on, by its own count."""
    with running(victim, common, DAEMON) as host, attacker.start(*attacker.words(FLOOD, host.public)) as flood:
        try:
            before = ended(flood)
            for _ in range(PINGS):
                while ended(flood) < before + 10:
                    assert flood.poll() is None
                before = ended(flood)
                host.hear(b"WATCHDOG=1")
                for _ in range(ANSWERS):
                    ask(host.admin)
            while ended(flood) == before:
                assert flood.poll() is None
        finally:
            flood.communicate(timeout=PATIENCE)
        # And the public one is open to others again.
        ask(host.public)


def test_administrators_and_systemd_do_not_wait_for_a_request_that_never_ends(victim: User, common: Path) -> None:
    with running(victim, common, STILL) as host:
        assert host.process.stdin is not None
        assert host.process.stdout is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.connect(str(host.public))
            one.sendall(b"GET /v1/host HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert host.process.stdout.read(len("stands still")) == b"stands still"
            for _ in range(PINGS):
                host.hear(b"WATCHDOG=1")
                ask(host.admin)
            # Only now it goes on: had anybody waited for it, nobody would have come so far.
            host.process.stdin.write(b"\n")
            host.process.stdin.flush()
            one.settimeout(PATIENCE)
            assert b" 200 " in one.recv(1 << 16)


def test_all_bodies_that_may_be_under_way_fit_into_the_memory_of_the_unit(tmp_path: Path) -> None:
    (line,) = (one for one in UNIT.read_text().splitlines() if one.startswith("MemoryMax="))
    loop = asyncio.new_event_loop()
    try:
        one = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
        listeners = host_daemon._public(one, loop), host_daemon._admin(one)
    finally:
        loop.close()
    longest = codec.dumps({"models": ["u" * 32 + ":" + "n" * 80] * 1000, "force": False, "stale": False})

    assert line.endswith("M")
    for limits in (listener._limits for listener in listeners):
        assert limits.total * limits.body <= int(line[10:-1]) << 20 >> 2
        assert len(longest) < limits.body
