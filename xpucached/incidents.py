"""Tell of what nobody expected: each failure gets a reference, which stands in the log and in what people are told."""

from __future__ import annotations

import logging
from uuid import uuid4

from xpucached.errors import XpucachedError

_DIGITS = 8


def unexpected(log: logging.Logger, where: str, error: BaseException, *, affected: str = "") -> XpucachedError:
    """Write an error into the log, and give what people are told of it.

    ``where`` says in the log what was being done; ``affected`` tells people what does not work now, if anything.
    """
    reference = uuid4().hex[:_DIGITS]
    log.error("[%s] something unexpected happened %s", reference, where, exc_info=error)
    effect = f"; {affected}" if affected else ""
    return XpucachedError(
        f"something unexpected happened (reference {reference}){effect}",
        hint=f"look for {reference} in the daemon's log (journalctl -g {reference}), and report what stands there",
    )
