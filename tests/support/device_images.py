"""Programs with device images, as a compiler links them, written byte by byte; real archives with the driver's answers.

The archives are what ``ocloc`` 26.27 made for the lists of devices in their names: ``….x`` without, ``….ir`` with the
source inside.  What compute-runtime 26.27 said to each on each of its simulated GPUs stands beside them.
"""

from __future__ import annotations

import functools
import struct
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ARCHIVES: Final = Path(__file__).parent.parent / "unit" / "inspection" / "archives.tar.xz"
_DATA: Final = 0x10000
"""Where the writable part begins, in the file and in memory."""


@functools.cache
def archives() -> Mapping[str, bytes]:
    """Return the archives by name."""
    with tarfile.open(_ARCHIVES) as packed:
        return {one.name: file.read() for one in packed if (file := packed.extractfile(one)) is not None}


def answers() -> Sequence[tuple[str, str, str]]:
    """Return GPU, archive, and what the driver did: ``ready`` (taken), ``compiled`` (from its source) or ``absent``."""
    lines = archives()["answers.txt"].decode().splitlines()
    return [(device, name, said) for device, name, said in (line.split() for line in lines)]


def program(
    *images: tuple[str, bytes, Sequence[str]], version: int = 3, newer: bool = False, relocated: bool = True
) -> bytes:
    """Return a library that registers these images: target, content, and the names of the kernels.

    ``version`` is that of the rows, ``newer`` says that the entries are of the newer kind; addresses stand in
    relocations, or, not ``relocated``, in the rows themselves, as in a program that is loaded where it was linked.
    """
    texts = bytearray(b"\0" * 0x40 + b"\0" * 56 * 3)
    places: dict[bytes, int] = {}

    def text(content: bytes) -> int:
        if content not in places:
            places[content] = len(texts)
            texts.extend(content + b"\0")
        return places[content]

    data = bytearray()
    addresses: list[tuple[int, int]] = []

    def address(at: int, value: int) -> None:
        addresses.append((_DATA + at, value))

    tables: list[tuple[int, int]] = []
    for _, _, kernels in images:
        begin = len(data)
        for kernel in kernels:
            if newer:
                address(len(data) + 24, text(kernel.encode()))
                data += struct.pack("<QHHIQQQQQ", 0, 1, 8, 0, 0, 0, 0, 0, 0)
            else:
                address(len(data) + 8, text(kernel.encode()))
                data += bytes(32)
        tables.append((begin, len(data)))
    for (target, content, _), (begin, end) in zip(images, tables, strict=True):
        at = len(data)
        data += struct.pack("<HBBI", version, 4, 0, 0) + bytes(8 * (11 if version < 3 else 9))
        image = text(content)
        after = 48 if version < 3 else 32
        wanted = [(8, text(target.encode())), (16, text(b"")), (24, text(b"")), (after, image)]
        wanted += [(after + 8, image + len(content)), (after + 16, _DATA + begin), (after + 24, _DATA + end)]
        for offset, value in wanted:
            address(at + offset, value)
    if not relocated:
        for where, value in addresses:
            struct.pack_into("<Q", data, where - _DATA, value)
        addresses = []
    rows = b"".join(struct.pack("<QQq", where, 8, value) for where, value in addresses)
    table = len(texts)
    texts += rows
    dynamic = struct.pack("<6Q", 7, table, 8, len(rows), 0, 0)
    at = len(texts)
    texts += dynamic
    if len(texts) > _DATA:
        raise ValueError("images that are too large for this")
    segments = [(1, 4, 0, 0, len(texts)), (1, 6, _DATA, _DATA, len(data)), (2, 6, at, at, len(dynamic))]
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
    texts[: len(head)] = head
    for index, (kind, flags, offset, where, size) in enumerate(segments):
        struct.pack_into("<2I6Q", texts, 64 + 56 * index, kind, flags, offset, where, where, size, size, 8)
    return bytes(texts).ljust(_DATA, b"\0") + bytes(data)
