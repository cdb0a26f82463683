"""How much room caches take, for whom, and what of it could go.  Pure."""

from __future__ import annotations

from msgspec import Struct


class DiskLine(Struct, frozen=True):
    """What one driver's entries for a device, or one model's, take."""

    name: str  #: the driver's version, or the model's name
    device: str  #: empty of a model
    entries: int
    allocated: int  #: bytes on disk
    reclaimable: int  #: bytes of it that an eviction would free now
    present: bool = True  #: whether this host has that driver and device, or there is that model still
    further: int = 0  #: bytes in directories of a model's, where other compilers cache


class DiskUse(Struct, frozen=True):
    """What the stores hold, by driver and by model: entries that several models use count for each of them."""

    drivers: tuple[DiskLine, ...]
    models: tuple[DiskLine, ...]
    entries: int
    allocated: int
    reclaimable: int
    trash: int  #: bytes in the trashes
    further: int = 0  #: bytes in directories of models, where other compilers cache, each counted once
