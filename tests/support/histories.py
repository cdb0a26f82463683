"""Sample values of what there is to look at: usage, days, warmth, and all of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from xpucached.domain.models import Warmth
from xpucached.domain.names import EntryRef, KindName, ModelName
from xpucached.domain.overview import Overview, OverviewModel, UnderWay
from xpucached.domain.plans import EvictReason
from xpucached.domain.status import Verdict
from xpucached.domain.usage import (
    Amount,
    Cost,
    CostlyEntry,
    CostSource,
    Day,
    DeviceUsage,
    DriverUsage,
    Evictable,
    EvictableReason,
    KindUsage,
    ModelUsage,
    Saved,
    UpgradeCost,
    Usage,
    WarmthChange,
)
from xpucached.domain.users import HostStatus, UserStatus, WorkerState

NOW = datetime(2026, 11, 22, 8, 30, tzinfo=UTC)
NASTY = "</script><b>\u202eevil\x1b[31m'\"&"
"""A name that is markup, turns the writing, and colours a terminal."""

LLAMA, WHISPER = ModelName("llama"), ModelName("whisper")


def make_usage() -> Usage:
    """Return who uses which bytes: two models that share a part, an old driver, and an estimate."""
    return Usage(
        NOW,
        7.9e-05,
        Amount(556, 18_767_872, 220.2, 200.0),
        (KindUsage(556, 18_767_872, 220.2, 200.0, kind=KindName("sycl")),),
        (
            DriverUsage(278, 9_396_224, 113.7, 93.5, driver="25.40.2", present=True),
            DriverUsage(278, 9_371_648, 106.5, 106.5, driver="25.35.1", present=False),
        ),
        (DeviceUsage(556, 18_767_872, 220.2, 200.0, device="Intel(R) Arc(TM) B580 Graphics", present=True),),
        (
            ModelUsage(LLAMA, Amount(204, 7_192_576, 81.5, 61.3), Amount(74, 2_203_648, 32.2, 32.2)),
            ModelUsage(WHISPER, Amount(), Amount(74, 2_203_648, 32.2, 32.2)),
        ),
        Amount(74, 2_203_648, 32.2, 32.2),
        Amount(),
        (
            CostlyEntry(
                EntryRef("7572ae639a2b"),
                "dpctl::tensor::kernels::logaddexp::logaddexp_contig_kernel<float>",
                "25.40.2",
                Cost(5.59, CostSource.REBUILD),
                188_416,
                (LLAMA,),
            ),
            CostlyEntry(EntryRef("9e8c8cdc73ae"), "", "25.40.2", Cost(1.32, CostSource.RUN), 61_440, (LLAMA, WHISPER)),
        ),
    )


def make_days() -> tuple[Day, ...]:
    """Return 30 days: on the third nobody watched, and on the day before the last the driver changed."""
    days = []
    for number in range(30):
        name = (NOW - timedelta(days=29 - number)).date().isoformat()
        loads = None if number == 2 else 1000 + 37 * (number * 7 % 11)
        avoided = None if loads is None else loads * 0.41
        day = Day(name, loads=loads, avoided_seconds=avoided, estimated_seconds=avoided and avoided * 0.1)
        days.append(day)
    upgraded = Day(
        days[28].day,
        replayed=278,
        replay_seconds=106.5,
        spared_seconds=101.0,
        prewarmed=3,
        prewarm_seconds=2.5,
        warmed=2,
        evicted=12,
        freed=409_600,
        changes=1,
        compiled=5,
        loads=1834,
        avoided_seconds=412.9,
        estimated_seconds=20.0,
        entries=556,
        allocated=18_767_872,
    )
    return (*days[:28], upgraded, days[29])


def make_warmth() -> tuple[WarmthChange, ...]:
    """Return how two models were warm, cold after an upgrade, and warm again."""
    old, upgrade = NOW - timedelta(days=20), NOW - timedelta(days=1)
    cold = "it was warmed for another driver"
    return (
        WarmthChange(1, old, LLAMA, None, Warmth.WARM, "a run proved it"),
        WarmthChange(2, old, WHISPER, None, Warmth.WARM, "a run proved it"),
        WarmthChange(3, upgrade, LLAMA, Warmth.WARM, Warmth.COLD, cold),
        WarmthChange(4, upgrade, WHISPER, Warmth.WARM, Warmth.COLD, cold),
        WarmthChange(5, upgrade + timedelta(seconds=95), LLAMA, Warmth.COLD, Warmth.WARM, "a run proved it"),
        WarmthChange(6, upgrade + timedelta(seconds=123), WHISPER, Warmth.COLD, Warmth.WARM, "a run proved it"),
    )


def make_evictable() -> Evictable:
    """Return what eviction would take: what is for the old driver."""
    reason = EvictableReason(EvictReason.SUPERSEDED, 278, 9_371_648, 106.5, 106.5)
    return Evictable(NOW, "1f0c00ff00ff", 278, 9_371_648, (reason,))


def make_overview() -> Overview:
    """Return all of it, of a host that is warm."""
    upgrade, days = NOW - timedelta(days=1), make_days()
    avoided = sum(one.avoided_seconds or 0.0 for one in days)
    return Overview(
        NOW,
        "0.1.0",
        "example",
        Verdict.WARM,
        "Warm: all 2 models are warm for driver 25.40.2",
        upgrade + timedelta(seconds=123),
        NOW - timedelta(days=21),
        watched=True,
        saved=Saved(
            days[-1].avoided_seconds,
            avoided,
            estimated=True,
            spared_month=101.0,
            upgraded=upgrade,
            spared_upgrade=101.0,
        ),
        usage=make_usage(),
        evictable=make_evictable(),
        models=(
            OverviewModel(LLAMA, Warmth.WARM, "a run proved it", 278, 9_396_224, upgrade + timedelta(seconds=95)),
            OverviewModel(WHISPER, Warmth.WARM, "a run proved it", 74, 2_203_648, upgrade + timedelta(seconds=123)),
        ),
        warmth=make_warmth(),
        days=days,
        upgrades=(
            UpgradeCost(
                upgrade,
                ("25.40.2",),
                ("25.35.1",),
                278,
                106.5,
                101.0,
                2,
                9.8,
                2,
                upgrade + timedelta(seconds=123),
            ),
        ),
        under_way=(
            UnderWay("replay-4", "rebuilding, 3.1 a second, 39 s left", 120, 278, NOW - timedelta(seconds=40)),
            UnderWay("app.service (pid 4711)", "compiles, unasked", 3, 0, NOW - timedelta(seconds=9)),
        ),
        defective=1,
        problems={"not-watched": 1},
    )


def make_host_status() -> HostStatus:
    """Return a host of four users: one is warm, one cold, one has a daemon of their own, one a failed worker."""
    changed = NOW - timedelta(days=1)
    warm = UserStatus(
        "alice",
        1001,
        WorkerState.ASLEEP,
        Verdict.WARM,
        "Warm: all 2 models are warm for driver 25.40.2",
        entries=556,
        allocated=18_767_872,
        warm=2,
        models=(LLAMA, WHISPER),
        seen=NOW - timedelta(minutes=4),
        looked=NOW - timedelta(minutes=4),
    )
    cold = replace(
        warm,
        user="bob",
        uid=1002,
        state=WorkerState.AWAKE,
        verdict=Verdict.COLD,
        sentence="Cold: 1 of 3 models is cold",
        entries=812,
        allocated=31_457_280,
        cold=1,
        problems=("store-fault",),
        working=True,
    )
    aside = UserStatus("carol", 1003, WorkerState.ASIDE)
    failed = replace(cold, user="dave", uid=1004, state=WorkerState.FAILED, sentence="it ended", allocated=4096)
    users = (warm, cold, aside, failed)
    return HostStatus("0.1.0", NOW - timedelta(days=9), "stamp", changed, (), users, NOW - timedelta(minutes=3), 600.0)
