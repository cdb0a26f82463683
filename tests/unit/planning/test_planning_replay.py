"""`planning.replay`: what is rebuilt, for which drivers, in which order, and what is left to a run; no runtime."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.unit.planning.test_planning import DAY, NEW, NOW, OLD, STORE, env, host, model
from xpucached.domain.defects import Defect
from xpucached.domain.host import DriverInUse
from xpucached.domain.names import EntryKey, KindName, ModelName
from xpucached.domain.plans import IndexedEntry, NoRecipe, Rebuild, ReplayReason, Subtotal
from xpucached.domain.recipes import RecipeState
from xpucached.domain.stores import Entry, EntryId, EntryState, ImageFormat, Kernel, Store
from xpucached.domain.targets import Target
from xpucached.kinds import sycl
from xpucached.kinds.table import lineages
from xpucached.planning.replay import Pace, ReplayScope, coming, contradicted, plan_replay, replayable

if TYPE_CHECKING:
    from collections.abc import Collection

    from xpucached.domain.host import Host
    from xpucached.domain.plans import ReplayPlan
    from xpucached.planning.replay import Lineages, Tail

OLDER: Final = env("0", version="OpenCL 2.0")
GPU: Final = env("1", device="GPU")
OTHER_STORE: Final = Store(STORE.kind, Path("/other"))
MODELS: Final = {one.name: one for one in (model("big", priority=90), model("small", priority=10))}


def indexed(
    name: str,
    environment: Target | None = OLD,
    *,
    models: tuple[str, ...] = (),
    used: float = 1,
    created: float = 100,
    image: ImageFormat = ImageFormat.SPIRV,
    options: str = "",
    constants: str = "",
    defect: Defect | None = None,
    store: Store = STORE,
    kernels: tuple[str, ...] = (),
    size: int = 0,
) -> IndexedEntry:
    """Make an entry whose place below its device's directory begins with ``name``; times are days ago."""
    device = int(environment.fingerprint, 16) if environment else 0
    key = EntryKey(f"{device}/{name}/3/4/0") if environment else EntryKey(f"ext_kernel_compiler/{name}/ir")
    entry = Entry(
        EntryId(store, key),
        "stamp",
        1,
        1,
        NOW - created * DAY,
        None,
        environment,
        options=options,
        constants=constants,
        image=image,
        image_size=size,
        kernels=tuple(Kernel(name, name) for name in kernels),
        state=EntryState.DEFECTIVE if defect else EntryState.OK,
        defect=defect,
    )
    return IndexedEntry(entry, None, None, tuple(map(ModelName, models)), NOW, NOW - used * DAY, "run")


def placed(one: IndexedEntry, key: str) -> IndexedEntry:
    return replace(one, entry=replace(one.entry, id=EntryId(one.entry.id.store, EntryKey(key))))


def led(environment: Target, *models: str) -> DriverInUse:
    """Make a driver to which these models' own variables lead."""
    named = {"OCL_ICD_FILENAMES": f"/opt/{environment.toolchain}/libintelocl.so"}
    return DriverInUse(named, tuple(map(ModelName, models)), "stamp", environments=(environment,))


def planned(
    *entries: IndexedEntry,
    on: Host | None = None,
    failed: Collection[tuple[Tail, Target]] = (),
    scope: ReplayScope | None = None,
    pace: Pace | None = None,
) -> ReplayPlan:
    return plan_replay(entries, on or host(NEW), MODELS, failed, NOW, scope, pace, lineages=lineages())


def names(plan: ReplayPlan) -> list[str]:
    """Return what is rebuilt, in its order, by the names that `indexed` was given."""
    return [one.entry.entry.id.key.split("/")[1] for one in plan.rebuild]


def place(one: IndexedEntry) -> Tail:
    leaf = lineages()[one.entry.id.store.kind](one.entry.id.key)
    assert leaf is not None
    return one.entry.id.store, leaf


# -- where an entry belongs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "leaf"),
    [
        ("4711/a/b/c/0", "a/b/c"),
        ("4711/a/b/c/1", "a/b/c"),
        ("4711/a/0", "a"),
        ("4711/0", None),
        ("4711", None),
        ("ext_kernel_compiler/a/ir", None),
        ("47x/a/b/c/0", None),
    ],
)
def test_what_stays_of_a_place_when_the_driver_changes(key: str, leaf: str | None) -> None:
    assert lineages()[STORE.kind](EntryKey(key)) == leaf


