"""Bundles are taken in by turns: whatever else changes entries goes between them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import traceback
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest

from tests.support import bundles as made
from tests.support import users
from xpucached import codec, deadlines
from xpucached.bundle.revocations import state_of
from xpucached.domain.bundles import BundleSource, BundleView, ImportBundle, ImportReport
from xpucached.domain.imports import EntriesCame
from xpucached.errors import CatalogError, XpucachedError
from xpucached.host.core_slots import RunSlot
from xpucached.processes import polling
from xpucached.service import taking
from xpucached.service.context import Locks
from xpucached.service.taking import BundleTaker
from xpucached.service.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from xpucached.service.context import Context
    from xpucached.service.scan import StoreScanner


NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
PAUSES: Final = (60, 120, 240, 480, 960, 1920, 3600, 3600)


def taker_of(folder: Path) -> tuple[BundleTaker, SimpleNamespace]:
    """Return who takes in the bundles of a folder, and what he works on."""
    bundles, paths = SimpleNamespace(take=True, folder=folder), SimpleNamespace(cache=folder)
    context = SimpleNamespace(
        settings=SimpleNamespace(bundles=bundles, paths=paths, key_folders=(folder / "trust.d",)),
        present=SimpleNamespace(offered=("one",), drivers_met=("one",)),
        locks=Locks(),
        base={},
        clock=lambda: NOW,
    )
    return BundleTaker(cast("Context", context), cast("StoreScanner", None)), context


def test_who_waits_comes_between_two_turns_of_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bad", "large"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.json").touch()
    order: list[object] = []
    depths: list[int] = []

    def imported(asked: ImportBundle, *_: object) -> ImportReport:
        order.append((asked.source.name, asked.first, asked.seconds))
        if asked.source.name == "bad":
            raise XpucachedError("bad")
        view = BundleView(asked.source, "", ())
        return ImportReport(view, (), next=asked.first + 7 if asked.first < 14 else None)

    monkeypatch.setattr(taking, "_imported", imported)
    taker, context = taker_of(tmp_path)

    async def other(number: int) -> None:
        async with context.locks.changing:
            order.append(number)

    async def both() -> None:
        for number in range(4):
            taking_in = asyncio.create_task(taker.take())
            while not context.locks.changing.locked() and not taking_in.done():  # noqa: ASYNC110 - a lock tells nobody
                await asyncio.sleep(0)
            waiting = asyncio.create_task(other(number))
            (wrong,) = await asyncio.gather(taking_in, return_exceptions=True)
            assert isinstance(wrong, XpucachedError)
            depths.append(len(traceback.extract_tb(wrong.__traceback__)))
            await waiting
            order.append(taker.unfinished)

    asyncio.run(both())
    # What waited since the bundle that was bad went before the other one.
    assert order == [
        *[("bad", 0, 60.0), 0, ("large", 0, 60.0), True],
        *[("large", 7, 60.0), 1, True],
        *[("large", 14, 60.0), 2, False],
        *[3, False],
    ]
    # What was wrong is told each time, and does not grow by that.
    assert len({*depths}) == 1


@pytest.mark.parametrize("full", [False, True])
def test_a_program_goes_into_its_store_when_it_is_noted_of_whom_it_is_and_not_before(*, full: bool) -> None:
    noted: list[bool] = []
    answers, theirs = os.pipe()
    hears, goes_on = os.pipe()

    def note(came: Sequence[EntriesCame]) -> None:
        assert not polling.readable(hears, seconds=0)
        if full:
            raise CatalogError("the catalog failed")
        noted.extend(one.coming for one in came)

    try:
        heard = taking._Heard(answers, goes_on, note)
        for coming in (True, False):
            came = EntriesCame("sha256:1", BundleSource(), (), coming)
            os.write(theirs, codec.dumps(codec.to_json({"came": came})) + b"\n")
            with pytest.raises(CatalogError) if full else contextlib.nullcontext():
                heard.rest()
            # It goes on once for each time that it has asked.
            assert bool(polling.readable(hears, seconds=0)) is (coming and not full)
            assert full or not coming or os.read(hears, 9) == b"."
    finally:
        for one in (answers, theirs, hears, goes_on):
            os.close(one)
    assert noted == ([] if full else [True, False])


def test_keys_that_are_written_in_their_place_count_anew(tmp_path: Path) -> None:
    keys = tmp_path / "trust.d"
    keys.mkdir()
    (keys / "to nowhere").symlink_to(tmp_path / "nowhere")
    seen = [state_of(keys)]
    for name, text in (("a.pub", "a"), ("a.pub", "b"), ("revoked", "a"), ("revoked", "a, b")):
        (keys / name).write_text(text)
        seen.append(state_of(keys))
    assert len({*seen}) == len(seen)
    assert state_of(tmp_path / "none") not in seen


def test_a_bundle_is_looked_at_again_when_others_can_write_the_folder_of_keys_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `status` asks for: no key in it counted, so nothing was taken."""
    keys = tmp_path / "trust.d"
    for name in ("one", keys.name):
        (tmp_path / name).mkdir()
    (tmp_path / "one/index.json").touch()
    (keys / "key.pub").touch()
    tries: list[Path] = []
    monkeypatch.setattr(taking, "_imported", lambda asked, *_: tries.append(asked.source))
    taker, _ = taker_of(tmp_path)
    for mode in (0o775, 0o755, 0o777):
        keys.chmod(mode)
        for _again in range(2):
            asyncio.run(taker.take())
    assert len(tries) == 3


