"""Entries of SYCL that travel: what is packed, and what is refused of that which comes."""

from __future__ import annotations

import contextlib
import os
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support.builders import SyclStore, framed, native, spirv, string_hash, sycl_target
from tests.support.users import unused
from xpucached.domain.bundles import RecipeLine
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import Entry, EntryId, Store
from xpucached.kinds import fs
from xpucached.kinds.neo import portable as neo
from xpucached.kinds.sycl import NAME, entry_format, portable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.builders import Slot
    from xpucached.domain.plans import Recipe

STORE: Final = Store(NAME, Path("/c"))
TARGET: Final = sycl_target("Intel(R) OpenCL", "CPU", "OpenCL 3.0", "2")
DEVICE: Final = b"Intel(R) OpenCL/CPU/OpenCL 3.0/2"
IMAGE: Final = spirv("_ZTS1a")
PROGRAM: Final = native(300)


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("1/2/3/4/0", "1/2/3/4/0"),
        ("1/2/3/4/7", "1/2/3/4/0"),
        ("1/2/3/4", None),
        ("1/2/3/4/5/0", None),
        ("1/x/3/4/0", None),
        ("ext_kernel_compiler/1/2/3/0", None),
    ],
)
def test_an_entry_travels_as_the_lowest_slot_of_its_leaf(key: str, place: str | None) -> None:
    assert portable.place(EntryKey(key)) == place


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("1/2/3/4/0.bin", True),
        ("1/2/3/4/0.src", True),
        ("1/2/3/4/1.bin", False),
        ("1/2/3/0.bin", False),
        ("1/2/3/../0.bin", False),
        ("01/2/3/4/0.bin", False),
        ("1/2/3/4/0.bin\n", False),
    ],
)
def test_a_file_of_a_bundle_is_called_as_in_a_leaf(name: str, *, file: bool) -> None:
    assert portable.is_file(name) is file


def leaf(
    *,
    device: bytes = DEVICE,
    options: bytes = b"-g",
    constants: bytes = b"",
    program: bytes = PROGRAM,
    more: bytes = b"",
) -> dict[str, bytes]:
    """Return the two files of an entry where they belong."""
    path = "/".join(str(string_hash(one)) for one in (device, IMAGE, constants, options))
    source = framed(device, options, constants, IMAGE)
    return {f"{path}/0.bin": struct.pack("<QQ", 1, len(program)) + program, f"{path}/0.src": source}


def test_a_leaf_is_taken_apart() -> None:
    files = leaf()
    recipe, program = portable.unpack(STORE, TARGET, files)
    key = next(iter(files)).removesuffix(".bin")
    assert (recipe.entry, recipe.input, recipe.options, program) == (
        EntryId(STORE, EntryKey(key)),
        IMAGE,
        b"-g",
        PROGRAM,
    )
    assert recipe.facts == {"file-mode": "644", "directory-mode": "755", "access-time": "kept"}
    assert portable.lineage(recipe) == "/".join(key.split("/")[1:-1])
    assert portable.facts(recipe) == {}


