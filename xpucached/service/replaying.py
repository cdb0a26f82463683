"""Replay: after a driver change, entries are rebuilt from themselves, without the models."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from xpucached import planning
from xpucached.dispatch import BuildFailed
from xpucached.domain import NoRecipe, ReplayPlan, ReplayReport
from xpucached.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from xpucached.dispatch import Builder, Dispatch
    from xpucached.domain import Environment, ModelName, Rebuild
    from xpucached.service.jobs import Handle
    from xpucached.service.observing import Observing

log = logging.getLogger(__name__)

_MOST_WORKERS: Final = 8
"""Each compiler holds some hundred megabytes; beyond so many the disk and the memory are what is short."""

_MOST_WORDS: Final = 5


@dataclass(frozen=True, slots=True)
class Wish:
    """Which part of a replay somebody wants; nothing given is all of it."""

    stores: frozenset[Path] = frozenset()
    models: frozenset[ModelName] = frozenset()
    to: str | None = None


@dataclass(slots=True)
class _Tally:
    """What the workers of one replay have done so far."""

    rebuilt: int = 0
    present: int = 0
    compile_seconds: float = 0.0
    skipped: Counter[NoRecipe] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Replaying:
    """Rebuilds what the present driver lacks."""

    def __init__(self, observing: Observing, dispatch: Dispatch, changing: asyncio.Lock) -> None:
        """``changing`` is held while entries are rebuilt, so that no model compiles the same meanwhile."""
        self._observing = observing
        self._dispatch = dispatch
        self._changing = changing
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether entries are being rebuilt now: what changes in the stores meanwhile is mostly our own doing."""
        return self._busy

    async def plan(self, wish: Wish) -> ReplayPlan:
        """Decide what to rebuild."""
        return await asyncio.to_thread(self._plan, wish)

    def _plan(self, wish: Wish) -> ReplayPlan:
        observing = self._observing
        host = observing.present
        known = {environment.fingerprint: environment for environment in host.environments}
        failed = frozenset(
            ((store, tail), known[fingerprint])
            for store, tail, fingerprint in observing.catalog.refusals(host.stamp)
            if fingerprint in known
        )
        return planning.plan_replay(
            observing.catalog.all_entries(),
            host,
            {model.name: model for model in observing.catalog.models()},
            failed,
            observing.clock(),
            stores=wish.stores,
            only=wish.models,
            to=wish.to,
        )

    def work(self, wish: Wish, *, dry_run: bool = False) -> Callable[[Handle], Awaitable[ReplayReport]]:
        """Give the work of a job: plan, and unless it is a dry run rebuild."""

        async def work(handle: Handle) -> ReplayReport:
            if dry_run:
                plan = await self.plan(wish)
                return ReplayReport(plan, dry_run=True, skipped=plan.skipped)
            handle.progress(0, 0, "waiting for its turn")
            async with self._changing:
                # What a replay that was killed had published is found by looking, so the plan goes on where it stopped.
                await self._observing.scan_stores(wish.stores)
                return await self._carry_out(await self.plan(wish), handle)

        return work

    async def _carry_out(self, plan: ReplayPlan, handle: Handle) -> ReplayReport:
        self._busy = True
        try:
            return await self._rebuild(plan, handle)
        finally:
            self._busy = False

    async def _rebuild(self, plan: ReplayPlan, handle: Handle) -> ReplayReport:
        began = time.monotonic()
        tally = _Tally(skipped=Counter(plan.skipped))
        todo = iter(plan.rebuild)
        cancel = threading.Event()
        count = min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
        workers = [
            asyncio.create_task(asyncio.to_thread(self._work_off, todo, tally, cancel))
            for _ in range(min(count, len(plan.rebuild)))
        ]
        try:
            while workers and not all(worker.done() for worker in workers):
                handle.progress(tally.rebuilt, len(plan.rebuild), "rebuilding")
                await asyncio.wait(workers, timeout=0.2, return_when=asyncio.ALL_COMPLETED)
        finally:
            cancel.set()
            if workers:
                await asyncio.shield(asyncio.wait(workers))
        for worker in workers:
            worker.result()
        if plan.rebuild:
            await self._observing.scan_stores(frozenset(one.entry.entry.id.store.root for one in plan.rebuild))
        handle.progress(len(plan.rebuild), len(plan.rebuild))
        report = ReplayReport(
            plan,
            dry_run=False,
            rebuilt=tally.rebuilt,
            present=tally.present,
            failed=len(tally.failures),
            skipped=dict(tally.skipped),
            seconds=time.monotonic() - began,
            compile_seconds=tally.compile_seconds,
            failures=tuple(tally.failures[:_MOST_WORDS]),
        )
        if plan.rebuild:
            self._observing.events.post(
                "replayed",
                f"{report.rebuilt} entries rebuilt in {report.seconds:.1f} s, {report.failed} failed",
                {"rebuilt": str(report.rebuilt), "failed": str(report.failed), "seconds": f"{report.seconds:.1f}"},
            )
        return report

    def _work_off(self, todo: Iterator[Rebuild], tally: _Tally, cancel: threading.Event) -> None:
        """Take one rebuild after the other, in this thread; a compiler for each environment."""
        builders: dict[Environment, Builder] = {}
        try:
            while not cancel.is_set():
                with tally.lock:
                    one = next(todo, None)
                if one is None:
                    return
                builder = builders.get(one.to)
                if builder is None:
                    builder = builders[one.to] = self._dispatch.builder(one.to, self._observing.settings.variables)
                recipe = KINDS[one.entry.entry.id.store.kind].recipe(one.entry.entry)
                if isinstance(recipe, NoRecipe):
                    with tally.lock:
                        tally.skipped[recipe] += 1
                    continue
                try:
                    binary, seconds = builder.build(recipe, cancel)
                except BuildFailed as error:
                    if not cancel.is_set():
                        self._refused(one, str(error), tally)
                    continue
                try:
                    key = KINDS[one.entry.entry.id.store.kind].publish(recipe, one.to, binary)
                except OSError as error:
                    # The disk's fault, not the entry's: the next replay tries again.
                    log.warning("a rebuilt entry could not be published: %s: %s", one.entry.entry.id.key, error)
                    self._observing.troubles.failed(one.entry.entry.id.store.root, error)
                    with tally.lock:
                        tally.failures.append(f"{one.entry.entry.id.ref}: {error.strerror or error}")
                    continue
                self._observing.troubles.worked(one.entry.entry.id.store.root)
                with tally.lock:
                    tally.compile_seconds += seconds
                    tally.rebuilt += key is not None
                    tally.present += key is None
        finally:
            for builder in builders.values():
                builder.close()

    def _refused(self, one: Rebuild, words: str, tally: _Tally) -> None:
        entry = one.entry.entry
        place = planning.tail(one.entry)
        log.warning("an entry could not be rebuilt: %s: %s", entry.id.key, words)
        with tally.lock:
            tally.failures.append(f"{entry.id.ref}: {words}")
        if place is not None:
            observing = self._observing
            observing.catalog.record_refusal(
                entry.id.store, place[1], one.to.fingerprint, observing.present.stamp, words, observing.clock()
            )
