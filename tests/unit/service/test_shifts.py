"""After a run its model's figures are compared, and what became slower is an event, in `why`, and seen once."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tests.flow.test_upkeep import alone
from tests.support import api_stub, catalogs
from tests.unit.catalog.test_catalog import NOW, model
from xpucached.api.looking import SeeShifts
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.shifts import unseen_shifts
from xpucached.domain.diagnosis import Cause
from xpucached.domain.models import Attribution, Outcome, Pass, WarmReason
from xpucached.domain.secrecy import HIDDEN
from xpucached.planning.diagnosis import diagnose
from xpucached.render import diagnosis, status
from xpucached.render.text import TextStyle
from xpucached.server.redact import redact
from xpucached.service.shifts import ShiftKeeper

if TYPE_CHECKING:
    from xpucached.catalog import Catalog

PLAIN = TextStyle(NOW, None, False)  # noqa: FBT003 - no colours


def ran(catalog: Catalog, seconds: float, changes: tuple[str, ...] = ()) -> None:
    begun = catalog.write(begin_run, model("net"), WarmReason.MANUAL, "here", NOW, "6.8.0", changes)
    passes = (Pass(seconds, 1.0, 1, 0, 0, 3),)
    catalog.write(finish_run, begun.id, Outcome.WARMED, passes, Attribution(), (), "", "", NOW)


def test_what_became_slower_with_a_package_is_an_event_until_it_is_quick_again(home: Path, tmp_path: Path) -> None:
    async def look() -> None:
        context = alone(catalog).context
        keeper = ShiftKeeper(context)
        name = model("net").name
        await keeper.look(name)
        assert await context.events.since(0) == ()
        ran(catalog, 9.8, ("torch 2.9.0 → 2.9.1",))
        await keeper.look(name)
        await keeper.look(name)
        (event,) = await context.events.since(0)
        assert event.topic == "figure-shifted"
        assert {"before": "4", "after": "9.8", "changes": "torch 2.9.0 → 2.9.1", "model": "net"}.items() <= (
            event.fields.items()
        )
        # Others than its user do not hear what changed.
        hidden = redact(event)
        assert "torch" not in repr(hidden)
        assert "torch" not in repr(redact(catalog.read(unseen_shifts)))
        (seen,) = await keeper.seen(SeeShifts(models=(name,)))
        assert catalog.read(unseen_shifts) == await keeper.seen(SeeShifts()) == ()
        assert "torch 2.9.0 → 2.9.1" in diagnosis.seen([seen], PLAIN)
        for seconds in (4.0, 4.1, 4.0):
            ran(catalog, seconds)
        await keeper.look(name)
        assert [one.topic for one in await context.events.since(event.id)] == ["figure-settled"]

    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        catalog.write(add_model, model("net"))
        for seconds in (4.0, 4.1, 3.9, 4.0, 4.05):
            ran(catalog, seconds)
        asyncio.run(look())


def test_status_and_why_name_the_change() -> None:
    one = api_stub.make_shift()
    shown = status.status(replace(api_stub.make_status(), shifts=(one,)), PLAIN)
    assert "Slower or faster since a change" in shown
    assert all(word in shown for word in (one.changed[0], "4.10 s (±0.05 s, 5 runs)", "9.80 s (1 run)"))
    assert "Slower or faster" not in status.status(api_stub.make_status(), PLAIN)

    made = diagnose(
        api_stub.make_model("net"),
        shifts=[one, replace(one, after=1.0)],
        store=Path("/cache/sycl"),
        uid=0,
        built_from=lambda _: None,
    )
    (found,) = (each for each in made.explanations if each.cause is Cause.SHIFTED)
    assert one.changed[0] in found.message
    assert found.command == "xpucachectl model history net"
    assert HIDDEN in repr(redact(made))
