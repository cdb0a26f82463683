"""Record: whether a catalog's rows are what we wrote; SQLite looks at its pages only, and not at what stands in them.

Types are asked for in SQL, which takes no memory; the small tables are also read as the daemon reads them.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import sqlite3
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from xpucached.catalog import (
    coverage,
    defects,
    entries,
    intents,
    models,
    recipes,
    refusals,
    runs,
    runtimes,
    stores,
    surveys,
    targets,
)
from xpucached.catalog.moments import Moment
from xpucached.catalog.recipe_tables import PREDICTED, RECIPES
from xpucached.catalog.tables import (
    ATTRIBUTIONS,
    DEPARTED,
    ENTRIES,
    INHERITED,
    METADATA,
    REFUSALS,
    RUNTIME_CHECKS,
    TRIGGERS,
)
from xpucached.domain.stores import EntryState, ImageFormat
from xpucached.domain.targets import Origin
from xpucached.errors import XpucachedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from enum import StrEnum
    from pathlib import Path

GROWING: Final = frozenset(one.name for one in (ENTRIES, ATTRIBUTIONS, INHERITED, DEPARTED, RECIPES, PREDICTED))
"""The tables that grow with the stores.  A start needs none of them; the others are small, and looked at always."""

_EARLIEST: Final = -62_135_596_800_000_000
_LATEST: Final = 253_402_300_799_999_999
"""Microseconds from 1970 to the ends of the calendar."""

_EVERY: Final = 10_000
"""So many runs and changes are read: a statement takes three times as many numbers."""

_WORDS: Final[dict[str, type[StrEnum]]] = {
    "state": EntryState,
    "image": ImageFormat,
    "binary": ImageFormat,
    "origin": Origin,
}
"""The columns of entries that hold one of a few words."""

_PASSING_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_AUTH,
    }
)

_OF_THE_SCHEMA: Final = re.compile(
    r"no such|malformed|Could not decode"
    r"|ON CONFLICT clause|no column named|columns but|syntax error|unrecognized token|incomplete input"
    r"|foreign key mismatch"
)

_NOT_GIVEN: Final = re.compile(r"unable to get the page\. error code=(\d+)|failed to get page")
"""What a check of the database says of a page that it did not get, with the reason."""

_LATER: Final = 5.0
"""Seconds after which a disk that failed is asked once more."""

_OF_THE_FILE: Final = frozenset({errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM})


class Corrupt(Exception):
    """The file is no catalog any more; its text says why."""


def is_damage(error: BaseException | None) -> bool:
    """Return what a file is to blame for from what may pass, or be mended: rights, a full disk, a busy file.

    Whatever is not known to pass is the file's fault: else a kind of damage that nobody thought of would be met again
    at every start.
    """
    if isinstance(error, sa.exc.DBAPIError):
        error = error.orig
    if isinstance(error, sqlite3.Error):
        # Without a code it is the driver's own complaint, such as text that is no UTF-8.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF not in _PASSING_CODES
    if isinstance(error, OSError):
        # A file of somebody else's: where we may not move it away either, that is what will be said.
        return error.errno in _OF_THE_FILE
    return isinstance(error, Exception) and not isinstance(error, MemoryError | ImportError | XpucachedError)


def proven(error: BaseException | None) -> str | None:
    """Return what an error proves to be wrong with the file, however sound it looks; None if it proves nothing.

    Our statements fit our schema: one that does not even compile met another one.  Text that is no UTF-8 nobody of ours
    wrote.
    """
    if isinstance(error, sa.exc.DBAPIError):
        error = error.orig
    if isinstance(error, UnicodeDecodeError):
        # What the driver raises where even the database's complaint quotes a name that is no text.
        return describe(error)
    if not isinstance(error, sqlite3.Error):
        return None
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return describe(error)
    return describe(error) if code in (0, sqlite3.SQLITE_ERROR) and _OF_THE_SCHEMA.search(str(error)) else None


def is_malformed(error: BaseException | None) -> bool:
    """Return whether the database calls a file malformed: so it does also where a disk could not be read (EIO)."""
    if isinstance(error, sa.exc.DBAPIError):
        error = error.orig
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def is_of_the_disk(error: BaseException | None) -> bool:
    """Return whether the disk was full, or failed: what asks nothing of it goes well all the same."""
    if isinstance(error, sa.exc.DBAPIError):
        error = error.orig
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}


def see_that_it_is_given(path: Path, settled: Callable[[Path], AbstractContextManager[sqlite3.Connection]]) -> None:
    """Raise OSError if the disk does not give all of a file, which the database calls malformed, too (EIO).

    Raises `Corrupt` where it does not give a block later, either, and takes what is written beside: each start would
    meet that block again.
    """
    if _is_given(path, settled):
        return
    time.sleep(_LATER)
    if _is_given(path, settled):
        return
    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as beside:
            beside.write(bytes(4096))
            os.fsync(beside.fileno())
    except OSError as error:
        raise OSError(errno.EIO, os.strerror(errno.EIO)) from error
    raise Corrupt("its disk does not give all of it any more")


def _is_given(path: Path, settled: Callable[[Path], AbstractContextManager[sqlite3.Connection]]) -> bool:
    """Return whether the disk gives all of a file; raises what the database says where it does not give its head."""
    with suppress(Corrupt), settled(path) as look:
        # All pages are asked for, also where those cannot be read that tell which tables there are.
        look.execute("PRAGMA writable_schema = ON")
        found = _NOT_GIVEN.search(look.execute("PRAGMA quick_check(1)").fetchone()[0])
        return found is None or (found[1] is not None and int(found[1]) & 0xFF not in _PASSING_CODES)
    return True


def check(connection: sa.Connection, *, growing: bool) -> None:
    """Read what a start needs, or with ``growing`` everything.  Raises `Corrupt`; other errors are not the file's."""
    try:
        check_types(connection, growing=growing)
        models.all_models(connection)
        stores.all_stores(connection)
        defects.known_defects(connection)
        surveys.last_survey(connection)
        surveys.driver_changes(connection, _EVERY)
        targets.target_presence(connection)
        runs.read_newest_runs(connection, _EVERY)
        intents.open_intents(connection)
        runtimes.known_runtime_checks(connection, connection.scalars(sa.select(RUNTIME_CHECKS.c.build)).all())
        for stamp in connection.scalars(sa.select(REFUSALS.c.stamp).distinct()).all():
            refusals.refused_by(connection, stamp)
        if growing:
            coverage.model_coverage(connection)
            for _ in runs.with_newest_runs(connection, models.all_models(connection), 1):
                pass  # what the last one printed is shown with the model
            entries.all_entries(connection)
            recipes.read_all(connection)
    except Exception as error:
        if isinstance(error, Corrupt) or not is_damage(error):
            raise
        raise Corrupt(describe(error)) from error