def test_what_only_its_program_makes_is_told_and_not_rebuilt() -> None:
    known = plan_replay([indexed("1")], host(NEW), MODELS, (), NOW, lineages=lineages())
    plan = plan_replay([indexed("1"), indexed("2", NEW)], host(NEW), MODELS, (), NOW, lineages={})

    assert names(known) == ["1"]
    assert (names(plan), plan.covered, plan.skipped) == ([], 0, {NoRecipe.KIND: 1})
    assert NoRecipe.KIND.words == "an entry of this kind is made by its program only: run the model"


@pytest.mark.parametrize(
    "nowhere",
    [
        pytest.param(indexed("1", None), id="for no device, and so in no device's directory"),
        pytest.param(placed(indexed("1", None), "4711/a/b/c/0"), id="nobody knows for which device"),
        pytest.param(placed(indexed("1"), "ext_kernel_compiler/a/ir"), id="outside of the devices' directories"),
        pytest.param(placed(indexed("1", NEW), "ext_kernel_compiler/a/ir"), id="outside, for the present driver"),
    ],
)
@pytest.mark.parametrize("scope", [ReplayScope(), ReplayScope(into=Path("/fresh"))])
def test_what_belongs_to_no_driver_is_neither_rebuilt_nor_counted(nowhere: IndexedEntry, scope: ReplayScope) -> None:
    plan = planned(nowhere, indexed("2"), scope=scope)

    assert (names(plan), plan.covered, plan.skipped) == (["2"], 0, {})


# -- whether anything can be rebuilt ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "present", "wanted"),
    [
        ((OLD,), (NEW,), True),
        ((OLD, NEW), (NEW,), True),
        ((NEW, GPU, None, OLD), (NEW,), True),
        ((NEW,), (NEW,), False),
        ((OLD, NEW), (OLD, NEW), False),
        ((GPU,), (NEW,), False),
        ((None,), (NEW,), False),
        ((OLD,), (), False),
        ((), (NEW,), False),
    ],
)
def test_the_sums_tell_whether_anything_can_be_rebuilt(
    held: tuple[Target | None, ...], present: tuple[Target, ...], *, wanted: bool
) -> None:
    subtotals = [Subtotal(STORE, one, 1, 4096) for one in held]

    assert replayable(subtotals, host(*present)) is wanted
    plan = planned(*(indexed(str(number), one) for number, one in enumerate(held)), on=host(*present))
    assert bool(plan.rebuild) is wanted


@pytest.mark.parametrize(("entries", "wanted"), [(0, False), (1, True)])
def test_a_sum_of_no_entries_is_nothing_to_rebuild(entries: int, *, wanted: bool) -> None:
    assert replayable([Subtotal(STORE, OLD, entries, 0)], host(NEW)) is wanted


def test_a_driver_to_which_models_are_led_counts_too() -> None:
    here = replace(host(NEW), drivers=(led(GPU, "big"),))

    assert replayable([Subtotal(STORE, env("0", device="GPU"), 1, 4096)], here)
    assert not replayable([Subtotal(STORE, GPU, 1, 4096)], here)


def test_without_the_device_nothing_is_rebuilt() -> None:
    assert planned(indexed("1"), on=host()).rebuild == ()
    assert planned(indexed("1"), on=host(GPU)).rebuild == ()


def test_a_name_that_a_runtime_gives_otherwise_contradicts_ours() -> None:
    assert contradicted([NEW], [NEW, GPU]) == ()
    assert contradicted([NEW], [GPU]) == ()
    assert contradicted([NEW], []) == ()
    assert contradicted([NEW, GPU], [OLD]) == (NEW,)
    assert contradicted([NEW, OLDER, NEW], [OLD]) == (OLDER, NEW)


