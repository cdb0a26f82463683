"""The page, in a real browser: it shows what the overview says, loads nothing, and hinders nobody."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
from xpucached.domain.plans import EvictReason
from xpucached.domain.status import Verdict
from xpucached.domain.usage import Amount, EvictableReason, ModelUsage, Saved

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


WARM: Final = {
    "Warm since": "2026-11-21 08:32 UTC, for 24 h",
    "What the last driver upgrade cost": (
        "1.9 min of work, which spares programs 1.7 min; warm again after 2.0 min (2026-11-21)"
    ),
    "Most bytes": "llama: 9.0 MiB (6.9 MiB its own)",
    "Eviction takes next": "8.9 MiB: for an older driver",
    "Saved in 30 days": "~3.9 h avoided by loads; 1.7 min spared by replay",
    "Right now": "replay-4 (120/278) and 1 more",
}
COLD: Final = {
    "State": "cold: 2 of 3 models are warm; whisper is cold since 2026-11-21 08:32 UTC",
    "What the last driver upgrade cost": (
        "1.9 min of work, which spares programs 1.7 min; not all are warm again (2026-11-21)"
    ),
    "Eviction takes next": "8.9 MiB: for an older driver; 4.0 KiB for other reasons",
    "Saved in 30 days": "unknown avoided by loads; 1.7 min spared by replay",
    "Right now": "nothing compiles",
}
"""What the head of the page answers."""


def cold() -> Overview:
    """Return a host of which a model is cold, and another was as it is before the changes that are told."""
    value = histories.make_overview()
    llama, whisper = value.models
    steady = replace(llama, model=ModelName("steady"), since=histories.NOW - timedelta(days=20))
    taken, more = replace(whisper, warmth=Warmth.COLD), EvictableReason(EvictReason.UNUSED, 1, 4096, 1.0, 1.0)
    first, second = value.warmth[4:]
    return replace(
        value,
        verdict=Verdict.COLD,
        since=None,
        models=(llama, taken, steady),
        warmth=(first, replace(second, before=Warmth.WARM, now=Warmth.COLD, why="it was taken")),
        upgrades=(replace(value.upgrades[0], warm_at=None),),
        evictable=replace(value.evictable, frees=9_375_744, reasons=(*value.evictable.reasons, more)),
        saved=Saved(None, None, estimated=False, spared_month=101.0),
        under_way=(),
    )


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
        for overview, answers in ((histories.make_overview(), WARM), (cold(), COLD)):
            file.write_text(written(overview), encoding="utf-8")
            visit.page.goto(file.as_uri())
            lines = visit.page.locator("dl").inner_text().split("\n")
            shown = dict(zip(lines[::2], lines[1::2], strict=True))
            assert shown == {**shown, **answers}
        # What needs somebody stands first.  What was before the changes that are told is shown, too.
        models = visit.page.locator("section", has_text="since when")
        assert models.locator("tbody").first.locator("th").all_inner_texts() == ["whisper", "llama", "steady"]
        assert [one.text_content() for one in models.locator("rect title").all()] == [
            "llama: warm from 2026-11-21 08:31 UTC: a run proved it",
            "whisper: cold from 2026-11-21 08:32 UTC: it was taken",
            "whisper: warm from 2026-11-21 08:31 UTC: unknown",
            "steady: warm from 2026-11-02 08:30 UTC: a run proved it",
        ]
        visit.context.close()


def test_the_pictures_in_the_docs_are_made_by_one_command(tmp_path: Path) -> None:
    made = screenshots.shoot(tmp_path)
    assert {one.name for one in made} == {one.name for one in (REPOSITORY / "docs").glob("*.png")}
    assert all(10_000 < one.stat().st_size < 200_000 for one in made)
    # Those in the docs are of this page: whoever changed it forgot `make screenshots`.
    for name, (text, _) in screenshots.pages().items():
        assert screenshots.mark(text) in (REPOSITORY / f"docs/{name}.png").read_bytes(), name


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
