"""`xpucachectl web`: who gets what, in a real browser and without one; and that nothing listens afterwards."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support import api_stub, browsers, histories
from xpucached import codec
from xpucached.cli import main, web
from xpucached.cli.web import PageServer
from xpucached.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class Daemon:
    """What the server asks."""

    def __init__(self) -> None:
        self.value = histories.make_overview()
        self.gone = False

    def overview(self, _user: str = "") -> bytes:
        """Return the answer, if it is there."""
        if self.gone:
            raise Unavailable("gone")
        return codec.dumps({"api": 1, "data": codec.to_json(self.value)})


@contextmanager
def serving(daemon: Daemon) -> Iterator[PageServer]:
    """Serve what a daemon says."""
    server = PageServer(daemon.overview)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(server: PageServer, path: str, heads: Mapping[str, str], method: str = "GET") -> tuple[int, bytes]:
    """Return status and body; the Host is ours unless another is given, None for none."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": f"127.0.0.1:{server.server_port}", **heads}.items():
        if value:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 501 or "default-src 'none'" in answer.headers["Content-Security-Policy"]
    connection.close()
    return answer.status, body


def test_of_what_a_stranger_says_a_head_s_worth_is_read() -> None:
    with serving(Daemon()) as server:
        key = {"Authorization": f"Bearer {server.token}"}
        long = {f"X-{number}": "x" * 1000 for number in range(40)}
        assert ask(server, "/v1/overview", key | long)[0] == 200
        long["X-long"] = "x" * web._LONGEST
        assert ask(server, "/v1/overview", key | long)[0] == 200
        assert ask(server, "/v1/overview", long | key)[0] == 401, "what came behind it is not known"


def test_only_our_own_page_with_its_token_gets_data() -> None:
    with serving(Daemon()) as server:
        key = {"Authorization": f"Bearer {server.token}"}
        status, body = ask(server, "/v1/overview", key)
        assert status == 200
        assert json.loads(body)["data"]["host"] == "example"
        assert ask(server, "/", {})[0] == ask(server, "/page.js", {})[0] == 200

        # No token and a wrong one say the same; so does one that is no ASCII.
        wrong = [{}, {"Authorization": "Bearer no"}, {"Authorization": server.token}, {"Authorization": "Bearer \xff"}]
        assert {ask(server, "/v1/overview", one)[0] for one in wrong} == {401}
        assert len({ask(server, path, one)[1] for one in wrong for path in ("/v1/overview", "/v1/models")}) == 1

        port = server.server_port
        for heads in (
            {"Host": f"localhost:{port}"},
            {"Host": "evil.example"},
            {"Host": "127.0.0.1"},
            {"Host": ""},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            for path in ("/", "/v1/overview"):
                assert ask(server, path, {**key, **heads})[0] == 403, heads
        own = {**key, "Origin": server.origin, "Sec-Fetch-Site": "same-origin"}
        assert ask(server, "/v1/overview", own)[0] == 200

        assert ask(server, "/v1/models", key)[0] == ask(server, "/../etc/passwd", key)[0] == 404
        assert {ask(server, "/v1/overview", key, method)[0] for method in ("POST", "PUT", "DELETE", "OPTIONS")} == {501}


def test_a_browser_follows_a_daemon_that_goes_and_comes_back() -> None:
    daemon = Daemon()
    with serving(daemon) as server, browsers.chromium() as browser:
        visit = browsers.Visit(browser, dark=False, width=1280)
        # Five seconds between two questions are a tenth here.
        visit.page.add_init_script(
            "const later = setTimeout; window.setTimeout = (work, time) => later(work, time / 50);"
        )
        visit.page.goto(server.address)
        visit.page.wait_for_selector("h1.v-warm")
        assert visit.page.evaluate("location.hash") == ""
        assert visit.hindrances() == []
        daemon.gone = True
        visit.page.wait_for_selector("[role=alert]")
        assert visit.page.locator("h1.v-warm").count() == 1
        daemon.gone, daemon.value = False, replace(daemon.value, sentence="Warm: and back again")
        visit.page.wait_for_selector("h1:has-text('back again')")
        assert visit.page.locator("[role=alert]").count() == 0
        assert {one.removeprefix(server.origin) for one in visit.requests if not one.startswith("data:")} == {
            "/",
            "/page.css",
            "/page.js",
            "/start.js",
            "/v1/overview",
        }
        assert visit.violations == []
        assert not any(server.token in one for one in visit.complaints)
        visit.context.close()


def test_a_tab_that_is_left_open_grows_no_memory() -> None:
    daemon = Daemon()
    with serving(daemon) as server, browsers.chromium() as browser:
        visit = browsers.Visit(browser, dark=False, width=640)
        # Each answer is another one, and five seconds are none.
        visit.page.add_init_script(
            """const later = setTimeout, ask = fetch;
            let body = null;
            window.__count = 0;
            window.setTimeout = (work, time) => later(work, time === 5000 ? 0 : time);
            window.fetch = async (...words) => {
                body ??= await (await ask(...words)).json();
                window.__count += 1;
                const data = { ...body.data, sentence: `Warm: ${window.__count}` };
                return { ok: true, json: async () => structuredClone({ data }) };
            };"""
        )
        visit.page.goto(server.address)
        tools = visit.context.new_cdp_session(visit.page)
        tools.send("Performance.enable")

        def measured(updates: int) -> tuple[float, float, float]:
            visit.page.wait_for_selector("h1")
            while visit.page.evaluate("window.__count") < updates:
                time.sleep(0.05)
            looks = []
            # While one page takes the place of another there are two of them.
            for _ in range(9):
                time.sleep(0.03)
                tools.send("HeapProfiler.collectGarbage")
                looks.append({one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]})
            heap, nodes, listeners = (
                min(one[name] for one in looks) for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")
            )
            return heap, nodes, listeners

        heap, nodes, listeners = measured(100)
        later = measured(300)
        # Of 200 pages, which have more than a thousand nodes each, none is left.
        assert later[0] < heap + 1_000_000
        assert later[1] < nodes + 3000
        assert later[2] <= listeners + 4
        visit.context.close()


