"""The GPU driver of 2022, which keeps nothing, and today's: a model goes from one to the other, with the real ones."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace as changed
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.flow.test_driver_cache import JOBS
from tests.flow.test_driver_replay import ReplayHouse
from xpucached.domain.host import Host, OtherDriver
from xpucached.domain.models import Outcome, Warmth
from xpucached.host import other_driver
from xpucached.kinds.table import with_targets
from xpucached.service import replay

if TYPE_CHECKING:
    from tests.support.runtimes import SimulatedGpu
    from xpucached.service.context import Context

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(600)]

TEXTS: Final = JOBS[:2]

_OP_CONSTANT: Final = 4 << 16 | 43
_OP_SPEC_CONSTANT: Final = 4 << 16 | 50
_OP_DECORATE: Final = 71
_SPEC_ID: Final = 1


class UpgradeHouse(ReplayHouse):
    """The same where the driver lies behind a link, as if a package were replaced; what it says it is asked for."""

    def __init__(self, place: Path, older: SimulatedGpu, newer: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        self.roots = {"older": older.root, "newer": newer.root}
        self.link = place / "driver"
        self.link.symlink_to(newer.root)
        gpu = changed(newer, root=self.link, device="acm-g10", shape="8x4x16")
        super().__init__(place, gpu, monkeypatch)
        self.gpu = gpu
        self.asked: dict[str, OtherDriver] = {}
        monkeypatch.setattr(replay, "drivers_in_use", self.in_use)

    def other(self) -> OtherDriver:
        """Return what the driver that lies there says of itself."""
        root = self.link.resolve()
        if root.name not in self.asked:
            scratch = self.place / root.name
            scratch.mkdir()
            self.asked[root.name] = other_driver.unpacked(root, "acm-g10", {}, 60.0, scratch)
        return self.asked[root.name]

    def host(self) -> Host:
        other = self.other()
        return with_targets(Host(datetime.now(UTC), "boot", "6", other.stamp, other.devices, other.driver))

    def in_use(self, context: Context) -> tuple[OtherDriver, ...]:
        host = context.present
        other = self.other()
        return (
            OtherDriver(
                *(host.environments, host.stamp, other.variables, other.command),
                devices=host.devices,
                driver=host.driver,
            ),
        )

    def install(self, which: str) -> None:
        """Replace the driver, and have that noticed."""
        self.link.unlink()
        self.link.symlink_to(self.roots[which])
        self.surveyed()


@pytest.fixture
def house(short_dir: Path, older_gpu: SimulatedGpu, gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> UpgradeHouse:
    words = [*older_gpu.command(), sys.executable, "-I", "-c", ""]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("this Python does not run with the C library of the older driver")
    return UpgradeHouse(short_dir, older_gpu, gpu, monkeypatch)


def test_a_driver_that_keeps_nothing_makes_nobody_warm_and_is_named(house: UpgradeHouse) -> None:
    async def work() -> None:
        run = await house.warmed()
        assert (run.outcome, run.passes[-1].created) == (Outcome.WARMED, 0), run
        assert house.host().problems == ()
        made = house.content()

        house.install("older")
        (problem,) = house.host().problems
        assert (problem.code, "libigdrcl.so" in problem.message) == ("no-driver-cache", True)
        assert {one.kind for one in house.host().environments} == {"sycl"}
        assert (await house.status()).warmth is Warmth.COLD
        # Nothing is compiled that could not be kept.
        report = await house.replayed()
        assert (report.plan.rebuild, report.failed) == ((), 0)
        run = await house.warmed()
        assert run.outcome is Outcome.UNPROVEN
        assert "the GPU driver is too old to keep what it compiles" in run.detail
        assert (await house.status()).warmth is not Warmth.WARM
        assert house.content() == made

        house.install("newer")
        report = await house.replayed()
        assert (report.plan.rebuild, report.plan.covered) == ((), len(made))
        run = await house.warmed()
        assert (run.outcome, [(one.created, one.used) for one in run.passes]) == (Outcome.WARMED, [(0, len(made))])
        assert (await house.status()).warmth is Warmth.WARM

    house.live(work, *TEXTS)


def test_a_model_that_ran_with_a_driver_that_keeps_nothing_has_nothing_to_be_replayed(house: UpgradeHouse) -> None:
    async def work() -> None:
        house.install("older")
        run = await house.warmed()
        assert run.outcome is Outcome.UNCACHED
        assert "the GPU driver is too old to keep what it compiles" in run.detail
        assert (house.content(), house.traces()) == ({}, [])

        house.install("newer")
        assert (await house.status()).warmth is not Warmth.WARM
        assert (await house.replayed()).plan.rebuild == ()
        run = await house.warmed(force=True)
        assert (run.outcome, [(one.created, one.used) for one in run.passes]) == (Outcome.WARMED, [(2, 0), (0, 2)])

    house.live(work, *TEXTS)


def test_what_the_older_driver_keeps_if_it_is_asked_to_holds_nothing_to_compile_again(
    house: UpgradeHouse, tmp_path: Path
) -> None:
    """And it takes no notice of specialization constants: a program is given what was compiled with others."""
    house.link.unlink()
    house.link.symlink_to(house.roots["older"])
    content = house.place.joinpath("image.spv").read_bytes()
    special = house.place / "special.spv"
    special.write_bytes(specialized(content))

    def kept(name: str, *jobs: tuple[str, str]) -> dict[str, bytes]:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        for how, file in jobs:
            words = house.gpu.builder([(how, house.place / file, "")])
            asking = {"HOME": str(tmp_path), "cl_cache_dir": str(root), "l0_cache_dir": str(root)}
            subprocess.run(words, env={**house.gpu.variables, **asking}, cwd=tmp_path, check=True, capture_output=True)
        return {path.name: path.read_bytes() for path in root.iterdir()}

    for data in kept("all", ("text", "source.cl"), ("il", "image.spv"), ("ze", "image.spv")).values():
        assert data.startswith(b"CTNI")
        assert content[:4] not in data
    for interface in ("il", "ze"):
        three, five = (f"{interface} 7={number:02x}000000" for number in (3, 5))
        ((name, with_three),) = kept("3", (three, "special.spv")).items()
        assert kept("5", (five, "special.spv"))[name] != with_three
        assert kept(interface, (three, "special.spv"), (five, "special.spv")) == {name: with_three}
        for place in ("3", "5"):
            (tmp_path / place / name).unlink()


def specialized(image: bytes) -> bytes:
    """Make the constant eight in this SPIR-V one that can be specialized, with the number seven."""
    words = struct.unpack(f"<{len(image) // 4}I", image)
    instructions: list[tuple[int, ...]] = []
    at = 5
    while at < len(words):
        instructions.append(words[at : at + (words[at] >> 16)])
        at += words[at] >> 16
    number, eight = next(
        (number, one) for number, one in enumerate(instructions) if one[0] == _OP_CONSTANT and one[3] == 8
    )
    instructions[number] = (_OP_SPEC_CONSTANT, *eight[1:])
    first = next(number for number, one in enumerate(instructions) if one[0] & 0xFFFF == _OP_DECORATE)
    instructions.insert(first, (4 << 16 | _OP_DECORATE, eight[2], _SPEC_ID, 7))
    whole = [*words[:5], *(word for one in instructions for word in one)]
    return struct.pack(f"<{len(whole)}I", *whole)
