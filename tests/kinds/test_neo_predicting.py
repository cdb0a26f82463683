"""Where the driver will look when its compiler is another: predicted from recipes, and what the driver then does."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.kinds.test_neo_recorder import BY_OPENCL, CARD, HOST, LIBRARY, RECORDED
from xpucached.domain.host import DriverFile
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import EntryId, Store
from xpucached.kinds.neo import recorder, targets, trace
from xpucached.kinds.neo.predicting import KeyPredictor, lineage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.runtimes import SimulatedGpu
    from xpucached.domain.host import Host
    from xpucached.domain.recipes import RecordedRecipe
    from xpucached.domain.targets import Target

SOURCE: Final = "kernel void twice(global float *x) { x[get_global_id(0)] *= 2 * X; }\n"
LATER: Final = replace(HOST, driver=(replace(LIBRARY, modified=LIBRARY.modified + timedelta(days=1)),))


def collected(root: Path, host: Host) -> dict[str, tuple[RecordedRecipe, bytes]]:
    """Take a run's recipes out of a store, each with its input."""
    given = {path.stem: path.read_bytes() for path in root.glob("*.input")}
    told = recorder.collect(Store(targets.NAME, root), frozenset(), host).recipes
    return {Path(one.key).stem: (one, given[Path(one.key).stem]) for one in told}


@pytest.fixture
def told(tmp_path: Path) -> Mapping[str, tuple[RecordedRecipe, bytes]]:
    shutil.copytree(RECORDED, tmp_path / "store")
    return collected(tmp_path / "store", HOST)


def successor(target: Target, host: Host) -> Target:
    (found,) = [one for one in targets.targets(host) if one.lineage == target.lineage]
    return found


def test_a_name_is_predicted_for_another_compiler_and_for_nothing_else(
    told: Mapping[str, tuple[RecordedRecipe, bytes]],
) -> None:
    names = KeyPredictor()
    every = {name: names.key(one, given, successor(one.target, LATER)) for name, (one, given) in told.items()}
    assert every == {
        "14393921d7ce9d06": "6/5/652c368a156652cb.cl_cache",
        "24c2875a139227f0": "3/4/34efcd5681f1711f.l0_cache",
        "25297eb0a9ff01c5": "5/0/50f8c08ff6303e0e.cl_cache",
        "f7827a5fb64ef597": "f/e/feb487fe494792c9.l0_cache",
        "fda88f9b82d687e4": "c/8/c8f5d1afcea6da3a.l0_cache",
    }
    one, given = told["14393921d7ce9d06"]
    assert names.key(one, given, BY_OPENCL) == one.key
    later = successor(BY_OPENCL, LATER)
    for other in (
        replace(later, toolchain="26.28"),
        replace(later, device="C"),
        replace(later, family="Level Zero"),
        replace(later, facts=()),
        replace(later, facts=(("compiler", "1 2, 3 4"),)),
        replace(later, facts=(("compiler", f"{1 << 64} 1"),)),
    ):
        assert names.key(one, given, other) is None


def test_a_flat_name_stays_flat(told: Mapping[str, tuple[RecordedRecipe, bytes]]) -> None:
    one, given = told["14393921d7ce9d06"]
    flat = replace(one, key=EntryKey("14393921d7ce9d06.cl_cache"))
    assert KeyPredictor().key(flat, given, successor(BY_OPENCL, LATER)) == "652c368a156652cb.cl_cache"


@pytest.mark.parametrize(
    ("what", "other"),
    [
        (b'"features"', b'"others"'),
        (b'"platform": [', b'"platform": [1, '),
        (b'"platform": [', b'"platform": [-'),
        (b', ""]', b', "5.2.1"]'),
        (b"{", b"["),
    ],
)
def test_what_a_recipe_does_not_say_is_not_predicted(
    told: Mapping[str, tuple[RecordedRecipe, bytes]], what: bytes, other: bytes
) -> None:
    one, given = told["14393921d7ce9d06"]
    driver = one.parts["driver"].replace(what, other)
    assert driver != one.parts["driver"]
    assert KeyPredictor().key(replace(one, parts={"driver": driver}), given, successor(BY_OPENCL, LATER)) is None
    for name in one.facts:
        for facts in ({**one.facts, name: "x"}, {key: text for key, text in one.facts.items() if key != name}):
            assert KeyPredictor().key(replace(one, facts=facts), given, successor(BY_OPENCL, LATER)) is None
    assert KeyPredictor().key(replace(one, parts={}), given, successor(BY_OPENCL, LATER)) is None


