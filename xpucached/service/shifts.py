"""Shifts: after each run it is seen whether its model became slower or faster with something that changed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from xpucached.catalog.models import find_model
from xpucached.catalog.runs import KEPT, newest_runs
from xpucached.catalog.shifts import record_shifts, see_shifts
from xpucached.errors import CatalogError
from xpucached.planning.shifts import sentence, shifts

if TYPE_CHECKING:
    from xpucached.api import looking
    from xpucached.domain.names import ModelName
    from xpucached.domain.shifts import Shift
    from xpucached.service.context import Context

log = logging.getLogger(__name__)


class ShiftKeeper:
    """Notes what became slower or faster, says so, and remembers what was seen."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def look(self, name: ModelName) -> None:
        """Compare a model's runs, and say what is another since a change, and what is so no longer."""
        found = shifts(await self._context.read(newest_runs, name, KEPT, outputs=False))
        try:
            news, over = await self._context.write(record_shifts, name, found)
        except CatalogError as error:
            # The next run finds it again; what this one proved is written down.
            log.warning("what became slower or faster could not be written down: %s", error.message)
            return
        for one in news:
            self._post("figure-shifted", f"{one.model}: {sentence(one)}", one)
        for one in over:
            self._post("figure-settled", f"{one.model}: {one.figure} of {one.variant} is as it was before", one)

    async def seen(self, asked: looking.SeeShifts) -> tuple[Shift, ...]:
        """Note that somebody has seen what is another of these models, or of all; return what it is."""
        for name in asked.models:
            await self._context.read(find_model, name)
        return await self._context.write(see_shifts, asked.models, self._context.clock())

    def _post(self, topic: str, message: str, one: Shift) -> None:
        fields = {
            "model": one.model,
            "run": str(one.run),
            "figure": one.figure,
            "before": f"{one.before:.6g}",
            "after": f"{one.after:.6g}",
            "variant": one.variant,
            "changes": "; ".join(one.changed),
        }
        self._context.events.post(topic, message, fields)
