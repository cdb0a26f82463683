"""Stores as a real runtime leaves them, of any size, quickly; and as many files where ccache keeps its results.

Seeded: the same number always gives the same tree.  Sizes are drawn from a distribution that has the mean of 178 real
entries (11.5 kB a file); headers, hashes and times are what the runtime would write.  A tree that is there is used
again.
"""

from __future__ import annotations

import os
import random
import struct
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Final

from tests.support.builders import framed, native, spirv
from xpucached.kinds.sycl import entry_format

if TYPE_CHECKING:
    from pathlib import Path

DAY: Final = 86400.0
LARGE: Final = 500_000
"""From here on files have a quarter of the size: a million entries would fill 44 GB."""

_IDENTITIES: Final = tuple(
    f"Intel(R) OpenCL Graphics/Intel(R) Arc(TM) B580 Graphics/OpenCL 3.0 NEO /25.{minor}.33578".encode()
    for minor in (18, 13, 9)
)
_SHARES: Final = (0.8, 0.15, 0.05)
_NOTHING: Final = str(entry_format.string_hash(b""))
# What stands before the first function of a module (names, decorations, types), and where that one begins: readers
# that look for kernels walk as far.
_BEFORE: Final = struct.pack("<4I", 4 << 16 | 5, 1, 0x6E616D65, 0) * 60
_FUNCTION: Final = struct.pack("<5I", 5 << 16 | 54, 1, 2, 0, 3)
_NOP: Final = struct.pack("<I", 1 << 16)


def store(root: Path, entries: int) -> Path:
    """Return a SYCL store with so many entries, every second of which was last used 40 days ago."""
    done = root.with_name(root.name + ".done")
    if not done.exists():
        root.mkdir(parents=True, exist_ok=True)
        for identity in _IDENTITIES:
            (root / str(entry_format.string_hash(identity))).mkdir(exist_ok=True)
        workers = min(4, os.cpu_count() or 1)
        edges = [entries * one // workers for one in range(workers + 1)]
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(_fill, [root] * workers, edges, edges[1:], [0.25 if entries >= LARGE else 1.0] * workers))
        done.touch()
    return root


def _fill(root: Path, first: int, last: int, scale: float) -> None:
    now = int(time.time())
    for number in range(first, last):
        chance = random.Random(number)  # noqa: S311 - not a secret
        identity = chance.choices(_IDENTITIES, _SHARES)[0]
        image = spirv(f"_ZTS{number:07}")
        image += _BEFORE + _FUNCTION + _NOP * (int(chance.lognormvariate(9.0, 0.8) * scale) // 4)
        binary = native(int(chance.lognormvariate(9.0, 0.8) * scale))
        leaf = os.fspath(root / str(entry_format.string_hash(identity)) / str(entry_format.string_hash(image)))
        for part in ("", _NOTHING, _NOTHING):
            leaf = os.path.join(leaf, part) if part else leaf
            os.mkdir(leaf)
        moment = now - int((40 if number % 2 else 1) * DAY)
        for name, content in (
            ("0.bin", struct.pack("<Q", 1) + framed(binary)),
            ("0.src", framed(identity, b"", b"", image)),
            ("0_access_time.txt", b"%d" % (moment * 10**9)),
        ):
            descriptor = os.open(os.path.join(leaf, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(descriptor, content)
            os.utime(descriptor, (moment, moment))
            os.close(descriptor)


def ccache(root: Path, entries: int) -> Path:
    """Write as many files where ccache keeps its results; every second entry is 40 days old."""
    if root.exists():
        return root
    now = time.time()
    for number in range(entries):
        name = f"{number * 2654435761 % (1 << 32):08x}"
        folder = root / name[0] / name[1]
        folder.mkdir(parents=True, exist_ok=True)
        moment = now - (40 if number % 2 else 1) * DAY
        for suffix, size in (("R", 800), ("M", 300), ("T", 19)):
            path = folder / f"{name[2:]}{'0' * 20}{suffix}"
            path.write_bytes(bytes(size))
            os.utime(path, (moment, moment))
    return root


def copy(of: Path, to: Path) -> Path:
    """Return a store like another one, with its times: written files again, as copying would be use."""
    for place, _, files in os.walk(of):
        target = os.path.join(to, os.path.relpath(place, of))
        os.makedirs(target, exist_ok=True)
        for name in files:
            source = os.path.join(place, name)
            status = os.stat(source)
            with open(source, "rb") as old, open(os.path.join(target, name), "wb", buffering=0) as new:
                new.write(old.read())
                os.utime(new.fileno(), ns=(status.st_mtime_ns, status.st_mtime_ns))
    return to


def count(root: Path) -> int:
    """Count the files that are left where programs look."""
    return sum(len(files) for place, _, files in os.walk(root) if ".xpucached" not in place)
