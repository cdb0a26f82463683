"""Record: the tables of where entries come from that do not say it themselves, beside those in `tables`."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from xpucached.catalog.moments import Moment
from xpucached.catalog.tables import METADATA, parent

RECIPES: Final = sa.Table(
    "recipes",
    METADATA,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),  # of the entry, in any store; a part is [digest, bytes], by name
    sa.Column("target_id", sa.ForeignKey("targets.id"), nullable=False),
    sa.Column("lineage", sa.Text, nullable=False),
    *(sa.Column(name, sa.JSON, nullable=False) for name in ("parts", "facts")),
    sa.Column("seen", sa.Integer, nullable=False),  # how many passes asked for it
    sa.Column("at", Moment, nullable=False),
    sqlite_with_rowid=False,
)

# Where programs will look for what a recipe is of when nothing but the compiler is another: see `Recorder.predict`.
PREDICTED: Final = sa.Table(
    "predicted",
    METADATA,
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("kind", "key")),  # of the recipe
    sa.Column("target_id", parent("targets.id"), primary_key=True),
    sa.Column("predicted_key", sa.Text),  # null: nobody can tell
    sa.Column("passed_on", sa.Boolean(create_constraint=False), nullable=False),  # as `builds.models`
    sa.ForeignKeyConstraint(["kind", "key"], ["recipes.kind", "recipes.key"], ondelete="CASCADE"),
    sqlite_with_rowid=False,
)
sa.Index(None, PREDICTED.c.predicted_key)

# Entries of which it was tried to find out, with recipes of a target, how they are compiled: see `Recorder.derive`.
DERIVED: Final = sa.Table(
    "derived",
    METADATA,
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("kind", "key")),
    sa.Column("target_id", parent("targets.id"), primary_key=True),
    sqlite_with_rowid=False,
)

# By which digests what came with a bundle (`builds.stamp`), and was signed by a key, is revoked.
VOUCHERS: Final = sa.Table(
    "vouchers",
    METADATA,
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("stamp", "signing_key", "digest")),
    sqlite_with_rowid=False,
)
