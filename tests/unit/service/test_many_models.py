"""What thousands of models of one program cost: as many questions as a few."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from tests import INSTANCE
from tests.support import catalogs
from xpucached.catalog.days import note_warmth, warmth_changes
from xpucached.catalog.models import add_model, all_models, sync_file_models
from xpucached.domain.models import Model, Workload
from xpucached.domain.names import ModelName
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service, survey
from xpucached.service.context import Context
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.fixture
def service(home: Path) -> Iterator[Service]:
    """Give a service without models."""
    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {})
        yield Service(context, ProcessStarter({}, INSTANCE))


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect what databases are asked."""
    asked: list[str] = []

    def note(*given: object) -> None:
        asked.append(str(given[2]))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def statuses(service: Service) -> None:
    assert service.prewarmer.statuses_now(service.context.present, frozenset())


def led(service: Service) -> None:
    assert service.surveyor._led(()) == ()


def runtimes(service: Service) -> None:
    asyncio.run(service.explainer.look())


def warmth(service: Service) -> None:
    known = service.prewarmer.statuses_now(service.context.present, frozenset())
    changes = service.context.catalog.write(note_warmth, known, NOW)
    assert changes == service.context.catalog.read(warmth_changes)[-len(changes) :]


@pytest.mark.parametrize("ask", [statuses, led, runtimes, warmth])
def test_many_models_of_one_program_take_as_many_questions_as_a_few(
    service: Service, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Service], None]
) -> None:
    monkeypatch.setattr(survey, "driver_files", lambda _: ())
    taken = []
    for names in (range(2), range(2, 100)):
        for number in names:
            model = Model(ModelName(f"m{number}"), Workload(("/bin/true", str(number)), Path("/")))
            service.context.catalog.write(add_model, model)
        with statements() as asked:
            ask(service)
        taken.append(len(asked))
    few, many = taken
    assert 0 < many <= few


def test_models_of_files_that_stayed_as_they_were_are_not_written_again(service: Service) -> None:
    catalog = service.context.catalog
    workload = Workload(("/bin/true",), Path("/"), {"A": "b"})
    models = [Model(ModelName(f"m{number}"), workload, source=f"/m{number}.toml") for number in range(50)]
    catalog.write(sync_file_models, models)
    changed = [*models[:-1], replace(models[-1], priority=7)]
    with statements() as asked:
        catalog.write(sync_file_models, changed)
    assert sum("INSERT" in one for one in asked) == 1
    assert sorted(catalog.read(all_models), key=attrgetter("name")) == sorted(changed, key=attrgetter("name"))
