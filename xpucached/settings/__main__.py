"""``python -m xpucached.settings ASKED``: the process that reads a configuration for `settings.reader_process`."""

from __future__ import annotations

from xpucached.settings.reader_process import main

if __name__ == "__main__":
    main()
