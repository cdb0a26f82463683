"""Act: the child that asks the installed drivers who they are; loads OpenCL or Level Zero, and nothing of ours.

It runs in a fresh process with any Python from 3.9 on (``python driver_probe.py --backend opencl``), because a
driver may crash, hang or print.  With ``--backend runtime --folder DIR`` it asks them through the SYCL
runtime that lies there instead.  It answers one JSON object on the descriptor that ``--fd`` names:
``{"environments": [[platform, device, version, driver], …], "problems": [[code, message, hint], …]}``.

The four strings are composed as Unified Runtime's adapters compose them (read from intel/llvm up to 2026-08, compared
with what runtimes 2025.2 and 2025.3 wrote): OpenCL's own texts byte for byte, and for Level Zero the adapter's name,
the device's name, the IP version, and the driver's version string.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Environments = list[tuple[str, str, str, str]]
Problems = list[tuple[str, str, str]]

_MOST = 64  # platforms, drivers or devices: a wild count from a broken driver must not become an allocation
_LONGEST = 4096  # bytes of one text

_CL_PLATFORM_NAME = 0x0902
_CL_PLATFORM_VENDOR = 0x0903
_CL_DEVICE_NAME = 0x102B
_CL_DRIVER_VERSION = 0x102D
_CL_DEVICE_VERSION = 0x102F
_CL_DEVICE_TYPES = 1 << 1 | 1 << 2 | 1 << 3  # CPU, GPU, accelerator
_CL_DEVICE_NOT_FOUND = -1
_CL_PLATFORM_NOT_FOUND = -1001

_ZE_INIT_GPU_ONLY = 1
_ZE_UNINITIALIZED = 0x78000001
_ZE_DRIVER_PROPERTIES = 0x1
_ZE_DEVICE_PROPERTIES = 0x3
_ZE_DEVICE_IP_VERSION = 0x1000F
_ZE_DEVICE_TYPE_GPU = 1
_ZE_HANDLE_DRIVER = 0
_INTEL = 0x8086

# Which adapter a program uses depends on its runtime and its variables, so a device has an environment for each.
_ZE_PLATFORMS = (
    "Intel(R) oneAPI Unified Runtime over Level-Zero",
    "Intel(R) oneAPI Unified Runtime over Level-Zero V2",
)


class _IpVersion(ctypes.Structure):
    _fields_ = [("stype", ctypes.c_uint32), ("next", ctypes.c_void_p), ("version", ctypes.c_uint32)]


class _DeviceProperties(ctypes.Structure):
    _fields_ = [
        ("stype", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("type", ctypes.c_uint32),
        ("vendor", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("subdevice", ctypes.c_uint32),
        ("clock", ctypes.c_uint32),
        ("allocation", ctypes.c_uint64),
        ("contexts", ctypes.c_uint32),
        ("priority", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("simd", ctypes.c_uint32),
        ("units", ctypes.c_uint32),
        ("subslices", ctypes.c_uint32),
        ("slices", ctypes.c_uint32),
        ("resolution", ctypes.c_uint64),
        ("timestamp", ctypes.c_uint32),
        ("kernel_timestamp", ctypes.c_uint32),
        ("uuid", ctypes.c_uint8 * 16),
        ("name", ctypes.c_char * 256),
        ("reserve", ctypes.c_uint8 * 256),  # a newer driver that writes more than it should
    ]


class _DriverProperties(ctypes.Structure):
    _fields_ = [
        ("stype", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("uuid", ctypes.c_uint8 * 16),
        ("version", ctypes.c_uint32),
        ("reserve", ctypes.c_uint8 * 64),
    ]


class DriverError(Exception):
    """A call into a driver gave an error."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} gave {status}")
        self.status = status


