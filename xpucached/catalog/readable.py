"""Record: rows that are read one by one, so that one which nobody can read costs none of the others.

It may be damaged, or of a newer build that has more words.  What it told is as if it had not been noted.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, TypeVar, cast

import sqlalchemy as sa

from xpucached import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

log = logging.getLogger(__name__)

T = TypeVar("T")

Row = sa.Row[tuple[object, ...]]


def stored(table: sa.Table) -> sa.Select[tuple[object, ...]]:
    """Ask for a table's rows, their texts as bytes: with the first that is no UTF-8 the answer would end."""
    columns = (
        sa.cast(one, sa.LargeBinary).label(one.name) if isinstance(one.type, sa.Text | sa.JSON) else one
        for one in table.c
    )
    return cast("sa.Select[tuple[object, ...]]", sa.select(*columns))


def readable(rows: Iterable[Row], read: Callable[[Row], T]) -> Iterator[T]:
    """Yield what can be read of these rows."""
    for row in rows:
        try:
            value = read(row)
        except (ValueError, OverflowError) as error:
            log.debug("a row that cannot be read is left out: %r", error)
        else:
            yield value


def values(row: Row) -> dict[str, object]:
    """Return such a row by its columns.  Raises `ValueError` for a text that is none."""
    return {name: one.decode() if isinstance(one, bytes) else one for name, one in row._asdict().items()}


def document(saved: bytes, kind: type[T]) -> T:
    """Read what a column of JSON holds.  Raises `ValueError` for what is none, or another."""
    return cast("T", codec.convert(json.loads(saved.decode()), kind))
