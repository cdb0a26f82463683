"""Compiling again what lies in a store: from what, whether programs will look for it, and where it goes."""

from __future__ import annotations

from xpucached.domain.names import EntryKey
from xpucached.kinds.sycl import preflight, recipes

recipe = recipes.recipe
unusable = recipes.unusable
publish = recipes.publish
confirm = preflight.confirm


def lineage_key(key: EntryKey) -> str | None:
    """Give the leaf below the device's directory; what the runtime compiled from source belongs to no driver."""
    device, _, rest = key.partition("/")
    leaf, _, _ = rest.rpartition("/")
    return leaf if device.isdigit() and leaf else None