# -- why an entry is rebuilt --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owners", "used", "reason"),
    [
        pytest.param((), 1, ReplayReason.USED, id="used lately"),
        pytest.param((), 29.9, ReplayReason.USED, id="used almost a month ago"),
        pytest.param((), 30, None, id="not used for a month"),
        pytest.param((), -1, ReplayReason.USED, id="used in the future: a clock was wrong"),
        pytest.param(("removed",), 1, ReplayReason.USED, id="of a model that is not registered, used lately"),
        pytest.param(("removed",), 31, None, id="of a model that is not registered"),
        pytest.param(("small",), 900, ReplayReason.MODEL, id="of a model, however long ago"),
        pytest.param(("small",), 1, ReplayReason.MODEL, id="of a model, and used lately"),
        pytest.param(("removed", "small"), 900, ReplayReason.MODEL, id="of two models, one of them registered"),
    ],
)
def test_why_an_entry_is_rebuilt(owners: tuple[str, ...], used: float, reason: ReplayReason | None) -> None:
    one = indexed("1", models=owners, used=used)
    plan = planned(one)

    assert plan.rebuild == ((Rebuild(one, NEW, reason),) if reason else ())
    # What nobody uses is no failure either.
    assert plan.skipped == {}


def test_one_generation_that_is_used_speaks_for_its_place() -> None:
    newer = indexed("1", OLD, created=5, used=400)

    assert planned(newer, indexed("1", OLDER, used=400)).rebuild == ()
    assert planned(newer, indexed("1", OLDER, used=1)).rebuild == (Rebuild(newer, NEW, ReplayReason.USED),)
    assert planned(newer, indexed("1", OLDER, used=400, models=("big",))).rebuild == (
        Rebuild(replace(newer, models=(ModelName("big"),)), NEW, ReplayReason.MODEL),
    )


def test_a_rebuild_is_for_the_models_of_all_generations() -> None:
    newer = indexed("1", OLD, created=5, models=("small",))
    (one,) = planned(indexed("1", OLDER, models=("big", "small")), newer).rebuild

    assert (one.entry.entry, one.entry.models) == (newer.entry, ("small", "big"))


def test_for_some_models_only_what_these_use_is_rebuilt() -> None:
    some = [
        indexed("1", models=("big",), used=400),
        indexed("2", models=("small",)),
        indexed("3"),
        indexed("4", models=("small", "big")),
        indexed("5", models=("removed",)),
    ]

    def of(*wanted: str) -> list[tuple[str, ReplayReason]]:
        plan = planned(*some, scope=ReplayScope(models=set(map(ModelName, wanted))))
        return sorted((one.entry.entry.id.key.split("/")[1], one.reason) for one in plan.rebuild)

    assert of("big") == [("1", ReplayReason.MODEL), ("4", ReplayReason.MODEL)]
    assert of("small") == [("2", ReplayReason.MODEL), ("4", ReplayReason.MODEL)]
    assert of("removed") == []
    assert [name for name, _ in of()] == ["1", "2", "3", "4", "5"]


# -- in which order, and how long ---------------------------------------------------------------------------------


def test_models_come_first_by_priority_then_what_was_used_last() -> None:
    some = [
        indexed("1", used=3),
        indexed("2", used=2),
        indexed("3", used=400, models=("small",)),
        indexed("4", used=500, models=("small", "big")),
        indexed("5", used=31),
        indexed("6", used=1, models=("removed",)),
        indexed("7", None),
        indexed("8", GPU),
    ]
    plan = planned(*some)

    assert names(plan) == ["4", "3", "6", "2", "1"]
    assert [one.reason for one in plan.rebuild][:3] == [ReplayReason.MODEL, ReplayReason.MODEL, ReplayReason.USED]
    assert {one.to for one in plan.rebuild} == {NEW}


def test_what_an_older_generation_belongs_to_and_when_it_was_used_says_when_its_turn_comes() -> None:
    some = [
        indexed("1", OLD, created=5, used=3),
        indexed("1", OLDER, used=1),
        indexed("2", OLD, used=2),
        indexed("3", OLD, created=5, models=("small",)),
        indexed("4", OLD, created=5, used=9),
        indexed("4", OLDER, models=("big",), used=9),
    ]

    assert names(planned(*some)) == ["4", "3", "1", "2"]


def test_a_model_of_no_priority_comes_before_what_no_model_uses() -> None:
    none = model("none", priority=0)
    some = [indexed("1", used=1), indexed("2", used=9, models=("none",))]
    plan = plan_replay(some, host(NEW), {none.name: none}, (), NOW, lineages=lineages())

    assert names(plan) == ["2", "1"]


