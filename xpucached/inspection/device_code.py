"""One device image: its form, and for which GPUs it says that it is made."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached.binaries import formats, zebin
from xpucached.domain.inspection import CodeForm
from xpucached.inspection import unpacking
from xpucached.inspection.content import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.inspection.content import Content

_GPU_MACHINE: Final = 205
_OLDER: Final = frozenset({0xFF04, 0xFF01, 0xFF03, 0xFF05})
"""The kinds of ELF in which compilers packed programs for OpenCL until 2022."""
_OLDER_IR: Final = b"SPIRV Object"
_PROGRAM: Final = frozenset({1, 0xFF12})
_LARGEST: Final = 1 << 30
_PADDING: Final = b"pad_"
GENERIC: Final = "generic_ir"
"""The member of an archive that is for every GPU."""


class GpuProgram(Struct, frozen=True):
    """A compiled program for GPUs, and the source that it may carry along."""

    name: str = ""  #: of the member of an archive
    ip: int | None = None  #: the IP version that it is for, packed
    family: int | None = None
    core: int | None = None
    source: bool = False  #: it holds SPIR-V, from which a driver compiles it for another GPU
    judged: bool = True  #: of a form that we can judge
    empty: bool = False  #: it holds nothing but the source


class DeviceCode(Struct, frozen=True):
    """What a device image is."""

    form: CodeForm
    size: int
    archive: bool = False
    programs: tuple[GpuProgram, ...] = ()
    kernels: tuple[bytes, ...] = ()  #: as far as the image itself names them
    wrong: str = ""  #: why nothing more is known of it
    taken: int = 0  #: bytes of memory that it took to see that


def read(content: Content, offset: int, size: int, *, target: str = "", named: bool = False) -> DeviceCode:
    """Read a device image; with ``named`` somebody else tells its kernels."""
    head = content.read(offset, min(size, 64))
    if head.startswith(formats.SPIRV) and named:
        return DeviceCode(_by_target(target, CodeForm.SPIRV), size)
    if size > _LARGEST:
        return DeviceCode(CodeForm.UNKNOWN, size, wrong="it is larger than any image")
    if head.startswith(unpacking.MAGIC):
        try:
            data = unpacking.unpacked(content.read(offset, size))
        except Unreadable as error:
            return DeviceCode(CodeForm.COMPRESSED, size, wrong=str(error), taken=error.taken)
        return judge(data, target=target, named=named)
    return judge(content.read(offset, size), target=target, named=named)


def judge(data: bytes, *, target: str = "", named: bool = False) -> DeviceCode:
    """Return what some bytes are."""
    kernels = () if named else tuple(dict.fromkeys(formats.kernel_names(data)))
    size = len(data)
    if data.startswith(formats.SPIRV):
        return DeviceCode(_by_target(target, CodeForm.SPIRV), size, kernels=kernels)
    if data.startswith(formats.BITCODE):
        return DeviceCode(_by_target(target, CodeForm.BITCODE), size)
    if data.startswith(formats.PATCH_TOKENS):
        return DeviceCode(CodeForm.PATCH_TOKENS, size, programs=(GpuProgram(judged=False),))
    if data.startswith(formats.ARCHIVE):
        programs = tuple(_members(data))
        known = CodeForm.NATIVE if programs else CodeForm.UNKNOWN
        return DeviceCode(_by_target(target, known), size, archive=True, programs=programs, kernels=kernels)
    if data.startswith(formats.ELF):
        machine = struct.unpack_from("<H", data, 18)[0] if len(data) >= 64 else 0  # noqa: PLR2004 - an ELF64 header
        if machine == _GPU_MACHINE or struct.unpack_from("<H", data.ljust(64, b"\0"), 16)[0] in _OLDER:
            return _elf(data, target, kernels)
    return DeviceCode(_by_target(target, CodeForm.UNKNOWN), size)


def _elf(data: bytes, target: str, kernels: tuple[bytes, ...]) -> DeviceCode:
    if _by_target(target, CodeForm.NATIVE) is not CodeForm.NATIVE:
        return DeviceCode(_by_target(target, CodeForm.NATIVE), len(data))
    try:
        one = _program("", data)
    except ValueError as error:
        return DeviceCode(CodeForm.UNKNOWN, len(data), wrong=str(error))
    return DeviceCode(CodeForm.NATIVE, len(data), programs=(one,), kernels=kernels)


def _by_target(target: str, form: CodeForm) -> CodeForm:
    """Return the form, unless the image is for something else than an Intel GPU."""
    if target.endswith("_x86_64") or target == "native_cpu":
        return CodeForm.CPU
    if target.startswith(("nvptx", "amdgcn", "llvm_")) or target.endswith("_fpga"):
        return CodeForm.OTHER
    return form


def _members(data: bytes) -> Iterator[GpuProgram]:
    for name, member in formats.archive_members(data):
        if name.startswith(_PADDING):
            continue
        text = name.decode("ascii", "backslashreplace")
        try:
            yield _program(text, member)
        except ValueError:
            yield GpuProgram(text, judged=False)


def _program(name: str, data: bytes) -> GpuProgram:
    """Read one program.  Raises ValueError if it does not hold together."""
    if not data.startswith(formats.ELF) or len(data) < 64 or not zebin.judged(data):  # noqa: PLR2004 - an ELF64 header
        return GpuProgram(name, judged=False)
    kind, machine = struct.unpack_from("<2H", data, 16)
    if kind in _OLDER:
        sections = {title: size for title, _, size in formats.sections(data)}
        return GpuProgram(name, source=bool(sections.get(_OLDER_IR)), judged=name == GENERIC, empty=name == GENERIC)
    if machine != _GPU_MACHINE or kind not in _PROGRAM:
        return GpuProgram(name, judged=False)
    told = zebin.read(data)
    return GpuProgram(name, told.ip, told.family, told.core, told.input is not None)
