"""Door: what those do not see who may only read.

A model's arguments and variables can hold tokens, and what its programs print, or what is said of it by quoting them,
can hold anything.  That is for its owner and root.  Every answer to anybody else goes through `redact`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct
from msgspec.structs import asdict, replace

from xpucached.domain.activity import Program
from xpucached.domain.ahead import Ahead, AheadState
from xpucached.domain.beside_cpu import CpuComparison
from xpucached.domain.diagnosis import Baseline, Cause, Explanation, RuntimeCheck
from xpucached.domain.host import DriverFile, DriverInUse, Host, Problem
from xpucached.domain.jobs import ErrorInfo, Event, Job
from xpucached.domain.libraries import Libraries
from xpucached.domain.models import ModelStatus, Run, Trial, WarmReason, Warmth, Workload
from xpucached.domain.overview import Overview, OverviewModel, UnderWay
from xpucached.domain.plans import Deferred
from xpucached.domain.pushes import PushOutcome
from xpucached.domain.reports import ReplayReport
from xpucached.domain.secrecy import HIDDEN, of_event, of_problem
from xpucached.domain.shifts import Shift
from xpucached.domain.status import Status, Verdict
from xpucached.domain.stores import Entry, ModelCache, StoreStatus
from xpucached.domain.trash import Comparison, Finding
from xpucached.domain.usage import WarmthChange
from xpucached.kinds.variables import CACHE_VARIABLES
from xpucached.planning.verdict import THEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_CAUSES: Final = frozenset(
    {
        Cause.NO_DEVICE,
        Cause.UNREAD,
        Cause.NEVER,
        Cause.CHANGED,
        Cause.DRIVER,
        Cause.LOST,
        Cause.CACHE_OFF,
        Cause.OTHER_STORE,
        Cause.FOREIGN_STORE,
        Cause.NOT_FASTER,
        Cause.SLOWER,
        Cause.HIDDEN,
    }
)
"""Causes of findings whose sentences are ours, and name nothing but devices, stores and units."""

_OURS: Final = frozenset({Warmth.WARM, Warmth.UNCACHED})
"""Of how these stand, the sentence quotes nothing."""

_QUOTING: Final = frozenset({WarmReason.PROGRAM, WarmReason.RETRY})
"""Of models that are warmed for these, the sentence says what changed, or what a run told."""

_NOWHERE: Final = Path(HIDDEN)
_SETTINGS: Final = frozenset({"driver.variables"})


def redact(value: object) -> object:
    """Return a value without what is its owner's alone."""
    if isinstance(value, tuple):
        return tuple(redact(one) for one in value)
    if not isinstance(value, Struct):
        return value
    rule = _RULES.get(type(value))
    if rule is not None:
        value = rule(value)
    changed = {name: redact(one) for name, one in asdict(value).items() if isinstance(one, tuple | Struct)}
    changed = {name: one for name, one in changed.items() if one != getattr(value, name)}
    return replace(value, **changed) if changed else value