@pytest.mark.parametrize(
    ("code", "lasting"),
    [("bad-bundle", True), ("unsigned", True), ("disk", False), ("no-gpu", False), ("internal", False)],
)
def test_what_passes_is_tried_again_each_time_later_and_what_lasts_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, *, lasting: bool
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/index.json").touch()
    tries, now = 0, [1000.0]

    def imported(asked: ImportBundle, *_: object) -> None:
        nonlocal tries
        tries += 1
        if tries <= len(PAUSES):
            raise taking.refused(code, f"{asked.source.name}: no", "do this")

    monkeypatch.setattr(taking, "_imported", imported)
    monkeypatch.setattr(taking, "time", SimpleNamespace(monotonic=lambda: now[0]))
    taker, _ = taker_of(tmp_path)

    def told() -> str:
        with pytest.raises(XpucachedError, match="one: no") as wrong:
            asyncio.run(taker.take())
        return wrong.value.hint

    if lasting:
        for _ in range(3):
            assert told() == "do this; it is tried again when the bundle, the driver or the keys are others"
            assert taker.again is None
            now[0] += 1e6
        assert tries == 1
        return
    for pause in PAUSES:
        before = tries
        assert told() == f"do this; it is tried again after {NOW + timedelta(seconds=pause):%Y-%m-%d %H:%M} UTC"
        assert (tries, taker.again) == (before + 1, pause)
        now[0] += pause - 1
        told()
        assert (tries, taker.again) == (before + 1, 1)
        now[0] += 1
    # When it passed, nothing more is told, and nothing is tried again.
    asyncio.run(taker.take())
    assert (tries, taker.again) == (len(PAUSES) + 1, None)


def test_what_is_taken_in_by_turns_is_not_called_refused_for_what_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "large/index.json").touch()
    now = [1000.0]

    def imported(asked: ImportBundle, *_: object) -> ImportReport:
        if now[0] == 1000.0:
            raise XpucachedError("no room")
        return ImportReport(BundleView(asked.source, "", ()), (), next=asked.first + 7)

    monkeypatch.setattr(taking, "_imported", imported)
    monkeypatch.setattr(taking, "time", SimpleNamespace(monotonic=lambda: now[0]))
    taker, _ = taker_of(tmp_path)
    with pytest.raises(XpucachedError, match="no room"):
        asyncio.run(taker.take())
    now[0] += 60.0
    for _turn in range(2):
        asyncio.run(taker.take())
        assert (taker.unfinished, taker.again) == (True, None)


