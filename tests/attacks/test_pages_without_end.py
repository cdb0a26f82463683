"""Who answers in a daemon's place gives pages of entries that never end: who lists them is not held, and keeps none.

The rest of it stands in `tests.flow.test_cli`: pages are printed as they come, and there are only so many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attacks.test_answers_with_commands import ctl, envelope
from tests.support.api_stub import make_entry
from tests.support.lying_server import liar
from xpucached import codec
from xpucached.domain.queries import EntryPage
from xpucached.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("words", [(), ("--json",), ("-q",)])
@pytest.mark.parametrize(
    ("entries", "following"),
    [(2, "2"), (0, "7"), (2, "1"), (2, "-3"), (2, "two"), (2, "\u0662"), (1, "9" * 5000)],
    ids=["again", "empty", "short", "below", "word", "digit", "long"],
)
def test_pages_that_do_not_go_on_are_refused(
    short_dir: Path, entries: int, following: str, words: tuple[str, ...]
) -> None:
    page = EntryPage(tuple(make_entry(number) for number in range(entries)), 10, 10, following)
    with liar(short_dir / "s", {"/v1/entries": envelope(codec.to_json(page))}) as answering:
        done = ctl(short_dir / "s", "ls", *words)

        assert done.returncode == Unavailable.exit
        # A list of one page needs the program's first question only; what is more is asked again from the beginning.
        assert answering.asked() <= 3


def test_what_came_with_a_bundle_is_not_looked_for_without_end(short_dir: Path) -> None:
    page = EntryPage((make_entry(1), make_entry(2)), 10, 10, "2")
    with liar(short_dir / "s", {"/v1/entries": envelope(codec.to_json(page))}) as answering:
        done = ctl(short_dir / "s", "evict", "--origin", "imported")

        assert done.returncode == Unavailable.exit
        assert answering.asked() == 2
