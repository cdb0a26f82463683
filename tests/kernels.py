"""``kernels.py DIRECTORY LIBSYCL NAME…``: a program of so many small kernels, built with a real SYCL runtime.

What a compiled program would hand to the runtime comes from the assay (``assay.py`` in ``DIRECTORY``), so it needs no
compiler and no numpy, and starts in a tenth of a second.  Each name is a kernel, and so an entry, of its own.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys


def main() -> None:
    """Build them all for the first device."""
    sys.path.insert(0, sys.argv[1])
    assay = importlib.import_module("assay")
    memory = assay._Memory()
    runtime = ctypes.CDLL(sys.argv[2])
    pointer = ctypes.c_void_p
    for name in sys.argv[3:]:
        setattr(assay, "_KERNEL", name)  # noqa: B010 - a constant of its own there
        runtime["__sycl_register_lib"](pointer(assay._program(memory, 2, "single")))
    device, context, bundle = (memory.room() for _ in range(3))
    ctypes.memset(device, assay._PATTERN, assay._LARGEST_OBJECT)
    runtime[assay._DEVICE](pointer(device))
    size = len(ctypes.string_at(device, assay._LARGEST_OBJECT).rstrip(bytes([assay._PATTERN])))
    runtime[assay._CONTEXT](pointer(context), pointer(device), pointer(memory.room()))
    devices = memory.put(assay._words(device, device + size, device + size))
    runtime[assay._BUNDLE](pointer(bundle), pointer(context), pointer(devices), ctypes.c_int(assay._EXECUTABLE))
    print("built", len(sys.argv[3:]), flush=True)
    # As the assay does: the runtime's own end would meet objects that are half ours.
    os._exit(0)


if __name__ == "__main__":
    main()
