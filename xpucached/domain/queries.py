"""Which entries are asked for, and a page of them.  Pure."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from xpucached.domain.names import KindName, ModelName
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.stores import EntryState
from xpucached.domain.targets import Origin


class EntryQuery(Struct, frozen=True):
    """Which entries are asked for; every condition that is given must hold."""

    ref: str | None = None  #: the beginning of an `EntryRef`
    kind: KindName | None = None
    store: Path | None = None
    driver: str | None = None  #: exact, or the beginning followed by ``*``; ``current`` is what the host offers now
    architecture: str | None = None  #: one, or several with commas between; a request may name a product
    device: str | None = None  #: part of the device's name
    model: ModelName | None = None
    state: EntryState | None = None
    origin: Origin | None = None
    bundle: str | None = None  #: of this bundle, by the beginning of its digest, or of those that this key signed
    defect: str | None = None
    kernel: str | None = None  #: part of a kernel's name, mangled or not
    min_size: int | None = None
    max_size: int | None = None
    unused: float | None = None  #: not used for so many seconds
    limit: int | None = None
    after: str | None = None  #: continue behind this cursor


class EntryPage(Struct, frozen=True):
    """Some entries, and where the next ones begin."""

    entries: tuple[IndexedEntry, ...]
    total: int
    size: int  #: allocated bytes of all that match
    next: str | None = None
