"""Where Alembic meets the catalog: the connection is the caller's, and so is the transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import context

from xpucached.catalog import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection

# A connection that has begun already keeps Alembic from committing between revisions: all of them apply, or none.
connection: Connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=tables.METADATA, render_as_batch=True, compare_type=True)
with context.begin_transaction():
    context.run_migrations()
