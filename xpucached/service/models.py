"""Models: those of files, read again after each change, and those that somebody registers."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from typing import TYPE_CHECKING, Final

from xpucached import deadlines, state_files
from xpucached.catalog.events import MODEL_REMOVED
from xpucached.catalog.models import (
    all_models,
    differences,
    find_model,
    models_by_name,
    register_model,
    remove_model,
    sync_file_models,
)
from xpucached.domain.host import Problem
from xpucached.domain.models import REGISTERED, Added, Model, RemovedModel, Workload
from xpucached.domain.secrecy import of_problem
from xpucached.domain.throttling import Waiting
from xpucached.errors import Conflict, Unavailable
from xpucached.printing import quoted
from xpucached.processes.cancellation import to_its_end
from xpucached.service import program_variables
from xpucached.service.owners import foreign
from xpucached.settings import loading, model_files

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from xpucached.api.requests import AddModel
    from xpucached.domain.names import ModelName
    from xpucached.service.context import Context
    from xpucached.service.model_caches import ModelCaches
    from xpucached.service.store_finder import StoreFinder
    from xpucached.service.survey import Surveyor

log = logging.getLogger(__name__)

_READING = 60.0
"""Seconds that it may take to read all model files of a folder."""

_AWAY: Final = "its file is away, as in a home that is not mounted or unlocked yet"
"""What a model waits for whose home is away."""


def _account() -> str:
    """Return our user's name.  Raises `Unavailable`: without it nobody knows which of the host's models are ours."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        uid = os.getuid()
        raise Unavailable(f"nobody knows user {uid} now", hint=f"see: getent passwd {uid}; sssd or nscd") from None


def _read(
    folder: Path, user: str | None = None, *, known: bool = False
) -> tuple[tuple[Model, ...], tuple[Problem, ...]]:
    """Read the model files of a folder.  Raises `Unavailable` where they do not answer: other looks go on."""
    try:
        return deadlines.ask(
            ("models", folder), lambda: model_files.models(folder, user=user, uid=os.getuid(), known=known), _READING
        )
    except TimeoutError as error:
        raise Unavailable(f"{folder}: {error.strerror}", hint="what they said before stays; see: findmnt") from error


def _folder(model: Model) -> str:
    return os.path.dirname(model.source)  # noqa: PTH120 - "socket" is no path


def _reload() -> str:
    """Return what has this process read its configuration again."""
    return f"kill -HUP {os.getpid()}"


