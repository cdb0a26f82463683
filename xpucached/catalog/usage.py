"""Record: who uses which bytes, what compiling them takes, and what driver changes came to.

Some of it reads every entry: a second for a million.  Whoever asks often remembers the answer (`service.accounting`).
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from xpucached.catalog import days, entries
from xpucached.catalog.preselect import measured_rate
from xpucached.catalog.surveys import driver_changes
from xpucached.catalog.tables import BUILDS, ENTRIES, MODELS, RUNS, STORES, TARGETS
from xpucached.catalog.totals import whole
from xpucached.domain.models import WarmReason, Warmth
from xpucached.domain.names import KindName, ModelName
from xpucached.domain.targets import Origin
from xpucached.domain.usage import Amount, DeviceUsage, DriverUsage, KindUsage, ModelUsage, Saved, UpgradeCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xpucached.domain.host import DriverChange
    from xpucached.domain.plans import IndexedEntry

MONTH: Final = 30
"""Days."""

_NO_END: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)

_BYTES: Final = "CASE WHEN entries.image_size > 0 THEN entries.image_size ELSE entries.allocated END"
# Totals, as floats: a forged file may claim so many bytes that two of them leave 64 bits.
_SUMS: Final = (
    "count(*), total(entries.allocated), total(entries.cost),"
    f" total(CASE WHEN entries.cost IS NULL THEN {_BYTES} ELSE 0 END)"
)
# Each model that is registered and each entry that a run of it used, or that replay made for it.
_PAIRS: Final = (
    "pairs AS (SELECT runs.model AS model, attributions.entry_id AS entry_id FROM attributions"
    " JOIN runs ON runs.id = attributions.run_id UNION SELECT model, entry_id FROM inherited),"
    " counted AS (SELECT model, entry_id, count(*) OVER (PARTITION BY entry_id) AS owners FROM pairs)"
)
_HERE: Final = (
    "LEFT JOIN targets ON targets.id = entries.target_id WHERE (entries.target_id IS NULL OR targets.present)"
)
# What several use counts for each of them with its part, too, so that all parts together are what is used, once.
_PARTS: Final = (
    "total(1.0 / owners), total(1.0 * entries.allocated / owners), total(entries.cost / owners),"
    f" total(CASE WHEN entries.cost IS NULL THEN 1.0 * ({_BYTES}) / owners ELSE 0 END)"
)
# All names are our own.
_BY_MODEL: Final = (
    f"WITH {_PAIRS} SELECT counted.model, counted.owners > 1, {_SUMS}, {_PARTS} FROM counted"  # noqa: S608
    f" JOIN entries ON entries.id = counted.entry_id {_HERE} GROUP BY counted.model, counted.owners > 1"
)
_BY_TARGET: Final = (
    f"SELECT entries.store_id, coalesce(entries.target_id, 0), {_SUMS} FROM entries"  # noqa: S608 - ours
    " GROUP BY entries.store_id, coalesce(entries.target_id, 0)"
)


def rate(connection: sa.Connection, otherwise: float) -> float:
    """Return the seconds that a byte takes to compile: the middle one of what was measured, if anything was."""
    return measured_rate(connection) or otherwise


def _amount(row: Sequence[float], rate: float) -> Amount:
    count, allocated, measured, unmeasured = row
    return Amount(int(count), whole(allocated), measured + max(0.0, unmeasured) * rate, measured)


def together(amounts: Iterable[Amount]) -> Amount:
    """Return the sum of amounts."""
    count, allocated, seconds, measured = 0, 0, 0.0, 0.0
    for one in amounts:
        count, allocated = count + one.entries, allocated + one.allocated
        seconds, measured = seconds + one.seconds, measured + one.measured
    return Amount(count, whole(allocated), seconds, measured)


def less(whole: Amount, part: Amount) -> Amount:
    """Return what is left of an amount without a part of it."""
    return Amount(
        max(0, whole.entries - part.entries),
        max(0, whole.allocated - part.allocated),
        max(0.0, whole.seconds - part.seconds),
        max(0.0, whole.measured - part.measured),
    )


def model_usage(connection: sa.Connection, rate: float) -> tuple[tuple[ModelUsage, ...], Amount, Amount]:
    """Return what each registered model has for what is here now, the largest first, and what it is all together.

    That is what one model each uses, and what several do, each entry counted once.
    """
    found: dict[str, dict[bool, Amount]] = {
        name: {} for name in connection.scalars(sa.select(MODELS.c.name).order_by(MODELS.c.name))
    }
    once: dict[bool, list[tuple[float, float, float, float]]] = {False: [], True: []}
    for model, shared, *sums in connection.exec_driver_sql(_BY_MODEL):
        found.setdefault(model, {})[bool(shared)] = _amount(sums[:4], rate)
        once[bool(shared)].append(_part(sums[4:], rate))
    usage = [
        ModelUsage(ModelName(name), some.get(False, Amount()), some.get(True, Amount())) for name, some in found.items()
    ]
    usage.sort(key=lambda one: -one.own.allocated - one.shared.allocated)
    return tuple(usage), _whole(once[False]), _whole(once[True])


def _part(row: Sequence[float], rate: float) -> tuple[float, float, float, float]:
    count, allocated, measured, unmeasured = row
    return count, allocated, measured + unmeasured * rate, measured


def _whole(parts: Sequence[tuple[float, float, float, float]]) -> Amount:
    count, allocated, seconds, measured = (sum(column) for column in zip(*parts, strict=True)) if parts else (0.0,) * 4
    return Amount(round(count), whole(round(allocated)), max(0.0, seconds), measured)


def totals(
    connection: sa.Connection, rate: float
) -> tuple[Amount, tuple[KindUsage, ...], tuple[DriverUsage, ...], tuple[DeviceUsage, ...], Amount]:
    """Return all, what there is of each kind, driver and device, the largest first, and what is for here and now."""
    stores = {row.id: row.kind for row in connection.execute(sa.select(STORES.c.id, STORES.c.kind))}
    known = {row.id: row for row in connection.execute(sa.select(TARGETS))}
    kinds, drivers, devices = defaultdict[str, list[Amount]](list), dict[str, list[Amount]](), dict[str, list[Amount]]()
    here, all_of_them = list[Amount](), list[Amount]()
    present = {
        "driver": {row.toolchain for row in known.values() if row.present},
        "device": {row.device for row in known.values() if row.present},
    }
    for store, target, *sums in connection.exec_driver_sql(_BY_TARGET):
        amount, row = _amount(sums, rate), known.get(target)
        all_of_them.append(amount)
        kinds[stores[store]].append(amount)
        if row is None or row.present:
            here.append(amount)
        drivers.setdefault(row.toolchain if row is not None else "", []).append(amount)
        devices.setdefault(row.device if row is not None else "", []).append(amount)
    return (
        together(all_of_them),
        tuple(KindUsage(*_parts(some), kind=KindName(name)) for name, some in _largest(kinds)),
        tuple(
            DriverUsage(*_parts(some), driver=name, present=not name or name in present["driver"])
            for name, some in _largest(drivers)
        ),
        tuple(
            DeviceUsage(*_parts(some), device=name, present=not name or name in present["device"])
            for name, some in _largest(devices)
        ),
        together(here),
    )


def _parts(some: Iterable[Amount]) -> tuple[int, int, float, float]:
    one = together(some)
    return one.entries, one.allocated, one.seconds, one.measured


def _largest(found: dict[str, list[Amount]]) -> list[tuple[str, list[Amount]]]:
    return sorted(found.items(), key=lambda one: (-together(one[1]).allocated, one[0]))


def dearest(connection: sa.Connection, count: int) -> tuple[IndexedEntry, ...]:
    """Return the entries of which it was measured that they take longest to compile."""
    longest = sa.select(ENTRIES.c.id).where(ENTRIES.c.cost.is_not(None)).order_by(ENTRIES.c.cost.desc()).limit(count)
    found = entries.all_entries(connection, ENTRIES.c.id.in_(longest))
    return tuple(sorted(found, key=lambda one: -(one.cost or 0.0)))


# -- over time ----------------------------------------------------------------------------------------------------


def saved(connection: sa.Connection, now: datetime) -> Saved:
    """Return what programs did not have to wait for, as far as it was seen."""
    month, today = days.days_back(connection, now, MONTH), days.day_of(now)
    avoided = [(one.day, one.avoided_seconds) for one in month if one.avoided_seconds is not None]
    last = next((change.at for change in driver_changes(connection, 1)), None)
    return Saved(
        next((seconds for day, seconds in avoided if day == today), None),
        sum(seconds for _, seconds in avoided) if avoided else None,
        any(one.estimated_seconds for one in month),
        sum(one.spared_seconds for one in month),
        last,
        _rebuilt(connection, last, _NO_END)[2] if last else 0.0,
    )


def upgrade_costs(connection: sa.Connection, count: int) -> tuple[UpgradeCost, ...]:
    """Return what the newest changes of the driver came to, newest first."""
    changes = driver_changes(connection, count)
    ends = [_NO_END, *(one.at for one in changes)]
    return tuple(_upgrade(connection, one, end) for one, end in zip(changes, ends, strict=False))


def _upgrade(connection: sa.Connection, change: DriverChange, end: datetime) -> UpgradeCost:
    r = RUNS.c
    rebuilt, seconds, spared = _rebuilt(connection, change.at, end)
    runs = connection.execute(
        sa.select(r.passes).where(
            r.started >= change.at, r.started < end, r.reason == WarmReason.DRIVER.value, r.finished.is_not(None)
        )
    ).all()
    cooled, warm_at = _warm_again(connection, change.at, end)
    return UpgradeCost(
        change.at,
        tuple(sorted({one.toolchain for one in change.appeared})),
        tuple(sorted({one.toolchain for one in change.vanished})),
        rebuilt,
        seconds,
        spared,
        len(runs),
        sum(float(one["seconds"]) for row in runs for one in row.passes),
        cooled,
        warm_at,
    )


def _rebuilt(connection: sa.Connection, since: datetime, end: datetime) -> tuple[int, float, float]:
    """Return how many entries were rebuilt between two moments, what that took, and what models are spared, in seconds.

    What is spared is kept by days: of what was on the first and the last of these days no more is counted than was
    rebuilt between the moments.
    """
    b = BUILDS.c
    rebuilt, seconds = connection.execute(
        sa.select(sa.func.count(), sa.func.total(b.seconds)).where(
            b.at >= since, b.at < end, b.origin == Origin.REBUILT.value
        )
    ).one()
    spared = sum(one.spared_seconds for one in days.days_between(connection, days.day_of(since), days.day_of(end)))
    return rebuilt, seconds, min(spared, seconds)


def _warm_again(connection: sa.Connection, since: datetime, end: datetime) -> tuple[int, datetime | None]:
    """Return how many models cooled between two moments, and when the last of these was warm again."""
    cooled, cold = set[ModelName](), set[ModelName]()
    warm_at = None
    for one in days.warmth_changes(connection, since, limit=10_000):
        if one.at >= end:
            break
        if one.now is Warmth.WARM and one.model in cold:
            cold.discard(one.model)
            warm_at = one.at
        elif one.now is not Warmth.WARM and one.before is Warmth.WARM and one.model not in cooled:
            cooled.add(one.model)
            cold.add(one.model)
    return len(cooled), None if cold else warm_at
