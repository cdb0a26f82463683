"""Observe: the check of a SYCL runtime, in a child of its own: a program of several images is built with that runtime.

Self-contained, like the probe: it is started as a file, with the variables that say whether the cache is on, and needs
no compiler.  It hands the runtime what a compiled program hands it (images, their entries and properties) through the
function that compiled programs call, and then asks for the program in executable state.  The images are a few words of
SPIR-V.  What happens to this process is the answer: status 0 means built; an exception of the runtime ends it by
SIGABRT; the crash that this is about ends it by SIGSEGV.

Checked with the runtimes 2024.2 to 2026.2: records of version 2 (libsycl.so.8 and before) and 3 (libsycl.so.9).
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

SHAPES = ("library", "parts", "single")
"""``library``: a kernel, and a device library without kernels, as every program with bfloat16 has it.  ``parts``: a
kernel and a function in an image of its own.  ``single``: a kernel alone."""

# The name must be one that the runtime takes for its bfloat16 library's, or it would not look there.
_PART = "__devicelib_ConvertFToBF16INTEL"
_KERNEL = "xpucached_assay"
_PATTERN = 0xA5
_LARGEST_OBJECT = 64
_LARGEST_FILE = 256 << 20
_EXECUTABLE = 2
_DEATH_SIGNAL, _SIGKILL = 1, 9  # without `signal`, which takes long to load

_DEVICE = "_ZN4sycl3_V16deviceC1Ev"
_CONTEXT = "_ZN4sycl3_V17contextC1ERKNS0_6deviceERKNS0_13property_listE"
_BUNDLE = (
    "_ZN4sycl3_V16detail22get_kernel_bundle_implERKNS0_7contextERKSt6vectorINS0_6deviceESaIS6_EENS0_12bundle_stateE"
)


# -- SPIR-V -------------------------------------------------------------------------------------------------------

_VOID, _FUNCTION, _CALLED, _ENTRY, _LABEL, _OTHER_LABEL, _RESULT, _BOUND = 1, 2, 3, 4, 5, 6, 7, 8


def _op(code: int, *operands: int) -> tuple[int, ...]:
    return ((len(operands) + 1) << 16 | code, *operands)


def _text(text: str) -> tuple[int, ...]:
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)


def _module(*parts: tuple[int, ...]) -> bytes:
    # Capabilities Addresses, Linkage and Kernel; 64-bit addresses, OpenCL's memory model.
    head = (0x07230203, 0x00010000, 0, _BOUND, 0, *_op(17, 4), *_op(17, 5), *_op(17, 6), *_op(14, 2, 2))
    words = [word for part in (head, *parts) for word in part]
    return struct.pack(f"<{len(words)}I", *words)


_TYPES = (*_op(19, _VOID), *_op(33, _FUNCTION, _VOID))
_BODY = (*_op(54, _VOID, _CALLED, 0, _FUNCTION), *_op(248, _OTHER_LABEL), *_op(253), *_op(56))


def _kernel(*, calls: bool) -> bytes:
    imported = (*_op(71, _CALLED, 41, *_text(_PART), 1),) if calls else ()
    declared = (*_op(54, _VOID, _CALLED, 0, _FUNCTION), *_op(56)) if calls else ()
    call = _op(57, _VOID, _RESULT, _CALLED) if calls else ()
    body = (*_op(54, _VOID, _ENTRY, 0, _FUNCTION), *_op(248, _LABEL), *call, *_op(253), *_op(56))
    return _module(_op(15, 6, _ENTRY, *_text(_KERNEL)), imported, _TYPES, declared, body)


def _part() -> bytes:
    return _module(_op(71, _CALLED, 41, *_text(_PART), 0), _TYPES, _BODY)


# -- what a compiled program hands to the runtime -----------------------------------------------------------------


class _Memory:
    """Things whose addresses the runtime keeps: they stay where they are for as long as this process lives."""

    def __init__(self) -> None:
        self._kept: list[ctypes.Array[ctypes.c_char]] = []

    def put(self, content: bytes) -> int:
        buffer = ctypes.create_string_buffer(content, max(1, len(content)))
        self._kept.append(buffer)
        return ctypes.addressof(buffer)

    def text(self, text: str) -> int:
        return self.put(text.encode() + b"\0")

    def room(self) -> int:
        # Larger than any object that the runtime makes here; an empty list of properties is all zeroes.
        return self.put(bytes(1024))


def _words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def _property_set(memory: _Memory, name: str, key: str, value: int) -> bytes:
    # Type 1 is a 32-bit number, which stands in the place of a size.
    row = _words(memory.text(key), 0) + struct.pack("<IIQ", 1, 0, value)
    place = memory.put(row)
    return _words(memory.text(name), place, place + len(row))


def _image(memory: _Memory, layout: int, code: bytes, entries: tuple[str, ...], properties: bytes) -> bytes:
    code_at = memory.put(code)
    rows = b"".join(struct.pack("<QQQii", 0, memory.text(name), 0, 0, 0) for name in entries)
    entries_at = memory.put(rows) if rows else 0
    properties_at = memory.put(properties)
    empty = memory.text("")
    # Kind 4 is SYCL, format 2 is SPIR-V.  Version 2 has a manifest, which is empty, before the code.
    head = struct.pack("<HBBI", layout, 4, 2, 0) + _words(memory.text("spir64"), empty, empty)
    manifest = _words(0, 0) if layout == 2 else b""  # noqa: PLR2004 - the version of the record
    bounds = _words(
        *(code_at, code_at + len(code)),
        *(entries_at, entries_at + len(rows)),
        *(properties_at, properties_at + len(properties)),
    )
    return head + manifest + bounds


def _program(memory: _Memory, layout: int, shape: str) -> int:
    """Put a program's description together; gives its address."""
    imported = _property_set(memory, "SYCL/imported symbols", _PART, 1)
    exported = _property_set(memory, "SYCL/exported symbols", _PART, 1)
    if shape == "single":
        images = [_image(memory, layout, _kernel(calls=False), (_KERNEL,), b"")]
    else:
        images = [_image(memory, layout, _kernel(calls=True), (_KERNEL,), imported)]
    if shape == "parts":
        images.append(_image(memory, layout, _part(), (_PART,), exported))
    if shape == "library":
        # One that emulates bfloat16 and one for devices that have it: the runtime takes the one that fits the device.
        for native in (0, 1):
            mark = _property_set(memory, "SYCL/devicelib metadata", "bfloat16", native)
            images.append(_image(memory, layout, _part(), (), exported + mark))
    return memory.put(struct.pack("<HHI", 1, len(images), 0) + _words(memory.put(b"".join(images)), 0, 0))