def test_what_was_used_at_one_moment_comes_in_the_order_of_its_place() -> None:
    some = [indexed(name, used=1, models=("big",)) for name in "cab"]

    assert names(planned(*some)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("workers", "seconds"), [(1, 6.0), (2, 3.0), (3, 2.0), (4, 2.0), (0, 6.0)], ids="{} at once".format
)
def test_seconds_are_estimated_from_what_compiled_before(workers: int, seconds: float) -> None:
    some = [indexed(str(number), size=1000 * number) for number in (1, 2, 3)]

    assert planned(*some).seconds is None
    plan = planned(*some, pace=Pace({NEW.family: 0.001, "another": 7.0}, workers=workers))
    assert {one.entry.entry.id.key.split("/")[1]: one.seconds for one in plan.rebuild} == {"1": 1, "2": 2, "3": 3}
    assert plan.seconds == seconds


def test_what_nothing_is_known_of_takes_as_long_as_the_others() -> None:
    ze_old, ze_new = (env(driver, platform="Level-Zero") for driver in "12")
    some = [indexed("1", size=1000), indexed("2", size=3000), indexed("3", ze_old, size=9000)]
    plan = planned(*some, on=host(NEW, ze_new), pace=Pace({NEW.family: 0.001}))

    assert {one.entry.entry.id.key.split("/")[1]: one.seconds for one in plan.rebuild} == {"1": 1, "2": 3, "3": None}
    assert plan.seconds == 6.0
    assert planned(*some, on=host(NEW, ze_new), pace=Pace({"another": 1.0})).seconds is None
    assert planned(pace=Pace({NEW.family: 0.001})).seconds is None


# -- what is there already, and what cannot be rebuilt ------------------------------------------------------------


def test_what_is_there_already_is_not_rebuilt() -> None:
    some = [indexed("1"), indexed("1", NEW), indexed("2"), indexed("2", NEW, defect=sycl.defects.BIN_EMPTY)]
    plan = planned(*some)

    assert (plan.rebuild, plan.covered, plan.skipped) == ((), 2, {})


def test_what_is_there_is_told_by_place_store_and_driver() -> None:
    two = env("3")
    some = [indexed("1"), indexed("1", NEW), indexed("1", store=OTHER_STORE), indexed("2")]
    plan = planned(*some, on=host(NEW, two))

    assert {(one.entry.entry.id.store.root.name, place(one.entry)[1][0], one.to.toolchain) for one in plan.rebuild} == {
        ("sycl", "1", "3"),
        ("other", "1", "2"),
        ("other", "1", "3"),
        ("sycl", "2", "2"),
        ("sycl", "2", "3"),
    }
    assert plan.covered == 1


def test_the_newest_whole_generation_is_taken() -> None:
    some = [indexed("1", OLD, created=5), indexed("1", OLDER, created=9), indexed("2", OLDER, created=9)]
    some.append(indexed("2", OLD, created=5, defect=sycl.defects.BIN_EMPTY))
    plan = planned(*some)

    assert {one.entry.entry.id.key.split("/")[1]: one.entry.entry.environment for one in plan.rebuild} == {
        "1": OLD,
        "2": OLDER,
    }


def test_what_cannot_be_rebuilt_is_counted_with_its_reason() -> None:
    some = [
        indexed("1", image=ImageFormat.ELF),
        indexed("2", constants="01"),
        indexed("3", defect=sycl.defects.SRC_TRUNCATED),
        indexed("4"),
        indexed("5"),
        indexed("6", image=ImageFormat.ELF),
        indexed("7", image=ImageFormat.ELF, used=400),
    ]
    plan = planned(*some, failed={(place(some[3]), NEW), (place(some[4]), OLD)})

    # Another driver may still take what one refused.
    assert [one.entry for one in plan.rebuild] == [some[4]]
    assert plan.skipped == {NoRecipe.NATIVE: 2, NoRecipe.CONSTANTS: 1, NoRecipe.DAMAGED: 1, NoRecipe.FAILED: 1}