def test_bundles_whose_program_cannot_be_started_now_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.json").touch()
    asked: list[str] = []

    def full(name: str) -> int:
        asked.append(name)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", full)
    monkeypatch.setattr(taking, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    taker, _ = taker_of(tmp_path)
    said = "/one: the program for bundles cannot be started: Too many open files; and so are 1 more$"
    with pytest.raises(XpucachedError, match=said):
        asyncio.run(taker.take())
    assert (len(asked), taker.again) == (2, 60.0)


def lying(folder: Path) -> dict[tuple[object, ...], Path]:
    found, passed = taking._lying(folder)
    assert not passed
    return found


def test_what_is_no_bundle_hides_none_and_of_those_that_are_too_many_it_is_told(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number:03}").mkdir()
    made.write(tmp_path / "app", made.layout())
    assert [*lying(tmp_path).values()] == [tmp_path / "app"]
    for number in range(70):
        (tmp_path / f"{number:03}/index.json").touch()
    found, passed = taking._lying(tmp_path)
    assert (len(found), passed) == (64, 7)
    taker, _ = taker_of(tmp_path)
    taker._take = nothing  # type: ignore[assignment, method-assign]
    with pytest.raises(XpucachedError, match=": 7 more lie there than are looked at, which are 64 bundles"):
        asyncio.run(taker.take())


async def nothing(_path: Path, _first: int) -> int | None:
    return None


def test_a_bundle_that_is_still_being_copied_is_another_one_when_it_is_whole(tmp_path: Path) -> None:
    blobs = tmp_path / "bundle/blobs/sha256"
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/index.json").touch()
    seen = [*lying(tmp_path)]
    blobs.mkdir(parents=True)
    for text in ("", "half", "half and half"):
        (blobs / "77").write_text(text)
        seen += lying(tmp_path)
    assert len({*seen}) == 4
    assert [*lying(tmp_path)] == seen[-1:]


def test_a_bundle_whose_directory_is_closed_is_told_of(tmp_path: Path) -> None:
    for name in ("closed", "lost+found", "none"):
        (tmp_path / name).mkdir(0o000 if name != "none" else 0o700)
    with users.mere_user():
        assert [*lying(tmp_path).values()] == [tmp_path / "closed"]


def test_a_bundle_in_a_tar_file_is_taken_as_well(tmp_path: Path) -> None:
    for name in ("app.tar", "README", "index.json"):
        (tmp_path / name).write_text("half")
    (tmp_path / "link.tar").symlink_to("app.tar")
    os.mkfifo(tmp_path / "pipe.tar")
    (half,) = lying(tmp_path).items()
    assert half[1] == tmp_path / "app.tar"
    (tmp_path / "app.tar").write_text("half and half")
    (whole,) = lying(tmp_path).items()
    assert whole != half


@pytest.mark.parametrize(("kind", "why"), [("closed", "Permission denied"), ("file", "Not a directory")])
def test_a_folder_that_cannot_be_read_is_told_of(tmp_path: Path, kind: str, why: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(0o000) if kind == "closed" else folder.touch()
    taker, _ = taker_of(folder)
    for _ in range(2):
        with users.mere_user(), pytest.raises(XpucachedError, match=f"^{folder}: it cannot be read: {why}$"):
            asyncio.run(taker.take())
    assert taker.again is not None
    folder.rmdir() if kind == "closed" else folder.unlink()
    with users.mere_user():
        asyncio.run(taker.take())
    assert taker.again is None


@pytest.mark.parametrize("then", ["off", "no device", "silent"])
def test_what_cannot_be_looked_into_now_is_not_asked_for_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    for name in ("large", "refused"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.json").touch()
    now = [1000.0]

    def imported(asked: ImportBundle, *_: object) -> ImportReport:
        if asked.source.name == "refused":
            raise XpucachedError("no room")
        return ImportReport(BundleView(asked.source, "", ()), (), next=asked.first + 7)

    def silent(place: object, question: Callable[[], object], *_: object) -> object:
        if place == tmp_path:
            raise TimeoutError(errno.ETIMEDOUT, "its file system does not answer")
        return question()

    monkeypatch.setattr(taking, "_imported", imported)
    monkeypatch.setattr(taking, "time", SimpleNamespace(monotonic=lambda: now[0]))
    taker, context = taker_of(tmp_path)
    with pytest.raises(XpucachedError, match="no room"):
        asyncio.run(taker.take())
    assert (taker.unfinished, taker.again) == (True, 60.0)
    now[0] += 100.0
    if then == "silent":
        monkeypatch.setattr(deadlines, "ask", silent)
    context.settings.bundles.take = then != "off"
    context.present.offered = () if then == "no device" else ("one",)
    with pytest.raises(XpucachedError) if then == "silent" else contextlib.nullcontext():
        asyncio.run(taker.take())
    # Whoever goes on at once, or after no time at all, would do nothing else for ever.
    assert (taker.unfinished, taker.again) == (False, 60.0 if then == "silent" else None)


def test_the_daemon_replays_warms_and_evicts_before_it_goes_on_with_a_bundle() -> None:
    did: list[str] = []

    class Steps(Upkeep):
        def __init__(self) -> None:
            taker = SimpleNamespace(take=self.take, unfinished=True, again=None)
            self._taker = cast("BundleTaker", taker)
            self._parts = SimpleNamespace(part=lambda _: asyncio.Lock())  # type: ignore[assignment]
            self._context = SimpleNamespace(run_slot=RunSlot())  # type: ignore[assignment]
            self._prewarmer = SimpleNamespace(throttle=SimpleNamespace(booting=False))  # type: ignore[assignment]
            self._again = True

        async def take(self) -> None:
            did.append("take")
            self._taker = cast(
                "BundleTaker", SimpleNamespace(take=self.take, unfinished=did.count("take") < 3, again=None)
            )

        async def _revoke(self) -> None:
            pass

        async def _mend(self) -> bool:
            return True

        async def _replay(self) -> None:
            did.append("replay")

        async def _prewarm(self) -> None:
            did.append("prewarm")

        async def _evict(self) -> None:
            did.append("evict")

        def _replay_comes_first(self) -> bool:
            return False

        def _wait(self) -> None:
            did.append("wait")

        def _prepare(self) -> None:
            did.append("prepare")

    asyncio.run(Steps()._keep_up())
    assert did == ["take", "replay", "prewarm", "evict"] * 3 + ["wait", "prepare"]
