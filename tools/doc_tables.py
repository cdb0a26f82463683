"""The tables in the docs that say what is declared: requests in `docs/protocol.md`, defects in `docs/kinds.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final, get_args, get_origin

from xpucached.api import host_requests, requests
from xpucached.api.endpoints import Endpoint, Request
from xpucached.domain.defects import CHANGED, Defect
from xpucached.kinds import sycl

# -- what docs/protocol.md says of the requests ---------------------------------------------------------------------

REQUESTS: Final = re.compile(
    r"(?<=<!-- a table of requests, by tools/doc_tables.py -->\n).*?(?=<!-- until here -->)", re.DOTALL
)


def _reply(kind: object) -> str:
    kinds = get_args(kind)
    if get_origin(kind) is tuple:
        return f"list of {_reply(kinds[0])}"
    if get_origin(kind) is Mapping:
        return "name to text"
    return "null" if kind is type(None) else getattr(kind, "__name__", str(kind))


def request_table(rows: Iterable[Endpoint], who: Mapping[type[Request[object]], str]) -> str:
    """Return the table of the requests to a daemon; ``who`` says in words who may, where a right alone does not."""
    lines = ["| request | keys | right | answer | what it is |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        keys = " ".join(f"`{name}`" for name in row.request.__struct_fields__ if name not in row.placeholders)
        answer = ("" if row.status == HTTPStatus.OK else f"{row.status}, ") + _reply(row.reply)
        words = " ".join((row.request.__doc__ or "").split()).replace("``", "`")
        right = who.get(row.request, row.right)
        lines.append(f"| `{row.method} {row.path}` | {keys} | {right} | {answer} | {words} |")
    return "\n".join(lines) + "\n"


def request_tables() -> list[str]:
    """Return the tables of the requests to a user's daemon and to the host's, in the order of the page."""
    return [request_table(requests.ENDPOINTS, {}), request_table(host_requests.ENDPOINTS, host_requests.WHO)]


# -- what docs/kinds.md says of the defects -------------------------------------------------------------------------

DEFECTS: Final = re.compile(
    r"(?<=<!-- a table of defects, by tools/doc_tables.py -->\n).*?(?=<!-- until here -->)", re.DOTALL
)


def with_requests(text: str) -> str:
    """Return ``docs/protocol.md`` with its tables as they are declared now."""
    made = iter(request_tables())
    return REQUESTS.sub(lambda _: next(made), text)


def with_defects(text: str) -> str:
    """Return ``docs/kinds.md`` with its table as it is declared now."""
    return DEFECTS.sub(lambda old: defect_table(old[0]), text)


def defect_table(told: str) -> str:
    """Return the table of what can be wrong with an entry of a SYCL store.

    What ``told``, an earlier table, says beside a code stays; a new defect has its own sentence there.
    """
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines()]
    kept = {code: rest for code, _, *rest in rows}
    lines = ["| defect | effect | what the runtime does | |", "| --- | --- | --- | --- |"]
    for defect in (CHANGED, *sycl.defects.DEFECTS):
        words, tried = kept.get(f"`{defect.code}`", [defect.message, ""])
        lines.append(f"| `{defect.code}` | {_effects(defect)} | {words} | {f'{tried} |' if tried else '|'}")
    return "\n".join(lines) + "\n"


def _effects(defect: Defect) -> str:
    older, newer = (sycl.defects.effect_for(defect, {one}) for one in sycl.defects.Generation)
    return f"`{older}`" if older is newer else f"`{older}` up to 2025.0, `{newer}` from 2025.1"
