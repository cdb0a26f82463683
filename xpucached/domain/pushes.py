"""What became of the last push of what was compiled here, and whether one is overdue.  Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from xpucached.domain.host import Problem
from xpucached.domain.names import AwareDatetime

_LONGEST: Final = timedelta(days=1)
"""The unit's timer pushes four times a day."""
_UNIT: Final = "journalctl --user --unit xpucached-push.service"


class PushOutcome(Struct, frozen=True):
    """A push by a timer; without a place and an error there was nothing to push."""

    at: AwareDatetime
    reference: str = ""  #: where to
    digest: str = ""  #: of the bundle that is there now
    error: str = ""  #: why it failed


def trouble(last: PushOutcome | None, set_up: datetime | None, started: datetime, now: datetime) -> Problem | None:
    """Return what is wrong with pushes, which were set up then; None: nothing, or nobody has set them up.

    ``started`` is when the daemon did: while nobody is logged in, nothing is pushed.
    """
    if set_up is None:
        return None
    if last is not None and last.error:
        where = f" to {last.reference}" if last.reference else ""
        hint = f"see: {_UNIT}; it is tried again by its timer, or by: systemctl --user start xpucached-push.service"
        return Problem("push-failed", f"what was compiled here could not be pushed{where}: {last.error}", hint)
    # What is from the future, as a file's time may be, says nothing.
    known = [one for one in (set_up, set_up if last is None else last.at) if one <= now]
    if max([min(started, now), *known]) + _LONGEST > now:
        return None
    when = "none yet" if last is None else f"the last one at {last.at:%Y-%m-%d %H:%M %Z}"
    hint = f"see: systemctl --user list-timers; {_UNIT}; to push nothing any more, unset bundles.push"
    return Problem("push-overdue", f"what was compiled here is to be pushed, and for a day no push ended: {when}", hint)
