"""The host's daemon: which users have workers, what they say, and what is passed on to them."""

from __future__ import annotations