def _text(raw: bytes) -> str:
    """Decode what a C program would see; bytes that are no UTF-8 stay visible as escapes, as those in a store do."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


# -- OpenCL -------------------------------------------------------------------------------------------------------


def _cl_handles(library: ctypes.CDLL, call: str, arguments: Sequence[object]) -> list[int]:
    """Ask an OpenCL function that lists handles: first how many, then which."""
    function = getattr(library, call)
    count = ctypes.c_uint32(0)
    status = function(*arguments, 0, None, ctypes.byref(count))
    if status in (_CL_DEVICE_NOT_FOUND, _CL_PLATFORM_NOT_FOUND):
        return []
    if status != 0:
        raise DriverError(call, status)
    wanted = min(count.value, _MOST)
    if not wanted:
        return []
    handles = (ctypes.c_void_p * wanted)()
    status = function(*arguments, wanted, handles, None)
    if status != 0:
        raise DriverError(call, status)
    return [handle for handle in handles if handle]


def _cl_text(library: ctypes.CDLL, call: str, handle: int, what: int) -> str:
    """Ask an OpenCL function for one text."""
    function = getattr(library, call)
    size = ctypes.c_size_t(0)
    status = function(ctypes.c_void_p(handle), ctypes.c_uint32(what), ctypes.c_size_t(0), None, ctypes.byref(size))
    if status != 0:
        raise DriverError(call, status)
    if size.value > _LONGEST:
        raise DriverError(call, status)
    buffer = ctypes.create_string_buffer(size.value + 1)
    status = function(ctypes.c_void_p(handle), ctypes.c_uint32(what), size, buffer, None)
    if status != 0:
        raise DriverError(call, status)
    return _text(buffer.raw)


def _cl_environments(library: ctypes.CDLL, platform: int) -> Iterator[tuple[int, tuple[str, str, str, str]]]:
    name = _cl_text(library, "clGetPlatformInfo", platform, _CL_PLATFORM_NAME)
    arguments = (ctypes.c_void_p(platform), ctypes.c_uint64(_CL_DEVICE_TYPES))
    for device in _cl_handles(library, "clGetDeviceIDs", arguments):
        kinds = (_CL_DEVICE_NAME, _CL_DEVICE_VERSION, _CL_DRIVER_VERSION)
        texts = [_cl_text(library, "clGetDeviceInfo", device, what) for what in kinds]
        yield device, (name, texts[0], texts[1], texts[2])


def _cl_platforms(library: ctypes.CDLL) -> Iterator[int]:
    for platform in _cl_handles(library, "clGetPlatformIDs", ()):
        try:
            intel = "Intel" in _cl_text(library, "clGetPlatformInfo", platform, _CL_PLATFORM_VENDOR)
        except DriverError:
            # One that cannot say whose it is fails again when it is asked for more, and that is told.
            intel = True
        if intel:
            yield platform


def opencl_devices(library: ctypes.CDLL) -> Iterator[tuple[int, tuple[str, str, str, str]]]:
    """Give Intel's OpenCL devices: handle and environment.  Raises `DriverError`."""
    for platform in _cl_platforms(library):
        yield from _cl_environments(library, platform)


def ask_opencl() -> tuple[Environments, Problems]:
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
        platforms = list(_cl_platforms(library))
    except (DriverError, AttributeError) as error:
        return [], [("opencl-error", f"the OpenCL loader fails: {error}", "try clinfo")]
    for platform in platforms:
        try:
            environments.extend(texts for _, texts in _cl_environments(library, platform))
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


# -- Level Zero ---------------------------------------------------------------------------------------------------


def _ze_check(call: str, status: int) -> None:
    if status != 0:
        raise DriverError(call, status & 0xFFFFFFFF)


def _ze_handles(library: ctypes.CDLL, call: str, arguments: Sequence[object]) -> list[int]:
    """Ask a Level Zero function that lists handles: first how many, then which."""
    function = getattr(library, call)
    count = ctypes.c_uint32(0)
    _ze_check(call, function(*arguments, ctypes.byref(count), None))
    count.value = min(count.value, _MOST)
    if not count.value:
        return []
    handles = (ctypes.c_void_p * _MOST)()
    _ze_check(call, function(*arguments, ctypes.byref(count), handles))
    return [handle for handle in handles[: min(count.value, _MOST)] if handle]


def _ze_version_text(library: ctypes.CDLL, driver: int) -> str | None:
    """Ask the driver for its version string by Intel's extension; None if it has none."""
    # The extension speaks to the driver itself, which needs its own handle and not the loader's.
    own = ctypes.c_void_p(driver)
    translate: Callable[..., int] | None = getattr(library, "zelLoaderTranslateHandle", None)
    if translate is not None:
        translated = ctypes.c_void_p()
        if translate(_ZE_HANDLE_DRIVER, ctypes.c_void_p(driver), ctypes.byref(translated)) == 0 and translated.value:
            own = translated
    address = ctypes.c_void_p()
    status = library.zeDriverGetExtensionFunctionAddress(
        ctypes.c_void_p(driver), b"zeIntelGetDriverVersionString", ctypes.byref(address)
    )
    if status != 0 or not address.value:
        return None
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t))(
        address.value
    )
    size = ctypes.c_size_t(0)
    _ze_check("zeIntelGetDriverVersionString", function(own, None, ctypes.byref(size)))
    if size.value > _LONGEST:
        call = "zeIntelGetDriverVersionString"
        raise DriverError(call, 0)
    # The size does not count a closing zero that some drivers write.
    buffer = ctypes.create_string_buffer(size.value + 64)
    _ze_check("zeIntelGetDriverVersionString", function(own, ctypes.cast(buffer, ctypes.c_char_p), ctypes.byref(size)))
    return _text(buffer.raw)


