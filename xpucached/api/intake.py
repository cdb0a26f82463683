"""Door: the server's half of the wire.  Checks requests with pydantic.  Pure."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qsl

from pydantic import TypeAdapter, ValidationError

from xpucached import messages
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.api import Endpoint, Request

# A message that lists a hundred faults helps nobody.
_SHOWN: Final = 3
_FIELDS: Final = 64
_LARGEST: Final = 1 << 20
_MOST: Final = 10_000  # to find a fault in each value takes seconds for a body full of them
_UNKNOWN: Final = frozenset({"unexpected_keyword_argument", "extra_forbidden"})


@functools.cache
def adapter(row: Endpoint) -> TypeAdapter[Request[object]]:
    """Give what checks the requests of a row."""
    return TypeAdapter(row.request)


def read(row: Endpoint, placeholders: Mapping[str, str], query: str, body: bytes) -> Request[object]:
    """Read a request from its path, query string and body.

    Raises `RequestError` that names the key and what was expected.
    """
    check = adapter(row)
    try:
        if row.method == "POST":
            if query:
                message = "this request takes no query string"
                raise RequestError(message, hint="send a JSON object in the body")
            given = body or b"{}"
            # What JSON leaves open is refused here; pydantic reads the bytes once more, for what is text in them.
            messages.parse(given, largest=_LARGEST, most=_MOST)
            return check.validate_json(given)
        texts = _texts(query)
        clash = sorted(set(texts) & set(placeholders))
        if clash:
            message = f"{clash[0]}: stands in the path already"
            raise RequestError(message)
        # Lax, because a query string has only texts; the declared type still decides what they may say.
        return check.validate_strings({**texts, **placeholders}, strict=False)
    except messages.BadMessage as error:
        raise RequestError(f"the body cannot be read: {error}", hint="send one JSON object in UTF-8") from error
    except ValidationError as error:
        raise _refusal(row, error) from error


def _texts(query: str) -> Mapping[str, str]:
    texts: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError as error:
        message = f"the query string has more than {_FIELDS} fields"
        raise RequestError(message) from error
    for key, value in pairs:
        if key in texts:
            message = f"{key}: given twice"
            raise RequestError(message)
        texts[key] = value
    return texts


def _refusal(row: Endpoint, error: ValidationError) -> RequestError:
    keys = [name for name in _properties(row) if name not in row.placeholders]
    known = ", ".join(keys) or "none"
    faults: list[str] = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(step) for step in fault["loc"])
        text = fault["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        if fault["type"] in _UNKNOWN:
            text = f"unknown key; known are: {known}"
        elif fault["type"] == "missing":
            text = "is required"
        # Our own sentences from `__post_init__` name their field themselves and have no place.
        faults.append(f"{place}: {text}" if place else text)
    more = f" (and {len(faults) - _SHOWN} more)" if len(faults) > _SHOWN else ""
    return RequestError("; ".join(faults[:_SHOWN]) + more, hint="GET /v1/openapi.json describes every request")


def _properties(row: Endpoint) -> Mapping[str, object]:
    schema = adapter(row).json_schema()
    return cast("Mapping[str, object]", schema.get("properties", {}))
