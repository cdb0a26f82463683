"""Entries that came into stores with a bundle, and of whom: told one by one, as an import may end at any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from xpucached.domain.bundles import BundleSource, MadeEntry

if TYPE_CHECKING:
    from collections.abc import Iterable


class EntriesCame(Struct, frozen=True):
    """Entries that came with a bundle, of one source."""

    bundle: str
    source: BundleSource
    made: tuple[MadeEntry, ...]
    coming: bool = False  #: they are not in their stores yet, and are put there once this was noted


def together(came: Iterable[EntriesCame]) -> tuple[EntriesCame, ...]:
    """Return the same, with what came of one source together."""
    found: dict[tuple[str, BundleSource, bool], list[MadeEntry]] = {}
    for one in came:
        found.setdefault((one.bundle, one.source, one.coming), []).extend(one.made)
    return tuple(EntriesCame(bundle, source, tuple(made), coming) for (bundle, source, coming), made in found.items())