def test_who_connects_and_says_nothing_keeps_the_command_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def crowd(server: PageServer) -> list[socket.socket]:
        return [socket.create_connection(("127.0.0.1", server.server_port), 5) for _ in range(web._STRANGERS + 8)]

    with serving(Daemon()) as server, ExitStack() as stack:
        # However many are there, and stay: who comes is answered.
        silent = [stack.enter_context(one) for one in crowd(server)]
        for _ in range(2):
            assert ask(server, "/", {})[0] == 200
            assert ask(server, "/v1/overview", {"Authorization": f"Bearer {server.token}"})[0] == 200
        assert len(server.strangers) <= web._STRANGERS

        # One byte at a time is no way to stay either.
        monkeypatch.setattr(web, "_PATIENCE", 0.1)
        silent += [stack.enter_context(one) for one in crowd(server)]
        until = time.monotonic() + 60
        while server.strangers and time.monotonic() < until:
            for one in silent:
                with suppress(OSError):
                    one.sendall(b"G")
            time.sleep(0.05)
        assert not server.strangers

        # Nor is the command's end waited for.
        monkeypatch.undo()
        for one in crowd(server):
            stack.enter_context(one)
        server.shutdown()


def test_nothing_listens_after_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with api_stub.running(tmp_path) as door:
        assert main(["--socket", str(door.path), "web", "--for", "0.2s"]) == 0
        address = capsys.readouterr().out.strip()
        assert main(["--socket", str(door.path), "--json", "web", "--for", "0.1s"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["address"].startswith("http://127.0.0.1:")
    assert address.startswith("http://127.0.0.1:")
    assert "/#" in address
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.split(":")[2].partition("/")[0])), 5)
    # Who cannot be asked is told of at once.
    assert main(["--socket", str(door.path), "web"]) == Unavailable.exit
