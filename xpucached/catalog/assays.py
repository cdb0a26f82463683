"""Record: what was found out about each build of the SYCL runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog.tables import ASSAYS
from xpucached.domain import Assay, Safety

if TYPE_CHECKING:
    from collections.abc import Iterable


def record(connection: sa.Connection, assay: Assay) -> None:
    """Keep an assay in the place of an earlier one of the same build."""
    what = {
        "library": str(assay.library),
        "safety": assay.safety.value,
        "evidence": assay.evidence,
        "at": assay.at,
    }
    connection.execute(
        insert(ASSAYS)
        .values(build=assay.build, **what)
        .on_conflict_do_update(index_elements=[ASSAYS.c.build], set_=what)
    )


def some(connection: sa.Connection, builds: Iterable[str]) -> dict[str, Assay]:
    """Give what is known of these builds."""
    rows = connection.execute(sa.select(ASSAYS).where(ASSAYS.c.build.in_(list(builds))))
    return {row.build: Assay(row.build, Path(row.library), Safety(row.safety), row.evidence, row.at) for row in rows}
