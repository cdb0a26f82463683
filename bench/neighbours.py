"""What watching costs others: work that has nothing to do with a store, on the file system where one is watched."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.watch.fanotify_client import Fanotify, WatchCoverage

if TYPE_CHECKING:
    from collections.abc import Mapping

MODES: Final[Mapping[str, bool | None]] = {"not watched": None, "watch": False, "watch.loads": True}
_IMPORTS: Final = "import sqlalchemy, msgspec, starlette, uvicorn, apscheduler, watchdog, psutil"


def watching(root: Path, place: Path, rounds: int) -> dict[str, float]:
    """Return the time of each work while a store is watched over that when none is; nothing where we may not watch."""
    library = place / "library"
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns("site-packages"))
    works = {
        "grep -r": ["grep", "-rc", "a word that is nowhere", os.fspath(library)],
        "tar": ["sh", "-c", f"tar cf - '{library}' 2>&1 | cat >/dev/null"],
    }
    if Path(sysconfig.get_path("purelib")).stat().st_dev == root.stat().st_dev:
        works["importing packages"] = [sys.executable, "-c", _IMPORTS]
    seen: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for mode, loads in MODES.items():
            watcher = _watcher(root, loads=loads) if loads is not None else None
            for name, words in works.items():
                began = time.perf_counter()
                subprocess.run(words, stdout=subprocess.DEVNULL, check=False)
                if number:  # the first round warms
                    seen.setdefault((name, mode), []).append(time.perf_counter() - began)
            if watcher is not None:
                watcher.stop()
    shutil.rmtree(library)
    return {
        f"{name}, {mode} / not watched": statistics.median(values) / statistics.median(seen[name, "not watched"])
        for (name, mode), values in sorted(seen.items())
        if MODES[mode] is not None
    }


def _watcher(root: Path, *, loads: bool) -> Fanotify:
    watcher = Fanotify(lambda _: None, lambda _: None, place=Path("/nonexistent"), loads=loads)
    answer = watcher.cover([root]).get(root, watcher.reason)
    if not isinstance(answer, WatchCoverage):
        watcher.stop()
        raise PermissionError(answer)
    return watcher
