"""Ask a SYCL runtime which devices its programs meet."""

from __future__ import annotations

import ctypes

from .driver_calls import MOST, DriverError, Environments, Problems, check, handles, text_of

TYPE_CHECKING = False  # as in `driver_calls`

if TYPE_CHECKING:
    from collections.abc import Iterator

# Unified Runtime is the lower half of Intel's SYCL runtime: what it answers is what the cache's paths are made of.
# The numbers are those of 2025.0 to 2026.2; the vendor and the profile show whether a runtime still counts so.
_PLATFORM_NAME = 1
_DEVICE_NAME = 66
_DEVICE_VENDOR = 67
_DEVICE_DRIVER = 68
_DEVICE_PROFILE = 69
_DEVICE_VERSION = 70
_ALL_DEVICES = 2


def _platforms(library: ctypes.CDLL, adapter: int) -> list[int]:
    """Ask for an adapter's platforms; the question had another form before 2025.3, with room for several adapters."""
    count, untouched = ctypes.c_uint32(0), ctypes.c_uint32(MOST + 1)
    # Harmless in both forms: in the older one it asks no adapter, and writes to the last argument or refuses.
    status = library.urPlatformGet(ctypes.c_void_p(adapter), 0, None, ctypes.byref(count), ctypes.byref(untouched))
    if status == 0 and untouched.value == MOST + 1:
        return handles(library, "urPlatformGet", (ctypes.c_void_p(adapter),))
    return handles(library, "urPlatformGet", ((ctypes.c_void_p * 1)(adapter), 1))


def ask(folder: str) -> tuple[Environments, Problems]:
    """Ask the SYCL runtime in a folder which devices its programs meet."""
    environments: Environments = []
    problems: Problems = []
    try:
        library = ctypes.CDLL(f"{folder}/libur_loader.so.0")
        check("urLoaderInit", library.urLoaderInit(0, None))
        adapters = handles(library, "urAdapterGet", ())
    except (DriverError, OSError, AttributeError) as error:
        return [], [_problem(folder, error)]
    for adapter in adapters:
        try:
            environments.extend(_environments(library, adapter))
        except (DriverError, AttributeError) as error:
            problems.append(_problem(folder, error))
    return environments, problems


def _environments(library: ctypes.CDLL, adapter: int) -> Iterator[tuple[str, str, str, str]]:
    for platform in _platforms(library, adapter):
        name = text_of(library, "urPlatformGetInfo", platform, _PLATFORM_NAME)
        for device in handles(library, "urDeviceGet", (ctypes.c_void_p(platform), _ALL_DEVICES)):
            texts = [
                text_of(library, "urDeviceGetInfo", device, what)
                for what in (_DEVICE_NAME, _DEVICE_VERSION, _DEVICE_DRIVER)
            ]
            vendor = text_of(library, "urDeviceGetInfo", device, _DEVICE_VENDOR)
            profile = text_of(library, "urDeviceGetInfo", device, _DEVICE_PROFILE)
            if "Intel" in vendor and profile.endswith("PROFILE"):
                yield name, texts[0], texts[1], texts[2]


def _problem(folder: str, error: Exception) -> tuple[str, str, str]:
    return "runtime-error", f"the SYCL runtime in {folder} cannot be asked: {error}", ""
