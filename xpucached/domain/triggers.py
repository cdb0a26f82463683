"""Hints that something may have changed.  Pure."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class Started(Struct, frozen=True):
    """The daemon has just started."""


class DriverChanged(Struct, frozen=True):
    """A file of the driver may have changed."""


class StoreChanged(Struct, frozen=True):
    """Something happened in a store."""

    root: Path


class ModelsChanged(Struct, frozen=True):
    """A model file may have changed, or a model was registered."""


class KeysChanged(Struct, frozen=True):
    """A key that signs bundles, or what is revoked, may have changed."""


class Periodic(Struct, frozen=True):
    """The periodic look."""


class EventsLost(Struct, frozen=True):
    """Something may have happened anywhere, and the watcher was not told."""


Trigger = Started | DriverChanged | StoreChanged | ModelsChanged | KeysChanged | Periodic | EventsLost
