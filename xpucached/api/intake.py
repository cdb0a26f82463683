"""Door: the server's half of the wire.  Checks requests.  Pure."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Final, cast, get_args
from urllib.parse import parse_qsl

import msgspec

from xpucached import codec, messages
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from xpucached.api.endpoints import Endpoint, Request

_FIELDS: Final = 64
_LARGEST: Final = 1 << 20
_MOST: Final = 10_000  # to find a fault in each value takes seconds for a body full of them
_LARGEST_NUMBER: Final = 1 << 63
_LONGEST_KEY: Final = 100
_HINT: Final = "GET /v1/openapi.json describes every request"


def read(row: Endpoint, placeholders: Mapping[str, str], query: str, body: bytes) -> Request[object]:
    """Read a request from its path, query string and body.

    Raises `RequestError` that names the key and what was expected.
    """
    if row.method == "POST":
        if query:
            message = "this request takes no query string"
            raise RequestError(message, hint="send a JSON object in the body")
        try:
            given = messages.parse(body or b"{}", largest=_LARGEST, most=_MOST)
        except messages.BadMessage as error:
            raise RequestError(f"the body cannot be read: {error}", hint="send one JSON object in UTF-8") from error
    else:
        texts = _texts(query)
        clash = sorted(set(texts) & set(placeholders))
        if clash:
            message = f"{_quoted(clash[0])}: stands in the path already"
            raise RequestError(message)
        given = {**texts, **placeholders}
    _check_keys(row, row.request, given, "")
    try:
        # Lax where there are only texts; the declared type still decides what they may say.
        asked = cast("Request[object]", codec.convert(given, row.request, strict=row.method == "POST"))
    except (msgspec.ValidationError, ValueError) as error:
        place, text = codec.fault(error)
        if text.startswith("Invalid enum value"):
            text = f"expected {_words(row.request, place)}"
        # Our own sentences from `__post_init__` name their field themselves and have no place.
        raise RequestError(f"{place}: {text}" if place else text, hint=_HINT) from error
    _check_numbers(asked, "")
    return asked


def _check_numbers(given: msgspec.Struct, place: str) -> None:
    """Refuse whole numbers that neither the catalog nor other readers of JSON can take."""
    for name, value in msgspec.structs.asdict(given).items():
        if isinstance(value, msgspec.Struct):
            _check_numbers(value, f"{place}{name}.")
        elif isinstance(value, int) and not -_LARGEST_NUMBER <= value < _LARGEST_NUMBER:
            raise RequestError(f"{place}{name}: expected a number of at most 64 bits", hint=_HINT)


def _texts(query: str) -> dict[str, messages.Json]:
    texts: dict[str, messages.Json] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError as error:
        message = f"the query string has more than {_FIELDS} fields"
        raise RequestError(message) from error
    for key, value in pairs:
        if key in texts:
            message = f"{_quoted(key)}: given twice"
            raise RequestError(message)
        texts[key] = value
    return texts


@functools.cache
def _types(kind: Hashable) -> Mapping[str, object]:
    """Return the fields of a type and the types of these, without ``None``; none if it has no fields."""
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return {}
    return {one.name: (get_args(one.type) or (one.type,))[0] for one in msgspec.structs.fields(kind)}


def _check_keys(row: Endpoint, kind: object, given: messages.Json, place: str) -> None:
    """Refuse keys that are none; values themselves let them pass, because a newer daemon may say more."""
    types = _types(kind)
    if (not types and kind is not row.request) or not isinstance(given, dict):
        return
    for key, value in given.items():
        if key not in types:
            known = ", ".join(name for name in types if name not in row.placeholders) or "none"
            raise RequestError(f"{place}{_quoted(key)}: unknown key; known are: {known}", hint=_HINT)
        _check_keys(row, types[key], value, f"{place}{key}.")


def _quoted(key: str) -> str:
    """Return as much of a client's key as a refusal quotes."""
    return key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…"


def _words(kind: object, place: str) -> str:
    """Return the words that may stand at a place."""
    for name in place.split("."):
        kind = _types(kind).get(name)
    *some, last = [f"'{one.value}'" for one in cast("type[enum.Enum]", kind)]
    return f"{', '.join(some)} or {last}"
