"""What cannot be read now is not called warm, nor lost; and only models that need it are concerned."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests import INSTANCE
from tests.support import catalogs
from tests.support.builders import SyclStore
from tests.support.users import mere_user
from xpucached.catalog import departed
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.domain.diagnosis import Cause
from xpucached.domain.host import Host
from xpucached.domain.models import Attribution, Model, Outcome, WarmReason, Warmth, Workload
from xpucached.domain.names import ModelName
from xpucached.domain.status import Verdict
from xpucached.domain.stores import EntryState
from xpucached.kinds import fs
from xpucached.planning.verdict import verdict
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service, owners, scan
from xpucached.service.context import Context
from xpucached.service.store_finder import StoreFinder, writers_since
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.catalog import Catalog
    from xpucached.domain.models import ModelStatus

    Hiding = Callable[["House", pytest.MonkeyPatch], contextlib.AbstractContextManager[None]]

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
MINE, OTHER, NEVER = map(ModelName, ("mine", "other", "never"))


class House:
    """Two stores, and a model that is proven warm in each."""

    def __init__(self, catalog: Catalog, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.catalog = catalog
        self.stores = {name: SyclStore(place / name) for name in (MINE, OTHER)}
        for store in self.stores.values():
            for kernel in ("_ZTS1a", "_ZTS1b"):
                store.add(kernel)
        paths = ":".join(str(store.root) for store in self.stores.values())
        settings = loading.load(
            None, user=True, environ={**os.environ, "XPUCACHED_STORES_FOUND": "false", "XPUCACHED_STORES_PATHS": paths}
        )
        self.context = Context(settings, catalog, {}, lambda: NOW)
        self.service = Service(self.context, ProcessStarter({}, INSTANCE))
        monkeypatch.setattr("xpucached.service.proofs._FRESH", 0.0)
        monkeypatch.setattr("xpucached.service.proofs._SHARE", 0.0)
        self.look()
        entries = catalog.read(all_entries)
        targets = {one.entry.environment for one in entries if one.entry.environment is not None}
        self.host = Host(NOW, "", "", "stamp", environments=tuple(targets))
        monkeypatch.setattr(Context, "present", property(lambda _: self.host))
        for name, store in self.stores.items():
            model = self.model(name, store)
            used = frozenset(one.entry.id for one in entries if one.entry.id.store.root == store.root)
            assert len(used) == 2
            run = catalog.write(begin_run, model, WarmReason.NEVER, self.host.signature, NOW)
            proof = (Outcome.WARMED, (), Attribution(used=used), tuple(targets), "", "", NOW)
            catalog.write(finish_run, run.id, *proof)

    def model(self, name: ModelName, store: SyclStore) -> Model:
        """Register a model that caches in a store."""
        model = Model(name, Workload(("/bin/true",), Path("/")), store=store.root)
        self.catalog.write(add_model, model)
        return model

    def look(self) -> None:
        """Look at both stores, in this thread."""
        finder = StoreFinder(self.context)
        scanner = scan.StoreScanner(self.context, finder)
        for found in finder.find()[0]:
            if found.store.root in {store.root for store in self.stores.values()}:
                scanner.scan(found, writers_since()[found.store.kind])

    @property
    def models(self) -> dict[ModelName, ModelStatus]:
        """How the models stand."""
        return {one.name: one for one in asyncio.run(self.service.prewarmer.statuses())}

    @property
    def warmth(self) -> dict[ModelName, Warmth]:
        """How the models stand, as a word."""
        return {name: one.warmth for name, one in self.models.items()}


@pytest.fixture
def house(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        yield House(catalog, tmp_path.resolve(), monkeypatch)


@contextlib.contextmanager
def shut(path: Path) -> Iterator[None]:
    """Take the right to read a directory away, also from root."""
    before = path.stat().st_mode
    path.chmod(0)
    try:
        with mere_user():
            yield
    finally:
        path.chmod(before)


@contextlib.contextmanager
def root_shut(house: House, _: pytest.MonkeyPatch) -> Iterator[None]:
    with shut(house.stores[MINE].root):
        yield


@contextlib.contextmanager
def silent(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(scan, "answers", lambda root: root != house.stores[MINE].root and owners.answers(root))
        yield


@contextlib.contextmanager
def failing_disk(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opening, root = os.open, house.stores[MINE].root

    def fails(path: str, *given: int, **more: int) -> int:
        if path == os.fspath(root):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opening(path, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        yield


def _leaf(house: House) -> Path:
    return next(house.stores[MINE].root.glob("[0-9]*/[0-9]*/[0-9]*/[0-9]*"))


@contextlib.contextmanager
def leaf_shut(house: House, _: pytest.MonkeyPatch) -> Iterator[None]:
    with shut(_leaf(house)):
        yield


@contextlib.contextmanager
def device_shut(house: House, _: pytest.MonkeyPatch) -> Iterator[None]:
    with shut(_leaf(house).parents[2]):
        yield


@contextlib.contextmanager
def failing_file(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opening, program = fs._open, _leaf(house) / "0.bin"
    program.write_bytes(program.read_bytes())

    def fails(name: str, flags: int, directory: int) -> int:
        if os.path.samestat(os.fstat(directory), program.parent.stat()) and name == program.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opening(name, flags, directory)

    with monkeypatch.context() as patch:
        patch.setattr(fs, "_open", fails)
        house.catalog.write(
            lambda connection: connection.exec_driver_sql("UPDATE entries SET stamp = '', place = NULL")
        )
        yield


@pytest.mark.parametrize(
    ("hiding", "unread", "why"),
    [
        (root_shut, 2, "Permission denied"),
        (silent, 2, "its file system does not answer"),
        (failing_disk, 2, "Input/output error"),
        (leaf_shut, 1, "its directory may not be read now"),
        (device_shut, 2, "its directory may not be read now"),
        (failing_file, 1, "it cannot be read just now: Input/output error"),
    ],
)
def test_what_cannot_be_read_is_neither_warm_nor_lost_until_it_is_read_again(
    house: House, monkeypatch: pytest.MonkeyPatch, hiding: Hiding, unread: int, why: str
) -> None:
    assert house.warmth == {MINE: Warmth.WARM, OTHER: Warmth.WARM}
    with hiding(house, monkeypatch):
        house.look()
    told = f"{unread} of its 2 entries cannot be read now ({why})"

    mine = house.models[MINE]
    assert house.warmth == {MINE: Warmth.UNKNOWN, OTHER: Warmth.WARM}
    assert mine.why.startswith(told)
    assert [(one.entries, one.remaining, one.unread) for one in mine.layers] == [(2, 2, unread)]
    word, sentence = verdict(house.host, list(house.models.values()), ())
    assert word is Verdict.UNKNOWN
    assert sentence.startswith("Unknown: whether 1 of 2 models is warm for driver")
    assert told in sentence
    (first, *_) = asyncio.run(house.service.explainer.diagnose(MINE)).explanations
    assert (first.cause, first.command) == (Cause.UNREAD, shlex.join(["xpucachectl", "stores"]))
    assert told in first.message
    # A run would be in vain.
    plan = asyncio.run(house.service.prewarmer.plan())
    assert not plan.warm
    assert plan.covered == (OTHER,)
    assert [(one.model, one.why) for one in plan.deferred] == [(MINE, told)]

    house.look()
    assert house.warmth == {MINE: Warmth.WARM, OTHER: Warmth.WARM}
    assert {one.entry.state for one in house.catalog.read(all_entries)} == {EntryState.OK}


def test_a_model_that_is_cold_is_not_run_while_its_store_cannot_be_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.model(NEVER, house.stores[MINE])
    assert [one.model.name for one in asyncio.run(house.service.prewarmer.plan()).warm] == [NEVER]
    with silent(house, monkeypatch):
        house.look()

    assert house.warmth == {MINE: Warmth.UNKNOWN, OTHER: Warmth.WARM, NEVER: Warmth.COLD}
    told = "where it caches cannot be read now (its file system does not answer)"
    assert house.models[NEVER].why == f"it has never been warmed; it is not run while {told}"
    plan = asyncio.run(house.service.prewarmer.plan())
    assert not plan.warm
    assert (NEVER, told) in {(one.model, one.why) for one in plan.deferred}
    assert verdict(house.host, list(house.models.values()), ())[0] is Verdict.COLD


def test_nobody_runs_a_model_whose_store_cannot_be_opened(house: House) -> None:
    finder, model = StoreFinder(house.context), house.model(NEVER, house.stores[MINE])
    assert finder.hindrance(model) == ""
    with shut(house.stores[MINE].root):
        why = finder.hindrance(model)
    assert why == f"its cache cannot be read: {house.stores[MINE].root}: Permission denied"


def test_what_is_known_to_be_lost_is_lost_whatever_else_cannot_be_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, kept = (slot for slot in sorted(house.stores[MINE].root.glob("[0-9]*/*/*/*/0.bin")))
    for path in gone.parent.iterdir():
        path.unlink()
    with shut(kept.parent):
        house.look()
    assert house.warmth[MINE] is Warmth.COLD
    assert house.models[MINE].why.startswith(
        "1 of its 2 entries are gone or damaged (1 sycl); it is not run while 1 of"
    )


def test_of_a_store_that_is_gone_so_many_entries_are_forgotten_at_a_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a million it took most of a minute, in which nobody else could write."""
    monkeypatch.setattr(departed, "_LEAVING", 1)
    counts: list[int] = []
    write = house.catalog.write

    def counted(*given: object) -> object:
        done: object = write(*given)  # type: ignore[arg-type] # whatever it is
        counts.append(len(house.catalog.read(all_entries)))
        return done

    monkeypatch.setattr(house.catalog, "write", counted)
    root = house.stores[MINE].root
    root.rename(root.with_name("elsewhere"))
    house.look()
    assert [after for before, after in zip([4, *counts], counts, strict=False) if after != before] == [3, 2]
    root.with_name("elsewhere").rename(root)
    house.look()
    assert (counts[-1], house.warmth[MINE]) == (4, Warmth.WARM)
