"""Door: ``python -m xpucached.cli``, for where the console script is not installed."""

from __future__ import annotations

import sys

from xpucached.cli import main

sys.exit(main())
