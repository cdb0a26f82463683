"""Surveying: what this machine offers to programs, by each driver that models' own variables lead to."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from xpucached import deadlines
from xpucached.catalog.models import all_models
from xpucached.catalog.runs import newest_libraries
from xpucached.catalog.surveys import record_survey
from xpucached.domain.host import DriverInUse, Problem, digest_of_variables
from xpucached.errors import HostError
from xpucached.host import gpu_devices, survey
from xpucached.host.drivers import driver_files, stamp
from xpucached.kinds.table import KINDS, MODELS, with_targets
from xpucached.kinds.variables import LEADING
from xpucached.planning import verdict
from xpucached.processes import driver_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from xpucached.domain.host import DriverFile, Host
    from xpucached.domain.libraries import Libraries, SyclRuntime
    from xpucached.domain.models import Model
    from xpucached.domain.names import ModelName
    from xpucached.domain.targets import Target
    from xpucached.service.context import Context

_FINDING: Final = 30.0
"""Seconds that it may take to find a program's runtimes: libraries of some hundred megabytes are read."""

_UNSETTLED: Final = 15.0
"""While a package manager replaces a driver there is none for some seconds.  So long a device whose driver does not
answer is still taken for there: its models must not be run without it."""

_OWN: Final = ""
"""Stands where a `DriverInUse.id` does, for the host's own driver."""

_LOADERS: Final = ("libOpenCL.so.1", "libze_loader.so.1")

_LEVEL_ZERO: Final = "libze_intel_gpu"

_AGAIN: Final = "it stays as it was known, and is looked at again in a few seconds"

_SEEN: Final = 20
"""Newest runs of a model of which one may tell which driver its processes had mapped."""


class _Led(Struct, frozen=True):
    """Models, and the driver to which the same variables lead them."""

    variables: Mapping[str, str]
    files: tuple[DriverFile, ...]
    models: tuple[ModelName, ...]
    problems: tuple[Problem, ...] = ()
    silent: bool = False  #: its files do not answer, so it is not asked


