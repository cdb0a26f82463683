"""``python -m xpucached``: the daemon."""

from __future__ import annotations

import sys

from xpucached.daemon.main import main

if __name__ == "__main__":
    sys.exit(main())
