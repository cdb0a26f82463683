"""Sample values of what `top`, `inspect`, `trace`, bundles and fleets tell, of so many models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from tests.support import histories
from xpucached.domain.bundles import (
    BundleContent,
    BundleFacts,
    BundleMember,
    BundleView,
    CompilerLibrary,
    Compression,
    DiffReport,
    ExportReport,
    ImportReport,
    InspectReport,
    MemberChange,
    MemberTaken,
    RecipeFailure,
)
from xpucached.domain.fleet import (
    FleetDifference,
    FleetGroup,
    FleetReport,
    FleetTaking,
    HostFingerprint,
    HostTarget,
    HostWarm,
    UnreadFingerprint,
)
from xpucached.domain.inspection import CodeForm, InspectedDevice, InspectedFile, Inspection, Outlook
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.overview import OverviewModel
from xpucached.domain.targets import Target
from xpucached.domain.traces import OtherCache, StoreTrace, TraceReport
from xpucached.domain.usage import Amount, ModelUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.domain.bundles import BundleReport
    from xpucached.domain.models import ModelStatus
    from xpucached.domain.overview import Overview

SYCL: Final = KindName("sycl")
B580: Final = "Intel(R) Arc(TM) B580 Graphics"
TARGETS: Final = tuple(Target(SYCL, "level-zero", B580, driver) for driver in ("25.40.35563", "25.35.35096"))
COMPILER: Final = (
    CompilerLibrary("libigc.so", "build-id:" + "1f" * 20),
    CompilerLibrary("libze_intel_gpu.so", "sha256:" + "ab" * 32),
)


def overview(known: Sequence[ModelStatus]) -> Overview:
    """Return what `top` shows of these models."""
    value = histories.make_overview()
    shown = tuple(
        OverviewModel(one.model.name, one.warmth, one.why, one.entries, one.allocated, value.at) for one in known
    )
    used = tuple(ModelUsage(one.model, Amount(one.entries, one.allocated, 30.0, 30.0), Amount()) for one in shown)
    return replace(value, models=shown, usage=replace(value.usage, models=used))


def inspected(count: int) -> Inspection:
    """Return what an environment with so many libraries brings for two GPUs."""
    devices = (
        InspectedDevice("B580", "bmg-g21", "20.1.4", here=True),
        InspectedDevice("A770", "acm-g10", "12.55.8", assumed=True),
    )
    files = []
    for number in range(count):
        ready, compiled = (900 + number, 0) if number % 3 else (0, 45 + number)
        outlooks = (
            Outlook(
                "bmg-g21", ready, compiled, compile_size=compiled << 12, seconds=compiled / 9 if compiled else None
            ),
            Outlook("acm-g10", 0, ready // 2, ready - ready // 2, compiled, disputed=compiled // 2),
        )
        form = CodeForm.NATIVE if ready else CodeForm.SPIRV
        name = f"venv/lib/python3.11/site-packages/torch/lib/libtorch_xpu_ops_{number}.so"
        notes = ("its names are cut",) if number == 1 else ()
        files.append(InspectedFile(name, 4, ready + compiled, ((form.value, 4),), outlooks, notes))
    shares = [[one.outlooks[at] for one in files] for at in range(len(devices))]
    totals = tuple(
        Outlook(
            some[0].architecture if some else "",
            ready=sum(one.ready for one in some),
            compiled=sum(one.compiled for one in some),
            absent=sum(one.absent for one in some),
            unknown=sum(one.unknown for one in some),
            disputed=sum(one.disputed for one in some),
            compile_size=sum(one.compile_size for one in some),
            seconds=12.5 if not at and some else None,
        )
        for at, some in enumerate(shares)
    )
    skipped = (("folders that may not be read", 1), ("copies of what was read", 3)) if count > 1 else ()
    notes = ("torch is the build for processors only",) if count > 1 else ()
    kept = ("SYCL's cache, in /home/user/.cache/xpucached/sycl",)
    return Inspection("venv", devices, tuple(files), totals, 128, skipped, notes, 1.25, count > 1, kept, ("venv",))


def traced(count: int) -> TraceReport:
    """Return what a program compiled that met so many caches; of none there was no word."""
    root = Path("/home/user/.cache/libsycl_cache")
    store = StoreTrace(SYCL, root, 60, 12, 1)
    others = tuple(
        OtherCache(name, Path(f"/home/user/.{name}"), number) for number, name in enumerate(("triton", "neo"))
    )
    told = TraceReport(
        command=("python3", "app.py", "--once"),
        seconds=300.4,
        status=0,
        runs_on=False,
        compiling=None,
        at_least=False,
        programs=None,
        kept=0,
        found=0,
        nowhere=None,
        traced=False,
        off=False,
        stores=(),
        others=(),
        commands=(),
    )
    if not count:
        return told
    commands = ("xpucachectl model add app -- python3 app.py --once", "xpucachectl prewarm app")
    return replace(
        told,
        compiling=271.2,
        at_least=count > 1,
        programs=74,
        kept=60,
        found=12,
        nowhere=14 if count > 1 else 0,
        traced=True,
        off=count > 1,
        runs_on=count > 1,
        stores=(store,),
        others=(*others, OtherCache("inductor", Path("/mnt/share"), None)) if count > 1 else (),
        commands=commands,
    )


def _bundle(count: int) -> BundleView:
    recipes = BundleFacts(BundleContent.RECIPES, 278, 9 << 20, "sha256:" + "0" * 64)
    facts = [recipes] if count else []
    for number in range(max(0, min(count, 4) - 1)):
        target = replace(TARGETS[number % 2], toolchain=f"25.{40 - number}.35563")
        known = COMPILER if number % 2 else ()
        facts.append(replace(recipes, content=BundleContent.BINARIES, kind=SYCL, target=target, compiler=known))
    some = tuple(
        BundleMember(f"sha256:{at:064}", (at + 1) << 20, Compression.ZSTD, one) for at, one in enumerate(facts)
    )
    signer = "release.pub" if count > 1 else None
    why = "" if signer else "there is no signature"
    return BundleView(Path("/srv/llama.tar"), "sha256:" + "5e" * 32, some, signer, why, checked=count > 1)


def bundles(count: int) -> tuple[BundleReport, ...]:
    """Return what came of every order about a bundle of so many members."""
    view = _bundle(count)
    skipped = {"compiled ahead of time": 3} if count else {}
    failures = tuple(
        RecipeFailure(SYCL, EntryKey(f"1/2/3/4/{at}"), "the compiler ended by SIGSEGV") for at in range(min(count, 12))
    )
    taken = tuple(
        MemberTaken(one.facts.target, "rebuild" if at % 2 else "publish", "another compiler" if at % 2 else "", 278)
        for at, one in enumerate(view.members[1:])
    )
    changes = tuple(
        MemberChange(one.facts.content, one.facts.target, "changed" if at % 2 else "added", f"{at} with other bytes")
        for at, one in enumerate(view.members[1:])
    )
    return (
        ExportReport(view, skipped, 278, ("a note",) if count else ()),
        InspectReport(view),
        ImportReport(view, taken, published=278, rebuilt=12, present=3, failures=failures, skipped=skipped),
        DiffReport(changes),
    )


def fleet(count: int) -> FleetReport:
    """Return how so many hosts differ: every third has another driver, of one something is not known."""
    usual = HostFingerprint((HostTarget(TARGETS[0], "20.1.4"),), COMPILER, {"sycl": "1"}, "node0", HostWarm(278))
    older = replace(usual, targets=(HostTarget(TARGETS[1], "20.1.4"),))
    unknown = replace(usual, compiler=())
    hosts = [f"node{number}.example.org" for number in range(count)]
    takes = (FleetTaking(Path("llama.tar"), "recipes", "no key is trusted that signed it"),)
    groups = [FleetGroup(usual.fingerprint, tuple(hosts[0::3]), usual, takes=takes)] if count else []
    if count > 1:
        differs = (
            FleetDifference("driver", TARGETS[1].toolchain, TARGETS[0].toolchain),
            FleetDifference("libigc.so", "build-id:" + "2e" * 20, COMPILER[0].id),
        )
        groups.append(FleetGroup(older.fingerprint, tuple(hosts[1::3]), older, differs))
        groups.append(FleetGroup("", tuple(hosts[2::3]), unknown, (FleetDifference("compiler", "not known", "known"),)))
    unread = (UnreadFingerprint("old.json", "it is no fingerprint"),) if count > 1 else ()
    return FleetReport(tuple(groups), unread)
