"""The catalog's history, told by Alembic: shipped as ``xpucached.migrations`` and run by `Catalog.open`."""
