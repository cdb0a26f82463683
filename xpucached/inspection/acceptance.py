"""Which code a device takes as it is: the rules of Intel's GPU driver, compared with the driver itself.

``tests/flow/test_inspect_driver.py`` has the driver load real archives on simulated GPUs, and compares each answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached.domain.inspection import Availability, CodeForm
from xpucached.host.gpu_devices import known
from xpucached.inspection.device_code import GENERIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xpucached.host.gpu_devices import Gpu
    from xpucached.inspection.device_code import DeviceCode, GpuProgram

_TAKES: Final[Mapping[str, frozenset[str]]] = {
    "acm-g11": frozenset({"acm-g10"}),
    "acm-g12": frozenset({"acm-g10"}),
    "bmg-g21": frozenset({"bmg-g21"}),
    "bmg-g31": frozenset({"bmg-g21"}),
    "lnl-m": frozenset({"bmg-g21"}),
    "mtl-h": frozenset({"mtl-u"}),
    "nvl-s": frozenset({"ptl-h"}),
    "nvl-u": frozenset({"ptl-h"}),
    "ptl-u": frozenset({"ptl-h"}),
    "wcl": frozenset({"ptl-h"}),
}
"""Whose code an architecture takes besides that for its own version."""
_ALL_STEPPINGS: Final = frozenset({"bmg-g21"})
"""Of these the code for any stepping is taken so; of others only that for the last one."""

_FAMILIES: Final[Mapping[str, tuple[int, int]]] = {
    "tgllp": (29, 0x12),
    "rkl": (30, 0x12),
    "adl-s": (31, 0x12),
    "adl-p": (32, 0x12),
    "adl-n": (33, 0x12),
    "dg1": (1210, 0x12),
    "acm-g10": (1270, 0xC07),
    "acm-g11": (1270, 0xC07),
    "acm-g12": (1270, 0xC07),
    "pvc": (1271, 0xC08),
    "pvc-sdv": (1271, 0xC08),
    "pvc-vg": (1271, 0xC08),
    "mtl-u": (1272, 0xC07),
    "mtl-h": (1272, 0xC07),
}
"""Numbers of product family and core: what programs of 2022 name instead of an IP version."""


class GpuRules(Struct, frozen=True):
    """What the driver compares of a GPU."""

    architecture: str
    product: str  #: the driver's short name of the family: ``dg2``
    version: str  #: the GPU's IP version: ``20.1.0``
    others: frozenset[int]  #: packed IP versions of other GPUs, whose code this one takes


def packed(version: str) -> int:
    """Return an IP version as programs name it: ten bits architecture, eight release, six revision."""
    major, minor, revision = (int(part) for part in version.split("."))
    return major << 22 | minor << 14 | revision


def rules(gpu: Gpu, version: str = "") -> GpuRules:
    """Return what the driver compares of a GPU; ``version`` is what it says itself, else the usual one is taken."""
    usual = gpu.versions[0] if gpu.versions else "0.0.0"
    others: set[int] = set()
    if version in {"", usual}:
        for base in _TAKES.get(gpu.architecture, ()):
            row = next(one for one in known().values() if one.architecture == base)
            others.update(map(packed, row.versions if base in _ALL_STEPPINGS else row.versions[:1]))
    return GpuRules(gpu.architecture, gpu.product.lower(), version or usual, frozenset(others))


def gpu_availability(code: DeviceCode, gpu: GpuRules) -> Availability:
    """Return what becomes of an image on a GPU: taken as it is, compiled by the driver, or refused."""
    match code.form:
        case CodeForm.SPIRV:
            return Availability.COMPILED
        case CodeForm.CPU | CodeForm.OTHER:
            return Availability.ABSENT
        case CodeForm.NATIVE:
            return _unpacked(_matching(code.programs, gpu) if code.archive else code.programs, gpu)
        case _:
            return Availability.UNKNOWN


def cpu_availability(code: DeviceCode, target: str) -> Availability:
    """Return what becomes of an image on a processor."""
    if code.form is CodeForm.CPU:
        return Availability.READY
    if code.form is CodeForm.SPIRV:
        return Availability.COMPILED
    if code.form in {CodeForm.NATIVE, CodeForm.PATCH_TOKENS, CodeForm.OTHER} or target.endswith("_gen"):
        return Availability.ABSENT
    return Availability.UNKNOWN


def _matching(members: tuple[GpuProgram, ...], gpu: GpuRules) -> Iterable[GpuProgram]:
    """Yield the members that the driver looks at: by their name, and of each name the first."""
    major, minor, _ = gpu.version.split(".")
    for begin in (f"64.{gpu.version}", f"64.{major}.{minor}", f"64.{gpu.product}", GENERIC):
        found = next((one for one in members if one.name.startswith(begin)), None)
        if found is not None:
            yield found


def _unpacked(programs: Iterable[GpuProgram], gpu: GpuRules) -> Availability:
    compiled = unknown = False
    for one in programs:
        if not one.judged:
            unknown = True
            continue
        taken = None if one.empty else _taken(one, gpu)
        if taken:
            return Availability.READY
        unknown = unknown or (taken is None and not one.empty)
        compiled = compiled or one.source
    if unknown:
        return Availability.UNKNOWN
    return Availability.COMPILED if compiled else Availability.ABSENT


def _taken(one: GpuProgram, gpu: GpuRules) -> bool | None:
    """Return whether the driver takes a program as it is; None if that cannot be told."""
    if one.ip is not None:
        return one.ip == packed(gpu.version) or one.ip in gpu.others
    family = _FAMILIES.get(gpu.architecture)
    if one.family is None and one.core is None:
        return False
    if family is not None and (one.family, one.core) != family:
        return False
    # It may be meant for some steppings only.
    return None
