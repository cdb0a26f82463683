"""The check of runtimes: real ones that crash and real ones that do not, and libraries that are no runtime at all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import catalogs
from xpucached.catalog.runtimes import known_runtime_checks, record_runtime_check
from xpucached.domain.diagnosis import RuntimeCheck, Safety
from xpucached.domain.libraries import SyclRuntime
from xpucached.kinds.sycl import preflight
from xpucached.kinds.sycl.preflight import SYCL_CHECK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.runtimes import Runtime

NOW: Final = datetime(2026, 11, 1, tzinfo=UTC)


def variables(one: Runtime) -> Mapping[str, str]:
    return {"OCL_ICD_FILENAMES": str(one.driver)}


def found(one: Runtime) -> SyclRuntime:
    (runtime,) = preflight.runtimes(one.python, variables(one), ())
    return runtime


@pytest.mark.parametrize("name", ["rt2025.3", "rt2026.2"])
def test_a_runtime_that_crashes_is_unsafe(runtime: Callable[[str], Runtime], name: str) -> None:
    one = runtime(name)
    made = preflight.check(found(one), variables(one), NOW)

    assert made.safety is Safety.UNSAFE
    assert made.evidence.endswith("with 1 and an empty cache it was ended by SIGSEGV")
    assert made.build == found(one).build


@pytest.mark.parametrize(("name", "images"), [("rt2024.2", "one device image"), ("rt2025.2", "two device images")])
def test_a_runtime_that_does_not_is_safe(runtime: Callable[[str], Runtime], name: str, images: str) -> None:
    one = runtime(name)
    made = preflight.check(found(one), variables(one), NOW)

    assert made.safety is Safety.SAFE
    # That the cache was really on is shown by what it kept.
    assert f"a program of {images} is built with the cache off and on, and kept in the cache" in made.evidence


def test_what_a_host_sets_does_not_steer_the_check(
    runtime: Callable[[str], Runtime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runtime("rt2025.3")
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("SYCL_CACHE_DIR", str(elsewhere))
    # This is the known way around the crash; the programs that it hides are the larger ones.
    steering = {**variables(one), "SYCL_CACHE_MAX_DEVICE_IMAGE_SIZE": "1", "SYCL_CACHE_PERSISTENT": "0"}

    assert preflight.check(found(one), steering, NOW).safety is Safety.UNSAFE
    assert not elsewhere.exists()


def test_without_a_device_it_is_not_known(runtime: Callable[[str], Runtime], tmp_path: Path) -> None:
    one = runtime("rt2025.3")
    nothing = {"OCL_ICD_FILENAMES": str(tmp_path / "none.so"), "ONEAPI_DEVICE_SELECTOR": "opencl:*"}
    made = preflight.check(found(one), nothing, NOW)

    assert made.safety is Safety.UNKNOWN
    assert "cannot be built with it even with the cache off" in made.evidence


def compiled(place: Path, source: str, name: str = "libsycl.so.8") -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (place / "x.c").write_text(source)
    made = place / name
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, place / "x.c"], check=True)
    return made


@pytest.mark.parametrize(
    ("source", "evidence"),
    [
        ("int nothing;", "undefined symbol"),
        ("__attribute__((constructor)) static void go(void) { *(volatile int *)0 = 0; }", "SIGSEGV"),
        ("#include <unistd.h>\n__attribute__((constructor)) static void go(void) { for (;;) pause(); }", "in time"),
    ],
)
def test_what_is_no_runtime_harms_nobody(tmp_path: Path, source: str, evidence: str) -> None:
    made = preflight.check(SyclRuntime(compiled(tmp_path, source), "b", 2), {}, NOW, 1.0)

    assert made.safety is Safety.UNKNOWN
    assert evidence in made.evidence


def test_the_program_of_the_check_says_what_is_wrong_with_a_library(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-B", str(SYCL_CHECK), "--library", str(tmp_path / "none"), "--layout", "2"]
    done = subprocess.run([*command, "--shape", "single"], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "what():" in done.stderr


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_a_check_is_kept_by_its_build(tmp_path: Path) -> None:
    catalog = catalogs.fresh(tmp_path / "catalog.sqlite")
    try:
        first = RuntimeCheck("b1", Path("/a/libsycl.so.8"), Safety.UNSAFE, "it crashed", NOW)
        again = RuntimeCheck("b1", Path("/b/libsycl.so.8"), Safety.SAFE, "it did not", NOW)
        catalog.write(record_runtime_check, first)
        catalog.write(record_runtime_check, again)

        assert catalog.read(known_runtime_checks, ["b1", "b2"]) == {"b1": again}
    finally:
        catalog.close()
