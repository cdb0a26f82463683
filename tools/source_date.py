"""When the sources were last changed: what is built from them carries this time, so that it is the same each time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def seconds() -> int:
    """Return seconds since the epoch: ``SOURCE_DATE_EPOCH``, or the last commit's, or the change notes' time."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given.isdecimal():
        return int(given)
    command = ["git", "-C", os.fspath(ROOT), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        done = None
    # Only the repository of these very files: an unpacked archive may lie below somebody else's.
    if done is not None and done.returncode == 0 and done.stdout.strip() and (ROOT / ".git").exists():
        return int(done.stdout)
    return int((ROOT / "CHANGELOG.md").stat().st_mtime)


if __name__ == "__main__":
    print(seconds())
