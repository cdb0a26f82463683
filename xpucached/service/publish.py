"""Replay: what compilers made goes to its place and is noted, while they go on."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from xpucached.catalog.builds import forget_old_builds
from xpucached.catalog.recipes import recipe_lineages
from xpucached.catalog.refusals import record_refusal
from xpucached.domain.host import OtherDriver
from xpucached.domain.plans import NoRecipe
from xpucached.domain.stores import Store
from xpucached.errors import CatalogError, XpucachedError
from xpucached.kinds import table
from xpucached.kinds.removal import StoreClosed
from xpucached.service.rebuild import driver_for, publish
from xpucached.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from xpucached.domain.names import KindName, ModelName
    from xpucached.domain.plans import Rebuild, Recipe
    from xpucached.domain.recipes import RecordedRecipe
    from xpucached.planning.replay import Lineages
    from xpucached.service.context import Context
    from xpucached.service.replay import ReplayRequest

log = logging.getLogger(__name__)

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


_MOST_WAITING: Final = 16
"""So many compiled programs may wait for the disk before the compilers do."""

_MOST_TOLD: Final = 64
"""So many recipes are held before they are written down together."""

_MOST_HELD: Final = 10 * _MOST_TOLD
"""So many are held where they cannot be written down."""


class Publisher:
    """What comes of one replay: each compiled program goes to its place, by a thread of its own."""

    def __init__(
        self,
        context: Context,
        wish: ReplayRequest,
        drivers: Sequence[OtherDriver],
        skipped: Counter[NoRecipe] | None = None,
        failures: Iterable[str] = (),
    ) -> None:
        """``skipped`` are those that the plan left out, ``failures`` what went wrong so far."""
        self._context = context
        self._wish = wish
        self._scope = wish.scope
        self._drivers = drivers
        # A compiler need not wait for the disk, unless too much waits for it already.
        self._publisher = ThreadPool(1, "publisher")
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self._lock = threading.Lock()
        self._published: list[Future[None]] = []
        self._told: list[tuple[KindName, RecordedRecipe]] = []  # how what was published is compiled, to be kept
        self._lineages: Lineages | None = None
        self.rebuilt = 0
        self.present = 0
        self.compile_seconds = 0.0
        self.skips: Counter[NoRecipe] = skipped if skipped is not None else Counter()
        self.failures = list(failures)
        self.on_full: Callable[[], None] = lambda: None
        """Called when nothing more can be kept."""
        self.on_closed: Callable[[Store], None] = lambda _store: None
        """Called when nothing more can be kept in a store."""

    @property
    def answered(self) -> int:
        """How many are in their places."""
        return self.rebuilt + self.present

    def built(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        """Take what was compiled."""
        self._waiting.acquire()
        with self._lock, contextlib.suppress(RuntimeError):
            self._published.append(self._publisher.submit(self._publish, one, recipe, binary, seconds))
            return
        # There is no thread for it: the compiler waits for the disk.
        self._publish(one, recipe, binary, seconds)

    def skipped(self, one: Rebuild, why: NoRecipe) -> None:  # noqa: ARG002 - others want to know which
        """Count what cannot be compiled again."""
        with self._lock:
            self.skips[why] += 1

    def failed(self, one: Rebuild, words: str, *, blamed: bool) -> None:
        """Note what was not compiled, and what never will be."""
        with self._lock:
            self.failures.append(f"{one.entry.entry.id.ref}: {words}")
        if blamed:
            self._refused(one, words)

    def close(self) -> None:
        """Wait until all is written."""
        self._publisher.shutdown()
        self._keep_recipes()

    def check(self) -> None:
        """Raise what writing raised."""
        for published in self._published:
            published.result()

    def _publish(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        entry = one.entry.entry
        into = self._scope.into_of(entry.id.store.kind)
        try:
            origin, models = self._wish.origin, self._models_of(one)
            key = publish(self._context, one, (recipe, binary), seconds, origin, self._drivers, models, into)
            self._note_recipe(entry.id.store.kind, recipe)
        except (OSError, XpucachedError) as error:
            # The disk's fault, not the entry's: the next replay tries again.
            log.warning("a rebuilt entry could not be published: %s: %s", entry.id.key, error)
            if isinstance(error, OSError) and into is None:
                # Of a place that is no store of ours nobody would ever find out that it is well again.
                self._context.problems.failed(entry.id.store.root, error)
            with self._lock:
                self.failures.append(f"{entry.id.ref}: {error}")
            if isinstance(error, OSError) and error.errno in _FULL:
                # What else is compiled could not be kept either.
                self.on_full()
            if isinstance(error, StoreClosed):
                self.on_closed(entry.id.store)
            return
        finally:
            self._waiting.release()
        if into is None:
            self._context.problems.worked(entry.id.store.root)
        with self._lock:
            self.compile_seconds += seconds
            self.rebuilt += key is not None
            self.present += key is None

    def _note_recipe(self, kind: KindName, recipe: Recipe) -> None:
        """Note how what was compiled is compiled, so that the next driver's can be, too."""
        if recipe.made is not None:
            with self._lock:
                self._told.append((kind, recipe.made))
                enough = len(self._told) % _MOST_TOLD == 0
            if enough:
                self._keep_recipes()

    def _keep_recipes(self) -> None:
        """Write down what was noted; what cannot be is held until the next time."""
        with self._lock:
            told, self._told = self._told, []
        for kind in {kind for kind, _ in told}:
            recipes = [one for its, one in told if its == kind]
            try:
                self._context.recipes.keep(kind, recipes, self._context.clock(), proven=True)
            except (OSError, XpucachedError) as error:
                log.warning("recipes of a replay could not be kept: %s", error)
                with self._lock:
                    self._told = [*((kind, one) for one in recipes), *self._told][:_MOST_HELD]

    def _models_of(self, one: Rebuild) -> tuple[ModelName, ...]:
        """Return the models for whose programs an entry was rebuilt: of its own, those that meet what it is for."""
        if self._wish.is_elsewhere:
            return one.entry.models
        present = self._context.present
        return tuple(name for name in one.entry.models if one.to in present.seen_by(name).environments)

    def _refused(self, one: Rebuild, words: str) -> None:
        entry = one.entry.entry
        log.warning("an entry could not be rebuilt: %s: %s", entry.id.key, words)
        context, into = self._context, self._scope.into_of(entry.id.store.kind)
        try:
            if self._lineages is None:
                # What a replay compiles was there before it.
                self._lineages = table.lineages(context.catalog.read(recipe_lineages))
            lineage = self._lineages[entry.id.store.kind](entry.id.key)
            if lineage is not None:
                context.catalog.write(
                    record_refusal,
                    Store(entry.id.store.kind, into) if into is not None else entry.id.store,
                    lineage,
                    one.to.fingerprint,
                    driver_for(one, self._drivers).stamp,
                    words,
                    context.clock(),
                )
        except XpucachedError as error:
            # The next replay tries the entry again.
            log.warning("it could not be noted that an entry was refused: %s: %s", entry.id.key, error)


async def forget_old(context: Context) -> None:
    """Forget what was compiled, or refused, long ago, unless the clock was set; the next replay does it, too."""
    now = context.clock()
    try:
        if context.trusts_the_clock():
            await context.write(forget_old_builds, now)
    except CatalogError as error:
        log.warning("old builds could not be forgotten: %s", error.message)
