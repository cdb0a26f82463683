"""What is done to a store in a process of its own, because it is killed amid it: ``argv`` is the store and the act."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.support.builders import native, sycl_target
from xpucached.domain.plans import EvictReason, Recipe
from xpucached.domain.stores import EntryId, FoundStore, Scan, Store, StoreOrigin
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import sycl

KEPT: Final = "2025.20.12.0.09_233955.xmain-hotfix"
"""The driver whose entries stay."""


def look(root: Path) -> Scan:
    """See what a store holds."""
    return sycl.scanner.scan(FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test"), datetime.now(UTC), {}, None)


def main() -> int:
    """Do it."""
    root, act = Path(sys.argv[1]), sys.argv[2]
    scan = look(root)
    going = [one for one in scan.entries if one.environment and one.environment.toolchain != KEPT]
    if act == "remove":
        assert all(sycl.remover.remove(going).values())
    elif act == "trash":
        note = TrashLabel(datetime.now(UTC), EvictReason.UNUSED, "test")
        assert all(sycl.remover.remove(going, {one.id: note for one in going}).values())
    elif act == "restore":
        refs = tuple(one.ref for one in sycl.trash_files.trash(scan.found.store))
        assert all(one.key for one in sycl.trash_files.restore(scan.found.store, refs))
    elif act == "publish":
        (kept,) = (one for one in scan.entries if one not in going)
        recipe = sycl.recipes.recipe(kept)
        assert isinstance(recipe, Recipe), recipe
        assert sycl.recipes.publish(recipe, sycl_target("P", "D", "v", "new"), native(300))
    elif act == "sweep":
        assert all(sycl.remover.sweep(EntryId(scan.found.store, key)) for key in scan.ours)
    return 0
