"""A real browser without a window: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

    from playwright.sync_api import Browser

MUST_HAVE = os.environ.get("XPUCACHED_REQUIRE_BROWSER") == "1"
"""Without a browser the tests of the page fail instead of being skipped."""

_WATCH = """
window.__violations = [];
document.addEventListener('securitypolicyviolation', (event) => window.__violations.push(event.effectiveDirective));
"""


def _need(what: str) -> NoReturn:
    if MUST_HAVE:
        pytest.fail(what)
    pytest.skip(what)


class Visit:
    """A page in a browser, and all that it asked for and complained of."""

    def __init__(self, browser: Browser, *, dark: bool, width: int) -> None:
        self.context = browser.new_context(
            color_scheme="dark" if dark else "light", viewport={"width": width, "height": 800}
        )
        self.context.add_init_script(_WATCH)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda one: self.requests.append(one.url))
        self.page.on("console", lambda one: self.complaints.append(one.text))
        self.page.on("pageerror", lambda one: self.complaints.append(str(one)))

    @property
    def violations(self) -> list[str]:
        """What its policy stopped."""
        found: list[str] = self.page.evaluate("window.__violations")
        return found

    def hindrances(self) -> list[str]:
        """Return what axe finds that hinders somebody."""
        from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415 - not always here

        # Of what hinders nobody it would look for each place in the page, and take half as long again.
        found = Axe().run(self.page, options={"resultTypes": ["violations"]}).response["violations"]
        return [f"{one['id']} x {len(one['nodes'])}" for one in found]

    def sideways(self) -> bool:
        """Return whether one has to scroll sideways."""
        wide: bool = self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        return wide


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; skip, or fail where it must be here, without one."""
    program = shutil.which("chromium")
    if program is None:
        _need("there is no browser (Debian: apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - not always here
    except ImportError as error:
        _need(f"playwright is not installed: {error}")
    with sync_playwright() as driver:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()
