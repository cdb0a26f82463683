"""A limit below what registered models need, told to a real daemon."""

from __future__ import annotations

import json
import shutil
import signal
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import pytest

from tests.kinds import fakes
from tests.support.daemons import daemon
from xpucached.catalog import Catalog
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.domain.models import Attribution, Model, Outcome, WarmReason, Workload
from xpucached.domain.names import ModelName
from xpucached.settings.values import spell_size

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flow


def test_reload_refuses_a_limit_below_what_models_need_and_says_how_much_that_is(
    home: Path, short_dir: Path, tmp_path: Path
) -> None:
    with daemon(home, short_dir) as host:
        place = tmp_path / "neo_compiler_cache"
        shutil.copytree(fakes.NEO / "recorded", place, ignore=shutil.ignore_patterns("*.trace", "*.input"))
        stores = f"[stores]\npaths = ['neo:{place}']\n"
        host.configure(stores)
        host.start()
        host.until(lambda: len(host.rows("ls")) == 5)
        assert host.end() == 0
        net = Model(ModelName("net"), Workload(("/bin/true",), place, {}, 60.0))
        with closing(Catalog.open(host.state / "catalog.sqlite")) as catalog:
            used = frozenset(one.entry.id for one in catalog.read(all_entries))
            catalog.write(add_model, net)
            now = datetime.now(UTC)
            begun = catalog.write(begin_run, net, WarmReason.MANUAL, "here", now)
            told = Attribution(created=used)
            catalog.write(finish_run, begun.id, Outcome.WARMED, (), told, (), "", "", now)
        host.start()
        assert host.process is not None
        need = sum(cast("int", row["allocated"]) for row in host.rows("ls"))

        def quota() -> str:
            return str(host.ask("config", "show")["policy.quota"])

        before = quota()
        host.configure(f"{stores}[policy]\nquota = {need - 1}\n")
        host.process.send_signal(signal.SIGHUP)
        host.until(lambda: "quota-too-small" in json.dumps(host.ask("status")["problems"]))
        assert f"need {need} bytes" in host.ctl("status").stdout.replace("\n", " ")
        assert quota() == before
        host.configure(f"{stores}[policy]\nquota = {need}\n")
        host.process.send_signal(signal.SIGHUP)
        host.until(lambda: spell_size(need) in quota())
        host.until(lambda: "quota-too-small" not in json.dumps(host.ask("status")["problems"]))
