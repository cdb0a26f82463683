"""Act: the child that compiles programs with the installed driver; loads OpenCL or Level Zero.

It runs in a fresh process, because what it is given may crash or hang the compiler.  It takes recipes on stdin, one
after the other: a line of JSON ``{"id": 1, "options": 5, "image": 4096}``, then so many bytes of each.  The image is
SPIR-V, or with ``"facts": {"form": "text"}`` source text for OpenCL; the facts ``constants`` and ``values`` are the ids
of specialization constants, four bytes each, and eight bytes for the value of each, in hex.  It answers on the
descriptor that ``--fd`` names: first ``{"ready": true}`` or ``{"error": "…"}``, then for each recipe a line
``{"id": 1, "seconds": 0.1, "binary": 9000}`` and so many bytes, or ``{"id": 1, "seconds": 0.1, "error": "…"}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import getopt  # argparse takes ten times as long to load
import json
import os
import resource
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING or __package__:
    from xpucached.libexec import level_zero, opencl
    from xpucached.libexec.driver_calls import DriverError, end_with_starter
else:
    # It is started by its path, isolated: what else it is made of lies beside it, and nothing else is found there.
    sys.modules["xpucached_libexec"] = _package = ModuleType("xpucached_libexec")
    _package.__path__ = [os.path.dirname(os.path.realpath(__file__))]  # noqa: PTH120 - without pathlib it starts faster
    from xpucached_libexec import level_zero, opencl
    from xpucached_libexec.driver_calls import DriverError, end_with_starter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_LONGEST = 1 << 30  # bytes of one image or binary; the runtime caches nothing larger
_LONGEST_LOG = 2000

_CL_PROGRAM_BINARY_SIZES = 0x1165
_CL_PROGRAM_BINARIES = 0x1166
_CL_PROGRAM_BUILD_LOG = 0x1183

_ZE_CONTEXT_DESC = 0xD
_ZE_MODULE_DESC = 0x1B
_ZE_FORMAT_SPIRV = 0


class BuildError(Exception):
    """The compiler refused an input."""


class Compiler(Protocol):
    """One device's compiler."""

    def build(self, image: bytes, options: bytes, facts: Mapping[str, str]) -> bytes:
        """Compile a program; raise `BuildError` with the compiler's own words."""


def _is(texts: Sequence[str], wanted: Sequence[str | None]) -> bool:
    """Return whether a device is the one that is wanted: what is not said of it may be anything."""
    return all(one is None or one == text for text, one in zip(texts, wanted, strict=True))


