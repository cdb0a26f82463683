"""Record: how the catalog's file is opened: looked at, set aside if it cannot be used, migrated.

Touches the file, its ``-wal`` and ``-shm``, and the folder they are in.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sqlite3
import stat
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from xpucached import state_files
from xpucached.catalog import setting_aside, soundness, tables
from xpucached.catalog.migrating import every_revision, migrate
from xpucached.catalog.soundness import Corrupt
from xpucached.errors import CatalogError
from xpucached.processes import child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

log = logging.getLogger(__name__)

#: Seconds that a connection waits for another process's write.  Our own threads wait on a lock before they come here.
BUSY: Final = 30.0

# The journal keeps its longest length otherwise: one first scan of a big store would cost that space for ever.
_JOURNAL_LIMIT: Final = 64 * 1024 * 1024

#: Bytes of a file that is read whole before it is used.  A larger one would take seconds, and is read meanwhile.
LARGE: Final = 16 * 1024 * 1024

_OWNER: Final = "owner"
_LONGEST: Final = 4096
"""The file beside the catalog with the name of the account whose it is, and so many bytes of it."""

_HINT: Final = "check the permissions, the free space and the disk of the state directory"
_CORRUPT_HINT: Final = "restart the daemon: it sets a corrupt catalog aside, if its disk takes what is written"
_NEWER_HINT: Final = (
    "start the daemon of that version, or move the file away: a scan rebuilds all but models and history"
)
_OLDER_HINT: Final = (
    "restart the daemon: it brings the catalog along; no command does that beside one that may be older"
)
_FOREIGN_HINT: Final = "remove it, or move it away"

_REVISION: Final = re.compile(r"[0-9]{4}")


class Newer(CatalogError):
    """A newer version wrote the file: it stays where it is."""


_MIGRATING: Final = 600.0
"""Seconds for a process of its own to bring a catalog up; then we do it ourselves."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """That a catalog was set aside: in a sentence, and where it is now."""

    message: str
    aside: Path


@dataclass(frozen=True, slots=True)
class Opened:
    """A catalog's file, open."""

    engine: sa.Engine
    rebuilt: Rebuilt | None  #: if a corrupt one was set aside for it
    examined: bool  #: whether the whole file was read; if not, `examine` is still to be called


def migrate_apart(path: Path) -> None:
    """Let a process of its own bring a catalog of an older revision to the newest.

    The migrations and what they load would stay in the memory of a process that needs them once in its life.  How
    that ends does not matter: `connect` looks at the file again, and does or refuses what is left to do.
    """
    if _is_behind(path):
        command = [*child.module("xpucached.catalog"), os.fspath(path.absolute())]
        with suppress(OSError):
            child.run(command, variables={"PATH": os.defpath, "LANG": "C.UTF-8"}, seconds=_MIGRATING)


def claim(path: Path, account: str) -> Rebuilt | None:
    """Set a catalog aside that an account of another name left behind, and note whose it is from now on.

    An account's number may be given to another one later, in whose name nothing of the first one's must run.  Raises
    `CatalogError`.
    """
    note = path.with_name(_OWNER)
    with refusing(path):
        before = owner(path.parent)
        if before == account:
            return None
        rebuilt = None
        if before:
            for one in (path, *setting_aside.unread(path)):
                setting_aside.unmark(one)
        # Killed in between, the next start finds the old name and no catalog of it.
        if before and os.path.lexists(path):
            aside = setting_aside.set_aside(path, "another-account")
            message = f"the catalog was of the account {before}, which had this number before: set aside as {aside}"
            log.warning("catalog is of another account, set aside: %s: %s", aside, before)
            rebuilt = Rebuilt(f"{message}, a new one was made", aside)
        # Whoever had the directory before may have left a link there.
        state_files.write(note, os.fsencode(f"{account}\n"))
    return rebuilt


def owner(place: Path) -> str:
    """Return whose the catalog in a directory is; empty if nobody has noted it, or died before it was on the disk."""
    note = place / _OWNER
    try:
        name = state_files.read(note, _LONGEST, anybodys=True)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:
            raise
        name = bytes(_LONGEST + 1)
    if len(name) > _LONGEST:
        raise CatalogError(f"whose the catalog is stands in no regular file of ours: {note}", hint=_FOREIGN_HINT)
    return os.fsdecode(name).strip()


def bring_up(path: Path) -> None:
    """Migrate a catalog that is sound, or make it.  Raises `CatalogError`."""
    with refusing(path):
        _prepare(path)
        _inspect(path, whole=False)
        _migrated(path).dispose()


