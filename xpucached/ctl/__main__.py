"""Door: ``python -m xpucached.ctl``, for where the console script is not installed."""

from __future__ import annotations

import sys

from xpucached.ctl import main

sys.exit(main())
