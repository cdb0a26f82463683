"""What a daemon does for its memory, and for the time that it takes to look after it."""

from __future__ import annotations

import gc

import pytest

from xpucached.daemon import memory


def test_no_garbage_is_looked_for_in_what_was_loaded_but_in_what_comes_after() -> None:
    with memory.loading():
        assert not gc.isenabled()
        loaded: list[object] = [[]]

    assert gc.isenabled()
    assert not any(one is loaded for one in gc.get_objects())
    later: list[object] = [[]]
    assert any(one is later for one in gc.get_objects())


def test_what_cannot_be_loaded_leaves_garbage_to_be_looked_for() -> None:
    with pytest.raises(ImportError), memory.loading():
        raise ImportError

    assert gc.isenabled()
