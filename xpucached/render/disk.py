"""Door: how much room caches take, for people.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.render.text import Cell, Colour, count, fold, section, size, table

if TYPE_CHECKING:
    from xpucached.domain.disk import DiskUse
    from xpucached.render.text import TextStyle


def disk(value: DiskUse, style: TextStyle) -> str:
    """Write what caches take, by driver and by model, and how to get it back."""
    parts = []
    if value.drivers:
        rows: list[list[str | Cell]] = [
            [
                one.name,
                "yes" if one.present else Cell("no", Colour.YELLOW),
                str(one.entries),
                size(one.allocated),
                _freed(one.reclaimable, one.allocated),
                one.device,
            ]
            for one in value.drivers
        ]
        heads = ("DRIVER", "HERE", "ENTRIES", "SIZE", "RECLAIMABLE", "DEVICE")
        parts.append(section("By driver", table(heads, rows, style, right="ENTRIES SIZE RECLAIMABLE"), style))
    if value.models:
        rows = [
            [
                one.name if one.present else Cell(f"{one.name} (removed)", Colour.YELLOW),
                str(one.entries),
                size(one.allocated),
                _freed(one.reclaimable, one.allocated + one.further),
                size(one.further) if one.further else "-",
            ]
            for one in value.models
        ]
        columns = ("MODEL", "ENTRIES", "SIZE", "RECLAIMABLE", "OTHER CACHES")
        written = table(columns, rows, style, right="ENTRIES SIZE RECLAIMABLE OTHER CACHES")
        parts.append(section("By model", written, style))
    total = f"{count(value.entries, 'entry')}, {size(value.allocated)}"
    if value.further:
        total += f"; other caches of models {size(value.further)}"
    if value.reclaimable:
        total += f"; {size(value.reclaimable)} could go: xpucachectl evict"
    if value.trash:
        total += f"; in the trash {size(value.trash)}: xpucachectl trash empty"
    return "\n\n".join([*parts, fold(total, style)])


def _freed(part: int, whole: int) -> str:
    return f"{size(part)} ({part * 100 // whole}%)" if whole and part else size(part)