def _is_behind(path: Path) -> bool:
    """Return whether there is a catalog of an older revision; False for what cannot be read."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        with _settled(path) as look:
            return [str(one) for (one,) in look.execute("SELECT version_num FROM alembic_version")] != [tables.REVISION]
    except Exception:  # noqa: BLE001 - whatever is wrong with it, or not there, `connect` sees to it
        return False


def connect(path: Path, *, whole: bool = False, damaged: str | None = None, guest: bool = False) -> Opened:
    """Open the catalog at ``path``, migrated; one that cannot be used is set aside, and a new one made.

    Of a large file only what a start needs is examined, unless ``whole``.  ``damaged`` says what is known to be wrong
    with it already.  Raises `CatalogError` for a file that a newer version wrote, or that cannot be used just now
    through no fault of its own, and to a ``guest`` in any case; it is left as it is.
    """
    with refusing(path):
        # What was made since one was set aside may be whole.
        if setting_aside.unread(path, guest=guest) or damaged is None:
            for again in (False, True):
                try:
                    return _open(path, whole=whole, guest=guest, again=again)
                except Exception as error:
                    if guest or not soundness.is_damage(error):
                        raise
                    damaged = soundness.describe(error)
        aside = setting_aside.set_aside(path, setting_aside.CORRUPT)
        rebuilt = Rebuilt(f"the catalog was corrupt ({damaged}): set aside as {aside}, a new one was made", aside)
        log.warning("catalog is corrupt, set aside: %s: %s", aside, damaged)
        try:
            return replace(_open(path, whole=True), rebuilt=rebuilt)
        except Corrupt as error:
            raise CatalogError(f"the new catalog is corrupt at once: {path}: {error}", hint=_HINT) from error


def _open(path: Path, *, whole: bool, guest: bool = False, again: bool = False) -> Opened:
    _prepare(path)
    if again:
        soundness.see_that_it_is_given(path, _settled)
    examined = _inspect(path, whole=whole, guest=guest)
    engine = _migrated(path)
    try:
        # What only a start asks is not kept: SQLAlchemy would keep each statement that it has compiled.
        with engine.connect().execution_options(compiled_cache=None) as connection, connection.begin():
            soundness.check(connection, growing=False)
            if examined:
                soundness.check_types(connection, growing=True)
        _check_writable(path)
    except BaseException:
        engine.dispose()
        raise
    return Opened(engine, None, examined)


def damaged_at_work(path: Path, what: str) -> CatalogError:
    """Say that a catalog that is in use holds what cannot be there."""
    return CatalogError(f"the catalog failed: {path}: {what}", hint=_CORRUPT_HINT)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn what the database and the file system raise into a `CatalogError`."""
    try:
        yield
    except (sa.exc.ProgrammingError, sa.exc.IntegrityError, sa.exc.InterfaceError):
        raise  # a mistake of ours, not of the file
    except Corrupt as error:
        raise CatalogError(f"the catalog failed: {path}: {error}", hint=_CORRUPT_HINT) from error
    except sa.exc.DBAPIError as error:
        hint = _CORRUPT_HINT if soundness.is_damage(error) else _HINT
        raise CatalogError(f"the catalog failed: {path}: {error.orig}", hint=hint) from error
    except (OSError, sqlite3.Error) as error:
        raise CatalogError(f"the catalog failed: {path}: {error}", hint=_HINT) from error


def _prepare(path: Path) -> None:
    """See that there is a file of ours alone: mode 0600, in a folder that is made 0700 if it is missing."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite opens what it finds: a pipe would hold us for ever, and a link leads elsewhere.
    for side in setting_aside.SIDES:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(path.with_name(path.name + side).lstat().st_mode):
                raise Corrupt(f"{path.name}{side} is not a regular file")
    # SQLite would create it with whatever the umask leaves; and it follows links, so links are refused here.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # Only looked at: to open and close a file would drop the locks that this process may hold on it.
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise Corrupt("it is not a regular file") from None
        if stat.S_IMODE(status.st_mode) != 0o600:  # noqa: PLR2004 - ours alone
            path.chmod(0o600)


def _inspect(path: Path, *, whole: bool, guest: bool = False) -> bool:
    """Look at a file without changing a byte of it; tell whether all of it was read.  ``whole`` takes much longer.

    Raises `Corrupt`, or `CatalogError` if a newer version wrote it; to a ``guest`` also if an older one did, or may.
    """
    how = "integrity_check" if whole else "quick_check"
    whole = whole or path.stat().st_size <= LARGE
    with _settled(path) as look:
        names = {str(name) for (name,) in look.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "alembic_version" in names:
            revisions = [str(one) for (one,) in look.execute("SELECT version_num FROM alembic_version")]
            check_revisions(path, revisions)
        else:
            revisions = []
        if whole:
            _check(look, how=how)
        if not names:
            if guest:
                raise CatalogError(f"nothing is in this catalog yet: {path}", hint=_OLDER_HINT)
            return True
        if not revisions:
            raise Corrupt("it is not a catalog of xpucached")
        if revisions != [tables.REVISION]:
            if guest:
                message = f"an older xpucached wrote this catalog (revision {', '.join(revisions)}): {path}"
                raise CatalogError(message, hint=_OLDER_HINT)
            if not whole:
                # A migration reads and writes every row: what it is given has to be sound.
                _check(look)
            return True
        if not whole:
            for name in sorted(names - soundness.GROWING):
                _check(look, name)
        return whole


def check_revisions(path: Path, revisions: list[str]) -> None:
    """Raise `Newer` for what a newer version wrote, and `Corrupt` for what none of ours ever was."""
    if revisions == [tables.REVISION]:
        return
    # First: a newer version that was installed over this one while it runs has brought its migrations.
    if revisions and all(_REVISION.fullmatch(one) and one > tables.REVISION for one in revisions):
        raise Newer(f"a newer xpucached wrote this catalog (revision {', '.join(revisions)}): {path}", hint=_NEWER_HINT)
    if set(revisions) <= set(every_revision()):
        return
    raise Corrupt(f"there never was a revision {', '.join(revisions)[:40]!r}")


def _check_writable(path: Path) -> None:
    """Raise `Corrupt` for a file that can be read, and whose header forbids to write: so it would stay for ever."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as look:
        try:
            look.execute("BEGIN IMMEDIATE")
            look.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            # Not for what may pass: a file system that is read-only, a directory without rights, somebody who writes.
            if error.sqlite_errorcode == sqlite3.SQLITE_READONLY and os.access(path, os.W_OK):
                raise Corrupt("its header says that nobody may write to it") from error