class Surveyor:
    """Asks drivers, and remembers what they said."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._surveying = asyncio.Lock()
        self._answered: dict[str, tuple[frozenset[tuple[object, ...]], bool]] = {}  # what each met, if it answered
        self._missing: dict[str, float] = {}  # by driver: since when a device of it is missing
        self._watched: tuple[Mapping[str, str], ...] = ()

    @property
    def unsettled(self) -> float | None:
        """The seconds after which to look again, if a driver that was there does not answer."""
        return _UNSETTLED if self._missing else None

    async def devices(self) -> Host:
        """Return what the last survey found."""
        if self._context.host is None:
            raise HostError("the host has not been looked at yet", hint="ask again in a few seconds")
        return self._context.host

    async def look_again(self) -> None:
        """Look again at the host, soon; see `requests.Refresh`."""
        # Files that are no driver's decide, too, whether one can be loaded: so the driver is asked, changed or not.
        self._answered.clear()
        self._context.on_look()

    def watched(self) -> tuple[Mapping[str, str], ...]:
        """Return the variables that lead to each driver in use: where changes of drivers are to be watched for."""
        self._watched = self._variables()
        return self._watched

    async def meet_drivers(self) -> None:
        """Ask drivers that nobody has asked yet: a model's own variables may lead to one."""
        if self._context.host is not None:
            await self.survey()
            if self._variables() != self._watched:
                await self._context.on_scan()

    def _variables(self) -> tuple[Mapping[str, str], ...]:
        """Return the variables that lead to each driver in use, the host's own first."""
        common = self._common()
        return (common, *({**common, **one.variables} for one in self._context.present.drivers))

    def _common(self) -> Mapping[str, str]:
        """Return the variables that all programs on this host have."""
        return {**self._context.base, **self._context.settings.driver.variables}

    async def survey(self, *, force: bool = False, retry: bool = True) -> None:
        """Look at the host; ask a driver only if what it depends on changed since it last answered.

        With ``force`` it is asked in any case.  Without ``retry`` one that did not answer is left to the next look:
        one that hangs would hold up whoever wants to know between two looks, each time until it is given up.
        """
        try:
            async with self._surveying:
                before = self._answered.copy()
                try:
                    await self._survey(force=force, retry=retry)
                except BaseException:
                    # What was answered now nobody knows: it is asked for once more.
                    self._answered = {id_: said for id_, said in self._answered.items() if before.get(id_) is said}
                    raise
        except OSError as error:
            # What cannot be looked at is not gone, and the driver no other one.
            raise HostError(f"the driver's files cannot be looked at: {error.strerror}", hint=_AGAIN) from error

    async def _survey(self, *, force: bool, retry: bool) -> None:
        settings, old, now = self._context.settings, self._context.host, self._context.clock()
        # The drivers are asked with our own variables below these, so the files are those that they name together.
        files = await asyncio.to_thread(self._own_files)
        before = old.seen_with(None) if old is not None else None
        found = await self._survey_driver(_OWN, settings.driver.variables, files, before, force=force, retry=retry)
        led = await asyncio.to_thread(self._led, files)
        known = {one.id: one for one in old.drivers} if old is not None else {}
        drivers: list[DriverInUse] = []
        for one in led:
            driver = DriverInUse(one.variables, one.models, stamp(one.files, gpu_devices.kernel()))
            before = old.seen_with(known[driver.id]) if old is not None and driver.id in known else None
            if one.silent:
                # What is known of it stays: it may be there again in a moment, as it was.
                last = next((was for was in (old.drivers if old else ()) if {*one.models} & {*was.models}), driver)
                drivers.append(replace(last, models=one.models, problems=one.problems))
                continue
            variables = {**settings.driver.variables, **one.variables}
            seen = await self._survey_driver(driver.id, variables, one.files, before, force=force, retry=retry)
            met = seen.stamp, seen.devices, seen.driver, seen.environments
            drivers.append(DriverInUse(one.variables, one.models, *met, (*one.problems, *_said(seen))))
        for id_ in (self._answered.keys() | self._missing.keys()) - {_OWN, *(one.id for one in drivers)}:
            self._answered.pop(id_, None)
            self._missing.pop(id_, None)
        found = replace(found, drivers=tuple(drivers))
        if found == old:
            return
        # Whichever driver was asked, and if none was: it is now that things are found to be so.
        found = replace(found, surveyed=now)
        await self._context.write(record_survey, found)
        self._context.host = found
        if old is not None:
            self._tell(old, found)

    async def _survey_driver(
        self,
        id_: str,
        variables: Mapping[str, str],
        files: tuple[DriverFile, ...],
        old: Host | None,
        *,
        force: bool,
        retry: bool,
    ) -> Host:
        """Return what programs with these variables meet; what was known, if nothing of it changed."""
        given = digest_of_variables(self._context.steering)
        same = (
            old is not None
            and old.variables == given
            and old.stamp == stamp(files, gpu_devices.kernel())
            and old.boot == gpu_devices.boot_id()
        )
        reach = survey.reach(await asyncio.to_thread(gpu_devices.gpus))
        last = self._answered.get(id_)
        known = last is not None and last[0] == reach and (last[1] or not retry)
        if old is not None and same and known and not force:
            return old
        now = self._context.clock()
        report = await asyncio.to_thread(driver_probe.ask, variables, self._context.settings.driver.probe_timeout)
        found = await asyncio.to_thread(lambda: with_targets(survey.survey(report, variables, now, files=files)))
        found = replace(found, variables=given)
        failed = any(problem.code.startswith("probe-") for problem in report.problems)
        alike = old is not None and (old.stamp, old.variables) == (found.stamp, given)
        if failed and old is not None and alike and not found.answers:
            # The driver is the one that answered before, so it is what programs meet; only the asking failed.
            found = replace(found, devices=old.devices, environments=old.environments)
        elif old is not None and self._in_transit(id_, old, found):
            found = replace(found, devices=old.devices, environments=old.environments)
        # One that is there and offers nothing may lack a library, which comes without a change of its files.
        self._answered[id_] = reach, not (failed or id_ in self._missing or (_driver(files) and not found.environments))
        return found

    def _in_transit(self, id_: str, old: Host, found: Host) -> bool:
        """Return whether a device is still there but its driver does not answer, for the moment."""
        lineages = {one.lineage for one in found.environments}
        same_cards = {one.pci_address for one in old.devices} >= {one.pci_address for one in found.devices}
        missing = any(one.lineage not in lineages for one in old.environments)
        if not (missing and same_cards) or old.boot != found.boot:
            self._missing.pop(id_, None)
            return False
        now = time.monotonic()
        if now - self._missing.setdefault(id_, now) < _UNSETTLED:
            return True
        del self._missing[id_]
        return False

    def reached(self, model: Model) -> frozenset[Path]:
        """Return the files of the driver to which a model's variables lead, whatever its processes load.  Blocks."""
        named = {**self._common(), **model.workload.variables}
        leading = {name: named[name] for name in LEADING if named.get(name)}
        try:
            files = deadlines.ask(
                ("driver", model.workload.program, *sorted(leading.items())),
                lambda: driver_files({**named, **leading, **_beside(model, leading)}),
            )
        except OSError:
            return frozenset()
        return frozenset(file.target for file in files)

    def _own_files(self) -> tuple[DriverFile, ...]:
        """Return the files of the host's own driver.  Raises `HostError` if they do not answer."""
        variables = self._common()
        try:
            return deadlines.ask("driver", lambda: driver_files(variables))
        except TimeoutError as error:
            raise HostError(
                "a file system on which the driver is looked for does not answer",
                hint="see what LD_LIBRARY_PATH, OCL_ICD_FILENAMES and the like name, and: findmnt",
            ) from error

    # -- which driver is whose ----------------------------------------------------------------------------------------

    def _led(self, own: tuple[DriverFile, ...]) -> tuple[_Led, ...]:
        """Return the drivers that models are led to by variables of their own, each once."""
        common = self._common()
        usual = {name: common[name] for name in LEADING if name in common}
        by_variables: dict[tuple[tuple[str, str], ...], tuple[DriverFile, ...]] = {}
        found: dict[object, _Led] = {}
        looked: dict[object, tuple[Mapping[str, str], tuple[DriverFile, ...], tuple[Problem, ...]]] = {}

        def files(leading: Mapping[str, str]) -> tuple[DriverFile, ...]:
            text = tuple(sorted(leading.items()))
            if text not in by_variables:
                by_variables[text] = own if leading == usual else driver_files({**common, **leading})
            return by_variables[text]

        models = self._context.catalog.read(all_models)
        seen = self._context.catalog.read(newest_libraries, models, _SEEN)
        met = {name for one in self._context.present.drivers for name in one.models}
        for model in models:
            named = {**common, **model.workload.variables}
            leading: Mapping[str, str] = {name: named[name] for name in LEADING if named.get(name)}
            libraries = seen[model.name]

            # Thousands of models may be of one program: it is looked at once.
            alike = (model.workload.program, *sorted(leading.items()), libraries)
            try:
                if alike not in looked:
                    # Where one does not answer, none of them is asked again.
                    looked[alike] = deadlines.ask(
                        ("driver", *alike[:-1]), functools.partial(_looked, model, leading, libraries, files)
                    )
                leading, these, absent = looked[alike]
            except OSError:
                if leading != usual or model.name in met:
                    found[model.name] = _Led(leading, (), (model.name,), (_silent(model.name),), silent=True)
                continue
            driver, loaders = _driver(these), _loaders(these)
            if driver == _driver(own) and (loaders <= _loaders(own) or (not driver and not absent) or leading == usual):
                continue
            key = (driver, loaders, absent)
            if key in found:
                found[key] = replace(found[key], models=(*found[key].models, model.name))
            else:
                found[key] = _Led(leading, these, (model.name,), absent)
        return tuple(found.values())

    def _tell(self, old: Host, found: Host) -> None:
        """Say which drivers are others now than they were."""
        known = {one.id: one.environments for one in old.drivers}
        changed: list[tuple[Sequence[Target], Sequence[Target], Sequence[ModelName]]]
        changed = [(old.environments, found.environments, ())]
        changed += [(known[one.id], one.environments, one.models) for one in found.drivers if one.id in known]
        for before, after, models in changed:
            came = _words([one for one in after if one not in before])
            went = _words([one for one in before if one not in after])
            if came or went:
                whom = f" (for {verdict.names(models)})" if models else ""
                self._context.events.post(
                    "driver-changed",
                    f"now: {came or 'nothing'}; before: {went or 'nothing'}{whom}",
                    {"appeared": came or "nothing", "vanished": went or "nothing", "models": ", ".join(models)},
                )


