"""Observe: what decides about compiled code: the driver's and compiler's libraries, by content, and the CPU's flags.

Neither paths nor times are in it, so two hosts with the same driver give the same.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import stat
from typing import TYPE_CHECKING, Final, Protocol

from xpucached import reading
from xpucached.domain.bundles import CompilerLibrary
from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from xpucached.domain.host import DriverFile
    from xpucached.host.roots import HostRoots

_LOADERS: Final = ("libOpenCL", "libze_loader")
"""They compile nothing."""

_VERSION: Final = re.compile(r"\.so[.\d]*\Z")
_PIECE: Final = 1 << 20
_LARGEST: Final = 1 << 30
_LONGEST: Final = 1 << 20
_FLAGS: Final = (
    *("avx", "sse", "ssse", "fma", "bmi", "amx", "f16c", "popcnt", "abm", "adx", "aes", "cmov", "cx16", "gfni", "lahf"),
    *("mmx", "movbe", "movdir", "pclmulqdq", "pni", "prefetch", "sha", "sm3", "sm4", "tbm", "vaes", "vpclmul", "xop"),
)
"""The instructions that LLVM may take for what it finds in ``cpuid``, as the kernel calls them: one flag without the
others is what a virtual machine may have."""


class KnownDigests(Protocol):
    """Digests of files that were read earlier."""

    def get(self, status: os.stat_result, /) -> str | None:
        """Return the digest of a file that is like this."""

    def keep(self, status: os.stat_result, digest: str, /) -> None:
        """Remember the digest of a file that was like this before it was read."""


def compiler_files(files: Iterable[DriverFile], known: KnownDigests | None = None) -> tuple[CompilerLibrary, ...]:
    """Return each library once by content; empty if one cannot be read, because then the compiler is not known."""
    found: set[CompilerLibrary] = set()
    for one in files:
        if one.path.name.startswith(_LOADERS):
            continue
        ident = f"build-id:{one.build_id}" if one.build_id else _content(one.target, known)
        if ident is None:
            return ()
        found.add(CompilerLibrary(_VERSION.sub(".so", one.path.name), ident))
    return tuple(sorted(found))


def _content(path: Path, known: KnownDigests | None) -> str | None:
    """Return what stands for a file's content; remembered for as long as it keeps its size and times."""
    try:
        status = path.stat()
    except OSError:
        return None
    digest = None if known is None else known.get(status)
    if digest is None:
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        digest = _read(path, state)
        if digest is not None and known is not None:
            known.keep(status, digest)
    return digest


@functools.lru_cache(maxsize=64)
def _read(path: Path, _state: tuple[int, ...]) -> str | None:
    try:
        descriptor = reading.opened(path)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            return None
        digest, left = hashlib.sha256(), status.st_size
        while left > 0 and (piece := os.read(descriptor, min(left, _PIECE))):
            digest.update(piece)
            left -= len(piece)
        return None if left else f"sha256:{digest.hexdigest()}"
    except OSError:
        return None
    finally:
        os.close(descriptor)


def cpu_isa(places: HostRoots = HERE) -> str:
    """Return what stands for the instructions that this CPU has; empty if that cannot be read."""
    try:
        with (places.proc / "cpuinfo").open("rb") as file:
            text = file.read(_LONGEST).decode("ascii", "replace")
    except OSError:
        return ""
    line = next((one for one in text.splitlines() if one.startswith("flags")), "")
    flags = sorted(one for one in line.partition(":")[2].split() if one.startswith(_FLAGS))
    return f"cpu:{hashlib.sha256(' '.join(flags).encode()).hexdigest()[:16]}" if flags else ""
