"""Where a process keeps its SYCL store, what the runtime tells of it, and how old a lock must be."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from xpucached.domain.host import Process
from xpucached.domain.stores import Store
from xpucached.kinds.sycl import NAME, discovery, entry_format, locks, trace

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
ON: Final = "SYCL_CACHE_PERSISTENT"


def process(variables: Mapping[str, str], *libraries: Path, pid: int = 7, directory: Path | None = None) -> Process:
    return Process(pid, 0, NOW, "app", directory, variables, libraries)


def configured(folder: Path, text: str) -> Path:
    """Write a configuration file; give the runtime beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "sycl.conf").write_text(text)
    return folder / "libsycl.so.8"


# -- where ------------------------------------------------------------------------------------------------------------


def test_the_cache_is_on_if_the_environment_or_else_the_file_says_so(tmp_path: Path) -> None:
    on, off = (configured(tmp_path / name, f"{ON}={name}\n") for name in ("1", "0"))
    assert discovery.enabled(process({ON: "1"}, off))
    assert discovery.enabled(process({}, on))
    assert not discovery.enabled(process({ON: "0"}, on))
    assert not discovery.enabled(process({ON: "true"}))
    assert not discovery.enabled(process({}, off))
    assert not discovery.enabled(process({}, tmp_path / "1" / "libother.so"))


def test_a_cache_that_only_the_file_switches_on_is_known_by_the_file(tmp_path: Path) -> None:
    runtime = configured(tmp_path / "lib", f"{ON}=1\n")
    place = Path("/h/.cache/libsycl_cache")
    assert discovery.locate(process({"HOME": "/h"}, runtime)) == (place, str(tmp_path / "lib" / "sycl.conf"))
    assert discovery.locate(process({"HOME": "/h", ON: "1"}, runtime)) == (place, "process 7 (app)")
    assert discovery.locate(process({}, runtime)) is None


def test_a_program_of_nobody_in_particular_has_the_cache_on() -> None:
    assert discovery.locate(process({"HOME": "/h"}, pid=0)) == (Path("/h/.cache/libsycl_cache"), "app")
    assert discovery.locate(process({"HOME": "/h", ON: "0"}, pid=0)) is None


def test_a_relative_place_needs_a_directory() -> None:
    assert discovery.locate(process({"SYCL_CACHE_DIR": "rel"})) is None
    assert discovery.locate(process({"SYCL_CACHE_DIR": "../rel/"}, directory=Path("/a/b"))) == (
        Path("/a/rel"),
        "process 7 (app)",
    )


def test_the_file_is_looked_for_beside_the_runtime_and_then_where_libraries_are(tmp_path: Path) -> None:
    first = configured(tmp_path / "first", "SYCL_CACHE_DIR=/first\n")
    configured(tmp_path / "second", "SYCL_CACHE_DIR=/second\n")
    paths = {"LD_LIBRARY_PATH": f":{tmp_path}/none:{tmp_path}/second"}
    assert discovery.locate(process(paths, first)) == (Path("/first"), str(tmp_path / "first" / "sycl.conf"))
    assert discovery.locate(process(paths)) == (Path("/second"), str(tmp_path / "second" / "sycl.conf"))
    named = {**paths, "SYCL_CONFIG_FILE_NAME": str(tmp_path / "none")}
    assert discovery.locate(process(named, first)) is None
    assert discovery.locate(process({"SYCL_CONFIG_FILE_NAME": "sycl.conf"}, first)) is None


def test_lines_of_the_file_are_names_and_values_up_to_a_length(tmp_path: Path) -> None:
    long = "/" + "x" * 200
    text = f"SYCL_CACHE_DIR=/commented # out\nnothing\nSYCL_CACHE_DIR={long}\n"
    found = discovery.locate(process({}, configured(tmp_path / "lib", text)))
    assert found is not None
    assert os.fspath(found[0]) == long[:164]


def test_a_store_is_four_directories_with_numbers_deep_or_has_programs_from_source(tmp_path: Path) -> None:
    assert not discovery.recognise(tmp_path)
    (tmp_path / "three/1/2/3").mkdir(parents=True)
    assert not discovery.recognise(tmp_path / "three")
    (tmp_path / "three/1/2/3/x").mkdir()
    assert not discovery.recognise(tmp_path / "three")
    (tmp_path / "three/1/2/3/4").mkdir()
    assert discovery.recognise(tmp_path / "three")
    (tmp_path / "other" / entry_format.RTC).mkdir(parents=True)
    assert discovery.recognise(tmp_path / "other")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/1").symlink_to(tmp_path / "three/1")
    assert not discovery.recognise(tmp_path / "linked")


