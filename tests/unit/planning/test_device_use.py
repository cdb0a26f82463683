"""Whether a run used a GPU: tables of what was seen."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.api_stub import OPENCL, make_model, make_run
from tests.support.builders import sycl_target
from tests.unit.planning.test_diagnosis import ask
from xpucached.domain.device_use import DeviceUse, GraphicsUse
from xpucached.domain.diagnosis import Cause
from xpucached.domain.host import Device
from xpucached.domain.models import RanOn
from xpucached.domain.names import Architecture
from xpucached.domain.targets import Target
from xpucached.domain.workloads import Variant
from xpucached.planning.device_use import device_use, fallbacks, ran_on
from xpucached.processes.reports import read_seen
from xpucached.server.redact import redact

CPU = sycl_target("Intel(R) OpenCL", "a processor", "3.0", "2026.21")
AWAY = sycl_target("Intel(R) OpenCL Graphics", "another GPU", "3.0", "25.1")
B580 = GraphicsUse("0000:03:00.0", "xe", 1.5, 3 << 20)
"""What the kernel counted."""


def devices() -> list[Device]:
    """Return a GPU and a processor."""
    gpu = Device("GPU", Architecture("bmg-g21"), pci_address="0000:03:00.0", environments=(OPENCL,))
    return [gpu, Device("processor", Architecture("cpu"), environments=(CPU,))]


@pytest.mark.parametrize(
    ("use", "words", "only_cpu"),
    [
        (device_use({CPU: 3}, devices(), [(), ()]), "ran on the CPU: no kernel for a GPU was used", True),
        (device_use({}, devices(), []), "unknown: neither kernels for a device nor work of a GPU's engines", False),
        (device_use({OPENCL: 2, CPU: 1}, devices(), []), "2 kernels for a GPU were compiled or used", False),
        (device_use({CPU: 1}, devices(), [(B580,), (B580,)]), "(xe) worked 3.0 s for it, with 3 MiB at most", False),
        # A client of xe that was looked at once tells cycles, and no time.
        (
            device_use({CPU: 1}, devices(), [(GraphicsUse("0000:03:00.0", "xe", 0.0, 0),)], [{"0000:03:00.0": 1}]),
            "the engines of a GPU worked for it, for a time that is not known",
            False,
        ),
        # Nobody knows what it is for.
        (device_use({CPU: 1, AWAY: 1}, devices(), []), "unknown", False),
        (device_use({CPU: 1, None: 1}, devices(), []), "unknown: 1 ", False),
        # A GPU of which only its driver tells, as in WSL, has no PCI address.
        (
            device_use({OPENCL: 1}, [Device("GPU", Architecture("bmg-g21"), environments=(OPENCL,))], []),
            "unknown",
            False,
        ),
    ],
)
def test_what_was_used_is_said_as_far_as_it_was_seen(use: DeviceUse, words: str, *, only_cpu: bool) -> None:
    assert words in use.sentence
    assert use.only_cpu is only_cpu


@pytest.mark.parametrize(
    ("kind", "counts", "engines", "place"),
    [
        ("xpu", {OPENCL: 1, CPU: 1}, False, RanOn.MEANT),
        ("xpu", {CPU: 1}, True, RanOn.MEANT),
        ("xpu", {CPU: 1}, False, RanOn.OTHER),
        ("xpu", {}, False, RanOn.UNKNOWN),
        # As in WSL: what only its driver tells of may be the GPU that was meant.
        ("xpu", {AWAY: 1}, False, RanOn.UNKNOWN),
        ("xpu", {CPU: 1, AWAY: 1}, False, RanOn.UNKNOWN),
        ("xpu", {CPU: 1, None: 1}, False, RanOn.UNKNOWN),
        ("cpu", {CPU: 1}, False, RanOn.MEANT),
        ("cpu", {AWAY: 1}, False, RanOn.UNKNOWN),
        ("cpu", {CPU: 1, AWAY: 1}, False, RanOn.UNKNOWN),
        ("cpu", {CPU: 1}, True, RanOn.OTHER),
        ("cpu", {CPU: 1, OPENCL: 1}, False, RanOn.OTHER),
        # What it does on another vendor's GPU stands in no cache of ours.
        ("cuda", {CPU: 1}, False, RanOn.UNKNOWN),
        ("cuda", {OPENCL: 1}, False, RanOn.UNKNOWN),
        ("", {OPENCL: 1}, True, RanOn.UNKNOWN),
    ],
)
def test_another_device_was_used_only_where_that_is_known(
    kind: str, counts: dict[Target | None, int], place: RanOn, *, engines: bool
) -> None:
    assert ran_on(kind, device_use(counts, devices(), [], [{"0000:03:00.0": int(engines)}])) is place


@pytest.mark.parametrize(
    ("device", "gpus", "use", "said"),
    [
        ("xpu:0", False, DeviceUse(cpu_entries=3), True),
        ("", True, DeviceUse(cpu_entries=3), True),
        ("", False, DeviceUse(cpu_entries=3), False),
        ("cpu", True, DeviceUse(cpu_entries=3), False),
        ("xpu:0", True, DeviceUse(gpu_entries=3), False),
        ("xpu:0", True, DeviceUse(), False),
        ("xpu:0", True, None, False),
    ],
)
def test_why_names_what_ran_on_the_cpu_and_was_meant_for_a_gpu(
    device: str, use: DeviceUse | None, *, gpus: bool, said: bool
) -> None:
    given = make_model("net")
    trial = replace(make_run().trials[0], variant=Variant(device), use=use)
    run = replace(make_run(), workload=given.workload, trials=(trial,))
    found = [one for one in ask(replace(given, run=run), gpus=gpus).explanations if one.cause is Cause.ON_CPU]
    assert bool(found) is said
    assert all("no kernel for a GPU was used" in one.message for one in found)
    assert all("(hidden)" in repr(redact(one)) for one in found)


def test_operators_that_torch_ran_on_the_cpu_are_told_as_far_as_it_says() -> None:
    once = "app.py:3: UserWarning: Aten Op fallback from XPU to CPU happens. This may have performance implications."
    each = [
        f"UserWarning: The operator 'aten::op{n} on the XPU backend is falling back to run on the CPU."
        for n in "abcdefa"
    ]
    assert fallbacks(["all is well", ""]) == ()
    (said,) = fallbacks(["", once])
    assert "some operators on the CPU, which and how many is unknown" in said
    (said,) = fallbacks([once, *each])
    assert "aten::opa, aten::opb, aten::opc, aten::opd, aten::ope and 1 more; how many of all is unknown" in said
    (said,) = fallbacks(each[:5])
    assert "aten::opa, aten::opb, aten::opc, aten::opd, aten::ope; how many of all is unknown" in said


OTHER_SORT = sycl_target("Intel(R) OpenCL Graphics", "Intel(R) Arc(TM) A770 Graphics", "3.0", "25.1")
ADDRESSES = ("0000:03:00.0", "0000:04:00.0", "0000:05:00.0")


def several() -> list[Device]:
    """Return two GPUs of one sort, one of another, and a processor."""
    sorts = (("bmg-g21", OPENCL), ("bmg-g21", OPENCL), ("acm-g10", OTHER_SORT))
    cards = [
        Device(f"GPU {number}", Architecture(name), pci_address=ADDRESSES[number], environments=(target,))
        for number, (name, target) in enumerate(sorts)
    ]
    return [*cards, devices()[1]]


@pytest.mark.parametrize(
    ("counts", "seconds", "engines", "used"),
    [
        # Entries are for both of a sort: which of them was used they do not tell.
        ({OPENCL: 4}, (), {}, [None, None, None]),
        ({OPENCL: 4, OTHER_SORT: 2}, (), {}, [None, None, True]),
        ({OPENCL: 4, OTHER_SORT: 2}, (1.5, 0.0, 0.0), {}, [True, False, True]),
        ({OPENCL: 4}, (1.5, 2.0, 0.0), {}, [True, True, False]),
        ({OPENCL: 4}, (0.0, 0.0, 0.0), {ADDRESSES[1]: 7}, [False, True, False]),
        # Nothing was seen of any: their kernel driver may count nothing.
        ({CPU: 4}, (0.0, 0.0, 0.0), {}, [None, None, None]),
        ({None: 1}, (), {}, [None, None, None]),
    ],
)
def test_of_several_gpus_each_is_proven_by_itself(
    counts: dict[Target | None, int], seconds: tuple[float, ...], engines: dict[str, int], used: list[bool | None]
) -> None:
    graphics = [GraphicsUse(address, "xe", spent, 0) for address, spent in zip(ADDRESSES, seconds, strict=False)]
    use = device_use(counts, several(), [graphics, ()], [engines])
    assert [one.used for one in use.gpus] == used
    assert [(one.entries, one.alike) for one in use.gpus] == [
        (counts.get(target, 0), alike) for target, alike in ((OPENCL, 2), (OPENCL, 2), (OTHER_SORT, 1))
    ]
    assert device_use(counts, devices(), [graphics]).gpus == ()


def test_each_of_several_gpus_has_its_sentence() -> None:
    graphics = [GraphicsUse(ADDRESSES[0], "xe", 1.5, 0), GraphicsUse(ADDRESSES[1], "xe", 0.0, 0)]
    use = device_use({OPENCL: 4}, several(), [graphics])
    assert [one.sentence for one in use.gpus] == [
        "GPU 0 at 0000:03:00.0: used (its engines worked 1.5 s, 4 kernels for it, as for all 2 of its sort)",
        "GPU 1 at 0000:04:00.0: not seen to work (4 kernels for it, as for all 2 of its sort)",
        "GPU 2 at 0000:05:00.0: unknown whether it was used (no kernels for it)",
    ]


@pytest.mark.parametrize(
    ("command", "mask", "used", "said"),
    [
        ("torchrun --nproc-per-node 2 app.py", "", (1.0, 0.0, 0.0), True),
        ("vllm serve --tensor-parallel-size=2", "", (1.0, 0.0, 0.0), True),
        ("app", "0,1.0,1.1", (1.0, 0.0, 0.0), True),
        ("app", "0,1", (1.0, 1.0, 0.0), False),
        # Of one of them nothing is known.
        ("app", "0,1", (1.0, 0.0), False),
        # Nothing says how many it means.
        ("app", "", (1.0, 0.0, 0.0), False),
        ("app", "0", (1.0, 0.0, 0.0), False),
    ],
)
def test_why_names_the_gpus_that_stayed_idle(command: str, mask: str, used: tuple[float, ...], *, said: bool) -> None:
    given = replace(
        make_model("net"), command=tuple(command.split()), variables={"ZE_AFFINITY_MASK": mask} if mask else {}
    )
    given = replace(given, workload=given.model.workload.digest)
    graphics = [GraphicsUse(address, "i915", spent, 0) for address, spent in zip(ADDRESSES, used, strict=False)]
    trial = replace(make_run().trials[0], use=device_use({OPENCL: 4}, several(), [graphics]))
    run = replace(make_run(), workload=given.workload, trials=(trial,))
    found = [one for one in ask(replace(given, run=run)).explanations if one.cause is Cause.IDLE_GPU]
    assert bool(found) is said
    for one in found:
        assert "asks for 2 GPUs" in one.message
        assert "0000:04:00.0: not seen to work" in one.message


def test_the_supervisor_s_word_is_read_with_suspicion() -> None:
    text = b'{"status": 0, "graphics": [["0000:03:00.0", "xe", 1.5, 3145728], ["x", "y"], ["x", "y", "1", 2], 7]}'
    seen = read_seen(text)
    assert seen is not None
    assert seen.graphics == (B580,)
