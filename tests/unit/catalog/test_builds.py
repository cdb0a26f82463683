"""What we compiled, and what a compiler refused: whose it is, how long it took, and for how long it is known."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from tests.support import catalogs
from tests.unit.catalog.test_catalog import HOUR, NEW, NOW, OLD, OTHER, STORE, architecture, entry, model, run, scan
from xpucached.catalog import builds, moved
from xpucached.catalog.builds import (
    build_rates,
    count_built,
    forget_old_builds,
    record_build,
    record_import,
    revoked_entries,
    withdraw_build,
)
from xpucached.catalog.days import since_the_beginning
from xpucached.catalog.entries import all_entries, entry_page, find_entry, forget_entries
from xpucached.catalog.models import add_model
from xpucached.catalog.moved import next_waiting, take_along
from xpucached.catalog.recipe_tables import VOUCHERS
from xpucached.catalog.refusals import record_refusal, refused_by
from xpucached.catalog.scans import record_scan
from xpucached.catalog.stores import forget_store
from xpucached.domain.bundles import BundleSource, MadeEntry
from xpucached.domain.defects import CHANGED
from xpucached.domain.names import KindName, ModelName
from xpucached.domain.plans import Built
from xpucached.domain.queries import EntryQuery
from xpucached.domain.stores import Entry, EntryState, Store, StoreState
from xpucached.domain.targets import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.catalog import Catalog

YEAR: Final = timedelta(days=365)
TICK: Final = timedelta(microseconds=1)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = catalogs.fresh(tmp_path / "catalog.sqlite")
    yield opened
    opened.close()


def built(of: Entry, seconds: float = 2.0, **facts: object) -> Built:
    plain = Built(of.id, OLD, Origin.REBUILT, "driver", 100, seconds, of.digest or "")
    return replace(plain, **facts)


def known(catalog: Catalog) -> dict[tuple[Store, str], tuple[Origin | None, float | None]]:
    return {(one.entry.id.store, one.entry.id.key): (one.origin, one.cost) for one in catalog.read(all_entries)}


def test_what_we_compiled_is_known_for_ours_while_it_is_just_that(catalog: Catalog) -> None:
    ours, changed, theirs = entry("a/0"), entry("b/0"), entry("c/0")
    elsewhere = entry("a/0", OTHER)
    catalog.write(record_build, built(ours), NOW)
    catalog.write(record_build, built(changed, digest="another"), NOW)
    catalog.write(record_scan, scan(ours, changed, theirs), architecture)
    catalog.write(record_scan, scan(elsewhere, store=OTHER), architecture)
    assert known(catalog) == {
        (STORE, "a/0"): (Origin.REBUILT, 2.0),
        (STORE, "b/0"): (Origin.DECLARED, None),
        (STORE, "c/0"): (Origin.DECLARED, None),
        (OTHER, "a/0"): (Origin.DECLARED, None),
    }


def test_a_later_build_of_an_entry_takes_the_place_of_the_one_before(catalog: Catalog) -> None:
    ours = entry("a/0")
    catalog.write(record_build, built(ours, 5.0), NOW)
    catalog.write(record_build, built(ours, 3.0, image_size=50), NOW)
    catalog.write(record_scan, scan(ours), architecture)
    assert known(catalog) == {(STORE, "a/0"): (Origin.REBUILT, 3.0)}
    assert catalog.read(build_rates) == {OLD.family: 3.0 / 50}


def test_what_is_to_come_is_known_when_it_is_there_and_takes_nothing_from_what_was_there(catalog: Catalog) -> None:
    there, gone, new, withdrawn = (entry(f"{name}/0") for name in ("there", "gone", "new", "withdrawn"))
    catalog.write(record_build, built(there, 5.0), NOW)
    catalog.write(record_build, built(gone, 5.0, digest="of what was there"), NOW)
    catalog.write(record_scan, scan(there), architecture)
    days = catalog.read(since_the_beginning)
    for one in (there, gone, new, withdrawn):
        digest = "of no use" if one is there else one.digest
        catalog.write(record_build, built(one, 3.0, digest=digest), NOW, coming=True)
    assert catalog.read(since_the_beginning) == days
    catalog.write(withdraw_build, withdrawn.id, NOW - HOUR)
    catalog.write(withdraw_build, withdrawn.id, NOW)
    # Nobody lived to say that they came.
    catalog.write(record_scan, scan(there, gone, new, withdrawn), architecture)
    assert known(catalog) == {
        (STORE, "there/0"): (Origin.REBUILT, 5.0),
        (STORE, "gone/0"): (Origin.REBUILT, 3.0),
        (STORE, "new/0"): (Origin.REBUILT, 3.0),
        (STORE, "withdrawn/0"): (Origin.DECLARED, None),
    }


def test_what_was_noted_at_another_moment_or_of_another_entry_is_not_withdrawn(catalog: Catalog) -> None:
    ours = entry("a/0")
    others = (entry("b/0"), entry("a/0", OTHER), entry("a/0", Store(KindName("neo"), STORE.root)))
    for one in (ours, *others):
        catalog.write(record_build, built(one), NOW, coming=True)
    for at in (NOW - TICK, NOW + TICK):
        catalog.write(withdraw_build, ours.id, at)
        assert catalog.read(count_built, frozenset({ours.id})) == 1
    catalog.write(withdraw_build, ours.id, NOW)
    assert catalog.read(count_built, frozenset({ours.id})) == 0
    assert catalog.read(count_built, frozenset(one.id for one in others)) == len(others)


def test_only_what_we_compiled_is_counted(catalog: Catalog) -> None:
    ours = entry("a/0")
    catalog.write(record_build, built(ours), NOW)
    others = [entry("b/0"), entry("a/0", OTHER), entry("a/0", Store(KindName("neo"), STORE.root))]
    assert catalog.read(count_built, frozenset({ours.id, *(one.id for one in others)})) == 1
    assert catalog.read(count_built, frozenset(one.id for one in others)) == 0


def test_a_rate_is_that_of_the_newest_builds_of_a_family(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "_ENOUGH", 2)
    for number, seconds in enumerate((1000.0, 4.0, 6.0)):
        catalog.write(record_build, built(entry(f"{number}/0"), seconds), NOW + number * HOUR)
    other = replace(OLD, family="OpenCL")
    catalog.write(record_build, built(entry("x/0"), 1.0, to=other), NOW - HOUR)
    nothing = replace(OLD, family="empty")
    catalog.write(record_build, built(entry("y/0"), 1.0, to=nothing, image_size=0), NOW)
    assert catalog.read(build_rates) == {OLD.family: 10.0 / 200, "OpenCL": 1.0 / 100}


def refused(catalog: Catalog) -> set[str]:
    return {tail for _, tail, _ in catalog.read(refused_by, "driver")}


def test_builds_and_refusals_are_forgotten_after_a_year(catalog: Catalog) -> None:
    def note(key: str, at: datetime) -> None:
        catalog.write(record_build, built(entry(key)), at)
        catalog.write(record_refusal, STORE, key, OLD.fingerprint, "driver", "no", at)

    note("old", NOW - YEAR - TICK)
    note("kept", NOW - YEAR)
    catalog.write(forget_old_builds, NOW)
    assert refused(catalog) == {"kept"}
    assert catalog.read(count_built, frozenset({entry("old").id})) == 0
    assert catalog.read(count_built, frozenset({entry("kept").id})) == 1


def test_a_refusal_is_that_of_one_driver_of_one_store_and_for_one_target(catalog: Catalog) -> None:
    for store, target in ((STORE, OLD), (STORE, NEW), (OTHER, OLD)):
        catalog.write(record_refusal, store, "tail", target.fingerprint, "driver", "no", NOW)
    everything = {(STORE, "tail", OLD.fingerprint), (STORE, "tail", NEW.fingerprint), (OTHER, "tail", OLD.fingerprint)}
    assert catalog.read(refused_by, "driver") == everything
    assert catalog.read(refused_by, "another") == frozenset()
    # The next driver refused one of them, too: what the one before said of it is history.
    catalog.write(record_refusal, STORE, "tail", OLD.fingerprint, "another", "no", NOW)
    assert catalog.read(refused_by, "driver") == everything - {(STORE, "tail", OLD.fingerprint)}
    assert catalog.read(refused_by, "another") == {(STORE, "tail", OLD.fingerprint)}


def owners(catalog: Catalog) -> dict[str, tuple[ModelName, ...]]:
    return {one.entry.id.key: one.models for one in catalog.read(all_entries)}


def test_what_was_rebuilt_for_models_belongs_to_them_once(catalog: Catalog) -> None:
    ours, changed = entry("a/0"), entry("b/0")
    catalog.write(add_model, model())
    catalog.write(add_model, model("other"))
    names = (ModelName("net"), ModelName("gone"))
    catalog.write(record_build, built(ours, models=names), NOW)
    catalog.write(record_build, built(changed, models=names, digest="another"), NOW)
    catalog.write(record_scan, scan(ours, changed), architecture)
    assert owners(catalog) == {"a/0": ("net",), "b/0": ()}
    # A run for that driver did not use it; the next look does not give it back.
    run(catalog, model(), used=(changed,))
    assert owners(catalog) == {"a/0": (), "b/0": ("net",)}
    catalog.write(record_scan, scan(replace(ours, stamp="later"), changed), architecture)
    assert owners(catalog) == {"a/0": (), "b/0": ("net",)}
    # What was not there as we made it waits until it is.
    catalog.write(add_model, model("gone"))
    catalog.write(record_scan, scan(ours, replace(changed, digest="another", source="anew")), architecture)
    assert owners(catalog)["b/0"] == ("gone", "net")


def made(of: Entry, **facts: object) -> MadeEntry:
    plain = MadeEntry(of.id.store.kind, of.id.store.root, of.id.key, of.digest or "", OLD.family)
    return replace(plain, **facts)


def test_what_came_with_a_bundle_is_known_by_it_and_by_its_signer_while_it_is_just_that(catalog: Catalog) -> None:
    first, second, other, changed = entry("a/0"), entry("b/0"), entry("c/0"), entry("d/0")
    mine, theirs = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"

    catalog.write(record_import, (made(first), made(second, seconds=1.5)), mine, BundleSource("release"), NOW)
    catalog.write(record_import, (made(other), made(changed, digest="another")), theirs, BundleSource(), NOW)
    catalog.write(record_scan, scan(first, second, other, changed), architecture)

    def keys(**asked: object) -> list[str]:
        page = catalog.read(entry_page, EntryQuery(**asked), present=(), now=NOW)  # type: ignore[arg-type]
        return sorted(one.entry.id.key for one in page.entries)

    assert keys(origin=Origin.IMPORTED) == ["a/0", "c/0"]
    # What compiling it would take, nobody has measured.
    assert {key: cost for (_, key), (_, cost) in known(catalog).items()} == {
        "a/0": None,
        "b/0": 1.5,
        "c/0": None,
        "d/0": None,
    }
    assert keys(origin=Origin.REBUILT) == ["b/0"]
    assert keys(bundle="release") == ["a/0", "b/0"]
    assert keys(bundle=mine) == keys(bundle="11") == ["a/0", "b/0"]
    assert keys(bundle=theirs[:20]) == ["c/0"]
    assert keys(bundle="") == ["a/0", "b/0", "c/0"]
    assert keys(bundle="rel") == keys(bundle="%") == []
    assert catalog.read(find_entry, first.id.ref).bundle == f"{mine}, signed by release"
    assert catalog.read(find_entry, other.id.ref).bundle == f"{theirs}, not signed by a trusted key"
    assert catalog.read(find_entry, changed.id.ref).bundle == ""


BUNDLE: Final = f"sha256:{'1' * 64}"
MEMBER: Final = f"sha256:{'2' * 64}"
KEY: Final = f"sha256:{'3' * 64}"
LATER_KEY: Final = f"sha256:{'4' * 64}"


def revoked(catalog: Catalog, *digests: str) -> list[str]:
    return sorted(one.entry.id.key for one, _ in catalog.read(revoked_entries, frozenset(digests)))


def test_what_came_with_a_bundle_is_revoked_by_each_digest_that_was_signed_and_by_its_key(catalog: Catalog) -> None:
    mine, other, theirs = entry("a/0"), entry("b/0"), entry("c/0")
    catalog.write(record_import, (made(mine),), BUNDLE, BundleSource("release", KEY, (BUNDLE, MEMBER)), NOW)
    catalog.write(record_import, (made(other),), f"sha256:{'5' * 64}", BundleSource(), NOW)
    catalog.write(record_scan, scan(mine, other, theirs), architecture)
    assert revoked(catalog) == revoked(catalog, f"sha256:{'0' * 64}") == []
    for digest in (BUNDLE, MEMBER, KEY):
        assert revoked(catalog, digest) == ["a/0"]
    assert revoked(catalog, f"sha256:{'5' * 64}", KEY) == ["a/0", "b/0"]
    ((_, named),) = catalog.read(revoked_entries, frozenset({KEY}))
    assert named == f"{BUNDLE}, signed by release"
    # What a program has written in its place since is the program's.
    catalog.write(record_scan, scan(replace(mine, digest="anew", stamp="later"), other, theirs), architecture)
    assert revoked(catalog, BUNDLE) == []


def test_what_another_key_of_that_name_has_signed_since_stays(catalog: Catalog) -> None:
    first, second = entry("a/0"), entry("b/0")
    catalog.write(record_import, (made(first),), BUNDLE, BundleSource("release", KEY, (BUNDLE,)), NOW)
    catalog.write(record_import, (made(second),), BUNDLE, BundleSource("release", LATER_KEY, (BUNDLE,)), NOW)
    catalog.write(record_scan, scan(first, second), architecture)
    assert revoked(catalog, KEY) == ["a/0"]
    assert revoked(catalog, LATER_KEY) == ["b/0"]


def test_what_is_compiled_from_what_came_with_a_bundle_is_revoked_with_it(catalog: Catalog) -> None:
    came, rebuilt, mended = entry("a/0"), entry("b/0", environment=NEW), entry("c/0")
    source = BundleSource("release", KEY, (BUNDLE, MEMBER))
    catalog.write(record_import, (made(came), made(mended)), BUNDLE, source, NOW)
    damaged = replace(mended, digest="damaged", state=EntryState.DEFECTIVE, defect=CHANGED)
    catalog.write(record_build, built(rebuilt, source=came), NOW)
    catalog.write(record_build, built(mended, source=damaged), NOW)
    # Of what a program wrote there since, it is not so.
    catalog.write(record_build, built(entry("d/0"), source=replace(came, digest="another")), NOW)
    catalog.write(record_scan, scan(came, rebuilt, mended, entry("d/0")), architecture)
    assert revoked(catalog, MEMBER) == revoked(catalog, KEY) == ["a/0", "b/0", "c/0"]


def test_where_an_entry_came_from_is_known_as_long_as_it_is_there(catalog: Catalog) -> None:
    there, gone = entry("a/0"), entry("b/0")
    source = BundleSource("release", KEY, (MEMBER,))
    catalog.write(record_import, (made(there), made(gone)), BUNDLE, source, NOW)
    catalog.write(record_scan, scan(there), architecture)
    catalog.write(forget_old_builds, NOW + YEAR + TICK)
    assert revoked(catalog, KEY) == ["a/0"]
    catalog.write(record_scan, scan(gone), architecture)
    assert revoked(catalog, KEY) == []
    catalog.write(forget_old_builds, NOW + YEAR + TICK)
    assert catalog.read(lambda connection: connection.execute(sa.select(VOUCHERS)).all()) == []


def test_where_an_entry_came_from_is_known_when_it_gets_another_number(catalog: Catalog) -> None:
    """A runtime looks at the numbers without a gap: the last one of a leaf closes it."""
    entries = [entry(f"a/{number}", source=f"{number}.1") for number in range(4)]
    source, another = BundleSource("release", KEY, (MEMBER,)), f"sha256:{'5' * 64}"
    catalog.write(record_import, [made(one) for one in entries[2:]], BUNDLE, source, NOW)
    catalog.write(record_import, (made(entries[0]),), another, BundleSource(), NOW)
    catalog.write(record_scan, scan(*entries, entry("b/0")), architecture)
    assert (revoked(catalog, KEY), revoked(catalog, another)) == (["a/2", "a/3"], ["a/0"])
    moved = replace(entries[3], id=entries[0].id)
    catalog.write(record_scan, scan(moved, *entries[1:3], entry("b/0")), architecture)
    assert (revoked(catalog, KEY), revoked(catalog, another)) == (["a/0", "a/2"], [])
    assert known(catalog)[STORE, "a/0"][0] is Origin.IMPORTED
    # It is damaged by now, and what is compiled from it is as much the bundle's.
    damaged = replace(entries[2], id=entries[1].id, digest="damaged")
    catalog.write(record_scan, scan(moved, damaged, entry("b/0")), architecture)
    (mended,) = (one.entry for one in catalog.read(all_entries) if one.entry.id == damaged.id)
    catalog.write(record_build, built(mended, source=mended), NOW)
    catalog.write(record_scan, scan(moved, replace(damaged, source="anew", stamp="anew"), entry("b/0")), architecture)
    assert revoked(catalog, KEY) == ["a/0", "a/1"]


def test_of_two_that_are_the_same_each_keeps_where_it_came_from(catalog: Catalog) -> None:
    entries = [entry(f"a/{number}", source=f"{number}.1", digest="same") for number in range(3)]
    source = BundleSource("release", KEY, (MEMBER,))
    catalog.write(record_import, [made(one) for one in entries[1:]], BUNDLE, source, NOW)
    catalog.write(record_scan, scan(*entries), architecture)
    assert revoked(catalog, KEY) == ["a/1", "a/2"]
    catalog.write(record_scan, scan(replace(entries[2], id=entries[0].id), entries[1]), architecture)
    assert revoked(catalog, KEY) == ["a/0", "a/1"]


def test_what_a_program_makes_anew_is_its_own_though_it_is_the_same(catalog: Catalog) -> None:
    """Compilers make the same of the same: what was taken out as revoked would go again, and again, for ever."""
    came, other = entry("a/0", source="1.1"), entry("b/0", source="2.1")
    catalog.write(record_import, (made(came),), BUNDLE, BundleSource("release", KEY, (MEMBER,)), NOW)
    catalog.write(record_scan, scan(came, other), architecture)
    assert revoked(catalog, KEY) == ["a/0"]
    catalog.write(forget_entries, [came.id])
    catalog.write(record_scan, scan(other), architecture)
    anew = replace(came, source="1.2", stamp="anew")
    catalog.write(record_scan, scan(anew, other), architecture)
    assert revoked(catalog, KEY) == []
    assert catalog.read(find_entry, came.id.ref).bundle == ""
    # Nor is what is made of that, where it is damaged, the bundle's.
    damaged = replace(anew, digest="damaged", state=EntryState.DEFECTIVE, defect=CHANGED)
    catalog.write(record_build, built(entry("c/0"), source=damaged), NOW)
    catalog.write(record_scan, scan(anew, other, entry("c/0")), architecture)
    assert revoked(catalog, KEY) == []


@pytest.mark.parametrize("key", ["a/0", "a/1"])
def test_what_comes_back_from_the_trash_came_with_its_bundle_still(catalog: Catalog, key: str) -> None:
    came, other = entry("a/0", source="1.1"), entry("b/0", source="2.1")
    catalog.write(record_import, (made(came),), BUNDLE, BundleSource("release", KEY, (MEMBER,)), NOW)
    catalog.write(record_scan, scan(came, other), architecture)
    catalog.write(forget_entries, [came.id])
    # Meanwhile a program has made the same.
    anew = replace(came, source="1.2", stamp="anew") if key == "a/1" else other
    catalog.write(record_scan, scan(anew, other), architecture)
    assert revoked(catalog, KEY) == []
    catalog.write(record_scan, scan(anew, other, replace(came, id=entry(key).id)), architecture)
    assert revoked(catalog, KEY) == [key]


def take_all_along(catalog: Catalog) -> None:
    some = catalog.read(next_waiting)
    while some is not None:
        catalog.write(take_along, some)
        some = catalog.read(next_waiting, some)


def test_where_an_entry_came_from_goes_along_with_a_store_that_was_moved(catalog: Catalog) -> None:
    came, other, taken, trashed = (entry(f"{name}/0", source=f"{name}.1") for name in ("a", "b", "c", "d"))
    source = BundleSource("release", KEY, (MEMBER,))
    catalog.write(record_import, [made(one) for one in (came, taken, trashed)], BUNDLE, source, NOW)
    catalog.write(record_build, built(other, models=(ModelName("net"),)), NOW)
    catalog.write(record_scan, scan(came, other, taken, trashed), architecture)
    catalog.write(forget_entries, [taken.id, trashed.id])

    def there(one: Entry, **facts: object) -> Entry:
        return replace(one, id=replace(one.id, store=OTHER), **facts)

    # What is the same in another store is that one's, as long as the store is there.
    moved = there(came), there(other), there(taken, source="made anew")
    catalog.write(record_scan, scan(*moved, store=OTHER), architecture)
    take_all_along(catalog)
    assert revoked(catalog, KEY) == ["a/0"]
    catalog.write(record_scan, scan(state=StoreState.MISSING), architecture)
    assert revoked(catalog, KEY) == []
    take_all_along(catalog)
    assert revoked(catalog, KEY) == ["a/0"]
    assert known(catalog)[OTHER, "b/0"] == (Origin.REBUILT, 2.0)
    # It comes back from the trash, which was moved with the rest: unread at first, which says nothing of it.
    assert not catalog.read(next_waiting)
    catalog.write(forget_store, STORE)
    catalog.write(record_scan, scan(*moved, there(trashed), store=OTHER), architecture)
    catalog.write(record_scan, scan(*moved, there(trashed, digest=None, stamp="unread"), store=OTHER), architecture)
    assert not catalog.read(next_waiting)
    take_all_along(catalog)
    assert revoked(catalog, KEY) == ["a/0"]
    catalog.write(record_scan, scan(*moved, there(trashed), store=OTHER), architecture)
    assert catalog.read(next_waiting)
    take_all_along(catalog)
    assert revoked(catalog, KEY) == ["a/0", "d/0"]
    # What is made anew in the place of what was taken out there is not, and does not go again.
    catalog.write(forget_entries, [there(came).id])
    catalog.write(record_scan, scan(there(came, source="made anew"), *moved[1:], store=OTHER), architecture)
    take_all_along(catalog)
    assert revoked(catalog, KEY) == []
    # Where it comes back it is known what is there.
    catalog.write(record_scan, scan(came), architecture)
    assert revoked(catalog, KEY) == ["a/0"]


def test_what_is_taken_along_is_taken_a_few_at_a_time_and_gone_on_with(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a million entries it takes most of a minute, in which nobody else could write."""
    monkeypatch.setattr(moved, "_AT_ONCE", 2)
    third = Store(STORE.kind, Path("/srv/third"))
    came = [entry(f"{name}/0", source=f"{name}.1") for name in "abcde"]
    catalog.write(record_import, [made(one) for one in came], BUNDLE, BundleSource("release", KEY, (MEMBER,)), NOW)
    for store in (OTHER, third):
        there = [replace(one, id=replace(one.id, store=store)) for one in came]
        catalog.write(record_scan, scan(*there, store=store), architecture)
    some = catalog.read(next_waiting)
    assert some is not None
    assert some.keys == ("a/0", "b/0")
    catalog.write(take_along, some)
    assert revoked(catalog, KEY) == ["a/0", "b/0"]
    # Whoever ends in between leaves the rest, and nothing by halves, to the next.
    assert [origin for origin, _ in known(catalog).values()].count(Origin.IMPORTED) == 2
    # What is there again meanwhile keeps what is its own.
    again = catalog.read(next_waiting)
    catalog.write(record_scan, scan(came[-1]), architecture)
    assert again is not None
    catalog.write(take_along, again)
    assert revoked(catalog, KEY) == ["a/0", "b/0", "e/0"]
    assert catalog.read(next_waiting) is None
    catalog.write(record_scan, scan(state=StoreState.MISSING), architecture)
    take_all_along(catalog)
    assert revoked(catalog, KEY) == sorted(2 * [one.id.key for one in came])
    assert catalog.read(next_waiting) is None
