"""Programs that are run by their path, in processes of their own, and never imported by the daemon."""

from __future__ import annotations