def runtimes_of(model: Model, variables: Mapping[str, str]) -> tuple[SyclRuntime, ...]:
    """Return the runtimes that a model's program finds.  Blocks; raises `TimeoutError` if its files are silent."""
    program, preflight = model.workload.program, KINDS[MODELS].preflight
    if not program or preflight is None:
        return ()
    place = "runtimes", program, *sorted(variables.items())
    return deadlines.ask(place, lambda: preflight.runtimes(Path(program), variables), _FINDING)


def _words(some: Sequence[Target]) -> str:
    return ", ".join(f"{one.device}, driver {one.toolchain}" for one in some)


def _driver(files: Iterable[DriverFile]) -> frozenset[object]:
    """Return what tells one driver from another: its files, without the loaders, which are the same everywhere."""
    others = [file for file in files if file.path.name not in _LOADERS]
    return frozenset((one.target, one.size, one.modified, one.build_id) for one in others)


def _loaders(files: Iterable[DriverFile]) -> frozenset[str]:
    return frozenset(file.path.name for file in files) & frozenset(_LOADERS)


def _said(seen: Host) -> Iterator[Problem]:
    return (one for one in seen.problems if one.code != "driver-missing")


def _beside(model: Model, leading: Mapping[str, str]) -> Mapping[str, str]:
    """Let the loaders be found that lie beside a model's interpreter, where its SYCL runtime looks for them last."""
    program = Path(model.workload.program)
    if not program.is_absolute() or program.parent.name != "bin":
        return {}
    library = program.parent.parent / "lib"
    try:
        if not any((library / name).is_file() for name in _LOADERS):
            return {}
    except (OSError, ValueError):
        return {}
    listed = leading.get("LD_LIBRARY_PATH", "")
    if os.fspath(library) in listed.split(":"):
        return {}
    return {"LD_LIBRARY_PATH": ":".join(filter(None, [listed, os.fspath(library)]))}


