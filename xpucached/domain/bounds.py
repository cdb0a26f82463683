"""What may be configured for a field: stands beside its type, and `settings.values` reads what people write.  Pure."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

DAY: Final = 86400.0

UNLIMITED: Final = "unlimited"


class Whole(Struct, frozen=True):
    """A whole number between two others."""

    least: int
    most: int


class Duration(Struct, frozen=True):
    """Seconds between two bounds, written with or without a unit."""

    least: float
    most: float
    unlimited: float | bool | None = False  #: what this word stands for; False: it may not be said


class Size(Struct, frozen=True):
    """Bytes above 0, written with or without a unit."""

    unlimited: bool = False  #: whether this word may be said …
    lifted: int | None = None  #: … and what it stands for


class Percent(Struct, frozen=True):
    """Whole percent above 0, or unlimited, for None."""


class Window(Struct, frozen=True):
    """From one time of day to another, in minutes after midnight; always, for None."""


class Units(Struct, frozen=True):
    """Full names of systemd's units."""


class NamedBy(Struct, frozen=True):
    """Tables by name, which is read into this field of what each of them says."""

    field: str
