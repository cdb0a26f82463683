"""Record: what can be taken over from a catalog that is corrupt: the models, which nothing else knows.

Works on a copy, because a database that is opened is changed.  Only a model whose digest is still that of its command
is taken: commands run, and a damaged one must not.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from xpucached.catalog import models, opening
from xpucached.catalog.tables import MODELS

if TYPE_CHECKING:
    from xpucached.domain import Model

log = logging.getLogger(__name__)

_DAMAGE = (sa.exc.SQLAlchemyError, sqlite3.Error, OSError, ValueError, TypeError, AttributeError, OverflowError)


def registered(aside: Path) -> tuple[Model, ...]:
    """Give the models that were registered by command, as far as they can be read whole.  Never raises for damage."""
    found: list[Model] = []
    try:
        with tempfile.TemporaryDirectory(prefix="xpucached-") as place:
            copy = Path(place, "catalog.sqlite")
            shutil.copyfile(aside, copy)
            journal = aside.with_name(aside.name + "-wal")
            if journal.exists():
                shutil.copyfile(journal, copy.with_name(copy.name + "-wal"))
            engine = opening.connections(copy)
            try:
                with engine.connect() as connection, connection.begin():
                    for (name,) in connection.execute(sa.select(MODELS.c.name)).all():
                        one = models.whole(connection, name)
                        if one is not None:
                            found.append(one)
            finally:
                engine.dispose()
    except _DAMAGE as error:
        log.info("not everything could be taken over from %s: %s", aside, error)
    return tuple(found)
