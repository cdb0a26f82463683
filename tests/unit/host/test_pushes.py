"""What a push leaves for `status`, and when one that failed or never ran is a problem."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from xpucached.bundling import drivers, pushing
from xpucached.domain.bundles import ExportBundle, PullBundle, PushBundle, PushReport
from xpucached.domain.pushes import PushOutcome, trouble
from xpucached.errors import NotFound, RegistryError
from xpucached.host import pushes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from xpucached.domain.bundles import BundleOrder, BundleReport

NOW = datetime(2026, 11, 26, tzinfo=UTC)
HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
SENT = PushReport("host/made:v1", "sha256:00", 4, 0, 0, 9, 1)


def code(last: PushOutcome | None, set_up: datetime | None = NOW - WEEK, started: datetime = NOW - WEEK) -> str:
    found = trouble(last, set_up, started, NOW)
    return "" if found is None else found.code


def test_a_push_that_failed_or_did_not_come_is_a_problem() -> None:
    assert code(PushOutcome(NOW - HOUR, "host/made:v1", error="it did not answer")) == "push-failed"
    assert code(PushOutcome(NOW - WEEK, "host/made:v1", "sha256:00")) == "push-overdue"
    assert code(None) == "push-overdue"


def test_it_is_none_where_all_is_well_or_nobody_knows_better() -> None:
    assert code(PushOutcome(NOW - HOUR, "host/made:v1", "sha256:00")) == ""
    assert code(PushOutcome(NOW - HOUR)) == ""
    assert code(None, set_up=None) == code(PushOutcome(NOW - HOUR, error="no"), set_up=None) == ""
    assert code(None, set_up=NOW - HOUR) == ""
    assert code(PushOutcome(NOW - WEEK), started=NOW - HOUR) == ""


def test_it_is_set_up_where_both_files_are(tmp_path: Path) -> None:
    assert pushes.set_up(tmp_path) is None
    (tmp_path / "push.key").touch()
    assert pushes.set_up(tmp_path) is None
    (tmp_path / "push.env").touch()
    os.utime(tmp_path / "push.key", (1, 1))
    os.utime(tmp_path / "push.env", (2, 2))
    assert pushes.set_up(tmp_path) == datetime.fromtimestamp(2, UTC)


@pytest.fixture
def state(home: Path) -> Path:
    place = drivers.settings().paths.state
    assert place.is_relative_to(home)
    place.mkdir(parents=True)
    return place


def ended(order: BundleOrder, with_: Exception | BundleReport) -> None:
    def carry_out() -> BundleReport:
        if isinstance(with_, Exception):
            raise with_
        return with_

    if isinstance(with_, Exception):
        with pytest.raises(type(with_)):
            pushing.noted(order, carry_out)
    else:
        assert pushing.noted(order, carry_out) is with_


def test_how_it_ended_is_remembered(state: Path, tmp_path: Path) -> None:
    def told(order: BundleOrder, with_: Exception | BundleReport) -> tuple[str, str, str] | None:
        ended(order, with_)
        last = pushes.last(state)
        return None if last is None else (last.reference, last.digest, last.error)

    export, push = ExportBundle(tmp_path, made_here=True), PushBundle(tmp_path, "host/made:v1", if_changed=True)
    refused = RegistryError("it did not answer")
    for order in (ExportBundle(tmp_path), PushBundle(tmp_path, "host/made:v1"), PullBundle("host/x", tmp_path)):
        assert told(order, refused) is None
    assert told(export, NotFound("no entry matches")) == ("", "", "")
    assert told(export, OSError("disk")) == ("", "", "disk")
    assert told(push, NotFound("no such file")) == ("host/made:v1", "", "no such file")
    assert told(push, refused) == ("host/made:v1", "", "it did not answer")
    assert told(push, SENT) == ("host/made:v1", "sha256:00", "")
    assert [path.name for path in state.iterdir()] == [pushes.NAME]


def test_where_no_daemon_ran_nothing_is_made(home: Path, tmp_path: Path) -> None:
    before = sorted(home.rglob("*"))
    ended(PushBundle(tmp_path, "host/made:v1", if_changed=True), SENT)
    assert sorted(home.rglob("*")) == before


def _damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def _other(path: Path) -> None:
    path.write_bytes(b'{"at": 3}')


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("spoil", [_damaged, _other, _folder, _pipe])
def test_what_cannot_be_read_is_not_known(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    pushes.note(tmp_path, "host/made:v1", "sha256:00")
    assert pushes.last(tmp_path) is not None
    spoil(tmp_path / pushes.NAME)
    assert pushes.last(tmp_path) is None
