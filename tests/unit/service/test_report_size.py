"""A report says what there is in sums: it does not grow with the entries."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from tests import INSTANCE
from tests.support import catalogs
from tests.support.builders import sycl_target
from xpucached import codec
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.scans import record_scan
from xpucached.catalog.surveys import record_survey
from xpucached.cli import page, report
from xpucached.domain.host import Host
from xpucached.domain.models import Attribution, Model, Outcome, WarmReason, Workload
from xpucached.domain.names import Architecture, EntryKey, KindName, ModelName
from xpucached.domain.overview import Overview
from xpucached.domain.stores import Entry, EntryId, FoundStore, Kernel, Scan, Store, StoreOrigin, StoreState
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service
from xpucached.service.context import Context
from xpucached.settings import loading

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
HERE: Final = sycl_target("OpenCL", "GPU", "3.0", "25.2")
HOST: Final = Host(NOW, "", "", "stamp", environments=(HERE,))
MODELS: Final = 20
AT_ONCE: Final = 50_000
"""Entries of a store."""


def overview(place: Path, entries: int, forged: int) -> Overview:
    """Return what there is to look at with so many entries: for three drivers, and of others that somebody forged."""
    drivers = [replace(HERE, toolchain=name) for name in ("25.0", "25.1", "25.2")]
    strange = [replace(HERE, device=f"{number:04}" * 50, toolchain=f"{number:04}" * 50) for number in range(forged)]
    kernels = (Kernel("_ZTS" + "x" * 500, "x" * 500),)

    def made(store: Store, number: int) -> Entry:
        old = NOW - timedelta(days=number % 90)
        target = strange[number] if number < forged else drivers[min(2, number % 5)]
        key = EntryId(store, EntryKey(f"{number}/1/2/3/0"))
        return Entry(key, f"s{number}", 20_000, 20_480, old, old, target, digest=f"d{number}", kernels=kernels)

    with closing(catalogs.fresh(place / f"{entries}.sqlite")) as catalog:
        for number, driver in enumerate(drivers):
            at = NOW - timedelta(days=40 * (2 - number))
            catalog.write(record_survey, replace(HOST, surveyed=at, stamp=driver.toolchain, environments=(driver,)))
        for first in range(0, entries, AT_ONCE):
            store = Store(KindName("sycl"), Path(f"/var/cache/{first}"))
            some = tuple(made(store, number) for number in range(first, min(entries, first + AT_ONCE)))
            found = FoundStore(store, StoreOrigin.FOUND, "default")
            catalog.write(record_scan, Scan(found, NOW, StoreState.OK, 0, some), lambda _: Architecture("x"))
            for number in range(first // AT_ONCE, MODELS, -(-entries // AT_ONCE)):
                model = Model(ModelName(f"model-{number:02}"), Workload(("/bin/true",), Path("/")))
                used = Attribution(frozenset(one.id for one in some[number::25]))
                catalog.write(add_model, model)
                run = catalog.write(begin_run, model, WarmReason.NEVER, HOST.signature, NOW)
                catalog.write(finish_run, run.id, Outcome.WARMED, (), used, HOST.environments, "", "", NOW)
        catalog.write(lambda connection: connection.exec_driver_sql("UPDATE entries SET cost = 0.5 + id % 97"))
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, lambda: NOW)
        context.host, context.ready = HOST, True
        service = Service(context, ProcessStarter({}, INSTANCE))

        async def look() -> Overview:
            return await service.accountant.overview(await service.status.get())

        return asyncio.run(look())


def size(value: Overview) -> int:
    """Return how many bytes the report has."""
    data = codec.dumps(codec.to_json(value)).decode("ascii")
    return len(page.report(data, report.part("page.js"), report.part("page.css")).encode())


@pytest.mark.flow
def test_a_report_does_not_grow_with_the_entries(home: Path) -> None:
    few, many = overview(home, 400, 0), overview(home, 8000, 0)
    assert (few.usage.total.entries, many.usage.total.entries) == (400, 8000)
    assert len(few.usage.dearest) == len(many.usage.dearest) == 20
    assert few.evictable.entries < many.evictable.entries
    # Numbers have more digits; nothing else is more.
    assert abs(size(many) - size(few)) < 1000
    # Nor without end with the devices and drivers that entries say they are for.
    assert size(overview(home, 2001, 2000)) < 2_000_000
