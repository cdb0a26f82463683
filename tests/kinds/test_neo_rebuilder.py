"""How programs of the GPU driver's cache are compiled again, what counts as success, and where it goes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import stat
import struct
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from tests.kinds.test_neo_recorder import BY_OPENCL, BY_ZERO, HOST, LIBRARY, RECORDED
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import NoRecipe, Recipe
from xpucached.domain.recipes import RecordedRecipe
from xpucached.domain.stores import Entry, EntryId, Store
from xpucached.kinds import fs, removal
from xpucached.kinds.neo import defects, doctor, level_zero, rebuilder, recorder
from xpucached.kinds.neo.targets import NAME
from xpucached.processes import scratch

TEXT: Final = EntryKey("1/4/14393921d7ce9d06.cl_cache")
"""An entry of source text; what follows is one of SPIR-V through Level Zero with constants, and one with its options
among the driver's own."""
SPECIAL: Final = EntryKey("2/4/24c2875a139227f0.l0_cache")
LARGE: Final = EntryKey("f/7/f7827a5fb64ef597.l0_cache")
LEVEL: Final = EntryKey("f/d/fda88f9b82d687e4.l0_cache")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with entries of the real driver."""
    shutil.copytree(RECORDED, tmp_path / "store")
    return Store(NAME, tmp_path / "store")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return what the driver leaves in a compiler's place: all entries, and all traces."""
    return Path(shutil.copytree(RECORDED, tmp_path / "place"))


@pytest.fixture
def empty(tmp_path: Path) -> Store:
    """Return a store in which the driver has written nothing yet."""
    (tmp_path / "empty").mkdir()
    return Store(NAME, tmp_path / "empty")


def told(store: Store) -> dict[EntryKey, RecordedRecipe]:
    """Return how the entries of a store are compiled; their traces are gone then."""
    return {one.key: one for one in recorder.collect(store, frozenset(), HOST).recipes}


def entry(store: Store, key: EntryKey) -> Entry:
    return Entry(EntryId(store, key), "", 0, 0, datetime.now(UTC), None)


def made(recipe: Recipe | NoRecipe, place: Path, environment: object = BY_OPENCL) -> tuple[Recipe, bytes]:
    """Return what came of a recipe that is no other program's."""
    assert isinstance(recipe, Recipe)
    result = rebuilder.made(recipe, environment, HOST, b"", place)  # type: ignore[arg-type]
    assert not isinstance(result, str), result
    return result


def compiled(store: Store, place: Path) -> tuple[Recipe, bytes]:
    """Compile the entry of a store once more; give its recipe, and what came of it."""
    return made(rebuilder.recipe(entry(store, TEXT), told(store)[TEXT]), place)


def taken_out(store: Store, place: Path) -> tuple[Recipe, bytes]:
    """Compile it as `compiled`, and take the entry out."""
    again = compiled(store, place)
    (store.root / TEXT).unlink()
    return again


def believed(store: Store) -> int:
    return struct.unpack("<Q", (store.root / "config.file").read_bytes())[0]  # type: ignore[no-any-return]


# -- from what ---------------------------------------------------------------------------------------------------------


def test_text_is_compiled_without_what_the_driver_added(store: Store) -> None:
    recorded = told(store)[TEXT]
    recipe = rebuilder.recipe(entry(store, TEXT), recorded)
    assert isinstance(recipe, Recipe)
    assert recorded.parts["input"] == recipe.input + b"\0"
    assert (recipe.facts["form"], recipe.options) == ("text", b"")


def test_spirv_comes_from_the_entry_and_constants_from_the_run(store: Store) -> None:
    given = (RECORDED / "24c2875a139227f0.input").read_bytes()
    recipe = rebuilder.recipe(entry(store, SPECIAL), told(store)[SPECIAL])
    assert isinstance(recipe, Recipe)
    assert (recipe.input, recipe.options) == (given, b"-cl-mad-enable")
    assert (recipe.facts["constants"], recipe.facts["values"]) == ("07000000", "000080bf00000000")
    assert "form" not in recipe.facts


def test_what_level_zero_rewrote_is_handed_in_as_it_was(store: Store) -> None:
    recorded = told(store)
    options = [
        recipe.options
        for key in (LARGE, LEVEL)
        if isinstance(recipe := rebuilder.recipe(entry(store, key), recorded[key]), Recipe)
    ]
    assert options == [b"-ze-opt-large-register-file", b"-ze-opt-level=2"]


