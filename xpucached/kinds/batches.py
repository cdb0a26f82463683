"""Many programs for one store, of which none is found before the disk has all."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.domain.names import EntryKey
    from xpucached.domain.plans import Recipe
    from xpucached.domain.targets import Target


class Batch(AbstractContextManager["Batch"], Protocol):
    """Programs that lie beside a store until all of them are on the disk; what was not published goes at the end."""

    def add(self, recipe: Recipe, environment: Target, binary: bytes) -> None:
        """Write one beside.  Raises OSError."""

    def publish(self) -> Iterator[EntryKey | None]:
        """Wait for the disk, and put each where the runtime looks for it; give its key, in the order they came in.

        None if there is one already, which stays.  Raises OSError.
        """
