"""Directories of models, where compilers cache that are no kind of ours: counted, and removed with their model."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from xpucached import deadlines, mounts
from xpucached.catalog.events import removed_models
from xpucached.catalog.models import all_models
from xpucached.catalog.stores import all_stores
from xpucached.domain.names import ModelName
from xpucached.domain.plans import CacheReason, DiskSpace, EvictReason
from xpucached.domain.stores import EntryId, ModelCache, Store, StoreOrigin, StoreState, StoreStatus
from xpucached.domain.trash import TrashLabel
from xpucached.host import directory_users
from xpucached.kinds import model_caches
from xpucached.kinds.model_caches import KIND, LONGEST, TRASH, Measured, measure
from xpucached.kinds.removal import GONE
from xpucached.service import program_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from xpucached.domain.models import Model
    from xpucached.domain.names import EntryRef
    from xpucached.domain.plans import EvictCache
    from xpucached.service.context import Context

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_ALL: Final = 60.0
"""Seconds in which the directories of one look are counted; each may take half of what is left …"""
_LEAST: Final = 0.05
"""… and so long in any case: one that holds little is counted whole, whatever others hold."""
_MOST: Final = 1000
"""Directories that are none of a registered model's and are looked at: whoever writes there may make any number …"""
_NAMES: Final = 1_000_000
"""… and of so many names."""
_LOOK: Final = 30.0
"""Seconds for all programs of the host to be looked at."""
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class ModelCaches:
    """Counts them, and takes them out.  Its methods block, but for `all`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def store(self) -> Store:
        """Where our own lie, one for each model; what was taken out is in its trash."""
        return Store(KIND, _real(self._context.settings.paths.cache / "models"))

    async def all(self) -> tuple[ModelCache, ...]:
        """Return the directories of all models, and ours of models that are gone."""
        return await asyncio.to_thread(self._all)

    def _all(self) -> tuple[ModelCache, ...]:
        models = self._context.catalog.read(all_models)
        names = {model.name for model in models}
        look = self._begin(models)
        gone = [self._own(name, look, registered=False) for name in self._folders(look, lambda name: name not in names)]
        return (*(one for model in models for one in self._of(model, look)), *gone)

    def of(self, model: Model) -> tuple[ModelCache, ...]:
        """Return the directories of one model: ours if it is there, and those that are named."""
        return self._of(model, self._begin((model, *self._context.catalog.read(all_models))))

    def _of(self, model: Model, look: _CacheLook) -> tuple[ModelCache, ...]:
        own = look.store.root / model.name
        found = [self._own(model.name, look)] if model.name in look.there else []
        for name, path in dict.fromkeys(program_variables.caches(self._context.settings, model)):
            real = _real(path) if name else own
            if own not in (real, *real.parents) and real not in (one.path for one in found):
                found.append(self._measured(model.name, real, name, look))
        return tuple(found)

    def _own(self, name: str, look: _CacheLook, *, registered: bool = True) -> ModelCache:
        model, path = ModelName(name), look.store.root / name
        return replace(self._measured(model, path, "", look), registered=registered)

    def _folders(self, look: _CacheLook, wanted: Callable[[str], bool]) -> Sequence[str]:
        """Return the names of the directories where ours lie that are wanted, the first ones of too many."""
        root = look.store.root

        def names() -> list[str]:
            with os.scandir(root) as found:
                some = (one for one in itertools.islice(found, _NAMES) if one.name[0] != "." and wanted(one.name))
                return heapq.nsmallest(_MOST + 1, (one.name for one in some if one.is_dir(follow_symlinks=False)))

        found = _answered(root, names, list[str]())
        if len(found) > _MOST:
            log.warning("%s holds more directories of no model than %d: others stay uncounted", root, _MOST)
        return found[:_MOST]

    def removed(self) -> Mapping[ModelName, datetime]:
        """Return which models were removed here, and when; and what a daemon was removing as it was killed."""
        halves = map(ModelName, self._folders(self._begin(()), lambda name: name.endswith(GONE)))
        return {**self._context.catalog.read(removed_models), **dict.fromkeys(halves, _LONG_AGO)}

    def _measured(self, model: ModelName, path: Path, named: str, look: _CacheLook) -> ModelCache:
        seconds = look.seconds()
        try:
            found = deadlines.ask(path, lambda: measure(path, seconds), seconds + deadlines.SECONDS)
        except TimeoutError as error:
            found = Measured(StoreState.UNREADABLE, note=error.strerror or "")
        ref = EntryId(look.store, model_caches.key_of(look.store.root, path)).ref
        counted = found.state, found.owner, found.files, found.allocated, found.used, found.note
        return ModelCache(model, path, named, ref, *counted, shared=look.others(model, path))

    def _begin(self, models: Sequence[Model]) -> _CacheLook:
        named: defaultdict[Path, set[ModelName]] = defaultdict(set)
        for model in models:
            for name, path in program_variables.caches(self._context.settings, model):
                if name:
                    named[_real(path)].add(model.name)
        store = self.store

        def there() -> frozenset[ModelName]:
            return frozenset(model.name for model in models if os.path.lexists(store.root / model.name))

        return _CacheLook(named, store, _answered(store.root, there, frozenset()))

    # -- out, and into the trash --------------------------------------------------------------------------------------

    def remove(self, model: Model, *, named: bool = False) -> tuple[ModelCache, ...]:
        """Take the directories of a model out that was removed; those that others name or use stay, with the reason.

        ``named`` says that those go, too, which are not ours and no other model uses.
        """
        return tuple(
            one if one.stays else replace(one, stays=self._take(one, EvictReason.ASKED, f"{model.name} was removed"))
            for one in self.would_remove(model, named=named)
        )

    def would_remove(self, model: Model, *, named: bool = False) -> tuple[ModelCache, ...]:
        """Return the directories of a model, those that would stay with the reason; see `remove`."""
        some = self.of(model)
        in_use = _used({one.path for one in some})
        return tuple(replace(one, stays=self._stays(one, model, in_use, named=named)) for one in some)

    def _stays(self, one: ModelCache, model: Model, in_use: Mapping[Path, str], *, named: bool) -> str:
        if one.state is StoreState.MISSING:
            return "it is not there"
        if one.state is not StoreState.OK:
            return one.note or f"it is {one.state}"
        if one.shared:
            return f"{', '.join(one.shared[:_NAMED])}{' …' if len(one.shared) > _NAMED else ''} uses it, too"
        if one.named and not named:
            return f"{one.named} names it"
        if one.path in in_use:
            return in_use[one.path]
        return self._held_by(one.path, model) if one.named else ""

    def evict(self, going: Iterable[EvictCache]) -> tuple[ModelCache, ...]:
        """Take directories of ours out as the policy says; those that a program uses stay, with the reason."""
        some = tuple(going)
        in_use = _used({one.cache.path for one in some})
        found = []
        for one in some:
            path = one.cache.path
            reason = EvictReason.SPACE if one.reason is CacheReason.SPACE else EvictReason.BUDGET
            reason = EvictReason.UNUSED if one.reason is CacheReason.GONE else reason
            stays = in_use[path] if path in in_use else self._take(one.cache, reason, one.detail, one.cache.used)
            found.append(replace(one.cache, stays=stays))
        return tuple(found)

    def _take(self, one: ModelCache, reason: EvictReason, detail: str, used: datetime | None = None) -> str:
        """Take a directory out, unless it was ``used`` since then; give why it stays, if it does."""
        # What has to make room on the disk makes none in the trash.
        keep = self.keeps and reason is not EvictReason.SPACE
        note = TrashLabel(self._context.clock(), reason, detail) if keep else None
        try:
            model_caches.take(self.store.root, one.path, note, used)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    @property
    def keeps(self) -> bool:
        """Whether what is taken out goes into the trash."""
        return self._context.settings.policy.trash_keep > 0

    def too_large(self, some: Sequence[ModelCache]) -> tuple[EntryRef, ...]:
        """Return which of these directories, as they went one after the other, are more than the trash keeps."""
        room = self._context.settings.policy.trash_max_bytes
        found: list[EntryRef] = []
        for one in reversed([one for one in some if self.keeps and not one.stays]):
            # The oldest leaves it first.
            room -= one.allocated
            found += [one.ref] if room < 0 else []
        return tuple(reversed(found))

    def _held_by(self, path: Path, removed: Model) -> str:
        """Return why a directory that somebody named is none that could go as a whole; empty if it could."""
        paths, catalog = self._context.settings.paths, self._context.catalog
        ours = (paths.cache, paths.state, paths.models, *(one.store for one in catalog.read(all_stores)))
        models = (removed, *catalog.read(all_models))
        others = (
            Path.home(),
            *(one for model in models for one in (model.workload.directory, Path(model.workload.program))),
        )
        for place in (*ours, *others):
            real = _real(place)
            if path in (real, *real.parents):
                return f"more than a cache lies there: {place}"
            if place in ours and real in path.parents:
                return f"it is a part of {place}"
        return ""

    # -- how it looks elsewhere ---------------------------------------------------------------------------------------

    def disk_space(self) -> DiskSpace | None:
        """Tell how much room there is where ours lie, and what the trash there takes; None if there are none."""
        store = self.store

        def look() -> DiskSpace:
            there, room = store.root.stat(), os.statvfs(store.root)
            free = room.f_bavail * room.f_frsize
            times = not room.f_flag & os.ST_NOATIME
            return DiskSpace(store, there.st_uid, there.st_dev, free, TRASH.trash_size(store), keeps_access_times=times)

        try:
            return deadlines.ask(store.root, look, _ALL)
        except OSError:
            return None


_NAMED: Final = 5
"""Of models that share a directory so many are named."""


class _CacheLook:
    """Which models named which directories, where ours lie, and how long it may take to count what they hold."""

    def __init__(self, named: Mapping[Path, set[ModelName]], store: Store, there: frozenset[ModelName]) -> None:
        """``there`` are the models that have a directory of ours."""
        self.store = store
        self.there = there
        self._until = time.monotonic() + _ALL
        self._at = named
        self._below: defaultdict[Path, set[ModelName]] = defaultdict(set)
        for path, models in named.items():
            for above in path.parents:
                self._below[above] |= models

    def seconds(self) -> float:
        """Return how long the next directory may be counted."""
        return min(LONGEST, max((self._until - time.monotonic()) / 2, _LEAST))

    def others(self, model: ModelName, path: Path) -> tuple[ModelName, ...]:
        """Return the other models that named a directory, or something above or below it."""
        found = self._below.get(path, set[ModelName]()).union(*(self._at.get(one, ()) for one in (path, *path.parents)))
        return tuple(sorted(found - {model}))


def _answered(root: Path, question: Callable[[], _T], otherwise: _T) -> _T:
    """Return what a question about a directory gives; something else where it is not there, or does not answer."""
    try:
        return deadlines.ask(root, question)
    except OSError:
        return otherwise


def _used(places: Collection[Path]) -> Mapping[Path, str]:
    """Return why directories stay that a program uses: all of them, where it cannot be seen now which do."""
    try:
        # A program may have the kernel wait for it where its memory is read: then nobody knows.
        found = deadlines.ask("who uses directories", lambda: directory_users.users(places), _LOOK)
        return {place: f"{user} uses it" for place, user in found.items()}
    except OSError as error:
        return dict.fromkeys(places, f"it cannot be seen now whether a program uses it: {error.strerror}")


def _real(path: Path) -> Path:
    try:
        return deadlines.ask(path, lambda: Path(mounts.real(path)))
    except (OSError, ValueError):
        return Path(os.path.abspath(path))  # noqa: PTH100 - a text, and nothing is asked


def as_store(one: ModelCache, at: datetime) -> StoreStatus:
    """Return a directory as it stands beside stores."""
    return StoreStatus(
        KIND,
        one.path,
        StoreOrigin.CONFIGURED if one.named else StoreOrigin.MANAGED,
        f"model {one.model}{f', {one.named}' if one.named else ''}",
        one.state,
        one.owner,
        0,
        0,
        0,
        one.allocated,
        one.allocated,
        0,
        at,
        (one.note,) if one.note else (),
        cache=one,
    )
