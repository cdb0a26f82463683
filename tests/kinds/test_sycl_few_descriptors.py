"""What a dead daemon left is finished where hardly a file can be opened: then nothing is done, and nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.kinds.test_sycl_two_deaths import Life, acts, contents, fill, start, usable
from tests.support.descriptors import leaving
from xpucached.kinds.sycl import remover

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.builders import SyclStore

pytestmark = pytest.mark.flow


def test_what_is_left_is_finished_whole_however_few_can_be_opened(
    sycl_store: SyclStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(monkeypatch, links=True)
    monkeypatch.setattr(remover, "_LINGER", 0.0)
    torn = 0
    for last, free in itertools.product(range(6, 9), range(14)):
        store = type(sycl_store)(tmp_path / f"{last}-{free}" / "cache")
        fill(store, 2)
        every = contents(store.root)
        assert life.live(acts(store, "first goes"), last)
        torn += contents(store.root) != every
        look = partial(start, store)
        with leaving(free), contextlib.suppress(OSError):
            look()
        look()
        look()
        assert usable(store) == every, (last, free)
    assert torn >= 14
