"""The check of a SYCL runtime, and of what it calls its devices, by what a child of ours would tell."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.builders import SyclStore
from xpucached.domain.diagnosis import RuntimeCheck, Safety
from xpucached.domain.host import OtherDriver, ProbeReport
from xpucached.domain.libraries import SyclRuntime
from xpucached.errors import Unconfirmed
from xpucached.kinds.sycl import preflight, runtimes, targets
from xpucached.processes import child

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from xpucached.domain.targets import Target

NOW: Final = datetime(2026, 11, 1, tzinfo=UTC)
RUNTIME: Final = SyclRuntime(Path("/r/lib/libsycl.so.8"), "build", 2)

BUILT: Final = preflight._End(0, "")
CRASHED: Final = preflight._End(-signal.SIGSEGV, "")
FAILED: Final = preflight._End(1, "no device")
OTHERWISE: Final = preflight._End(2, "another reason")
LATE: Final = preflight._End(None, "")


@pytest.mark.parametrize(
    ("status", "said", "crashed", "words"),
    [
        (None, "", False, "did not end in time"),
        (1, "no device", False, "failed: no device"),
        (1, "", False, "ended with status 1"),
        (-signal.SIGSEGV, "", True, "was ended by SIGSEGV"),
        (-signal.SIGSEGV, "what it said", True, "failed: what it said"),
        (-signal.SIGBUS, "", True, "was ended by SIGBUS"),
        (-signal.SIGILL, "", True, "was ended by SIGILL"),
        (-signal.SIGFPE, "", True, "was ended by SIGFPE"),
        (-signal.SIGABRT, "", True, "was ended by SIGABRT"),
        (-signal.SIGABRT, "its own exception", False, "failed: its own exception"),
        (-signal.SIGKILL, "", False, "was ended by SIGKILL"),
    ],
)
def test_a_crash_is_told_from_what_a_runtime_says(status: int | None, said: str, words: str, *, crashed: bool) -> None:
    end = preflight._End(status, said)
    assert (end.crashed, end.words) == (crashed, words)


LIBRARY: Final = "a program with a device library that has no kernels (as every program with bfloat16 has)"
PARTS: Final = "a program of two device images"
SINGLE: Final = "a program of one device image"
BOTH: Final = "is built with the cache off and on"
CRASHES: Final = "is built with SYCL_CACHE_PERSISTENT=0; with 1 and an empty cache it was ended by SIGSEGV"
OFF: Final = "cannot be built with it even with the cache off: it"


@pytest.mark.parametrize(
    ("ends", "kept", "safety", "evidence"),
    [
        ([BUILT, BUILT], True, Safety.SAFE, f"{LIBRARY} {BOTH}, and kept in the cache"),
        ([BUILT, BUILT], False, Safety.SAFE, f"{LIBRARY} {BOTH}, but not kept in the cache"),
        ([BUILT, CRASHED], True, Safety.UNSAFE, f"{LIBRARY} {CRASHES}"),
        (
            [BUILT, FAILED],
            True,
            Safety.UNKNOWN,
            f"{LIBRARY} is built with the cache off; with the cache on it failed: no device",
        ),
        ([CRASHED], True, Safety.UNKNOWN, f"{LIBRARY} {OFF} was ended by SIGSEGV"),
        ([LATE], True, Safety.UNKNOWN, f"{LIBRARY} {OFF} did not end in time"),
        (
            [FAILED, BUILT, BUILT],
            True,
            Safety.SAFE,
            f"{PARTS} {BOTH}, and kept in the cache; {LIBRARY} {OFF} failed: no device",
        ),
        ([FAILED, OTHERWISE, BUILT, CRASHED], True, Safety.UNSAFE, f"{SINGLE} {CRASHES}"),
        ([FAILED, OTHERWISE, OTHERWISE], True, Safety.UNKNOWN, f"{LIBRARY} {OFF} failed: no device"),
    ],
)
def test_a_runtime_is_unsafe_if_a_program_crashes_that_it_builds_without_the_cache(
    monkeypatch: pytest.MonkeyPatch, ends: list[preflight._End], safety: Safety, evidence: str, *, kept: bool
) -> None:
    left = list(ends)
    built = [False]

    def once(*_: object, cache: bool) -> tuple[preflight._End, bool]:
        assert cache is built[-1], "with the cache what was built without it"
        end = left.pop(0)
        built.append(end.status == 0)
        return end, cache and kept

    monkeypatch.setattr(preflight, "_build_once", once)

    expected = RuntimeCheck(RUNTIME.build, RUNTIME.library, safety, evidence, NOW)
    assert preflight.check(RUNTIME, {}, NOW) == expected
    assert not left


def refuse(*_: object, **__: object) -> object:
    raise OSError("no memory")


def test_the_child_gets_what_programs_have_but_for_what_steers_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[list[str], dict[str, str]]] = []

    def run(words: Sequence[str], *, variables: Mapping[str, str], seconds: float, directory: str) -> object:
        runs.append((list(words), dict(variables)))
        assert seconds == 7.0
        assert variables["SYCL_CACHE_DIR"] == f"{directory}/cache"
        if variables["SYCL_CACHE_PERSISTENT"] == "1":
            (Path(directory) / "cache" / "1").mkdir(parents=True)
            (Path(directory) / "cache" / "1" / "0.bin").touch()
        return SimpleNamespace(status=3, complaint=b"terminate\n  what():  no device \nmore")

    monkeypatch.setattr(child, "run", run)
    theirs = {"A": "b", "SYCL_CACHE_TRACE": "7", "SYCL_IN_MEM_EVICTION": "1", "LD_PRELOAD": "x", "PYTHONPATH": "y"}
    beside = {**theirs, "LD_LIBRARY_PATH": "/theirs"}
    end = preflight._End(3, "no device")
    assert preflight._build_once(RUNTIME, "single", theirs, 7.0, cache=False) == (end, False)
    assert preflight._build_once(RUNTIME, "single", beside, 7.0, cache=True) == (end, True)
    (words, off), (_, on) = runs
    assert str(preflight.SYCL_CHECK) in words
    assert preflight.SYCL_CHECK.is_file()
    assert words[-6:] == ["--library", str(RUNTIME.library), "--layout", "2", "--shape", "single"]
    assert off["A"] == "b"
    assert not (theirs.keys() - {"A"}) & off.keys()
    assert (off["SYCL_CACHE_PERSISTENT"], on["SYCL_CACHE_PERSISTENT"]) == ("0", "1")
    assert (off["LD_LIBRARY_PATH"], on["LD_LIBRARY_PATH"]) == ("/r/lib", "/r/lib:/theirs")

    monkeypatch.setattr(child, "run", refuse)
    end, kept = preflight._build_once(RUNTIME, "single", {}, 7.0, cache=True)
    assert (end.words, end.status, kept) == ("failed: cannot be started: no memory", 127, False)


@pytest.mark.parametrize(("depth", "kept"), [(0, True), (8, True), (9, False)])
def test_a_program_in_a_cache_is_found_as_deep_as_programs_lie(tmp_path: Path, depth: int, *, kept: bool) -> None:
    place = tmp_path.joinpath(*map(str, range(depth)))
    place.mkdir(parents=True, exist_ok=True)
    (place / "0.src").touch()
    assert not preflight._keeps(str(tmp_path))
    (place / "0.bin").touch()
    assert preflight._keeps(str(tmp_path)) is kept


def test_of_a_cache_without_end_not_all_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    (cache / "1").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "0.bin").touch()
    (cache / "link").symlink_to(elsewhere)
    assert not preflight._keeps(str(cache)), "no link is followed"
    (cache / "1" / "0.bin").touch()
    monkeypatch.setattr(preflight, "_MOST_NAMES", 3)
    assert preflight._keeps(str(cache))
    (cache / "2.src").touch()
    assert not preflight._keeps(str(cache))
    assert not preflight._keeps(str(tmp_path / "none"))


def test_a_tiny_program_is_built_by_the_runtime_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], dict[str, str]]] = []
    ends = [0, 1]

    def run(words: Sequence[str], *, variables: Mapping[str, str], seconds: float, directory: Path) -> object:
        asked.append((list(words), dict(variables)))
        assert (seconds, directory) == (60.0, tmp_path)
        return SimpleNamespace(status=ends.pop(0))

    def built(variables: Mapping[str, str]) -> bool:
        return preflight.build_tiny_program(tmp_path, tmp_path / "cache", variables, "opencl:cpu")

    monkeypatch.setattr(child, "run", run)
    assert not built({}), "there is no runtime"
    assert not asked
    (tmp_path / "libsycl.so.9").write_bytes(b"x")
    assert built({})
    assert not built({"LD_LIBRARY_PATH": "/x", "ONEAPI_DEVICE_SELECTOR": "level_zero:1"})
    (words, first), (_, second) = asked
    assert words[-6:] == ["--shape", "single", "--library", f"{tmp_path}/libsycl.so.9", "--layout", "3"]
    assert (first["LD_LIBRARY_PATH"], second["LD_LIBRARY_PATH"]) == (str(tmp_path), f"{tmp_path}:/x")
    assert (first["ONEAPI_DEVICE_SELECTOR"], second["ONEAPI_DEVICE_SELECTOR"]) == ("opencl:cpu", "level_zero:1")
    assert (first["SYCL_CACHE_PERSISTENT"], first["SYCL_CACHE_DIR"]) == ("1", f"{tmp_path}/cache")

    monkeypatch.setattr(child, "run", refuse)
    assert not built({})


# -- how a runtime names the devices ----------------------------------------------------------------------------------


def target(family: str = "Intel(R) Level-Zero", device: str = "Intel(R) Graphics", driver: str = "1.2") -> Target:
    made = targets.parse(f"{family}/{device}/3.0/{driver}")
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("family", "selector"),
    [
        ("Intel(R) oneAPI Unified Runtime over Level-Zero", "level_zero:gpu"),
        ("Intel(R) OpenCL Graphics", "opencl:gpu"),
        ("Intel(R) OpenCL", "opencl:cpu"),
    ],
)
def test_a_program_sees_the_devices_of_one_family(family: str, selector: str) -> None:
    assert preflight._selector(target(family)) == selector


@pytest.fixture
def confirm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what asks for targets: a runtime answers with some, and its tiny program is kept under others."""

    def ask(wanted: Sequence[Target], told: Sequence[Target] = (), written: Sequence[Target] = ()) -> str:
        def build(_folder: Path, root: Path, *_: object, **__: object) -> bool:
            for one in written:
                answer = targets.answer_of(one)
                SyclStore(root).add(
                    platform=answer.platform, device=answer.device, version=answer.version, driver=answer.driver
                )
            return bool(written)

        report = ProbeReport(tuple(map(targets.answer_of, told)))
        monkeypatch.setattr(runtimes, "folders", lambda *_: (tmp_path / "r",))
        monkeypatch.setattr(preflight, "ask_runtime", lambda *_, **__: report)
        monkeypatch.setattr(preflight, "build_tiny_program", build)
        return preflight.confirm(wanted, OtherDriver(tuple(wanted), "", {}), (), NOW).replace(str(tmp_path), "")

    return ask


