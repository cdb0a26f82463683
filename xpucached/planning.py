"""Decide: what should be warmed and what may go.  Pure; every decision carries its reason, and nothing is done here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from xpucached.domain import (
    Attribution,
    Coverage,
    Deferred,
    Effect,
    EntryId,
    EntryState,
    Environment,
    Evict,
    EvictionPlan,
    EvictReason,
    Host,
    IndexedEntry,
    Model,
    ModelName,
    ModelStatus,
    Outcome,
    Policy,
    Presence,
    PrewarmPlan,
    Problem,
    Run,
    Verdict,
    Warm,
    WarmReason,
    Warmth,
)

# -- prewarm --------------------------------------------------------------------------------------------------------

_NO_FAILURE: Final = frozenset({Outcome.WARMED, Outcome.CANCELLED, Outcome.LOST})


def need(model: Model, coverage: Coverage | None, host: Host) -> tuple[WarmReason, str] | None:
    """Say why a model must be warmed on this host; None if a good run covers it."""
    good = coverage.good if coverage else None
    if coverage is None or good is None:
        return WarmReason.NEVER, "it has not been warmed yet"
    if good.workload != model.workload.digest:
        return WarmReason.CHANGED, "its workload changed since it was warmed"
    gone = [one for one in good.environments if one not in host.environments]
    if gone:
        now = [one.driver for one in host.environments if one.lineage == gone[0].lineage]
        is_now = f"is now {now[0]}" if now else "is no longer here"
        return WarmReason.DRIVER, f"it was warmed for driver {gone[0].driver} of {gone[0].device}, which {is_now}"
    if not good.environments and good.host != host.signature:
        return WarmReason.DRIVER, "the host's devices or drivers changed since it was warmed"
    if coverage.remaining < coverage.entries:
        lost = coverage.entries - coverage.remaining
        return WarmReason.LOST, f"{lost} of its {coverage.entries} entries are gone or damaged"
    return None


def _wait(coverage: Coverage | None, model: Model, host: Host, policy: Policy, now: datetime) -> Deferred | None:
    """Say how long a model that failed must wait; None if it may be tried now."""
    last = coverage.last if coverage else None
    if coverage is None or last is None or not coverage.failures or last.outcome in _NO_FAILURE:
        return None
    if last.host != host.signature or last.workload != model.workload.digest:
        return None
    if coverage.failures >= policy.attempts:
        why = f"failed {coverage.failures} times ({last.detail}); run: xpucachectl prewarm {model.name}"
        return Deferred(model.name, why, None)
    until = (last.finished or last.started) + timedelta(seconds=policy.retry_after * 2 ** (coverage.failures - 1))
    if now < until:
        return Deferred(model.name, f"failed ({last.detail}), is tried again later", until)
    return None


def plan_prewarm(
    models: Iterable[Model],
    coverage: Iterable[Coverage],
    host: Host,
    policy: Policy,
    now: datetime,
    *,
    force: frozenset[ModelName] | None = None,
) -> PrewarmPlan:
    """Plan which models to warm, the most important first.

    A model named in ``force`` is warmed whether or not it needs it, and whatever failed before.
    """
    known = {one.model: one for one in coverage}
    force = force or frozenset()
    warm: list[Warm] = []
    deferred: list[Deferred] = []
    covered: list[ModelName] = []
    for model in sorted(models, key=lambda one: (-one.priority, one.name)):
        reason = need(model, known.get(model.name), host)
        if not host.environments:
            deferred.append(Deferred(model.name, "this host has no device to warm it on", None))
        elif model.name in force:
            warm.append(Warm(model, WarmReason.MANUAL, reason[1] if reason else "asked for, though it is warm"))
        elif reason is None:
            covered.append(model.name)
        elif wait := _wait(known.get(model.name), model, host, policy, now):
            deferred.append(wait)
        else:
            found = known.get(model.name)
            last = found.last if found else None
            again = found is not None and found.failures > 0 and last is not None and last.host == host.signature
            warm.append(Warm(model, WarmReason.RETRY if again else reason[0], reason[1]))
    return PrewarmPlan(tuple(warm), tuple(deferred), tuple(covered))


def warmth(
    model: Model,
    coverage: Coverage | None,
    host: Host,
    policy: Policy,
    now: datetime,
    *,
    warming: bool,
) -> tuple[Warmth, str, WarmReason | None]:
    """Say how a model stands, in a word, in a sentence, and why it would be warmed."""
    reason = need(model, coverage, host)
    if warming:
        return Warmth.WARMING, "it is being warmed now", reason[0] if reason else None
    if reason is None:
        detail = coverage.good.detail if coverage and coverage.good else ""
        return Warmth.WARM, detail, None
    wait = _wait(coverage, model, host, policy, now)
    last = coverage.last if coverage else None
    if wait is not None and last is not None:
        return Warmth.FAILED, wait.why, reason[0]
    return Warmth.COLD, reason[1], reason[0]


def verdict(
    host: Host | None, models: Collection[ModelStatus], problems: Collection[Problem], *, starting: bool
) -> tuple[Verdict, str]:
    """Say in one sentence whether this host is warm, and what to do if not."""
    if starting or host is None:
        return Verdict.STARTING, "Starting: the host and its stores are being looked at; ask again in a moment."
    if not host.environments:
        why = next((one.message for one in problems if one.code.startswith(("no-", "probe-"))), "no driver answered")
        return Verdict.NO_DEVICE, f"No device: {why}; caches are indexed and evicted, but nothing can be warmed."
    if not models:
        return Verdict.NO_MODELS, "No models are registered; register one: xpucachectl model add NAME -- COMMAND"
    where = _drivers(host)
    by: dict[Warmth, list[ModelStatus]] = defaultdict(list)
    for status in models:
        by[status.warmth].append(status)
    count = f"{len(models)} model{'s' if len(models) > 1 else ''}"
    if by[Warmth.FAILED]:
        names = _names(by[Warmth.FAILED])
        first = by[Warmth.FAILED][0].model.name
        return Verdict.FAILED, f"Not warm: {names} cannot be warmed; see why: xpucachectl runs {first}"
    if by[Warmth.COLD]:
        cold = f"{len(by[Warmth.COLD])} of {count} ({_names(by[Warmth.COLD])})"
        verb = "are" if len(by[Warmth.COLD]) > 1 else "is"
        return Verdict.COLD, f"Cold: {cold} {verb} not warm for {where}; warm with: xpucachectl prewarm --stale"
    if by[Warmth.WARMING]:
        return Verdict.WARMING, f"Warming: {_names(by[Warmth.WARMING])}; follow with: xpucachectl jobs"
    every = f"all {count} are" if len(models) > 1 else f"{models_name(models)} is"
    return Verdict.WARM, f"Warm: {every} warm for {where}."


def models_name(models: Collection[ModelStatus]) -> str:
    """Name the first of some models."""
    return next(iter(models)).model.name


def _names(models: Collection[ModelStatus]) -> str:
    names = [status.model.name for status in models]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: PLR2004 - a line


def _drivers(host: Host) -> str:
    drivers = list(dict.fromkeys(one.driver for one in host.environments))
    return f"driver {drivers[0]}" if len(drivers) == 1 else f"drivers {', '.join(drivers[:3])}"


# -- attribution ----------------------------------------------------------------------------------------------------


def attribute(
    before: frozenset[EntryId],
    after: frozenset[EntryId],
    created: frozenset[EntryId],
    used: frozenset[EntryId],
) -> Attribution:
    """Say which entries a run made and which it only used.

    ``created`` and ``used`` are what its trace names.  A trace also names what could not be written, so only what is there
    afterwards counts; and others may be compiling beside us, so with a trace nothing else does.  A program that lets
    no trace through made what is new.
    """
    if created or used:
        # What an old runtime claims to have stored but was there already, it used.
        made = (created & after) - before
        return Attribution(made, ((used | created) & after) - made)
    return Attribution(after - before)


# -- eviction -------------------------------------------------------------------------------------------------------

GONE_FOR: Final = timedelta(days=14)
"""A card may be out for repair, a driver may fail to load for some boots: so long its entries are kept."""


@dataclass(frozen=True, slots=True)
class _Generations:
    """Per environment: 0 for the present ones, 1 for the one before, and so on; and what that means."""

    rank: Mapping[Environment, int]
    successor: Mapping[Environment, Environment]
    gone: frozenset[Environment]


def _generations(
    entries: Collection[IndexedEntry], host: Host, presence: Iterable[Presence], now: datetime
) -> _Generations:
    known = {one.environment: one for one in presence}
    newest: dict[Environment, datetime] = {}
    for one in entries:
        environment = one.entry.environment
        if environment is not None:
            newest[environment] = max(newest.get(environment, one.entry.created), one.entry.created)
    lineages: dict[tuple[str, str], list[Environment]] = defaultdict(list)
    for environment in newest:
        lineages[environment.lineage].append(environment)
    present = frozenset(host.environments)
    here: dict[tuple[str, str], list[Environment]] = defaultdict(list)
    for environment in host.environments:
        here[environment.lineage].append(environment)
    rank: dict[Environment, int] = {}
    successor: dict[Environment, Environment] = {}
    gone: set[Environment] = set()
    for lineage, members in lineages.items():
        if not here[lineage]:
            for environment in members:
                last = known[environment].last if environment in known else None
                # Only what this host itself once offered can be gone from it.  If the survey found nothing at all, that
                # says more about the survey.
                if present and last is not None and now - last > GONE_FOR:
                    gone.add(environment)
            continue
        now_here = here[lineage][0]
        arrived = known[now_here].first if now_here in known else None
        old = [environment for environment in members if environment not in present]

        def recency(environment: Environment) -> tuple[bool, datetime]:
            last = known[environment].last if environment in known else None
            return last is not None, last or newest[environment]

        position = 0
        for environment in sorted(old, key=recency, reverse=True):
            # Somebody still compiles for it (a container with a driver of its own), so it is not superseded at all.
            if arrived is None or newest[environment] > arrived:
                continue
            position += 1
            rank[environment] = position
            successor[environment] = now_here
    return _Generations(rank, successor, frozenset(gone))


def plan_eviction(
    entries: Collection[IndexedEntry],
    host: Host,
    presence: Iterable[Presence],
    warm: Collection[ModelName],
    models: Mapping[ModelName, Model],
    policy: Policy,
    now: datetime,
    *,
    reasons: Collection[EvictReason] | None = None,
) -> EvictionPlan:
    """Plan which entries go, and in which order; the plan of what is left after a plan is empty.

    Kept always: what is younger than the grace, what is being written, and what a pinned model needs in a present
    environment.  ``warm`` names the models that are warm now: an old driver's entries go only after the new driver's are
    there.  ``reasons`` restricts the plan.
    """
    present = frozenset(host.environments)
    generations = _generations(entries, host, presence, now)
    young = now - timedelta(seconds=policy.grace)
    evict: list[Evict] = []
    rest: list[IndexedEntry] = []
    for one in entries:
        if _kept(one, present, models, young):
            continue
        decided = _reason(one, generations, warm, models, policy, now)
        if decided is None:
            rest.append(one)
        elif reasons is None or decided[0] in reasons:
            evict.append(Evict(one, *decided))
    order = list(EvictReason)
    evict.sort(key=lambda one: (order.index(one.reason), one.entry.last_used, one.entry.entry.id.key))
    total = sum(one.entry.allocated for one in entries) - sum(one.entry.entry.allocated for one in evict)
    if policy.max_bytes is not None and (reasons is None or EvictReason.BUDGET in reasons):
        # What a registered model needs goes last of all.
        rest.sort(key=lambda one: (_owned(one, models) and one.entry.environment in present, one.last_used))
        for one in rest:
            if total <= policy.max_bytes:
                break
            total -= one.entry.allocated
            detail = f"the stores hold more than {policy.max_bytes} bytes; unused since {one.last_used:%Y-%m-%d %H:%M}"
            evict.append(Evict(one, EvictReason.BUDGET, detail))
    frees = sum(one.entry.entry.allocated for one in evict)
    return EvictionPlan(tuple(evict), frees, len(entries) - len(evict))


def _owned(one: IndexedEntry, models: Mapping[ModelName, Model]) -> bool:
    return any(name in models for name in one.models)


def _kept(
    one: IndexedEntry, present: Collection[Environment], models: Mapping[ModelName, Model], young: datetime
) -> bool:
    entry = one.entry
    if entry.state is EntryState.UNFINISHED or entry.created > young:
        return True
    pinned = any(name in models and models[name].pinned for name in one.models)
    return pinned and entry.state is EntryState.OK and (entry.environment is None or entry.environment in present)


def _reason(
    one: IndexedEntry,
    generations: _Generations,
    warm: Collection[ModelName],
    models: Mapping[ModelName, Model],
    policy: Policy,
    now: datetime,
) -> tuple[EvictReason, str] | None:
    entry = one.entry
    flaw = entry.flaw
    # A harmless flaw is none, and a hidden entry becomes whole when the lower slot is mended.
    if flaw is not None and flaw.effect not in (Effect.HARMLESS, Effect.HIDDEN):
        return EvictReason.FLAWED, flaw.words
    environment = entry.environment
    owners_warm = all(name in warm for name in one.models if name in models)
    if environment is not None and generations.rank.get(environment, 0) > policy.keep_driver_generations and owners_warm:
        newer = generations.successor[environment].driver
        return EvictReason.SUPERSEDED, f"driver {environment.driver} was superseded by {newer}"
    if environment is not None and environment in generations.gone:
        return EvictReason.GONE, f"{environment.device} has not been here for {GONE_FOR.days} days"
    if policy.max_unused is not None and now - one.last_used > timedelta(seconds=policy.max_unused):
        return EvictReason.UNUSED, f"not used since {one.last_used:%Y-%m-%d}"
    return None
