"""What is wrong with a SYCL store as a whole: what can be put an end to, and what only people can."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.kinds import sycl
from xpucached.kinds.sycl import defects, doctor

if TYPE_CHECKING:
    from tests.support.builders import SyclStore
    from xpucached.domain.defects import StoreFault

NOW: Final = datetime.now(UTC)


@pytest.mark.parametrize("fault", [defects.SIZE_MISSING, defects.EVICTION_ON], ids=lambda one: one.code)
def test_what_only_people_can_put_an_end_to_is_not_called_cleared(sycl_store: SyclStore, fault: StoreFault) -> None:
    sycl_store.add()
    if fault is defects.EVICTION_ON:
        (sycl_store.root / doctor.SIZE).write_text("1")
    else:
        sycl_store.root.chmod(0o500)
    found = FoundStore(Store(sycl.NAME, sycl_store.root), StoreOrigin.FOUND, "test")
    assert doctor.faults(found, NOW, None) == (fault,)
    assert not doctor.clear(found.store, fault, NOW, None)
    assert doctor.faults(found, NOW, None) == (fault,)


@pytest.mark.parametrize("target", ["old", "nothing"])
def test_a_link_that_keeps_writers_away_is_judged_by_itself(sycl_store: SyclStore, target: str) -> None:
    sycl_store.add()
    old = sycl_store.root.parent / "old"
    old.touch()
    os.utime(old, (0, 0))
    barrier = sycl_store.root.with_name(sycl_store.root.name + doctor._BARRIER)
    barrier.symlink_to(target)
    store = Store(sycl.NAME, sycl_store.root)
    assert not doctor.clear(store, defects.BARRIER, datetime.now(UTC), None)
    assert barrier.is_symlink()
    os.utime(barrier, (0, 0), follow_symlinks=False)
    assert doctor.clear(store, defects.BARRIER, datetime.now(UTC), None)
    assert not barrier.is_symlink()
    assert old.exists()
