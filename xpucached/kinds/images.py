"""What is inside device images and compiled programs: their kernels as people call them, and whether they are whole.

Pure but for libstdc++'s own demangler.  Everything read here may be forged: every offset is checked, every walk ends.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from typing import Final

from xpucached.binaries.formats import ARCHIVE, BITCODE, ELF, PATCH_TOKENS, SPIRV, image_format, kernel_names, sections
from xpucached.domain.stores import ImageFormat, Kernel
from xpucached.kinds import demangling
from xpucached.kinds.sycl.structure import table_damage

_KERNELS: Final = 4096
"""So many kernels of one image are named; an image with more is a whole library."""
_NAMES: Final = 1 << 20
"""So many bytes the names of one image have together: they travel with the entry into the catalog and over the wire."""
_PREFIX: Final = 64
"""So much of a section's name tells what is in it."""


def kernels(data: bytes) -> tuple[Kernel, ...]:
    """Name the kernels of an image (SPIR-V modules, an ELF, or an archive of either), in order, each once."""
    names: dict[bytes, None] = {}
    total = 0
    for name in kernel_names(data):
        if not name or name in names:
            continue
        total += len(name)
        if total > _NAMES:
            break
        names[name] = None
        if len(names) >= _KERNELS:
            break
    made: list[Kernel] = []
    left, shown = _PRINTED_TOGETHER, _DISPLAY + _LONGER * total
    for name in names:
        one = kernel(name, left)
        if len(one.display) > shown:
            one = kernel(name, 0)
        made.append(one)
        left = max(0, left - (demangling.printed(name) or 0))
        shown = max(0, shown - len(one.display))
    return tuple(made)


# -- names for people -------------------------------------------------------------------------------------------------

_PRINTED_TOGETHER: Final = 1 << 24
"""So many bytes may be printed, at most, for the names of one image: about a second."""

_DISPLAY: Final = 4 << 10
"""Nobody reads on from here."""

_LONGER: Final = 4
"""All names of one image for people are at most so many times as long as they are in it, and one name longer."""

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


_OWNED: Final = re.compile("|".join(re.escape(prefix) for prefix, _ in _OWNERS))


def _owner(display: str, plain: str) -> str | None:
    if not (_OWNED.search(display) or _OWNED.match(plain)):
        return None
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
        if intel and not data.startswith(PATCH_TOKENS):
            return f"unknown format, begins with {data[:8].hex(' ')}"
    return None


def _elf_damage(data: bytes, depth: int) -> str | None:
    try:
        table = [(name[:_PREFIX], offset, size) for name, offset, size in sections(data, apart=True)]
    except ValueError as error:
        return str(error)
    for name, offset, size in table:
        if not name.startswith((b".text", b".ocl", b".ze_info", b".spv")):
            continue
        content = data[offset : offset + size]
        if size > 16 and not content.lstrip(b"\0"):  # noqa: PLR2004
            return f"section {name.decode('ascii', 'replace')} is all zero"
        if name == b".ocl.ir" and size and not content.startswith((*BITCODE, SPIRV)):
            return "section .ocl.ir is no LLVM bitcode"
        if name == b".spv" and size and not content.startswith(SPIRV):
            return "section .spv is no SPIR-V"
        if name == b".ocl.obj" and size and depth == 0 and content.startswith(ELF):
            inner = _elf_damage(content, depth=1)
            if inner:
                return f"section .ocl.obj: {inner}"
        elif name == b".ocl.obj" and size and depth == 0 and not content.startswith(ARCHIVE):
            return "section .ocl.obj is no object file"
    return table_damage(data)
