"""What the driver's traces tell of a run: which entries it asked for, how they are compiled, and on what."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from tests import REPOSITORY
from tests.kinds import fakes
from xpucached.binaries import zebin
from xpucached.domain.host import Device, DriverAnswer, DriverFile, Host
from xpucached.domain.names import Architecture, EntryKey
from xpucached.domain.recipes import Recording
from xpucached.domain.stores import Store
from xpucached.domain.targets import Target
from xpucached.kinds.neo import recorder, targets, trace
from xpucached.kinds.neo.targets import NAME

RECORDED: Final = fakes.NEO / "recorded"
"""What driver 26.27 wrote for a simulated bmg-g21, with the traces of a run."""

COMPILER: Final = trace.CompilerFile(100312632, 1788812530)
MADE: Final = datetime.fromtimestamp(COMPILER.modified, UTC)
LIBRARY: Final = DriverFile(
    Path("/usr/lib/libigc.so.2"), Path("/usr/lib/libigc.so.2.40.14"), "2.40.14", COMPILER.size, MADE, None, None
)
ZERO: Final = DriverAnswer("Intel(R) oneAPI Unified Runtime over Level-Zero V2", "B", "20.1.0", "1.15.39122")
OPENCL: Final = DriverAnswer("Intel(R) OpenCL Graphics", "B", "OpenCL 3.0 NEO ", "26.27.039122")
CARD: Final = Device("B", Architecture("bmg-g21"), "0000:03:00.0", "0xe202", answers=(ZERO, OPENCL))
HOST: Final = Host(MADE, "boot", "6", "stamp", (CARD,), (LIBRARY,))

FACTS: Final = (("compiler", "100312632 1788812530"),)
BY_ZERO: Final = Target(NAME, "Level Zero", "B", "1.15.39122", FACTS)
BY_OPENCL: Final = Target(NAME, "OpenCL", "B", "26.27.039122", FACTS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shutil.copytree(RECORDED, tmp_path / "store")
    return Store(NAME, tmp_path / "store")


def keys(store: Store) -> frozenset[EntryKey]:
    return frozenset(EntryKey(str(path.relative_to(store.root))) for path in store.root.rglob("*_cache"))


def left(store: Store) -> list[str]:
    return sorted(path.name for path in store.root.iterdir() if path.suffix in {".trace", ".input"})


# -- what a run asked for ----------------------------------------------------------------------------------------------


def test_what_was_there_was_used_and_what_was_not_was_compiled(store: Store) -> None:
    every = keys(store)
    one = frozenset({min(every)})
    told = recorder.collect(store, every - one, HOST)
    assert (told.created, told.used) == (one, every - one)
    assert (left(store), keys(store)) == ([], every)
    assert recorder.collect(store, every, HOST) == Recording()


def test_what_was_asked_for_and_is_not_there_has_been_compiled_all_the_same(store: Store) -> None:
    every = keys(store)
    (store.root / "1/4/14393921d7ce9d06.cl_cache").unlink()
    told = recorder.collect(store, every - {EntryKey("1/4/14393921d7ce9d06.cl_cache")}, HOST)
    assert told.created == {"1/4/14393921d7ce9d06.cl_cache"}
    assert len(told.recipes) == len(every) - 1


def test_an_entry_of_an_older_driver_is_found_where_that_looks(store: Store) -> None:
    for key in keys(store):
        (store.root / key).rename(store.root / Path(key).name)
    told = recorder.collect(store, frozenset(), HOST)
    assert told.created == keys(store)
    assert len(told.recipes) == 5


@pytest.mark.parametrize("blocked", ["1", "1/4"])
def test_a_flat_entry_is_not_used_where_nothing_can_come_into_its_directory(store: Store, blocked: str) -> None:
    for key in keys(store):
        (store.root / key).rename(store.root / Path(key).name)
    shutil.rmtree(store.root / blocked)
    (store.root / blocked).write_bytes(b"")
    flat = keys(store)
    told = recorder.collect(store, flat, HOST)
    assert told.created == {"1/4/14393921d7ce9d06.cl_cache"}
    assert told.used == flat - {"14393921d7ce9d06.cl_cache"}


def test_a_flat_entry_is_not_used_by_a_driver_that_looks_into_directories(store: Store) -> None:
    (store.root / "1/4/14393921d7ce9d06.cl_cache").rename(store.root / "14393921d7ce9d06.cl_cache")
    told = recorder.collect(store, keys(store), HOST)
    assert told.created == {"1/4/14393921d7ce9d06.cl_cache"}
    assert told.used == keys(store) - {"14393921d7ce9d06.cl_cache"}


# -- how it is compiled ------------------------------------------------------------------------------------------------


def test_a_recipe_holds_what_its_entry_lacks(store: Store) -> None:
    inputs = {path.stem: path.read_bytes() for path in store.root.glob("*.input")}
    lookups = {path.stem: trace.read(path.read_bytes()) for path in store.root.glob("*.trace")}
    told = {Path(one.key).stem: one for one in recorder.collect(store, keys(store), HOST).recipes}
    assert told.keys() == inputs.keys()
    for name, recipe in told.items():
        lookup = lookups[name]
        assert recipe.target == (BY_OPENCL if lookup.opencl else BY_ZERO)
        # SPIR-V stands in the entry; source text does not.
        assert recipe.parts.get("input") == (None if trace.is_spirv(inputs[name]) else inputs[name])
        assert recipe.facts["options"] == lookup.options.decode()
        assert json.loads(recipe.parts["driver"])["internal"] == lookup.internal.decode()
    constants = told["24c2875a139227f0"].facts
    assert (constants["constants"], constants["values"]) == ("07000000", "000080bf00000000")
    assert len({one.lineage for one in told.values()}) == 5
    assert len({one.parts["driver"] for one in told.values()}) == 3


def test_what_stays_under_another_compiler_is_the_same_for_each(store: Store, tmp_path: Path) -> None:
    """The same programs, asked for when the compiler's file had another time: other names, and the same lineages."""
    before = {one.facts["options"]: one.lineage for one in recorder.collect(store, frozenset(), HOST).recipes}
    other = Store(NAME, tmp_path / "other")
    other.root.mkdir()
    later = replace(COMPILER, modified=1790856000)
    maker = trace.KeyMaker()
    for path in RECORDED.glob("*.trace"):
        told, given = path.read_bytes(), path.with_suffix(".input").read_bytes()
        entry = next(RECORDED.rglob(f"{path.stem}.*_cache"))
        ip = zebin.read(entry.read_bytes()).ip
        name = maker.key(trace.read(told), given, ip, later)
        (other.root / f"{name}{entry.suffix}").write_bytes(entry.read_bytes())
        (other.root / f"{name}.trace").write_bytes(told.replace(b"1788812530", b"1790856000"))
        (other.root / f"{name}.input").write_bytes(given)
    at = datetime.fromtimestamp(later.modified, UTC)
    host = replace(HOST, driver=(replace(LIBRARY, modified=at),))
    after = recorder.collect(other, frozenset(), host).recipes
    assert {one.facts["options"]: one.lineage for one in after} == before
    assert {one.target.lineage for one in after} == {BY_OPENCL.lineage, BY_ZERO.lineage}
    assert {one.target for one in after}.isdisjoint({BY_OPENCL, BY_ZERO})


