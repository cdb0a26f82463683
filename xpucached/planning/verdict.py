"""Decide: how a model and the whole host stand, in words.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.domain.host import AUTOMATIC, Problem
from xpucached.domain.models import WarmReason, Warmth
from xpucached.domain.status import Verdict
from xpucached.planning.prewarm import (
    NO_DEVICE,
    UNCACHED,
    again,
    applicable,
    describe,
    failure,
    met_another_compiler,
    need,
    rest,
    uncached,
    unread,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from xpucached.domain.host import Host
    from xpucached.domain.models import Coverage, Model, ModelStatus
    from xpucached.domain.plans import Policy
    from xpucached.domain.throttling import Waiting

# With one of these a model that somebody declared may be missing from our list, so that "all" is not all.
_HIDING: Final = frozenset({"bad-settings", "conflict"})

UNNOTED: Final = (
    ", and it is not recorded what its program needed then: a change of it is not noticed before the model is proven"
    " again (xpucachectl prewarm NAME --force)"
)

PREDICTED: Final = " with another compiler, and all that its programs look for under this one is there, too"

THEN: Final = "; "
"""Stands between what a model waits for and why it is cold."""

_NAMED: Final = 3
"""Models or drivers that one sentence names."""


def warmth(
    model: Model,
    coverage: Coverage | None,
    host: Host,
    policy: Policy,
    now: datetime,
    *,
    warming: bool = False,
    waiting: Waiting | None = None,
) -> tuple[Warmth, str, WarmReason | None]:
    """Return how a model stands, why, and for which reason it will be warmed; ``warming`` says that it is just now."""
    if not host.environments and not model.workload.exercise.elsewhere:
        return Warmth.COLD, NO_DEVICE, None
    wanted = need(model, coverage, host)
    if warming:
        return Warmth.WARMING, wanted.detail if wanted else "it is warmed once more", wanted.reason if wanted else None
    shut = unread(coverage, host)
    if wanted is None and shut:
        return Warmth.UNKNOWN, f"{shut}: nobody knows whether it is warm", None
    if wanted is None:
        coverage = applicable(coverage, host) if coverage is not None else None
        good = coverage.good if coverage is not None else None
        count = coverage.entries if coverage is not None else 0
        proof = f"run {good.id} proved it on {good.finished or good.started:%Y-%m-%d %H:%M} UTC" if good else "proved"
        if good is not None and met_another_compiler(good, host):
            proof += PREDICTED
        if good is not None and coverage is not None and not coverage.noted:
            proof += UNNOTED.replace("NAME", model.name)
        kinds = ", ".join(f"{one.entries} {one.kind}" for one in coverage.layers) if coverage is not None else ""
        which = f" ({kinds})" if kinds else ""
        return Warmth.WARM, f"{_all_of(count)} there{which}; {proof}" if count else proof, None
    if uncached(model, coverage, host) is not None:
        return Warmth.UNCACHED, UNCACHED, None
    failed = failure(model, coverage, host, policy, now)
    detail = f"{wanted.detail}; it is not run while {shut}" if shut else wanted.detail
    if failed is None and waiting is not None:
        return Warmth.WAITING, f"{_since(waiting, now)}: {waiting.why}{THEN}{detail}", wanted.reason
    if failed is None:
        state = Warmth.CHANGED if wanted.reason is WarmReason.PROGRAM else Warmth.COLD
        late = rest(coverage, wanted, policy, now)
        return state, late.why if late is not None and not shut else detail, wanted.reason
    return Warmth.FAILED, f"{describe(failed)}; {again(failed)}", WarmReason.RETRY


def _all_of(entries: int) -> str:
    return "its one entry is" if entries == 1 else f"all its {entries} entries are"


def _since(waiting: Waiting, now: datetime) -> str:
    day = "" if waiting.since.date() == now.date() else f"{waiting.since:%Y-%m-%d} "
    return f"waiting since {day}{waiting.since:%H:%M} UTC"


def verdict(
    host: Host | None,
    models: Sequence[ModelStatus],
    problems: Sequence[Problem],
    *,
    starting: bool = False,
) -> tuple[Verdict, str]:
    """Tell in one sentence whether this host is warm, and what to do if it is not."""
    word, sentence = _judge(host, models, problems, starting=starting)
    hiding = sum(problem.code in _HIDING for problem in problems)
    if hiding and word is not Verdict.STARTING:
        sentence += f"; {_count(hiding, 'mistake')} in the configuration, see the problems"
    failing = [problem.subject for problem in problems if problem.code == AUTOMATIC]
    if failing:
        sentence += f"; what the daemon does by itself failed ({names(failing)}), see the problems"
    return word, sentence


def _judge(
    host: Host | None, models: Sequence[ModelStatus], problems: Sequence[Problem], *, starting: bool
) -> tuple[Verdict, str]:
    if starting:
        return Verdict.STARTING, "Starting: looking at the host and its stores"
    elsewhere = any(one.model.workload.exercise.elsewhere for one in models)
    if host is None or not (host.offered or elsewhere):
        about = [problem for problem in problems if problem.code not in _HIDING]
        why = f": {about[0].message}" if about else ""
        return Verdict.NO_DEVICE, f"No device: programs find none on this host{why}; see: xpucachectl devices"
    if not models:
        return Verdict.NO_MODELS, "No models: nothing is kept warm; run: xpucachectl model add NAME -- COMMAND"
    return _judge_models(host, models)


def _judge_models(host: Host, models: Sequence[ModelStatus]) -> tuple[Verdict, str]:
    drivers = sorted({one.toolchain for one in host.offered})
    if not drivers:
        drivers = ["none"]
    on = f"for driver {names(drivers)}" if len(drivers) == 1 else f"for drivers {names(drivers)}"
    cached = [one for one in models if one.warmth is not Warmth.UNCACHED]
    none = [one.model.name for one in models if one.warmth is Warmth.UNCACHED]
    without = f"{names(none)} {'uses' if len(none) == 1 else 'use'} no cache that xpucached knows" if none else ""
    if not cached:
        return Verdict.UNCACHED, f"Uncached: {without}: there is nothing to keep warm; see: xpucachectl why {none[0]}"
    word, sentence = _judge_cached(cached, on)
    return word, f"{sentence}; {without}" if without else sentence


def _judge_cached(models: Sequence[ModelStatus], on: str) -> tuple[Verdict, str]:
    by = {state: [one.model.name for one in models if one.warmth is state] for state in Warmth}
    total, warm, failed, cold = len(models), len(by[Warmth.WARM]), by[Warmth.FAILED], by[Warmth.COLD]
    if by[Warmth.WARMING]:
        is_ = "is" if len(by[Warmth.WARMING]) == 1 else "are"
        sentence = f"Warming: {_of(warm, total)} warm {on}; {names(by[Warmth.WARMING])} {is_} under way"
        return Verdict.WARMING, sentence
    if failed:
        sentence = f"Failed: {_of(len(failed), total)} cold {on} and could not be warmed ({names(failed)})"
        return Verdict.FAILED, f"{sentence}; see: xpucachectl model show {failed[0]}"
    waiting = next((one.why for one in models if one.warmth is Warmth.WAITING), None)
    if waiting is not None:
        # The beginning says since when, and for what; then comes why that model is cold.
        until = waiting.partition(THEN)[0]
        sentence = f"Waiting: {_of(total - warm, total)} not warm {on}; {names(by[Warmth.WAITING])} {until}"
        return Verdict.WAITING, sentence
    if cold:
        cold = [*cold, *by[Warmth.CHANGED]]
        without = [one.name for one in models if one.has_no_device]
        do = "run: xpucachectl prewarm --stale"
        if len(without) == len(cold):
            do = f"there is no device for {names(without)}; see: xpucachectl why {without[0]}"
        return Verdict.COLD, f"Cold: {_of(len(cold), total)} not warm {on}; {do}"
    if by[Warmth.CHANGED]:
        sentence = f"Changed: {_of(len(by[Warmth.CHANGED]), total)} not proven warm {on} ({names(by[Warmth.CHANGED])})"
        return Verdict.COLD, f"{sentence}: what was proven has changed since; run: xpucachectl prewarm --stale"
    if unknown := by[Warmth.UNKNOWN]:
        of = "it" if total == 1 else f"{len(unknown)} of {_count(total, 'model')}"
        why = next(one.why for one in models if one.warmth is Warmth.UNKNOWN)
        sentence = f"Unknown: whether {of} is warm {on} nobody knows ({names(unknown)}): {why}"
        return Verdict.UNKNOWN, f"{sentence}; see the problems"
    if total == 1:
        return Verdict.WARM, f"Warm: {models[0].model.name} is warm {on}"
    return Verdict.WARM, f"Warm: all {total} models are warm {on}"


def _of(some: int, total: int) -> str:
    return f"{some} of {_count(total, 'model')} {'is' if 1 in {some, total} else 'are'}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def names(some: Sequence[str]) -> str:
    """Name some of many."""
    more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
    return ", ".join(some[:_NAMED]) + more


_LOADERS: Final = frozenset({"no-gpu", "no-level-zero", "no-level-zero-driver", "no-opencl", "no-opencl-driver"})
"""What is missing where the system itself has no driver."""


def of_system(host: Host, models: Sequence[ModelStatus]) -> tuple[Problem, ...]:
    """Return what is wrong with the host's own driver: nothing is missing where all models bring theirs."""
    met = {name for driver in host.drivers if driver.environments for name in driver.models}
    brought = [one.model.name in met or one.model.workload.exercise.elsewhere for one in models]
    if not brought or not all(brought) or any(device.pci_address for device in host.devices):
        return host.problems
    return tuple(one for one in host.problems if one.code not in _LOADERS)


def of_drivers(host: Host) -> tuple[Problem, ...]:
    """Return what is wrong with drivers that models' own variables lead to, and whom that concerns."""
    problems: list[Problem] = []
    for driver in host.drivers:
        whom = f"for {names(driver.models)}"
        problems += [
            replace(problem, message=f"{whom}: {problem.message}")
            for problem in driver.problems
            if problem.code == "driver-missing" or problem.code.startswith("probe-")
        ]
        if not driver.environments:
            told = [one.message for one in driver.problems if one.code not in {"no-gpu", "driver-missing"}]
            said = "; ".join(told) or "it does not say why"
            message = f"{whom}: the driver that their own variables lead to offers no device: {said}"
            hint = "other models are not affected; its files are shown by: xpucachectl devices"
            problems.append(Problem("driver-silent", message, hint, driver.models[0] if driver.models else ""))
    return tuple(problems)
