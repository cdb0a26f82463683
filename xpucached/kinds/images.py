"""What is inside device images and compiled programs: their format, their kernels, and whether they hold together.

Pure but for libstdc++'s own demangler.  Everything read here may be forged: every offset is checked, every walk ends.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Final

from xpucached.domain.stores import ImageFormat, Kernel
from xpucached.kinds import demangling
from xpucached.kinds.sycl.structure import table_damage

_SPIRV: Final = b"\x03\x02\x23\x07"
_SPIRV_WORD: Final = 0x07230203
_ELF: Final = b"\x7fELF"
_ARCHIVE: Final = b"!<arch>\n"
_BITCODE: Final = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
_PATCH_TOKENS: Final = (b"CTNI", b"INTC")
"""How the binaries of the GPU driver began before it wrote ELF."""

_HEADER: Final = 5
"""Words before the first instruction of a module."""
_ENTRY_POINT: Final = 15
_LAST_BEFORE_BODIES: Final = 54
_KERNELS: Final = 4096
"""So many kernels of one image are named; an image with more is a whole library."""
_INSTRUCTIONS: Final = 1 << 20
"""So many instructions of one image are walked, all its modules together."""
_NAME: Final = 64 << 10
_NAMES: Final = 1 << 20
"""So many bytes the names of one image have together: they travel with the entry into the catalog and over the wire."""
_SHARED: Final = 2
"""Names of sections may share their ends: beyond `_NAMES`, so many times the bytes of the file together at most."""
_PREFIX: Final = 64
"""So much of a section's name tells what is in it."""


def image_format(data: bytes) -> ImageFormat:
    """Return what an image is from its first bytes."""
    if data.startswith(_SPIRV):
        return ImageFormat.SPIRV
    if data.startswith(_ELF):
        return ImageFormat.ELF
    if data.startswith(_ARCHIVE):
        return ImageFormat.ARCHIVE
    if data.startswith(_BITCODE):
        return ImageFormat.BITCODE
    return ImageFormat.UNKNOWN


def input_digest(data: bytes) -> str | None:
    """Return what SPIR-V is known by, whichever cache it was found in; None for anything else."""
    return hashlib.sha256(data).hexdigest() if data.startswith(_SPIRV) else None


# -- kernels --------------------------------------------------------------------------------------------------------


_MODULE: Final = re.compile(_SPIRV + rb"(?=\0.\x01\0.{4}(?!\0{4}).{4}\0{4})", re.DOTALL)
"""The head of a module: its magic number; version 1, generator, bound and schema of 0 follow."""

_CROOKED: Final = 64
"""So many heads are passed over that are not where a word begins; more of them are forged."""


def _next_module(data: bytes, at: int) -> int | None:
    # One search by the regular expression's own code: a file full of magic numbers costs no more than its length.
    for head in islice(_MODULE.finditer(data, at), _CROOKED):
        if head.start() % 4 == 0:
            return head.start()
    return None


def modules(data: bytes, most: int = 2) -> int:
    """Count the SPIR-V modules of an image, up to ``most``: 0 if it is something else."""
    count, at = 0, _next_module(data, 0) if data.startswith(_SPIRV) else None
    while at is not None and count < most:
        count += 1
        at = _next_module(data, at + 20)
    return count


def _spirv_kernels(data: bytes) -> Iterator[bytes]:
    """Walk each module up to its first function: entry points come before."""
    left = _INSTRUCTIONS
    # One view of all words, because thousands of instructions may stand before the first function.
    words = _words(data)
    end = len(words)
    module = _next_module(data, 0)
    while module is not None and left > 0:
        at = module // 4 + _HEADER
        while at < end and left > 0:
            left -= 1
            word = words[at]
            opcode, length = word & 0xFFFF, word >> 16
            if opcode == _ENTRY_POINT and length:
                start = 4 * at + 12
                yield data[start : min(4 * (at + length), start + _NAME)].split(b"\0", 1)[0]
            elif length == 0 or opcode == _LAST_BEFORE_BODIES or word == _SPIRV_WORD:
                break
            at += length
        # The search goes on where the walk ended: no word is walked twice, however many headers are forged.
        module = _next_module(data, 4 * at)


def _words(data: bytes) -> Sequence[int]:
    """Return the words of an image as the little-endian numbers that they are."""
    whole = memoryview(data)[: len(data) & ~3]
    if sys.byteorder == "little":
        return whole.cast("I")
    swapped = array("I", whole.tobytes())
    swapped.byteswap()
    return swapped


