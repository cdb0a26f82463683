"""What `inspect` says, against those who know: the GPU driver, the SYCL runtime, and a daemon with a warm model."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.device_images import answers, archives
from xpucached.domain.inspection import Availability
from xpucached.host.gpu_devices import known
from xpucached.host.simulated_gpu import SHAPES
from xpucached.inspection import containers, devices
from xpucached.inspection.acceptance import gpu_availability, rules
from xpucached.inspection.content import OpenFile
from xpucached.inspection.device_code import judge
from xpucached.inspection.report import Inspector
from xpucached.kinds import images
from xpucached.kinds.sycl import entry_format

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.runtimes import Runtime, SimulatedGpu

pytestmark = pytest.mark.runtime

ASKED: Final = tuple(SHAPES) if os.environ.get("XPUCACHED_ALL_GPUS") else ("acm-g12", "bmg-g21", "lnl-m", "wcl")
"""With ``XPUCACHED_ALL_GPUS`` set, all of them are asked."""


@pytest.mark.parametrize("device", ASKED)
def test_the_real_driver_takes_what_we_say(gpu: SimulatedGpu, tmp_path: Path, device: str) -> None:
    rule = rules(next(one for one in known().values() if one.architecture == device))
    names = sorted({name for _, name, _ in answers()})
    for name in names:
        (tmp_path / name).write_bytes(archives()[name])
    one = replace(gpu, device=device, shape=SHAPES[device])
    started = one.start([("native", tmp_path / name, "") for name in names], tmp_path / "store")
    said = [int(line) == 0 for line in started.communicate(timeout=240)[0].splitlines()]

    # Without its source an archive is taken or refused; with it, it may be compiled as well.
    availabilities = {name: gpu_availability(judge(archives()[name]), rule) for name in names}
    told = [
        availabilities[name] is Availability.READY
        or (availabilities[name] is Availability.COMPILED and name.endswith(".ir"))
        for name in names
    ]
    assert (len(said), said) == (44, told)


def test_a_runtime_makes_entries_of_nothing_else_than_what_we_name(
    runtime: Callable[[str], Runtime], filled: Path
) -> None:
    real = runtime("rt2025.2")
    used: dict[bytes, float] = {}
    for path in sorted(filled.rglob("*.src")):
        data = path.read_bytes()
        used.update((one.name.encode(), 1.0) for one in images.kernels(entry_format.source(data, len(data)).image))
    packages = [next(real.lib.glob(f"python3*/site-packages/{name}")) for name in ("dpctl",)]
    value = Inspector(devices.asked(["cpu"]), used=used).inspect("dpctl", packages)

    assert len(used) >= 9
    assert sum(one.used or 0 for one in value.files) == len(used)
    assert [(one.ready, one.absent, one.unknown) for one in value.totals] == [(0, 0, 0)]
    for one in value.files:
        with OpenFile(packages[0] / one.name) as opened:
            assert len(containers.images(opened.content)) == one.images