@pytest.mark.parametrize("file", ["trace", "input"])
@pytest.mark.parametrize("what", ["gone", "cut", "another", "pipe", "link", "large", "directory"])
def test_a_trace_from_which_the_name_does_not_come_is_no_recipe(store: Store, file: str, what: str) -> None:
    """Two programs may have written it at once, or somebody forged it."""
    path = store.root / f"14393921d7ce9d06.{file}"
    data = path.read_bytes()
    path.unlink()
    match what:
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "another":
            path.write_bytes((store.root / f"fda88f9b82d687e4.{file}").read_bytes())
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(RECORDED / path.name)
        case "large":
            path.write_bytes(data)
            os.truncate(path, 100 << 20)
        case "directory":
            path.mkdir()
        case _:
            pass
    every = keys(store)
    told = recorder.collect(store, every, HOST)
    assert "14393921d7ce9d06" not in {Path(one.key).stem for one in told.recipes}
    assert len(told.recipes) == 4
    # That it was asked for, its name says.
    unnamed = file == "trace" and what in {"gone", "directory"}
    assert told.used == (every - {"1/4/14393921d7ce9d06.cl_cache"} if unnamed else every)
    assert left(store) == []


def test_a_hundred_thousand_traces_are_taken_away_and_read_in_bounds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_MOST", 10)
    for number in range(500):
        (store.root / f"{number:016x}.trace").write_bytes(b"---- igcRevision ----\n")
    told = recorder.collect(store, keys(store), HOST)
    assert (len(told.created), len(told.used), left(store)) == (500, 5, [])
    assert len(told.recipes) == 5


