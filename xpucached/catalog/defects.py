"""Record: what the codes of defects in the rows of entries mean, as the kinds have told it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog.tables import METADATA
from xpucached.domain.defects import CHANGED, Defect, unknown
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


DEFECTS: Final = sa.Table(
    "defects",
    METADATA,
    sa.Column("code", sa.Text, primary_key=True),
    sa.Column("meaning", sa.Text, nullable=False),  # JSON: a `Defect`
    sqlite_with_rowid=False,
)


class _Known(dict[str, Defect]):
    """Defects by code; one that nobody has told of is shown as it is called."""

    def __missing__(self, code: str) -> Defect:
        return unknown(code)


_read = functools.lru_cache(1000)(msgspec.json.Decoder(Defect).decode)
"""The same few texts are read by every question."""


def known_defects(connection: sa.Connection) -> Mapping[str, Defect]:
    """Return what is known of defects, by code; any other one is given as unknown."""
    told = {code: _read(meaning) for code, meaning in connection.execute(sa.select(DEFECTS))}
    return _Known({CHANGED.code: CHANGED, **told})


def defect_codes(connection: sa.Connection, fit: Callable[[Defect], object]) -> list[str]:
    """Return the codes of those that fit."""
    return [code for code, one in known_defects(connection).items() if fit(one)]


def check_defect(connection: sa.Connection, code: str | None) -> None:
    """Raise `RequestError` if somebody asks for a code that nothing is called."""
    known = known_defects(connection)
    if code is not None and code not in known:
        message = f"no defect is called {code!r}"
        raise RequestError(message, hint=f"there are: {', '.join(sorted(known))}")


def note_defects(connection: sa.Connection, told: Iterable[Defect]) -> None:
    """Remember what these mean from now on."""
    known = known_defects(connection)
    fresh = {one.code: one for one in told if known[one.code] != one}
    if fresh:
        statement = insert(DEFECTS)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=[DEFECTS.c.code], set_={"meaning": statement.excluded.meaning}
            ),
            [{"code": code, "meaning": msgspec.json.encode(one).decode()} for code, one in fresh.items()],
        )
