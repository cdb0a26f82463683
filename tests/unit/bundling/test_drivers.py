"""Which instructions a driver compiles for: told by Level Zero of a GPU, and never by the version of an interface."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.kinds.test_neo_recorder import BY_ZERO, CARD, HOST, OPENCL, ZERO
from xpucached.bundling.drivers import UsedDriver
from xpucached.domain.host import Device, DriverAnswer, OtherDriver
from xpucached.host import compiler_files

OTHER = replace(ZERO, version="20.2.0")
CPU = DriverAnswer("Intel(R) OpenCL", "cpu", "OpenCL 3.0 (Build 0)", "2025.20")


def isa(*devices: Device, of: str = "B") -> str:
    target = replace(BY_ZERO, device=of)
    return UsedDriver(OtherDriver((target,), "stamp", {}), replace(HOST, devices=devices), {}).isa(target)


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        ((ZERO, OPENCL), "gpu:20.1.0"),
        ((OPENCL, ZERO), "gpu:20.1.0"),
        ((ZERO, ZERO), "gpu:20.1.0"),
        ((OPENCL,), ""),  # nobody says it
        ((ZERO, OTHER), ""),
        ((), ""),
    ],
)
def test_the_instructions_of_a_gpu_are_known_from_level_zero_alone(
    answers: tuple[DriverAnswer, ...], known: str
) -> None:
    assert isa(replace(CARD, answers=answers)) == known


def test_two_cards_of_one_name_count_if_they_are_alike() -> None:
    alike, other = replace(CARD, answers=(OPENCL, ZERO)), replace(CARD, answers=(OTHER,))
    assert isa(alike, alike) == "gpu:20.1.0"
    assert isa(alike, other) == ""
    assert isa(alike, replace(other, answers=(replace(OTHER, device="C"),))) == "gpu:20.1.0"


def test_a_processor_tells_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_files, "cpu_isa", lambda: "cpu:1")
    processor = replace(CARD, answers=(CPU,))
    assert isa(processor, of="cpu") == "cpu:1"
    assert isa(processor, of="another") == ""