def build(library: str, layout: int, shape: str) -> None:
    """Build a program of one shape with a runtime, in this process.  What goes wrong ends the process."""
    memory = _Memory()
    runtime = ctypes.CDLL(library)
    pointer = ctypes.c_void_p
    runtime["__sycl_register_lib"](pointer(_program(memory, layout, shape)))
    device, context, bundle = (memory.room() for _ in range(3))
    # How large a device object is differs between runtimes; it is as much as its constructor writes.
    ctypes.memset(device, _PATTERN, _LARGEST_OBJECT)
    runtime[_DEVICE](pointer(device))
    size = len(ctypes.string_at(device, _LARGEST_OBJECT).rstrip(bytes([_PATTERN])))
    runtime[_CONTEXT](pointer(context), pointer(device), pointer(memory.room()))
    devices = memory.put(_words(device, device + size, device + size))
    # Of all images that are registered in this process, which are ours.
    runtime[_BUNDLE](pointer(bundle), pointer(context), pointer(devices), ctypes.c_int(_EXECUTABLE))


def main() -> None:
    """Run one check, as the command line says."""
    # Where a library hangs, it ends with who started it, as what compiles does.
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, _SIGKILL, 0, 0, 0)
    # What reads options for others loads regular expressions: as long as all else that comes before a build.
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    library, layout, shape = given["--library"], int(given["--layout"]), given["--shape"]
    if shape not in SHAPES:
        sys.exit(f"--shape is one of {', '.join(SHAPES)}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    try:
        build(library, layout, shape)
    except (AttributeError, OSError) as error:
        sys.stderr.write(f"what():  {error}\n")
        sys.stderr.flush()
        os._exit(2)
    # Not by the usual way out: the runtime's own end is not what is asked, and it meets objects that are half ours.
    os._exit(0)


if __name__ == "__main__":
    main()
