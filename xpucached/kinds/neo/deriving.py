"""How an entry is compiled that no run told of: from what it holds itself, with what is told of its driver.

The name of an entry is made of its input, its options and what all programs for a device have in common.  An entry that
was compiled from SPIR-V holds the first two, and the recipe of another one the last.  If its name comes out of them, it
is known how it was made, as surely as by a trace.  What was compiled from text does not hold that.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.binaries import formats, zebin
from xpucached.domain.recipes import RecordedRecipe
from xpucached.kinds import fs, removal
from xpucached.kinds.neo import layout, predicting, trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.domain.stores import EntryId

COMMON: Final = "driver"
"""The part of a recipe that programs for a device have in common; see `Recorder.COMMON`."""

_LONGEST: Final = 16 << 20
"""Bytes of an entry that are read."""

_HASHED: Final = 4 << 20
"""Bytes of SPIR-V: to hash a million takes 0.7 s."""

_MAKER: Final = trace.KeyMaker()


def derive(entry: EntryId, alike: Sequence[RecordedRecipe]) -> RecordedRecipe | None:
    """Return how an entry is compiled; see `Recorder.derive`."""
    place = layout.place(entry.key)
    if place is None:
        return None
    with (
        removal.opened(entry) as (descriptors, name, _),
        fs.regular_file(descriptors[-1], name) as (descriptor, status),
    ):
        if status.st_size > _LONGEST:
            return None
        program = fs.read(descriptor, status.st_size)
    try:
        told, image = zebin.read(program), zebin.image(program)
    except ValueError:
        return None
    if not trace.is_spirv(image) or len(image) > _HASHED:
        return None
    if layout.INTERFACES[place.suffix] == "OpenCL" and formats.is_from_opencl_c(image):
        # Of a text the driver hashes that, and not what its front end makes of it.
        return None
    found = (_derived(entry, place, told, image, one) for one in alike)
    return next((one for one in found if one is not None), None)


def _derived(
    entry: EntryId, place: layout.EntryPlace, told: zebin.Zebin, image: bytes, alike: RecordedRecipe
) -> RecordedRecipe | None:
    """Return how an entry is compiled, if its name comes out of it and of a recipe of another one."""
    other, ip = layout.place(alike.key), alike.facts.get("ip", "")
    if other is None or (other.suffix, other.flat) != (place.suffix, place.flat) or ip not in ("", str(told.ip)):
        return None
    try:
        lookup = replace(predicting.lookup_of(alike), options=told.options.encode(), constants=b"", values=b"")
        if _MAKER.key(lookup, image, int(ip) if ip else None) != place.hash:
            return None
    except (KeyError, ValueError, struct.error):
        # A recipe that is none.
        return None
    facts = {"options": lookup.options.decode("latin-1"), "constants": "", "values": "", "ip": ip}
    lineage = predicting.lineage(lookup, hashlib.sha256(image).hexdigest())
    return RecordedRecipe(entry.key, alike.target, lineage, {COMMON: alike.parts[COMMON]}, facts)
