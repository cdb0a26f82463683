"""The page in Cockpit: in a real cockpit-ws with its bridge, in a real browser, asking through the real command."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from tests import REPOSITORY
from tests.support import api_stub, browsers, host_stub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

WS: Final = Path("/usr/lib/cockpit/cockpit-ws")

COMMAND: Final = """\
#!{python}
import sys
sys.path.insert(0, {repository!r})
from xpucached import sockets
sockets.ADMIN = sockets.PUBLIC = {host!r}
from xpucached.cli import main
sys.exit(main())
"""


@contextmanager
def cockpit(place: Path, host: Path, own: Path) -> Iterator[str]:
    """Run Cockpit with our package; gives the address of the page."""
    if not WS.exists() or shutil.which("cockpit-bridge") is None:
        reason = "cockpit is not installed (Debian: apt-get install cockpit-ws cockpit-bridge)"
        if browsers.MUST_HAVE:
            pytest.fail(reason)
        pytest.skip(reason)
    package = place / "data/cockpit/xpucached"
    package.mkdir(parents=True)
    for path in [*(REPOSITORY / "cockpit").iterdir(), *(REPOSITORY / "xpucached/data/page").iterdir()]:
        shutil.copy(path, package)
    manifest = json.loads((package / "manifest.json").read_text())
    assert manifest.pop("conditions") == [{"path-exists": "/usr/bin/xpucachectl"}]
    (package / "manifest.json").write_text(json.dumps(manifest))
    command = place / "bin/xpucachectl"
    command.parent.mkdir()
    command.write_text(COMMAND.format(python=sys.executable, repository=str(REPOSITORY), host=str(host)))
    command.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = subprocess.Popen(
        [WS, "--no-tls", "--address=127.0.0.1", f"--port={port}", "--local-session=/usr/bin/cockpit-bridge"],
        env={
            **os.environ,
            "HOME": str(place),
            # Its bridge would start what is named here itself, and leave it behind.
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={place}/bus",
            "SSH_AUTH_SOCK": str(place / "agent"),
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            "XDG_DATA_HOME": str(place / "data"),
            "XDG_RUNTIME_DIR": str(place),
            "XPUCACHED_SOCKET": str(own),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/cockpit/@localhost/xpucached/index.html"
    finally:
        program.terminate()
        program.wait(20)
        end = time.monotonic() + 60
        while (behind := left(own)) and time.monotonic() < end:
            time.sleep(0.1)
        assert behind == []


def left(own: Path) -> list[list[str]]:
    """Return the commands of processes that were told of this socket."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.environ().get("XPUCACHED_SOCKET") == str(own) and one.pid != os.getpid():
                found.append(one.cmdline())
    return found


def shown(page: Page, selector: str) -> None:
    """Wait until something is on the page."""
    page.wait_for_selector(selector, timeout=30_000)


def test_the_page_runs_inside_cockpit(short_dir: Path) -> None:
    host = short_dir / "host.sock"
    with (
        api_stub.running(short_dir) as door,
        cockpit(short_dir / "c", host, door.path) as address,
        browsers.chromium() as browser,
    ):
        visit = browsers.Visit(browser, dark=False, width=1280)
        # Ten seconds between two questions are half of one here.
        visit.page.add_init_script(
            "const later = setTimeout; window.setTimeout = (work, time) => later(work, time === 10000 ? 500 : time);"
        )
        # Without the host's service one's own daemon answers.
        visit.page.goto(address)
        shown(visit.page, "h1.v-warm")
        assert "Most bytes\nllama: 9.0 MiB" in visit.page.locator("dl").inner_text()
        assert visit.hindrances() == []
        assert visit.violations == []
        # Cockpit has a switch of its own.
        visit.page.evaluate("localStorage.setItem('shell:style', 'dark'); dispatchEvent(new Event('cockpit-style'))")
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 31)"
        assert visit.hindrances() == []
        with host_stub.running(host):
            # With it, root sees the host, and each user.
            visit.page.reload()
            shown(visit.page, "h1.v-worker-failed")
            assert "Most bytes\nbob: 30 MiB" in visit.page.locator("dl").inner_text()
            assert visit.page.get_by_role("button", name="alice").count() == 1
            assert visit.hindrances() == []
        # A daemon that goes away is told of.
        door.stop()
        shown(visit.page, "[role=alert]:has-text('host.sock')")
        assert visit.page.locator("h1.v-worker-failed").count() == 1
        with host_stub.running(host):
            visit.page.wait_for_selector("[role=alert]", state="detached", timeout=30_000)
        # So is an answer that is none.
        command = short_dir / "c/bin/xpucachectl"
        command.write_text("#!/bin/sh\necho no JSON\n", encoding="utf-8")
        shown(visit.page, "[role=alert]:has-text('cannot be read: no JSON')")
        assert visit.violations == []
        assert {one.split("/")[2] for one in visit.requests if "://" in one} == {address.split("/")[2]}
        visit.context.close()
