"""Advice: which runtimes the cache may be switched on with, why a model is cold or slow, what is usual for it."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.catalog.entries import all_entries, unclaimed_entries
from xpucached.catalog.models import all_models, find_model
from xpucached.catalog.runs import KEPT, newest_libraries, newest_runs
from xpucached.catalog.runtimes import known_runtime_checks, record_runtime_check
from xpucached.domain.diagnosis import Application, Safety
from xpucached.domain.host import Problem
from xpucached.domain.models import Outcome, Warmth
from xpucached.errors import CatalogError
from xpucached.host import process_table
from xpucached.kinds.table import KINDS, MODELS, built_from, libraries
from xpucached.kinds.variables import SELECTING
from xpucached.planning import diagnosis, verdict
from xpucached.planning.baselines import baselines
from xpucached.planning.diagnosis import trusted
from xpucached.planning.shifts import shifts
from xpucached.processes.cancellation import to_its_end
from xpucached.service import program_variables
from xpucached.service.store_finder import make
from xpucached.service.survey import runtimes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xpucached.domain.diagnosis import Baseline, Diagnosis, RuntimeCheck
    from xpucached.domain.libraries import Libraries, SyclRuntime
    from xpucached.domain.models import Model, ModelStatus
    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import IndexedEntry
    from xpucached.domain.stores import FoundStore, Store
    from xpucached.service.context import Context
    from xpucached.service.prewarm import Prewarmer
    from xpucached.service.store_finder import StoreFinder

log = logging.getLogger(__name__)

_HISTORY: Final = 60
"""Runs that figures are compared over."""


class Explainer:
    """Finds out and explains."""

    def __init__(self, context: Context, finder: StoreFinder, prewarmer: Prewarmer) -> None:
        self._context = context
        self._finder = finder
        self._prewarmer = prewarmer
        self._checking = asyncio.Lock()
        self._reading = asyncio.Lock()
        """Held by who reads all entries: anybody who may look may ask for it, often at once, and hang up."""
        self._unknown: dict[tuple[str, str], RuntimeCheck] = {}
        self._mapped: dict[ModelName, tuple[str, ...]] = {}
        self._known: dict[str, RuntimeCheck] = {}

    async def look(self) -> None:
        """See that every runtime was checked once that a model's runs had mapped, or that its program finds."""
        failed: Exception | None = None
        models = await self._context.read(all_models)
        seen = await self._context.read(newest_libraries, models, _HISTORY)
        self._mapped = {name: builds for name, builds in self._mapped.items() if name in seen}
        looked: set[object] = set()
        for model in models:
            signature = self._context.present.seen_by(model.name).signature
            variables = sorted(model.workload.variables.items())
            # Thousands of models may be of one program: it is looked at once.
            alike = (model.workload.program, signature, seen[model.name], *variables)
            if alike in looked:
                self._note(model, seen[model.name])
                await asyncio.sleep(0)  # others are answered meanwhile
                continue
            looked.add(alike)
            try:
                await self._checked(model, seen[model.name])
            except Exception as error:  # noqa: BLE001 - raised below: one model must not hide the others
                failed = failed or error
        if failed is not None:
            raise failed

    def problems(self, models: Iterable[ModelStatus]) -> tuple[Problem, ...]:
        """Return which runtimes are known to be unsafe, of those that runs of these models had mapped."""
        unsafe: dict[str, tuple[RuntimeCheck, list[ModelStatus]]] = {}
        for status in models:
            for build in self._mapped_by(status):
                one = self._known.get(build)
                if one is not None and one.safety is Safety.UNSAFE:
                    unsafe.setdefault(build, (one, []))[1].append(status)
        return tuple(_unsafe(one, some) for one, some in unsafe.values())

    def _mapped_by(self, status: ModelStatus) -> tuple[str, ...]:
        newest = diagnosis.mapped(status.model, [status.run] if status.run is not None else ())
        return self._mapped.get(status.model.name, ()) if newest is None else tuple(one.build for one in newest)

    async def runtimes(self, model: Model) -> tuple[RuntimeCheck, ...]:
        """Return what is known of a model's runtimes; find it out, if nobody has yet.

        Those count that its runs had mapped; as long as none was seen, those that its program finds.
        """
        seen = await self._context.read(newest_libraries, (model,), _HISTORY)
        return await self._checked(model, seen[model.name])

    def _note(self, model: Model, seen: Libraries | None) -> None:
        self._mapped[model.name] = tuple(one.build for one in seen.runtimes) if seen is not None else ()

    async def _checked(self, model: Model, seen: Libraries | None) -> tuple[RuntimeCheck, ...]:
        variables = {**self._context.settings.driver.variables, **model.workload.variables}
        signature = self._context.present.seen_by(model.name).signature
        found = seen.runtimes if seen is not None else None
        if found is None:
            try:
                found = await asyncio.to_thread(runtimes_of, model, variables)
            except TimeoutError:
                return ()
        # One after the other: two models with one runtime need one check.
        async with self._checking:
            known = await self._context.read(known_runtime_checks, [one.build for one in found])
            runtime_checks = tuple(
                [known.get(one.build) or await self._runtime_check(one, variables, signature) for one in found]
            )
        self._known |= {one.build: one for one in runtime_checks}
        self._note(model, seen)
        # What is known of a build holds wherever it lies.
        return tuple(replace(check, library=one.library) for check, one in zip(runtime_checks, found, strict=True))

    async def _runtime_check(self, runtime: SyclRuntime, variables: Mapping[str, str], signature: str) -> RuntimeCheck:
        # Without a device nothing can be built, so what is not known now may be known with the next driver.
        key = (runtime.build, signature)
        if key in self._unknown:
            return self._unknown[key]
        preflight = KINDS[MODELS].preflight
        if preflight is None:
            raise ValueError(f"nobody can check {runtime.library}")
        done = await asyncio.to_thread(preflight.check, runtime, variables, self._context.clock())
        if done.safety is Safety.UNKNOWN:
            self._unknown[key] = done
        else:
            try:
                await self._context.write(record_runtime_check, done)
            except CatalogError as error:
                # It holds for as long as we live.
                self._unknown[key] = done
                log.warning("the check of a runtime could not be written down: %s", error.message)
        self._context.events.post(
            "runtime-checked",
            f"{done.library}: {done.safety}: {done.evidence}",
            {"library": str(done.library), "safety": done.safety},
        )
        return done

    async def beyond(self, status: ModelStatus) -> str:
        """Return what was compiled in a model's store since its proof, by no model's run; see `diagnosis.beyond`."""
        found = await asyncio.to_thread(self._finder.store_of, status.model)
        async with self._reading:
            return await self._beyond(status, found.store)

    async def _beyond(self, status: ModelStatus, store: Store, entries: Sequence[IndexedEntry] | None = None) -> str:
        run = status.run
        if status.warmth is not Warmth.WARM or run is None or run.finished is None:
            return ""
        read = self._context.catalog.read
        unclaimed = await to_its_end(read, unclaimed_entries, store, run.finished)
        if unclaimed and entries is None:
            entries = await to_its_end(read, all_entries)
        return diagnosis.beyond(status, unclaimed, entries or ())

    async def diagnose(self, name: ModelName) -> Diagnosis:
        """Return why a model is cold or slow, and what mends it."""
        status = await self._prewarmer.status_of(name)
        model = status.model
        found = await asyncio.to_thread(self._finder.store_of, model)
        kinds = {one.kind for one in status.layers} & KINDS.keys() - {found.store.kind}
        discovery = KINDS[found.store.kind].discovery

        def look() -> tuple[Application, ...] | None:
            kept = (None, *(self._finder.managed(name).store for name in sorted(kinds)))
            try:
                seen = process_table.of_units(model.before, libraries())
            except OSError as error:
                log.warning("there was no room to look at the programs of %s: %s", model.name, error)
                return None
            return tuple(
                Application(
                    unit,
                    one.pid,
                    one.uid,
                    bool(one.variables),
                    where.enabled(one),
                    led[0] if (led := where.locate(one)) is not None else None,
                    place,
                )
                for unit, processes in sorted(seen.items())
                for one in processes
                # The helpers of a unit load no runtime; one that we may not look into could be anything.
                if one.libraries or not one.variables
                for place in (kept if one.variables else kept[:1])
                for where in (discovery if place is None else KINDS[place.kind].discovery,)
            )

        runtimes = await self.runtimes(model)
        runs = await self._context.read(newest_runs, name, _HISTORY, outputs=False)
        applications = await asyncio.to_thread(look)
        usual = await self.history(name)
        shifted = shifts(await self._context.read(newest_runs, name, KEPT, outputs=False))
        async with self._reading:
            entries = await to_its_end(self._context.catalog.read, all_entries)
            return diagnosis.diagnose(
                status,
                runtimes=runtimes,
                runs=runs,
                store=found.store.root,
                applications=applications,
                entries=entries,
                beyond=await self._beyond(status, found.store, entries),
                baselines=usual,
                shifts=shifted,
                uid=os.getuid(),
                option_variables=discovery.OPTION_VARIABLES,
                gpus=any(one.pci_address for one in self._context.present.seen_by(name).devices),
                selecting=SELECTING,
                built_from=built_from,
            )

    async def history(self, name: ModelName) -> tuple[Baseline, ...]:
        """Return a model's figures over its last runs."""
        await self._context.read(find_model, name)
        return baselines(await self._context.read(newest_runs, name, _HISTORY, outputs=False))

    async def variables(self, name: ModelName | None) -> Mapping[str, str]:
        """Give what a program needs in its environment to find what was warmed; a model's, if the cache may be on.

        That is our own cache or that of the model, where other compilers cache for it, and which driver it loads.
        """
        settings, base = self._context.settings, self._context.base
        if name is None:
            ready = await asyncio.to_thread(self._ready, await asyncio.to_thread(self._finder.managed))
            return {**program_variables.of_application(settings, None, base), **ready}
        status = await self._prewarmer.status_of(name)
        found = await asyncio.to_thread(self._finder.store_of, status.model)
        ready = await asyncio.to_thread(self._ready, found)
        own = await asyncio.to_thread(program_variables.of_application, settings, status.model, base)
        variables = {**own, **ready}
        runs = await self._context.read(newest_runs, name, _HISTORY, outputs=False)
        if trusted(status, await self.runtimes(status.model), runs):
            return variables
        return {**variables, **KINDS[found.store.kind].discovery.OFF}

    def _ready(self, found: FoundStore) -> Mapping[str, str]:
        """Return what makes a program use a store, with our stores of other kinds, which have to be there."""
        try:
            make(self._finder.run_stores(found)[1:])
        except OSError as error:
            log.warning("a store cannot be made, and programs will keep nothing there: %s", error)
        return self._finder.variables(found)


