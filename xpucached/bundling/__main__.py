"""The program: an order as JSON on one descriptor; progress, and at the end a report or a refusal, on another."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import sys
from typing import TYPE_CHECKING, Final, cast

from xpucached import codec, logs, messages
from xpucached.bundling.progress import Paced
from xpucached.domain.bundles import (
    BundleOrder,
    BundleReport,
    DiffBundles,
    ExportBundle,
    FetchBundles,
    ImportBundle,
    InspectBundle,
    MakeKey,
    MergeBundles,
    PullBundle,
    PushBundle,
    ReplayBundle,
    SendBundle,
)
from xpucached.domain.fleet import AskFingerprint, DiffFleet, FleetOrder
from xpucached.errors import DiskError, XpucachedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.bundling.progress import Came, Progress
    from xpucached.domain.imports import EntriesCame

_LARGEST: Final = 64 << 20
"""Bytes of an order; some of standard input are six where they are JSON."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OBJECTS: Final = 50_000
"""So many are made before those that hold each other are looked for: each entry makes some that stay."""


def carry_out(  # noqa: PLR0911 - one for each order
    order: BundleOrder, progress: Progress, came: Came = lambda *_: None
) -> BundleReport:
    """Do what an order says."""
    # To load all of it takes longer than most orders.
    match order:
        case ExportBundle():
            from xpucached.bundling import exporting  # noqa: PLC0415 - see above

            return exporting.export(order, progress)
        case InspectBundle():
            from xpucached.bundling import inspecting  # noqa: PLC0415 - see above

            return inspecting.inspect(order, progress)
        case DiffBundles():
            from xpucached.bundling import inspecting  # noqa: PLC0415 - see above

            return inspecting.diff(order, progress)
        case ImportBundle():
            from xpucached.bundling import importing  # noqa: PLC0415 - see above

            return importing.take_in(order, progress, came)
        case ReplayBundle(cluster=""):
            from xpucached.bundling import importing  # noqa: PLC0415 - see above

            return importing.replay(order, progress, came)
        case ReplayBundle():
            from xpucached.bundling import farming  # noqa: PLC0415 - see above

            return farming.replay(order, progress, came)
        case MergeBundles():
            from xpucached.bundling import merging  # noqa: PLC0415 - see above

            return merging.merge(order, progress)
        case MakeKey():
            from xpucached.bundling import signing  # noqa: PLC0415 - see above

            return signing.keygen(order)
        case PushBundle():
            from xpucached.bundling import registries  # noqa: PLC0415 - see above

            return registries.push(order, progress)
        case PullBundle():
            from xpucached.bundling import registries  # noqa: PLC0415 - see above

            return registries.pull(order, progress)
        case FetchBundles():
            from xpucached.bundling import fetching  # noqa: PLC0415 - see above

            return fetching.fetch(order, progress)
        case SendBundle():
            from xpucached.bundling import sending  # noqa: PLC0415 - see above

            return sending.send(progress)


def _of_fleet(order: FleetOrder, progress: Progress) -> object:
    from xpucached.bundling import fleet  # noqa: PLC0415 - as in `carry_out`

    return fleet.fingerprint(order, progress) if isinstance(order, AskFingerprint) else fleet.diff(order, progress)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is asked; gives the exit status."""
    options = argparse.ArgumentParser(prog="xpucached-bundling", description="Makes and reads bundles.")
    options.add_argument("--order", type=int, required=True)
    options.add_argument("--fd", type=int, required=True)
    options.add_argument("--ack", type=int, help="gives a byte for each time that what comes was noted")
    given = options.parse_args(argv)
    logs.begin("WARNING")
    # Nothing is kept for long here, and all that was loaded is.
    gc.freeze()
    gc.set_threshold(_OBJECTS)
    with os.fdopen(given.order, "rb") as file, os.fdopen(given.fd, "wb") as answers:

        def say(what: object) -> None:
            answers.write(codec.dumps(codec.to_json(what)) + b"\n")
            answers.flush()

        def tell(one: EntriesCame) -> None:
            say({"came": one})
            if one.coming and given.ack is not None and not os.read(given.ack, 1):
                raise XpucachedError("nobody notes any more of whom entries are, so none is put into a store")

        try:
            # A path need not be UTF-8.
            told = messages.parse(file.read(_LARGEST), largest=_LARGEST, escaped_bytes=True)
            order = cast("BundleOrder | FleetOrder", codec.convert(told, BundleOrder | FleetOrder))
            progress = Paced(lambda *how_far: say({"progress": how_far}))
            match order:
                case AskFingerprint() | DiffFleet():
                    say({"report": _of_fleet(order, progress)})
                case _:
                    say({"report": carry_out(order, progress, tell)})
        except OSError as error:
            message, hint = str(error), ""
            if error.errno in _FULL and error.filename is None:
                message = f"what is made does not find room: {error.strerror}"
                hint = "make room where it goes, and where it lies meanwhile: TMPDIR, or /tmp"
            say({"error": {"code": DiskError.code, "message": message, "hint": hint}})
        except XpucachedError as error:
            say({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
