"""`top` and the page beside a real daemon: they wait for what happens, and follow it when it goes and comes back."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from tests.support import browsers
from tests.support.daemons import daemon
from tests.support.terminals import LEFT, Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.daemons import Daemon

# Nobody asks anew in the time of this test because nothing happened; and what is asked for is written down.
PATIENT: Final = """
from xpucached.api.client import Client
from xpucached.cli import top
top._WAIT, top._EVERY = 59.0, 0.2
call = Client.call
def told(client, request):
    with open({asked!r}, "a") as log:
        log.write(f"{{type(request).__name__}} {{getattr(request, 'wait', 0)}}\\n")
    answer = call(client, request)
    if getattr(request, "wait", 0):
        with open({asked!r}, "a") as log:
            log.write(f"heard {{' '.join(str(one.id) for one in answer.value)}}\\n")
    return answer
Client.call = told
"""
QUICK: Final = "const later = setTimeout; window.setTimeout = (work, time) => later(work, time / 20);"
"""Five seconds between two questions are a quarter of one."""


def waiting(one: Daemon, asked: Path) -> None:
    """Wait until `top` has nothing to do but to wait for an event."""
    # What it asked last is that; the daemon is asked again once it has answered.
    one.until(lambda: asked.read_text(encoding="utf-8").endswith("ListEvents 59.0\n"))


def test_top_and_the_page_follow_a_real_daemon(tmp_path: Path, short_dir: Path) -> None:
    asked = tmp_path / "asked"
    with daemon(tmp_path, short_dir) as one, browsers.chromium() as browser, ExitStack() as stack:
        one.start()
        one.ctl("model", "add", "early", "--", "true")
        first = PATIENT.format(asked=str(asked))
        terminal = stack.enter_context(Terminal("--user", "top", variables=one.environment, first=first))
        terminal.wait_for("early.*q quit")
        waiting(one, asked)
        one.ctl("model", "add", "later", "--", "true")
        terminal.wait_for("later.*q quit")

        command = [sys.executable, "-m", "xpucached.cli", "--user", "web"]
        with subprocess.Popen(command, env=one.environment, stdout=subprocess.PIPE, text=True) as web:
            try:
                assert web.stdout is not None
                visit = browsers.Visit(browser, dark=False, width=1280)
                visit.page.add_init_script(QUICK)
                visit.page.goto(web.stdout.readline().strip())
                visit.page.wait_for_selector("th:text-is('later')")
                waiting(one, asked)

                one.end()
                visit.page.wait_for_selector("[role=alert]")
                assert visit.page.locator("th:text-is('later')").count() > 0
                terminal.wait_for("no answer; shown is")
                one.start()
                visit.page.wait_for_selector("[role=alert]", state="detached")
                terminal.wait_for("q quit")
                waiting(one, asked)
                one.ctl("model", "add", "third", "--", "true")
                visit.page.wait_for_selector("th:text-is('third')")
                terminal.wait_for("third.*q quit")
                assert visit.violations == []
                visit.context.close()
            finally:
                web.terminate()
        # Each answer that was waited for brought what no other had: it was never asked in vain, nor twice.
        heard = [line.split()[1:] for line in asked.read_text(encoding="utf-8").splitlines() if line[0] == "h"]
        numbers = [int(number) for line in heard for number in line]
        assert all(heard)
        assert numbers == sorted(set(numbers))
        terminal.program.terminate()
        terminal.wait_for(LEFT)
        terminal.close()
