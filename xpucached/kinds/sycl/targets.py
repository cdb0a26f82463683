"""What a SYCL entry is valid for: the four strings of a driver, which stand in its device id string."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from xpucached.domain.host import DriverAnswer
from xpucached.domain.names import Architecture, KindName
from xpucached.domain.targets import Target
from xpucached.host import gpu_devices
from xpucached.kinds.sycl import entry_format

if TYPE_CHECKING:
    from xpucached.domain.host import Host

NAME: Final = KindName("sycl")
_VERSION: Final = "version"


def target_of(answer: DriverAnswer) -> Target:
    """Return what is valid for a device of which a driver says this."""
    return Target(NAME, answer.platform, answer.device, answer.driver, ((_VERSION, answer.version),))


def answer_of(target: Target) -> DriverAnswer:
    """Return what the driver says whose entries are for this."""
    return DriverAnswer(target.family, target.device, dict(target.facts).get(_VERSION, ""), target.toolchain)


def parse(identity: str) -> Target | None:
    """Take a device id string apart: from the right, because a device's name may hold a slash."""
    parts = identity.rsplit("/", 2)
    if len(parts) != 3 or "/" not in parts[0]:  # noqa: PLR2004 - platform/device, version, driver
        return None
    platform, device = parts[0].split("/", 1)
    return target_of(DriverAnswer(platform, device, parts[1], parts[2]))


def identity(target: Target) -> str:
    """Return the runtime's device id string, as it stands in an entry."""
    answer = answer_of(target)
    return f"{answer.platform}/{answer.device}/{answer.version}/{answer.driver}"


@lru_cache(maxsize=256)
def device_field(target: Target) -> bytes:
    """Return the same as an entry has it."""
    return entry_format.data(identity(target))


def targets(host: Host) -> tuple[Target, ...]:
    """Return what entries would be valid for now; see `Scanner.targets`."""
    return tuple(map(target_of, host.answers))


def architecture(target: Target) -> Architecture:
    """Return the generation of a target's device; see `Scanner.architecture`."""
    return gpu_devices.architecture(answer_of(target))
