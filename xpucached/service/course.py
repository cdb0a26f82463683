"""The course of a run: what is known of it while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xpucached.domain.models import Attribution, Outcome

if TYPE_CHECKING:
    from xpucached.domain.models import Trial
    from xpucached.processes.results import RunResult
    from xpucached.service.trial import Attempt


@dataclass(slots=True)
class RunCourse:
    """What is known of a run while it goes on: how it ended is known last."""

    outcome: Outcome = Outcome.FAILED
    detail: str = "how it ended is not known"
    executions: list[RunResult] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    attribution: Attribution = field(default_factory=Attribution)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What came of its variants so far."""
        return tuple(attempt.trial for attempt in self.attempts)
