"""Texts and times that must not be confused.  Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, NewType

from msgspec import Meta

KindName = NewType("KindName", str)
EntryKey = NewType("EntryKey", str)
EntryRef = NewType("EntryRef", str)
Fingerprint = NewType("Fingerprint", str)
Architecture = NewType("Architecture", str)
ModelName = NewType("ModelName", str)
JobId = NewType("JobId", str)
TrashRef = NewType("TrashRef", str)

AwareDatetime = Annotated[datetime, Meta(tz=True)]
"""A time with its zone: one without cannot be compared with ours, and is refused where it is read."""


def group(key: EntryKey) -> str:
    """Return what entries share that are judged together: the directory that they lie in; else each is by itself."""
    return key.rpartition("/")[0] or key
