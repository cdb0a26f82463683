"""What is made of the files of a SYCL store that programs read and write: loads, and entries that were made."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from xpucached.domain.activity import FileAct, FileEvent, Program
from xpucached.domain.names import EntryKey
from xpucached.kinds import sycl
from xpucached.kinds.sycl import activity

LEAF: Final = "11/22/33/44"
STARTED: Final = datetime(2026, 1, 1, tzinfo=UTC)
APP: Final = Program(7, STARTED, 1000, "python3", "python3 serve.py", "app.service", libraries=("libsycl.so.8",))


def touch(path: str, act: FileAct, at: float = 5.0, pid: int = 7) -> FileEvent:
    return FileEvent(Path("/s"), path, act, pid, at)


def test_a_load_is_the_source_and_then_the_binary() -> None:
    key = EntryKey(f"{LEAF}/0")
    first = sycl.activity.interpret([(touch(f"{key}.src", FileAct.READ), APP)], STARTED)
    assert first.loaded == ()

    then = sycl.activity.interpret([(touch(f"{key}.bin", FileAct.READ), APP)] * 2, STARTED, first.halves)

    assert then.loaded == ((APP, Path("/s"), key, STARTED + timedelta(seconds=5)),)
    assert then.halves == frozenset()


def test_a_backup_is_no_load() -> None:
    both = [touch(f"{LEAF}/0.src", FileAct.READ), touch(f"{LEAF}/0.bin", FileAct.READ)]

    assert (
        sycl.activity.interpret([(one, replace(APP, libraries=("libze_loader.so.1",))) for one in both], STARTED).loaded
        == ()
    )
    assert sycl.activity.interpret([(one, replace(APP, ours=True)) for one in both], STARTED).loaded == ()
    # Two processes that read one half each, and one that read them the wrong way round.
    halves = [(both[0], APP), (both[1], replace(APP, pid=8))]
    assert sycl.activity.interpret(halves, STARTED).loaded == ()
    assert sycl.activity.interpret([(one, APP) for one in reversed(both)], STARTED).loaded == ()


def test_an_entry_is_made_when_its_source_is_written() -> None:
    writes = [touch(f"{LEAF}/0.{suffix}", FileAct.WRITTEN) for suffix in ("bin", "src")]
    alone = touch("ext_kernel_compiler/AA=/ir.bin", FileAct.WRITTEN)

    found = sycl.activity.interpret([(one, APP) for one in (*writes, alone)], STARTED)

    keys = [key for _, key, _ in found.made[APP]]
    assert keys == [f"{LEAF}/0", "ext_kernel_compiler/AA=/ir"]
    assert sycl.activity.interpret([(one, replace(APP, ours=True)) for one in writes], STARTED).made == {}
    assert sycl.activity.interpret([(writes[0], APP)], STARTED).made == {}, "its source follows"


def test_what_was_compiled_from_source_is_loaded_by_its_only_file() -> None:
    found = sycl.activity.interpret([(touch("ext_kernel_compiler/AA=/ir.bin", FileAct.READ), APP)], STARTED)
    assert [key for _, _, key, _ in found.loaded] == ["ext_kernel_compiler/AA=/ir"]


@pytest.mark.parametrize("act", [FileAct.READ, FileAct.WRITTEN])
@pytest.mark.parametrize("name", ["ext_kernel_compiler/AA=/ir.lock", f"{LEAF}/0.lock", f"{LEAF}/0_access_time.txt"])
def test_other_files_tell_nothing(name: str, act: FileAct) -> None:
    found = sycl.activity.interpret([(touch(name, act), APP)], STARTED)
    assert (found.loaded, found.made, found.halves) == ((), {}, frozenset())


def test_so_many_halves_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_MOST_HALVES", 2)
    reads = [(touch(f"{LEAF}/{slot}.src", FileAct.READ), APP) for slot in range(3)]
    assert len(sycl.activity.interpret(reads, STARTED).halves) == 2


@pytest.mark.parametrize(
    ("path", "half"), [(f"{LEAF}/0.bin", True), (f"{LEAF}/10.bin", False), (f"{LEAF}/0.src", False)]
)
def test_of_a_first_program_the_source_follows(path: str, *, half: bool) -> None:
    assert sycl.activity.is_half(path) is half
