"""Act: tell systemd how we are, and its journal what happened; touches the two sockets that it gives us.

A message of the journal that other programs may wait for has an id that never changes: ``docs/operations.md`` lists
them.  Without systemd nothing is told, and nothing fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from xpucached.printing import safe

log = logging.getLogger(__name__)

MESSAGES: Final[Mapping[str, str]] = {
    "started": "e562682f6e9f46a09df64e5a333055b6",
    "driver-changed": "a2a52a44c6bc46a38f4d9b7a0d172900",
    "model-warmed": "6ed6583bb0cf4a91859f4f3c3d6d9331",
    "model-failed": "d30755ec49f34466b5131fc7b446ea7a",
    "evicted": "2ab8b78b60f344ed8801cf79362c791a",
    "alarm": "5d65c777635e412f9be3b1668008b0a3",
    "replayed": "b9c9d2112d974a44b282d0f0a7060ab9",
    "compiling-while-serving": "6fcba5eaef2d4c65a3231725cf04d06c",
    "automatic-job-failed": "4d5250a5a8b840cbb024e9a3ae6c600c",
    "catalog-rebuilt": "bd5fb94ad3174696a123cbe9ad3f0e9c",
}
"""What is told with an id, and the id."""

SENTENCES: Final[Mapping[str, str]] = {
    "compiling-while-serving": "a program of a service compiles and makes its users wait",
    "automatic-job-failed": "something that the daemon does by itself failed",
    "catalog-rebuilt": "the catalog could not be used and was made anew",
}
"""What is told where the event's own sentence quotes what only its user may read."""

_PRIORITIES: Final[Mapping[str, int]] = {
    "model-failed": 4,
    "alarm": 3,
    **dict.fromkeys(SENTENCES, 4),
}
_JOURNAL: Final = Path("/run/systemd/journal/socket")
_LONGEST: Final = 16 << 10  # longer ones would need a file of their own, and nobody reads them

_STARTS: Final = 1800
_LONGER: Final = 20
"""Seconds after which systemd is told again to wait so long, three times over."""


def notify(*lines: str, patience: float = 1.0) -> None:
    """Tell systemd something, if it started us.  What quotes others stays one line, whatever is in it.

    It may have no time for us, and too much before it that nobody has read: we do not wait for that longer than
    ``patience``, in seconds, for everything else waits with us.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
            speaker.settimeout(patience)
            speaker.connect("\0" + address[1:] if address.startswith("@") else address)
            speaker.sendall("\n".join(map(safe, lines)).encode("utf-8", "replace"))
    except (BlockingIOError, TimeoutError):
        log.debug("systemd does not listen just now")
    except OSError as error:
        log.warning("systemd cannot be told: %s", error)


@contextlib.asynccontextmanager
async def starting() -> AsyncIterator[None]:
    """Have systemd wait while a part of a start takes long, for `_STARTS` seconds at most.

    A daemon that has much to put right would be killed, and have as much to do at its next start.
    """

    async def wait() -> None:
        for _ in range(round(_STARTS / _LONGER)):
            notify(f"EXTEND_TIMEOUT_USEC={round(3e6 * _LONGER)}")
            await asyncio.sleep(_LONGER)

    waiting = asyncio.create_task(wait())
    try:
        yield
    finally:
        waiting.cancel()


async def ping() -> None:
    """Tell systemd for ever that the loop turns, as often as it wants to hear it."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    ours = os.environ.get("WATCHDOG_PID") in (None, str(os.getpid()))
    wanted = microseconds.isdigit() and ours and int(microseconds) > 0
    while True:
        if wanted:
            notify("WATCHDOG=1", patience=0.0)
        await asyncio.sleep(int(microseconds) / 3e6 if wanted else 3600)


def tell(what: str, message: str, fields: Mapping[str, str] | None = None, place: Path = _JOURNAL) -> None:
    """Write a message with an id into the journal, if our log goes there; ``fields`` get ``XPUCACHED_`` before them."""
    if "JOURNAL_STREAM" not in os.environ:
        return
    values = {
        "MESSAGE": message,
        "MESSAGE_ID": MESSAGES[what],
        "PRIORITY": str(_PRIORITIES.get(what, 6)),
        "SYSLOG_IDENTIFIER": "xpucached",
        "XPUCACHED_EVENT": what,
    }
    values |= {f"XPUCACHED_{name.upper().replace('-', '_')}": value for name, value in (fields or {}).items()}
    data = b"".join(_field(name, value[:_LONGEST]) for name, value in values.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
            # The loop waits with us: a journal that reads nothing just now gets the line without its fields, by our
            # log.
            speaker.setblocking(False)  # noqa: FBT003 - the library's
            speaker.sendto(data, os.fspath(place))
    except OSError as error:
        log.info("%s (the journal takes no fields: %s)", message, error)


def _field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    if b"\n" not in data:
        return name.encode("ascii") + b"=" + data + b"\n"
    # A value of several lines would otherwise be read as further fields.
    return name.encode("ascii") + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
