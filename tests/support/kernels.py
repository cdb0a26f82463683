"""``kernels.py DIRECTORY LIBSYCL NAME…``: a program of so many small kernels, built with a real SYCL runtime.

What a compiled program would hand to the runtime comes from ``sycl_check.py`` in ``DIRECTORY``, so it needs
no compiler and no numpy, and starts in a tenth of a second.  Each name is a kernel, and so an entry, of its own.
``kernels:use`` is the same for a loader.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys

TYPE_CHECKING = False  # type checkers take it for true; it starts hundreds of times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def build(directory: str, library: str, names: Sequence[str]) -> None:
    """Build them all for the first device."""
    sys.path.insert(0, directory)
    check_runtime = importlib.import_module("sycl_check")
    memory = check_runtime._Memory()
    runtime = ctypes.CDLL(library)
    pointer = ctypes.c_void_p
    for name in names:
        setattr(check_runtime, "_KERNEL", name)  # noqa: B010 - a constant of its own there
        runtime["__sycl_register_lib"](pointer(check_runtime._program(memory, 2, "single")))
    device, context, bundle = (memory.room() for _ in range(3))
    ctypes.memset(device, check_runtime._PATTERN, check_runtime._LARGEST_OBJECT)
    runtime[check_runtime._DEVICE](pointer(device))
    size = len(ctypes.string_at(device, check_runtime._LARGEST_OBJECT).rstrip(bytes([check_runtime._PATTERN])))
    runtime[check_runtime._CONTEXT](pointer(context), pointer(device), pointer(memory.room()))
    devices = memory.put(check_runtime._words(device, device + size, device + size))
    runtime[check_runtime._BUNDLE](
        pointer(bundle), pointer(context), pointer(devices), ctypes.c_int(check_runtime._EXECUTABLE)
    )
    print("built", len(names), flush=True)


def use(directory: str, library: str, names: str, shape: object = ()) -> Callable[[], str]:
    """Build them, and give what does nothing more: no process builds a program twice, and none of it has a shape."""
    build(directory, library, names.split())
    return lambda: "built"


def main() -> None:
    """Do so, and leave as that check does: the runtime's own end would meet objects that are half ours."""
    build(sys.argv[1], sys.argv[2], sys.argv[3:])
    os._exit(0)


if __name__ == "__main__":
    main()
