"""Door: the OpenAPI 3.1 document, made from the table.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import msgspec

from xpucached.api.endpoints import VERSION, Endpoint, Right
from xpucached.api.looking import GetMetrics, ListEvents
from xpucached.api.requests import ENDPOINTS
from xpucached.codec import to_json, twin
from xpucached.domain.jobs import ErrorInfo
from xpucached.messages import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    Schema = dict[str, Json]

_PART: Final = "#/components/schemas/{name}"


def document(version: str) -> Schema:
    """Describe every endpoint, its requests and its replies."""
    schemas, parts = describe([*(kind for row in ENDPOINTS for kind in (row.request, row.reply)), ErrorInfo])
    paths: dict[str, Json] = {}
    for row, reply in zip(ENDPOINTS, schemas[1:-1:2], strict=True):
        request = cast("Schema", parts[row.request.__name__])
        if row.method != "POST":
            del parts[row.request.__name__]
        cast("Schema", paths.setdefault(row.path, {}))[row.method.lower()] = _operation(row, request, reply)
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


def describe(kinds: Sequence[object]) -> tuple[list[Schema], Schema]:
    """Return a schema for each type as it stands on the wire, and the parts to which these refer."""
    found, parts = msgspec.json.schema_components(
        map(twin, kinds),
        schema_hook=lambda _: {"type": "string", "format": "path"},
        ref_template=_PART,
    )
    for part in parts.values():
        if "enum" in part:
            part["type"] = "string"
    return cast("list[Schema]", to_json(found)), cast("Schema", to_json(parts))


def _operation(row: Endpoint, request: Schema, reply: Schema) -> Schema:
    properties = cast("dict[str, Schema]", request["properties"])
    required = cast("list[Json]", request["required"])
    operation: Schema = {
        "operationId": row.request.__name__,
        "summary": (row.request.__doc__ or "").split("\n")[0],
        "x-right": row.right.value,
        "responses": {
            str(row.status): {"description": "done", "content": _content(row, reply)},
            "default": {"description": "refused", "content": {"application/json": {"schema": _envelope("error")}}},
        },
    }
    if row.right is Right.CHANGE:
        operation["description"] = "For the daemon's own user and root."
    if row.method == "POST":
        operation["requestBody"] = {
            "required": bool(required),
            "content": {"application/json": {"schema": {"$ref": _PART.format(name=row.request.__name__)}}},
        }
    elif properties:
        operation["parameters"] = [
            {
                "name": name,
                "in": "path" if name in row.placeholders else "query",
                "required": name in required,
                "schema": dict(one),
            }
            for name, one in properties.items()
        ]
    return operation


def _content(row: Endpoint, reply: Schema) -> Schema:
    content: Schema = {"application/json": {"schema": _envelope("data", reply)}}
    if row.path == "/v1/openapi.json":
        # The one answer without an envelope, because generators expect the bare document.
        content = {"application/json": {"schema": {"type": "object"}}}
    if row.request is GetMetrics:
        content["text/plain"] = {"schema": {"type": "string"}}
    if row.request is ListEvents:
        content["application/x-ndjson"] = {"schema": {"$ref": _PART.format(name="Event")}}
    return content


def _envelope(key: str, schema: Schema | None = None) -> Schema:
    inside = schema or {"$ref": _PART.format(name=ErrorInfo.__name__)}
    return {
        "type": "object",
        "required": ["api", key],
        "properties": {"api": {"const": VERSION}, key: inside},
    }
