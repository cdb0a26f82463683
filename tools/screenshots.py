"""Make the pictures of the page in ``docs``: the sample of the tests, in Debian's Chromium, light and dark.

Usage: ``python tools/screenshots.py [--output docs]``, or ``make screenshots``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
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


def written(value: Overview | HostOverview) -> str:
    """Return the report."""
    data = codec.dumps(codec.to_json(value)).decode("ascii")
    return page.report(data, report.part("page.js"), report.part("page.css"))


def shoot(target: Path) -> list[Path]:
    """Make all pictures; gives their files."""
    values: dict[str, Overview | HostOverview] = {
        "page": histories.make_overview(),
        "page-host": host_overview(histories.make_host_status(), "example", histories.NOW),
    }
    made = []
    with tempfile.TemporaryDirectory() as folder, browsers.chromium() as browser:
        for name, value in values.items():
            file = Path(folder) / f"{name}.html"
            file.write_text(written(value), encoding="utf-8")
            for dark in (False, True) if name == "page" else (False,):
                visit = browsers.Visit(browser, dark=dark, width=WIDTH)
                visit.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
                visit.page.goto(file.as_uri())
                visit.page.wait_for_selector("h1")
                picture = target / f"{name}-{'dark' if dark else 'light'}.png"
                visit.page.screenshot(path=picture)
                visit.context.close()
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