def _mapped(libraries: Libraries | None, leading: Mapping[str, str]) -> Mapping[str, str]:
    """Lead to the drivers that a model's processes were seen to load although no variable of it names them.

    A program may set variables itself, or have its driver in its own search path.
    """
    further = libraries.further if libraries is not None else ()
    # Pathlib's question may raise, and then nobody's driver would be seen.
    there = [path for path in further if os.path.isfile(path)]  # noqa: PTH113
    opencl = [os.fspath(path) for path in there if not path.name.startswith(_LEVEL_ZERO)]
    level_zero = [os.fspath(path) for path in there if path.name.startswith(_LEVEL_ZERO)]
    found: dict[str, str] = {}
    if opencl:
        found["OCL_ICD_FILENAMES"] = ":".join(filter(None, [*opencl, leading.get("OCL_ICD_FILENAMES", "")]))
    if level_zero:
        found["ZE_ENABLE_ALT_DRIVERS"] = ",".join(level_zero)
    return found


def _looked(
    model: Model,
    leading: Mapping[str, str],
    libraries: Libraries | None,
    files: Callable[[Mapping[str, str]], tuple[DriverFile, ...]],
) -> tuple[Mapping[str, str], tuple[DriverFile, ...], tuple[Problem, ...]]:
    """Return what leads a model to a driver, that driver's files, and what is named and is not there."""
    leading = {**leading, **_beside(model, leading)}
    leading = {**leading, **_mapped(libraries, leading)}
    return leading, files(leading), _absent(leading)


def _silent(name: ModelName) -> Problem:
    """Say that the files of the driver to which a model is led cannot be looked at."""
    hint = "other models are not affected; it is looked at again when they answer"
    return Problem("driver-missing", "the files of the driver to which it is led do not answer", hint, name)


def _absent(leading: Mapping[str, str]) -> tuple[Problem, ...]:
    """Name what variables name and is not there."""
    found: list[Problem] = []
    for name in LEADING:
        for path in re.split("[:,]", leading.get(name, "")) if name != "LD_LIBRARY_PATH" else ():
            if path.startswith("/") and not os.path.exists(path):  # noqa: PTH110 - pathlib's question may raise
                message = f"{name} names {path}, which is not there"
                hint = "correct the models' variables, or install that driver again"
                found.append(Problem("driver-missing", message, hint, path))
    return tuple(found)
