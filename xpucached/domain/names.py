"""Texts that must not be confused.  Pure."""

from __future__ import annotations

from typing import Final, NewType

KindName = NewType("KindName", str)
EntryKey = NewType("EntryKey", str)
EntryRef = NewType("EntryRef", str)
Fingerprint = NewType("Fingerprint", str)
Architecture = NewType("Architecture", str)
ModelName = NewType("ModelName", str)
JobId = NewType("JobId", str)
TrashRef = NewType("TrashRef", str)

CACHE_VARIABLES: Final = frozenset({"SYCL_CACHE_PERSISTENT", "SYCL_CACHE_DIR", "SYCL_CACHE_MAX_SIZE"})
"""Every variable that switches a cache on or off: what a kind may give, and all that a client takes over."""