def sections(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, offset and size of each section of an ELF; raise ValueError for one that does not hold together."""
    if len(data) < 64 or not data.startswith(_ELF):  # noqa: PLR2004 - the size of an ELF64 header
        message = "no ELF header"
        raise ValueError(message)
    if data[4:6] != b"\x02\x01":
        message = "not a 64-bit little-endian ELF"
        raise ValueError(message)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<3H", data, 58)
    if size != 64 or not count > 0 or table < 64 or table + size * count > len(data) or names >= count:  # noqa: PLR2004
        message = "its section table lies outside"
        raise ValueError(message)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * index) for index in range(count)]
    strings = rows[names]
    if strings[4] + strings[5] > len(data) or strings[5] == 0:
        message = "its section names lie outside"
        raise ValueError(message)
    table_of_names = data[strings[4] : strings[4] + strings[5]]
    named = 0
    for index, row in enumerate(rows):
        occupies = row[1] != 8  # noqa: PLR2004 - SHT_NOBITS has no bytes
        if row[0] >= len(table_of_names) or (occupies and row[4] + row[5] > len(data)):
            message = f"section {index} lies outside"
            raise ValueError(message)
        # Names may share their ends, so each could be as long as the table; a longer one than ours is forged.
        end = table_of_names.find(b"\0", row[0], row[0] + _NAME)
        if end < 0:
            message = f"the name of section {index} has no end"
            raise ValueError(message)
        named += end - row[0]
        if named > _NAMES + _SHARED * len(data):
            message = "its section names overlap"
            raise ValueError(message)
        yield table_of_names[row[0] : end], row[4], row[5] if occupies else 0


def _elf_kernels(data: bytes) -> Iterator[bytes]:
    try:
        for name, _, _ in sections(data):
            if name.startswith(b".text."):
                yield name.removeprefix(b".text.")
    except ValueError:
        return


def _archive_members(data: bytes) -> Iterator[bytes]:
    at = len(_ARCHIVE)
    while at + 60 <= len(data):
        digits = data[at + 48 : at + 58].strip()
        if not digits.isdigit() or len(digits) > 10:  # noqa: PLR2004 - the field's width
            return
        size = int(digits)
        yield data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def kernels(data: bytes) -> tuple[Kernel, ...]:
    """Name the kernels of an image (SPIR-V modules, an ELF, or an archive of either), in order, each once."""
    kind = image_format(data)
    if kind is ImageFormat.SPIRV:
        found = _spirv_kernels(data)
    elif kind is ImageFormat.ELF:
        found = _elf_kernels(data)
    elif kind is ImageFormat.ARCHIVE:
        found = (name for member in _archive_members(data) for name in _elf_kernels(member))
    else:
        return ()
    names: dict[bytes, None] = {}
    total = 0
    for name in found:
        if not name or name in names:
            continue
        total += len(name)
        if total > _NAMES:
            break
        names[name] = None
        if len(names) >= _KERNELS:
            break
    made: list[Kernel] = []
    left = _PRINTED_TOGETHER
    for name in names:
        made.append(kernel(name, left))
        left = max(0, left - (demangling.printed(name) or 0))
    return tuple(made)


# -- names for people -------------------------------------------------------------------------------------------------

_PRINTED_TOGETHER: Final = 1 << 24
"""So many bytes may be printed, at most, for the names of one image: about a second."""

_DISPLAY: Final = 4 << 10
"""Nobody reads on from here."""

_OWNERS: Final = (
    ("at::native::xpu::", "torch-xpu-ops"),
    ("at::native::", "torch"),
    ("at::AtenIpexTypeXPU::", "intel-extension-for-pytorch"),
    ("torch_ipex::", "intel-extension-for-pytorch"),
    ("dpctl::", "dpctl"),
    ("dpnp::", "dpnp"),
    ("oneapi::mkl", "oneMKL"),
    ("mkl::", "oneMKL"),
    ("oneapi::dal", "oneDAL"),
    ("daal::", "oneDAL"),
    ("oneapi::dpl", "oneDPL"),
    ("ggml_", "ggml"),
    ("__sycl_kernel_", "run-time compiled"),
)

_WRAPPERS: Final = (
    "sycl::_V1::detail::__pf_kernel_wrapper<",
    "sycl::_V1::detail::RoundedRangeKernel<",
)


@cache
def _demangler() -> Callable[[bytes], bytes | None]:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        function, free = library["__cxa_demangle"], ctypes.CDLL(None)["free"]
    except (OSError, AttributeError):
        return lambda _: None
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    free.argtypes = (ctypes.c_void_p,)

    def demangle(name: bytes) -> bytes | None:
        status = ctypes.c_int(-1)
        where = function(name, None, None, ctypes.byref(status))
        if not where or status.value != 0:
            return None
        try:
            return ctypes.string_at(where)
        finally:
            free(where)

    return demangle


def _nested(name: str) -> str | None:
    """Read the first scopes out of a mangled name that is too long to demangle: enough to see whose it is."""
    match = re.match(r"_ZTS(?:Z+)?N?((?:[0-9]{1,4}[A-Za-z_][A-Za-z0-9_]*)+)", name[:_DISPLAY])
    if match is None:
        return None
    scopes, rest = [], match.group(1)
    while rest and rest[0].isdigit():
        digits = re.match(r"[0-9]{1,4}", rest)
        if digits is None:
            break
        length = int(digits.group())
        part = rest[digits.end() : digits.end() + length]
        if len(part) < length:
            break
        scopes.append(part)
        rest = rest[digits.end() + length :]
    return "::".join(scopes) or None


def kernel(name: bytes, room: int = _PRINTED_TOGETHER) -> Kernel:
    """Return a kernel its name for people, and the library that owns it, from its mangled name.

    A name that may need more than ``room`` bytes for people is not demangled.
    """
    plain = name.decode("utf-8", "backslashreplace")
    display = None
    printed = demangling.printed(name) if name.startswith(b"_Z") and name.isascii() else None
    if printed is not None and printed <= room:
        demangled = _demangler()(name)
        if demangled is not None:
            display = demangled.decode("utf-8", "backslashreplace").removeprefix("typeinfo name for ")
    if display is None:
        nested = _nested(plain) if name.startswith(b"_Z") else None
        display = f"{nested}…" if nested else plain
    for wrapper in _WRAPPERS:
        if display.startswith(wrapper) and display.endswith(">"):
            display = display.removeprefix(wrapper).removesuffix(">").strip()
    if len(display) > _DISPLAY:
        display = display[:_DISPLAY] + "…"
    return Kernel(plain, display, _owner(display, plain))


def _owner(display: str, plain: str) -> str | None:
    for prefix, owner in _OWNERS:
        # A wrapper of the library's own may come first (`dpnp` reductions), so look a little way in, too.
        if display.startswith(prefix) or plain.startswith(prefix) or f"<{prefix}" in display or f" {prefix}" in display:
            return owner
    return None


# -- does a compiled program hold together? ---------------------------------------------------------------------------


def is_intel(platform: str) -> bool:
    """Return whether a platform's programs are of a form that we know."""
    return "intel" in platform.lower()


def damage(data: bytes, *, intel: bool) -> str | None:
    """Return what is wrong with a compiled program; None if it holds together.

    ``data`` is the whole payload.  A flipped bit inside machine code cannot be seen here; the digest in the catalog
    tells when an entry changed after it was first seen.
    """
    if not data:
        return "no bytes"
    kind = image_format(data)
    if kind is ImageFormat.ELF:
        return _elf_damage(data, depth=0)
    if kind is ImageFormat.UNKNOWN:
        if not data.lstrip(b"\0"):
            return "all bytes are zero"
        # The Intel drivers write ELF (before 2022 also patch tokens); other vendors' formats are not ours to judge.
        if intel and not data.startswith(_PATCH_TOKENS):
            return f"unknown format, begins with {data[:8].hex(' ')}"
    return None


def _elf_damage(data: bytes, depth: int) -> str | None:
    try:
        table = [(name[:_PREFIX], offset, size) for name, offset, size in sections(data)]
    except ValueError as error:
        return str(error)
    if sum(size for _, _, size in table) > len(data):
        # Nor would we look at the same bytes sixty thousand times.
        return "its sections overlap"
    for name, offset, size in table:
        content = data[offset : offset + size]
        if size > 16 and not name.startswith(b".bss") and not content.lstrip(b"\0"):  # noqa: PLR2004
            if name.startswith((b".text", b".ocl", b".ze_info", b".spv")):
                return f"section {name.decode('ascii', 'replace')} is all zero"
            continue
        if name == b".ocl.ir" and size and not content.startswith((*_BITCODE, _SPIRV)):
            return "section .ocl.ir is no LLVM bitcode"
        if name == b".spv" and size and not content.startswith(_SPIRV):
            return "section .spv is no SPIR-V"
        if name == b".ocl.obj" and size and depth == 0 and content.startswith(_ELF):
            inner = _elf_damage(content, depth=1)
            if inner:
                return f"section .ocl.obj: {inner}"
        elif name == b".ocl.obj" and size and depth == 0 and not content.startswith(_ARCHIVE):
            return "section .ocl.obj is no object file"
    return table_damage(data)
