"""Observe: how Intel's GPU driver is made to pretend a GPU that is not there; reads the table of known GPUs.

The driver's own file-capture mode does it: it compiles and caches as for the real device, and executes nothing.  The
keys are its debug variables (compute-runtime, ``debug_variables_base.inl``); releases honour them when
``NEOReadDebugKeys`` is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.errors import RequestError
from xpucached.host import product_names
from xpucached.host.gpu_devices import known

if TYPE_CHECKING:
    from collections.abc import Mapping

# Slices x subslices x execution units of each, as large as the product comes.  Tried with compute-runtime 26.27.
SHAPES: Final = {
    "acm-g10": "8x4x16",
    "acm-g11": "2x4x16",
    "acm-g12": "4x4x16",
    "adl-p": "1x6x16",
    "arl-h": "2x4x16",
    "bmg-g21": "1x5x8",
    "bmg-g31": "1x8x8",
    "lnl-m": "1x2x4",
    "mtl-h": "2x4x16",
    "mtl-u": "1x4x16",
    "nvl-u": "1x2x6",
    "ptl-h": "1x2x6",
    "ptl-u": "1x1x4",
    "pvc": "1x8x8",
    "tgllp": "1x6x16",
    "wcl": "1x1x2",
}

_ALWAYS: Final = {
    "NEOReadDebugKeys": "1",
    "SetCommandStreamReceiver": "1",  # capture what would go to the device …
    "UseAubStream": "0",  # … without the library that writes the captures
    # Without these two the driver ends itself on Xe-HPG and Xe2.
    "UseBindlessMode": "0",
    "UseExternalAllocatorForSshAndDsh": "0",
}


def pretend(device: str) -> Mapping[str, str]:
    """Return the variables that make the driver pretend a GPU: a product (``A770``), an architecture, or a PCI id.

    Only with a product or its PCI id it has the name that a real card answers, and so the place in the cache that
    programs on such a card look at; an architecture alone gives the driver's nameless default.  Raises `RequestError`.
    """
    wanted = product_names.one(device)
    row = known().get(wanted)
    architecture = row.architecture if row is not None else wanted
    shape = SHAPES.get(architecture)
    if shape is None:
        hint = f"expected a product such as A770, a PCI id such as 0xe20b, or one of {', '.join(sorted(SHAPES))}"
        raise RequestError(f"device: no GPU {device!r} can be pretended", hint=hint)
    variables = {**_ALWAYS, "ProductFamilyOverride": architecture, "HardwareInfoOverride": shape}
    if row is not None:
        variables["ForceDeviceId"] = row.pci_id
        if row.name:
            variables["OverrideDeviceName"] = row.name
    return variables
