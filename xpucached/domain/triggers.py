"""Hints that something may have changed.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Started:
    """The daemon has just started."""


@dataclass(frozen=True, slots=True)
class DriverChanged:
    """A file of the driver may have changed."""


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """Something happened in a store."""

    root: Path


@dataclass(frozen=True, slots=True)
class ModelsChanged:
    """A model file may have changed, or a model was registered."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """The periodic look."""


@dataclass(frozen=True, slots=True)
class EventsLost:
    """Something may have happened anywhere, and the watcher was not told."""


Trigger = Started | DriverChanged | StoreChanged | ModelsChanged | Periodic | EventsLost