def version_text(packed: int) -> str:
    """Spell a driver version that is packed as 8 bits major, 8 bits minor, 16 bits build."""
    return f"{packed >> 24 & 0xFF}.{packed >> 16 & 0xFF}.{packed & 0xFFFF}"


def ip_text(packed: int) -> str:
    """Spell a GPU's IP version: 10 bits architecture, 8 bits release, 8 bits unused, 6 bits revision."""
    return f"{packed >> 22 & 0x3FF}.{packed >> 14 & 0xFF}.{packed & 0x3F}"


def _ze_devices(library: ctypes.CDLL, driver: int) -> Iterator[tuple[int, Environments]]:
    """Ask one Level Zero driver for its GPUs, and the environments that each offers."""
    spelled = _ze_version_text(library, driver)
    if spelled is None:
        about = _DriverProperties(stype=_ZE_DRIVER_PROPERTIES)
        call = "zeDriverGetProperties"
        _ze_check(call, library.zeDriverGetProperties(ctypes.c_void_p(driver), ctypes.byref(about)))
        spelled = version_text(about.version)
    for device in _ze_handles(library, "zeDeviceGet", (ctypes.c_void_p(driver),)):
        ip = _IpVersion(stype=_ZE_DEVICE_IP_VERSION)
        properties = _DeviceProperties(stype=_ZE_DEVICE_PROPERTIES, next=ctypes.addressof(ip))
        call = "zeDeviceGetProperties"
        _ze_check(call, library.zeDeviceGetProperties(ctypes.c_void_p(device), ctypes.byref(properties)))
        if properties.type != _ZE_DEVICE_TYPE_GPU or properties.vendor != _INTEL:
            continue
        name = _text(properties.name)
        yield device, [(platform, name, ip_text(ip.version), spelled) for platform in _ZE_PLATFORMS]


def level_zero_devices(library: ctypes.CDLL) -> Iterator[tuple[int, int, Environments]]:
    """Give Intel's Level Zero GPUs: driver, handle and environments.  Raises `DriverError`."""
    _ze_check("zeInit", library.zeInit(_ZE_INIT_GPU_ONLY) & 0xFFFFFFFF)
    for driver in _ze_handles(library, "zeDriverGet", ()):
        for device, environments in _ze_devices(library, driver):
            yield driver, device, environments


def ask_level_zero() -> tuple[Environments, Problems]:
    """Ask the Level Zero drivers of Intel for their GPUs."""
    environments: Environments = []
    problems: Problems = []
    try:
        library = ctypes.CDLL("libze_loader.so.1")
    except OSError as error:
        return [], [
            (
                "no-level-zero",
                f"the Level Zero loader cannot be loaded ({error}): GPUs that programs use through it are not seen",
                "install the package that holds libze_loader.so.1 (libze1, level-zero)",
            )
        ]
    missing = (
        "no-level-zero-driver",
        "no Level Zero driver finds a GPU: GPUs that programs use through it are not seen",
        "install the GPU driver (libze-intel-gpu1, intel-level-zero-gpu), and check who may open /dev/dri",
    )
    try:
        status = library.zeInit(_ZE_INIT_GPU_ONLY) & 0xFFFFFFFF
        if status == _ZE_UNINITIALIZED:
            return [], [missing]
        _ze_check("zeInit", status)
        drivers = _ze_handles(library, "zeDriverGet", ())
    except (DriverError, AttributeError) as error:
        return [], [("level-zero-error", f"the Level Zero loader fails: {_hex(error)}", "")]
    for driver in drivers:
        try:
            for _, offered in _ze_devices(library, driver):
                environments.extend(offered)
        except (DriverError, AttributeError) as error:
            problems.append(("level-zero-error", f"a Level Zero driver fails: {_hex(error)}", ""))
    if not environments and not problems:
        problems.append(missing)
    return environments, problems


def _hex(error: Exception) -> str:
    """Level Zero's headers list its errors in hex."""
    return f"{error} (0x{error.status:x})" if isinstance(error, DriverError) else str(error)


# -- a SYCL runtime -----------------------------------------------------------------------------------------------

# Unified Runtime is the lower half of Intel's SYCL runtime: what it answers is what the cache's paths are made of.
# The numbers are those of 2025.0 to 2026.2; the vendor and the profile show whether a runtime still counts so.
_UR_PLATFORM_NAME = 1
_UR_DEVICE_NAME = 66
_UR_DEVICE_VENDOR = 67
_UR_DEVICE_DRIVER = 68
_UR_DEVICE_PROFILE = 69
_UR_DEVICE_VERSION = 70
_UR_ALL_DEVICES = 2


