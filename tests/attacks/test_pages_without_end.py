"""Who answers in a daemon's place gives pages of entries that never end: who lists them is not held, and keeps none.

Nor is who waits for a job that never ends kept busy.

The rest of it stands in `tests.flow.test_cli`: pages are printed as they come, and there are only so many.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from tests.attacks.test_answers_with_commands import ctl, envelope
from tests.support.api_stub import NOW, make_entry
from tests.support.lying_server import liar
from xpucached import codec
from xpucached.api.client import Answer
from xpucached.cli import arguments, following, listing
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.names import JobId
from xpucached.domain.queries import EntryPage
from xpucached.errors import RequestError, RunFailed, Unavailable

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


def test_who_does_not_hold_an_answer_back_keeps_nobody_busy(short_dir: Path) -> None:
    job = envelope(codec.to_json(Job(JobId("prewarm-1"), "prewarm", JobState.RUNNING, NOW)))
    with liar(short_dir / "s", {"/v1/prewarm": job, "/v1/jobs/prewarm-1/wait": job}) as answering:
        done = ctl(short_dir / "s", "prewarm", "--timeout", "1s")

        assert done.returncode == RunFailed.exit
        assert answering.asked() < 15


def test_who_ends_each_stream_is_not_asked_for_the_next_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    client = MagicMock()
    client.follow.side_effect = lambda _since: iter(())
    output = MagicMock(client=client, options=Namespace(since=0, follow=True, limit=None))
    with pytest.raises(KeyboardInterrupt):
        following.events(output)
    assert client.follow.call_count == 3
    assert min(naps) > 0


class Another:
    """Answers in another user's place, always with a further page."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.asked = 0

    def call(self, _request: object) -> Answer[EntryPage]:
        """Answer."""
        self.asked += 1
        page = EntryPage((make_entry(self.asked),), self.total, 10, str(self.asked))
        return Answer(json.loads(codec.dumps(codec.to_json(page))), EntryPage)


@pytest.mark.parametrize("bound", ["_MOST_SORTED", "_MOST_HELD"])
def test_of_what_is_to_be_sorted_no_more_is_kept_than_was_said(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(listing, bound, 10 if bound == "_MOST_SORTED" else 10_000)
    daemon = Another(total=5)
    output = MagicMock(client=daemon, options=arguments.parse(["--of", "alice", "ls", "--sort", "size"]))
    with pytest.raises(RequestError, match="be sorted"):
        listing.ls(output)
    assert daemon.asked < 12
