"""When drivers are asked, and with which variables."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from typing import TYPE_CHECKING

from tests.support import catalogs
from xpucached.domain.host import ProbeReport
from xpucached.processes import driver_probe
from xpucached.service import survey
from xpucached.service.context import Context
from xpucached.service.survey import Surveyor
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from xpucached.settings import Settings


def settings(variables: str) -> Settings:
    return loading.load(None, user=True, environ={**os.environ, "XPUCACHED_DRIVER_VARIABLES": variables})


def test_a_driver_is_asked_again_with_other_variables_though_its_files_stayed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Mapping[str, str]] = []

    def ask(variables: Mapping[str, str], *_: object) -> ProbeReport:
        asked.append(dict(variables))
        return ProbeReport()

    monkeypatch.setattr(driver_probe, "ask", ask)
    monkeypatch.setattr(survey, "driver_files", lambda _: ())

    async def surveyed(context: Context) -> list[str]:
        surveyor = Surveyor(context)
        found = []
        for variables in ("{}", "{}", '{"NEOReadDebugKeys": "1"}', '{"NEOReadDebugKeys": "1"}', "{}"):
            context.settings = settings(variables)
            await surveyor.survey()
            found.append(context.present.signature)
        return found

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        first, second, third, fourth, last = asyncio.run(surveyed(Context(settings("{}"), catalog, {})))
    assert asked == [{}, {"NEOReadDebugKeys": "1"}, {}]
    assert first == second == last
    assert third == fourth == f"{first}-{third.partition('-')[2]}" != first