@pytest.mark.parametrize(
    ("given", "internal", "options"),
    [
        ("", "", ""),
        ("-cl-mad-enable", "", "-cl-mad-enable"),
        ("-ze-opt-disable", "", "-cl-opt-disable"),
        ("-ze-opt-level=2", "", "-ze-opt-level=2 -ze-opt-level=O2"),
        (" -ze-opt-level=2", "", " -ze-opt-level=O2"),
        ("-ze-opt-level=2 -g", "", "-g -ze-opt-level=O2"),
        ("-g -ze-opt-level=2", "", "-g -ze-opt-level=O2"),
        ("-ze-opt-level=1 -g -cl-mad-enable", "", "-g -cl-mad-enable -ze-opt-level=O1"),
        ("-ze-opt-large-register-file", "-a -cl-intel-256-GRF-per-thread -b", ""),
        ("-g-ze-intel-enable-auto-large-GRF-mode", "-cl-intel-enable-auto-large-GRF-mode", "-g"),
    ],
)
def test_options_are_found_of_which_the_driver_makes_the_same(given: str, internal: str, options: str) -> None:
    found = level_zero.given(options, internal)
    assert found is not None
    moved = "-ze-opt-large-register-file", "-ze-intel-enable-auto-large-GRF-mode"
    for option in moved:
        assert (option in found) == (option in given)
        found, given = found.replace(option, ""), given.replace(option, "")
    assert level_zero.rewritten(found) == level_zero.rewritten(given) == options


def test_options_that_the_driver_makes_of_nothing_are_not_guessed() -> None:
    assert level_zero.given("-ze-opt-level=2", "") is None


def test_an_entry_larger_than_any_is_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (store.root / SPECIAL).stat().st_size
    recorded = told(store)[SPECIAL]
    monkeypatch.setattr(rebuilder, "_LARGEST", size)
    assert isinstance(rebuilder.recipe(entry(store, SPECIAL), recorded), Recipe)
    monkeypatch.setattr(rebuilder, "_LARGEST", size - 1)
    assert rebuilder.recipe(entry(store, SPECIAL), recorded) is NoRecipe.UNREADABLE


def test_who_told_nothing_is_not_compiled_again(store: Store) -> None:
    assert rebuilder.recipe(entry(store, TEXT)) is NoRecipe.UNRECORDED