def _unsafe(check_runtime: RuntimeCheck, models: Iterable[ModelStatus]) -> Problem:
    by = {status.model.name: status for status in sorted(models, key=lambda one: one.model.name)}
    runs = {name: () if one.run is None else (one.run,) for name, one in by.items()}
    crashed = [name for name, some in runs.items() if any(one.outcome is Outcome.CRASHED for one in some)]
    ran = [name for name, one in by.items() if check_runtime.build in diagnosis.proven(one.model, runs[name])]
    untried = [name for name, one in by.items() if one.warmth is not Warmth.WARM and name not in (*crashed, *ran)]
    message = (
        f"{check_runtime.library} crashes some programs when the cache is on: {check_runtime.evidence}; used by"
        f" {verdict.names([*by])}"
    )
    if crashed:
        what = f"the cache is off for what crashed ({verdict.names(crashed)}); another runtime may mend it, seen by"
        hint = f"{what}: xpucachectl prewarm {crashed[0]}"
    elif untried:
        hint = f"whether it crashes {verdict.names(untried)} shows a run: xpucachectl prewarm {untried[0]}"
    else:
        hint = "nothing is to be done: all of these ran with it without a crash. What else uses it may crash"
    return Problem("unsafe-runtime", message, hint, str(check_runtime.library))
