"""Drivers that lie on this host and are not installed yet, and how far it is prepared for them.  Pure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from xpucached.domain.names import AwareDatetime
from xpucached.domain.targets import Target


class AheadState(StrEnum):
    """How far it is prepared for a driver that is not installed yet."""

    WAITING = "waiting"  #: for a calm host, or for mains power
    PREPARING = "preparing"
    READY = "ready"  #: what is in use was compiled for it
    INCOMPLETE = "incomplete"  #: something that it needs is not there yet: a download may go on
    FAILED = "failed"
    GIVEN_UP = "given-up"  #: it was not installed in time


class StagedPackage(Struct, frozen=True, order=True):
    """A package of a driver or compiler that was downloaded and is not installed."""

    name: str
    version: str
    path: Path
    size: int = 0  #: bytes of the file
    unpacked: int = 0  #: bytes that its files take, as it says itself
    replaces: str = ""  #: the version that is installed now; empty if none is


class StagedDriver(Struct, frozen=True):
    """A driver that lies on this host and is not installed: packages that belong together, or an image."""

    id: str  #: 16 hex digits that are others as soon as anything of it is
    packages: tuple[StagedPackage, ...] = ()  #: in the order in which they are unpacked
    image: Path | None = None  #: the root of a file system that the administrator named
    missing: tuple[str, ...] = ()  #: what speaks against loading it now, for people

    @property
    def what(self) -> str:
        """Name it for people."""
        if self.image is not None:
            return str(self.image)
        return ", ".join(f"{one.name} {one.version}" for one in self.packages)


class Ahead(Struct, frozen=True):
    """How far it is prepared for one driver that is not installed."""

    id: str
    what: str  #: its packages, or the image
    state: AheadState
    drivers: tuple[str, ...] = ()  #: what it calls itself, as `Target.toolchain`; nothing before it was asked
    detail: str = ""
    entries: int = 0  #: that are there for it
    since: AwareDatetime | None = None  #: when it was first seen

    @property
    def words(self) -> str:
        """Say so in half a sentence."""
        name = f"driver {', '.join(self.drivers)}" if self.drivers else self.what
        match self.state:
            case AheadState.READY:
                return f"ready for {name}, not installed yet"
            case AheadState.PREPARING:
                return f"getting ready for {name}, not installed yet"
            case AheadState.GIVEN_UP:
                return f"given up: {name} was not installed in time"
            case AheadState.WAITING | AheadState.INCOMPLETE | AheadState.FAILED:
                return f"not ready for {name}, which is not installed yet"


class PreparedDriver(Struct, frozen=True):
    """What is kept of a driver that is not installed, from one life of the daemon to the next."""

    id: str
    since: AwareDatetime
    environments: tuple[Target, ...] = ()  #: what programs will meet when it is installed; nothing before it was asked
    stamp: str = ""  #: of the driver that compiled for it
