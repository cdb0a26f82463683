"""Ask OpenCL's drivers for their devices."""

from __future__ import annotations

import ctypes

from .driver_calls import DriverError, Environments, Problems, handles, text_of

TYPE_CHECKING = False  # as in `driver_calls`

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLATFORM_NAME = 0x0902
_PLATFORM_VENDOR = 0x0903
_DEVICE_NAME = 0x102B
_DRIVER_VERSION = 0x102D
_DEVICE_VERSION = 0x102F
_DEVICE_TYPES = 1 << 1 | 1 << 2 | 1 << 3  # CPU, GPU, accelerator
_NOTHING = (-1, -1001)  # CL_DEVICE_NOT_FOUND, CL_PLATFORM_NOT_FOUND_KHR


def _environments(library: ctypes.CDLL, platform: int) -> Iterator[tuple[int, tuple[str, str, str, str]]]:
    name = text_of(library, "clGetPlatformInfo", platform, _PLATFORM_NAME)
    arguments = (ctypes.c_void_p(platform), ctypes.c_uint64(_DEVICE_TYPES))
    for device in handles(library, "clGetDeviceIDs", arguments, _NOTHING):
        kinds = (_DEVICE_NAME, _DEVICE_VERSION, _DRIVER_VERSION)
        texts = [text_of(library, "clGetDeviceInfo", device, what) for what in kinds]
        yield device, (name, texts[0], texts[1], texts[2])


def _platforms(library: ctypes.CDLL) -> Iterator[int]:
    for platform in handles(library, "clGetPlatformIDs", (), _NOTHING):
        try:
            intel = "Intel" in text_of(library, "clGetPlatformInfo", platform, _PLATFORM_VENDOR)
        except DriverError:
            # One that cannot say whose it is fails again when it is asked for more, and that is told.
            intel = True
        if intel:
            yield platform


def devices(library: ctypes.CDLL) -> Iterator[tuple[int, tuple[str, str, str, str]]]:
    """Yield Intel's OpenCL devices: handle and environment.  Raises `DriverError` at the end, if a driver failed."""
    failed = None
    for platform in _platforms(library):
        try:
            yield from _environments(library, platform)
        except DriverError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def ask() -> tuple[Environments, Problems]:
    """Ask the OpenCL drivers of Intel for their devices."""
    environments: Environments = []
    problems: Problems = []
    try:
        library = ctypes.CDLL("libOpenCL.so.1")
    except OSError as error:
        return [], [
            (
                "no-opencl",
                f"the OpenCL loader cannot be loaded ({error}): devices that programs use through OpenCL are not seen",
                "install the package that holds libOpenCL.so.1 (ocl-icd, intel-opencl-icd, intel-opencl-rt)",
            )
        ]
    try:
        platforms = list(_platforms(library))
    except (DriverError, AttributeError) as error:
        return [], [("opencl-error", f"the OpenCL loader fails: {error}", "try clinfo")]
    for platform in platforms:
        try:
            environments.extend(texts for _, texts in _environments(library, platform))
        except (DriverError, AttributeError) as error:
            problems.append(("opencl-error", f"an OpenCL driver fails: {error}", "try clinfo"))
    if not platforms:
        problems.append(
            (
                "no-opencl-driver",
                "no OpenCL driver of Intel is installed: devices that programs use through OpenCL are not seen",
                "install intel-opencl-icd for the GPU or intel-opencl-rt for the CPU",
            )
        )
    return environments, problems
