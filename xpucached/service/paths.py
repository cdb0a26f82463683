"""Paths that requests name, with their links resolved."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from xpucached import deadlines, mounts
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable


async def real_path(path: Path) -> Path:
    """Return a path with its links resolved.  Raises `RequestError` if its file system does not answer."""
    try:
        return Path(await asyncio.to_thread(deadlines.ask, path, lambda: mounts.real(path)))
    except TimeoutError as error:
        raise RequestError(
            f"the file system of {path} does not answer", hint="see: findmnt; try again later"
        ) from error


async def real_paths(paths: Iterable[Path]) -> frozenset[Path]:
    """Do the same for several."""
    return frozenset([await real_path(path) for path in paths])


async def real_path_if_any(path: Path | None) -> Path | None:
    """Do the same where a path may be missing."""
    return None if path is None else await real_path(path)