class ModelKeeper:
    """Keeps the catalog's models equal to those that are declared."""

    def __init__(self, context: Context, finder: StoreFinder, surveyor: Surveyor, caches: ModelCaches) -> None:
        self._context = context
        self._caches = caches
        self._finder = finder
        self._surveyor = surveyor
        self.problems: tuple[Problem, ...] = ()
        """What is wrong with model files."""

    async def load(self) -> None:
        """Read the model files again; what a damaged one said before stays, and the damage is shown."""
        if gone := await asyncio.to_thread(self._load):
            # What was cached for these stays for a while: a file may be on its way, or come back.
            await self._tell_of_removal(gone)
        await self._end_outdated()

    async def _tell_of_removal(self, names: Collection[ModelName]) -> None:
        """Say that models were removed, and have it written down at once: by that it is known what they left."""
        for name in names:
            self._context.events.post(MODEL_REMOVED, name, {"model": name})
        await self._context.events.flush()

    def _load(self) -> Collection[ModelName]:
        """Read them; give the models whose files are gone."""
        config, catalog = self._context.settings, self._context.catalog
        own = str(config.paths.models)
        known_there = any(_folder(model) == own for model in catalog.read(all_models))
        declared, problems = _read(config.paths.models, known=known_there)
        damaged = {problem.subject for problem in problems}
        if config.host_models is not None:
            theirs, more = _read(config.host_models, _account())
            # What is wrong with others' files is theirs to hear; the host's daemon says it.
            names = {model.name for model in theirs}
            declared = (*theirs, *(model for model in declared if model.name not in names))
            damaged |= {problem.subject for problem in more}
            log.debug("the host's model files have mistakes: %d", len(more))
        wanted = {model.name: model for model in declared}
        for model in catalog.read(all_models):
            if damaged & {model.source, _folder(model)}:
                wanted.setdefault(model.name, model)
        away = any(one.code == "models-away" for one in problems)
        since, now = self._context.away, self._context.clock()
        waiting = [model.name for model in wanted.values() if away and _folder(model) == own]
        self._context.away = {name: since.get(name) or Waiting(now, _AWAY) for name in waiting}
        former = {model.name for model in catalog.read(all_models)}
        taken = catalog.write(sync_file_models, tuple(wanted.values()))
        known = {model.name: model for model in catalog.read(all_models)}
        clashes = [
            Problem(
                "conflict",
                f"{model.source}: the name {model.name} is registered already",
                f"change the file, or run: xpucachectl model remove {model.name}",
                model.source,
            )
            for model in declared
            if model.name in taken and differences(known[model.name], model)
        ]
        fresh = (*problems, *clashes, *(() if self._context.settings_problems else self._outdated()))
        for problem in fresh:
            if problem not in self.problems:
                shown = of_problem(problem)
                log.warning("%s: %s: %s; status says more", shown.code, shown.subject, shown.message)
        self.problems = fresh
        self._context.settings_unread = not config.digest and (
            any(one.code == "not-reloaded" or one.subject == own for one in fresh)
            or bool(self._context.settings_problems)
        )
        if any(
            foreign(self._finder.store_of(model).store) is not None for model in declared if model.store is not None
        ):
            self._finder.find()
        return sorted(former - known.keys())

    def _outdated(self) -> tuple[Problem, ...]:
        """Say whether the configuration is another than was read; where it does not answer, what was said stays."""
        config = self._context.settings
        try:
            return deadlines.ask(
                ("configuration", config.file), lambda: (*loading.outdated(config, _reload()), *self._away())
            )
        except TimeoutError:
            return tuple(one for one in self.problems if one.code == "not-reloaded")

    def _away(self) -> tuple[Problem, ...]:
        """Say whether the configuration that was read before is away, with all that it lies in.  Blocks."""
        config = self._context.settings
        mark, folder = config.paths.state / "settings-read", config.file.parent
        try:
            if config.digest:
                if not mark.exists():
                    state_files.write(mark, b"")
            elif mark.exists() and not config.file.exists():
                if not folder.parent.is_dir():
                    message = f"{config.file} was read before, and is away: nothing is evicted by itself"
                    hint = f"if there shall be none: mkdir -p {quoted(str(folder))}"
                    return (Problem("not-reloaded", message, hint, str(config.file)),)
                mark.unlink()
        except OSError as error:
            log.debug("whether settings were read before is not known: %s", error)
        return ()

    async def add(self, request: AddModel) -> Added:
        """Register a model, or with ``replace`` or ``if_changed`` change it; what is just like that stays as it is."""
        variables = program_variables.said(self._context.settings, request.variables)
        workload = Workload(request.command, request.directory, variables, request.timeout, request.exercise)
        # Who works in a shell that `env` led to the managed store named no other one.
        store = await asyncio.to_thread(self._unless_managed, request.store)
        model = Model(request.name, workload, store, request.priority, request.pinned, before=request.before)
        await asyncio.to_thread(self._finder.refuse_foreign, model)
        added = await self._context.write_durably(
            register_model, model, replaces=request.replace, if_changed=request.if_changed
        )
        if added is not Added.SAME:
            # What runs is of the old one, and would prove nothing of this one.
            await self._end_outdated()
            await self._surveyor.meet_drivers()
            self._context.events.post("model-added", request.name, {"model": request.name})
            self._context.on_models()
        return added

    def _unless_managed(self, store: Path | None) -> Path | None:
        same = store is not None and self._finder.real_root(store) == self._finder.managed().store.root
        return None if same else store

    async def _end_outdated(self) -> frozenset[ModelName]:
        return await self._context.turns.end_outdated(await self._context.read(models_by_name))

    async def remove(self, name: ModelName, *, caches: bool = False, dry_run: bool = False) -> RemovedModel:
        """Forget a model, end its run, and take away what other compilers cached for it.

        That is what lies in a directory of ours; with ``caches`` what it named, too.  Its entries stay until the policy
        lets them go.  A dry run only says what would go.
        """
        model = await self._context.read(find_model, name)
        if model.source != REGISTERED:
            raise Conflict(f"{name} is declared in {model.source}", hint="remove that file instead")
        if dry_run:
            would = await asyncio.to_thread(self._caches.would_remove, model, named=caches)
            ended, large = self._context.turns.is_running(name), self._caches.too_large(would)
            return RemovedModel(name, ended, would, self._caches.keeps, dry_run=True, too_large=large)
        await self._context.write_durably(remove_model, name)
        await self._tell_of_removal([name])
        ended = name in await self._end_outdated()
        went = await to_its_end(self._caches.remove, model, named=caches)
        await self._surveyor.meet_drivers()
        return RemovedModel(name, ended, went, self._caches.keeps, too_large=self._caches.too_large(went))
