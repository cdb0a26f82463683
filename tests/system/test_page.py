"""The page, in a real browser: it shows what the overview says, loads nothing, and hinders nobody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import screenshots
from msgspec.structs import replace

from tests import REPOSITORY
from tests.support import browsers, histories
from xpucached import codec
from xpucached.cli import page
from xpucached.cli import report as command
from xpucached.domain.models import Warmth
from xpucached.domain.names import ModelName
from xpucached.domain.overview import OverviewModel
from xpucached.domain.usage import Amount, ModelUsage

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from xpucached.domain.overview import Overview


def written(overview: Overview) -> str:
    """Return the report."""
    data = codec.dumps(codec.to_json(overview)).decode("ascii")
    return page.report(data, command.part("page.js"), command.part("page.css"))


def nasty() -> Overview:
    """Return an overview with a name of every unpleasant kind."""
    overview = histories.make_overview()
    name = ModelName(histories.NASTY)
    model = OverviewModel(name, Warmth.COLD, histories.NASTY, 1, 4096, None)
    usage = replace(overview.usage, models=(*overview.usage.models, ModelUsage(name, Amount(1, 4096), Amount())))
    return replace(overview, sentence=histories.NASTY, models=(*overview.models, model), usage=usage)


def test_the_page_stays_small() -> None:
    assert len(command.part("page.js").encode()) <= 20_000
    assert len(command.part("page.css").encode()) <= 4_000
    # With all that it can hold: 1000 models, 500 changes, and what each is given as a reason.
    overview = histories.make_overview()
    change = replace(overview.warmth[0], why="w" * 500)
    many = tuple(ModelUsage(ModelName(f"model-{number}"), Amount(1, 4096), Amount(1, 4096)) for number in range(1000))
    full = replace(overview, warmth=(change,) * 500, usage=replace(overview.usage, models=many))
    assert len(written(full)) < 2_000_000


def test_the_page_shows_what_the_overview_says(tmp_path: Path) -> None:
    overview = nasty()
    file = tmp_path / "report.html"
    file.write_text(written(overview), encoding="utf-8")
    with browsers.chromium() as browser:
        for dark, width in ((False, 1280), (True, 1280), (False, 320), (True, 2560)):
            visit = browsers.Visit(browser, dark=dark, width=width)
            visit.page.goto(file.as_uri())
            if width == 1280 and not dark:
                _compare(visit.page, overview)
            # All numbers unfolded, as who reads them has them.
            visit.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            assert visit.hindrances() == [], (dark, width)
            assert not visit.sideways(), (dark, width)
            assert visit.requests == [file.as_uri()]
            assert visit.complaints == []
            assert visit.violations == []
            visit.context.close()

        visit = browsers.Visit(browser, dark=False, width=1280)
        visit.page.goto(file.as_uri())
        _stop(visit)
        visit.context.close()


def test_the_pictures_in_the_docs_are_made_by_one_command(tmp_path: Path) -> None:
    made = screenshots.shoot(tmp_path)
    assert {one.name for one in made} == {one.name for one in (REPOSITORY / "docs").glob("*.png")}
    assert all(10_000 < one.stat().st_size < 200_000 for one in made)


def _compare(shown: Page, overview: Overview) -> None:
    """See that the pictures and tables have the overview's numbers, and names are text."""
    escaped = "</script><b>\\u202eevil\\u001b[31m'\"&"
    assert shown.locator("h1").inner_text() == escaped
    assert shown.locator("main b").count() == 0

    def values(title: str, tone: str) -> list[float]:
        bars = shown.locator("section", has_text=title).locator(f"rect.f-{tone}[data-value]")
        return [float(one.get_attribute("data-value") or "nan") for one in bars.all()]

    upgrade, models = overview.upgrades[0], overview.usage.models
    assert values("last driver upgrade", "a") == [upgrade.replay_seconds]
    assert values("last driver upgrade", "ok") == [upgrade.spared_seconds]
    assert values("owns which bytes", "a") == [one.own.allocated for one in models]
    assert values("owns which bytes", "b") == [one.shared.allocated for one in models]
    assert values("For which drivers", "a") == [one.allocated for one in overview.usage.drivers if one.present]
    assert values("saved each day", "ok") == pytest.approx(
        [one.avoided_seconds for one in overview.days if one.avoided_seconds is not None]
    )
    assert values("saved each day", "a") == [one.spared_seconds for one in overview.days]
    unwatched = next(one.day for one in overview.days if one.loads is None)
    row = shown.locator("tr", has_text=unwatched)
    assert row.locator("td").first.text_content() == "unknown"
    ribbons = shown.locator("section", has_text="since when").locator("rect title")
    assert len(ribbons.all()) == len(overview.warmth)

    # By keyboard: to the numbers, and into them.
    details = shown.locator("details").first
    details.locator("summary").focus()
    shown.keyboard.press("Enter")
    assert details.evaluate("(one) => one.open")
    snapshot = shown.locator("main").aria_snapshot()
    for needle in ('heading "Which model owns which bytes?"', "img ", 'columnheader "To compile"', "region "):
        assert needle in snapshot


def _stop(visit: browsers.Visit) -> None:
    """See that what somebody puts into the page neither runs nor loads, and that axe and the policy are awake."""
    visit.page.evaluate(
        """() => {
            const script = document.createElement('script');
            script.textContent = 'window.__evil = true';
            document.body.append(script);
            const image = document.createElement('img');
            image.src = 'http://127.0.0.1:9/x.png';
            document.body.append(image);
            const text = document.createElement('p');
            text.setAttribute('style', 'color: red');
            text.textContent = 'x';
            document.body.append(text);
        }"""
    )
    visit.page.wait_for_function("window.__violations.length >= 3")
    assert sorted(visit.violations) == ["img-src", "script-src-elem", "style-src-attr"]
    assert visit.page.evaluate("window.__evil") is None
    assert any(one.startswith("image-alt") for one in visit.hindrances())
