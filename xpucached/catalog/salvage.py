"""Record: what can be taken over from a catalog that is corrupt: the models, which nothing else knows.

Works on a copy, because a database that is opened is changed.  Only a model whose digest is still that of its command
is taken: commands run, and a damaged one must not.
"""

from __future__ import annotations

import logging
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from xpucached.catalog import models, opening, soundness
from xpucached.catalog.tables import MODELS

if TYPE_CHECKING:
    from xpucached.domain import Model, ModelName

log = logging.getLogger(__name__)


def registered(aside: Path) -> tuple[Model, ...]:
    """Give the models that were registered by command, as far as they can be read whole.  Never raises for damage."""
    found: list[Model] = []
    try:
        if not stat.S_ISREG(aside.lstat().st_mode):
            return ()
        with tempfile.TemporaryDirectory(prefix="xpucached-") as place:
            copy = Path(place, "catalog.sqlite")
            shutil.copyfile(aside, copy)
            journal = aside.with_name(aside.name + "-wal")
            if journal.is_file() and not journal.is_symlink():
                shutil.copyfile(journal, copy.with_name(copy.name + "-wal"))
            engine = opening.connections(copy)
            try:
                with engine.connect() as connection, connection.begin():
                    sound = sa.select(MODELS.c.name).where(sa.not_(soundness.wrong(MODELS)))
                    for (name,) in connection.execute(sound).all():
                        found += _whole(connection, name)
            finally:
                engine.dispose()
    except Exception as error:  # noqa: BLE001 - there is no end to what damage can do, and nothing more is lost
        log.info("not everything could be taken over from %s: %s", aside, error)
    return tuple(found)


def _whole(connection: sa.Connection, name: ModelName) -> tuple[Model, ...]:
    try:
        model = models.whole(connection, name)
    except Exception as error:  # noqa: BLE001 - the others may be whole
        log.info("a model could not be taken over: %r: %s", name, error)
        return ()
    return () if model is None else (model,)
