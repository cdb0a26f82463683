"""Decide: why a model is cold, slow, or warm in vain, and what mends it.  Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from xpucached.domain.diagnosis import Cause, Diagnosis, Explanation, Figure, Safety
from xpucached.domain.models import Outcome, WarmReason, Warmth
from xpucached.domain.stores import EntryState
from xpucached.domain.targets import OUR_WORK, Origin
from xpucached.planning.beside_cpu import compared
from xpucached.planning.compiled import compiled
from xpucached.planning.shifts import sentence
from xpucached.printing import command, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from xpucached.domain.beside_cpu import ComparedVariant
    from xpucached.domain.diagnosis import Application, Baseline, RuntimeCheck
    from xpucached.domain.libraries import SyclRuntime
    from xpucached.domain.models import Model, ModelStatus, Run
    from xpucached.domain.plans import IndexedEntry
    from xpucached.domain.shifts import Shift
    from xpucached.domain.stores import EntryId

_CAUSES: Final = {
    WarmReason.NEVER: Cause.NEVER,
    WarmReason.CHANGED: Cause.CHANGED,
    WarmReason.PROGRAM: Cause.PROGRAM,
    WarmReason.DRIVER: Cause.DRIVER,
    WarmReason.LOST: Cause.LOST,
    WarmReason.RETRY: Cause.FAILED,
    WarmReason.MANUAL: Cause.NEVER,
}

_NAMED: Final = 3

_ENDED_WELL: Final = frozenset({Outcome.WARMED, Outcome.UNPROVEN, Outcome.INVALID})
"""Whatever came of these runs, the program came to its end with the cache on."""


def diagnose(
    status: ModelStatus,
    *,
    runtimes: Sequence[RuntimeCheck] = (),
    runs: Sequence[Run] = (),
    store: Path,
    applications: Sequence[Application] | None = (),
    entries: Sequence[IndexedEntry] = (),
    beyond: str = "",
    baselines: Sequence[Baseline] = (),
    shifts: Sequence[Shift] = (),
    uid: int,
    option_variables: Sequence[str] = (),
    gpus: bool = False,
    selecting: Collection[str] = (),
    built_from: Callable[[EntryId], tuple[str, str] | None],
) -> Diagnosis:
    """Name every reason why a model is cold or slow, the one to mend first in front.

    ``store`` is where the model caches, ``applications`` are the live processes of the units that serve it (None: there
    was no room to look), ``entries`` those of all stores, ``beyond`` what `beyond` says, ``uid`` is ours, ``gpus`` says
    whether this host has any, ``selecting`` names the variables that lead programs to a device; ``option_variables``
    change with which options programs are compiled, and ``built_from`` gives what an entry was compiled from, and that
    with how it was.  First comes what keeps the model itself cold, then what keeps its application from what is warm,
    then what makes it slow all the same.
    """
    name = status.model.name
    beside = compared(status.model, status.run)
    loaded = mapped(status.model, runs) is not None
    explanations = [
        *_own(status),
        *_crashes(status, runtimes, proven(status.model, runs), loaded=loaded),
        *_outside(status.model, store, applications, uid),
        *_elsewhere(status.model, store, entries, option_variables, built_from),
        *_more(name, beyond),
        *_on_cpu(status.model, status.run, selecting, gpus=gpus),
        *_idle_gpus(status.model, status.run),
        *_not_faster(name, beside),
        *_shifted(status.model, shifts),
        *_slower(status.model, baselines),
    ]
    return Diagnosis(
        name, status.warmth, tuple(explanations), tuple(runtimes), compiled(status, entries), beside, loaded
    )


def trusted(status: ModelStatus, runtimes: Iterable[RuntimeCheck], runs: Iterable[Run] = ()) -> bool:
    """Return whether a model's application may be told to switch the cache on.

    With a runtime that crashes some programs it may once this very model was seen to run with that build of it, with
    whatever driver; and never one that was seen to crash.  ``runs`` are its last ones, newest first.
    """
    run = status.run
    if run is not None and run.outcome is Outcome.CRASHED:
        return False
    if status.warmth is Warmth.WARM:
        return True
    builds = proven(status.model, runs)
    return all(one.safety is not Safety.UNSAFE or one.build in builds for one in runtimes)


def proven(model: Model, runs: Iterable[Run]) -> frozenset[str]:
    """Return the builds of the SYCL runtime with which a model, as it is now, ran to its end with the cache on.

    A run in which it crashed ends the count: what came before may have been luck.
    """
    builds: set[str] = set()
    for run in runs:
        if run.outcome is Outcome.CRASHED:
            break
        cached = any(one.created or one.used for one in run.passes)
        same = run.workload == model.workload.digest
        if run.outcome in _ENDED_WELL and cached and same and run.libraries is not None:
            builds.update(runtime.build for runtime in run.libraries.runtimes)
    return frozenset(builds)


def mapped(model: Model, runs: Iterable[Run]) -> tuple[SyclRuntime, ...] | None:
    """Give the SYCL runtimes that a model's processes had mapped in its newest run that was seen; None if none was."""
    for run in runs:
        if run.libraries is not None and run.workload == model.workload.digest:
            return run.libraries.runtimes
    return None


