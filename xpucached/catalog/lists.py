"""Lists of any length in conditions: one parameter, where ``IN (…)`` takes one for each value, and SQLite not many."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Iterable


def among(column: sa.ColumnElement[int] | sa.ColumnElement[str], values: Iterable[int | str]) -> sa.ColumnElement[bool]:
    """Return the condition that a column has one of these values."""
    return column.in_(sa.select(sa.func.json_each(json.dumps(list(values))).table_valued("value").c.value))
