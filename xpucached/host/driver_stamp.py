"""Observe: by files alone, without a driver loaded or a device opened, whether the driver may be another one."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import mounts
from xpucached.host.digests import told_of_file
from xpucached.host.drivers import driver_files, stamp
from xpucached.host.gpu_devices import gpus, kernel
from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xpucached.host.roots import HostRoots

_FOLDERS: Final = (Path("/usr/lib/firmware"), Path("/lib/firmware"))
_GPU: Final = ("i915", "xe", "updates/i915", "updates/xe")
_MOST: Final = 4096


def fingerprint(variables: Mapping[str, str], places: HostRoots = HERE, folders: tuple[Path, ...] = _FOLDERS) -> str:
    """Give 16 hex digits that change with a driver's or compiler's file, the kernel, its firmware, or a GPU that comes.

    It may change although nothing else does for programs; who acts on it asks the driver.  Raises OSError where it
    cannot be told now.
    """
    digest = hashlib.blake2b(stamp(driver_files(variables, places), kernel(places)).encode(), digest_size=8)
    for line in (*_firmware(folders), *_cards(places)):
        digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def _cards(places: HostRoots) -> Iterator[str]:
    for one in gpus(places):
        yield f"{one.pci_address} {one.pci_id} {one.kernel_driver}"


def _firmware(folders: tuple[Path, ...]) -> list[str]:
    """Describe the GPUs' firmware files: names, sizes, times.  Where /lib is a link to /usr/lib each is met once."""
    found: dict[str, str] = {}
    for folder in folders:
        for name in _GPU:
            place = Path(mounts.real(folder / name))
            try:
                with os.scandir(place) as entries:
                    for entry, _ in zip(entries, range(_MOST), strict=False):
                        found[entry.path] = entry.path
                        # A link to nothing hides none of the others.
                        with contextlib.suppress(OSError):
                            status = entry.stat()
                            found[entry.path] += f" {status.st_size} {status.st_mtime_ns}"
            except OSError as error:
                told_of_file(error)
    return sorted(found.values())
