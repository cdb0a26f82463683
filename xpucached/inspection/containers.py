"""Files that hold device images one beside the other: what a compiler hands to its linker, or writes by itself."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from xpucached.binaries import formats
from xpucached.inspection.content import Unreadable
from xpucached.inspection.programs import FoundImage, LinkedProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.inspection.content import Content

_BUNDLE: Final = b"__CLANG_OFFLOAD_BUNDLE__"
_BINARY: Final = b"\x10\xff\x10\xad"
_MOST: Final = 1 << 16
_GPU_MACHINE: Final = 205
_OBJECT: Final = 1
_HEAD_OF_MEMBER: Final = 60
_LONGEST_TARGET: Final = 256


def images(content: Content) -> tuple[FoundImage, ...]:
    """Return the device images of a file, whatever it is; raises `Unreadable` if it does not hold together."""
    head = content.read(0, 64)
    if head.startswith(_BUNDLE):
        return tuple(_bundle(content))
    if head.startswith(_BINARY):
        return tuple(_binaries(content))
    if head.startswith(formats.ELF):
        kind, machine = struct.unpack_from("<2H", head.ljust(64, b"\0"), 16)
        if machine != _GPU_MACHINE and kind < 0xFF00:  # noqa: PLR2004 - from here on kinds are the processor's own
            return tuple(LinkedProgram(content).images())
    if head.startswith(formats.ARCHIVE) and not _for_devices(content):
        return ()
    return (FoundImage("", 0, content.size, ()),)


def leftover(content: Content) -> str:
    """Return what a file without images is, if it brings device code in a way that only a linker can use."""
    head = content.read(0, 64)
    if head.startswith(formats.ELF) and struct.unpack_from("<H", head.ljust(64, b"\0"), 16)[0] == _OBJECT:
        return "objects that a linker reads"
    return "archives that a linker reads" if head.startswith(formats.ARCHIVE) else ""


def _for_devices(content: Content) -> bool:
    """Return whether an archive is one of programs for GPUs, not a static library."""
    name = content.read(len(formats.ARCHIVE), 16)
    return name.startswith((b"pad_", b"64.", b"32.", b"generic_ir"))


def _bundle(content: Content) -> Iterator[FoundImage]:
    (count,) = struct.unpack_from("<Q", content.read(0, 32).ljust(32, b"\0"), len(_BUNDLE))
    if count > _MOST:
        raise Unreadable("it names more images than any bundle")
    at = 32
    for _ in range(count):
        row = content.read(at, 24)
        if len(row) < 24:  # noqa: PLR2004 - three numbers
            raise Unreadable("the bundle ends too early")
        offset, size, length = struct.unpack("<3Q", row)
        if length > _LONGEST_TARGET or offset + size > content.size:
            raise Unreadable("an image of the bundle lies outside")
        target = content.read(at + 24, length).decode("ascii", "backslashreplace")
        at += 24 + length
        if size and not target.startswith("host"):
            yield FoundImage(target.partition("-")[2].partition("-")[0], offset, size, ())


def _binaries(content: Content) -> Iterator[FoundImage]:
    at = 0
    for _ in range(_MOST):
        head = content.read(at, 48)
        if len(head) < 48 or not head.startswith(_BINARY):  # noqa: PLR2004 - two heads
            return
        _, size, entry, _ = struct.unpack_from("<I3Q", head, 4)
        row = content.read(at + entry, 48)
        if len(row) < 40 or size < 48 or at + size > content.size:  # noqa: PLR2004
            raise Unreadable("an image lies outside")
        offset, length = struct.unpack_from("<2Q", row, 24)
        if offset + length > size:
            raise Unreadable("an image lies outside")
        yield FoundImage("", at + offset, length, ())
        at += size
