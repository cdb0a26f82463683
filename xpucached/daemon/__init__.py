"""The lives of the daemon's processes: a user's, and the host's."""

from __future__ import annotations

from xpucached.daemon import library  # noqa: F401 - before whatever else a daemon loads