@pytest.mark.parametrize("what", ["gone", "pipe", "link", "no entry", "another's"])
def test_what_should_hold_the_spirv_and_does_not_is_no_recipe(
    store: Store, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = told(store)[LEVEL]
    path = store.root / LEVEL
    if what == "another's":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    else:
        path.unlink()
    match what:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(RECORDED / LEVEL)
        case "no entry":
            path.write_bytes(b"\x7fELF")
        case _:
            pass
    expected = {"no entry": {NoRecipe.DAMAGED}, "another's": {NoRecipe.FOREIGN, NoRecipe.UNREADABLE}}
    assert rebuilder.recipe(entry(store, LEVEL), recorded) in expected.get(what, {NoRecipe.UNREADABLE})


def test_a_forged_record_is_no_recipe(store: Store) -> None:
    recorded = told(store)[TEXT]
    for forged in (
        replace(recorded, facts={}),
        replace(recorded, parts={**recorded.parts, "driver": b"{"}),
        replace(recorded, target=BY_ZERO, parts={**recorded.parts, "driver": b'{"internal": 7}'}),
        replace(recorded, facts={**recorded.facts, "options": "\u2014"}),
    ):
        assert rebuilder.recipe(entry(store, TEXT), forged) is NoRecipe.DAMAGED


def test_the_child_keeps_and_tells_in_its_own_place_only(tmp_path: Path) -> None:
    spec = rebuilder.compiler(BY_OPENCL, tmp_path)
    variables = dict(spec.variables)
    assert (variables["NEO_CACHE_DIR"], variables["NEO_CACHE_MAX_SIZE"]) == (str(tmp_path), "0")
    assert (variables["NEOReadDebugKeys"], variables["BinaryCacheTrace"]) == ("1", "1")
    assert json.loads(spec.arguments[-1]) == [None, "B", None, "26.27.039122"]
    assert (spec.arguments[1], rebuilder.compiler(BY_ZERO, tmp_path).arguments[1]) == ("opencl", "level-zero")


# -- what counts -------------------------------------------------------------------------------------------------------


def test_what_the_driver_kept_counts_and_says_how_to_do_it_again(store: Store, place: Path) -> None:
    recorded = told(store)
    recipe, content = made(rebuilder.recipe(entry(store, TEXT), recorded[TEXT]), place)
    assert content == (RECORDED / TEXT).read_bytes()
    assert recipe.made == recorded[TEXT]
    assert rebuilder.unusable(BY_OPENCL, content) is None
    assert not list(place.glob("*.trace"))


def test_what_the_driver_was_asked_for_must_be_what_the_program_asks_for(store: Store, place: Path) -> None:
    """An option that was not rewritten as we thought makes another name, which nobody would look for."""
    recipe = rebuilder.recipe(entry(store, TEXT), told(store)[TEXT])
    assert isinstance(recipe, Recipe)
    another = replace(recipe, facts={**recipe.facts, "lineage": "0" * 32})
    assert "something else" in str(rebuilder.made(another, BY_OPENCL, HOST, b"", place))


def test_what_is_for_another_compiler_counts_for_nothing(store: Store, place: Path) -> None:
    recipe = rebuilder.recipe(entry(store, TEXT), told(store)[TEXT])
    assert isinstance(recipe, Recipe)
    later = replace(BY_OPENCL, facts=(("compiler", "1 2"),))
    assert "something else" in str(rebuilder.made(recipe, later, HOST, b"", place))


@pytest.mark.parametrize("what", ["nothing", "entry"])
def test_that_the_compiler_ended_well_is_not_enough(store: Store, place: Path, what: str) -> None:
    recipe = rebuilder.recipe(entry(store, TEXT), told(store)[TEXT])
    assert isinstance(recipe, Recipe)
    for path in [path for path in place.rglob("*") if path.is_file()]:
        if Path(TEXT).stem not in path.name or what == "nothing" or path == place / TEXT:
            path.unlink()
    with pytest.raises(OSError, match="kept nothing"):
        rebuilder.made(recipe, BY_OPENCL, HOST, b"", place)


def test_directories_deeper_than_one_can_go_are_no_entry(store: Store, place: Path) -> None:
    recipe = rebuilder.recipe(entry(store, TEXT), told(store)[TEXT])
    assert isinstance(recipe, Recipe)
    scratch.clear(os.fspath(place))
    deep = os.fspath(place)
    try:
        for _ in range(1200):
            deep += "/0"
            os.mkdir(deep)  # noqa: PTH102 - pathlib takes long for so many
        with pytest.raises(OSError, match="kept nothing"):
            rebuilder.made(recipe, BY_OPENCL, HOST, b"", place)
    finally:
        # Who removes it after us goes down step by step, too.
        scratch.clear(os.fspath(place))


@pytest.mark.parametrize("what", [".trace", ".input"])
def test_what_its_trace_does_not_explain_is_not_tried_with_this_driver_again(
    store: Store, place: Path, what: str
) -> None:
    recipe = rebuilder.recipe(entry(store, TEXT), told(store)[TEXT])
    assert isinstance(recipe, Recipe)
    for path in place.glob(f"*{what}"):
        path.unlink()
    assert "does not explain" in str(rebuilder.made(recipe, BY_OPENCL, HOST, b"", place))


@pytest.mark.parametrize("what", ["cut short", "another's"])
def test_where_the_driver_has_no_room_for_its_trace_no_recipe_is_blamed(store: Store, place: Path, what: str) -> None:
    recipe = rebuilder.recipe(entry(store, TEXT), told(store)[TEXT])
    assert isinstance(recipe, Recipe)
    if what == "cut short":
        for path in place.glob("*.trace"):
            path.write_bytes(path.read_bytes()[:100])
    else:
        recipe = replace(recipe, facts={**recipe.facts, "lineage": "0" * 32})

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            rebuilder.made(recipe, BY_OPENCL, HOST, b"", place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_compiler_that_was_replaced_meanwhile_is_no_fault_of_the_driver(store: Store, place: Path) -> None:
    recipe = rebuilder.recipe(entry(store, TEXT), told(store)[TEXT])
    assert isinstance(recipe, Recipe)
    later = replace(HOST, driver=(replace(LIBRARY, size=LIBRARY.size + 1),))
    with pytest.raises(OSError, match="replaced just now"):
        rebuilder.made(recipe, BY_OPENCL, later, b"", place)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"text"])
def test_what_no_program_can_load_is_named(content: bytes) -> None:
    assert rebuilder.unusable(BY_OPENCL, content)


# -- where it goes -----------------------------------------------------------------------------------------------------


def test_it_goes_where_the_driver_would_have_put_it_and_is_counted(store: Store, place: Path) -> None:
    recipe, content = compiled(store, place)
    shutil.rmtree(store.root / "1")
    (store.root / "config.file").write_bytes(struct.pack("<Q", 1000))
    assert rebuilder.publish(recipe, BY_OPENCL, content) == TEXT
    assert (store.root / TEXT).read_bytes() == content
    assert believed(store) == 1000 + len(content)
    assert stat.S_IMODE((store.root / TEXT).stat().st_mode) == stat.S_IMODE((place / TEXT).stat().st_mode) & 0o666
    assert sorted(path.name for path in store.root.iterdir() if path.name.startswith("cl_cache")) == []


