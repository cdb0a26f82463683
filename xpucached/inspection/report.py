"""What a file, a wheel or an environment brings, and what becomes of it on each device."""

from __future__ import annotations

import functools
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from xpucached.domain.inspection import Availability, CodeForm, InspectedFile, Inspection, Outlook
from xpucached.inspection import containers, device_code, programs
from xpucached.inspection.acceptance import cpu_availability, gpu_availability
from xpucached.inspection.content import Content, Unreadable
from xpucached.inspection.places import COPIES, SearchedFiles
from xpucached.printing import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from xpucached.inspection.device_code import DeviceCode
    from xpucached.inspection.devices import AskedDevice
    from xpucached.inspection.programs import FoundImage

_TWO_BUILDS: Final = {
    "torch": "torch",
    "intel_extension_for_pytorch": "intel-extension-for-pytorch",
    "llama_cpp_python": "llama-cpp-python",
    "bitsandbytes": "bitsandbytes",
    "vllm": "vllm",
}
"""Packages of which there are builds for GPUs and others for processors only."""


class Inspector:
    """Looks through one target for some devices.

    ``rate`` is how many seconds a byte of SPIR-V is compiled, as measured on this host; None if nobody did.  ``used``
    are the kernels that a model has compiled, with how much that was of each, and ``kept_in`` the caches that keep what
    is compiled.  After ``limit`` seconds no further file is read, which a note says.
    """

    def __init__(
        self,
        devices: Sequence[AskedDevice],
        *,
        rate: float | None = None,
        used: Mapping[bytes, float] | None = None,
        kept_in: tuple[str, ...] = (),
        limit: float | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._devices = devices
        self._rate = rate
        self._used = used
        self._kept_in = kept_in
        self._limit = limit
        self._tell = tell
        self._seen: set[tuple[int, int]] = set()

    def inspect(self, target: str, paths: Sequence[Path]) -> Inspection:
        """Look through files and folders.  Raises `NotFound` for one that cannot be read at all."""
        began = time.monotonic()
        place = SearchedFiles(self._tell)
        files: list[InspectedFile] = []
        for path in paths:
            for found in place.contents(path):
                if self._limit is not None and time.monotonic() - began > self._limit:
                    place.notes.append(
                        f"after {self._limit:.0f} s nothing more was read: xpucachectl inspect {quoted(target)}"
                    )
                    break
                try:
                    one = self._file(found.name, found.content, place)
                    found.check()
                except Unreadable as error:
                    place.note(found.name, error)
                else:
                    files += [one] if one is not None else []
        return Inspection(
            target,
            tuple(one.told for one in self._devices),
            tuple(sorted(files, key=lambda one: (-one.kernels, one.name))),
            tuple(_sum([one.outlooks[index] for one in files], device) for index, device in enumerate(self._devices)),
            place.opened,
            tuple(sorted(place.skipped.items())),
            (*_builds(place, files), *place.notes),
            round(time.monotonic() - began, 3),
            place.unread,
            self._kept_in,
            tuple(map(str, paths)),
        )

    def _file(self, name: str, content: Content, place: SearchedFiles) -> InspectedFile | None:
        found = containers.images(content)
        if not found:
            if what := containers.leftover(content):
                place.skipped[what] += 1
            return None
        distinct = {(one.offset, one.size) for one in found}
        if sum(size for _, size in distinct) > _OVERLAP * content.size:
            raise Unreadable("its images overlap: they would be read over and over")
        # The table of a library's images, with their places and the names of their kernels, tells copies of it.
        if any(one.kernels for one in found):
            identity = (content.size, hash(found))
            if identity in self._seen:
                place.skipped[COPIES] += 1
                return None
            self._seen.add(identity)
        codes = _codes(content, found)
        # One that stands there many times counts once: each may name many kernels.
        unique = dict(zip(found, codes, strict=True))
        names = [one.kernels or code.kernels for one, code in unique.items()]
        kernels = {kernel for each in names for kernel in each}
        wrong = Counter(one.wrong for one in codes if one.wrong)
        return InspectedFile(
            name,
            len(found),
            len(kernels),
            tuple(sorted(Counter(str(one.form) for one in codes).items())),
            tuple(self._outlook(device, unique, names) for device in self._devices),
            tuple(f"{count} images: {why}" for why, count in wrong.most_common(3)),
            None if self._used is None else len(kernels & self._used.keys()),
            self._share(kernels),
        )

    def _share(self, kernels: set[bytes]) -> float | None:
        whole = sum(self._used.values()) if self._used else 0
        return sum(self._used[one] for one in kernels & self._used.keys()) / whole if self._used and whole else None

    def _outlook(
        self,
        device: AskedDevice,
        images: Mapping[FoundImage, DeviceCode],
        names: Sequence[tuple[bytes, ...]],
    ) -> Outlook:
        availabilities = [
            cpu_availability(code, one.target) if device.rules is None else gpu_availability(code, device.rules)
            for one, code in images.items()
        ]
        seen: dict[bytes, int] = {}
        for availability, code, kernels in zip(availabilities, images.values(), names, strict=True):
            refused = device.rules is not None and availability is Availability.ABSENT and code.form is CodeForm.NATIVE
            bit = _BITS[_REFUSED if refused else availability]
            for kernel in kernels:
                seen[kernel] = seen.get(kernel, 0) | bit
        counted = Counter(combined(one) for one in seen.values())
        size = sum(
            code.size
            for availability, code, kernels in zip(availabilities, images.values(), names, strict=True)
            if availability is Availability.COMPILED
            and any(combined(seen[kernel]) is Availability.COMPILED for kernel in kernels)
        )
        return Outlook(
            device.told.architecture,
            counted[Availability.READY],
            counted[Availability.COMPILED],
            counted[Availability.ABSENT],
            counted[Availability.UNKNOWN],
            sum(disputed(one) for one in seen.values()),
            size,
            None if self._rate is None else size * self._rate,
        )


_OVERLAP: Final = 2
"""So many times the size of a file its images may have together; those that are the same count once."""

_EXPANSION: Final = 100
"""So many times the size of a file what is read of it may have, unpacked; real images have about ten times theirs."""
_FEW: Final = 64 << 20
"""So many bytes it may have in any case."""


def _codes(content: Content, found: Sequence[FoundImage]) -> list[DeviceCode]:
    """Read the images of a file, each once.  Raises `Unreadable` where that would take time or memory without end."""
    read: dict[tuple[int, int, str, bool], DeviceCode] = {}
    size = kernels = names = 0
    for one in found:
        key = (one.offset, one.size, one.target, bool(one.kernels))
        if key in read:
            continue
        code = read[key] = device_code.read(content, one.offset, one.size, target=one.target, named=bool(one.kernels))
        size, kernels, names = size + code.size, kernels + len(code.kernels), names + sum(map(len, code.kernels))
        size += code.taken
        if size > _EXPANSION * content.size + _FEW:
            raise Unreadable("its images would be read over and over, or unpacked without end")
        if kernels > programs.MOST_KERNELS or names > programs.MOST_NAMES:
            raise Unreadable("its images name more kernels than any program's")
    return [read[one.offset, one.size, one.target, bool(one.kernels)] for one in found]


_REFUSED: Final = "refused"
_BITS: Final = {
    Availability.READY: 1,
    Availability.COMPILED: 2,
    Availability.UNKNOWN: 4,
    _REFUSED: 8,
    Availability.ABSENT: 16,
}


@functools.cache
def combined(seen: int) -> Availability:
    """Return what becomes of a kernel that several images hold.

    A runtime prefers an image that is compiled already, and does not know whether the driver takes it: what happens
    where the driver refuses that one, and another could be compiled, depends on the runtime.
    """
    if seen & _BITS[Availability.READY]:
        return Availability.READY
    if seen & _BITS[Availability.UNKNOWN] or disputed(seen):
        return Availability.UNKNOWN
    return Availability.COMPILED if seen & _BITS[Availability.COMPILED] else Availability.ABSENT


def disputed(seen: int) -> bool:
    """Return whether what becomes of a kernel depends on the runtime: see `combined`."""
    return bool(seen & _BITS[_REFUSED] and seen & _BITS[Availability.COMPILED] and not seen & _BITS[Availability.READY])


def _sum(outlooks: Sequence[Outlook], device: AskedDevice) -> Outlook:
    seconds = [one.seconds for one in outlooks if one.seconds is not None]
    return Outlook(
        device.told.architecture,
        sum(one.ready for one in outlooks),
        sum(one.compiled for one in outlooks),
        sum(one.absent for one in outlooks),
        sum(one.unknown for one in outlooks),
        sum(one.disputed for one in outlooks),
        sum(one.compile_size for one in outlooks),
        sum(seconds) if seconds else None,
    )


def _builds(place: SearchedFiles, files: Sequence[InspectedFile]) -> list[str]:
    """Say which packages are there in a build without code for GPUs."""
    folders = {part for one in files if one.kernels for part in one.name.split("/")}
    return [
        f"{title} {place.packages[name]} is a build for processors: it brings no code for a GPU"
        for name, title in _TWO_BUILDS.items()
        if name in place.packages and not folders & {name, f"{name}.libs", "llama_cpp"}
    ]
