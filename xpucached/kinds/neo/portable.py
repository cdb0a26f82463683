"""Recipes that travel.  Entries do not: under which name programs look for one, only a host's own driver says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from xpucached.domain.names import EntryKey
from xpucached.domain.plans import Recipe
from xpucached.domain.stores import EntryId
from xpucached.kinds.neo import trace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from xpucached.domain.bundles import RecipeLine
    from xpucached.domain.stores import Entry, Store
    from xpucached.domain.targets import Target
    from xpucached.kinds.batches import Batch

FORMAT: Final = ""

_LINEAGE: Final = "lineage"
_FACTS: Final = frozenset({"constants", "values"})
_HEX: Final = re.compile(r"(?:[0-9a-f]{2})*\Z")
_NAME: Final = re.compile(r"[0-9a-f]{32}\Z")
_LONGEST: Final = 64 << 10


def is_file(name: str) -> bool:  # noqa: ARG001
    """Return False: no files travel; see `Portable.is_file`."""
    return False


def place(key: EntryKey) -> EntryKey | None:  # noqa: ARG001
    """Return None: no entry travels; see `Portable.place`."""
    return None


def pack(entry: Entry) -> tuple[Mapping[str, bytes], Recipe]:  # noqa: ARG001
    """Refuse; see `Portable.pack`."""
    raise ValueError("only its recipe travels")


def unpack(store: Store, target: Target, files: Mapping[str, bytes]) -> tuple[Recipe, bytes]:  # noqa: ARG001
    """Refuse; see `Portable.unpack`."""
    raise ValueError("programs of this kind do not travel")


def batch(root: Path) -> Batch:  # noqa: ARG001
    """Refuse; see `Portable.batch`."""
    raise ValueError("programs of this kind do not travel")


def walk(store: Store) -> None:  # noqa: ARG001
    """Return None: no entry travels; see `Portable.walk`."""
    return


def lineage(recipe: Recipe) -> str:
    """Return what the trace says of it; see `Portable.lineage`."""
    return recipe.facts[_LINEAGE]


def facts(recipe: Recipe) -> Mapping[str, str]:
    """Return the constants; see `Portable.facts`.  Raises ValueError for source text: it may read files of its host."""
    if not trace.is_spirv(recipe.input):
        raise ValueError("it is compiled from text")
    return {name: recipe.facts[name] for name in _FACTS}


def recipe(store: Store, line: RecipeLine, given: bytes) -> Recipe:
    """Return a recipe that travelled; see `Portable.recipe`.

    The driver that compiles it says whether its name is its own; what has another is not used.
    """
    if not trace.is_spirv(given):
        raise ValueError("it is not one module of SPIR-V")
    if set(line.facts) != _FACTS or not all(
        _HEX.match(one) is not None and len(one) <= _LONGEST for one in line.facts.values()
    ):
        raise ValueError("its facts are not those of a recipe")
    if _NAME.match(line.at) is None:
        raise ValueError("its name is none")
    return Recipe(EntryId(store, EntryKey(line.at)), given, line.options, {**line.facts, _LINEAGE: line.at})
