"""The threat model names tests that exist, for every line of it."""

from __future__ import annotations

import ast
import asyncio
import functools
import re
from pathlib import Path
from typing import Final

import pytest

from tests import INSTANCE
from tests.test_docs import codes, page, rows, section
from xpucached.domain.models import Workload
from xpucached.processes.output import Trace
from xpucached.processes.supervised import ProcessStarter

TESTS: Final = Path(__file__).resolve().parent
SECTIONS: Final = (
    "Stores",
    "Stores of others",
    "The host's daemon and its workers",
    "Watching",
    "Commands",
    "What we start",
    "The socket",
    "The client",
    "Setting up",
    "Bundles",
    "When something fails",
)


ATTACKERS: Final = (
    "Another user of the host",
    "A program of the same user",
    "A member of the administrators' group",
    "A hostile store",
    "A hostile runtime, driver or compiler",
    "Hostile output of a program",
    "A registry, or who stands before it",
)


@functools.cache
def there() -> frozenset[str]:
    """Return the names of all tests."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.add(node.name)
    return frozenset(found)


@pytest.mark.parametrize("title", SECTIONS)
def test_every_line_of_the_threat_model_is_held_by_tests_that_exist(title: str) -> None:
    known = there()
    # Tables of more columns say what is so; those of two say what holds, and by which tests.
    table = [row for row in rows(section(page("docs/security.md"), title)) if len(row) == 2]
    assert len(table) > 3
    for line, held in table:
        named = codes(held)
        assert named, f"nothing holds: {line}"
        assert set(named) <= known, f"{set(named) - known} do not exist"


@pytest.mark.parametrize("title", ATTACKERS)
def test_what_stops_an_attacker_is_tried_by_tests_that_exist(title: str) -> None:
    known = there()
    table = rows(section(page("docs/security.md"), title))
    assert len(table) > 1
    for wants, stops, tried in table:
        named = codes(tried)
        assert wants
        assert stops
        assert named, f"nothing tries: {wants}"
        assert set(named) <= known, f"{set(named) - known} do not exist"


def test_no_attacker_is_forgotten() -> None:
    titles = re.findall(r"^### (.*)$", section(page("docs/security.md"), "Attackers"), re.MULTILINE)
    assert titles == list(ATTACKERS)


def test_no_section_with_tests_is_forgotten() -> None:
    text = page("docs/security.md")
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [title for title in titles if "`test_" in section(text, title)] == ["Attackers", *SECTIONS]


def test_a_command_is_words_and_never_a_line(tmp_path: Path) -> None:
    words = ("$(touch owned)", "; touch owned", "`touch owned`", "a b", "*", "", "'\"", "\n")
    workload = Workload(("/usr/bin/printf", "%s|", *words), tmp_path, {"A": "$(touch owned)"}, 20.0)
    starter = ProcessStarter({"PATH": "/usr/bin:/bin"}, INSTANCE)
    done = asyncio.run(starter.execute(workload, {}, Trace(), polite=False))
    assert done.outcome is None
    assert done.output == "".join(f"{word}|" for word in words)
    assert list(tmp_path.glob("owned")) == []
