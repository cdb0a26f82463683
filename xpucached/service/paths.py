"""Paths that requests name, with their links resolved."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from xpucached import deadlines
from xpucached.errors import RequestError


async def real_path(path: Path) -> Path:
    """Give a path with its links resolved.  Raises `RequestError` if its file system does not answer."""
    try:
        return Path(await asyncio.to_thread(deadlines.ask, path, lambda: os.path.realpath(path)))
    except TimeoutError as error:
        raise RequestError(
            f"the file system of {path} does not answer", hint="see: findmnt; try again later"
        ) from error


async def real_path_if_any(path: Path | None) -> Path | None:
    """Do the same where a path may be missing."""
    return None if path is None else await real_path(path)
