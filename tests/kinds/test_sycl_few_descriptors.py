"""What a dead daemon left is finished where hardly a file can be opened: then nothing is done, and nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.kinds.test_sycl_two_deaths import Life, acts, contents, fill, start, usable
from xpucached.kinds.sycl import remover

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.builders import SyclStore

pytestmark = pytest.mark.flow


@contextlib.contextmanager
def leaving(free: int) -> Iterator[None]:
    """Leave so many descriptors that can be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        next_one = os.open("/", os.O_RDONLY)
        os.close(next_one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one + free, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield


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