def test_who_may_write_there_opens_no_file_elsewhere(
    store: Store, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, content = taken_out(store, place)
    secret = tmp_path / "secret"
    secret.touch(0o600)
    make = fs.make

    def made_and_replaced(root: int, name: str, content: bytes, **further: int) -> None:
        make(root, name, content, **further)  # type: ignore[arg-type] # as it was called
        os.unlink(name, dir_fd=root)
        os.symlink(secret, name, dir_fd=root)

    monkeypatch.setattr(fs, "make", made_and_replaced)
    rebuilder.publish(recipe, BY_OPENCL, content)

    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_disk_that_is_full_keeps_no_half_of_an_entry(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, content = taken_out(store, place)
    before = sorted(store.root.rglob("*"))

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # It is on the disk before programs can find it.
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        rebuilder.publish(recipe, BY_OPENCL, content)
    assert sorted(store.root.rglob("*")) == before


def test_what_is_there_is_told_so_also_where_the_disk_refuses_the_driver_s_number(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, content = taken_out(store, place)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    assert rebuilder.publish(recipe, BY_OPENCL, content) == TEXT
    assert (store.root / TEXT).read_bytes() == content


def test_what_a_death_leaves_is_cleared_away_as_what_programs_leave_that_died(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, content = taken_out(store, place)
    before = sorted(store.root.rglob("*"))

    class Killed(BaseException):
        """Stands for the end of the process, after which nothing is cleared up."""

    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(os, "rename", kill)
        dying.setattr(os, "unlink", kill)
        with pytest.raises(Killed):
            rebuilder.publish(recipe, BY_OPENCL, content)
    (left,) = set(store.root.rglob("*")) - set(before)
    later = datetime.fromtimestamp(left.stat().st_mtime, UTC) + timedelta(hours=1)
    assert doctor.clear(store, defects.LEFT_BEHIND, later, None)
    assert sorted(store.root.rglob("*")) == before


def test_what_a_program_has_written_meanwhile_stays(store: Store, place: Path) -> None:
    recipe, content = compiled(store, place)
    before = (store.root / TEXT).stat().st_ino
    assert rebuilder.publish(recipe, BY_OPENCL, content) is None
    assert (store.root / TEXT).stat().st_ino == before


def test_a_store_in_which_nobody_wrote_yet_is_counted_by_the_first_who_does(
    store: Store, place: Path, empty: Store
) -> None:
    recipe, content = compiled(store, place)
    assert rebuilder.publish(recipe, BY_OPENCL, content, empty.root) == TEXT
    assert [path.name for path in empty.root.rglob("*") if path.is_file()] == [Path(TEXT).name]


def test_while_a_program_writes_nothing_is_put_there(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    recipe, content = taken_out(store, place)
    before = sorted(path.name for path in store.root.iterdir())
    with (store.root / "config.file").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="holds the lock"):
            rebuilder.publish(recipe, BY_OPENCL, content)
    assert 5 < sum(waited) < 10
    assert not (store.root / TEXT).exists()
    assert sorted(path.name for path in store.root.iterdir()) == before


@pytest.mark.parametrize("how", ["hard link", "link"])
def test_a_lock_that_is_not_the_store_s_own_lets_nothing_in(
    store: Store, place: Path, tmp_path: Path, how: str
) -> None:
    recipe, content = taken_out(store, place)
    lock = store.root / "config.file"
    if how == "link":
        lock.rename(tmp_path / "away")
        lock.symlink_to(tmp_path / "away")
    else:
        (tmp_path / "away").hardlink_to(lock)
    with pytest.raises(removal.StoreClosed):
        rebuilder.publish(recipe, BY_OPENCL, content)
    assert not (store.root / TEXT).exists()


@pytest.mark.parametrize("what", ["link", "pipe", "file", "root"])
def test_what_somebody_put_in_the_way_is_not_followed(store: Store, place: Path, tmp_path: Path, what: str) -> None:
    recipe, content = compiled(store, place)
    away = tmp_path / "away"
    away.mkdir()
    into = store.root
    shutil.rmtree(store.root / "1")
    match what:
        case "link":
            (store.root / "1").symlink_to(away)
        case "pipe":
            os.mkfifo(store.root / "1")
        case "file":
            (store.root / "1").write_bytes(b"")
        case _:
            (tmp_path / "link").symlink_to(store.root)
            into = tmp_path / "link"
    with pytest.raises(OSError, match=r"."):
        rebuilder.publish(recipe, BY_OPENCL, content, into)
    assert list(away.iterdir()) == []


@pytest.mark.parametrize("key", ["../../x", "1/4/../x.cl_cache", "/etc/x.cl_cache", "config.file"])
def test_a_key_that_is_no_entry_s_goes_nowhere(store: Store, place: Path, key: str) -> None:
    recipe, content = compiled(store, place)
    assert recipe.made is not None
    forged = replace(recipe, made=replace(recipe.made, key=EntryKey(key)))
    with pytest.raises(OSError, match="under which name"):
        rebuilder.publish(forged, BY_OPENCL, content)
