"""What a compiled program is valid for.  Pure."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr

from xpucached.domain.names import Fingerprint, KindName

Lineage = tuple[KindName, str, str]


class Target(Struct, frozen=True, order=True):
    """What a compiled program is valid for: a device, and what compiles for it, in the words of the entry's kind."""

    kind: KindName
    family: str  #: how programs reach the device; from one source, each device of a family can be compiled for
    device: str
    toolchain: str  #: what compiles, in its version: the driver's, or its compiler's
    facts: tuple[tuple[str, str], ...] = ()  #: what else of the toolchain has to be the same: names and values
    fingerprint: Fingerprint = Fingerprint("")  #: 16 hex digits that stand for all of it everywhere, made of it

    def __post_init__(self) -> None:
        """Derive the fingerprint, whatever was given."""
        words = (self.kind, self.family, self.device, self.toolchain, *(text for fact in self.facts for text in fact))
        digest = hashlib.blake2b("\0".join(words).encode("utf-8", "surrogatepass"), digest_size=8)
        force_setattr(self, "fingerprint", Fingerprint(digest.hexdigest()))

    @property
    def lineage(self) -> Lineage:
        """What stays the same when only the toolchain changes: successive targets of one lineage are generations."""
        return (self.kind, self.family, self.device)


class Origin(StrEnum):
    """How we know an entry's environment; and of an entry that no program here made, how it came about."""

    DECLARED = "declared"  #: the entry itself says so
    OBSERVED = "observed"  #: the entry does not say; a neighbour in the store does
    REBUILT = "rebuilt"  #: we compiled it, with the driver that this host had then
    AHEAD = "built-ahead"  #: we compiled it with a driver that was not installed here
    IMPORTED = "imported"  #: it came in a bundle that a trusted key had signed
    SIMULATED = "simulated"  #: we compiled it for a GPU that this host does not have


OUR_WORK: Final = frozenset({Origin.REBUILT, Origin.AHEAD, Origin.SIMULATED})
"""Of what no program compiled, but we."""