def test_beyond_so_many_traces_it_is_not_known_what_was_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_ASKED", 4)
    told = recorder.collect(store, keys(store), HOST)
    assert (len(told.used), told.why_incomplete) == (4, "it holds more than 8 files of traces")
    assert left(store) == []


@pytest.mark.parametrize(
    ("bound", "size", "recipes"), [("_HASHED", 200, 2), ("_READ", 200, 0), ("_KEPT", 4000, 2), ("_KEPT", 12_000, 5)]
)
def test_no_more_is_read_held_and_hashed_than_is_fit(
    store: Store, monkeypatch: pytest.MonkeyPatch, bound: str, size: int, recipes: int
) -> None:
    monkeypatch.setattr(recorder, bound, size)
    told = recorder.collect(store, keys(store), HOST)
    assert len(told.used) == 5
    assert len(told.recipes) == recipes


def test_a_source_of_a_hundred_million_bytes_is_not_kept(store: Store) -> None:
    name = next(store.root.glob("*.trace")).stem
    os.truncate(store.root / f"{name}.input", 100_000_000)
    tracemalloc.start()
    try:
        told = recorder.collect(store, frozenset(), HOST)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 50_000_000
    assert len(told.created) == len(told.recipes) + 1
    assert not any(name in one.key for one in told.recipes)
    assert left(store) == []


def test_a_root_that_is_a_link_now_is_left_alone(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store.root)
    assert recorder.collect(Store(NAME, tmp_path / "nothing"), frozenset(), HOST) == Recording()
    assert recorder.collect(Store(NAME, tmp_path / "link"), frozenset(), HOST).why_incomplete
    recorder.forget(Store(NAME, tmp_path / "link"))
    assert len(left(store)) == 10
    recorder.forget(store)
    assert left(store) == []


def test_what_lies_behind_a_link_is_not_asked_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file system may lie there that never answers.
    (store.root / "1").rename(store.root.parent / "aside")
    (store.root / "1").symlink_to(store.root.parent / "aside")
    asked: list[str] = []
    real = os.stat

    def noting(path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        asked.append(path)
        return real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", noting)
    told = recorder.collect(store, frozenset(), HOST)
    assert "1/4/14393921d7ce9d06.cl_cache" in told.created
    assert "1/4/14393921d7ce9d06.cl_cache" not in {one.key for one in told.recipes}
    assert not [path for path in asked if path.startswith("1/")]


def test_a_directory_with_a_traces_name_is_no_lookup(store: Store) -> None:
    recorder.forget(store)
    (store.root / "0123456789abcdef.trace").mkdir()
    (store.root / "fedcba9876543210.trace" / "full").mkdir(parents=True)
    assert recorder.collect(store, keys(store), HOST) == Recording()
    assert left(store) == ["fedcba9876543210.trace"]


@pytest.mark.parametrize("how", ["forget", "collect", "begin"])
def test_what_another_daemon_took_away_while_a_pass_went_on_is_not_said_not_to_have_been_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    recorder.forget(store, begins=True)
    with monkeypatch.context() as other:
        other.setattr(recorder, "_marks", {})
        match how:
            case "forget":
                recorder.forget(store)
            case "collect":
                recorder.collect(store, frozenset(), HOST)
            case _:
                recorder.forget(store, begins=True)
    assert "took traces away" in recorder.collect(store, frozenset(), HOST).why_incomplete
    assert left(store) == []
    # It says nothing of the next pass, nor of what began none.
    recorder.forget(store, begins=True)
    assert len(left(store)) == 1
    assert recorder.collect(store, frozenset(), HOST) == Recording()
    recorder.forget(store, begins=True)
    recorder.forget(store)
    assert left(store) == []
    assert recorder.collect(store, frozenset(), HOST) == Recording()


def test_a_store_that_is_removed_while_a_run_goes_on_is_not_said_not_to_have_been_asked(store: Store) -> None:
    recorder.forget(store, begins=True)
    shutil.rmtree(store.root)
    assert recorder.collect(store, frozenset(), HOST) == Recording(why_incomplete="it was removed meanwhile")
    # It says nothing of a pass that begins without one.
    recorder.forget(store, begins=True)
    assert recorder.collect(store, frozenset(), HOST) == Recording()


def test_where_nothing_can_be_written_nothing_can_be_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_given, **_more: False)
    assert recorder.collect(store, keys(store), HOST).why_incomplete == "it cannot be written to"