def test_what_a_driver_refused_is_told_before_what_the_catalog_knows_of_it() -> None:
    one = indexed("1", defect=sycl.defects.SRC_TRUNCATED)
    third = env("3")

    assert planned(one, on=host(NEW, third), failed={(place(one), NEW)}).skipped == {
        NoRecipe.FAILED: 1,
        NoRecipe.DAMAGED: 1,
    }


# -- kernels of an older build ------------------------------------------------------------------------------------

BOTH: Final = ("_ZTS3foo", "_ZTS3bar")


def test_kernels_that_a_newer_build_wrote_anew_are_left_out() -> None:
    old, late, mixed, new = (
        indexed("1", created=90, used=20, kernels=BOTH),
        indexed("2", created=80, used=9.5, kernels=BOTH[::-1]),
        indexed("3", created=90, used=20, kernels=BOTH[:1]),
        indexed("4", created=10, used=1, kernels=BOTH),
    )
    plan = planned(old, late, mixed, new)

    assert {one.entry for one in plan.rebuild} == {late, mixed, new}
    assert plan.skipped == {NoRecipe.SUPERSEDED: 1}


@pytest.mark.parametrize(
    ("newer", "goes"),
    [
        pytest.param(indexed("2", created=3, kernels=BOTH), True, id="the same kernels"),
        pytest.param(indexed("2", created=4, kernels=BOTH), False, id="written within a day of the last use"),
        pytest.param(indexed("2", created=5, kernels=BOTH), False, id="written while the others were used"),
        pytest.param(indexed("2", created=3, kernels=(*BOTH, "_ZTS3baz")), False, id="one kernel more"),
        pytest.param(indexed("2", created=3, kernels=BOTH, options="-g"), False, id="other options"),
        pytest.param(indexed("2", created=3, kernels=BOTH, constants="01"), False, id="other constants"),
        pytest.param(indexed("2", created=3, kernels=BOTH, store=OTHER_STORE), False, id="in another store"),
        pytest.param(indexed("2", env("1", device="GPU"), created=3, kernels=BOTH), False, id="for another device"),
    ],
)
def test_what_makes_a_newer_build(newer: IndexedEntry, *, goes: bool) -> None:
    plan = planned(indexed("1", created=90, used=5, kernels=BOTH), newer, on=host(NEW, env("2", device="GPU")))

    assert ("1" in names(plan)) is not goes
    assert (NoRecipe.SUPERSEDED in plan.skipped) is goes


def test_what_was_used_on_the_calendar_s_last_day_ends_no_replay() -> None:
    """A file may have any time of access: a day after that there is no time."""
    ahead = replace(indexed("1", created=90, kernels=BOTH), last_used=datetime.max.replace(tzinfo=UTC))
    assert names(planned(ahead, indexed("2", created=3, kernels=BOTH))) == ["1", "2"]


def test_what_has_no_kernels_is_no_build_of_another() -> None:
    assert names(planned(indexed("1", created=90, used=20), indexed("2", created=3, used=1))) == ["2", "1"]


def test_of_a_place_the_first_writing_counts_and_the_last_use() -> None:
    # A new driver wrote the second place anew, for the same build.
    first = indexed("1", created=90, used=20, kernels=BOTH)
    again = (indexed("2", OLDER, created=90, used=60, kernels=BOTH), indexed("2", created=3, used=1, kernels=BOTH))
    assert planned(first, *again).skipped == {}
    # The first place was used for long under the driver before the last one.
    used = (indexed("1", OLDER, created=90, used=2, kernels=BOTH), indexed("1", created=80, used=20, kernels=BOTH))
    assert planned(*used, indexed("2", created=10, kernels=BOTH)).skipped == {}


def test_what_cannot_be_rebuilt_anyway_keeps_its_own_reason() -> None:
    native = indexed("1", created=90, used=20, kernels=BOTH, image=ImageFormat.ELF)

    assert planned(native, indexed("2", created=3, kernels=BOTH)).skipped == {NoRecipe.NATIVE: 1}


# -- for which drivers --------------------------------------------------------------------------------------------


def test_an_entry_is_rebuilt_for_each_present_driver_of_its_device() -> None:
    here = host(NEW, env("3"), GPU)

    assert {(one.to.toolchain, one.to.device) for one in planned(indexed("1"), on=here).rebuild} == {
        ("2", OLD.device),
        ("3", OLD.device),
    }


