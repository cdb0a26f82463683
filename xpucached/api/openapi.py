"""Door: the OpenAPI 3.1 document, made from the table.  Pure."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NewType, Union, cast, get_args, get_origin, get_type_hints

from xpucached.api import ENDPOINTS, VERSION, Endpoint, Json, ListEvents, Right
from xpucached.api.codec import SHAPES
from xpucached.api.intake import adapter
from xpucached.domain.jobs import ErrorInfo

if TYPE_CHECKING:
    Schema = dict[str, Json]

_SCALARS: Final[Mapping[object, Mapping[str, str]]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string", "format": "path"},
    datetime: {"type": "string", "format": "date-time"},
}


def document(version: str) -> Schema:
    """Describe every endpoint, its requests and its replies."""
    parts: Schema = {}
    paths: dict[str, Json] = {}
    for row in ENDPOINTS:
        operations = cast("Schema", paths.setdefault(row.path, {}))
        operations[row.method.lower()] = _operation(row, parts)
    _describe(ErrorInfo, parts)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "xpucached",
            "version": version,
            "description": "Looks after SYCL kernel caches.  HTTP/1.1 on a unix socket; see docs/protocol.md.",
        },
        "servers": [{"url": "http://localhost", "description": "the daemon's unix socket"}],
        "paths": paths,
        "components": {"schemas": parts},
    }


def _operation(row: Endpoint, parts: Schema) -> Schema:
    schema = cast("Schema", adapter(row).json_schema(ref_template="#/components/schemas/{model}"))
    parts.update(cast("Schema", schema.pop("$defs", {})))
    properties = cast("dict[str, Schema]", schema.get("properties", {}))
    required = cast("list[Json]", schema.get("required", []))
    operation: Schema = {
        "operationId": row.request.__name__,
        "summary": (row.request.__doc__ or "").split("\n")[0],
        "x-right": row.right.value,
        "responses": {
            str(row.status): {"description": "done", "content": _content(row, parts)},
            "default": {"description": "refused", "content": {"application/json": {"schema": _envelope("error")}}},
        },
    }
    if row.right is Right.CHANGE:
        operation["description"] = "For the daemon's own user and root."
    if row.method == "POST":
        parts[row.request.__name__] = schema
        operation["requestBody"] = {
            "required": bool(required),
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{row.request.__name__}"}}},
        }
    elif properties:
        operation["parameters"] = [
            {
                "name": name,
                "in": "path" if name in row.placeholders else "query",
                "required": name in row.placeholders or name in required,
                "schema": dict(one),
            }
            for name, one in properties.items()
        ]
    return operation


def _content(row: Endpoint, parts: Schema) -> Schema:
    content: Schema = {"application/json": {"schema": _envelope("data", _describe(row.reply, parts))}}
    if row.path == "/v1/openapi.json":
        # The one answer without an envelope, because generators expect the bare document.
        content = {"application/json": {"schema": {"type": "object"}}}
    if row.request is ListEvents:
        content["application/x-ndjson"] = {"schema": {"$ref": "#/components/schemas/Event"}}
    return content


def _envelope(key: str, schema: Schema | None = None) -> Schema:
    inside = schema or {"$ref": "#/components/schemas/ErrorInfo"}
    return {
        "type": "object",
        "required": ["api", key],
        "properties": {"api": {"const": VERSION}, key: inside},
    }


def _describe(kind: object, parts: Schema) -> Schema:
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in {None, types.NoneType}:
        return {"type": "null"}
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    if origin in {Union, types.UnionType}:
        return {"anyOf": [_describe(one, parts) for one in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _describe(arguments[0], parts)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _describe(arguments[1], parts)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": [str(one.value) for one in kind]}
    if isinstance(kind, type) and (kind in SHAPES or is_dataclass(kind)):
        if kind.__name__ not in parts:
            parts[kind.__name__] = {}  # first, so that a value that holds its own kind ends
            parts[kind.__name__] = _members(SHAPES[kind].wire if kind in SHAPES else kind, kind, parts)
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    message = f"no schema for {kind}"
    raise TypeError(message)


def _members(wire: type, kind: type, parts: Schema) -> Schema:
    hints = get_type_hints(wire)
    members = fields(wire)
    return {
        "type": "object",
        "description": (kind.__doc__ or "").split("\n")[0],
        "required": [one.name for one in members if one.default is MISSING and one.default_factory is MISSING],
        "properties": {one.name: _describe(hints[one.name], parts) for one in members},
    }
