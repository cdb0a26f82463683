"""Door: the commands about bundles.  A program of its own does it; it is started here, and its report printed."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final, cast

from xpucached import codec, messages
from xpucached.api.client import refusal
from xpucached.api.endpoints import VERSION
from xpucached.cli import hints
from xpucached.cli.progress import told_in_steps
from xpucached.domain.bundles import BundleOrder, BundleReport, DiffBundles, DiffReport, ExportBundle, InspectBundle
from xpucached.errors import RunFailed, XpucachedError
from xpucached.processes import child
from xpucached.render import bundles
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping

_LARGEST: Final = 64 << 20
"""Bytes of a report."""


def _export(given: Namespace) -> BundleOrder:
    return ExportBundle(
        given.dest,
        given.store,
        given.kind,
        given.model,
        given.driver,
        given.device,
        given.recipes_only,
        given.compression,
        given.allow_switches,
        given.with_names,
        given.driver_root,
        given.pretended,
    )


ORDERS: Final[Mapping[str, Callable[[Namespace], BundleOrder]]] = {
    "bundle export": _export,
    "bundle inspect": lambda given: InspectBundle(given.source),
    "bundle verify": lambda given: InspectBundle(given.source, deep=True),
    "bundle diff": lambda given: DiffBundles((given.first, given.second)),
}


def run(options: Namespace) -> int:
    """Have it done, and print what came of it; gives the exit status."""
    data = _asked(ORDERS[options.verb](options), quiet=options.quiet)
    report = cast("BundleReport", codec.convert(data, BundleReport))
    if options.json:
        print(codec.dumps({"api": VERSION, "data": data}).decode("ascii"))
    elif options.quiet:
        print(bundles.names(report))
    else:
        terminal = sys.stdout.isatty()
        colour = terminal and not options.no_color and "NO_COLOR" not in os.environ
        style = TextStyle(datetime.now(UTC), get_terminal_size().columns if terminal else None, colour)
        print(hints.aimed(bundles.report(report, style), "", os.environ))
    return RunFailed.exit if isinstance(report, DiffReport) and report.changes else 0


def _asked(order: BundleOrder, *, quiet: bool) -> messages.Json:
    """Start the program, show how far it is, and give its report.  Raises what it refused."""
    with child.Pipes() as pipes, told_in_steps(quiet=quiet) as show:
        orders = pipes.content("order", codec.dumps(codec.to_json(order)))
        answers, theirs = pipes.from_child()
        command = [*child.module("xpucached.bundling"), "--order", str(orders), "--fd", str(theirs)]
        started = child.start(
            command,
            variables=os.environ,
            stderr=sys.__stderr__.fileno() if sys.__stderr__ else child.NOTHING,
            pipes=pipes,
        )
        try:
            with os.fdopen(os.dup(answers), "rb") as lines:
                while line := lines.readline(_LARGEST):
                    said = messages.members(messages.parse(line, largest=_LARGEST, depth=32))
                    match said:
                        case {"progress": [int(done), int(total), str(words)]}:
                            show(done, total, words)
                        case {"report": report}:
                            return report
                        case {"error": {"code": str(code), "message": str(message), "hint": str(hint)}}:
                            raise refusal(code, message, hint)
                        case _:
                            break
        except messages.BadMessage as error:
            raise XpucachedError(f"the program for bundles answered what cannot be read: {error}") from error
        finally:
            status = child.end(started)
    raise XpucachedError(f"the program for bundles ended without an answer, with status {status}")