FULL: Final = """
import sys
from pathlib import Path
from tests.kinds.test_neo_recorder import HOST, NAME, Store, recorder
store = Store(NAME, Path(sys.argv[1]))
other = store.root / "other"
for make in (lambda: None, other.touch, other.unlink):
    make()
    recorder.forget(store, begins=True)
    print(recorder.collect(store, frozenset(), HOST).why_incomplete)
"""


@pytest.mark.flow
def test_where_no_file_can_be_made_nothing_can_be_told(tmp_path: Path) -> None:
    # As beyond a quota: neither an entry nor its trace.
    steps = (
        f"mount -t tmpfs -o nr_inodes=2 none '{tmp_path}' || exit 77; exec '{sys.executable}' -c \"$0\" '{tmp_path}'"
    )
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", steps, FULL]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(inside, capture_output=True, text=True, timeout=50, check=False, env=variables)
    if done.returncode in (1, 77) and not done.stdout and "Traceback" not in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.stdout.splitlines() == ["", "no file could be made there: No space left on device", ""], done.stderr


def test_what_names_are_made_from_is_tried_in_bounds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int | None] = []

    def key(_maker: trace.KeyMaker, _lookup: trace.Lookup, _given: bytes, ip: int | None, *_more: object) -> str:
        tried.append(ip)
        return ""

    numbers = iter(range(1, 1000))
    monkeypatch.setattr(trace.KeyMaker, "key", key)
    real = zebin.read
    monkeypatch.setattr(zebin, "read", lambda data: replace(real(data), ip=next(numbers)))
    monkeypatch.setattr(recorder, "_MOST_IPS", 2)
    recorder.collect(store, keys(store), HOST)
    assert set(tried) <= {1, 2, None}
    tried.clear()
    again = Store(NAME, store.root.parent / "again")
    shutil.copytree(RECORDED, again.root)
    monkeypatch.setattr(recorder, "_SECONDS", -1.0)
    monkeypatch.setattr(trace, "read", lambda _: tried.append(None))
    assert not recorder.is_of_other_compiler(again, replace(HOST, driver=(replace(LIBRARY, size=1),)))
    assert recorder.collect(again, frozenset(), HOST).recipes == ()
    assert tried == []


# -- on what -----------------------------------------------------------------------------------------------------------


def test_what_is_valid_now_is_told_by_the_devices_and_the_compilers_file() -> None:
    assert targets.targets(HOST) == (BY_ZERO, BY_OPENCL)
    later = replace(LIBRARY, size=1)
    assert {dict(one.facts)["compiler"] for one in targets.targets(replace(HOST, driver=(later,)))} == {"1 1788812530"}
    # Which it had where none is seen is not known.
    assert targets.targets(replace(HOST, driver=())) == ()
    same = replace(LIBRARY, path=Path("/usr/lib/libigc.so"))
    assert targets.targets(replace(HOST, driver=(LIBRARY, same))) == (BY_ZERO, BY_OPENCL)