def _settled(path: Path) -> AbstractContextManager[sqlite3.Connection]:
    """Open a file that nobody works with, to look at it only; see `examining`."""
    # Without a journal, SQLite need not leave one of its own beside a file that we may refuse.
    journal = path.with_name(path.name + "-wal")
    settled = not (journal.exists() and journal.stat().st_size)
    return examining(path, "&immutable=1" if settled else "")


@contextmanager
def examining(path: Path, how: str = "") -> Iterator[sqlite3.Connection]:
    """Open a file to look at it only.  Raises `Corrupt` when damage is met, of whatever kind."""
    uri = f"{path.absolute().as_uri()}?mode=ro{how}"
    try:
        with closing(
            sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY, check_same_thread=False)
        ) as look:
            yield look
    except Exception as error:
        if isinstance(error, Corrupt) or not soundness.is_damage(error):
            raise
        raise Corrupt(soundness.describe(error)) from error


def examine(look: sqlite3.Connection) -> bool:
    """Read the whole file, however long it takes; False if the connection was interrupted.  Raises `Corrupt`."""
    try:
        _check(look)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return False
    return True


def _check(look: sqlite3.Connection, table: str | None = None, how: str = "quick_check") -> None:
    """Examine all tables and the indexes' order, or one."""
    only = "1" if table is None else "'{}'".format(table.replace("'", "''"))
    verdict: str = look.execute(f"PRAGMA {how}({only})").fetchone()[0]
    if verdict != "ok":
        raise Corrupt(verdict)


def _migrated(path: Path) -> sa.Engine:
    """Make the engine and migrate.  Raises `Corrupt` if damage shows only now."""
    engine = connections(path)
    try:
        with engine.connect() as look:
            migrate(look)
    except BaseException as error:
        engine.dispose()
        if isinstance(error, Corrupt) or not soundness.is_damage(error):
            raise
        raise Corrupt(soundness.describe(error)) from error
    return engine


def connections(path: Path) -> sa.Engine:
    """Make the engine for a file that is there, in whatever revision it is."""

    def connection() -> sqlite3.Connection:
        # The driver is kept out of transactions altogether: with its own rules, a failing second migration would
        # leave the first one applied, and a reader would not see one moment throughout.
        made = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY, check_same_thread=False
        )
        try:
            made.execute("PRAGMA journal_mode = WAL")
            made.execute("PRAGMA synchronous = NORMAL")
            made.execute("PRAGMA foreign_keys = ON")
            made.execute("PRAGMA temp_store = MEMORY")
            made.execute(f"PRAGMA journal_size_limit = {_JOURNAL_LIMIT}")
        except BaseException:
            made.close()
            raise
        return made

    engine = sa.create_engine("sqlite://", creator=connection, poolclass=sa.QueuePool, pool_size=4, max_overflow=-1)
    sa.event.listen(engine, "begin", _begin)
    sa.event.listen(engine, "handle_error", _give_up)
    return engine


def _give_up(context: sa.engine.ExceptionContext) -> None:
    """Let go of connections that cannot write.

    Where a file cannot be opened for writing just now, SQLite opens it for reading, and never asks again.
    """
    code = getattr(context.original_exception, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_READONLY:
        context.is_disconnect = True


def _begin(connection: sa.Connection) -> None:
    # A writer takes its turn at once: one that read first and wrote later could be refused half-way.
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
