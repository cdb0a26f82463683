"""Record: the catalog, our SQLite index of what stores held when we last looked, plus what only we know.

Derived: delete the file, and a scan rebuilds all but models and history.  Every method blocks, and may be called from
any thread; questions run beside a write and see the catalog as it was before it.  Each method is one transaction, and
raises `CatalogError` if the file fails it.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from xpucached.catalog import (
    builds,
    dependencies,
    entries,
    events,
    models,
    opening,
    preselect,
    refusals,
    runs,
    runtimes,
    salvage,
    scans,
    soundness,
    surveys,
    targets,
)
from xpucached.domain.models import Outcome
from xpucached.domain.names import EntryKey
from xpucached.errors import CatalogError, Conflict, RequestError, XpucachedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path
    from sqlite3 import Connection

    import sqlalchemy as sa

    from xpucached.catalog.entries import Summary
    from xpucached.domain.activity import Load
    from xpucached.domain.defects import Defect
    from xpucached.domain.dependencies import Dependency
    from xpucached.domain.diagnosis import RuntimeCheck
    from xpucached.domain.host import DriverChange, Host, Presence
    from xpucached.domain.jobs import Event
    from xpucached.domain.libraries import Libraries
    from xpucached.domain.models import Attribution, Coverage, Model, Pass, Run, Trial, WarmReason
    from xpucached.domain.names import Architecture, EntryRef, Fingerprint, ModelName
    from xpucached.domain.plans import Built, IndexedEntry, Preselection, Subtotal
    from xpucached.domain.queries import EntryPage, EntryQuery
    from xpucached.domain.stores import Delta, EntryId, KnownEntry, Scan, Store, StoreStatus
    from xpucached.domain.targets import Target


log = logging.getLogger(__name__)

_PAGE: Final = 2000
"""What is known of so many entries is read at a time."""


class _Moment(threading.local):
    """The connection that a thread's questions share, if they shall be answered as of one moment."""

    connection: sa.Connection | None = None


