"""What came from one place goes in steps, however many entries that are."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace

from tests.support.api_stub import NOW, make_entry
from xpucached.api import requests
from xpucached.cli import commands_jobs
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.names import EntryRef, JobId
from xpucached.domain.plans import EvictionPlan
from xpucached.domain.queries import EntryPage
from xpucached.domain.reports import EvictionReport
from xpucached.errors import NotFound, RequestError

if TYPE_CHECKING:
    from xpucached.cli.output import Output


class Daemon:
    """Answers in a daemon's place: it has entries with numbers in their rows, and evicts those that are named."""

    def __init__(self, entries: int, stay: int = 0) -> None:
        """``stay`` are those that no eviction takes, from the last one on."""
        self.rows = {number: make_entry(number) for number in range(1, entries + 1)}
        self.held = {self.rows[number].entry.id.ref for number in range(entries - stay + 1, entries + 1)}
        self.steps: list[int] = []
        self.pages = 0
        self.report = EvictionReport(EvictionPlan(), dry_run=False)

    def call(self, request: object) -> SimpleNamespace:
        """Answer."""
        if isinstance(request, requests.ListEntries):
            self.pages += 1
            begin = int(request.after or 0)
            found = [number for number in sorted(self.rows) if number > begin][:2]
            following = str(found[-1]) if len(found) == 2 else None
            return SimpleNamespace(value=EntryPage(tuple(self.rows[one] for one in found), 1, 1, following))
        if isinstance(request, requests.EvictEntries):
            self.steps.append(len(request.refs))
            gone = set() if request.dry_run else {*request.refs} - self.held
            self.report = replace(self.report, removed=tuple(EntryRef(one) for one in gone), dry_run=request.dry_run)
            if gone:
                # What stays moved to the front, where the first rows were.
                stay = [one for one in self.rows.values() if one.entry.id.ref not in gone]
                self.rows = dict(enumerate(reversed(stay), 1))
        job = Job(JobId("evict-1"), "evict", JobState.DONE, NOW, NOW)
        return SimpleNamespace(value=replace(job, report=self.report))


def evict(daemon: Daemon, *, wait: bool = True, dry_run: bool = False) -> int:
    """Take out what came with a bundle."""
    options = Namespace(
        origin=None,
        bundle="release",
        refs=[],
        plan=None,
        dry_run=dry_run,
        reason=[],
        wait=wait,
        socket=None,
        of=None,
        scope=None,
    )
    output = SimpleNamespace(options=options, client=daemon, quiet=True, tell=MagicMock())
    return commands_jobs._evict(cast("Output", output))


@pytest.mark.parametrize("entries", [1, 3, 4, 11])
def test_what_came_with_a_bundle_goes_however_much_it_is(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    monkeypatch.setattr(commands_jobs, "_STEP", 3)
    daemon = Daemon(entries)
    assert evict(daemon) == 0
    assert not daemon.rows
    assert (sum(daemon.steps), max(daemon.steps)) == (entries, min(entries, 3))


def test_a_dry_run_reads_each_page_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_jobs, "_STEP", 3)
    daemon = Daemon(40)
    assert evict(daemon, dry_run=True) == 0
    assert (sum(daemon.steps), daemon.pages) == (40, 21)


def test_what_stays_is_asked_for_once_and_of_too_much_that_stays_nothing_more_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands_jobs, "_STEP", 3)
    monkeypatch.setattr(commands_jobs, "_MOST_STAYING", 10)
    daemon = Daemon(40, stay=8)
    assert evict(daemon) == 0
    assert len(daemon.rows) == 8
    assert sum(daemon.steps) == 40
    daemon = Daemon(40, stay=20)
    with pytest.raises(RequestError, match="more than 10 entries stay"):
        evict(daemon)
    assert sum(daemon.steps) < 40


def test_where_there_is_none_or_nobody_waits_for_the_steps_nothing_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound):
        evict(Daemon(0))
    monkeypatch.setattr(commands_jobs, "_STEP", 3)
    daemon = Daemon(4)
    with pytest.raises(RequestError):
        evict(daemon, wait=False)
    assert daemon.steps == []
