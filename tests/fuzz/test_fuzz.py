"""A short round of the fuzzer, everything that it has ever found, and what no fuzzer need guide: any bytes at all."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import targets
from xpucached.kinds import images
from xpucached.kinds.sycl import entry_format

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent

# About half a second each; `make fuzz` goes on for as long as one likes.
ROUNDS = {
    "source": 20_000,
    "binary": 7_500,
    "image": 4_000,
    "name": 4_000,
    "trace": 10_000,
    "zebin_entry": 4_000,
    "lookup": 1_500,
    "slot": 125,
    "configuration": 300,
    "our_settings": 60,
    "label": 4_000,
    "library": 10_000,
    "catalog": 12,
    "message": 7_500,
    "request": 1_000,
    "http": 500,
    "device_code": 750,
    "program": 1_500,
    "wheel": 2_000,
    "bundle": 750,
}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    targets.close()


@pytest.mark.parametrize("target", targets.TARGETS)
def test_what_real_runtimes_and_clients_write_breaks_nothing(target: str) -> None:
    seeds = targets.seeds(target)
    assert len(seeds) > 2
    for seed in seeds:
        targets.TARGETS[target](seed)
        for end in {len(seed) // 2, max(0, len(seed) - 1)}:
            targets.TARGETS[target](seed[:end])


def test_real_entries_are_read_whole() -> None:
    for path in sorted(targets.CORPUS.glob("*.src")):
        data = path.read_bytes()
        read = entry_format.source(data, len(data))
        assert read.whole
        assert read.defect is None
        assert images.kernels(read.image)
    assert len(list(targets.CORPUS.glob("*.bin"))) == len(list(targets.CORPUS.glob("*.src"))) > 1


def test_what_was_found_stays_mended() -> None:
    for path in sorted(HERE.glob("found/*/*")):
        targets.TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("target", [name for name in targets.TARGETS if name not in ("http", "catalog")])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_bytes_break_nothing(target: str, data: st.DataObject) -> None:
    targets.TARGETS[target](data.draw(st.binary(max_size=400)))


SUFFIXES = (".src", ".bin", "x")
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("1/2/3/4/0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(SUFFIXES), inner, max_size=3),
    max_leaves=6,
)


@given(changes=st.dictionaries(st.sampled_from(sorted(json.loads(targets.seeds("label")[0]))), ANY, max_size=3))
@settings(max_examples=400, deadline=None)
def test_a_label_with_any_values_breaks_nothing(changes: dict[str, object]) -> None:
    targets.label(json.dumps({**json.loads(targets.seeds("label")[0]), **changes}).encode())


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play the rounds that are asked for, one after the other; give where the fuzzer's words and finds are."""
    if importlib.util.find_spec("atheris") is None:
        if os.environ.get("CI") and sys.version_info < (3, 14):
            pytest.fail("atheris is not installed: pip install '.[test]'")
        pytest.skip("there is no fuzzer here: atheris is not installed")
    place = tmp_path_factory.mktemp("rounds")
    asked = [one.name for one in request.session.items]
    words = [f"{one}={runs}" for one, runs in ROUNDS.items() if f"test_a_short_round_finds_nothing[{one}]" in asked]
    subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words, "--seed=7", f"--found={place}/found", f"--logs={place}"],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(place)},
        timeout=280,
        check=False,
    )
    return place


@pytest.mark.parametrize("target", ROUNDS)
def test_a_short_round_finds_nothing(target: str, played: Path) -> None:
    said = (played / target).read_text("utf-8", "replace")
    kept = [path.read_bytes() for path in (played / "found" / target).glob("*-*")]
    assert not kept, f"{kept}\n{said[-3000:]}"
    # It was guided: inputs that reached something new were kept.
    assert int(re.findall(r"cov: (\d+)", said)[-1]) > 20
    # All were tried: it did not end before.
    assert f"number_of_executed_units: {ROUNDS[target]}" in said


def test_every_target_has_a_round() -> None:
    assert set(ROUNDS) == set(targets.TARGETS)
    (told,) = re.findall(r"FUZZ_TARGETS \?= (.*)", (REPOSITORY / "Makefile").read_text())
    assert set(told.split()) == set(targets.TARGETS)
