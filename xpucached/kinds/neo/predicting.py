"""What stays of a name whatever compiles, and the name itself when nothing but the compiler is another.  Pure.

Another driver adds other options, so what it will look for is known only when it has been asked.
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from xpucached.domain.names import EntryKey
from xpucached.kinds.neo import layout, trace

if TYPE_CHECKING:
    from xpucached.domain.recipes import RecordedRecipe
    from xpucached.domain.targets import Target

_PROGRAMS: Final = re.compile(rb"-cl-intel-(?:\d+-GRF-per-thread|enable-auto-large-GRF-mode)")
"""What of the options that the driver adds the program has asked for: Level Zero puts it there."""

_FILE: Final = re.compile(r"(\d{1,20}) (-?\d{1,20})\Z")


def lineage(lookup: trace.Lookup, digest: str) -> str:
    """Return what stays of an entry's name whatever compiles it; ``digest`` is the SHA-256 of its input."""
    asked = b" ".join(_PROGRAMS.findall(lookup.internal))
    told = (lookup.options, asked, lookup.constants, lookup.values)
    found = hashlib.sha256()
    for part in (digest.encode(), b"cl" if lookup.opencl else b"l0", *told):
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:32]


def lookup_of(told: RecordedRecipe) -> trace.Lookup:
    """Return what a recipe says the driver was asked for; raises what a recipe raises that is none."""
    driver = _DRIVER.decode(told.parts["driver"])
    size, modified, revision = driver.compiler
    return trace.Lookup(
        trace.CompilerFile(size, modified, revision.encode("latin-1") or None),
        told.facts["options"].encode("latin-1"),
        driver.internal.encode("latin-1"),
        bytes.fromhex(told.facts["constants"]),
        bytes.fromhex(told.facts["values"]),
        driver.platform,
        bytes.fromhex(driver.features),
        bytes.fromhex(driver.workarounds),
    )


class KeyPredictor:
    """Makes the names; an input that comes again is hashed once."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._maker = trace.KeyMaker()

    def key(self, told: RecordedRecipe, given: bytes, target: Target) -> EntryKey | None:
        """Return where the entry will lie that is made of ``given`` for a target; None if nobody can predict it.

        Of text that includes other text the driver hashes what the front end made of it, which comes with the compiler:
        so SPIR-V for which it was asked through OpenCL may be another next time.
        """
        if told.target == target:
            return told.key
        file = _FILE.match(dict(target.facts).get("compiler", ""))
        if file is None or replace(told.target, facts=()) != replace(target, facts=()):
            # Of several compilers nobody knows which one the driver loads.
            return None
        try:
            name = self._name(told, given, trace.CompilerFile(int(file[1]), int(file[2])))
        except (KeyError, ValueError, struct.error):
            return None
        place = layout.place(told.key)
        if name is None or place is None:
            return None
        above = "" if place.flat else f"{name[0]}/{name[1]}/"
        return EntryKey(f"{above}{name}{place.suffix}")

    def _name(self, told: RecordedRecipe, given: bytes, compiler: trace.CompilerFile) -> str | None:
        """Return a name; raises what a recipe raises that is none."""
        lookup = lookup_of(told)
        if lookup.compiler.revision:
            # Which revision another compiler will say it is nobody knows.
            return None
        if lineage(lookup, hashlib.sha256(given).hexdigest()) != told.lineage:
            # Somebody has changed the entry in which it stood.
            return None
        if lookup.opencl and trace.is_spirv(given):
            return None
        ip = told.facts["ip"]
        return self._maker.key(lookup, given, int(ip) if ip else None, compiler)


class _Driver(msgspec.Struct, frozen=True):
    """What all programs for a device have in common, as it was recorded."""

    internal: str
    platform: tuple[int, ...]
    features: str
    workarounds: str
    compiler: tuple[int, int, str]


_DRIVER: Final = msgspec.json.Decoder(_Driver)