def test_a_model_that_is_led_to_another_driver_gets_its_entries_there() -> None:
    trial = env("9")
    here = replace(host(NEW), drivers=(led(trial, "big"),))

    def targets(*models: str, of: Target = OLD) -> list[str]:
        return sorted(one.to.toolchain for one in planned(indexed("1", of, models=models), on=here).rebuild)

    assert targets() == ["2"]
    assert targets("removed") == ["2"]
    assert targets("small") == ["2"]
    assert targets("big") == ["9"]
    assert targets("big", "small") == ["2", "9"]
    assert targets("big", "removed") == ["9"]
    # What a present driver made for a model that is led to another one is wanted there, too; of no model it is not.
    assert targets("big", of=NEW) == ["9"]
    assert targets("small", of=trial) == ["2"]
    assert targets(of=trial) == []


def test_the_models_of_all_generations_are_led() -> None:
    here = replace(host(NEW), drivers=(led(env("9"), "big"),))
    some = [indexed("1", OLD, created=5, models=("small",)), indexed("1", OLDER, models=("big",))]

    assert sorted((one.entry.entry.environment, one.to.toolchain) for one in planned(*some, on=here).rebuild) == [
        (OLD, "2"),
        (OLD, "9"),
    ]


def test_the_same_driver_in_two_places_is_wanted_once() -> None:
    here = replace(host(NEW), drivers=(led(NEW, "big"),))

    assert [one.to for one in planned(indexed("1", models=("big", "small")), on=here).rebuild] == [NEW]


def test_of_two_drivers_a_model_is_led_to_the_first() -> None:
    here = replace(host(NEW), drivers=(led(env("8"), "big"), led(env("9"), "big", "small")))

    assert [one.to.toolchain for one in planned(indexed("1", models=("big",)), on=here).rebuild] == ["8"]
    assert [one.to.toolchain for one in planned(indexed("1", models=("big", "small")), on=here).rebuild] == ["8", "9"]


def test_a_driver_for_another_device_leaves_its_models_entries_alone() -> None:
    here = replace(host(NEW), drivers=(led(GPU, "big"),))

    assert planned(indexed("1", models=("big",)), on=here).rebuild == ()
    assert [one.to for one in planned(indexed("1", GPU, models=("small",)), on=here).rebuild] == []


# -- a part of it -------------------------------------------------------------------------------------------------


def test_only_some_stores_are_rebuilt_and_counted() -> None:
    some = [
        indexed("1"),
        indexed("2", store=OTHER_STORE),
        indexed("3", NEW),
        indexed("4", NEW, store=OTHER_STORE),
        indexed("5", NEW, store=OTHER_STORE),
    ]

    def of(*stores: Store) -> tuple[list[str], int]:
        plan = planned(*some, scope=ReplayScope(stores={one.root for one in stores}))
        return sorted(names(plan)), plan.covered

    assert of() == (["1", "2"], 3)
    assert of(STORE) == (["1"], 1)
    assert of(OTHER_STORE) == (["2"], 2)
    assert of(STORE, OTHER_STORE) == (["1", "2"], 3)


def test_only_one_driver_is_rebuilt_for_and_counted() -> None:
    third = env("3")
    some = [indexed("1"), indexed("2", NEW), indexed("3", third), indexed("4", third)]

    def to(fingerprint: str | None) -> tuple[set[str], int]:
        plan = planned(*some, on=host(NEW, third), scope=ReplayScope(to=fingerprint))
        return {one.to.toolchain for one in plan.rebuild}, plan.covered

    assert NEW.fingerprint[:6] != third.fingerprint[:6]
    assert to(None) == ({"2", "3"}, 3)
    assert to(NEW.fingerprint) == ({"2"}, 1)
    assert to(third.fingerprint[:6]) == ({"3"}, 2)
    assert to("0000") == (set(), 0)
    # It is what a fingerprint begins with.
    assert to(NEW.fingerprint[1:]) == (set(), 0)