def redact_settings(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings without the values of variables."""
    return {name: HIDDEN if name in _SETTINGS else text for name, text in values.items()}


def redact_environment(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables of a program that lead to caches of ours; others are the owner's."""
    return {name: text for name, text in values.items() if name in CACHE_VARIABLES}


def _text(text: str) -> str:
    return HIDDEN if text else ""


def _cache(one: ModelCache) -> ModelCache:
    # Where a variable leads is the owner's to know.
    led = one.named not in {"", "--cache"}
    return replace(one, path=_NOWHERE if led else one.path, note=_text(one.note), stays=_text(one.stays))


def _store(one: StoreStatus) -> StoreStatus:
    return one if one.cache is None else replace(one, store=_cache(one.cache).path, notes=())


def _workload(one: Workload) -> Workload:
    exercise = replace(
        one.exercise,
        target=_text(one.exercise.target),
        inputs=_text(one.exercise.inputs),
        ready_url=_text(one.exercise.ready_url),
        ready_line=_text(one.exercise.ready_line),
        requests=_text(one.exercise.requests),
        options=dict.fromkeys(one.exercise.options, HIDDEN),
    )
    command = (*one.command[:1], *[HIDDEN for _ in one.command[1:2]])
    return replace(one, command=command, variables=dict.fromkeys(one.variables, HIDDEN), exercise=exercise)


def _run(one: Run) -> Run:
    # The digest is of the arguments and variables too: a short one could be guessed, and the guess proven by it.
    changes = tuple(HIDDEN for _ in one.changes)
    workload, host = _text(one.workload), _bare(one.host)
    return replace(one, detail=_text(one.detail), output="", workload=workload, host=host, changes=changes)


def _bare(signature: str) -> str:
    """Return a host's signature without what stands for the variables of the configuration, for the same reason."""
    return signature.partition("-")[0]


def _baseline(one: Baseline) -> Baseline:
    return replace(one, host=_bare(one.host))


def _host(one: Host) -> Host:
    return replace(one, variables="", driver=_nowhere(one.driver)) if one.variables else one


def _nowhere(files: tuple[DriverFile, ...]) -> tuple[DriverFile, ...]:
    """Return files to which variables lead."""
    return tuple(replace(file, path=_NOWHERE, target=_NOWHERE) for file in files)


def _program(one: Program) -> Program:
    return replace(one, command=_text(one.command))


def _entry(one: Entry) -> Entry:
    # A variable of its program's may give them.
    return replace(one, options=HIDDEN) if one.options else one


def _push(one: PushOutcome) -> PushOutcome:
    # It may quote a registry, and a program that was asked for an account.
    return replace(one, error=_text(one.error))


def _libraries(one: Libraries) -> Libraries:
    # Where they lie says where the variables lead.
    return Libraries(
        tuple(replace(runtime, library=_NOWHERE) for runtime in one.runtimes),
        tuple(_NOWHERE for _ in one.drivers),
        tuple(_NOWHERE for _ in one.further),
    )


def _runtime_check(one: RuntimeCheck) -> RuntimeCheck:
    return replace(one, library=_NOWHERE, evidence=_text(one.evidence))


def _trial(one: Trial) -> Trial:
    return replace(one, detail=_text(one.detail), output="", evidence=())


def _compared(one: CpuComparison) -> CpuComparison:
    # Why it did not run there, the program may say.
    return replace(one, detail=_text(one.detail))


def _model(one: ModelStatus) -> ModelStatus:
    hidden = _workload(one.model.workload)
    one = replace(one, workload=hidden.digest, **asdict(hidden))
    # What changed is told by paths, some of which stand in the arguments.
    quoting = one.warmth is Warmth.FAILED or one.reason in _QUOTING
    changes = tuple(HIDDEN for _ in one.changes)
    return replace(one, why=_text(one.why), changes=changes) if quoting else one


def _job(one: Job) -> Job:
    error = ErrorInfo(one.error.code, f"the job failed: {HIDDEN}", "its user sees why") if one.error else None
    return replace(one, error=error, progress=replace(one.progress, detail=_text(one.progress.detail)))


def _replay(one: ReplayReport) -> ReplayReport:
    # Whose variables led to the runtimes that confirmed it says where they lie.
    return replace(one, failures=tuple(HIDDEN for _ in one.failures), confirmed=_text(one.confirmed))


def _ahead(one: Ahead) -> Ahead:
    # Why it failed, a foreign driver may say.
    return replace(one, detail=_text(one.detail)) if one.state is AheadState.FAILED else one


def _comparison(one: Comparison) -> Comparison:
    return replace(one, failures=tuple(HIDDEN for _ in one.failures))


def _found(one: Finding) -> Finding:
    return replace(one, detail=_text(one.detail))


def _finding(one: Explanation) -> Explanation:
    if one.cause is Cause.PROGRAM:
        return replace(one, message=f"what it needs has changed: {HIDDEN}")
    if one.cause is Cause.WARMING:
        return replace(one, message="it is being warmed just now")
    if one.cause is Cause.WAITING:
        return replace(one, message=f"{one.message.partition(THEN)[0]}{THEN}{HIDDEN}")
    return one if one.cause in _CAUSES else replace(one, message=HIDDEN)


def _driver(one: DriverInUse) -> DriverInUse:
    return replace(one, variables=dict.fromkeys(one.variables, HIDDEN), driver=_nowhere(one.driver))


def _status(one: Status) -> Status:
    sentence = one.sentence
    for problem in one.problems:
        if problem.message and of_problem(problem) != problem:
            # The sentence may quote the first of the problems.
            sentence = sentence.replace(problem.message, HIDDEN)
    return replace(one, sentence=sentence)


def _warmth_change(one: WarmthChange) -> WarmthChange:
    return one if one.now in _OURS else replace(one, why=_text(one.why))


def _overview_model(one: OverviewModel) -> OverviewModel:
    return one if one.warmth in _OURS else replace(one, why=_text(one.why))


def _under_way(one: UnderWay) -> UnderWay:
    return replace(one, detail=_text(one.detail))


def _overview(one: Overview) -> Overview:
    # It may quote the first of the problems, or a model's failure.
    return one if one.verdict is Verdict.WARM else replace(one, sentence=HIDDEN)


def _shift(one: Shift) -> Shift:
    # What changed is told by paths, as with models.
    return replace(one, changed=tuple(HIDDEN for _ in one.changed))


def _deferred(one: Deferred) -> Deferred:
    return replace(one, why=_text(one.why))


_RULES: Final = cast(
    "Mapping[type, Callable[[Struct], Struct]]",
    {
        ModelCache: _cache,
        StoreStatus: _store,
        Workload: _workload,
        Run: _run,
        Baseline: _baseline,
        Host: _host,
        Program: _program,
        Entry: _entry,
        PushOutcome: _push,
        Trial: _trial,
        CpuComparison: _compared,
        ModelStatus: _model,
        Job: _job,
        Ahead: _ahead,
        ReplayReport: _replay,
        Comparison: _comparison,
        Finding: _found,
        Explanation: _finding,
        Problem: of_problem,
        Event: of_event,
        Libraries: _libraries,
        RuntimeCheck: _runtime_check,
        Deferred: _deferred,
        Shift: _shift,
        Status: _status,
        DriverInUse: _driver,
        WarmthChange: _warmth_change,
        OverviewModel: _overview_model,
        UnderWay: _under_way,
        Overview: _overview,
    },
)
