"""Record: what can be taken over from a catalog that is corrupt: the models and the history, which nothing else knows.

The file that was set aside stays as it is: a database that is opened for writing is changed, so it is read where it
lies and never written, or, where a journal stands beside it, as a copy beside it.  Only a model whose digest is still
that of its command is taken: commands run, and a damaged one must not.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import sqlite3
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached import state_files
from xpucached.catalog import days, events, models, soundness
from xpucached.catalog.history_tables import DAYS, WARMTH
from xpucached.catalog.readable import Row, readable, stored, values
from xpucached.catalog.tables import MODELS
from xpucached.domain.models import REGISTERED
from xpucached.processes import scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from xpucached.domain.models import Model
    from xpucached.domain.names import ModelName

log = logging.getLogger(__name__)

_NOTE: Final = ".incomplete"
"""What the name of the file ends with that says of which catalogs that were set aside models may be missing: a line for
each, its name and the words."""

_LONGEST: Final = 1 << 16
"""Bytes of that file that are read."""
_HISTORY: Final = {DAYS: days.read_day, WARMTH: days.read_change}
_MOST: Final = 100_000

_COPY: Final = "salvaging"
"""The directory of the copy; a daemon that was killed meanwhile leaves it to the next."""


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was taken over."""

    models: tuple[Model, ...]
    incomplete_because: str  #: why it may not be all models; empty if it is
    history: Mapping[str, tuple[Mapping[str, object], ...]] = field(default_factory=dict)  #: rows by their table


def salvage_models(aside: Path, beside: Path) -> Salvaged:
    """Return the models that were registered by command, as far as they can be read whole.  Never raise for damage.

    ``beside`` is the new catalog, where a copy is made if need be.
    """
    found: list[Model] = []
    reasons: list[str] = []
    history: Mapping[str, tuple[Mapping[str, object], ...]] = {}
    try:
        if not stat.S_ISREG(aside.lstat().st_mode):
            return Salvaged((), "it is no file")
        with _read(aside, beside, reasons) as connection:
            _complete(connection)
            sound = sa.select(MODELS.c.name).where(sa.not_(soundness.wrong(MODELS)))
            for (name,) in connection.execute(sound).all():
                found += _whole(connection, name)
            counting = sa.select(sa.func.count()).where(MODELS.c.source == REGISTERED)
            lost = connection.execute(counting).scalar_one() - len(found)
            if lost > 0:
                reasons.append(f"damaged models: {lost}")
            history = _history(connection)
    except Exception as error:  # noqa: BLE001 - there is no end to what damage can do, and nothing more is lost
        reasons.append(f"it could not be read to its end: {soundness.describe(error)}")
    for why in reasons:
        log.warning("not everything could be taken over from %s: %s", aside, why)
    return Salvaged(tuple(found), "; ".join(reasons), history)


def _complete(connection: sa.Connection) -> None:
    """Let the models of an earlier version be read as today's: what it had no columns for is not known of them."""
    known = {str(row[1]) for row in connection.exec_driver_sql("PRAGMA main.table_info(models)")}
    younger = [f'NULL AS "{one.name}"' for one in MODELS.c if one.name not in known]
    if known and younger:
        # Of two of one name, a temporary one is meant.
        view = f"CREATE TEMP VIEW models AS SELECT *, {', '.join(younger)} FROM main.models"  # noqa: S608 - our names
        connection.exec_driver_sql(view)


def _history(connection: sa.Connection) -> Mapping[str, tuple[Mapping[str, object], ...]]:
    """Return the rows of the tables of history that can be read; none of a table that cannot."""
    found: dict[str, tuple[Mapping[str, object], ...]] = {}
    for table, read in _HISTORY.items():
        try:
            newest = (column.desc() for column in table.primary_key)
            sound = stored(table).where(sa.not_(soundness.wrong(table))).order_by(*newest).limit(_MOST)
            found[table.name] = tuple(readable(connection.execute(sound), functools.partial(_taken, read)))
        except Exception as error:  # noqa: BLE001 - the others may be whole, and it is history
            log.info("a table could not be taken over: %s: %s", table.name, soundness.describe(error))
    return found


def _taken(read: Callable[[Row], object], row: Row) -> Mapping[str, object]:
    read(row)
    return values(row)


def take_over(connection: sa.Connection, taken: Salvaged) -> None:
    """Put what another catalog told into this one, unless something of the name is known here, or was removed."""
    gone = events.removed_models(connection)
    for model in taken.models:
        if model.name not in gone:
            models.add_model(connection, model, replaces=False)
    # What changed here since is newer, whatever its number.
    begun = connection.scalar(sa.select(sa.func.count()).select_from(WARMTH))
    for table in _HISTORY:
        if taken.history.get(table.name) and not (table is WARMTH and begun):
            connection.execute(insert(table).on_conflict_do_nothing(), list(taken.history[table.name]))


def note_incomplete(path: Path, aside: Path, message: str) -> None:
    """Note beside a catalog that models of one that was set aside may be missing; who removes that has seen to it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path.with_name(path.name + _NOTE), flags, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{aside.name}\t{' '.join(message.split())}\n")
    except OSError as error:
        log.warning("that models may be missing cannot be noted: %s", error)


def incomplete(path: Path) -> str:
    """Return what was noted last of an old catalog that is still there; empty if nothing was."""
    note = path.with_name(path.name + _NOTE)
    try:
        descriptor = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with state_files.stream(descriptor) as file:
            lines = file.read(_LONGEST).decode("utf-8", "replace").splitlines()
        for name, _, message in [line.partition("\t") for line in reversed(lines)]:
            if name.startswith(path.name) and "/" not in name and os.path.lexists(path.with_name(name)):
                return message
        note.unlink()
    except (OSError, ValueError):
        return ""
    return ""


@contextlib.contextmanager
def _read(aside: Path, beside: Path, reasons: list[str]) -> Iterator[sa.Connection]:
    journal = aside.with_name(aside.name + "-wal")
    copy = beside.with_name(_COPY) / "catalog.sqlite"
    engine = None
    try:
        if journal.is_file() and not journal.is_symlink() and journal.stat().st_size:
            try:
                _copied(aside, journal, copy)
                engine = _reading(copy, "rw")
            except OSError as error:
                reasons.append(f"the latest changes in its journal were not read: {error}")
        # As it is: nothing is left beside it.
        engine = engine or _reading(aside, "ro&immutable=1")
        with engine.connect() as connection, connection.begin():
            yield connection
    finally:
        if engine is not None:
            engine.dispose()
        if copy.parent.exists():
            scratch.remove(str(copy.parent))


def _copied(aside: Path, journal: Path, copy: Path) -> None:
    if copy.parent.exists():
        scratch.remove(str(copy.parent))
    copy.parent.mkdir(0o700)
    shutil.copyfile(aside, copy)
    shutil.copyfile(journal, copy.with_name(copy.name + "-wal"))


def _reading(path: Path, mode: str) -> sa.Engine:
    """Return an engine for a file whose tables are read as far as the schema tells of them."""

    def connection() -> sqlite3.Connection:
        made = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
        )
        # A damaged word in what is said of one table forbids to read any other; with this it does not.
        made.execute("PRAGMA writable_schema = ON")
        return made

    return sa.create_engine("sqlite://", creator=connection, poolclass=sa.NullPool)


def _whole(connection: sa.Connection, name: ModelName) -> tuple[Model, ...]:
    try:
        model = models.registered_model(connection, name)
    except Exception as error:  # noqa: BLE001 - the others may be whole
        log.info("a model could not be taken over: %r: %s", name, error)
        return ()
    return () if model is None else (model,)
