"""Record: times as the catalog keeps them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

TICK: Final = timedelta(microseconds=1)  # to multiply it takes less than half of what it takes to make another


def microseconds(moment: datetime) -> int:
    """Return the number that stands for a time; a naive one is refused with `TypeError`."""
    return (moment - EPOCH) // TICK


class Moment(TypeDecorator[datetime]):
    """An aware time, stored as microseconds since 1970 in UTC."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """Turn a time into its number; a naive one is refused with `TypeError`."""
        return None if value is None else microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Turn a number into its time."""
        return None if value is None else EPOCH + timedelta(microseconds=value)