@pytest.mark.parametrize(
    ("path", "writing"),
    [
        ("/c/1/2/3/4/0.bin", True),
        ("/c/1/2/3/4/12.src (deleted)", True),
        ("/c/ext_kernel_compiler/k/ir.lock", True),
        ("/c/cache_size.txt", True),
        ("/c/1/2/3/4/0.txt", False),
        ("/c/1/2/3/4/x.bin", False),
        ("/c/1/2/3/4/0.bin.part", False),
    ],
)
def test_who_writes_has_a_file_of_a_slot_open(path: str, *, writing: bool) -> None:
    assert discovery.writes(path) == writing


# -- what the runtime tells -------------------------------------------------------------------------------------------


def told(*lines: str) -> tuple[set[str], set[str]]:
    found = trace.read(Store(NAME, Path("/cache")), lines)
    return set(found.created), set(found.used)


def test_what_was_stored_is_not_called_used_and_what_is_no_trace_says_nothing() -> None:
    key = "/cache/1/2/3/4/0.bin"
    stored, used = f"binary has been cached: {key}", f"using cached device binary: {key}"
    mark = "[Persistent Cache]: "
    assert told(mark + used) == (set(), {"1/2/3/4/0"})
    assert told(mark + used, mark + stored) == ({"1/2/3/4/0"}, set())
    assert told(used, stored, mark + "nothing of it") == (set(), set())


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("1/2/3/4/0.bin", "1/2/3/4/0"),
        (f"{entry_format.RTC}/1/2/3/0.bin", f"{entry_format.RTC}/1/2/3/0"),
        ("1/2/3/4/5/6.bin", None),
        ("1/2/../4/0.bin", None),
        (f"{entry_format.RTC}/{'A' * 43}=", f"{entry_format.RTC}/{'A' * 43}=/ir"),
        (f"{entry_format.RTC}/{'A' * 42}", None),
        (f"7/{'A' * 43}=", f"7/{'A' * 43}="),
    ],
)
def test_a_trace_names_keys_and_nothing_else(path: str, key: str | None) -> None:
    assert told(f"[Persistent Cache]: using cached device binary: /cache/{path}") == (set(), {key} if key else set())


# -- how old a lock is ------------------------------------------------------------------------------------------------


def age(tmp_path: Path, seconds: float, writer: float | None = None) -> float | None:
    """Return the age of a lock that was made so many seconds ago, while a writer lives since ``writer`` seconds."""
    lock = tmp_path / "0.lock"
    lock.touch()
    made = (NOW - timedelta(seconds=seconds)).timestamp()
    os.utime(lock, (made, made))
    since = None if writer is None else NOW - timedelta(seconds=writer)
    found = locks.age(lock.stat(), NOW, since)
    return None if found is None else found.total_seconds()


@pytest.mark.parametrize(
    ("seconds", "writer", "left"),
    [
        (0, None, False),
        (4, None, False),
        (5, None, True),
        (599, 600, False),
        (300, 300, False),
        (300, 299, True),
        (4, 1, False),
        (600, 3600, True),
    ],
)
def test_a_lock_is_left_behind_when_nobody_lives_who_made_it_or_after_ten_minutes(
    tmp_path: Path, seconds: float, writer: float | None, *, left: bool
) -> None:
    assert age(tmp_path, seconds, writer) == (seconds if left else None)


def test_only_for_what_is_ours_it_matters_who_lives(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    (tmp_path / "0.lock").touch()
    os.chown(tmp_path / "0.lock", 12345, 12345)
    assert age(tmp_path, 300) is None
    assert age(tmp_path, 600) == 600


def test_a_lock_of_an_xpucached_is_told_from_that_of_a_program() -> None:
    assert locks._maker(b"") is None
    assert locks._maker(b"xpucached") is None
    earlier = locks._maker(b"xpucached \n")
    assert earlier is not None
    assert earlier.pid == 0
