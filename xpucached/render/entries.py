"""Door: stores and what is in them, for people.  Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from xpucached.domain.plans import NoRecipe
from xpucached.domain.stores import EntryState, StoreOrigin, StoreState
from xpucached.domain.usage import CostSource
from xpucached.printing import plain
from xpucached.render.caches import caches
from xpucached.render.text import Cell, Colour, age, count, facts, fits, seconds, section, size, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xpucached.domain.plans import IndexedEntry, SameInput
    from xpucached.domain.queries import EntryPage
    from xpucached.domain.stores import Lookups, StoreStatus
    from xpucached.render.text import TextStyle


def stores(values: Sequence[StoreStatus], style: TextStyle, owners: Sequence[str] = ()) -> str:
    """Write one line per store, and below the table what is worth knowing about one; then directories of models."""
    others = [number for number, one in enumerate(values) if one.cache is not None]
    if not others:
        return _stores(values, style, owners)
    whose = [owners[number] for number in others] if owners else ()
    written = caches([one.cache for one in values if one.cache is not None], style, whose)
    real = [number for number, one in enumerate(values) if one.cache is None]
    text = _stores([values[number] for number in real], style, [owners[number] for number in real] if owners else ())
    return f"{text}\n\n{section('Other caches of models', written, style)}"


def _stores(values: Sequence[StoreStatus], style: TextStyle, owners: Sequence[str]) -> str:
    if not values:
        return "no stores"
    rows: list[list[str | Cell]] = [
        [
            one.kind,
            str(one.store),
            Cell(one.state, Colour.YELLOW if _amiss(one) else None),
            str(one.entries),
            Cell(str(one.defective), Colour.YELLOW if one.defective else None),
            size(one.allocated),
            age(one.scanned, style.now),
            one.origin if one.via in {"", one.origin} else f"{one.origin}: {one.via}",
        ]
        for one in values
    ]
    heads = ("KIND", "STORE", "STATE", "ENTRIES", "DEFECTIVE", "SIZE", "LOOKED AT", "ORIGIN")
    text = table(heads, rows, style, right="ENTRIES DEFECTIVE SIZE", owners=owners)
    notes = [
        f"{style.paint('!', Colour.YELLOW)} {plain(f'{one.store}: {note}')}" for one in values for note in one.notes
    ]
    found = [plain(f"{one.store}: {_found(one.lookups)}") for one in values if one.lookups is not None]
    return "\n".join([text, *found, *notes])


def _found(lookups: Lookups) -> str:
    whole = lookups.hits + lookups.misses
    part = lookups.hits * 100 // max(1, whole)
    return f"programs found {lookups.hits} of {whole} entries that they looked for, {part} %"


def _amiss(one: StoreStatus) -> bool:
    # Places where programs may cache are often still empty; only one that somebody listed was meant to be there.
    expected = one.origin is StoreOrigin.CONFIGURED
    return one.state not in {StoreState.OK, StoreState.UNSEEN} and (one.state is not StoreState.MISSING or expected)


_ENTRY_HEADS: Final[tuple[str, ...]] = ("REF", "STATE", "ARCH", "DRIVER", "SIZE", "USED", "KERNELS", "MODELS")
# What may be said once below a table that is too wide, if it is the same in every row.
_SHARED: Final = ("ARCH", "DRIVER", "MODELS")


def entries(values: Sequence[IndexedEntry], style: TextStyle, owner: str = "") -> str:
    """Write one line per entry, store by store; with an ``owner``, it stands first in each."""
    rows = _entry_rows(values, style)
    heads, shared = _ENTRY_HEADS, ""
    if owner:
        rows, heads = [[owner, *row] for row in rows], ("USER", *heads)
    if len(rows) > 1 and not fits(heads, rows, style):
        same = {
            head: _text(rows[0][index])
            for index, head in enumerate(heads)
            if head in _SHARED and len({_text(row[index]) for row in rows}) == 1
        }
        shared = ", ".join(f"{head.lower()} {text}" for head, text in same.items() if text != "-")
        rows = [[one for head, one in zip(heads, row, strict=True) if head not in same] for row in rows]
        heads = tuple(head for head in heads if head not in same)
    places: dict[str, list[list[str | Cell]]] = {}
    for one, row in zip(values, rows, strict=True):
        places.setdefault(str(one.entry.id.store.root), []).append(row)
    tables = {place: table(heads, some, style, right="SIZE") for place, some in places.items()}
    parts = [section(plain(place), text, style) if len(tables) > 1 else text for place, text in tables.items()]
    return "\n\n".join(parts) + (f"\nin every row: {plain(shared)}" if shared else "")


def entry_total(page: EntryPage, shown: int) -> str:
    """Return how many entries there are, and how many of them were shown with this page and those before."""
    total = f"{count(page.total, 'entry')}, {size(page.size)}"
    return total if shown == page.total else f"{shown} of {total}"


def _text(one: str | Cell) -> str:
    return one.text if isinstance(one, Cell) else one


def _entry_rows(values: Iterable[IndexedEntry], style: TextStyle) -> list[list[str | Cell]]:
    return [
        [
            one.entry.id.ref,
            Cell(
                one.entry.defect.code if one.entry.defect else one.entry.state,
                None if one.entry.state is EntryState.OK else Colour.YELLOW,
            ),
            one.architecture or "-",
            one.entry.environment.toolchain if one.entry.environment else "-",
            size(one.entry.allocated),
            age(one.last_used, style.now),
            _kernels(one),
            ", ".join(one.models) or "-",
        ]
        for one in values
    ]


def _kernels(one: IndexedEntry) -> str:
    kernels = one.entry.kernels
    if not kernels:
        return "-"
    more = f" (+{len(kernels) - 1})" if len(kernels) > 1 else ""
    return brief(kernels[0].display) + more


_SCOPES: Final = re.compile(r"(?:\b[^\W\d]\w*|\(anonymous namespace\))::")
_CASTS: Final = re.compile(r"\((?:(?:un)?signed )?(?:bool|char|short|int|long|long long)\)(?=-?\d)")


def brief(kernel: str) -> str:
    """Write a kernel's name without its namespaces, so that the part which tells it apart comes first."""
    short = _CASTS.sub("", _SCOPES.sub("", kernel)).replace("> >", ">>")
    return short or kernel


