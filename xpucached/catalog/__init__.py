"""Record: the catalog, our SQLite index of what stores held when we last looked, plus what only we know.

Derived: delete the file, and a scan rebuilds all but models and history.  What is asked and what is noted are plain
functions of a connection in the modules here, such as `entries.entry_page`, which `Catalog.read` and `Catalog.write`
call: in one transaction each, and with `CatalogError` if the file fails it.  Both block, and may be called from any
thread; questions run beside a write and see the catalog as it was before it.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar

from xpucached import reading
from xpucached.catalog import opening, salvage, setting_aside, soundness
from xpucached.errors import CatalogError, RequestError, XpucachedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from sqlite3 import Connection

    import sqlalchemy as sa

log = logging.getLogger(__name__)

_REVISION: Final = "SELECT version_num FROM alembic_version"
_CHANGES: Final = "SELECT total_changes()"

_P = ParamSpec("_P")
_T = TypeVar("_T")

if TYPE_CHECKING:
    Question = Callable[Concatenate[sa.Connection, _P], _T]


class _Moment(threading.local):
    """The connection that a thread's questions share, if they shall be answered as of one moment."""

    connection: sa.Connection | None = None


class Catalog:
    """The catalog, open."""

    def __init__(self, path: Path, engine: sa.Engine, rebuilt: str | None) -> None:
        self.path = path
        self.rebuilt = rebuilt  #: a sentence for each file that was corrupt: that it was, and where it is now
        self.trouble: CatalogError | None = None  #: what failed last, until something could be written again
        self.writes = 0  #: so often something was written: what was reckoned before the last time may be old
        self.examined = True  #: whether the whole file was read; if not, `examine` does
        self._engine = engine
        self._writing = threading.Lock()
        self._moment = _Moment()
        self._incomplete: opening.Rebuilt | None = None  #: that models may be missing, while we live
        self._damaged: str | None = None  #: what is wrong with the rows themselves, once that was met
        self._unread = True  #: whether there may be catalogs that are still to be taken over
        self._examining: Connection | None = None
        self._closing = threading.Lock()
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        apart: bool = False,
        account: str | None = None,
        other: Path | None = None,
        guest: bool = False,
    ) -> Self:
        """Open the catalog, or make it, and bring it to the newest revision.

        What cannot be used, whatever is wrong with it, is set aside and a new one made (see `rebuilt`); of a large file
        only what a start needs is looked at for that (see `examined`).  With ``apart`` a process of its own migrates,
        for the sake of memory.  With ``account`` it is that account's, and what one of another name left behind is set
        aside, too.  A new one takes models and history over from ``other``, which stays as it is.  A ``guest``, beside
        whom a daemon may be at work, sets nothing aside.  Raises `CatalogError` for a file that a newer version wrote,
        or that cannot be read and written just now (no rights, a full disk); it stays as it is.
        """
        inherited = opening.claim(path, account) if account is not None else None
        if (inherited is not None or os.path.lexists(path)) and not setting_aside.is_marked(path):
            other = None  # it was taken over, and its file system need not answer
        away = other is not None and setting_aside.is_away(other)
        if inherited is None and other is not None and (away or os.path.lexists(other)):
            with opening.refusing(path):
                setting_aside.mark(path)
        if apart:
            opening.migrate_apart(path)
        # A link of somebody's to it must not be opened here, and closed.
        reading.protect(path)
        catalog: Self | None = None
        try:
            opened = opening.connect(path, guest=guest)
            catalog = cls(path, opened.engine, inherited.message if inherited is not None else None)
            catalog.examined = opened.examined
            if inherited is not None:
                catalog._miss(inherited)
            if not guest:
                catalog._inherit(opened.rebuilt, None if away else other)
        except BaseException:
            reading.unprotect(path)
            if catalog is not None:
                catalog.close()
            raise
        return catalog

    def _inherit(self, rebuilt: opening.Rebuilt | None, other: Path | None) -> None:
        """Take over what corrupt catalogs, and another daemon's, tell."""
        with opening.refusing(self.path):
            self._take_over(rebuilt)
            if other is not None and setting_aside.is_marked(self.path):
                taken = self._take_from(other)
                log.info("models were taken over from %s: %d", other, len(taken.models))
                setting_aside.unmark(self.path)

    def _take_from(self, old: Path) -> salvage.Salvaged:
        """Register again what another catalog tells, where it is not known by now."""
        taken = salvage.salvage_models(old, self.path)
        self.write_durably(salvage.take_over, taken)
        return taken

    def _take_over(self, rebuilt: opening.Rebuilt | None) -> bool:
        """Take over what corrupt catalogs still tell, and say whether there are any; see `setting_aside.unread`.

        ``rebuilt`` is the one of just now; to an earlier one nobody came yet, because of a kill or a full disk.
        """
        if not self._unread:
            return False
        found = setting_aside.unread(self.path) or (() if rebuilt is None else (rebuilt.aside,))
        told: list[str] = []
        # The newest first: what is known already stays as it is.
        for aside in reversed(found):
            message = f"the catalog was corrupt: set aside as {aside}, a new one was made"
            if rebuilt is not None and rebuilt.aside == aside:
                message = rebuilt.message
            taken = self._take_from(aside)
            message += f"; {len(taken.models)} registered models were taken over"
            if taken.incomplete_because:
                message += (
                    f", and others may be missing: {taken.incomplete_because}; compare with: xpucachectl model list"
                )
                self._miss(opening.Rebuilt(message, aside))
            told.append(message)
            self.rebuilt = ". ".join(told)
            setting_aside.unmark(aside)
        self._unread = False
        return bool(found)

    def _miss(self, rebuilt: opening.Rebuilt) -> None:
        self._incomplete = rebuilt
        salvage.note_incomplete(self.path, rebuilt.aside, rebuilt.message)

    @property
    def incomplete(self) -> str:
        """Why models may be missing, in a sentence, until somebody removes the old catalog; empty if none are."""
        if self._incomplete is not None and os.path.lexists(self._incomplete.aside):
            return self._incomplete.message
        return salvage.incomplete(self.path)

    def close(self) -> None:
        """Close it; the journal is folded into the file."""
        with self._closing:
            self._closed = True
            if self._examining is not None:
                self._examining.interrupt()
        self._engine.dispose()
        reading.unprotect(self.path)

    def examine(self) -> None:
        """Read the whole file, if opening it did not; it is used meanwhile.  Raises `CatalogError`, see `mend`."""
        engine = self._engine
        if self.examined:
            return
        try:
            with opening.refusing(self.path), opening.examining(self.path) as look:
                with self._closing:
                    self._examining = None if self._closed else look
                try:
                    done = self._examining is not None and opening.examine(look)
                finally:
                    with self._closing:
                        self._examining = None
            if done:
                with self._read() as connection:
                    soundness.check_types(connection, growing=True)
        except CatalogError as error:
            # Unless the file was set aside already for what others met in it.
            if engine is not self._engine:
                return
            self.trouble = error
            raise
        if engine is self._engine:
            self.examined = done

    @property
    def corrupt(self) -> bool:
        """Whether damage was met; what can be written all the same does not mend it."""
        return self.trouble is not None and soundness.is_damage(self.trouble.__cause__)

    def mend(self) -> bool:
        """If the file was found corrupt at work, set it aside and go on with a new one (see `rebuilt`): True if so.

        Raises `CatalogError` if that fails.
        """
        rebuilt = None
        with self._writing:
            if self.corrupt:
                self._refuse_newer()
                old = self._engine
                opened = opening.connect(self.path, whole=True, damaged=self._damaged)
                self._engine, self.examined = opened.engine, True
                old.dispose()
                self.trouble = self._damaged = None
                rebuilt, self._unread = opened.rebuilt, True
        with opening.refusing(self.path):
            return self._take_over(rebuilt)

    def read(self, ask: Question[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return what a question of the modules here answers."""
        with self._read() as connection:
            return ask(connection, *args, **kwargs)

    def write(self, do: Question[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Note something, wholly or not at all."""
        with self._write() as connection:
            return do(connection, *args, **kwargs)

    def write_durably(self, do: Question[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Note something that is on the disk when this returns."""
        with self._write(durable=True) as connection:
            return do(connection, *args, **kwargs)

    @contextmanager
    def moment(self) -> Iterator[None]:
        """Let all that this thread asks meanwhile be answered as of one moment; it also costs less."""
        before = self._moment.connection
        with self._read() as connection:
            self._moment.connection = connection
            try:
                yield
            finally:
                self._moment.connection = before

    @contextmanager
    def _read(self) -> Iterator[sa.Connection]:
        if self._moment.connection is not None:
            yield self._moment.connection
            return
        with self._guarded(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def _write(self, *, durable: bool = False) -> Iterator[sa.Connection]:
        # Our own threads wait here, for as long as it takes; the database's patience is for other processes.
        with self._guarded(), self._writing, self._engine.connect() as connection:
            driver = connection.connection.cursor()
            # Who changes nothing asks nothing of a disk that takes nothing.
            full = self.trouble is not None and soundness.is_of_the_disk(self.trouble.__cause__)
            before = driver.execute(_CHANGES).fetchone() if full else None
            if durable:
                driver.execute("PRAGMA synchronous = FULL")
            try:
                with connection.execution_options(immediate=True).begin():
                    # What a newer version has brought along meanwhile is not ours to write any more.
                    opening.check_revisions(self.path, [str(one) for (one,) in driver.execute(_REVISION)])
                    yield connection
                self.writes += 1
                if not self.corrupt and not (full and driver.execute(_CHANGES).fetchone() == before):
                    self.trouble = None
            finally:
                if durable and not connection.invalidated:
                    driver.execute("PRAGMA synchronous = NORMAL")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with opening.refusing(self.path):
                yield
        except UnicodeEncodeError as error:
            raise RequestError(f"not valid Unicode text: {error.object[:40]!r}") from error
        except CatalogError as error:
            self.trouble = error
            if soundness.is_damage(error.__cause__):
                self._refuse_newer()
                self._damaged = self._damaged or soundness.proven(error.__cause__)
                # Whether that is the file's fault or the disk's, `mend` finds out.
                if not soundness.is_malformed(error.__cause__):
                    self._look_for_damage()
            raise
        except XpucachedError:
            raise
        except Exception as error:
            # A mistake of ours, or a row that nobody of ours wrote: the rows tell.
            if soundness.is_damage(error):
                self._refuse_newer()
            self._damaged = self._damaged or soundness.proven(error)
            if soundness.is_damage(error) and (what := self._look_for_damage()) is not None:
                self.trouble = opening.damaged_at_work(self.path, what)
                raise self.trouble from error
            raise

    def _refuse_newer(self) -> None:
        """Raise `CatalogError` if a newer version has brought the file along meanwhile, which is no damage."""
        try:
            with self._engine.connect() as connection, connection.begin():
                opening.check_revisions(
                    self.path, [str(one) for one in connection.exec_driver_sql(_REVISION).scalars()]
                )
        except opening.Newer as newer:
            self.trouble = newer
            raise newer from None
        except Exception as error:  # noqa: BLE001 - what it is damaged in is found out then
            log.info("the catalog's revision could not be read: %s", error)

    def _look_for_damage(self) -> str | None:
        """Read everything as the daemon reads it; give what is wrong with it, if anything is."""
        if self._damaged is None:
            try:
                with self._engine.connect() as connection, connection.begin():
                    soundness.check(connection, growing=True)
            except soundness.Corrupt as error:
                if soundness.is_malformed(error.__cause__):
                    return str(error)
                self._damaged = str(error)
            except Exception as error:  # noqa: BLE001 - it cannot be told just now
                log.info("the catalog could not be read to its end: %s", error)
        return self._damaged
