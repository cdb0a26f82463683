"""Which variables of an answer are taken over: those of a list, and no path where others could have put something."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from xpucached.cli import belonging

if TYPE_CHECKING:
    from pathlib import Path


def left_out(**values: str) -> tuple[str, ...]:
    """Return what leads where others may write, and see that nothing is on no list."""
    taken, unknown, open_ = belonging.taken(values)
    assert unknown == ()
    assert taken.keys() == values.keys() - set(open_)
    return open_


def test_what_is_on_no_list_is_left_out() -> None:
    values = {
        "SYCL_CACHE_DIR": "/c",
        "LD_PRELOAD": "/e.so",
        "PATH": "/e",
        "x; y": "1",
        "ONEAPI_DEVICE_SELECTOR": "*:gpu",
    }
    taken, unknown, open_ = belonging.taken(values)
    assert taken == {"SYCL_CACHE_DIR": "/c", "ONEAPI_DEVICE_SELECTOR": "*:gpu"}
    assert (unknown, open_) == (("LD_PRELOAD", "PATH", "x; y"), ())


def test_our_own_paths_are_taken_over(short_dir: Path) -> None:
    library = short_dir / "libintelocl.so"
    library.touch()
    library.chmod(0o644)
    short_dir.chmod(0o755)
    assert left_out(LD_LIBRARY_PATH=f"{short_dir}:/usr/lib") == ()
    assert left_out(TORCHINDUCTOR_CACHE_DIR=f"{short_dir}/not/yet", TRITON_CACHE_DIR=str(short_dir)) == ()
    assert left_out(OCL_ICD_FILENAMES=f"libigdrcl.so:{library}", OCL_ICD_VENDORS="") == ()


@pytest.mark.parametrize(
    "value", ["lib", "", ".", "/usr/lib:", "/usr/lib::/lib", "/usr/lib:x", "a\0b", "/\udc80/../tmp/x"]
)
def test_what_depends_on_where_a_program_is_or_is_no_path_is_left_out(value: str) -> None:
    assert left_out(LD_LIBRARY_PATH=value) == (("LD_LIBRARY_PATH",) if value else ())


def test_our_own_paths_are_taken_over_in_a_directory_that_is_gone(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = short_dir / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert left_out(LD_LIBRARY_PATH="/usr/lib", OCL_ICD_FILENAMES=f"{short_dir}/not/yet.so") == ()
    assert left_out(LD_LIBRARY_PATH="lib") == ("LD_LIBRARY_PATH",)


def test_what_others_may_change_is_left_out(short_dir: Path) -> None:
    open_to_all = short_dir / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (short_dir / "link").symlink_to(open_to_all)
    library = short_dir / "lib.so"
    library.touch()
    library.chmod(0o666)
    for value in (str(open_to_all), f"{open_to_all}/below", str(short_dir / "link"), f"/usr/lib:{open_to_all}", "/tmp"):
        assert left_out(LD_LIBRARY_PATH=value) == ("LD_LIBRARY_PATH",), value
    assert left_out(TRITON_CACHE_DIR="/tmp/torchinductor") == ("TRITON_CACHE_DIR",)
    assert left_out(ZE_ENABLE_ALT_DRIVERS=str(library)) == ("ZE_ENABLE_ALT_DRIVERS",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_user_s_files_are_left_out(short_dir: Path) -> None:
    place = short_dir / "theirs"
    place.mkdir()
    os.chown(place, 65534, 65534)
    assert left_out(LD_LIBRARY_PATH=str(place), TORCHINDUCTOR_CACHE_DIR=f"{place}/x") == (
        "LD_LIBRARY_PATH",
        "TORCHINDUCTOR_CACHE_DIR",
    )
