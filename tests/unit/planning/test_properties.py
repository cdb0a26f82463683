"""Properties of what people and clients type: sizes, durations, and filters for entries."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.builders import sycl_target
from xpucached import quantities
from xpucached.catalog import Catalog
from xpucached.catalog.defects import note_defects
from xpucached.catalog.entries import all_entries, entry_page
from xpucached.catalog.scans import record_scan
from xpucached.catalog.stores import all_stores
from xpucached.domain.defects import CHANGED
from xpucached.domain.names import Architecture, EntryKey, KindName
from xpucached.domain.queries import EntryQuery
from xpucached.domain.stores import Entry, EntryId, EntryState, FoundStore, Kernel, Scan, Store, StoreOrigin, StoreState
from xpucached.domain.targets import Target
from xpucached.errors import RequestError
from xpucached.kinds import sycl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# -- sizes and durations ----------------------------------------------------------------------------------------------

UNITS: Final = {"": 1, "b": 1, "k": 1000, "kB": 1000, "KiB": 1024, "mb": 10**6, "MiB": 1 << 20, "G": 10**9}
UNITS_MORE: Final = {"GiB": 1 << 30, "TB": 10**12, "tib": 1 << 40}
TIMES: Final[dict[str, Fraction | int]] = {
    "ms": Fraction(1, 1000),
    "s": 1,
    "sec": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "d": 86400,
    "weeks": 604800,
}


@given(
    whole=st.integers(0, 10**18 - 1),
    fraction=st.integers(0, 10**9 - 1) | st.none(),
    unit=st.sampled_from(sorted({**UNITS, **UNITS_MORE})),
    gap=st.sampled_from(["", " "]),
    around=st.sampled_from(["", " ", "\t", "\n"]),
)
def test_a_size_is_its_number_times_its_unit_to_the_byte(
    whole: int, fraction: int | None, unit: str, gap: str, around: str
) -> None:
    number = str(whole) if fraction is None else f"{whole}.{fraction:09d}"
    exact = Fraction(number) * {**UNITS, **UNITS_MORE}[unit]
    assert quantities.size(f"{around}{number}{gap}{unit}{around}") == math.floor(exact)


@given(
    parts=st.lists(st.tuples(st.integers(0, 10**9), st.sampled_from(sorted(TIMES))), min_size=1, max_size=5),
    gap=st.sampled_from(["", " "]),
)
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str]], gap: str) -> None:
    text = gap.join(f"{number}{unit}" for number, unit in parts)
    exact = sum((number * Fraction(TIMES[unit]) for number, unit in parts), start=Fraction(0))
    assert quantities.duration(text) == pytest.approx(float(exact))


@given(text=st.text(max_size=30) | st.from_regex(r"\A[0-9.eE+-]{1,12} ?[a-zA-Z]{0,5}\Z"))
@pytest.mark.parametrize("read", [quantities.size, quantities.duration])
def test_any_text_is_a_quantity_or_refused_with_a_sentence(read: Callable[[str], float], text: str) -> None:
    refused = ""
    value = 0.0
    try:
        value = read(text)
    except ValueError as error:
        refused = str(error)
    assert not refused or ("expected a number and a unit" in refused and len(refused) < 400)
    assert value >= 0
    assert math.isfinite(value)
    assert refused or read(f" {text} ") == value


# -- filters ----------------------------------------------------------------------------------------------------------

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
STORES: Final = tuple(Store(KindName("sycl"), Path(root)) for root in ("/a", "/a'; DROP TABLE entries; --"))
# What SQL, LIKE and a shell would read as more than text.
PIECES: Final = ["", "a", "B580", "%", "_", "\\", "'", '"', ";--", "*", "?", "$(x)", "\n", "\0", "é", "1.6.31", "1.6"]
SIGNS: Final = st.lists(st.sampled_from(PIECES), max_size=3).map("".join)
DEVICES: Final = st.builds(sycl_target, SIGNS, SIGNS, st.just("v"), SIGNS)
PRESENT: Final = sycl_target("a", "B580", "v", "1.6.31")


def architecture(environment: Target) -> Architecture:
    return Architecture(f"arch-{environment.family}")


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    made = []
    for number in range(draw(st.integers(0, 6))):
        defect = draw(st.sampled_from([None, sycl.defects.BIN_EMPTY]))
        made.append(
            Entry(
                EntryId(draw(st.sampled_from(STORES)), EntryKey(f"1/2/3/4/{number}")),
                stamp=f"s{number}",
                size=draw(st.integers(0, (1 << 63) - 1)),
                allocated=4096,
                created=NOW - timedelta(seconds=draw(st.integers(0, 10**9))),
                accessed=None,
                environment=draw(st.none() | st.just(PRESENT) | DEVICES),
                kernels=tuple(Kernel(name, name) for name in draw(st.lists(SIGNS.filter(bool), max_size=2))),
                digest=f"d{number}",
                defect=defect,
                state=EntryState.DEFECTIVE if defect else EntryState.OK,
            )
        )
    return made


QUERIES: Final = st.builds(
    EntryQuery,
    ref=st.none() | st.text("0123456789abcdef", max_size=3),
    store=st.none() | st.sampled_from([one.root for one in STORES]),
    driver=st.none() | SIGNS | SIGNS.map(lambda text: f"{text}*") | st.just("current"),
    architecture=st.none() | SIGNS.map(lambda text: f"arch-{text}"),
    device=st.none() | SIGNS,
    state=st.none() | st.sampled_from(EntryState),
    defect=st.none() | st.sampled_from([sycl.defects.BIN_EMPTY.code, sycl.defects.SRC_EMPTY.code]),
    kernel=st.none() | SIGNS,
    min_size=st.none() | st.integers(-(1 << 70), 1 << 70),
    max_size=st.none() | st.integers(-(1 << 70), 1 << 70),
    unused=st.none() | st.floats(0, 1e300),
)


def lower(text: str) -> str:
    """As SQLite compares: only ASCII has two cases."""
    return "".join(sign.lower() if sign.isascii() else sign for sign in text)


def fits(one: Entry, query: EntryQuery) -> bool:
    """Return the same as the catalog, without SQL."""
    of = one.environment
    checks = [
        one.id.ref.startswith(query.ref or ""),
        query.store in (None, one.id.store.root),
        query.state in (None, one.state),
        query.defect in (None, one.defect.code if one.defect else None),
        query.min_size is None or one.size >= query.min_size,
        query.max_size is None or one.size <= query.max_size,
        query.unused is None or (NOW - one.created).total_seconds() >= query.unused,
        query.architecture is None or (of is not None and architecture(of) == query.architecture),
        query.device is None or (of is not None and lower(query.device) in lower(of.device)),
        query.kernel is None or lower(query.kernel) in lower("\n".join(kernel.name for kernel in one.kernels)),
    ]
    if query.driver is not None:
        wanted = query.driver
        if wanted == "current":
            checks.append(of == PRESENT)
        elif wanted.endswith("*"):
            checks.append(of is not None and lower(of.toolchain).startswith(lower(wanted[:-1])))
        else:
            checks.append(of is not None and of.toolchain == wanted)
    return all(checks)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    opened = Catalog.open(tmp_path_factory.mktemp("shared") / "catalog.sqlite")
    opened.write(note_defects, (CHANGED, *sycl.defects.DEFECTS))
    yield opened
    opened.close()


def filled(catalog: Catalog, some: list[Entry]) -> None:
    for store in STORES:
        mine = tuple(one for one in some if one.id.store == store)
        found = FoundStore(store, StoreOrigin.FOUND, "test")
        catalog.write(record_scan, Scan(found, NOW, StoreState.OK, 1000, entries=mine), architecture)


@pytest.mark.flow
@given(some=entries(), query=QUERIES)
@example(
    some=[Entry(EntryId(STORES[0], EntryKey("1/2/3/4/0")), "s0", 0, 4096, NOW, None, PRESENT)],
    query=EntryQuery(driver="\0*"),
)
@example(
    some=[Entry(EntryId(STORES[0], EntryKey("1/2/3/4/0")), "s0", 0, 4096, NOW, None)], query=EntryQuery(unused=5e-324)
)
@settings(max_examples=300, deadline=None)
def test_a_filter_says_the_same_as_python(shared: Catalog, some: list[Entry], query: EntryQuery) -> None:
    filled(shared, some)
    page = shared.read(entry_page, replace(query, limit=100), present={PRESENT.fingerprint}, now=NOW)
    wanted = {one.id for one in some if fits(one, query)}
    assert {one.entry.id for one in page.entries} == wanted
    assert page.total == len(wanted)
    assert len(shared.read(all_entries)) == len(some)


@given(
    text=st.text(max_size=40), field=st.sampled_from(["driver", "architecture", "device", "kernel", "model", "after"])
)
@settings(max_examples=200, deadline=None)
def test_any_text_in_a_filter_is_only_looked_for(shared: Catalog, text: str, field: str) -> None:
    query = replace(EntryQuery(limit=5), **{field: text})
    try:
        shared.read(entry_page, query, present=(), now=NOW)
    except RequestError:
        assert field == "after" or not text.isprintable()
    assert shared.read(all_stores) is not None