_HEIR: Final = ": compiled for this driver from what they used before, not seen in a run yet"


def entry(one: IndexedEntry, style: TextStyle) -> str:
    """Write everything about one entry."""
    held = one.entry
    known = held.environment
    pairs = [
        ("ref", held.id.ref),
        ("store", f"{held.id.store.root} ({held.id.store.kind})"),
        ("key", held.id.key),
        ("state", held.state),
        ("defect", f"{held.defect.code}: {held.defect.message}" if held.defect else ""),
        ("effect", held.effect or ""),
        ("evidence", held.detail),
        ("platform", known.family if known else "" if held.facts else "unknown"),
        ("device", known.device if known else ""),
        *(known.facts if known else ()),
        *held.facts,
        ("driver", known.toolchain if known else ""),
        ("architecture", one.architecture or ""),
        ("origin", one.origin or ""),
        ("bundle", one.bundle),
        ("options", held.options),
        ("constants", held.constants),
        ("image", f"{held.image}, {size(held.image_size)}" if held.image else ""),
        ("image sha256", held.input or ""),
        ("binary", held.binary or ""),
        ("digest", held.digest or ""),
        ("size", f"{size(held.size)}, {size(held.allocated)} on disk"),
        ("created", f"{held.created:%Y-%m-%d %H:%M:%S} UTC, {age(held.created, style.now)}"),
        ("last used", f"{age(one.last_used, style.now)} ({one.last_used_by})"),
        ("seen loaded", f"{one.hits} times, last by {one.program}" if one.hits else ""),
        ("to compile", _cost(one)),
        ("first seen", age(one.first_seen, style.now)),
        ("models", ", ".join(one.models)),
        ("inherited", f"by {', '.join(one.inherited)}{_HEIR}" if one.inherited else ""),
        ("recipe", one.recipe.words if one.recipe else ""),
        ("replay", _replay(one.replay)),
    ]
    text = facts(pairs, style)
    if held.kernels:
        lines = [
            f"  {plain(kernel.display)}{f'  [{plain(kernel.library)}]' if kernel.library else ''}"
            for kernel in held.kernels
        ]
        text += "\n" + section(count(len(held.kernels), "kernel"), "\n".join(lines), style)
    if one.elsewhere:
        text += "\n" + section("Same program in other caches", _elsewhere(one.elsewhere, style), style)
    return text


_SOURCES: Final = {
    CostSource.REBUILD: "measured",
    CostSource.RUN: "measured with others, its share by size",
    CostSource.ESTIMATE: "estimated by its size",
}


def _cost(one: IndexedEntry) -> str:
    source = CostSource.of(one)
    if source is None:
        return ""
    mark = "~" if source is CostSource.ESTIMATE else ""
    return f"{mark}{seconds(one.estimated if one.cost is None else one.cost)} ({_SOURCES[source]})"


def _replay(told: str) -> str:
    if told in set(NoRecipe):
        return f"no: {NoRecipe(told).words}"
    return "yes: it can be compiled again without its program" if told else ""


def _elsewhere(values: Sequence[SameInput], style: TextStyle) -> str:
    rows: list[list[str | Cell]] = [
        [
            one.ref,
            one.kind,
            Cell(one.state, None if one.state is EntryState.OK else Colour.YELLOW),
            "the same" if one.identical else "another",
            str(one.store),
        ]
        for one in values
    ]
    return table(("REF", "KIND", "STATE", "BINARY", "STORE"), rows, style)
