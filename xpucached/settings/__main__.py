"""``python -m xpucached.settings ASKED``: the process that reads a configuration for `settings.apart`."""

from __future__ import annotations

from xpucached.settings.apart import main

if __name__ == "__main__":
    main()