def test_where_there_are_several_compilers_a_change_of_any_is_a_change(store: Store) -> None:
    other, third = (replace(LIBRARY, path=Path(f"/opt/libigc.so.{size}"), size=size) for size in (1, 2))
    host = replace(HOST, driver=(LIBRARY, other))

    told = recorder.collect(store, frozenset(), host)
    assert {one.target for one in told.recipes} <= set(targets.targets(host))
    assert len(told.recipes) == 5
    assert {dict(one.facts)["compiler"] for one in targets.targets(host)} == {"1 1788812530, 100312632 1788812530"}
    for later in ((LIBRARY,), (LIBRARY, third), (LIBRARY, other, third)):
        assert not set(targets.targets(replace(HOST, driver=later))) & set(targets.targets(host))
    assert targets.targets(replace(HOST, driver=(other, LIBRARY))) == targets.targets(host)


@pytest.mark.parametrize(
    ("card", "known"),
    [
        (CARD, True),
        (replace(CARD, pci_id="0xe20b"), False),
        (replace(CARD, pci_id=None), True),
        (replace(CARD, pci_id=None, architecture=Architecture("acm-g10")), False),
        (replace(CARD, answers=(replace(ZERO, platform="Intel(R) OpenCL", version="3.0"),)), False),
    ],
)
def test_a_trace_of_another_device_tells_nothing_of_this_one(store: Store, card: Device, known: bool) -> None:  # noqa: FBT001
    told = recorder.collect(store, frozenset(), replace(HOST, devices=(card,)))
    assert (bool(told.recipes), len(told.created)) == (known, 5)


def test_a_compiler_that_is_not_this_hosts_is_not_taken_for_it(store: Store) -> None:
    told = recorder.collect(store, frozenset(), replace(HOST, driver=(replace(LIBRARY, size=1),)))
    assert (told.recipes, len(told.created)) == ((), 5)


def test_a_trace_that_cannot_be_read_hides_no_other_compiler(store: Store) -> None:
    assert not recorder.is_of_other_compiler(store, HOST)
    first = min(store.root.glob("*.trace"))
    first.unlink()
    first.mkdir()
    assert not recorder.is_of_other_compiler(store, HOST)
    assert recorder.is_of_other_compiler(store, replace(HOST, driver=(replace(LIBRARY, size=1),)))


def test_two_cards_of_one_generation_are_told_apart(store: Store) -> None:
    other = replace(CARD, pci_id="0xe20b", answers=tuple(replace(one, device="C") for one in CARD.answers))
    told = recorder.collect(store, frozenset(), replace(HOST, devices=(other, CARD)))
    assert {one.target.device for one in told.recipes} == {"B"}


@pytest.mark.parametrize(
    ("content", "keeps"),
    [
        (b"NEO_CACHE_PERSISTENT", True),
        (b"." * ((1 << 20) - 7) + b"NEO_CACHE_PERSISTENT\0", True),
        (b"cl_cache_dir", False),
    ],
    ids=["knows", "between pieces", "does not"],
)
def test_for_a_driver_that_keeps_nothing_no_entry_is_valid(tmp_path: Path, content: bytes, keeps: bool) -> None:  # noqa: FBT001
    driver = replace(LIBRARY, path=tmp_path / "libigdrcl.so", target=tmp_path / "libigdrcl.so", size=len(content))
    host = replace(HOST, driver=(LIBRARY, driver))
    # One that cannot be read may keep what it compiles.
    assert (set(targets.targets(host)), recorder.why_not_kept(host)) == ({BY_ZERO, BY_OPENCL}, "")
    driver.target.write_bytes(content)
    assert set(targets.targets(host)) == ({BY_ZERO, BY_OPENCL} if keeps else {BY_ZERO})
    assert bool(recorder.why_not_kept(host)) is not keeps
    # Where no GPU is, nobody misses it.
    assert recorder.why_not_kept(replace(host, devices=())) == ""


# -- the switches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["neo.config", "igdrcl.config"])
def test_a_file_that_replaces_the_switches_is_named(tmp_path: Path, name: str) -> None:
    assert recorder.why_untold(tmp_path) == ""
    (tmp_path / name).write_text("")
    assert name in recorder.why_untold(tmp_path)
