"""Observe: what tools of the system say: the package managers', and the dynamic loader's; starts them."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from typing import TYPE_CHECKING, Final

from xpucached.processes import child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xpucached.host.roots import HostRoots

log = logging.getLogger(__name__)

_LONGEST_OUTPUT: Final = 16 << 20
_PATIENCE: Final = 10.0  # seconds for one question to the package manager; it answers in a tenth of that
_MOST_CACHES: Final = 8

_caches: dict[tuple[object, ...], Mapping[str, Sequence[str]]] = {}


def output(command: Sequence[str]) -> str:
    """Return what a tool prints; nothing if it cannot run or takes too long."""
    try:
        return answer(command)
    except (OSError, ValueError) as error:
        log.warning("%s", error)
        return ""


def answer(command: Sequence[str]) -> str:
    """Return what a tool prints.  Raises OSError, and ValueError, if it cannot run or takes too long."""
    variables = {"PATH": child.search_path(os.environ), "LC_ALL": "C"}
    done = child.run(command, variables=variables, seconds=_PATIENCE, largest=_LONGEST_OUTPUT)
    if done.status is None:
        raise OSError(errno.EAGAIN, f"a tool gave no answer: it {done.words}", command[0])
    return done.output.decode("utf-8", "surrogateescape")


def loader_cache(places: HostRoots) -> Mapping[str, Sequence[str]]:
    """Return what the dynamic loader's cache lists, paths by library name; read by the tool that wrote it.

    Each model's driver asks for it at each look, so it is read once: an installation puts another file in its place.
    It lists a thousand libraries, so they stay text: a path takes five times as much.  Raises OSError if the tool gives
    no answer: what it lists would be taken for gone.
    """
    tool = shutil.which("ldconfig", path=child.search_path(os.environ))
    cache = places.etc / "ld.so.cache"
    try:
        status = cache.stat()
    except (OSError, ValueError):
        return {}
    if tool is None or not stat.S_ISREG(status.st_mode):
        return {}
    key = (tool, cache, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if (known := _caches.get(key)) is not None:
        return known
    found: dict[str, list[str]] = {}
    for line in answer([tool, "-p", "-C", os.fspath(cache)]).splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and path.startswith("/"):
            found.setdefault(name.split(" ", 1)[0], []).append(path)
    if found:  # a tool that gave no answer is asked again
        if len(_caches) >= _MOST_CACHES:
            _caches.clear()
        _caches[key] = found
    return found
