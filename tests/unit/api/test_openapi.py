"""The description of the wire says of each request how it is asked, who may, and what comes back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from xpucached.api import looking, openapi, requests
from xpucached.api.endpoints import Right

if TYPE_CHECKING:
    from xpucached.api.endpoints import Endpoint
    from xpucached.messages import Json


@pytest.mark.parametrize("row", requests.ENDPOINTS, ids=lambda row: row.request.__name__)
def test_the_description_says_how_each_is_asked_and_what_comes_back(row: Endpoint) -> None:
    operation = operations()[row.request.__name__]
    fields = {one.name: one.required for one in msgspec.structs.fields(row.request)}
    told = cast("list[dict[str, Json]]", operation.get("parameters", []))
    body = cast("dict[str, Json]", operation.get("requestBody", {}))

    if row.method == "POST":
        assert (told, body["required"]) == ([], any(fields.values()))
    else:
        assert body == {}
        assert {(one["name"], one["in"], one["required"]) for one in told} == {
            (name, "path" if name in row.placeholders else "query", required) for name, required in fields.items()
        }
    changes = row.right is Right.CHANGE
    assert operation.get("description") == ("For the daemon's own user and root." if changes else None)
    answers = cast("dict[str, dict[str, dict[str, dict[str, dict[str, Json]]]]]", operation["responses"])
    assert answers.keys() == {str(row.status), "default"}
    content = answers[str(row.status)]["content"]
    more = {looking.GetMetrics: {"text/plain"}, looking.ListEvents: {"application/x-ndjson"}}.get(row.request, set())
    assert content.keys() == {"application/json"} | more
    # The description itself comes bare.
    bare = row.request is requests.GetOpenApi
    assert content["application/json"]["schema"].get("required") == (None if bare else ["api", "data"])
    assert answers["default"]["content"]["application/json"]["schema"]["required"] == ["api", "error"]


@functools.cache
def operations() -> dict[str, dict[str, Json]]:
    """Return what the description says of each request, by its name."""
    paths = cast("dict[str, dict[str, dict[str, Json]]]", openapi.document("1")["paths"])
    return {str(one["operationId"]): one for methods in paths.values() for one in methods.values()}


def test_what_is_asked_by_get_is_no_part_of_the_description() -> None:
    parts = cast("dict[str, dict[str, Json]]", openapi.document("1")["components"])["schemas"]
    assert {row.request.__name__ for row in requests.ENDPOINTS} & parts.keys() == {
        row.request.__name__ for row in requests.ENDPOINTS if row.method == "POST"
    }