def _command(*words: str) -> str:
    return command(["xpucachectl", *words])


_NAMED_CACHES: Final = "what its program keeps itself (OpenVINO in CACHE_DIR) counts if it is named, with --cache DIR"


def _own(status: ModelStatus) -> Iterable[Explanation]:
    name = status.model.name
    if status.warmth is Warmth.WARM:
        return
    run = status.run
    if status.has_no_device:
        yield Explanation(Cause.NO_DEVICE, status.why, _command("devices"))
    elif status.warmth is Warmth.UNCACHED:
        tried = f": {run.detail}" if run is not None and run.outcome is Outcome.UNCACHED else ""
        yield Explanation(Cause.UNCACHED, f"{status.why}{tried}; {_NAMED_CACHES}", _command("runs", name))
    elif status.warmth is Warmth.WAITING:
        yield Explanation(Cause.WAITING, f"{status.why}; to warm it all the same:", _command("prewarm", name))
    elif status.warmth is Warmth.WARMING:
        yield Explanation(Cause.WARMING, f"it is being warmed just now; {status.why}", _command("jobs"))
    elif status.warmth is Warmth.UNKNOWN:
        yield Explanation(Cause.UNREAD, status.why, _command("stores"))
    elif run is not None and run.outcome is Outcome.CRASHED:
        # The command is given with what was found out about the runtime.
        return
    elif status.warmth is Warmth.FAILED:
        yield Explanation(Cause.FAILED, status.why, _command("runs", name))
    else:
        cause = _CAUSES.get(status.reason or WarmReason.NEVER, Cause.NEVER)
        brought = f"; which of its kernels are compiled already: {_command('why', name, '--programs')}"
        more = brought if cause is Cause.NEVER else ""
        yield Explanation(cause, status.why + more, _command("prewarm", name))


def _crashes(
    status: ModelStatus, runtimes: Sequence[RuntimeCheck], builds: frozenset[str], *, loaded: bool
) -> Iterable[Explanation]:
    run = status.run
    crashed = run is not None and run.outcome is Outcome.CRASHED
    unsafe = [one for one in runtimes if one.safety is Safety.UNSAFE and (crashed or one.build not in builds)]
    name = status.model.name
    if run is not None and run.outcome is Outcome.CRASHED:
        which = f" (its runtime {unsafe[0].library} is known for that)" if unsafe else ""
        message = f"{run.detail}{which}; leave the cache off for it, or install another runtime and prewarm it again"
        yield Explanation(Cause.CRASH, message, _command("env", name))
    elif unsafe and status.warmth is not Warmth.WARM:
        which = "its SYCL runtime" if loaded else "should its program use SYCL, the runtime that it finds,"
        message = (
            f"{which} {unsafe[0].library}{'' if loaded else ','} crashes some programs when the cache is on, and this"
            f" model was not seen to run with it yet: {unsafe[0].evidence}"
        )
        yield Explanation(Cause.UNSAFE, message, _command("prewarm", name))