def _ur_check(call: str, status: int) -> None:
    if status != 0:
        raise DriverError(call, status)


def _ur_handles(library: ctypes.CDLL, call: str, arguments: Sequence[object]) -> list[int]:
    """Ask a Unified Runtime function that lists handles: first how many, then which."""
    function = getattr(library, call)
    count = ctypes.c_uint32(0)
    _ur_check(call, function(*arguments, 0, None, ctypes.byref(count)))
    wanted = min(count.value, _MOST)
    if not wanted:
        return []
    handles = (ctypes.c_void_p * wanted)()
    _ur_check(call, function(*arguments, wanted, handles, None))
    return [handle for handle in handles if handle]


def _ur_text(library: ctypes.CDLL, call: str, handle: int, what: int) -> str:
    """Ask a Unified Runtime function for one text."""
    function = getattr(library, call)
    size = ctypes.c_size_t(0)
    _ur_check(call, function(ctypes.c_void_p(handle), what, ctypes.c_size_t(0), None, ctypes.byref(size)))
    if size.value > _LONGEST:
        raise DriverError(call, 0)
    buffer = ctypes.create_string_buffer(size.value + 1)
    _ur_check(call, function(ctypes.c_void_p(handle), what, size, buffer, None))
    return _text(buffer.raw)


def _ur_platforms(library: ctypes.CDLL, adapter: int) -> list[int]:
    """Ask for an adapter's platforms; the question had another form before 2025.3, with room for several adapters."""
    count, untouched = ctypes.c_uint32(0), ctypes.c_uint32(_MOST + 1)
    # Harmless in both forms: in the older one it asks no adapter, and writes to the last argument or refuses.
    status = library.urPlatformGet(ctypes.c_void_p(adapter), 0, None, ctypes.byref(count), ctypes.byref(untouched))
    if status == 0 and untouched.value == _MOST + 1:
        return _ur_handles(library, "urPlatformGet", (ctypes.c_void_p(adapter),))
    return _ur_handles(library, "urPlatformGet", ((ctypes.c_void_p * 1)(adapter), 1))


def ask_runtime(folder: str) -> tuple[Environments, Problems]:
    """Ask the SYCL runtime in a folder which devices its programs meet."""
    try:
        library = ctypes.CDLL(f"{folder}/libur_loader.so.0")
        _ur_check("urLoaderInit", library.urLoaderInit(0, None))
        environments: Environments = []
        adapters = _ur_handles(library, "urAdapterGet", ())
        for adapter in adapters:
            for platform in _ur_platforms(library, adapter):
                name = _ur_text(library, "urPlatformGetInfo", platform, _UR_PLATFORM_NAME)
                every = (ctypes.c_void_p(platform), _UR_ALL_DEVICES)
                for device in _ur_handles(library, "urDeviceGet", every):
                    texts = [
                        _ur_text(library, "urDeviceGetInfo", device, what)
                        for what in (_UR_DEVICE_NAME, _UR_DEVICE_VERSION, _UR_DEVICE_DRIVER)
                    ]
                    vendor = _ur_text(library, "urDeviceGetInfo", device, _UR_DEVICE_VENDOR)
                    profile = _ur_text(library, "urDeviceGetInfo", device, _UR_DEVICE_PROFILE)
                    if "Intel" in vendor and profile.endswith("PROFILE"):
                        environments.append((name, texts[0], texts[1], texts[2]))
    except (DriverError, OSError, AttributeError) as error:
        return [], [("runtime-error", f"the SYCL runtime in {folder} cannot be asked: {error}", "")]
    return environments, []


# -- the child ----------------------------------------------------------------------------------------------------

BACKENDS = {"opencl": ask_opencl, "level-zero": ask_level_zero}


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, answer, and leave without giving the drivers a chance to fail at exit."""
    parser = argparse.ArgumentParser(prog="driver_probe", description="Ask the installed drivers who they are.")
    parser.add_argument(
        "--backend",
        choices=[*sorted(BACKENDS), "runtime"],
        action="append",
        help="default: all drivers, in this process",
    )
    parser.add_argument("--folder", default="", help="where the SYCL runtime lies, for --backend runtime")
    parser.add_argument("--fd", type=int, default=1, help="where the answer goes (default: stdout)")
    given = parser.parse_args(arguments)
    # A driver that crashes is an answer, not a reason to fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    environments: Environments = []
    problems: Problems = []
    for backend in given.backend or sorted(BACKENDS):
        found, wrong = ask_runtime(given.folder) if backend == "runtime" else BACKENDS[backend]()
        environments.extend(found)
        problems.extend(wrong)
    answer = json.dumps({"environments": environments, "problems": problems}).encode("ascii") + b"\n"
    while answer:
        answer = answer[os.write(given.fd, answer) :]
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
