"""Door: what a request is, and where it goes: the rows of the table that server, client and documentation come from."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Generic, Literal, TypeVar, get_args

from msgspec import Struct

VERSION: Final = 1
"""Of the wire.  It changes when a key goes or changes its meaning; new keys and paths may come without notice."""


R = TypeVar("R", bound="Request[object]")
Reply_co = TypeVar("Reply_co", covariant=True)


def need(holds: bool, message: str) -> None:  # noqa: FBT001 - reads as an assertion
    """Refuse a request that cannot be meant.  Raises `ValueError` with the message unless it holds."""
    if not holds:
        raise ValueError(message)


class Right(StrEnum):
    """What a caller must be allowed to do."""

    READ = "read"
    CHANGE = "change"


class Request(Struct, Generic[Reply_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something one may ask; the parameter is the type of what comes back."""


class Endpoint(Struct, frozen=True):
    """One row of the table.

    Fields of the request that the path names come from there.  The rest comes from the query string, or for POST from
    the body, which is a JSON object.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    request: type[Request[object]]
    right: Right
    status: int
    location: str | None  #: where the thing made can be found; braces name fields of the reply

    @property
    def reply(self) -> object:
        """The type of what comes back; None's where the answer has no data."""
        bases: tuple[object, ...] = vars(self.request)["__orig_bases__"]
        return get_args(bases[-1])[0]

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The fields that stand in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))


_BY_REQUEST: Final[dict[type[Request[object]], Endpoint]] = {}


def endpoint(
    method: Literal["GET", "POST", "DELETE"],
    path: str,
    *,
    right: Right = Right.READ,
    status: int = 200,
    location: str | None = None,
) -> Callable[[type[R]], type[R]]:
    """Declare where a request goes and who may make it: server, client and documentation come from this."""

    def note(request: type[R]) -> type[R]:
        _BY_REQUEST[request] = Endpoint(method, path, request, right, status, location)
        return request

    return note


def declared() -> tuple[Endpoint, ...]:
    """Return every row that was declared so far."""
    return tuple(_BY_REQUEST.values())


def row(request: type[Request[object]]) -> Endpoint:
    """Return the row of a kind of request."""
    return _BY_REQUEST[request]
