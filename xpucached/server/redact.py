"""Door: what those do not see who may only read.

A model's arguments and variables can hold tokens, and what its programs print, or what is said of it by quoting them,
can hold anything.  That is for its owner and root.  Every answer to anybody else goes through `redact`.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from xpucached.domain import (
    Cause,
    DriverInUse,
    Event,
    Finding,
    Job,
    ModelStatus,
    Problem,
    Refusal,
    ReplayReport,
    Run,
    Status,
    Trial,
    WarmReason,
    Warmth,
    Workload,
)
from xpucached.domain.plans import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HIDDEN: Final = "(hidden)"
"""What stands in the place of what is left out."""

_QUOTING_CAUSES: Final = frozenset({Cause.FAILED, Cause.CRASH, Cause.UNCACHED})
_QUOTING_PROBLEMS: Final = frozenset({"automatic-job-failed", "driver-missing"})
_QUOTING_FIELDS: Final = frozenset({"detail", "hint"})
_SETTINGS: Final = frozenset({"driver.variables"})


def redact(value: object) -> object:
    """Give a value without what is its owner's alone."""
    if isinstance(value, tuple):
        return tuple(redact(one) for one in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    rule = _RULES.get(type(value))
    if rule is not None:
        value = rule(value)
    found = {one.name: getattr(value, one.name) for one in fields(value)}  # type: ignore[arg-type] # it is one still
    changed = {name: redact(one) for name, one in found.items() if isinstance(one, tuple) or is_dataclass(one)}
    changed = {name: one for name, one in changed.items() if one != found[name]}
    return replace(value, **changed) if changed else value  # type: ignore[type-var] # as above


def redact_settings(values: Mapping[str, str]) -> Mapping[str, str]:
    """Give the settings without the values of variables."""
    return {name: HIDDEN if name in _SETTINGS else text for name, text in values.items()}


def _text(text: str) -> str:
    return HIDDEN if text else ""


def _workload(one: Workload) -> Workload:
    exercise = replace(
        one.exercise,
        target=_text(one.exercise.target),
        inputs=_text(one.exercise.inputs),
        options=dict.fromkeys(one.exercise.options, HIDDEN),
    )
    command = (*one.command[:1], *[HIDDEN for _ in one.command[1:2]])
    return replace(one, command=command, variables=dict.fromkeys(one.variables, HIDDEN), exercise=exercise)


def _run(one: Run) -> Run:
    return replace(one, detail=_text(one.detail), output="")


def _trial(one: Trial) -> Trial:
    return replace(one, detail=_text(one.detail), output="", evidence=())


def _model(one: ModelStatus) -> ModelStatus:
    # What changed is told by paths, some of which stand in the arguments.
    quoting = one.warmth is Warmth.FAILED or one.reason is WarmReason.PROGRAM
    changes = tuple(HIDDEN for _ in one.changes)
    return replace(one, why=_text(one.why), changes=changes) if quoting else one


def _job(one: Job) -> Job:
    error = Refusal(one.error.code, f"the job failed: {HIDDEN}", "its user sees why") if one.error else None
    return replace(one, error=error, progress=replace(one.progress, detail=_text(one.progress.detail)))


def _replay(one: ReplayReport) -> ReplayReport:
    return replace(one, failures=tuple(HIDDEN for _ in one.failures))


def _finding(one: Finding) -> Finding:
    if one.cause is Cause.PROGRAM:
        return replace(one, message=f"what it needs has changed: {HIDDEN}")
    if one.cause is Cause.WARMING:
        return replace(one, message="it is being warmed just now")
    return replace(one, message=HIDDEN) if one.cause in _QUOTING_CAUSES else one


def _problem(one: Problem) -> Problem:
    return replace(one, message=HIDDEN, hint=_text(one.hint)) if one.code in _QUOTING_PROBLEMS else one


def _event(one: Event) -> Event:
    quoting = one.topic in _QUOTING_PROBLEMS or one.fields.get("reason") == WarmReason.PROGRAM
    kept = {name: HIDDEN if name in _QUOTING_FIELDS else text for name, text in one.fields.items()}
    return replace(one, message=HIDDEN if quoting else one.message, fields=kept)


def _driver(one: DriverInUse) -> DriverInUse:
    return replace(one, variables=dict.fromkeys(one.variables, HIDDEN))


def _status(one: Status) -> Status:
    sentence = one.sentence
    for problem in one.problems:
        if problem.code in _QUOTING_PROBLEMS and problem.message:
            # The sentence may quote the first of the problems.
            sentence = sentence.replace(problem.message, HIDDEN)
    return replace(one, sentence=sentence)


def _deferred(one: Deferred) -> Deferred:
    return replace(one, why=_text(one.why))


_RULES: Final = cast(
    "Mapping[type, Callable[[object], object]]",
    {
        Workload: _workload,
        Run: _run,
        Trial: _trial,
        ModelStatus: _model,
        Job: _job,
        ReplayReport: _replay,
        Finding: _finding,
        Problem: _problem,
        Event: _event,
        Deferred: _deferred,
        Status: _status,
        DriverInUse: _driver,
    },
)
