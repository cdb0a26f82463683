"""Make the pictures of the page in ``docs``: the sample of the tests, in Debian's Chromium, light and dark.

Usage: ``python tools/screenshots.py [--output docs]``, or ``make screenshots``.
"""

from __future__ import annotations

import argparse
import hashlib
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import browsers, histories  # noqa: E402 - the tests are found by the path above
from xpucached import codec  # noqa: E402 - the same
from xpucached.cli import page, report  # noqa: E402 - the same
from xpucached.domain.host_overview import host_overview  # noqa: E402 - the same

if TYPE_CHECKING:
    from xpucached.domain.host_overview import HostOverview
    from xpucached.domain.overview import Overview

WIDTH: Final = 960
HEIGHT: Final = 800
END: Final = 12
"""Bytes of a picture's last part, before which others may stand."""


def written(value: Overview | HostOverview) -> str:
    """Return the report."""
    data = codec.dumps(codec.to_json(value)).decode("ascii")
    return page.report(data, report.part("page.js"), report.part("page.css"))


def pages() -> dict[str, tuple[str, bool]]:
    """Return what the pictures show, by their names: a page, and whether it is dark."""
    one = written(histories.make_overview())
    host = written(host_overview(histories.make_host_status(), "example", histories.NOW))
    return {"page-light": (one, False), "page-dark": (one, True), "page-host-light": (host, False)}


def mark(text: str) -> bytes:
    """Return what a picture of a page has in it, so that one sees whether it is of this page."""
    body = b"tEXtpage\0" + hashlib.sha256(text.encode()).hexdigest().encode()
    return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def shoot(target: Path) -> list[Path]:
    """Make all pictures; gives their files."""
    made = []
    with tempfile.TemporaryDirectory() as folder, browsers.chromium() as browser:
        for name, (text, dark) in pages().items():
            file = Path(folder) / f"{name}.html"
            file.write_text(text, encoding="utf-8")
            visit = browsers.Visit(browser, dark=dark, width=WIDTH)
            visit.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            visit.page.goto(file.as_uri())
            visit.page.wait_for_selector("h1")
            shown = visit.page.screenshot()
            visit.context.close()
            picture = target / f"{name}.png"
            picture.write_bytes(shown[:-END] + mark(text) + shown[-END:])
            made.append(picture)
    return made


def main() -> int:
    """Make what the command line says."""
    parser = argparse.ArgumentParser(description="Make the pictures of the page in the docs.")
    parser.add_argument("--output", type=Path, default=ROOT / "docs", metavar="DIR")
    for made in shoot(parser.parse_args().output):
        print(f"{made}: {made.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