def test_into_a_store_of_its_own_goes_all_that_is_not_there() -> None:
    fresh = Path("/fresh")
    there = indexed("2", NEW, store=Store(STORE.kind, fresh))
    some = [indexed("1", NEW), indexed("2"), indexed("3"), there]
    plan = planned(*some, scope=ReplayScope(into=fresh))

    assert sorted(names(plan)) == ["1", "3"]
    assert plan.covered == 1


def test_into_a_store_of_its_own_go_other_stores_as_one() -> None:
    fresh = Path("/fresh")
    older, newer, theirs = (
        indexed("1", created=9),
        indexed("1", created=5, store=OTHER_STORE),
        indexed("2", store=OTHER_STORE),
    )
    plan = planned(older, newer, theirs, scope=ReplayScope(into=fresh))
    assert {one.entry for one in plan.rebuild} == {newer, theirs}

    there = indexed("1", NEW, store=Store(STORE.kind, fresh))
    plan = planned(older, newer, theirs, there, scope=ReplayScope(into=fresh, stores={STORE.root}))
    assert (plan.rebuild, plan.covered) == ((), 1)
    # What a driver refused is known by where it would go.
    failed = {((Store(STORE.kind, fresh), "1/3/4"), NEW)}
    plan = planned(older, newer, theirs, failed=failed, scope=ReplayScope(into=fresh))
    assert ([one.entry for one in plan.rebuild], plan.skipped) == ([theirs], {NoRecipe.FAILED: 1})


DRIVERS: Final = KindName("driver's")
"""A kind whose entries say nothing themselves, and are the GPU driver's."""


def of_the_driver(name: str, environment: Target = OLD, *, input: str | None = None, **given: object) -> IndexedEntry:  # noqa: A002
    one = indexed(name, environment, store=Store(DRIVERS, Path("/driver")), **given)  # type: ignore[arg-type]
    return replace(one, entry=replace(one.entry, id=EntryId(one.entry.id.store, EntryKey(name)), input=input))


def planned_with_drivers(
    *entries: IndexedEntry,
    told: dict[str, str],
    scope: ReplayScope | None = None,
    filled: Collection[Store] = (),
) -> ReplayPlan:
    """Plan where runs told these lineages of the driver's entries."""
    every: Lineages = {**lineages(), DRIVERS: told.get}
    return plan_replay(entries, host(NEW), MODELS, (), NOW, scope, lineages=every, shared=(DRIVERS,), filled=filled)


def test_what_belongs_to_no_model_is_made_once_where_its_compiler_fills_the_store() -> None:
    above = indexed("1")
    above = replace(above, entry=replace(above.entry, input="spirv"))
    below, other = of_the_driver("old", input="spirv"), of_the_driver("other", input="else")
    told = {"old": "l", "other": "m"}
    twice = planned_with_drivers(above, below, other, told=told)
    assert {one.entry for one in twice.rebuild} == {above, below, other}
    once = planned_with_drivers(above, below, other, told=told, filled=[below.entry.id.store])
    assert ({one.entry for one in once.rebuild}, once.skipped) == ({above, other}, {NoRecipe.SHARED: 1})
    # A model's own compiler fills the model's store.
    of_big = replace(above, models=(ModelName("big"),))
    plan = planned_with_drivers(of_big, below, told=told, filled=[below.entry.id.store])
    assert {one.entry for one in plan.rebuild} == {of_big, below}


def test_what_runs_told_is_rebuilt_and_what_they_did_not_is_counted() -> None:
    there, old = of_the_driver("new", NEW), of_the_driver("old")
    plan = planned_with_drivers(
        old, of_the_driver("other"), there, of_the_driver("untold"), told={"old": "a", "other": "b"}
    )
    assert [one.entry.entry.id.key for one in plan.rebuild] == ["old", "other"]
    assert plan.skipped == {NoRecipe.UNRECORDED: 1}

    plan = planned_with_drivers(old, there, told={"old": "a", "new": "a"})
    assert (plan.rebuild, plan.covered, plan.skipped) == ((), 1, {})


