"""`server.metrics_port` on real ports: what it answers, what it refuses, when it is open, and what it may cost."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import http.client
import json
import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from xpucached.api import looking
from xpucached.errors import HostError
from xpucached.render import metrics
from xpucached.server import metrics_port
from xpucached.server.connection import ConnectionLimits
from xpucached.server.metrics_port import NO_PORT_HERE, OFF, MetricsPort

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
ADDRESSES = ("127.0.0.1", "[::1]")


class Counter:
    """Takes figures, which say how often that was done, and in which thread."""

    def __init__(self) -> None:
        self.times = 0
        self.threads: set[int] = set()
        self.error: Exception | None = None
        self.takes = 0.0
        self.began = asyncio.Event()

    async def figures(self, asked: looking.GetMetrics) -> str:
        """Take them."""
        self.times += 1
        self.began.set()
        self.threads.add(threading.get_ident())
        await asyncio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return f"{asked.format} {self.times}\n"


def free(host: str = "127.0.0.1") -> int:
    """Return a port at which nobody listens."""
    with metrics_port.bind((host, 0)) as one:
        return int(one.getsockname()[1])


def ask(listen: str, path: str = "/v1/metrics", method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Ask as Prometheus does; return the status, the type, and what there is."""
    host, _, port = listen.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=20)
    with contextlib.closing(connection):
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("content-type", ""), answer.read().decode()


def during(work: Callable[[MetricsPort, Counter], Awaitable[None]], limits: ConnectionLimits | None = None) -> None:
    """Do something with a port, and see that its thread goes."""
    counter = Counter()

    async def live() -> None:
        port = MetricsPort(counter.figures, limits=limits)
        try:
            await work(port, counter)
        finally:
            await port.stop()

    asyncio.run(live())
    assert "public" not in {one.name for one in threading.enumerate()}


@pytest.mark.parametrize("host", ADDRESSES)
def test_the_port_gives_figures_and_nothing_else(host: str) -> None:
    listen = f"{host}:{free(host.strip('[]'))}"
    port = listen.rpartition(":")[2]

    def look() -> None:
        assert ask(listen) == (200, metrics.TEXT, "text 1\n")
        accept = "application/openmetrics-text; version=1.0.0"
        assert ask(listen, Accept=accept) == (200, metrics.OPENMETRICS, "openmetrics 2\n")
        assert ask(listen, "/v1/metrics?format=openmetrics") == (200, metrics.OPENMETRICS, "openmetrics 2\n")
        assert ask(listen, method="HEAD") == (200, metrics.TEXT, "")
        for path in (
            "/",
            "/metrics",
            "/v1",
            "/v1/status",
            "/v1/overview",
            "/v1/models",
            "/v1/openapi.json",
            "//v1/metrics",
        ):
            status, _, text = ask(listen, path)
            assert (status, json.loads(text)["error"]["code"]) == (404, "not-found"), path
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            assert ask(listen, method=method)[0] == 405, method
        assert ask(listen, "/v1/metrics?format=xml")[0] == 400
        for name in ("localhost", "LOCALHOST", "127.0.0.1", "[::1]"):
            assert ask(listen, Host=f"{name}:{port}")[0] == 200, name
        # A page whose name was made to mean this host, another port, and no port at all.
        for name in (
            f"example.com:{port}",
            "localhost",
            "127.0.0.1",
            f"localhost:{int(port) - 1}",
            f"0.0.0.0:{port}",
            "",
        ):
            assert ask(listen, Host=name)[0] == 403, name
        for header in ("Origin", "Sec_Fetch_Site", "Sec_Fetch_Mode"):
            assert ask(listen, **{header: "same-origin"})[0] == 403, header

    async def work(door: MetricsPort, counter: Counter) -> None:
        assert await door.take(listen) is None
        await asyncio.to_thread(look)
        # What strangers send is read in another thread, and the figures are taken in the daemon's own.
        assert counter.threads == {threading.get_ident()}

    during(work)


def test_however_many_ask_the_figures_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listen = f"127.0.0.1:{free()}"

    async def work(door: MetricsPort, counter: Counter) -> None:
        counter.takes = 0.1
        assert await door.take(listen) is None
        # Some hang up at once: that is no way to have them taken again.
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", int(listen.rpartition(":")[2]))) as client:
                client.sendall(f"GET /v1/metrics HTTP/1.1\r\nHost: {listen}\r\n\r\n".encode())
        answers = await asyncio.gather(*(asyncio.to_thread(ask, listen) for _ in range(10)))
        assert {text for _, _, text in answers} == {"text 1\n"}
        monkeypatch.setattr(metrics_port, "_AGE", 0.0)
        counter.error = HostError("the catalog cannot be read")
        assert (await asyncio.to_thread(ask, listen))[0] == 409
        counter.error = None
        assert (await asyncio.to_thread(ask, listen))[2] == "text 3\n"

    during(work)