def check_types(connection: sa.Connection, *, growing: bool) -> None:
    """See that each column holds what it is for, and that nothing else acts.  Raises `Corrupt`, and what fails."""
    acting = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')").scalars()
    if set(acting) != _ACTING:
        raise Corrupt("it has other triggers or views than a catalog has")
    for name, question in _questions():
        if (growing or name not in GROWING) and connection.exec_driver_sql(question).first():
            raise Corrupt(f"a row of the table {name} holds what cannot be there")


_ACTING: Final = {statement.split()[2] for statement in TRIGGERS}


@functools.cache
def _questions() -> tuple[tuple[str, str], ...]:
    """Return each table's name, and the text that asks it for a row that is wrong.

    Made once: to compile these statements takes several times as long as to have them answered.
    """
    tables = METADATA.sorted_tables
    # All names are our own.
    return tuple((one.name, f'SELECT 1 FROM "{one.name}" WHERE {wrong(one)} LIMIT 1') for one in tables)  # noqa: S608


def wrong(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that is true of a row with a value of another type than its column's."""
    # All names are our own.
    return sa.literal_column(f"({' OR '.join(_conditions(table))})", sa.Boolean())


def _conditions(table: sa.Table) -> Iterable[str]:
    for column in table.c:
        if column.computed is not None:
            continue
        name = f'"{column.name}"'
        kind = column.type
        also = ", 'null'" if column.nullable else ""
        if isinstance(kind, sa.Float):
            yield f"typeof({name}) NOT IN ('real', 'integer'{also})"
        elif isinstance(kind, sa.Integer | sa.Boolean | Moment):
            yield f"typeof({name}) NOT IN ('integer'{also})"
        else:
            yield f"typeof({name}) NOT IN ('text'{also})"
        if isinstance(kind, Moment):
            yield f"{name} NOT BETWEEN {_EARLIEST} AND {_LATEST}"
        if table is ENTRIES and column.name in _WORDS:
            words = ", ".join(f"'{word.value}'" for word in _WORDS[column.name])
            yield f"{name} NOT IN ({words})"


def describe(error: BaseException) -> str:
    """Say in words what was met."""
    plain = isinstance(error, Corrupt | sa.exc.DBAPIError | sqlite3.Error | OSError)
    words = str(error.orig if isinstance(error, sa.exc.DBAPIError) else error) if plain else ""
    return " ".join(words.split())[:200] or repr(error)[:200]