def test_what_the_front_end_may_have_made_is_not_predicted(told: Mapping[str, tuple[RecordedRecipe, bytes]]) -> None:
    """A text that includes another goes through it first, and another compiler comes with another one."""
    (one, _), (_, image) = told["14393921d7ce9d06"], told["24c2875a139227f0"]
    later = successor(BY_OPENCL, LATER)
    assert KeyPredictor().key(one, image, later) is None
    asked = trace.read((RECORDED / "14393921d7ce9d06.trace").read_bytes())
    mine = replace(one, lineage=lineage(asked, hashlib.sha256(image).hexdigest()))
    assert KeyPredictor().key(mine, image, later) is None
    assert KeyPredictor().key(replace(one, lineage="another"), one.parts["input"], later) is None


def test_an_image_is_read_from_its_entry_and_counts_only_as_it_was(tmp_path: Path) -> None:
    shutil.copytree(RECORDED, tmp_path / "store")
    told = collected(tmp_path / "store", HOST)
    one, _ = told["fda88f9b82d687e4"]
    entry, later = EntryId(Store(targets.NAME, tmp_path / "store"), one.key), successor(one.target, LATER)
    assert "input" not in one.parts
    assert recorder.predict(entry, one, later) == "c/8/c8f5d1afcea6da3a.l0_cache"

    path = tmp_path / "store" / one.key
    path.write_bytes(path.read_bytes().replace(b"\x03\x02\x23\x07\x00\x04", b"\x03\x02\x23\x07\x00\x05"))
    assert recorder.predict(entry, one, later) is None
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(OSError, match=r"\[Errno"):
        recorder.predict(entry, one, later)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        recorder.predict(entry, one, later)


# -- and what it then does ---------------------------------------------------------------------------------------------


def host_of(library: Path) -> Host:
    """Return a host whose only compiler is this file."""
    status = library.stat()
    made = datetime.fromtimestamp(status.st_mtime, UTC)
    file = DriverFile(library, library, None, status.st_size, made, None, None)
    return replace(HOST, devices=(replace(CARD, pci_id=None),), driver=(file,))


@pytest.mark.runtime
def test_the_driver_looks_where_it_was_predicted(gpu: SimulatedGpu, tmp_path: Path) -> None:
    (tmp_path / "source.cl").write_text(SOURCE)
    options = [f"-DX={number}" for number in range(5)]
    jobs = [("text", tmp_path / "source.cl", one) for one in options]
    jobs += [("ze", next(RECORDED.glob("fda88f9b82d687e4.input")), one) for one in ("", "-ze-opt-disable")]
    (tmp_path / "other").mkdir()
    before = (gpu.libraries / "libigc.so.2").resolve()
    after = tmp_path / "other" / before.name
    shutil.copyfile(before, after)
    (tmp_path / "other" / "libigc.so.2").symlink_to(after.name)
    os.utime(after, (1_800_000_000.9, 1_800_000_000.9))

    def build(place: str, libraries: str) -> Path:
        store = tmp_path / place
        store.mkdir()
        words = gpu.builder(jobs)
        words[2] = f"{libraries}{words[2]}"
        caching = {"NEO_CACHE_PERSISTENT": "1", "NEO_CACHE_DIR": str(store), "BinaryCacheTrace": "1"}
        subprocess.run(words, env={**gpu.variables, **caching}, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
        return store

    told = collected(build("before", ""), host_of(before))
    assert len(told) == len(jobs)
    host, names = host_of(after), KeyPredictor()
    predicted = {names.key(one, given, successor(one.target, host)) for one, given in told.values()}
    store = build("after", f"{tmp_path}/other:")
    assert {str(path.relative_to(store)) for path in store.rglob("*_cache")} == predicted
    assert not predicted & {one.key for one, _ in told.values()}