class Still(asyncio.SelectorEventLoop):
    """A loop whose time passes only when it is told so."""

    now = 100.0

    def time(self) -> float:
        return self.now


def routes(loop: asyncio.AbstractEventLoop, counter: Counter, port: int = 9845) -> metrics_port.MetricsRoutes:
    """Return what answers at a port; the figures are taken in this loop."""
    return metrics_port.MetricsRoutes(counter.figures, ("127.0.0.1", port), ConnectionLimits(), loop.create_task)


def test_figures_are_at_most_a_second_old_and_one_failure_is_told_to_who_asked_alone() -> None:
    text, counter, noted = looking.MetricsFormat.TEXT, Counter(), list[str]()
    with contextlib.closing(Still()) as loop:
        loop.set_exception_handler(lambda _loop, context: noted.append(context["message"]))
        answers = routes(loop, counter)
        for after, figures in ((0.0, "text 1\n"), (0.75, "text 1\n"), (0.25, "text 2\n")):
            loop.now += after
            assert loop.run_until_complete(answers._recent(text)) == figures
        loop.now += 1
        counter.error = HostError("the catalog cannot be read")
        with pytest.raises(HostError):
            loop.run_until_complete(answers._recent(text))

        async def hangs_up() -> None:
            loop.now += 1
            asks = loop.create_task(answers._recent(text))
            await asyncio.sleep(0)
            asks.cancel()
            await asyncio.wait({answers._taken[text][1]})

        loop.run_until_complete(hangs_up())
        assert counter.times == 4
        answers._taken.clear()
        gc.collect()
        # Nobody was there to hear it, and that is no news either.
        assert not [one for one in noted if "never retrieved" in one]


def test_who_waits_for_figures_is_told_when_the_port_closes() -> None:
    listen = f"127.0.0.1:{free()}"

    async def work(door: MetricsPort, counter: Counter) -> None:
        counter.takes = 3600
        assert await door.take(listen) is None
        waiting = asyncio.ensure_future(asyncio.to_thread(ask, listen))
        await counter.began.wait()
        await door.stop()
        status, _, text = await waiting
        assert (status, "listens elsewhere now" in text) == (503, True)

    during(work, ConnectionLimits(stop_time=60.0))


def test_the_usual_port_need_not_be_named() -> None:
    with contextlib.closing(Still()) as loop:
        for port, known in ((80, True), (81, False)):
            hosts = routes(loop, Counter(), port)._hosts
            assert hosts.fullmatch(f"localhost:{port}")
            assert (hosts.fullmatch("localhost") is not None) == known


@pytest.mark.parametrize(
    ("number", "helps"),
    [
        (errno.EADDRINUSE, "choose another port"),
        (errno.EACCES, "a port above 1023"),
        (errno.EADDRNOTAVAIL, "choose 127.0.0.1"),
        (errno.EPERM, "a drop-in of the unit"),
        (errno.EAFNOSUPPORT, "a drop-in of the unit"),
        (errno.EMFILE, "choose another address"),
    ],
)
def test_why_a_port_is_not_open_is_told_with_what_helps(number: int, helps: str) -> None:
    problem = metrics_port._not_open("127.0.0.1:9845", OSError(number, os.strerror(number)))
    assert (helps in problem.hint, os.strerror(number) in problem.message) == (True, True)
    assert "no words" in metrics_port._not_open("127.0.0.1:9845", OSError("no words")).message


def test_a_port_is_reached_if_somebody_listens_and_tried_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    patiences: list[float | None] = []

    class Noting(socket.socket):
        def connect(self, address: object) -> None:
            patiences.append(self.gettimeout())
            super().connect(address)  # type: ignore[arg-type] # as it came

    monkeypatch.setattr(socket, "socket", Noting)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        assert not metrics_port._reachable(deaf, [])
        deaf.listen()
        assert metrics_port._reachable(deaf, [])
    assert patiences == [1, 1]


def test_a_port_can_be_opened_again_at_once() -> None:
    with metrics_port.bind(("127.0.0.1", 0)) as one:
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


