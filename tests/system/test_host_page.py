"""The host's own overview: `usage`, `top`, `report` and `web` as root, and the page of it in a real browser."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support import browsers, histories, host_stub
from xpucached import codec, sockets
from xpucached.api import host_requests, looking
from xpucached.api.client import Client
from xpucached.cli import connect, main, web
from xpucached.cli.report import anonymous_host
from xpucached.domain.host_overview import HostOverview, host_overview
from xpucached.errors import RequestError
from xpucached.render.host_usage import host_lines
from xpucached.render.text import TextStyle, cells
from xpucached.render.top import Order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.messages import Json


@pytest.fixture
def asked(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run the host's daemon where `--system` looks for it."""
    path = short_dir / "host.sock"
    for name in ("ADMIN", "PUBLIC"):
        monkeypatch.setattr(sockets, name, str(path))
    with host_stub.running(path):
        yield path


def made() -> HostOverview:
    """Return the sample's overview."""
    return host_overview(histories.make_host_status(), "example", histories.NOW)


def test_the_host_s_overview_says_who_has_what_and_what_nobody_knows() -> None:
    status = histories.make_host_status()
    warm, cold, aside, failed = status.users
    # What her worker said last, before she had a daemon of her own.
    aside = replace(cold, user=aside.user, uid=aside.uid, state=aside.state)
    value = host_overview(replace(status, users=(warm, cold, aside, failed)), "example", histories.NOW)
    assert [one.user for one in value.users] == ["bob", "alice", "dave", "carol"]
    assert (value.entries, value.unknown) == (812 + 556 + 812, 1)
    bob, _, dave, carol = value.users
    assert (bob.allocated, bob.warm, bob.cold, bob.verdict) == (31_457_280, 2, 1, "cold")
    # What a worker said before it failed is no verdict; who has a daemon of their own has no nought here.
    assert dave.verdict is None
    assert (carol.entries, carol.allocated, carol.warm, carol.problems) == (None, None, None, ())
    assert value.verdict == "worker-failed"
    assert value.problems == {"store-fault": 2}


def test_root_sees_all_users_with_each_command(asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> str:
        assert main(["--system", *words]) == 0
        return capsys.readouterr().out

    usage = told("usage", "--top", "3")
    assert re.search(r"bob +cold +812 +30 MiB +63 %", usage)
    assert re.search(r"carol +aside +\? +\?", usage)
    assert "2180 entries, 48 MiB, of 4 users; of 1 user nothing is known" in usage
    assert json.loads(told("usage", "--json"))["data"]["users"][0]["user"] == "bob"
    assert told("--quiet", "usage").split() == ["bob", "alice", "dave", "carol"]
    assert re.search(r"dave +failed", told("top"))
    file = tmp_path / "host.html"
    told("report", "--html", str(file))
    assert '"user":"bob"' in file.read_text(encoding="utf-8")
    told("report", "--redact", "--html", str(file))
    assert not re.search(r"bob|alice|carol|dave|example", file.read_text(encoding="utf-8"))
    assert anonymous_host(made()).users[0].user == "user-1"
    # What only a user has needs one.
    assert main(["--system", "usage", "--days"]) == RequestError.exit
    assert "--of USER usage --days" in capsys.readouterr().err


@pytest.mark.parametrize("width", [1, 20, 39, 40, 59, 60, 80, 200])
def test_every_line_of_the_host_s_picture_fits(width: int) -> None:
    style = TextStyle(histories.NOW, width)
    for height in (1, 2, 7, 8, 10, 24, 60):
        for order in Order:
            for complaint in ("", histories.NASTY):
                lines = host_lines(made(), style, height=height, order=order, complaint=complaint)
                assert len(lines) <= height
                assert all(cells(line) <= width for line in lines)
    if width >= 60:
        shown = host_lines(made(), style, height=24, order=Order.STATE)
        found = [re.match(r"(\w+) +(?:warm|cold|aside|failed) ", line) for line in shown]
        users = [one[1] for one in found if one is not None]
        assert users == ["bob", "carol", "dave", "alice"]


def boastful(data: Json) -> Json:
    """Add to what a worker says of its user what it says of others."""
    assert isinstance(data, dict)
    return {**data, "users": [codec.to_json(replace(made().users[0], user="mallory"))]}


def test_the_host_s_page_leads_to_each_user_s(asked: Path, tmp_path: Path) -> None:
    begun, slow = threading.Event(), threading.Event()
    slow.set()

    def overview(user: str) -> bytes:
        if user == "alice":
            begun.set()
            assert slow.wait(60)
        request = looking.GetOverview() if user else host_requests.GetHostOverview()
        with Client(asked, of=user) as client:
            said = client.call(request).data
            return codec.dumps({"api": 1, "data": boastful(said) if user else said})

    server = web.PageServer(overview, users=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with browsers.chromium() as browser:
            visit = browsers.Visit(browser, dark=True, width=320)
            page = visit.page
            page.goto(server.address)
            page.wait_for_selector("h1.v-worker-failed")
            bars = page.locator("rect.f-a[data-value]")
            assert [one.get_attribute("data-value") for one in bars.all()] == ["31457280", "18767872", "4096"]
            assert page.locator("dl").inner_text().split("\n")[:2] == ["Models", "6 of 8 are warm"]
            assert page.locator("tr", has_text="carol").locator("td").nth(1).inner_text() == "unknown"
            assert visit.hindrances() == []
            assert not visit.sideways()
            # One who answers slowly keeps nobody's page: neither those of others, nor the way back.
            slow.clear()
            page.get_by_role("button", name="alice").click()
            assert begun.wait(30)
            page.get_by_role("button", name="carol").click()
            page.wait_for_selector("[role=alert]:has-text('carol: that is not here')")
            assert not slow.is_set()
            slow.set()
            # By keyboard to a user and back.
            page.get_by_role("button", name="alice").press("Enter")
            page.wait_for_selector("h1.v-warm")
            assert page.evaluate("document.activeElement.tagName") == "H1"
            assert "Most bytes\nllama: 9.0 MiB" in page.locator("dl").inner_text()
            assert page.locator("text=mallory").count() == 0
            assert visit.hindrances() == []
            page.get_by_role("button", name="All users").click()
            page.wait_for_selector("h1.v-worker-failed")
            # Who has no worker is told of, and the host's page stays.
            page.get_by_role("button", name="carol").click()
            page.wait_for_selector("[role=alert]:has-text('carol: that is not here')")
            assert page.locator("h1.v-worker-failed").count() == 1
            assert visit.violations == []
            visit.context.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_web_asks_for_a_user_as_of_does_and_for_others_meanwhile(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, begun, others = list[object](), threading.Event(), threading.Event()

    def of_user(name: str, largest: int | None = None) -> Client:
        said.append((name, largest is not None))
        begun.set()
        assert others.wait(30)
        return Client(asked, of=name)

    class Server(web.PageServer):
        def serve_forever(self, _interval: float = 0.5) -> None:
            """Ask once for each, for the host while a user keeps us waiting."""
            with ThreadPoolExecutor() as pool:
                slow = pool.submit(self.overview, "alice")
                assert begun.wait(30)
                said.append(json.loads(self.overview(""))["data"]["users"][0]["user"])
                others.set()
                said.append(json.loads(slow.result(30))["data"]["host"])

        def shutdown(self) -> None:
            """End nothing."""

    monkeypatch.setattr(connect, "of_user", of_user)
    monkeypatch.setattr(web, "PageServer", Server)
    assert main(["--system", "web"]) == 0
    assert said == [("alice", True), "bob", "example"]