def test_a_runtime_confirms_the_names_of_devices(confirm: Callable[..., str]) -> None:
    one, other = target(), target("Intel(R) OpenCL", "Xeon")
    none = "no SYCL runtime was found that could confirm the names of the devices"
    unseen = ", and does not know Intel(R) OpenCL"
    assert confirm([]) == ""
    assert confirm([one]) == none
    assert confirm([one], told=[one]) == "the SYCL runtime in /r names the devices so"
    assert confirm([one, other], told=[one]) == f"the SYCL runtime in /r names the devices so{unseen}"
    assert confirm([one], written=[one]) == "the SYCL runtime in /r itself wrote an entry under such a name"
    wrote = confirm([one, other], told=[other], written=[one])
    assert wrote == "the SYCL runtime in /r itself wrote an entry under such a name"
    assert (
        confirm([one], told=[other])
        == "the SYCL runtime in /r names the devices so, and does not know Intel(R) Level-Zero"
    )


@pytest.mark.parametrize("by", ["told", "written"])
def test_what_a_runtime_names_otherwise_is_not_rebuilt(confirm: Callable[..., str], by: str) -> None:
    with pytest.raises(Unconfirmed) as refusal:
        confirm([target()], **{by: [target(driver="1.3"), target("Intel(R) OpenCL")]})

    here, theirs = targets.identity(target()), targets.identity(target(driver="1.3"))
    words = str(refusal.value)
    assert f"names the device {theirs}, the driver {here}: nothing was rebuilt" in words