def test_who_says_nothing_keeps_nobody_out() -> None:
    listen = f"127.0.0.1:{free()}"
    limits = ConnectionLimits(per_user=4, total=4, head_time=0.2, stop_time=0.2)

    async def work(door: MetricsPort, _counter: Counter) -> None:
        assert await door.take(listen) is None
        address = "127.0.0.1", int(listen.rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection(address)) for _ in range(8)]
            assert (await asyncio.to_thread(ask, listen))[0] == 200
            silent[-1].settimeout(10)
            silent[-1].sendall(b"GET /v1/metrics HTTP/1.1\r\n")
            assert (await asyncio.to_thread(silent[-1].recv, 4096)).startswith(b"HTTP/1.1 408 ")
        with socket.create_connection(address, timeout=10) as greedy:
            greedy.sendall(b"GET /v1/metrics HTTP/1.1\r\nX: " + b"x" * (limits.head + 1))
            assert (await asyncio.to_thread(greedy.recv, 4096)).startswith(b"HTTP/1.1 400 ")

    during(work, limits)


def test_the_port_is_opened_moved_and_closed() -> None:
    first, second = f"127.0.0.1:{free()}", f"127.0.0.2:{free('127.0.0.2')}"

    async def work(door: MetricsPort, _counter: Counter) -> None:
        for listen, silent in ((first, second), (first, second), (second, first)):
            assert await door.take(listen) is None
            assert (await asyncio.to_thread(ask, listen))[0] == 200
            with pytest.raises(ConnectionRefusedError):
                await asyncio.to_thread(ask, silent)
        assert await door.take(OFF) is None
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(ask, second)

    during(work)


def test_a_port_that_is_taken_is_a_problem_until_it_is_free() -> None:
    async def work(door: MetricsPort, _counter: Counter) -> None:
        with metrics_port.bind(("127.0.0.1", 0)) as other:
            listen = f"127.0.0.1:{other.getsockname()[1]}"
            problem = await door.take(listen)
            assert problem is not None
            assert (problem.code, listen in problem.message, "another port" in problem.hint) == (
                "metrics-port",
                True,
                True,
            )
        assert await door.take(listen) is None
        assert (await asyncio.to_thread(ask, listen))[0] == 200

    during(work)


def test_a_port_for_which_there_is_no_thread_is_a_problem_until_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work(door: MetricsPort, _counter: Counter) -> None:
        listen = f"127.0.0.1:{free()}"
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", full)
            problem = await door.take(listen)
        assert problem is not None
        assert (problem.code, "new thread" in problem.message) == ("metrics-port", True)
        assert await door.take(listen) is None
        assert (await asyncio.to_thread(ask, listen))[0] == 200

    during(work)


def test_a_worker_has_no_port() -> None:
    async def live() -> None:
        port = MetricsPort(Counter().figures, refused=NO_PORT_HERE)
        assert await port.take(OFF) is None
        assert await port.take("127.0.0.1:9845") is NO_PORT_HERE

    asyncio.run(live())


@pytest.fixture
def elsewhere() -> Iterator[socket.socket]:
    """Return a socket of another network."""
    if os.geteuid():
        pytest.skip("only root makes networks")
    made: list[socket.socket] = []

    def make() -> None:
        # Of this thread alone.
        if ctypes.CDLL(None).unshare(_NEW_NETWORK) == 0:
            made.append(socket.socket(socket.AF_UNIX))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        pytest.skip("no network can be made here")
    with made[0] as one:
        yield one


def test_a_port_that_nobody_reaches_is_told_of(elsewhere: socket.socket) -> None:
    async def live() -> None:
        for given, known in (([elsewhere], False), ([], True)):
            port = MetricsPort(Counter().figures, given)
            problem = await port.take(f"127.0.0.1:{free()}")
            assert (problem is None) is known
            assert problem is None or "the unit" in problem.message
            await port.stop()

    asyncio.run(live())


def test_where_the_kernel_tells_no_networks_apart_only_a_connection_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    with metrics_port.bind(("127.0.0.1", 0)) as one, socket.socket(socket.AF_UNIX) as given:
        assert metrics_port._network(one) == metrics_port._network(given)
        monkeypatch.setattr(metrics_port, "_COOKIE", 9999)
        assert metrics_port._network(one) == 0
        assert metrics_port._reachable(one, [given])
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        # Nobody listens there.
        assert not metrics_port._reachable(closed, [])


def test_what_the_unit_forbids_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_address: tuple[str, int]) -> socket.socket:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(metrics_port, "bind", forbidden)

    async def live() -> None:
        problem = await MetricsPort(Counter().figures).take("127.0.0.1:9845")
        assert problem is not None
        assert ("the unit forbids it" in problem.message, "drop-in" in problem.hint) == (True, True)

    asyncio.run(live())
