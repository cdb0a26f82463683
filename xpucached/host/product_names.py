"""Observe: GPUs by the names that people call them, ``A770`` or ``Meteor Lake``; reads the table of known GPUs."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from xpucached.errors import RequestError
from xpucached.host.gpu_devices import Gpu, known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain.names import Architecture

_GENERATIONS: Final = {
    "ADLN": "Alder Lake",
    "ADLP": "Alder Lake",
    "ADLS": "Alder Lake",
    "ARL": "Arrow Lake",
    "BMG": "Battlemage",
    "CRI": "Crescent Island",
    "DG1": "DG1",
    "DG2": "Alchemist",
    "LNL": "Lunar Lake",
    "MTL": "Meteor Lake",
    "NVLP": "Nova Lake",
    "NVLS": "Nova Lake",
    "PTL": "Panther Lake",
    "PVC": "Ponte Vecchio",
    "RKL": "Rocket Lake",
    "TGLLP": "Tiger Lake",
}
_RAPTOR: Final = "0xa7"
"""How the PCI ids of Raptor Lake begin; to the driver's compiler these are Alder Lake."""

_NOISE: Final = re.compile(r"\((?:r|tm)\)|\b(?:intel|arc|graphics|gpu|data center)\b")
_GAPS: Final = re.compile(r"[^a-z0-9]+")


def generation(gpu: Gpu) -> str:
    """Return what a GPU's generation is called, ``Battlemage``; empty if that is not known."""
    if gpu.pci_id.startswith(_RAPTOR):
        return "Raptor Lake"
    return "Wildcat Lake" if gpu.architecture == "wcl" else _GENERATIONS.get(gpu.product, "")


def spoken(name: str) -> str:
    """Return a device's name as people say it: ``Arc A770`` for ``Intel(R) Arc(TM) A770 Graphics``."""
    return " ".join(re.sub(r"\((?:R|TM)\)|\bIntel\b|\bGraphics\b", " ", name).split()) or name


def named(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs that somebody means: by PCI id, architecture, product (``B580``) or generation (``Meteor Lake``).

    Capital letters, blanks, and words such as ``Intel`` and ``Arc`` do not count.  Empty if there is none.
    """
    wanted = text.strip().lower()
    if wanted in known():
        return (known()[wanted],)
    exact = tuple(gpu for gpu in known().values() if gpu.architecture == wanted)
    return exact or tuple(known()[one] for one in _by_name().get(_bare(wanted), ()))


def architectures(text: str) -> tuple[Architecture, ...]:
    """Return the architectures of the GPUs that somebody means, sorted; empty if there are none."""
    return tuple(sorted({gpu.architecture for gpu in named(text)}))


def one(text: str) -> str:
    """Return the PCI id of the one product that somebody means, or its architecture where only that was named.

    A text that names nothing comes back as it is.  Raises `RequestError` for a name of several, which it tells.
    """
    found = named(text)
    wanted = text.strip().lower()
    if not found or wanted in known() or any(gpu.architecture == wanted for gpu in found):
        return wanted
    if len(found) > 1:
        ids = ", ".join(gpu.pci_id for gpu in found[:_NAMED]) + (", …" if len(found) > _NAMED else "")
        hint = f"name the one: lspci -nn shows it behind 8086: ({ids}); or the architecture: "
        raise RequestError(
            f"device: {text!r} is the name of {len(found)} GPUs", hint=hint + ", ".join(architectures(text))
        )
    return found[0].pci_id


_NAMED: Final = 8
"""PCI ids that a hint names."""


def _bare(name: str) -> str:
    return _GAPS.sub("", _NOISE.sub(" ", name.lower()))


@functools.cache
def _by_name() -> Mapping[str, tuple[str, ...]]:
    """Map what a GPU is called, its short names too, to PCI ids."""
    found: dict[str, list[str]] = {}
    for gpu in known().values():
        first, *others = gpu.name.split("/")
        # "Arc(TM) Pro A40/A50 Graphics" are two.
        begin = first.rpartition(" ")[0]
        called = {first, *(f"{begin} {name}" for name in others), generation(gpu), gpu.product}
        for name in {bare for one in called if (bare := _bare(one))}:
            found.setdefault(name, []).append(gpu.pci_id)
    return {name: tuple(ids) for name, ids in found.items()}