def _outside(model: Model, store: Path, applications: Sequence[Application] | None, uid: int) -> Iterable[Explanation]:
    if applications is None:
        some = ", ".join(model.before[:_NAMED])
        message = f"whether a program of {some} uses the cache is unknown: there was no room to look"
        yield Explanation(Cause.HIDDEN, message, _command("why", model.name))
    for one in applications or ():
        place, which = (store, "") if one.kept is None else (one.kept.root, f" ({one.kept.kind})")
        who = f"process {one.pid} of {one.unit}"
        drop_in = f"{_command('env', model.name, '--systemd')} (into: systemctl edit {quoted(one.unit)})"
        if not one.visible:
            message = f"{who} runs as user {one.uid}, and we may not see whether it uses the cache"
            yield Explanation(Cause.HIDDEN, message, f"systemctl show -p Environment {quoted(one.unit)}")
        elif not one.enabled:
            yield Explanation(
                Cause.CACHE_OFF, f"the cache{which} is off in {who}: it compiles everything itself", drop_in
            )
        elif one.store is None or one.store == place:
            continue
        elif one.uid != uid:
            message = (
                f"{who} runs as user {one.uid} and caches{which} in {one.store}, which is that user's; this model was"
                f" warmed in {place} as user {uid}"
            )
            mend = f"run xpucached --user as user {one.uid}, and register the model there"
            yield Explanation(Cause.FOREIGN_STORE, message, mend)
        else:
            message = f"{who} caches{which} in {one.store}, but the model was warmed in {place}"
            yield Explanation(Cause.OTHER_STORE, message, drop_in)


def _elsewhere(
    model: Model,
    store: Path,
    entries: Sequence[IndexedEntry],
    variables: Sequence[str],
    built_from: Callable[[EntryId], tuple[str, str] | None],
) -> Iterable[Explanation]:
    """Look for programs that were compiled from the model's images, but under another key or in another store."""
    mine = [one for one in entries if model.name in one.models and one.entry.id.store.root == store]
    images = {told[0]: one for one in mine if (told := built_from(one.entry.id)) is not None}
    options = {told[1] for one in mine if (told := built_from(one.entry.id)) is not None}
    differing: dict[str, int] = {}
    others: dict[Path, int] = {}
    for one in entries:
        told = None if model.name in one.models else built_from(one.entry.id)
        if told is None or told[0] not in images:
            continue
        if one.entry.id.store.root != store:
            others[one.entry.id.store.root] = others.get(one.entry.id.store.root, 0) + 1
        elif told[1] not in options:
            words = one.entry.options or "none"
            differing[words] = differing.get(words, 0) + 1
    if differing:
        theirs = ", ".join(repr(words) for words in sorted(differing)[:_NAMED])
        ours = ", ".join(sorted({repr(one.entry.options or "none") for one in images.values()})[:_NAMED])
        message = (
            f"{sum(differing.values())} of its programs were compiled by somebody else under another key: build options"
            f" {theirs}, but {ours} when it was warmed; give it the application's variables"
            f"{f' ({chr(44).join(variables)} and the like)' if variables else ''}"
        )
        yield Explanation(Cause.OPTIONS, message, _command("model", "show", model.name))
    for root, number in sorted(others.items()):
        message = f"{number} of its programs were compiled in {root} too: something runs this model with that store"
        yield Explanation(Cause.OTHER_STORE, message, _command("env", model.name))


def beyond(status: ModelStatus, unclaimed: Iterable[IndexedEntry], entries: Iterable[IndexedEntry]) -> str:
    """Say what was compiled in a model's store since it was proven, by no model's run; empty if nothing was.

    ``unclaimed`` are these entries, ``entries`` those that are known of the model.  In the managed store, where any
    program may cache, only those count that are of libraries whose kernels the model has compiled.
    """
    run = status.run
    if status.warmth is not Warmth.WARM or run is None:
        return ""
    some = [
        one
        for one in unclaimed
        if one.entry.state is EntryState.OK and one.entry.environment in run.environments and one.origin not in _BROUGHT
    ]
    if status.store is None:
        own = _libraries(one for one in entries if status.name in one.models)
        some = [one for one in some if own & _libraries([one])]
    if not some:
        return ""
    libraries = sorted(_libraries(some))
    of = f" of {', '.join(libraries[:_NAMED])}" if libraries else ""
    return (
        f"{f'{len(some)} programs{of} were' if some[1:] else f'one program{of} was'} compiled in its store since it was"
        f" proven, and by no model's run, the last one on {max(one.entry.created for one in some):%Y-%m-%d %H:%M} UTC"
    )