def test_an_entry_that_was_only_predicted_hides_none_whose_recipe_is_known() -> None:
    """Another program compiled it, so that nobody knows how; and what is damaged is no use with a recipe."""
    told = {"recorded": "a", "predicted": "a"}
    recorded = replace(of_the_driver("recorded", OLDER, created=9), recipe=RecipeState.RECORDED)
    predicted = of_the_driver("predicted", created=5, models=("big",))
    (rebuild,) = planned_with_drivers(recorded, predicted, told=told).rebuild
    assert (rebuild.entry.entry, rebuild.entry.models) == (recorded.entry, ("big",))

    damaged = replace(recorded, entry=replace(recorded.entry, state=EntryState.DEFECTIVE))
    assert [one.entry.entry for one in planned_with_drivers(damaged, predicted, told=told).rebuild] == [predicted.entry]


def test_other_programs_whose_kernels_have_the_same_names_are_no_newer_build_in_the_drivers_cache() -> None:
    old = of_the_driver("old", created=90, used=20, kernels=("main",))
    other = of_the_driver("other", created=10, used=1, kernels=("main",))
    plan = planned_with_drivers(old, other, told={"old": "a", "other": "b"})
    assert ({one.entry for one in plan.rebuild}, plan.skipped) == ({old, other}, {})


def test_a_program_is_compiled_once_for_the_runtime_and_the_driver() -> None:
    sycl_one = indexed("1", models=("big",))
    above = replace(sycl_one, entry=replace(sycl_one.entry, input="spirv"))
    told = {"d": "a"}

    def left(models: tuple[str, ...], program: str | None) -> tuple[list[str], dict[NoRecipe, int]]:
        plan = planned_with_drivers(above, of_the_driver("d", input=program, models=models), told=told)
        kinds = [one.entry.entry.id.store.kind for one in plan.rebuild]
        return sorted(kinds), dict(plan.skipped)

    assert left(("big",), "spirv") == (["sycl"], {NoRecipe.SHARED: 1})
    # Another program, another model's cache, and nobody's.
    for models, program in ((("big",), "other"), (("big",), None), (("big", "small"), "spirv"), ((), "spirv")):
        assert left(models, program) == (["driver's", "sycl"], {})
    # Where the runtime's is not compiled, the driver's is.
    plan = planned_with_drivers(of_the_driver("d", input="spirv", models=("big",)), told=told)
    assert len(plan.rebuild) == 1


def test_a_store_of_its_own_is_for_its_kind_only() -> None:
    some = (indexed("1"), of_the_driver("d"))
    told = {"d": "a"}
    plan = planned_with_drivers(*some, told=told, scope=ReplayScope(into=Path("/fresh"), without=(DRIVERS,)))
    assert ([one.entry for one in plan.rebuild], plan.skipped) == ([some[0]], {})

    there = replace(some[1], entry=replace(some[1].entry, environment=NEW))
    apart = ReplayScope(apart={DRIVERS: Path("/drivers")})
    plan = planned_with_drivers(some[1], there, told=told, scope=apart)
    assert (len(plan.rebuild), plan.covered) == (1, 0)
    there = replace(there, entry=replace(there.entry, id=EntryId(Store(DRIVERS, Path("/drivers")), EntryKey("d"))))
    plan = planned_with_drivers(some[1], there, told=told, scope=apart)
    assert (len(plan.rebuild), plan.covered) == (0, 1)


def test_another_device_is_served_from_what_was_compiled_for_this_one() -> None:
    other = env("1", device="another CPU")
    some = [
        indexed("1"),
        indexed("1", NEW, created=5),
        indexed("2", GPU),
        indexed("3", other),
        indexed("4", env("1", platform="Level-Zero")),
    ]

    assert planned(*some, on=host(other)).rebuild == ()
    plan = planned(*some, on=host(other), scope=ReplayScope(other_devices=True))
    assert [(one.entry, one.to) for one in plan.rebuild] == [(some[1], other), (some[2], other)]


def test_what_a_replay_is_going_to_write_is_as_much_as_what_it_rebuilds_where_that_goes() -> None:
    one = indexed("1")
    two = indexed("2")
    entries = [one, replace(two, entry=replace(two.entry, allocated=4096)), indexed("3", store=OTHER_STORE)]
    plan = planned(*entries)
    assert len(plan.rebuild) == 3
    assert coming(plan, ReplayScope()) == {STORE: 4097, OTHER_STORE: 1}
    apart = Path("/apart")
    assert coming(plan, ReplayScope(into=apart)) == {Store(STORE.kind, apart): 4098}
