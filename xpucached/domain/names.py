"""Texts that must not be confused.  Pure."""

from __future__ import annotations

from typing import NewType

KindName = NewType("KindName", str)
EntryKey = NewType("EntryKey", str)
EntryRef = NewType("EntryRef", str)
Fingerprint = NewType("Fingerprint", str)
Architecture = NewType("Architecture", str)
ModelName = NewType("ModelName", str)
JobId = NewType("JobId", str)
TrashRef = NewType("TrashRef", str)
