"""Bundles are taken in by turns: whatever else changes entries goes between them."""

from __future__ import annotations

import asyncio
import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from xpucached.domain.bundles import BundleView, ImportBundle, ImportReport
from xpucached.errors import XpucachedError
from xpucached.service import taking
from xpucached.service.context import Locks
from xpucached.service.taking import BundleTaker
from xpucached.service.upkeep import Upkeep

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from xpucached.service.context import Context
    from xpucached.service.scan import StoreScanner


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
    bundles = SimpleNamespace(take=True, folder=tmp_path)
    paths = SimpleNamespace(cache=tmp_path)
    context = SimpleNamespace(
        settings=SimpleNamespace(bundles=bundles, paths=paths, file=tmp_path / "xpucached.toml"),
        present=SimpleNamespace(offered=("one",), drivers_met=("one",)),
        locks=Locks(),
        base={},
    )
    taker = BundleTaker(cast("Context", context), cast("StoreScanner", None))

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


def test_keys_that_are_written_in_their_place_count_anew(tmp_path: Path) -> None:
    keys, folder = tmp_path / "trust.d", tmp_path / "bundles"
    keys.mkdir()
    folder.mkdir()
    (keys / "to nowhere").symlink_to(tmp_path / "nowhere")
    seen = [taking._lying(folder, keys)[1]]
    for name, text in (("a.pub", "a"), ("a.pub", "b"), ("revoked", "a"), ("revoked", "a, b")):
        (keys / name).write_text(text)
        seen.append(taking._lying(folder, keys)[1])
    assert len({*seen}) == len(seen)
    assert taking._lying(folder, tmp_path / "none")[1] != seen[0]


def test_the_daemon_replays_warms_and_evicts_before_it_goes_on_with_a_bundle() -> None:
    did: list[str] = []

    class Steps(Upkeep):
        def __init__(self) -> None:
            taker = SimpleNamespace(take=self.take, unfinished=True)
            self._taker = cast("BundleTaker", taker)
            self._parts = SimpleNamespace(part=lambda _: asyncio.Lock())  # type: ignore[assignment]
            self._prewarmer = SimpleNamespace(throttle=SimpleNamespace())  # type: ignore[assignment]
            self._again = True

        async def take(self) -> None:
            did.append("take")
            self._taker = cast("BundleTaker", SimpleNamespace(take=self.take, unfinished=did.count("take") < 3))

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
