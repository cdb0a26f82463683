"""Door: directories of models, in which compilers cache that are no kind of ours, for people.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.domain.stores import StoreState
from xpucached.printing import plain, quoted
from xpucached.render.text import Cell, Colour, age, count, size, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.domain.models import RemovedModel
    from xpucached.domain.stores import ModelCache
    from xpucached.render.text import TextStyle


def caches(values: Sequence[ModelCache], style: TextStyle, owners: Sequence[str] = ()) -> str:
    """Write one line per directory."""
    rows: list[list[str | Cell]] = [
        [one.model, str(one.path), size(one.allocated), str(one.files), _fate(one), age(one.used, style.now)]
        for one in values
    ]
    heads = ("MODEL", "DIRECTORY", "SIZE", "FILES", "FATE", "USED")
    notes = [f"{style.paint('!', Colour.YELLOW)} {plain(f'{one.path}: {one.note}')}" for one in values if one.note]
    return "\n".join([table(heads, rows, style, right="FILES SIZE", owners=owners), *notes])


def _fate(one: ModelCache) -> Cell:
    """Return what becomes of a directory when its model is removed, or what is odd about it already."""
    if one.state is not StoreState.OK:
        return Cell(one.state, Colour.YELLOW)
    if one.shared:
        return Cell(f"stays: {', '.join(one.shared)} uses it, too")
    if one.named:
        return Cell(f"stays: {one.named} names it")
    return Cell("goes with the model") if one.registered else Cell("the model is gone", Colour.YELLOW)


def removed(value: RemovedModel, _style: TextStyle) -> str:
    """Write what the removal of a model did, or would do."""
    if value.dry_run:
        run = ", and cancel its run" if value.ended else ""
        lines = [f"would remove {plain(value.name)}{run}; its entries stay until they are evicted"]
    else:
        lines = [f"removed {plain(value.name)}{'; it was running, and its run was cancelled' if value.ended else ''}"]
    for one in value.caches:
        path = plain(str(one.path))
        what = f"{path} ({count(one.files, 'file')}, {size(one.allocated)})"
        bound = "for some minutes at most, as that keeps no more than policy.trash_max_bytes"
        briefly = f" {bound}" if one.ref in value.too_large else ""
        if not one.stays and value.dry_run:
            where = f"into the trash{briefly}" if value.trashed else "for good (policy.trash_keep)"
            lines.append(f"would go {where}: {what}")
        elif not one.stays:
            until = "until then " if briefly else ""
            back = f"in the trash{briefly}: {what}; {until}back with: xpucachectl trash restore {quoted(one.ref)}"
            lines.append(
                back if value.trashed else f"gone: {what}, as nothing is kept in the trash (policy.trash_keep)"
            )
        elif one.state is not StoreState.MISSING:
            do = f"; if nobody needs it: rm -r {quoted(str(one.path))}" if one.named and not one.shared else ""
            lines.append(f"{'would stay' if value.dry_run else 'stays'}: {what}, for {plain(one.stays)}{do}")
    return "\n".join(lines)
