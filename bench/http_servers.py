"""Compare HTTP servers on a unix socket: start, memory, latency, peer credentials, streaming.

    python bench/http_servers.py [--calls N] [--rounds N]

Needs starlette and uvicorn, which xpucached has, and takes aiohttp along if it is installed.  All candidates answer the
same JSON and run in turns, so that what else the machine does hits all alike; look at the ratios, not at the figures.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# What each child runs before its own part: the answer, and who is asking.
COMMON = """
import asyncio, json, os, socket, struct, sys
path = sys.argv[1]
def uid_of(sock):
    return struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
def answer(uid):
    return json.dumps({"api": 1, "data": {"uid": uid, "models": [{"name": f"m{i}", "entries": i} for i in range(20)]}})
def lines():
    for number in range(5000):
        yield (json.dumps({"id": number, "topic": "evicted", "message": "x" * 60}) + "\\n").encode()
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(128)
"""

UVICORN = """
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState
class Connection(H11Protocol):
    def connection_made(self, transport):
        super().connection_made(transport)
        self.app_state = {"uid": uid_of(transport.get_extra_info("socket"))}
async def main(app):
    config = uvicorn.Config(app, http=Connection, ws="none", lifespan="off", interface="asgi3", log_config=None,
                            access_log=False, proxy_headers=False, server_header=False, date_header=False)
    config.load()
    state = ServerState()
    await asyncio.get_running_loop().create_unix_server(lambda: Connection(config, state, {}), sock=listener)
    await asyncio.Event().wait()
"""

CANDIDATES = {
    "starlette + uvicorn (h11)": UVICORN
    + """
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
async def status(request):
    return Response(answer(request.state.uid), media_type="application/json")
async def events(request):
    async def stream():
        for line in lines():
            yield line
    return StreamingResponse(stream(), media_type="application/x-ndjson")
asyncio.run(main(Starlette(routes=[Route("/v1/status", status), Route("/v1/events", events)])))
""",
    "uvicorn (h11), bare ASGI": UVICORN
    + """
async def app(scope, receive, send):
    kind = b"application/json" if scope["path"] == "/v1/status" else b"application/x-ndjson"
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
    if scope["path"] == "/v1/status":
        body = answer(scope["state"]["uid"]).encode()
        start["headers"].append((b"content-length", str(len(body)).encode()))
        await send(start)
        await send({"type": "http.response.body", "body": body})
        return
    await send(start)
    for line in lines():
        await send({"type": "http.response.body", "body": line, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
asyncio.run(main(app))
""",
    "aiohttp": """
from aiohttp import web
async def status(request):
    text = answer(uid_of(request.transport.get_extra_info("socket")))
    return web.Response(text=text, content_type="application/json")
async def events(request):
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    for line in lines():
        await response.write(line)
    return response
async def main():
    app = web.Application()
    app.add_routes([web.get("/v1/status", status), web.get("/v1/events", events)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    await asyncio.Event().wait()
asyncio.run(main())
""",
}


class Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        """Connect, and wait for a server that is about to listen."""
        while True:
            self.sock = socket.socket(socket.AF_UNIX)
            try:
                self.sock.connect(str(self._path))
            except (FileNotFoundError, ConnectionRefusedError):
                self.sock.close()
                time.sleep(0.001)
            else:
                return

    def get(self, target: str) -> bytes:
        """Get a page."""
        self.request("GET", target)
        return self.getresponse().read()


@dataclass(frozen=True, slots=True)
class Figures:
    """What one candidate took; milliseconds, MiB, microseconds, thousand lines per second."""

    start: float
    rss: float
    pss: float
    call: float
    call_p99: float
    fresh: float
    stream: float
    peer: bool


def measure(program: str, calls: int) -> Figures:
    """Start a candidate and use it."""
    with tempfile.TemporaryDirectory(prefix="xpu-") as place:
        path = Path(place, "s")
        began = time.perf_counter()
        with subprocess.Popen([sys.executable, "-c", COMMON + program, str(path)]) as child:
            try:
                connection = Connection(path)
                first = connection.get("/v1/status")
                start = time.perf_counter() - began
                kept = sorted(_timed(lambda: connection.get("/v1/status")) for _ in range(calls))
                fresh = sorted(_timed(lambda: Connection(path).get("/v1/status")) for _ in range(calls // 4))
                spent = _timed(lambda: connection.get("/v1/events"))
                return Figures(
                    start=start * 1e3,
                    rss=_memory(child.pid, "status", "VmRSS:"),
                    pss=_memory(child.pid, "smaps_rollup", "Pss:"),
                    call=statistics.median(kept) * 1e6,
                    call_p99=kept[len(kept) * 99 // 100] * 1e6,
                    fresh=statistics.median(fresh) * 1e6,
                    stream=5 / spent,
                    peer=json.loads(first)["data"]["uid"] == os.geteuid(),
                )
            finally:
                child.terminate()


def _timed(action: object) -> float:
    began = time.perf_counter()
    action()  # type: ignore[operator] # a lambda of ours
    return time.perf_counter() - began


def _memory(pid: int, name: str, key: str) -> float:
    text = Path(f"/proc/{pid}/{name}").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(key)) / 1024


def main() -> None:
    """Measure all candidates in turns and print their medians."""
    parser = argparse.ArgumentParser(description="Compare HTTP servers on a unix socket.")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    programs = dict(CANDIDATES)
    if importlib.util.find_spec("aiohttp") is None:
        del programs["aiohttp"]
    found: dict[str, list[Figures]] = {name: [] for name in programs}
    for _ in range(options.rounds):
        for name, program in programs.items():
            found[name].append(measure(program, options.calls))
    columns = ("start", "rss", "pss", "call", "call_p99", "fresh", "stream")
    medians = {
        name: {column: statistics.median(getattr(one, column) for one in figures) for column in columns}
        for name, figures in found.items()
    }
    heads = ("start ms", "RSS MiB", "PSS MiB", "call µs", "p99 µs", "new conn µs", "klines/s")
    print(f"{'':28}" + "".join(f"{head:>14}" for head in heads) + "   peer")
    first = next(iter(medians.values()))
    for name, figures in medians.items():
        cells = "".join(f"{figures[column]:>7.1f} ({figures[column] / first[column]:.2f})" for column in columns)
        print(f"{name:28}{cells}   {'yes' if all(one.peer for one in found[name]) else 'no'}")


if __name__ == "__main__":
    main()
