"""What is done about what is wrong in a store: each way that the plan can take, and when it takes another."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from tests.support.builders import sycl_target
from xpucached.domain.defects import CHANGED, Defect, Effect, RepairAction
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.plans import IndexedEntry, NoRecipe, ReplayReason
from xpucached.domain.stores import Entry, EntryId, EntryState, ImageFormat, Store
from xpucached.domain.trash import Unproven
from xpucached.planning.repair import plan_comparing, plan_mending

NOW: Final = datetime(2026, 5, 4, tzinfo=UTC)
HERE, ELSEWHERE = (sycl_target("ze", "B580", "1", driver) for driver in ("1", "2"))
STORE: Final = Store(KindName("sycl"), Path("/s"))
OTHER: Final = Store(KindName("sycl"), Path("/t"))
NOISE: Final = Defect("noise", Effect.HARMLESS, "It has a remark.", (RepairAction.QUARANTINE,))
TORN: Final = Defect("torn", Effect.FAILS, "It is torn.", (RepairAction.REBUILD, RepairAction.QUARANTINE))
GAP: Final = Defect("gap", Effect.HIDDEN, "It is hidden.", (RepairAction.CLOSE_GAP,), (RepairAction.TRASH,), whole=True)
HIGHER: Final = Defect("higher", Effect.HIDDEN, "It takes a place.", (RepairAction.LEAVE,), covers=True)


def entry(key: str, defect: Defect | None = None, *, digest: str = "d", store: Store = STORE) -> Entry:
    state = EntryState.OK if defect is None else EntryState.DEFECTIVE
    return Entry(
        EntryId(store, EntryKey(key)),
        f"stamp of {key}",
        *(10, 10),
        *(NOW, NOW),
        HERE,
        image=ImageFormat.SPIRV,
        digest=digest,
        state=state,
        defect=defect,
    )


def done(*entries: Entry, **given: object) -> dict[str, RepairAction]:
    return {one.entry.id.key: one.action for one in plan_mending(entries, (HERE,), **given)}  # type: ignore[arg-type]


def why(*entries: Entry) -> list[str]:
    return [one.why for one in plan_mending(entries, (HERE,))]


def test_what_has_no_defect_is_not_decided_about_and_the_order_stays() -> None:
    assert list(done(entry("b/0", TORN), entry("a/0"), entry("a/1", TORN))) == ["b/0", "a/1"]


@pytest.mark.parametrize("state", [EntryState.OK, EntryState.UNFINISHED])
def test_what_programs_use_or_write_is_left_alone(state: EntryState) -> None:
    assert done(replace(entry("a/0", TORN), state=state)) == {"a/0": RepairAction.LEAVE}
    assert done(entry("a/0", NOISE)) == {"a/0": RepairAction.LEAVE}


def test_what_was_tried_is_not_tried_again_until_the_entry_changes() -> None:
    one = entry("a/0", TORN)
    tried = (one.id, one.stamp, RepairAction.REBUILD)

    assert done(one) == {"a/0": RepairAction.REBUILD}
    assert done(one, tried=[tried]) == {"a/0": RepairAction.QUARANTINE}
    assert done(one, tried=[tried, (one.id, one.stamp, RepairAction.QUARANTINE)]) == {"a/0": RepairAction.LEAVE}
    assert done(replace(one, stamp="later"), tried=[tried]) == {"a/0": RepairAction.REBUILD}
    assert done(entry("a/1", TORN), tried=[tried]) == {"a/1": RepairAction.REBUILD}


def test_another_way_is_taken_where_its_group_has_an_entry_that_is_used() -> None:
    assert done(entry("a/1", GAP)) == {"a/1": RepairAction.CLOSE_GAP}
    assert done(entry("a/1", GAP), entry("b/0"), entry("a/0", store=OTHER)) == {"a/1": RepairAction.CLOSE_GAP}
    assert done(entry("a/1", GAP), entry("a/0", TORN))["a/1"] is RepairAction.CLOSE_GAP
    assert done(entry("a/1", GAP), entry("a/0")) == {"a/1": RepairAction.TRASH}
    # What has no such way keeps its own.
    assert done(entry("a/1", TORN), entry("a/0")) == {"a/1": RepairAction.REBUILD}


def test_what_is_damaged_is_compiled_again_where_that_is_possible_and_says_why_it_is_not() -> None:
    one = entry("a/0", TORN)

    assert why(one) == [""]
    assert why(replace(one, image=None)) == ["it holds nothing that could be compiled"]
    assert why(replace(one, image=ImageFormat.ELF)) == [NoRecipe.NATIVE.words]
    assert why(replace(one, constants="00")) == [NoRecipe.CONSTANTS.words]
    assert why(replace(one, environment=ELSEWHERE)) == ["the driver that it is for is not in use here"]
    for other in (replace(one, image=None), replace(one, environment=ELSEWHERE)):
        assert done(other) == {"a/0": RepairAction.QUARANTINE}
    (refused,) = plan_mending([one], (HERE,), refused={one.id: NoRecipe.NATIVE})
    assert (refused.action, refused.why) == (RepairAction.QUARANTINE, NoRecipe.NATIVE.words)
    (kept,) = plan_mending([one], (), tried=[(one.id, one.stamp, RepairAction.QUARANTINE)])
    assert (kept.action, kept.why) == (RepairAction.LEAVE, "the driver that it is for is not in use here")


def test_what_a_whole_one_in_a_higher_slot_replaces_is_not_compiled_again() -> None:
    damaged, whole = entry("a/0", TORN), replace(entry("a/1", HIGHER), detail="it comes after 0")

    assert whole.before == "a/0"
    assert done(damaged, whole) == {"a/0": RepairAction.QUARANTINE, "a/1": RepairAction.LEAVE}
    # Of another store, it replaces nothing here.
    assert done(damaged, replace(whole, id=replace(whole.id, store=OTHER)))["a/0"] is RepairAction.REBUILD
    # A defect of another sort replaces nothing.
    assert done(damaged, entry("a/1", GAP))["a/0"] is RepairAction.REBUILD


def changed(key: str, digest: str) -> Entry:
    return entry(key, CHANGED, digest=digest)


def swaps(*entries: Entry, trusted: dict[str, str], **given: object) -> dict[str, tuple[RepairAction, str]]:
    known = {EntryId(STORE, EntryKey(key)): digest for key, digest in trusted.items()}
    made = plan_mending(entries, (HERE,), known, **given)  # type: ignore[arg-type]
    return {one.entry.id.key: (one.action, one.other.id.key if one.other else "") for one in made}


def test_two_programs_that_lie_in_each_others_places_change_them() -> None:
    swapped = changed("a/0", "B"), changed("b/0", "A")

    assert swaps(*swapped, trusted={"a/0": "A", "b/0": "B"}) == {
        "a/0": (RepairAction.SWAP_BACK, "b/0"),
        "b/0": (RepairAction.SWAP_BACK, "a/0"),
    }
    # Nobody knows what they were; or they are what they were; or a third one misses the program.
    others = [one for one in CHANGED.repairs if one is not RepairAction.SWAP_BACK]
    for trusted in ({}, {"a/0": "B", "b/0": "A"}, {"a/0": "C", "b/0": "D"}):
        assert {action for action, _ in swaps(*swapped, trusted=trusted).values()} == {others[0]}


def test_of_three_in_a_ring_two_change_places_first_and_the_third_waits() -> None:
    ring = changed("a/0", "C"), changed("b/0", "A"), changed("c/0", "B")

    assert swaps(*ring, trusted={"a/0": "A", "b/0": "B", "c/0": "C"}) == {
        "a/0": (RepairAction.SWAP_BACK, "b/0"),
        "b/0": (RepairAction.SWAP_BACK, "a/0"),
        "c/0": (RepairAction.LEAVE, ""),
    }


def test_what_has_a_program_that_another_one_misses_waits_for_it() -> None:
    # Both hold what the third one misses, and what they miss themselves is nowhere.
    three = changed("a/0", "C"), changed("b/0", "C"), changed("c/0", "D")

    assert swaps(*three, trusted={"a/0": "A", "b/0": "B", "c/0": "C"}) == {
        "a/0": (RepairAction.SWAP_BACK, "c/0"),
        "b/0": (RepairAction.LEAVE, ""),
        "c/0": (RepairAction.SWAP_BACK, "a/0"),
    }
    # What it misses lies only where a pair is made already.
    four = changed("a/0", "B"), changed("b/0", "A"), changed("c/0", "E")
    assert swaps(*four, trusted={"a/0": "A", "b/0": "B", "c/0": "A"})["c/0"] == (RepairAction.LEAVE, "")


def test_a_pair_that_did_not_change_places_is_not_tried_again_and_compiled() -> None:
    one, two = changed("a/0", "B"), changed("b/0", "A")
    tried = [(each.id, each.stamp, RepairAction.SWAP_BACK) for each in (one, two)]
    known = {"a/0": "A", "b/0": "B"}

    assert swaps(one, two, trusted=known, tried=tried)["a/0"][0] is not RepairAction.SWAP_BACK
    # One that cannot is no partner for the other.
    assert swaps(one, two, trusted=known, tried=tried[:1])["b/0"][0] is not RepairAction.SWAP_BACK
    again = replace(one, stamp="later")
    assert swaps(again, two, trusted=known, tried=tried[:1])["b/0"] == (RepairAction.SWAP_BACK, "a/0")


def test_many_that_miss_what_many_hold_are_looked_at_once_each() -> None:
    """Who may write to a store may exchange two programs a hundred thousand times."""

    def calls(count: int) -> int:
        """Return how many calls deciding about so many takes."""
        many = [changed(f"{number}/0", "AB"[number % 2]) for number in range(count)]
        trusted = {one.id: "BA"[number % 2] for number, one in enumerate(many)}
        taken = 0

        def called(*_: object) -> None:
            nonlocal taken
            taken += 1

        before = sys.getprofile()
        sys.setprofile(called)
        try:
            made = plan_mending(many, (HERE,), trusted)
        finally:
            sys.setprofile(before)
        assert {one.action for one in made} == {RepairAction.SWAP_BACK}
        return taken

    assert calls(1000) < 15 * calls(100)


def compared(one: Entry, *kinds: str) -> object:
    indexed = IndexedEntry(one, None, None, (), NOW, NOW, "created")
    todo, unproven = plan_comparing([indexed], (HERE,), [KindName(name) for name in kinds or ("sycl",)])
    if todo:
        assert not unproven
        assert [(each.entry, each.to, each.reason) for each in todo] == [(indexed, HERE, ReplayReason.ASKED)]
        return None
    ((why, count),) = unproven.items()
    assert count == 1
    return why


def test_what_is_compiled_again_for_comparing_and_why_the_others_are_not() -> None:
    one = entry("a/0")

    assert compared(one) is None
    assert compared(replace(one, state=EntryState.DEFECTIVE, defect=GAP)) is None
    assert compared(replace(one, state=EntryState.UNFINISHED)) is Unproven.CHANGED
    assert compared(replace(one, state=EntryState.DEFECTIVE, defect=TORN)) is Unproven.DAMAGED
    assert compared(replace(one, state=EntryState.DEFECTIVE)) is Unproven.DAMAGED
    assert compared(one, "neo") is Unproven.KIND
    assert compared(replace(one, environment=ELSEWHERE)) is Unproven.OTHER_DRIVER
    assert compared(replace(one, environment=None)) is Unproven.OTHER_DRIVER
    assert compared(replace(one, digest=None)) is Unproven.UNREADABLE
    assert compared(replace(one, image=ImageFormat.ELF)) is Unproven(NoRecipe.NATIVE.value)
    assert compared(replace(one, constants="00")) is Unproven(NoRecipe.CONSTANTS.value)
