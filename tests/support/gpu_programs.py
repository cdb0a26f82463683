"""``gpu_programs.py JOB…``: a program that has the GPU driver build device programs, one after the other.

A job is a JSON list: how (``text`` and ``il`` for OpenCL, ``ze`` for Level Zero, ``native`` for what is compiled
already, which Level Zero loads; after that may come specialization constants, as in ``il 7=000080bf00000000``), the
path of the source or SPIR-V, and the options.  The result of each is printed.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
from pathlib import Path

_GPU = 4
_SPIRV, _NATIVE = 0, 1


class _Context(ctypes.Structure):
    _fields_ = (("stype", ctypes.c_uint32), ("next", ctypes.c_void_p), ("flags", ctypes.c_uint32))


class _Constants(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint32), ("ids", ctypes.c_void_p), ("values", ctypes.c_void_p))


class _Module(ctypes.Structure):
    _fields_ = (
        ("stype", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("format", ctypes.c_uint32),
        ("size", ctypes.c_size_t),
        ("image", ctypes.c_char_p),
        ("options", ctypes.c_char_p),
        ("constants", ctypes.c_void_p),
    )


@functools.cache
def _opencl() -> tuple[ctypes.CDLL, ctypes.c_void_p, ctypes.c_void_p]:
    library = ctypes.CDLL("libOpenCL.so.1")
    for call in ("clCreateContext", "clCreateProgramWithIL", "clCreateProgramWithSource"):
        getattr(library, call).restype = ctypes.c_void_p
    platform, device, error = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int32()
    library.clGetPlatformIDs(1, ctypes.byref(platform), None)
    library.clGetDeviceIDs(platform, ctypes.c_uint64(_GPU), 1, ctypes.byref(device), None)
    context = library.clCreateContext(None, 1, ctypes.byref(device), None, None, ctypes.byref(error))
    assert error.value == 0, error.value
    return library, device, ctypes.c_void_p(context)


@functools.cache
def _level_zero() -> tuple[ctypes.CDLL, ctypes.c_void_p, ctypes.c_void_p]:
    library = ctypes.CDLL("libze_loader.so.1")
    assert library.zeInit(0) == 0
    driver, device, context = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    one = ctypes.c_uint32(1)
    library.zeDriverGet(ctypes.byref(one), ctypes.byref(driver))
    library.zeDeviceGet(driver, ctypes.byref(one), ctypes.byref(device))
    description = _Context(stype=0xD)
    assert library.zeContextCreate(driver, ctypes.byref(description), ctypes.byref(context)) == 0
    return library, device, context


def build(how: str, content: bytes, options: bytes) -> int:
    """Build one program, and drop it; give the driver's answer."""
    how, *given_constants = how.split()
    parts = [one.partition("=") for one in given_constants]
    numbers, contents = [int(one) for one, _, _ in parts], [bytes.fromhex(one) for _, _, one in parts]
    if how in {"ze", "native"}:
        zero, unit, room = _level_zero()
        module = ctypes.c_void_p()
        given = _Module(
            stype=0x1B, format=_NATIVE if how == "native" else _SPIRV, size=len(content), image=content, options=options
        )
        ids = (ctypes.c_uint32 * len(parts))(*numbers)
        values = (ctypes.c_char_p * len(parts))(*contents)
        constants = _Constants(len(parts), ctypes.addressof(ids), ctypes.addressof(values))
        given.constants = ctypes.addressof(constants) if parts else None
        result = int(zero.zeModuleCreate(room, unit, ctypes.byref(given), ctypes.byref(module), None))
        if result == 0:
            zero.zeModuleDestroy(module)
        return result
    library, device, context = _opencl()
    error = ctypes.c_int32()
    size = ctypes.c_size_t(len(content))
    if how == "il":
        made = library.clCreateProgramWithIL(context, content, size, ctypes.byref(error))
    else:
        texts = (ctypes.c_char_p * 1)(content)
        made = library.clCreateProgramWithSource(context, 1, texts, ctypes.byref(size), ctypes.byref(error))
    if error.value:
        return error.value
    program = ctypes.c_void_p(made)
    for number, value in zip(numbers, contents, strict=True):
        error.value = library.clSetProgramSpecializationConstant(program, number, ctypes.c_size_t(len(value)), value)
        assert error.value == 0, error.value
    result = int(library.clBuildProgram(program, 1, ctypes.byref(device), options, None, None))
    library.clReleaseProgram(program)
    return result


def main() -> None:
    """Do so; a simulated device does not survive a tidy end."""
    for job in sys.argv[1:]:
        how, path, options = json.loads(job)
        print(build(how, Path(path).read_bytes(), options.encode()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
