"""The turns of models that are being warmed: one whose model is removed or changed meanwhile ends at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from xpucached.service.jobs import ENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from xpucached.domain.models import Model
    from xpucached.domain.names import ModelName

_T = TypeVar("_T")


class _Turn:
    """What is known of one turn: the model as it runs, once that was looked up, and why it is ended."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self.model: Model | None = None
        self.why = ""


class ModelTurns:
    """Knows which models are being warmed, and as what."""

    def __init__(self) -> None:
        self._going: dict[ModelName, _Turn] = {}

    async def take(self, name: ModelName, begin: Callable[[], Coroutine[object, object, _T]]) -> _T:
        """Let a model have its turn, and give what comes of it; begins anew when what runs is outdated."""
        while True:
            task = asyncio.create_task(begin(), name=f"turn of {name}")
            turn = self._going[name] = _Turn(task)
            try:
                return await task
            except asyncio.CancelledError:
                me = asyncio.current_task()
                if not turn.why or (me is not None and me.cancelling()):
                    raise
            finally:
                del self._going[name]

    def runs(self, model: Model) -> None:
        """Note as what a model runs, in its turn."""
        self._going[model.name].model = model

    def is_running(self, name: ModelName) -> bool:
        """Return whether a model runs just now."""
        return (turn := self._going.get(name)) is not None and turn.model is not None

    def why_ended(self, name: ModelName) -> str:
        """Return why a turn was ended by us; nothing if it was not."""
        return turn.why if (turn := self._going.get(name)) is not None else ""

    async def end_outdated(self, known: Mapping[ModelName, Model]) -> frozenset[ModelName]:
        """End the turns of models that are not, or not so, among these; give the names of those that ran.

        One that takes long to end is told to, and not waited for.
        """
        outdated = {name: turn for name, turn in self._going.items() if not _is_as(turn.model, known.get(name))}
        for name, turn in outdated.items():
            if not turn.why:
                turn.why = "its model was changed" if name in known else "its model was removed"
                turn.task.cancel()
        if outdated:
            await asyncio.wait([turn.task for turn in outdated.values()], timeout=ENDING)
        return frozenset(name for name, turn in outdated.items() if turn.model is not None)


def _is_as(running: Model | None, known: Model | None) -> bool:
    """Return whether what runs is what is known now; what is only being looked up may be either, and looks again."""
    return running is not None and known is not None and _what(running) == _what(known)


def _what(model: Model) -> tuple[object, ...]:
    return model.workload, model.store
