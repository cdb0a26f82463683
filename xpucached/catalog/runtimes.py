"""Record: what was found out about each build of the SYCL runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog.lists import among
from xpucached.catalog.tables import RUNTIME_CHECKS
from xpucached.domain.diagnosis import RuntimeCheck, Safety

if TYPE_CHECKING:
    from collections.abc import Iterable


def record_runtime_check(connection: sa.Connection, check: RuntimeCheck) -> None:
    """Keep a check in the place of an earlier one of the same build."""
    what = {
        "library": str(check.library),
        "safety": check.safety.value,
        "evidence": check.evidence,
        "at": check.at,
    }
    connection.execute(
        insert(RUNTIME_CHECKS)
        .values(build=check.build, **what)
        .on_conflict_do_update(index_elements=[RUNTIME_CHECKS.c.build], set_=what)
    )


def known_runtime_checks(connection: sa.Connection, builds: Iterable[str]) -> dict[str, RuntimeCheck]:
    """Return what is known of these builds."""
    rows = connection.execute(sa.select(RUNTIME_CHECKS).where(among(RUNTIME_CHECKS.c.build, builds)))
    return {
        row.build: RuntimeCheck(row.build, Path(row.library), Safety(row.safety), row.evidence, row.at) for row in rows
    }
