"""A model that uses several GPUs, a process each, with the real driver on simulated ones: each is proven by itself."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace as changed

from tests.flow.test_driver_cache import GpuHouse
from xpucached.domain.host import Device, DriverAnswer, Host
from xpucached.domain.models import Outcome
from xpucached.domain.names import Architecture
from xpucached.host.simulated_gpu import pretend
from xpucached.kinds.table import with_targets

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.runtimes import SimulatedGpu
    from xpucached.domain.models import Run

pytestmark = pytest.mark.runtime

CARDS: Final = {"0x56a0": "acm-g10", "0xe20b": "bmg-g21"}


class SeveralGpus(GpuHouse):
    """The same on a host with these cards, one after the other."""

    cards: tuple[str, ...] = ()

    def host(self) -> Host:
        """Return the host with them, each at an address of its own."""
        devices = []
        for number, card in enumerate(self.cards):
            variables = pretend(card)
            name = variables["OverrideDeviceName"]
            answer = DriverAnswer("Intel(R) oneAPI Unified Runtime over Level-Zero", name, "", "1.15.39122")
            address, pci_id = f"0000:0{number + 3}:00.0", variables["ForceDeviceId"]
            devices.append(Device(name, Architecture(CARDS[card]), address, pci_id, answers=(answer,)))
        return with_targets(changed(super().host(), devices=tuple(devices)))

    def proven(self, *ranks: dict[str, str]) -> Run:
        """Warm a model that starts a process for each of these variables; give the run."""
        one = self.gpu.builder([("ze", self.place / "image.spv", "")])
        processes = [shlex.join(["env", *(f"{name}={text}" for name, text in each.items()), *one]) for each in ranks]
        runs: list[Run] = []

        async def work() -> None:
            runs.append(await self.warmed())

        self.live(work, command=("/bin/sh", "-c", " && ".join(processes)))
        return runs[0]


@pytest.fixture
def several(short_dir: Path, gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> SeveralGpus:
    return SeveralGpus(short_dir, replace(gpu), monkeypatch)


def test_gpus_of_two_sorts_have_kernels_of_their_own(several: SeveralGpus) -> None:
    several.cards = ("0x56a0", "0xe20b")
    run = several.proven(*(dict(pretend(card)) for card in several.cards))

    assert (run.outcome, [(one.created, one.used) for one in run.passes]) == (Outcome.WARMED, [(2, 0), (0, 2)])
    (trial,) = run.trials
    assert trial.use is not None
    assert [(one.architecture, one.entries, one.alike, one.used) for one in trial.use.gpus] == [
        ("acm-g10", 1, 1, True),
        ("bmg-g21", 1, 1, True),
    ]


def test_a_gpu_that_had_no_kernel_is_not_said_to_be_used(several: SeveralGpus) -> None:
    several.cards = ("0x56a0", "0xe20b")
    run = several.proven(dict(pretend("0xe20b")))

    assert run.outcome is Outcome.WARMED
    assert run.trials[0].use is not None
    assert [(one.entries, one.used) for one in run.trials[0].use.gpus] == [(0, None), (1, True)]


def test_kernels_do_not_tell_two_gpus_of_a_sort_apart(several: SeveralGpus) -> None:
    several.cards = ("0xe20b", "0xe20b")
    two = {**pretend("0xe20b"), "CreateMultipleRootDevices": "2"}
    run = several.proven(*({**two, "ZE_AFFINITY_MASK": number} for number in ("0", "1")))

    # The second process finds what the first one compiled.
    assert (run.outcome, [one.created for one in run.passes]) == (Outcome.WARMED, [1, 0])
    assert run.trials[0].use is not None
    assert run.trials[0].use.gpu_entries == 1
    # Nothing here counts the work of engines, so it is not known.
    assert [(one.entries, one.alike, one.used) for one in run.trials[0].use.gpus] == [(1, 2, None), (1, 2, None)]
