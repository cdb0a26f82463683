"""``python -m xpucached.catalog FILE``: brings a catalog to the newest revision; see `opening.migrate_apart`."""

from __future__ import annotations

import sys
from pathlib import Path

from xpucached.catalog.opening import bring_up

if __name__ == "__main__":
    bring_up(Path(sys.argv[1]))
