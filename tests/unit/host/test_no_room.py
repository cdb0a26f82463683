"""Where hardly a file can be opened, it is unknown what programs do: never that none does anything."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.descriptors import leaving
from xpucached.host import directory_users, process_table, process_times
from xpucached.kinds import sycl
from xpucached.service import model_caches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.flow


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Return the number of the one program there is: it works in a directory, and has a file of it open."""
    (tmp_path / "open").touch()
    words = ["/bin/sleep", "600"]
    with (tmp_path / "open").open("rb") as file, subprocess.Popen(words, cwd=tmp_path, stdin=file) as one:
        try:
            # Which there are was seen before others took what could be opened.
            monkeypatch.setattr(process_times, "pids", lambda: [one.pid])
            monkeypatch.setattr(os, "listdir", lambda _place: [str(one.pid)])
            yield one.pid
        finally:
            one.kill()


def test_it_is_never_said_that_nobody_uses_a_directory(program: int, tmp_path: Path) -> None:
    assert f"(process {program})" in directory_users.users({tmp_path})[tmp_path]
    with leaving(0):
        with pytest.raises(OSError, match="Too many open files"):
            directory_users.users({tmp_path})
        assert "it cannot be seen now" in model_caches._used({tmp_path})[tmp_path]


def test_it_is_never_said_that_nobody_has_an_entry_open(program: int, tmp_path: Path) -> None:
    assert process_table.held(frozenset({tmp_path})) == {tmp_path: {"open"}}, program
    with leaving(0), pytest.raises(OSError, match="Too many open files"):
        process_table.held(frozenset({tmp_path}))


def test_anybody_may_be_writing(program: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "_sees_all", lambda _places: True)
    assert [one.pid for one in process_table.processes(os.getuid())] == [program]
    with leaving(0):
        found = process_table.processes(os.getuid())
    assert process_table.writer_since(found, sycl.discovery.LIBRARIES, sycl.discovery.writes) == process_table.EVER
