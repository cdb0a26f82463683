"""The host's figures in a file, for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.render.metrics import host_metrics

if TYPE_CHECKING:
    from xpucached.hostd.supervisor import HostDaemon

log = logging.getLogger(__name__)

NAME: Final = "xpucached.prom"
EVERY: Final = 60.0
"""Seconds between two writes: who reads figures that are older than some of these knows that nobody writes them."""


async def keep(host_daemon: HostDaemon, directory: str | None) -> None:
    """Write the figures down, for ever; nowhere without a runtime directory, which systemd gives."""
    failing = ""
    while True:
        if directory:
            try:
                text = host_metrics(host_daemon.status(None), datetime.now(UTC))
                await asyncio.to_thread(write, Path(directory), text)
                failing = ""
            except Exception as error:  # noqa: BLE001 - who reads them sees that they are old; users are looked after
                level = logging.WARNING if str(error) != failing else logging.DEBUG
                log.log(level, "the figures for Prometheus could not be written: %s", error)
                failing = str(error)
        await asyncio.sleep(EVERY)


def write(directory: Path, text: str) -> None:
    """Write them for everybody to read; a reader has the old ones or the new ones, and never a part.

    Raises `OSError`.
    """
    beside = directory / f".{NAME}.new"
    beside.unlink(missing_ok=True)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        # Our mask would keep it from the exporter's user.
        os.fchmod(handle, 0o644)
        file.write(text)
    beside.replace(directory / NAME)
