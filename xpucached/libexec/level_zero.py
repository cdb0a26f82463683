"""Ask Level Zero's drivers for their GPUs."""

from __future__ import annotations

import ctypes

from .driver_calls import LONGEST, MOST, DriverError, Environments, Problems, text

TYPE_CHECKING = False  # as in `driver_calls`

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_INIT_GPU_ONLY = 1
_UNINITIALIZED = 0x78000001
_DRIVER_PROPERTIES = 0x1
_DEVICE_PROPERTIES = 0x3
_DEVICE_IP_VERSION = 0x1000F
_DEVICE_TYPE_GPU = 1
_HANDLE_DRIVER = 0
_INTEL = 0x8086

# Which adapter a program uses depends on its runtime and its variables, so a device has an environment for each.
_PLATFORMS = (
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


def _check(call: str, status: int) -> None:
    if status != 0:
        raise DriverError(call, status & 0xFFFFFFFF)


def _handles(library: ctypes.CDLL, call: str, arguments: Sequence[object]) -> list[int]:
    """Ask a Level Zero function that lists handles: first how many, then which."""
    function = getattr(library, call)
    count = ctypes.c_uint32(0)
    _check(call, function(*arguments, ctypes.byref(count), None))
    count.value = min(count.value, MOST)
    if not count.value:
        return []
    handles = (ctypes.c_void_p * MOST)()
    _check(call, function(*arguments, ctypes.byref(count), handles))
    return [handle for handle in handles[: min(count.value, MOST)] if handle]


def _version_text(library: ctypes.CDLL, driver: int) -> str | None:
    """Ask the driver for its version string by Intel's extension; None if it has none."""
    # The extension speaks to the driver itself, which needs its own handle and not the loader's.
    own = ctypes.c_void_p(driver)
    translate: Callable[..., int] | None = getattr(library, "zelLoaderTranslateHandle", None)
    if translate is not None:
        translated = ctypes.c_void_p()
        if translate(_HANDLE_DRIVER, ctypes.c_void_p(driver), ctypes.byref(translated)) == 0 and translated.value:
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
    _check("zeIntelGetDriverVersionString", function(own, None, ctypes.byref(size)))
    if size.value > LONGEST:
        call = "zeIntelGetDriverVersionString"
        raise DriverError(call, 0)
    # The size does not count a closing zero that some drivers write.
    buffer = ctypes.create_string_buffer(size.value + 64)
    _check("zeIntelGetDriverVersionString", function(own, ctypes.cast(buffer, ctypes.c_char_p), ctypes.byref(size)))
    return text(buffer.raw)


def version_text(packed: int) -> str:
    """Spell a driver version that is packed as 8 bits major, 8 bits minor, 16 bits build."""
    return f"{packed >> 24 & 0xFF}.{packed >> 16 & 0xFF}.{packed & 0xFFFF}"


def ip_text(packed: int) -> str:
    """Spell a GPU's IP version: 10 bits architecture, 8 bits release, 8 bits unused, 6 bits revision."""
    return f"{packed >> 22 & 0x3FF}.{packed >> 14 & 0xFF}.{packed & 0x3F}"


def _devices(library: ctypes.CDLL, driver: int) -> Iterator[tuple[int, Environments]]:
    """Ask one Level Zero driver for its GPUs, and the environments that each offers."""
    spelled = _version_text(library, driver)
    if spelled is None:
        about = _DriverProperties(stype=_DRIVER_PROPERTIES)
        call = "zeDriverGetProperties"
        _check(call, library.zeDriverGetProperties(ctypes.c_void_p(driver), ctypes.byref(about)))
        spelled = version_text(about.version)
    for device in _handles(library, "zeDeviceGet", (ctypes.c_void_p(driver),)):
        ip = _IpVersion(stype=_DEVICE_IP_VERSION)
        properties = _DeviceProperties(stype=_DEVICE_PROPERTIES, next=ctypes.addressof(ip))
        call = "zeDeviceGetProperties"
        _check(call, library.zeDeviceGetProperties(ctypes.c_void_p(device), ctypes.byref(properties)))
        if properties.type != _DEVICE_TYPE_GPU or properties.vendor != _INTEL:
            continue
        name = text(properties.name)
        yield device, [(platform, name, ip_text(ip.version), spelled) for platform in _PLATFORMS]


def devices(library: ctypes.CDLL) -> Iterator[tuple[int, int, Environments]]:
    """Yield Intel's Level Zero GPUs: driver, handle and environments.

    Raises `DriverError`, at the end if only some of the drivers failed.
    """
    failed = None
    _check("zeInit", library.zeInit(_INIT_GPU_ONLY) & 0xFFFFFFFF)
    for driver in _handles(library, "zeDriverGet", ()):
        try:
            for device, environments in _devices(library, driver):
                yield driver, device, environments
        except DriverError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def ask() -> tuple[Environments, Problems]:
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
        status = library.zeInit(_INIT_GPU_ONLY) & 0xFFFFFFFF
        if status == _UNINITIALIZED:
            return [], [missing]
        _check("zeInit", status)
        drivers = _handles(library, "zeDriverGet", ())
    except (DriverError, AttributeError) as error:
        return [], [("level-zero-error", f"the Level Zero loader fails: {_hex(error)}", "")]
    for driver in drivers:
        try:
            for _, offered in _devices(library, driver):
                environments.extend(offered)
        except (DriverError, AttributeError) as error:
            problems.append(("level-zero-error", f"a Level Zero driver fails: {_hex(error)}", ""))
    if not environments and not problems:
        problems.append(missing)
    return environments, problems


def _hex(error: Exception) -> str:
    """Level Zero's headers list its errors in hex."""
    return f"{error} (0x{error.status:x})" if isinstance(error, DriverError) else str(error)
