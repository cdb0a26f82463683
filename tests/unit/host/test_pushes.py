"""What a push leaves for `status`, and when one that failed or never ran is a problem."""

from __future__ import annotations

import contextlib
import os
import pwd
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from xpucached.bundling import drivers, exporting, registries, sending
from xpucached.domain.bundles import BundleView, ExportBundle, ExportReport, PushBundle, PushReport
from xpucached.domain.pushes import PushOutcome, trouble
from xpucached.errors import Conflict, DiskError, NotFound, RegistryError, RequestError, XpucachedError
from xpucached.host import pushes
from xpucached.render.bundles import report
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


NOW = datetime(2026, 11, 26, tzinfo=UTC)
HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
PLACE = "host.example/made:v1"
SENT = PushReport(PLACE, "sha256:00", 4, 0, 0, 9, 1)


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


def since() -> datetime | None:
    settings = drivers.settings()
    return pushes.set_up(settings.bundles.push, settings.file)


def test_it_is_set_up_where_the_configuration_says_where_to(home: Path) -> None:
    config = home / ".config/xpucached"
    config.mkdir(parents=True)
    (config / "push.key").touch()
    assert since() is None
    (config / "xpucached.toml").write_text("[bundles]\npush = 'host.example/made:v1'\n")
    os.utime(config / "push.key", (1, 1))
    os.utime(config / "xpucached.toml", (2, 2))
    assert since() == datetime.fromtimestamp(2, UTC)
    # Some file systems keep any time.
    os.utime(config / "push.key", ns=(1 << 62, 1 << 62))
    found = since()
    assert found is not None
    assert found > NOW
    assert code(None, set_up=found) == code(PushOutcome(NOW + WEEK)) == "push-overdue"
    assert code(None, started=NOW + HOUR) == ""
    assert code(None, set_up=found, started=NOW - HOUR) == code(PushOutcome(NOW - HOUR), set_up=found) == ""


@pytest.fixture
def state(home: Path) -> Path:
    place = drivers.settings().paths.state
    assert place.is_relative_to(home)
    place.mkdir(parents=True)
    return place


def configured(home: Path, push: str) -> None:
    config = home / ".config/xpucached"
    config.mkdir(parents=True, exist_ok=True)
    (config / "xpucached.toml").write_text(f"[bundles]\npush = '{push}'\n")


def test_how_it_ended_is_remembered(state: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(exported: Exception | None, pushed: Exception | PushReport = SENT) -> tuple[str, str, str]:
        def export(order: ExportBundle, _: object) -> ExportReport:
            assert (order.made_here, order.sign) == (True, str(home / ".config/xpucached/push.key"))
            if exported is not None:
                raise exported
            order.dest.mkdir()
            return ExportReport(BundleView(order.dest, "", ()), {"it cannot be read": 2})

        def push(order: PushBundle, _: object) -> PushReport:
            assert (order.reference, order.if_changed, order.source.is_dir()) == (PLACE, True, True)
            if isinstance(pushed, Exception):
                raise pushed
            return pushed

        monkeypatch.setattr(exporting, "export", export)
        monkeypatch.setattr(registries, "push", push)
        with contextlib.suppress(XpucachedError, OSError):
            sent = sending.send(lambda *_: None)
            assert not sent.digest or "left out: 2 entries: it cannot be read" in report(sent, TextStyle(NOW))
        assert list(home.rglob(".cache/xpucached/push/*")) == []
        last = pushes.last(state)
        assert last is not None
        return last.reference, last.digest, last.error

    configured(home, PLACE)
    assert "there is no key" in told(None)[2]
    (home / ".config/xpucached/push.key").touch()
    assert told(exporting.Nothing("no entry matches")) == ("", "", "")
    assert told(NotFound("no such key")) == (PLACE, "", "no such key")
    assert told(OSError("disk")) == (PLACE, "", "disk")
    assert told(OSError("disk \udcff")) == (PLACE, "", "disk \\udcff")
    assert told(OSError("\U0001f4be" * 2000)) == (PLACE, "", "\U0001f4be" * 1000)
    assert told(None, RegistryError("it did not answer")) == (PLACE, "", "it did not answer")
    assert told(None) == (PLACE, SENT.digest, "")
    assert [path.name for path in state.iterdir()] == [pushes.NAME]


def test_what_was_left_out_is_told_where_nothing_is_left(
    state: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object) -> ExportReport:
        raise exporting.Nothing("nothing can travel", skipped={"another program lies there": 2})

    configured(home, PLACE)
    (home / ".config/xpucached/push.key").touch()
    monkeypatch.setattr(exporting, "export", nothing)
    said = report(sending.send(lambda *_: None), TextStyle(NOW))
    assert "nothing was compiled here" not in said
    assert "left out: 2 entries: another program lies there" in said
    assert pushes.last(state) is not None


def test_each_user_of_each_host_may_have_a_place_of_its_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(home.rglob("*"))
    user, host = pwd.getpwuid(os.geteuid()).pw_name, os.uname().nodename.casefold()
    assert sending._filled_in("host.example/made/{user}:{host}") == f"host.example/made/{user}:{host}"
    with pytest.raises(RequestError, match="no place in a registry"):
        sending._filled_in("host.example/{other}:v1")
    with pytest.raises(RequestError, match="names no place"):
        sending.send(lambda *_: None)
    assert sorted(home.rglob("*")) == before
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    with pytest.raises(RequestError, match="nobody knows user 4000000000"):
        sending._filled_in("host.example/made/{user}:{host}")


def test_one_pushes_at_a_time_and_what_a_killed_one_left_goes(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "push"
    (folder / "made/blobs").mkdir(parents=True)
    with sending._folder(folder) as first:
        assert list(first.iterdir()) == []
        (first / "made").mkdir()
        with pytest.raises(Conflict, match="another one pushes"), sending._folder(folder):
            pass
        assert (first / "made").is_dir()
    assert list(folder.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(DiskError), sending._folder(tmp_path / "file"):
        pass


def test_of_the_catalogs_of_a_daemon_and_a_worker_the_last_written_counts(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "WORKERS", tmp_path / "workers")
    worker = tmp_path / "workers" / str(os.geteuid())
    worker.mkdir(parents=True)
    assert drivers.settings().paths.state == state
    (worker / drivers.CATALOG).touch()
    assert drivers.settings().paths.state == worker
    assert drivers.settings(user=False).paths.state != worker
    (state / drivers.CATALOG).touch()
    os.utime(worker / drivers.CATALOG, (1, 1))
    assert drivers.settings().paths.state == state
    (worker / f"{drivers.CATALOG}-wal").touch()
    os.utime(state / drivers.CATALOG, (2, 2))
    assert drivers.settings().paths.state == worker


def test_where_no_daemon_ran_nothing_is_noted(home: Path) -> None:
    configured(home, "host.example/{other}:v1")
    before = sorted(home.rglob("*"))
    with pytest.raises(RequestError):
        sending.send(lambda *_: None)
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
