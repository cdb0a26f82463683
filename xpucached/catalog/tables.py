"""Record: the catalog's tables, as the newest migration leaves them: a new catalog is made of these at once.

Times are microseconds since 1970 in UTC, sizes are bytes, both integers; enums are their text; paths are text.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from xpucached.catalog.moments import Moment
from xpucached.domain.targets import Origin

#: The newest revision in ``migrations/versions``.  A catalog that has it needs no Alembic, which is slow to load.
REVISION: Final = "0032"

METADATA: Final = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def parent(column: str) -> sa.ForeignKey:
    """Return what refers to a row of another table, and goes with it."""
    return sa.ForeignKey(column, ondelete="CASCADE")


TARGETS: Final = sa.Table(
    "targets",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("fingerprint", sa.Text, nullable=False, unique=True),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("family", "device", "toolchain")),
    sa.Column("architecture", sa.Text),
    *(sa.Column(name, Moment) for name in ("first", "last")),  # when this host offered it
    sa.Column("present", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("facts", sa.JSON, nullable=False),  # [name, value] each
)

STORES: Final = sa.Table(
    "stores",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("root", sa.Text, nullable=False),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("via", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("owner", sa.Integer),
    sa.Column("foreign_files", sa.Integer, nullable=False),
    sa.Column("scanned", Moment, nullable=False),
    sa.Column("notes", sa.JSON, nullable=False),
    sa.Column("thorough", Moment),  # when each of its files was last looked at, not only its directories
    sa.Column("found", sa.Integer),  # `Scan.lookups`
    sa.Column("missed", sa.Integer),
    sa.UniqueConstraint("kind", "root"),
)

# SQLite takes a computed column for the use of all columns, so that no index covers the question, and goes to the rows.
# So a question about every entry asks for this, and one about a range, which an index finds, for the column.
LAST_USED: Final = (
    "max(created, coalesce(accessed, created), coalesce(run_used, created), coalesce(restored, created),"
    " coalesce(witnessed, created))"
)

ENTRIES: Final = sa.Table(
    "entries",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("store_id", parent("stores.id"), nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("ref", sa.Text, nullable=False),
    sa.Column("stamp", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("defect", sa.Text),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("allocated", sa.BigInteger, nullable=False),
    sa.Column("created", Moment, nullable=False),
    sa.Column("accessed", Moment),
    sa.Column("first_seen", Moment, nullable=False),
    sa.Column("run_used", Moment),  # when the newest run that created or used it ended
    sa.Column("target_id", sa.ForeignKey("targets.id")),
    sa.Column("origin", sa.Text),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("constants", sa.Text, nullable=False),
    sa.Column("image", sa.Text),
    sa.Column("image_size", sa.BigInteger, nullable=False),
    sa.Column("binary", sa.Text),
    sa.Column("digest", sa.Text),
    sa.Column("trusted", sa.Text),  # its digest when it was first seen whole, a blank, and `Entry.source` then
    sa.Column("detail", sa.Text, nullable=False),
    # The two long ones stand last, so that questions about the others need not read through them.
    sa.Column("kernels", sa.Text, nullable=False),  # JSON: [mangled, for people or null, library or null] each
    sa.Column("kernel_names", sa.Text, nullable=False),  # one a line, mangled and for people, for searching
    sa.Column("cost", sa.Float),  # seconds that making it took, where a run or a rebuild of ours made it
    sa.Column("restored", Moment),  # when somebody brought it back from the trash
    sa.Column("witnessed", Moment),  # when a program was last seen to load it
    sa.Column("hits", sa.Integer),  # how often one was; null: never
    sa.Column("program", sa.Text),  # the last one, `Program.label`
    sa.Column("last_used", Moment, sa.Computed(LAST_USED, persisted=False)),
    sa.Column("place", sa.BigInteger),  # `Entry.place`; null: its files must be looked at
    sa.Column("input", sa.Text),  # `Entry.input`
    sa.Column("facts", sa.Text),  # JSON: [name, value] each; null where there are none
    sa.UniqueConstraint("store_id", "key"),
)
sa.Index(None, ENTRIES.c.ref)
sa.Index(None, ENTRIES.c.input, sqlite_where=ENTRIES.c.input.is_not(None))
# Hardly any are, and a plan asks of each driver that this host never had.  The index answers for these words only.
AHEAD: Final = ENTRIES.c.origin == sa.literal_column(f"'{Origin.AHEAD}'")
sa.Index("ix_entries_ahead", ENTRIES.c.target_id, sqlite_where=AHEAD)
# Finds the first page of a store, a driver, a state or a defect, in the order of the rows.
sa.Index("ix_entries_page", ENTRIES.c.store_id, ENTRIES.c.target_id, ENTRIES.c.state, ENTRIES.c.defect)
# Covers what a plan sorts by, so that it reads no row but those that may go.
sa.Index(
    "ix_entries_worth",
    ENTRIES.c.target_id,
    ENTRIES.c.last_used,
    ENTRIES.c.created,
    ENTRIES.c.store_id,
    ENTRIES.c.state,
    ENTRIES.c.defect,
    ENTRIES.c.allocated,
    ENTRIES.c.image_size,
    ENTRIES.c.cost,
    ENTRIES.c.restored,
    # These are in `LAST_USED`.
    ENTRIES.c.accessed,
    ENTRIES.c.run_used,
    ENTRIES.c.witnessed,
)

# Sums over the entries, kept by triggers: to count a million rows takes longer than an answer may.
FIGURES: Final = sa.Table(
    "figures",
    METADATA,
    sa.Column("store_id", parent("stores.id"), primary_key=True),
    sa.Column("target_id", sa.Integer, primary_key=True, autoincrement=False),  # 0 where an entry has none
    sa.Column("state", sa.Text, primary_key=True),
    sa.Column("defect", sa.Text, primary_key=True),  # empty where an entry has none
    sa.Column("entries", sa.Integer, nullable=False),
    # A forged file may claim 8 EiB, and two of them together leave 64 bits.
    sa.Column("size", sa.Float, nullable=False),
    sa.Column("allocated", sa.Float, nullable=False),
    sqlite_with_rowid=False,
)
_ADD: Final = (
    "INSERT INTO figures (store_id, target_id, state, defect, entries, size, allocated)"
    " VALUES (NEW.store_id, coalesce(NEW.target_id, 0), NEW.state, coalesce(NEW.defect, ''), 1, NEW.size,"
    " NEW.allocated) ON CONFLICT (store_id, target_id, state, defect) DO UPDATE SET entries = entries + 1,"
    " size = size + excluded.size, allocated = allocated + excluded.allocated;"
)
_TAKE: Final = (
    "UPDATE figures SET entries = entries - 1, size = size - OLD.size, allocated = allocated - OLD.allocated"
    " WHERE store_id = OLD.store_id AND target_id = coalesce(OLD.target_id, 0) AND state = OLD.state"
    " AND defect = coalesce(OLD.defect, '');"
)
TRIGGERS: Final = (
    f"CREATE TRIGGER entries_added AFTER INSERT ON entries BEGIN {_ADD} END",
    (
        "CREATE TRIGGER entries_changed AFTER UPDATE OF target_id, state, defect, size, allocated ON entries"
        f" BEGIN {_TAKE} {_ADD} END"
    ),
    f"CREATE TRIGGER entries_gone AFTER DELETE ON entries BEGIN {_TAKE} END",
)


@sa.event.listens_for(METADATA, "after_create")
def _make_triggers(_: sa.MetaData, connection: sa.Connection, **__: object) -> None:
    for statement in TRIGGERS:
        connection.exec_driver_sql(statement)


MODELS: Final = sa.Table(
    "models",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("command", sa.JSON, nullable=False),
    sa.Column("directory", sa.Text, nullable=False),
    sa.Column("variables", sa.JSON, nullable=False),
    sa.Column("timeout", sa.Float, nullable=False),
    sa.Column("workload", sa.Text, nullable=False),  # `Workload.digest`
    sa.Column("store", sa.Text),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("pinned", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("exercise", sa.JSON(none_as_null=True)),  # `RunSpec` by its fields; null where it says nothing
    sa.Column("before", sa.JSON(none_as_null=True)),  # names of units
)

RUNS: Final = sa.Table(
    "runs",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("model", parent("models.name"), nullable=False),
    sa.Column("workload", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("started", Moment, nullable=False),
    sa.Column("finished", Moment),
    sa.Column("outcome", sa.Text),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("passes", sa.JSON, nullable=False),
    sa.Column("attributed", sa.Integer, nullable=False),  # entries it created or used, those gone since included
    *(sa.Column(name, sa.Text, nullable=False) for name in ("detail", "output")),
    sa.Column("libraries", sa.JSON(none_as_null=True)),  # `Libraries`; null where nobody saw any
    sa.Column("layers", sa.JSON(none_as_null=True)),  # `attributed` by kinds of caches
    sa.Column("kernel", sa.Text),  # null: before it was noted
    sa.Column("changes", sa.JSON(none_as_null=True)),  # `Run.changes`; null where there are none
    sqlite_autoincrement=True,  # people quote run numbers: none is given twice
)
sa.Index(None, RUNS.c.model, RUNS.c.id)

TRIALS: Final = sa.Table(
    "trials",
    METADATA,
    sa.Column("run_id", parent("runs.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("device", sa.Text, nullable=False),  # this and the next two are the variant
    sa.Column("precision", sa.Text, nullable=False),
    sa.Column("shape", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("ran_on", sa.Text, nullable=False),
    sa.Column("seen_on", sa.Text, nullable=False),
    sa.Column("evidence", sa.JSON, nullable=False),
    sa.Column("passes", sa.JSON, nullable=False),
    sa.Column("figures", sa.JSON, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("output", sa.Text, nullable=False),
    sa.Column("use", sa.JSON(none_as_null=True)),  # `DeviceUse` by its fields; null where it was not noted
    sa.Column("cpu", sa.JSON(none_as_null=True)),  # `CpuComparison` by its fields; null where there is none
    sqlite_with_rowid=False,
)

SHIFTS: Final = sa.Table(
    "shifts",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("model", parent("models.name"), nullable=False),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("variant", "figure")),
    sa.Column("run_id", parent("runs.id"), nullable=False),
    sa.Column("at", Moment, nullable=False),
    *(sa.Column(name, sa.Float, nullable=False) for name in ("before", "spread", "after")),
    *(sa.Column(name, sa.Integer, nullable=False) for name in ("before_runs", "after_runs")),
    sa.Column("changed", sa.JSON, nullable=False),  # sentences
    sa.Column("seen", Moment),
    sa.UniqueConstraint("model", "variant", "figure", "run_id"),
    sqlite_autoincrement=True,
)

RUN_TARGETS: Final = sa.Table(
    "run_targets",
    METADATA,
    sa.Column("run_id", parent("runs.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("target_id", sa.ForeignKey("targets.id"), nullable=False),
    sqlite_with_rowid=False,
)

DEPENDENCIES: Final = sa.Table(
    "dependencies",
    METADATA,
    sa.Column("run_id", parent("runs.id"), primary_key=True),
    sa.Column("document", sa.JSON, nullable=False),  # `Dependency` by its fields, a list each
)

ATTRIBUTIONS: Final = sa.Table(
    "attributions",
    METADATA,
    sa.Column("run_id", parent("runs.id"), primary_key=True),
    sa.Column("entry_id", parent("entries.id"), primary_key=True),
    sa.Column("created", sa.Boolean(create_constraint=False), nullable=False),
    sqlite_with_rowid=False,
)
sa.Index(None, ATTRIBUTIONS.c.entry_id)

# What replay made of what a model was seen to use, until a run sees the model's own for that driver: see `runs.finish`.
INHERITED: Final = sa.Table(
    "inherited",
    METADATA,
    sa.Column("entry_id", parent("entries.id"), primary_key=True),
    sa.Column("model", parent("models.name"), primary_key=True),
    sqlite_with_rowid=False,
)
sa.Index(None, INHERITED.c.model)

HOST: Final = sa.Table(
    "host",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),  # one row: 1
    sa.Column("surveyed", Moment, nullable=False),
    sa.Column("document", sa.JSON, nullable=False),  # the last survey, whole; `hosts` writes and reads it
)

CHANGES: Final = sa.Table(
    "changes",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", Moment, nullable=False),
    sa.Column("stamp", sa.Text, nullable=False),
)

CHANGE_TARGETS: Final = sa.Table(
    "change_targets",
    METADATA,
    sa.Column("change_id", parent("changes.id"), primary_key=True),
    sa.Column("target_id", sa.ForeignKey("targets.id"), primary_key=True),
    sa.Column("appeared", sa.Boolean(create_constraint=False), nullable=False),
    sqlite_with_rowid=False,
)

OFFERS: Final = sa.Table(
    "offers",
    METADATA,
    sa.Column("driver", sa.Text, primary_key=True),  # `DriverInUse.id`; empty: the host's own
    sa.Column("target_id", parent("targets.id"), primary_key=True),  # that it offered, now or before
    sqlite_with_rowid=False,
)

INTENTS: Final = sa.Table(
    "intents",
    METADATA,
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("kind", "root", "key")),
    sa.Column("at", Moment, nullable=False),
    sqlite_with_rowid=False,
)

# Entries that are not there now, and what only the catalog knew of them; see `departed`.
DEPARTED: Final = sa.Table(
    "departed",
    METADATA,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("root", sa.Text, primary_key=True),
    sa.Column("leaf", sa.Text, primary_key=True),  # with a slash at its end
    sa.Column("source", sa.Text, primary_key=True),  # `Entry.source`
    # These are as in `entries`, where they were.
    sa.Column("trusted", sa.Text, nullable=False),
    sa.Column("first_seen", sa.BigInteger, nullable=False),
    sa.Column("run_used", sa.BigInteger),
    sa.Column("cost", sa.Float),
    sa.Column("restored", sa.BigInteger),
    sa.Column("witnessed", sa.BigInteger),
    sa.Column("hits", sa.Integer),
    sa.Column("program", sa.Text),
    sa.Column("at", sa.BigInteger, nullable=False),  # when it went, in microseconds
    sa.Column("runs", sa.Text, nullable=False),  # JSON: [run, whether it made it] each
    sa.Column("models", sa.Text, nullable=False),  # JSON: names that inherited it
    sqlite_with_rowid=False,
)

REFUSALS: Final = sa.Table(
    "refusals",
    METADATA,
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("kind", "root")),
    sa.Column("tail", sa.Text, primary_key=True),  # the path of a leaf below its device's directory
    sa.Column("fingerprint", sa.Text, primary_key=True),
    sa.Column("stamp", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("at", Moment, nullable=False),
    sqlite_with_rowid=False,
)

BUILDS: Final = sa.Table(
    "builds",
    METADATA,
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("kind", "root", "key")),
    sa.Column("family", sa.Text, nullable=False),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("stamp", sa.Text, nullable=False),  # of the driver; of a bundle's: its digest, and who signed it
    sa.Column("image_size", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),  # of what was compiled
    sa.Column("at", Moment, nullable=False),
    sa.Column("models", sa.JSON(none_as_null=True)),  # names that the entry is to inherit, until a look has found it
    sa.Column("signing_key", sa.Text),  # of a bundle's: the digest of the key that signed it
    sqlite_with_rowid=False,
)

RUNTIME_CHECKS: Final = sa.Table(
    "runtime_checks",
    METADATA,
    sa.Column("build", sa.Text, primary_key=True),  # `SyclRuntime.build`
    *(sa.Column(name, sa.Text, nullable=False) for name in ("library", "safety", "evidence")),
    sa.Column("at", Moment, nullable=False),
    sqlite_with_rowid=False,
)

EVENTS: Final = sa.Table(
    "events",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", Moment, nullable=False),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("topic", "message")),
    sa.Column("fields", sa.JSON, nullable=False),
    sqlite_autoincrement=True,  # a number that was given is never given again
)