def changed(what: str) -> dict[str, bytes]:
    """Return an entry that somebody has changed."""
    binary, source = leaf()
    files = leaf()
    match what:
        case "half":
            del files[source]
        case "elsewhere":
            return {name.replace("0.", "1."): content for name, content in files.items()}
        case "cut":
            files[source] = files[source][:-1]
        case "longer":
            files[source] += b"x"
        case "moved":
            return {f"1/{name.partition('/')[2]}": content for name, content in files.items()}
        case "two":
            files[binary] = struct.pack("<Q", 2) + files[binary][8:]
        case "two programs":
            files[binary] = struct.pack("<Q", 2) + framed(PROGRAM, PROGRAM)
        case "short":
            files[binary] = files[binary][:-1]
        case _:
            files = leaf(
                device=b"Intel(R) OpenCL/CPU/OpenCL 3.0/3" if what == "other driver" else DEVICE,
                constants=b"1" if what == "constants" else b"",
                program=b"\0" * 9 if what == "zero" else PROGRAM,
            )
    return files


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("half", "half an entry"),
        ("elsewhere", "half an entry"),
        ("cut", "its source is damaged: the image announces"),
        ("longer", "its source is damaged: 1 bytes follow the image"),
        ("moved", "it does not lie where its content belongs"),
        ("other driver", "it is for another environment"),
        ("two", "its program is damaged: counts 2 programs, holds 1"),
        ("two programs", "its program is damaged: it holds several"),
        ("short", "its program is damaged: announces"),
        ("constants", "it was compiled with specialization constants"),
        ("zero", "its program is damaged: all bytes are zero"),
    ],
)
def test_what_is_no_entry_is_refused(what: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        portable.unpack(STORE, TARGET, changed(what))


# -- packing ----------------------------------------------------------------------------------------------------------


def entry(made: Slot, root: Path) -> Entry:
    key = EntryKey(f"{made.leaf.relative_to(root)}/{made.bin.stem}")
    target = sycl_target(*SyclStore(root).defaults.values())
    return Entry(EntryId(Store(NAME, root), key), "", 0, 0, datetime.now(UTC), None, environment=target)


def test_an_entry_is_packed_as_it_lies_there(sycl_store: SyclStore) -> None:
    made = sycl_store.add(slot=3)
    packed = entry(made, sycl_store.root)
    files, recipe = portable.pack(packed)
    path = made.leaf.relative_to(sycl_store.root)
    assert files == {f"{path}/0.bin": made.bin.read_bytes(), f"{path}/0.src": made.src.read_bytes()}
    assert recipe.entry.key == f"{path}/0"
    with pytest.raises(ValueError, match="it does not say what it is for"):
        portable.pack(replace(packed, environment=None))


def test_what_is_being_written_is_not_packed(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sycl_store.add()
    lock = made.leaf / "0.lock"
    lock.touch()
    with pytest.raises(ValueError, match="a program is writing it"):
        portable.pack(entry(made, sycl_store.root))
    lock.unlink()
    read = portable._read

    def meanwhile(act: Callable[[], object]) -> None:
        def reading(directory: int, name: str) -> tuple[bytes, os.stat_result]:
            found = read(directory, name)
            if name.endswith(".bin"):
                act()
            return found

        monkeypatch.setattr(portable, "_read", reading)

    def replaced() -> None:
        lock.unlink()
        made.src.write_bytes(made.src.read_bytes())

    for act in (lock.touch, replaced):
        meanwhile(act)
        with pytest.raises(ValueError, match="a program is writing it"):
            portable.pack(entry(made, sycl_store.root))


def test_what_somebody_else_wrote_or_is_too_large_is_not_packed(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sycl_store.add()
    monkeypatch.setattr(entry_format, "READ_LIMIT", max(path.stat().st_size for path in (made.bin, made.src)))
    portable.pack(entry(made, sycl_store.root))
    monkeypatch.setattr(entry_format, "READ_LIMIT", made.src.stat().st_size - 1)
    with pytest.raises(ValueError, match="it is too large"):
        portable.pack(entry(made, sycl_store.root))
    monkeypatch.undo()
    packed = entry(made, sycl_store.root)
    monkeypatch.setattr(os, "geteuid", unused)
    with pytest.raises((ValueError, OSError), match="somebody else"):
        portable.pack(packed)


# -- a whole store ----------------------------------------------------------------------------------------------------


def opened_below(root: Path) -> list[str]:
    """Name what this process has open there."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(str(Path(f"/proc/self/fd/{number}").readlink()))
    return [path for path in found if path.startswith(str(root))]


def walked(root: Path) -> list[tuple[str, bool]] | None:
    """Return what a walk meets, and whether it packed it on the way."""
    found = portable.walk(Store(NAME, root))
    if found is None:
        return None
    return sorted((one.entry.id.key, one.content is not None) for _, every in found.values() for one in every)


def test_a_store_is_walked_and_what_is_plain_is_packed_on_the_way(sycl_store: SyclStore) -> None:
    root = sycl_store.root
    first, second = sycl_store.add("_ZTS1a"), sycl_store.add("_ZTS1b", access_time=False)
    odd, another = (sycl_store.add(name, without=("bin",)) for name in ("_ZTS1c", "_ZTS1d"))
    (root / "cache_size.txt").touch()
    (first.leaf.parent / "x").mkdir()
    expected = [(first, True), (second, True), (odd, False), (another, False)]
    assert walked(root) == sorted((f"{one.leaf.relative_to(root)}/0", plain) for one, plain in expected)
    assert opened_below(root) == []
    found = portable.walk(Store(NAME, root))
    assert found is not None
    assert [number for number, _ in found.values()] == [4]


def test_a_store_that_does_not_say_all_is_not_walked(sycl_store: SyclStore) -> None:
    sycl_store.add()
    assert walked(sycl_store.root) is not None
    (sycl_store.root / "ext_kernel_compiler").mkdir()
    assert walked(sycl_store.root) is None
    (sycl_store.root / "ext_kernel_compiler").rmdir()
    (sycl_store.root / "12345").mkdir()
    assert walked(sycl_store.root) is None


def test_what_cannot_be_opened_just_now_is_told_and_what_is_somebody_else_s_is_not_there(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sycl_store.add()
    for error, met in ((PermissionError(13, "no"), []), (OSError(5, "broken"), None)):
        found = portable.walk(Store(NAME, sycl_store.root))
        assert found is not None

        def enter(*_: object, error: OSError = error) -> object:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(fs, "enter", enter)
            ((_, every),) = found.values()
            if met is None:
                with pytest.raises(OSError, match="broken"):
                    list(every)
            else:
                assert list(every) == met


# -- recipes ----------------------------------------------------------------------------------------------------------


def line(recipe: Recipe, **facts: str) -> RecipeLine:
    return RecipeLine(NAME, TARGET.family, portable.lineage(recipe), "", 0, recipe.options, facts)


def test_a_recipe_that_travelled_says_itself_where_it_belongs() -> None:
    recipe, _ = portable.unpack(STORE, TARGET, leaf())
    made = portable.recipe(STORE, line(recipe), IMAGE)
    assert (made.input, made.options, made.facts) == (IMAGE, b"-g", recipe.facts)
    assert made.entry.key == f"0/{portable.lineage(recipe)}/0"
    for wrong, given, words in (
        (line(recipe, more="x"), IMAGE, "it has facts"),
        (line(recipe), IMAGE + IMAGE, "it is not one module of SPIR-V"),
        (line(recipe), PROGRAM, "it is not one module of SPIR-V"),
        (line(recipe), spirv("_ZTS1b"), "it is not what its name says"),
    ):
        with pytest.raises(ValueError, match=words):
            portable.recipe(STORE, wrong, given)


AT: Final = "0123456789abcdef" * 2
LONGEST: Final = "ab" * (32 << 10)


@pytest.mark.parametrize(
    ("given", "at", "facts", "words"),
    [
        (IMAGE, AT, {"constants": "00ff", "values": ""}, None),
        (IMAGE, AT, {"constants": LONGEST, "values": LONGEST}, None),
        (b"__kernel", AT, {"constants": "", "values": ""}, "it is not one module of SPIR-V"),
        (IMAGE, AT, {"constants": ""}, "its facts are not"),
        (IMAGE, AT, {"constants": "", "values": "", "more": ""}, "its facts are not"),
        (IMAGE, AT, {"constants": "0", "values": ""}, "its facts are not"),
        (IMAGE, AT, {"constants": "", "values": "xy"}, "its facts are not"),
        (IMAGE, AT, {"constants": LONGEST + "00", "values": ""}, "its facts are not"),
        (IMAGE, AT[1:], {"constants": "", "values": ""}, "its name is none"),
        (IMAGE, AT + "\n", {"constants": "", "values": ""}, "its name is none"),
    ],
)
def test_a_recipe_of_the_gpu_driver_travels_with_its_constants(
    given: bytes, at: str, facts: dict[str, str], words: str | None
) -> None:
    told = RecipeLine(NAME, TARGET.family, at, "", 0, b"-g", facts)
    if words is not None:
        with pytest.raises(ValueError, match=words):
            neo.recipe(STORE, told, given)
        return
    made = neo.recipe(STORE, told, given)
    assert (made.entry.key, made.options, made.facts) == (at, b"-g", {**facts, "lineage": at})
    assert (neo.lineage(made), neo.facts(made)) == (at, facts)
    with pytest.raises(ValueError, match="it is compiled from text"):
        neo.facts(replace(made, input=b"__kernel"))


def test_programs_of_the_gpu_driver_do_not_travel() -> None:
    assert not neo.is_file("0/1/x.l0_cache")
    assert neo.place(EntryKey("0/1/x.l0_cache")) is None
    with pytest.raises(ValueError, match="do not travel"):
        neo.batch(Path("/c"))