def _constants(facts: Mapping[str, str]) -> Iterator[tuple[int, bytes]]:
    """Yield specialization constants, each with the eight bytes in which its value stands."""
    ids, values = (bytes.fromhex(facts.get(name, "")) for name in ("constants", "values"))
    if len(values) != len(ids) * 2 or len(ids) % 4:
        raise BuildError("its specialization constants do not hold together")
    for number in range(len(ids) // 4):
        yield int.from_bytes(ids[4 * number :][:4], "little"), values[8 * number :][:8]


# -- OpenCL -------------------------------------------------------------------------------------------------------


class OpenCl:
    """The compiler of one OpenCL device."""

    def __init__(self, wanted: Sequence[str | None]) -> None:
        """``wanted`` are the four strings of the environment.  Raises BuildError if no device has them."""
        self._library = ctypes.CDLL("libOpenCL.so.1")
        found = next((device for device, texts in opencl.devices(self._library) if _is(texts, wanted)), None)
        if found is None:
            raise BuildError("no OpenCL device is " + _words(wanted))
        self._device = ctypes.c_void_p(found)
        for call in ("clCreateContext", "clCreateProgramWithIL", "clCreateProgramWithSource"):
            getattr(self._library, call).restype = ctypes.c_void_p
        status = ctypes.c_int32(0)
        context = self._library.clCreateContext(None, 1, ctypes.byref(self._device), None, None, ctypes.byref(status))
        _cl_check("clCreateContext", status.value)
        self._context = ctypes.c_void_p(context)

    def build(self, image: bytes, options: bytes, facts: Mapping[str, str]) -> bytes:
        """Compile; see `Compiler.build`."""
        library = self._library
        program = self._program(image, text=facts.get("form") == "text")
        try:
            for number, value in _constants(facts):
                self._specialize(program, number, value)
            result = library.clBuildProgram(program, 1, ctypes.byref(self._device), options, None, None)
            if result != 0:
                raise BuildError(f"clBuildProgram gave {result}: {self._log(program)}")
            size = ctypes.c_size_t(0)
            _cl_check(
                "clGetProgramInfo",
                library.clGetProgramInfo(
                    program, _CL_PROGRAM_BINARY_SIZES, ctypes.c_size_t(ctypes.sizeof(size)), ctypes.byref(size), None
                ),
            )
            if not 0 < size.value <= _LONGEST:
                raise BuildError(f"the binary has {size.value} bytes")
            binary = ctypes.create_string_buffer(size.value)
            places = (ctypes.c_void_p * 1)(ctypes.addressof(binary))
            _cl_check(
                "clGetProgramInfo",
                library.clGetProgramInfo(
                    program, _CL_PROGRAM_BINARIES, ctypes.c_size_t(ctypes.sizeof(places)), places, None
                ),
            )
            return binary.raw
        finally:
            library.clReleaseProgram(program)

    def _program(self, image: bytes, *, text: bool) -> ctypes.c_void_p:
        status = ctypes.c_int32(0)
        size = ctypes.c_size_t(len(image))
        if text:
            call = "clCreateProgramWithSource"
            texts = (ctypes.c_char_p * 1)(image)
            made = self._library.clCreateProgramWithSource(
                self._context, 1, texts, ctypes.byref(size), ctypes.byref(status)
            )
        else:
            call = "clCreateProgramWithIL"
            made = self._library.clCreateProgramWithIL(self._context, image, size, ctypes.byref(status))
        _cl_check(call, status.value)
        return ctypes.c_void_p(made)

    def _specialize(self, program: ctypes.c_void_p, number: int, value: bytes) -> None:
        """Give a constant its value; the driver refuses every size but the constant's own."""
        call, status = self._library.clSetProgramSpecializationConstant, 0
        for size in (8, 4, 2, 1):
            status = call(program, ctypes.c_uint32(number), ctypes.c_size_t(size), value)
            if status == 0:
                return
        _cl_check("clSetProgramSpecializationConstant", status)

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t(0)
        call = self._library.clGetProgramBuildInfo
        call(program, self._device, _CL_PROGRAM_BUILD_LOG, ctypes.c_size_t(0), None, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(min(size.value, _LONGEST) + 1)
        call(program, self._device, _CL_PROGRAM_BUILD_LOG, size, buffer, None)
        return buffer.value.decode("utf-8", "replace")[-_LONGEST_LOG:].strip()


def _cl_check(call: str, status: int) -> None:
    if status != 0:
        raise BuildError(f"{call} gave {status}")


# -- Level Zero ---------------------------------------------------------------------------------------------------


class _ContextDesc(ctypes.Structure):
    _fields_ = [("stype", ctypes.c_uint32), ("next", ctypes.c_void_p), ("flags", ctypes.c_uint32)]


class _ModuleDesc(ctypes.Structure):
    _fields_ = [
        ("stype", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("format", ctypes.c_uint32),
        ("size", ctypes.c_size_t),
        ("image", ctypes.c_char_p),
        ("options", ctypes.c_char_p),
        ("constants", ctypes.c_void_p),
    ]


class _Constants(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_uint32),
        ("ids", ctypes.POINTER(ctypes.c_uint32)),
        ("values", ctypes.POINTER(ctypes.c_char_p)),
    ]


class LevelZero:
    """The compiler of one Level Zero device."""

    def __init__(self, wanted: Sequence[str | None]) -> None:
        """``wanted`` are the four strings of the environment.  Raises BuildError if no device has them."""
        self._library = library = ctypes.CDLL("libze_loader.so.1")
        for driver, device, texts in level_zero.devices(library):
            if any(_is(one, wanted) for one in texts):
                self._device = ctypes.c_void_p(device)
                description = _ContextDesc(stype=_ZE_CONTEXT_DESC)
                context = ctypes.c_void_p()
                status = library.zeContextCreate(
                    ctypes.c_void_p(driver), ctypes.byref(description), ctypes.byref(context)
                )
                _ze_check("zeContextCreate", status)
                self._context = context
                return
        raise BuildError("no Level Zero device is " + _words(wanted))

    def build(self, image: bytes, options: bytes, facts: Mapping[str, str]) -> bytes:
        """Compile; see `Compiler.build`."""
        library = self._library
        description = _ModuleDesc(
            stype=_ZE_MODULE_DESC, format=_ZE_FORMAT_SPIRV, size=len(image), image=image, options=options
        )
        given = list(_constants(facts))
        ids = (ctypes.c_uint32 * len(given))(*(number for number, _ in given))
        values = (ctypes.c_char_p * len(given))(*(value for _, value in given))
        if given:
            constants = _Constants(len(given), ids, values)
            description.constants = ctypes.addressof(constants)
        module, log = ctypes.c_void_p(), ctypes.c_void_p()
        status = library.zeModuleCreate(
            self._context, self._device, ctypes.byref(description), ctypes.byref(module), ctypes.byref(log)
        )
        try:
            if status != 0:
                raise BuildError(f"zeModuleCreate gave 0x{status & 0xFFFFFFFF:x}: {self._log(log)}")
            size = ctypes.c_size_t(0)
            _ze_check("zeModuleGetNativeBinary", library.zeModuleGetNativeBinary(module, ctypes.byref(size), None))
            if not 0 < size.value <= _LONGEST:
                raise BuildError(f"the binary has {size.value} bytes")
            binary = ctypes.create_string_buffer(size.value)
            _ze_check("zeModuleGetNativeBinary", library.zeModuleGetNativeBinary(module, ctypes.byref(size), binary))
            return binary.raw
        finally:
            if log.value:
                library.zeModuleBuildLogDestroy(log)
            if module.value:
                library.zeModuleDestroy(module)

    def _log(self, log: ctypes.c_void_p) -> str:
        if not log.value:
            return ""
        size = ctypes.c_size_t(0)
        if self._library.zeModuleBuildLogGetString(log, ctypes.byref(size), None) != 0:
            return ""
        buffer = ctypes.create_string_buffer(min(size.value, _LONGEST) + 1)
        self._library.zeModuleBuildLogGetString(log, ctypes.byref(size), buffer)
        return buffer.value.decode("utf-8", "replace")[-_LONGEST_LOG:].strip()


def _ze_check(call: str, status: int) -> None:
    if status != 0:
        raise BuildError(f"{call} gave 0x{status & 0xFFFFFFFF:x}")


def _words(wanted: Sequence[str | None]) -> str:
    return " / ".join(one for one in wanted if one is not None)


# -- the child ----------------------------------------------------------------------------------------------------

_BACKENDS: dict[str, Callable[[Sequence[str | None]], Compiler]] = {"opencl": OpenCl, "level-zero": LevelZero}


def _answer(descriptor: int, head: dict[str, object], content: bytes = b"") -> None:
    view = memoryview(json.dumps(head).encode() + b"\n" + content)
    while view:
        view = view[os.write(descriptor, view) :]


def _serve(compiler: Compiler, descriptor: int) -> None:
    source = sys.stdin.buffer
    while line := source.readline():
        head = json.loads(line)
        options = source.read(int(head["options"]))
        image = source.read(int(head["image"]))
        began = time.monotonic()
        try:
            binary = compiler.build(image, options, head.get("facts", {}))
        except BuildError as error:
            _answer(descriptor, {"id": head["id"], "seconds": time.monotonic() - began, "error": str(error)})
        else:
            seconds = time.monotonic() - began
            _answer(descriptor, {"id": head["id"], "seconds": seconds, "binary": len(binary)}, binary)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile until stdin ends, and leave without giving the driver a chance to fail at exit.

    ``--backend`` names what compiles, and ``--environment`` the four strings of what for, as a JSON list; null is any.
    The answers go to the descriptor ``--fd``.  ``--memory`` is how many bytes of address space it may take.
    """
    options = ["backend=", "environment=", "fd=", "memory="]
    given = dict(getopt.getopt(sys.argv[1:] if arguments is None else arguments, "", options)[0])
    end_with_starter()
    answers, memory = int(given["--fd"]), int(given.get("--memory", "0"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    os.nice(10)
    with contextlib.suppress(OSError):
        # If memory runs out it is this process that goes, and not a program that serves somebody.
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(descriptor, b"900")
        os.close(descriptor)
    try:
        compiler = _BACKENDS[given["--backend"]](json.loads(given["--environment"]))
    except (BuildError, DriverError, OSError, AttributeError) as error:
        _answer(answers, {"error": str(error)})
        os._exit(1)
    _answer(answers, {"ready": True})
    _serve(compiler, answers)
    os._exit(0)


if __name__ == "__main__":
    main()
