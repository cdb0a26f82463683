"""The words of the house: frozen values that every room exchanges.  Pure.

Conventions that hold for every field: times are aware and in UTC, sizes are bytes, durations are seconds, paths are
absolute.  Everything here can travel as JSON (see `api`), so no value holds a descriptor, a lock or a callable.

Divided by subject: a value is imported from the file that declares it.
"""

from __future__ import annotations