def _libraries(entries: Iterable[IndexedEntry]) -> frozenset[str]:
    """Return the libraries of which entries hold kernels, as far as they are known."""
    return frozenset(kernel.library for one in entries for kernel in one.entry.kernels if kernel.library)


_BROUGHT: Final = OUR_WORK | {Origin.IMPORTED}


def _more(name: str, beyond: str) -> Iterable[Explanation]:
    if beyond:
        message = f"{beyond}. If {name}'s program did that, it does more than the command that was registered"
        yield Explanation(Cause.MORE, message, _command("model", "add", name, "--replace", "--", "COMMAND"))


def _on_cpu(model: Model, run: Run | None, selecting: Collection[str], *, gpus: bool) -> Iterable[Explanation]:
    meant = model.workload.exercise.device
    for one in run.trials if run is not None and run.workload == model.workload.digest else ():
        device = one.variant.device or meant
        if one.use is None or not one.use.only_cpu or device.startswith("cpu") or not (device or gpus):
            continue
        asked = f"it was meant for {device}" if device else "it names no device, and this host has a GPU"
        given = [f"{name}={text}" for name, text in sorted(model.workload.variables.items()) if name in selecting]
        led = f"; its variables say {', '.join(given)}" if given else ""
        words = f"{one.variant.label}: {one.use.sentence}; {asked}{led}"
        yield Explanation(Cause.ON_CPU, words, _command("model", "show", model.name))


def _idle_gpus(model: Model, run: Run | None) -> Iterable[Explanation]:
    asked, where = _asked_gpus(model)
    for one in run.trials if run is not None and run.workload == model.workload.digest else ():
        gpus = one.use.gpus if one.use is not None else ()
        idle = [gpu for gpu in gpus if gpu.used is False]
        # A part of a card of the data center may count as a GPU, by a setting of its driver.
        if len(gpus) - len(idle) < asked and idle and not any(gpu.architecture.startswith("pvc") for gpu in gpus):
            words = f"{one.variant.label}: {where} asks for {asked} GPUs; {'; '.join(gpu.sentence for gpu in idle)}"
            yield Explanation(Cause.IDLE_GPU, words, _command("model", "show", model.name))


def _asked_gpus(model: Model) -> tuple[int, str]:
    """Return how many GPUs a model asks for, and by what; 0 where nothing says so."""
    mask = model.workload.variables.get("ZE_AFFINITY_MASK", "")
    numbers = {part.partition(".")[0].strip() for part in mask.split(",")} - {""}
    if numbers:
        return len(numbers), f"ZE_AFFINITY_MASK={mask}"
    typed = " ".join(model.workload.command)
    found = re.search(r"--(?:nproc[-_]per[-_]node|tensor-parallel-size)[= ](\d{1,3})\b", typed)
    return (int(found[1]), found[0]) if found else (0, "")


def _not_faster(name: str, compared_variants: Iterable[ComparedVariant]) -> Iterable[Explanation]:
    for one in compared_variants:
        if one.comparison.not_faster:
            words = f"{one.variant}: {one.comparison.sentence}"
            yield Explanation(Cause.NOT_FASTER, words, _command("model", "show", name))


def _shifted(model: Model, shifts: Sequence[Shift]) -> Iterable[Explanation]:
    for one in shifts:
        if one.slower:
            yield Explanation(Cause.SHIFTED, sentence(one), _command("model", "history", model.name))


_SLOW: Final = frozenset({Figure.COLD, Figure.WARM, Figure.STEADY, Figure.CPU})


def _slower(model: Model, baselines: Sequence[Baseline]) -> Iterable[Explanation]:
    for one in baselines:
        if one.worse and one.figure in _SLOW and one.median is not None:
            usual = f"{one.median:.3g} (median of {one.samples - 1})"
            message = (
                f"{one.variant}: {one.figure.replace('-', ' ')}: {one.newest:.3g} in the newest run, {usual} before"
            )
            yield Explanation(Cause.SLOWER, message, _command("model", "history", model.name))
