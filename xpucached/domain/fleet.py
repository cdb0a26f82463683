"""Many hosts: what of each decides whether the programs of one serve another, and in what they differ.  Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import force_setattr

from xpucached.domain.bundles import CompilerLibrary
from xpucached.domain.targets import Target

FINGERPRINT_SCHEMA = 1
"""The version of `HostFingerprint`; another one is not read."""


class HostTarget(Struct, frozen=True, order=True):
    """What programs of a host are compiled for, and for which instructions."""

    target: Target
    isa: str = ""  #: empty: not known


class HostWarm(Struct, frozen=True):
    """What a host's daemon keeps warm."""

    entries: int
    models: Mapping[str, int] = field(default_factory=dict)  #: by how they stand


class HostFingerprint(Struct, frozen=True):
    """A host's driver, compiler, devices and formats; no path and no time.

    ``fingerprint`` is made of these only: not of the host's name, nor of what is warm.
    """

    targets: tuple[HostTarget, ...]
    compiler: tuple[CompilerLibrary, ...]  #: empty: not known
    formats: Mapping[str, str] = field(default_factory=dict)  #: how each kind lays out programs that can travel
    host: str = ""
    warm: HostWarm | None = None  #: None: not known
    schema: int = FINGERPRINT_SCHEMA
    fingerprint: str = ""  #: 16 hex digits; empty where something of it is not known, and then equal to no other

    def __post_init__(self) -> None:
        """Derive the fingerprint, whatever was given."""
        force_setattr(self, "fingerprint", "" if self.unknown else self._digest())

    @property
    def unknown(self) -> tuple[str, ...]:
        """What of it is not known."""
        found = []
        if not self.targets:
            found.append("devices")
        if not self.compiler:
            found.append("compiler")
        if any(not one.isa for one in self.targets if one.target.kind in self.formats):
            found.append("instructions")
        return tuple(found)

    def _digest(self) -> str:
        told = {
            "schema": self.schema,
            "targets": sorted({(one.target.fingerprint, one.isa) for one in self.targets}),
            "compiler": sorted({(one.name, one.id) for one in self.compiler}),
            "formats": dict(self.formats),
        }
        text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class FleetHost(Struct, frozen=True):
    """A host of several."""

    name: str  #: as it calls itself, or where it was read
    told: HostFingerprint


class FleetDifference(Struct, frozen=True):
    """One thing that is otherwise than on most hosts."""

    what: str
    here: str
    most: str


class FleetTaking(Struct, frozen=True):
    """What hosts could take from a bundle."""

    bundle: Path
    taking: str  #: ``binaries``, ``recipes`` or ``nothing``
    why: str = ""  #: why not more; or whose key they have to trust


class FleetGroup(Struct, frozen=True):
    """Hosts that are equal; the first group has most."""

    fingerprint: str  #: empty: of this host something is not known
    hosts: tuple[str, ...]
    told: HostFingerprint
    differences: tuple[FleetDifference, ...] = ()
    takes: tuple[FleetTaking, ...] = ()


class UnreadFingerprint(Struct, frozen=True):
    """A fingerprint that could not be read."""

    source: str
    why: str


# -- what is asked, and what came of it -------------------------------------------------------------------------------


class AskFingerprint(Struct, frozen=True, tag="fingerprint", tag_field="order"):
    """Say what decides on this host about compiled programs."""

    driver_root: Path | None = None
    device: str | None = None


class DiffFleet(Struct, frozen=True, tag="fleet", tag_field="order"):
    """Compare the fingerprints of hosts."""

    sources: tuple[Path, ...]  #: files, and folders with files that end with ``.json``
    given: str | None = None  #: what came on standard input
    bundles: tuple[Path, ...] = ()


class FingerprintReport(Struct, frozen=True, tag="fingerprint", tag_field="kind"):
    """What decides on this host about compiled programs."""

    told: HostFingerprint


class FleetReport(Struct, frozen=True, tag="fleet", tag_field="kind"):
    """Which hosts differ, and in what."""

    groups: tuple[FleetGroup, ...]
    unreadable: tuple[UnreadFingerprint, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all hosts are known to be equal."""
        return len(self.groups) == 1 and bool(self.groups[0].fingerprint) and not self.unreadable


FleetOrder = AskFingerprint | DiffFleet
