"""What became slower or faster after something on the host had changed.  Pure."""

from __future__ import annotations

from msgspec import Struct

from xpucached.domain.diagnosis import Figure
from xpucached.domain.names import AwareDatetime, ModelName


class Shift(Struct, frozen=True):
    """A figure of a model that is another since a change, by more than chance explains; seconds."""

    id: int  #: 0 until it is kept
    model: ModelName
    variant: str  #: `Variant.label`
    figure: Figure
    run: int  #: the first run after the change
    at: AwareDatetime  #: when that began
    before: float  #: median of the runs before the change
    spread: float  #: median absolute deviation of the same
    before_runs: int
    after: float  #: median of the runs since
    after_runs: int
    changed: tuple[str, ...]  #: what came between, a sentence each
    seen: AwareDatetime | None = None  #: when somebody said that it was; None: nobody has

    @property
    def slower(self) -> bool:
        """Whether it takes longer than before."""
        return self.after > self.before