class Catalog:
    """The catalog, open."""

    def __init__(self, path: Path, engine: sa.Engine, rebuilt: str | None) -> None:
        self.path = path
        self.rebuilt = rebuilt  #: in one sentence: that the file was corrupt, and where it is now
        self.trouble: CatalogError | None = None  #: what failed last, until something could be written again
        self.examined = True  #: whether the whole file was read; if not, `examine` does
        self._engine = engine
        self._writing = threading.Lock()
        self._moment = _Moment()
        self._damaged: str | None = None  #: what is wrong with the rows themselves, once that was met
        self._examining: Connection | None = None
        self._closing = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls, path: Path, *, apart: bool = False, account: str | None = None) -> Self:
        """Open the catalog, or make it, and bring it to the newest revision.

        What cannot be used, whatever is wrong with it, is set aside and a new one made (see `rebuilt`); of a large file
        only what a start needs is looked at for that (see `examined`).  With ``apart`` a process of its own migrates,
        for the sake of memory.  With ``account`` it is that account's, and what one of another name left behind is set
        aside, too.  Raises `CatalogError` for a file that a newer version wrote, or that cannot be read and written
        just now (no rights, a full disk); it stays as it is.
        """
        inherited = opening.claim(path, account) if account is not None else None
        if apart:
            opening.migrate_apart(path)
        opened = opening.connect(path)
        catalog = cls(path, opened.engine, None)
        catalog.examined = opened.examined
        if inherited is not None:
            catalog.rebuilt = inherited.message
        if opened.rebuilt is not None:
            catalog._take_over(opened.rebuilt)
        return catalog

    def _take_over(self, rebuilt: opening.Rebuilt) -> None:
        """Register again in a new catalog what the corrupt one still tells."""
        taken = salvage.registered(rebuilt.aside)
        for model in taken.models:
            self.add_model(model)
        self.rebuilt = f"{rebuilt.message}; {len(taken.models)} registered models were taken over"
        if taken.missing:
            self.rebuilt += f", and others may be missing: {taken.missing}; compare with: xpucachectl model list"

    def close(self) -> None:
        """Close it; the journal is folded into the file."""
        with self._closing:
            self._closed = True
            if self._examining is not None:
                self._examining.interrupt()
        self._engine.dispose()

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
        with self._writing:
            if not self.corrupt:
                return False
            old = self._engine
            opened = opening.connect(self.path, whole=True, damaged=self._damaged)
            self._engine, self.examined = opened.engine, True
            old.dispose()
            self.trouble = self._damaged = None
        if opened.rebuilt is not None:
            self._take_over(opened.rebuilt)
        return opened.rebuilt is not None

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
            if durable:
                driver.execute("PRAGMA synchronous = FULL")
            try:
                with connection.execution_options(immediate=True).begin():
                    yield connection
                if not self.corrupt:
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
                self._damaged = self._damaged or soundness.proven(error.__cause__)
                self._look_for_damage()
            raise
        except XpucachedError:
            raise
        except Exception as error:
            # A mistake of ours, or a row that nobody of ours wrote: the rows tell.
            self._damaged = self._damaged or soundness.proven(error)
            if soundness.is_damage(error) and self._look_for_damage() is not None:
                self.trouble = opening.damaged_at_work(self.path, self._damaged or "")
                raise self.trouble from error
            raise

    def _look_for_damage(self) -> str | None:
        """Read everything as the daemon reads it; give what is wrong with it, if anything is."""
        if self._damaged is None:
            try:
                with self._engine.connect() as connection, connection.begin():
                    soundness.check(connection, growing=True)
            except soundness.Corrupt as error:
                self._damaged = str(error)
            except Exception as error:  # noqa: BLE001 - it cannot be told just now
                log.info("the catalog could not be read to its end: %s", error)
        return self._damaged

    # -- stores and entries ---------------------------------------------------------------------------------------

    def record_scan(self, scan: Scan, architecture: Callable[[Target], Architecture]) -> Delta:
        """Make the catalog equal to what the scan, or a part of one, found.

        What vanished is forgotten; `Entry`s that the scan calls unchanged keep all but their access time.  A missing
        store has no entries; one that could not be read keeps those it had.  ``architecture`` must be pure.
        """
        with self._write() as connection:
            return scans.record(connection, scan, architecture)

    def keys(self, store: Store) -> frozenset[EntryKey]:
        """Give the keys of a store's entries."""
        with self._read() as connection:
            return scans.keys(connection, store)

    def known(self, store: Store) -> Iterator[KnownEntry]:
        """Give what the next look at this store need not read again, in the order of the keys.

        Read bit by bit, as it is asked for: what is recorded meanwhile of later keys is seen.
        """
        after = EntryKey("")
        while True:
            with self._read() as connection:
                some = scans.known(connection, store, after, _PAGE)
            yield from some
            if len(some) < _PAGE:
                return
            after = some[-1].key

    def trusted(self, defect: Defect) -> dict[EntryId, str]:
        """Give the digests that entries with a defect had when they were first seen whole."""
        with self._read() as connection:
            return scans.trusted(connection, defect)

    def trust(self, digests: Mapping[EntryId, str]) -> None:
        """Take these digests for those of good programs from now on; the next look reads their entries again."""
        with self._write() as connection:
            scans.trust(connection, digests)

    def looked(self, store: Store) -> datetime | None:
        """Tell when each file of a store was last looked at, not only its directories; None: never."""
        with self._read() as connection:
            return scans.looked(connection, store)

    def entries(self, query: EntryQuery, *, present: Collection[Fingerprint], now: datetime) -> EntryPage:
        """Give one page of the entries that match, and the figures of all that match.

        ``present`` is what ``driver="current"`` means; ``now`` is what ``unused`` counts back from.  Raises
        `RequestError` for a cursor or a limit that cannot be.
        """
        with self._read() as connection:
            return entries.page(connection, query, present=present, now=now)

    def all_entries(self) -> tuple[IndexedEntry, ...]:
        """Give every entry of every store."""
        with self._read() as connection:
            return entries.every(connection)

    def defective_entries(self) -> tuple[IndexedEntry, ...]:
        """Give the entries that have a defect, and those in one leaf with an abandoned lock; without their kernels."""
        with self._read() as connection:
            return entries.defective(connection)

    def subtotals(self) -> tuple[Subtotal, ...]:
        """Give what the stores hold for each environment."""
        with self._read() as connection:
            return preselect.subtotals(connection)

    def sifted(
        self, preselection: Preselection, rate: float, half: float, absent: float
    ) -> tuple[tuple[IndexedEntry, ...], tuple[Subtotal, ...], float]:
        """Give the entries that go through the sieve, the sums of those that do not, and what a byte costs.

        ``rate`` is what a byte costs where nothing was measured, ``half`` the seconds that halve an entry's worth, and
        ``absent`` the part of it that is left where no driver is.
        """
        with self._read() as connection:
            return preselect.sifted(connection, preselection, rate, half, absent)

    def entries_by_id(self, ids: Iterable[EntryId]) -> tuple[IndexedEntry, ...]:
        """Give these entries; those that are not known are left out."""
        with self._read() as connection:
            return entries.some(connection, ids)

    def entry(self, ref: EntryRef | str) -> IndexedEntry:
        """Give the entry whose reference begins so.  Raises `NotFound`, or `RequestError` if several do."""
        with self._read() as connection:
            return entries.one(connection, ref)

    def forget(self, ids: Iterable[EntryId]) -> None:
        """Forget entries that were removed, and their attributions."""
        with self._write() as connection:
            entries.forget(connection, ids)

    def note_uses(self, uses: Collection[Load]) -> None:
        """Note that programs were seen to load entries; those that are not known are left out."""
        if uses:
            with self._write() as connection:
                entries.note_uses(connection, uses)

    def model_sizes(self) -> dict[ModelName, tuple[int, int]]:
        """Give, for each model that has any, the number of its entries and their allocated bytes."""
        with self._read() as connection:
            return entries.model_sizes(connection)

    def stores(self) -> tuple[StoreStatus, ...]:
        """Give every store that was looked at."""
        with self._read() as connection:
            return scans.stores(connection)

    def forget_store(self, store: Store) -> None:
        """Forget a store that is no longer ours to look at, with its entries."""
        with self._write() as connection:
            scans.forget(connection, store)

    def summary(self) -> Summary:
        """Give the figures of the whole catalog."""
        with self._read() as connection:
            return entries.summary(connection)

    def note_restored(self, ids: Iterable[EntryId], now: datetime) -> None:
        """Note that somebody brought these back from the trash; those that are not known are left out."""
        with self._write() as connection:
            entries.note_restored(connection, ids, now)

    def note_costs(self, ids: Iterable[EntryId], seconds: float) -> None:
        """Note what it took to make these together; those that are not known are left out."""
        with self._write() as connection:
            entries.note_costs(connection, ids, seconds)

    # -- replay -----------------------------------------------------------------------------------------------------

    def record_refusal(
        self, store: Store, tail: str, fingerprint: Fingerprint, stamp: str, message: str, now: datetime
    ) -> None:
        """Note that a compiler refused to rebuild a leaf, or died of it."""
        with self._write() as connection:
            refusals.record(connection, store, tail, fingerprint, stamp, message, now)

    def refusals(self, stamp: str) -> frozenset[tuple[Store, str, Fingerprint]]:
        """Give what the driver with this stamp refused: store, path below the device's directory, environment."""
        with self._write() as connection:
            return refusals.by(connection, stamp)

    def record_build(self, built: Built, now: datetime) -> None:
        """Note that we compiled an entry: its origin, and what it took."""
        with self._write() as connection:
            builds.record(connection, built, now)

    def forget_builds(self, now: datetime) -> None:
        """Forget what was compiled or refused more than a year ago."""
        with self._write() as connection:
            builds.forget(connection, now)
            refusals.forget(connection, now)

    def build_rates(self) -> Mapping[str, float]:
        """Give, by platform, the seconds that a compiler takes for a byte of SPIR-V, of the newest builds."""
        with self._read() as connection:
            return builds.rates(connection)

    def built_among(self, ids: frozenset[EntryId]) -> int:
        """Count those of these entries that we compiled."""
        with self._read() as connection:
            return builds.among(connection, ids)

    # -- removals under way ---------------------------------------------------------------------------------------

    def intend(self, ids: Iterable[EntryId], now: datetime) -> None:
        """Note, before a file is touched, what is about to be removed.  On disk when this returns."""
        with self._write(durable=True) as connection:
            entries.intend(connection, ids, now)

    def intents(self) -> tuple[EntryId, ...]:
        """Give what was about to be removed and was not fulfilled: after a start, what a dead daemon left."""
        with self._read() as connection:
            return entries.intents(connection)

    def fulfil(self, ids: Iterable[EntryId]) -> None:
        """Note that these removals have ended, whichever way."""
        with self._write() as connection:
            entries.fulfil(connection, ids)

    # -- models ---------------------------------------------------------------------------------------------------

    def add_model(self, model: Model) -> None:
        """Register a model, in the place of one of its name if there is one; the runs of that one stay."""
        with self._write() as connection:
            models.add(connection, model)

    def model(self, name: ModelName) -> Model:
        """Give a model.  Raises `NotFound`."""
        with self._read() as connection:
            return models.one(connection, name)

    def models(self) -> tuple[Model, ...]:
        """Give all models, by name."""
        with self._read() as connection:
            return models.every(connection)

    def remove_model(self, name: ModelName) -> None:
        """Forget a model, its runs and its attributions.  Raises `NotFound`."""
        with self._write() as connection:
            models.remove(connection, name)

    def sync_file_models(self, declared: Iterable[Model]) -> None:
        """Make these the models that files declare; those that no file declares any more are forgotten.

        A model that was registered through the socket keeps its name: the others are recorded, then `Conflict` is
        raised for those that could not be.
        """
        with self._write() as connection:
            clashing = models.sync(connection, declared)
        if clashing:
            raise Conflict(
                f"a file declares a model that is registered already: {', '.join(clashing)}",
                hint="remove the registered one, or rename the one in the file",
            )

    # -- runs -----------------------------------------------------------------------------------------------------

    def begin_run(self, model: Model, reason: WarmReason, host_signature: str, now: datetime) -> Run:
        """Note that a run begins.  Raises `NotFound` without such a model."""
        with self._write() as connection:
            return runs.begin(connection, model, reason, host_signature, now)

    def finish_run(
        self,
        run_id: int,
        outcome: Outcome,
        passes: Sequence[Pass],
        attribution: Attribution,
        environments: Sequence[Target],
        detail: str,
        output: str,
        now: datetime,
        trials: Sequence[Trial] = (),
        needs: Sequence[Dependency] | None = None,
        libraries: Libraries | None = None,
    ) -> Run:
        """Note how a run ended.  Raises `NotFound` if it is not under way: its model may have been removed.

        Attributed entries that the catalog does not hold count, but are not kept: scan before this.
        """
        with self._write() as connection:
            run = runs.finish(
                connection,
                run_id,
                outcome=outcome,
                passes=passes,
                attribution=attribution,
                of=environments,
                detail=detail,
                output=output,
                trials=trials,
                libraries=libraries,
                now=now,
            )
            if outcome is Outcome.WARMED and needs is not None:
                dependencies.record(connection, run_id, needs)
            return run

    def dependencies(self, runs: Collection[int]) -> Mapping[int, tuple[Dependency, ...]]:
        """Give what these runs needed; those of which nothing was noted are left out."""
        with self._read() as connection:
            return dependencies.of(connection, runs)

    def noted(self, runs: Collection[int]) -> frozenset[int]:
        """Give those of these runs of which it was noted what they needed."""
        with self._read() as connection:
            return dependencies.noted(connection, runs)

    def refresh_dependencies(self, run: int, needs: Sequence[Dependency]) -> None:
        """Note the times that files have now whose content is what it was."""
        with self._write() as connection:
            dependencies.refresh(connection, run, needs)

    def note_ending(self) -> None:
        """Note that runs which go on now are ended by us, whether or not we live to see it."""
        with self._write() as connection:
            runs.note_ending(connection)

    def close_lost_runs(self, now: datetime) -> int:
        """At start: end the runs that a dead daemon left, as lost; give how many."""
        with self._write() as connection:
            return runs.close_lost(connection, now)

    def runs(self, model: ModelName | None = None, limit: int = 50) -> tuple[Run, ...]:
        """Give the newest runs, of one model or of all, newest first."""
        with self._read() as connection:
            return runs.newest(connection, model, limit)

    def coverage(self) -> tuple[Coverage, ...]:
        """Tell of every model how its last runs went, and what is left of what the good one used."""
        with self._read() as connection:
            return runs.coverage(connection)

    # -- runtimes ---------------------------------------------------------------------------------------------------

    def record_runtime_check(self, check: RuntimeCheck) -> None:
        """Keep what was found out about a build of the SYCL runtime."""
        with self._write() as connection:
            runtimes.record(connection, check)

    def runtime_checks(self, builds: Iterable[str]) -> dict[str, RuntimeCheck]:
        """Give what is known of these builds, by build."""
        with self._read() as connection:
            return runtimes.some(connection, builds)

    # -- the host -------------------------------------------------------------------------------------------------

    def record_host(self, host: Host) -> DriverChange | None:
        """Keep this survey as the last one; give what came and went since the one before it, if anything did."""
        with self._write() as connection:
            return surveys.record(connection, host)

    def host(self) -> Host | None:
        """Give the last survey; None before the first."""
        with self._read() as connection:
            return surveys.last(connection)

    def changes(self, limit: int = 20) -> tuple[DriverChange, ...]:
        """Give the newest driver changes, newest first."""
        with self._read() as connection:
            return surveys.changes(connection, limit)

    def presence(self) -> tuple[Presence, ...]:
        """Tell of every known environment when this host offered it."""
        with self._read() as connection:
            return targets.presence(connection)

    # -- events ---------------------------------------------------------------------------------------------------

    def record_events(self, happened: Collection[Event], reserved: int) -> None:
        """Keep events, of which the oldest are forgotten; after a death their numbers go on behind ``reserved``."""
        with self._write() as connection:
            events.record(connection, happened, reserved)

    def events_begin(self, limit: int) -> tuple[int, tuple[Event, ...]]:
        """Give the highest number that an event may have had, and the newest events."""
        with self._read() as connection:
            return events.reserved(connection), events.newest(connection, limit)

    def events_after(self, last: int) -> tuple[int | None, tuple[Event, ...]]:
        """Give the number of the oldest event that is kept, and all behind ``last``."""
        with self._read() as connection:
            return events.oldest(connection), events.after(connection, last)
