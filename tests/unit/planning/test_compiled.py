"""Which libraries a model's runs compiled, and for which devices it is looked at."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from tests.support.api_stub import OPENCL, make_entry, make_model, make_run
from tests.support.builders import sycl_target
from xpucached.cli import inspecting_models
from xpucached.domain.diagnosis import CompiledShare, Diagnosis
from xpucached.domain.host import Device
from xpucached.domain.models import Warmth
from xpucached.domain.names import Architecture, EntryKey, KindName, ModelName
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.stores import EntryId, Kernel, Store
from xpucached.inspection import devices
from xpucached.planning.compiled import compiled
from xpucached.render.diagnosis import why
from xpucached.render.text import TextStyle

SYCL, NEO = KindName("sycl"), KindName("neo")
CPU = sycl_target("Intel(R) OpenCL", "a processor", "3.0", "2026.21")


def made(number: int, kind: KindName, library: str | None, cost: float | None) -> IndexedEntry:
    """Return an entry of a model."""
    one = make_entry(number, kernels=(Kernel("_Z", "k", library), Kernel("_Y", "l", library)))
    held = replace(one.entry, id=EntryId(Store(kind, Path("/c")), EntryKey(f"{number}")), environment=OPENCL)
    return replace(one, entry=held, cost=cost, models=(ModelName("net"),))


def test_the_time_is_shared_among_libraries_in_each_kind_of_cache() -> None:
    entries = [
        made(1, SYCL, "oneDNN", 6.0),
        made(2, SYCL, "oneDNN", 3.0),
        made(3, SYCL, "dpctl", 1.0),
        made(4, SYCL, None, None),
        made(5, NEO, None, None),
        replace(made(6, SYCL, "oneDNN", 50.0), models=()),
        replace(made(7, SYCL, "oneDNN", 50.0), entry=replace(made(7, SYCL, "x", 1).entry, environment=CPU)),
    ]

    found = compiled(replace(make_model("net"), run=make_run()), entries)

    assert found == (
        CompiledShare(NEO, "", 1, 2, None, None),
        CompiledShare(SYCL, "oneDNN", 2, 4, 9.0, 0.9),
        CompiledShare(SYCL, "dpctl", 1, 2, 1.0, 0.1),
        CompiledShare(SYCL, "", 1, 2, None, None),
    )
    text = why(Diagnosis(ModelName("net"), Warmth.WARM, compiled=found), TextStyle(datetime.now(UTC), None, False))  # noqa: FBT003 - no colours
    assert "What its runs compiled" in text
    assert [line.split() for line in text.splitlines() if "oneDNN" in line] == [
        ["sycl", "oneDNN", "2", "4", "9.00", "s", "90%"]
    ]
    assert compiled(make_model("another"), entries) == ()


def test_a_model_is_looked_at_for_the_devices_that_its_run_used() -> None:
    given = make_model("net")
    gpu = Device("B580", Architecture("bmg-g21"), "0000:03:00.0", environments=(OPENCL,))
    cpu = Device("a processor", Architecture("cpu"), environments=(CPU,))
    known = inspecting_models.Told(devices=(gpu, cpu))

    def looked(*targets: object, workload: str = given.workload) -> list[str]:
        run = replace(make_run(), workload=workload, environments=targets)
        return [one.told.architecture for one in inspecting_models.of_host_or_model(replace(given, run=run), known)]

    away = sycl_target("Intel(R) OpenCL Graphics", "Intel(R) Arc(TM) A770 Graphics", "3.0", "25.1")
    assert looked(OPENCL) == ["bmg-g21"]
    assert looked(CPU) == ["cpu"]
    assert looked(away, CPU) == ["acm-g10", "cpu"]
    # Of another workload, or a device that nobody knows, it is this host's.
    here = [one.told.architecture for one in devices.here() or (devices.CPU,)]
    assert looked(OPENCL, workload="another") == looked(replace(away, device="what")) == here
    meant = replace(given, exercise=replace(given.exercise, device="cpu"), run=None)
    assert inspecting_models.of_host_or_model(meant, known) == (devices.CPU,)
