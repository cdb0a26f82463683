"""What a compiled program is valid for.  Pure."""

from __future__ import annotations

import hashlib
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import force_setattr

from xpucached.domain.names import Fingerprint


class Target(Struct, frozen=True, order=True):
    """What a compiled program is valid for, in the runtime's own four strings."""

    platform: str
    device: str
    version: str
    driver: str
    fingerprint: Fingerprint = Fingerprint("")  #: 16 hex digits that stand for the four everywhere, made of them

    def __post_init__(self) -> None:
        """Derive the fingerprint, whatever was given."""
        digest = hashlib.blake2b(self.identity.encode("utf-8", "surrogatepass"), digest_size=8)
        force_setattr(self, "fingerprint", Fingerprint(digest.hexdigest()))

    @property
    def identity(self) -> str:
        """The runtime's device id string, as it stands in a SYCL entry."""
        return f"{self.platform}/{self.device}/{self.version}/{self.driver}"

    @property
    def lineage(self) -> tuple[str, str]:
        """What stays the same when only the driver changes: successive environments of one lineage are generations."""
        return (self.platform, self.device)


class Origin(StrEnum):
    """How we know an entry's environment; and of an entry that no program but we compiled, with which driver."""

    DECLARED = "declared"  #: the entry itself says so
    OBSERVED = "observed"  #: the entry does not say; a neighbour in the store does
    REBUILT = "rebuilt"  #: we compiled it, with the driver that this host had then
    AHEAD = "built-ahead"  #: we compiled it with a driver that was not installed here
    SIMULATED = "simulated"  #: we compiled it for a GPU that this host does not have
