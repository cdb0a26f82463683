"""What becomes of a push of what was compiled here is remembered: a timer does it, and `status` tells of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from xpucached.bundling import drivers
from xpucached.domain.bundles import ExportBundle, PushBundle, PushReport
from xpucached.errors import NotFound, XpucachedError
from xpucached.host import pushes

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.domain.bundles import BundleOrder, BundleReport


def noted(order: BundleOrder, carry_out: Callable[[], BundleReport]) -> BundleReport:
    """Carry out an order, and remember how it ended if it is one of the two of such a push."""
    match order:
        case ExportBundle(made_here=True):
            where = ""
        case PushBundle(if_changed=True):
            where = order.reference
        case _:
            return carry_out()
    try:
        report = carry_out()
    except (XpucachedError, OSError) as error:
        nothing = isinstance(order, ExportBundle) and isinstance(error, NotFound)
        _note(where, error="" if nothing else getattr(error, "message", str(error)))
        raise
    if isinstance(report, PushReport):
        _note(report.reference, report.digest)
    return report


def _note(reference: str, digest: str = "", error: str = "") -> None:
    # A configuration that cannot be read is what failed, and is told by the daemon, too.
    with contextlib.suppress(XpucachedError):
        pushes.note(drivers.settings().paths.state, reference, digest, error)
