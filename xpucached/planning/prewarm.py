"""Decide: which models to warm now, and which wait.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.domain.dependencies import MEANWHILE
from xpucached.domain.host import given_by
from xpucached.domain.models import Outcome, Proof, WarmReason
from xpucached.domain.plans import Deferred, PrewarmPlan, Warm

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from xpucached.domain.host import Host
    from xpucached.domain.models import Coverage, Model, Run
    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import Policy
    from xpucached.domain.targets import Target
    from xpucached.domain.throttling import Waiting

_IN_A_ROW: Final = 2
"""Runs for what changed in the one before that follow it at once; then there are pauses, as after failures."""

_LONGEST_DELAY: Final = 30 * 86400.0
"""Doubling has to end somewhere: a month is as good as never, and no date overflows."""

_NAMED: Final = 3
"""Changes that one sentence names."""

# These runs say nothing about the model: we were stopped, or died.
_SILENT: Final = frozenset({Outcome.CANCELLED, Outcome.LOST})

UNCACHED: Final = (
    "it uses no cache that xpucached knows, so there is nothing to keep warm; it is not run again until its workload or"
    " the driver changes, or somebody asks for it with --force"
)
NO_DEVICE: Final = "no device to warm it on"


def nothing_to_warm(model: ModelName) -> Deferred:
    """Say of a model that it uses no cache that is known."""
    return Deferred(model, UNCACHED, None, uncached=True)


@dataclass(frozen=True, slots=True)
class Need:
    """Why a model is not warm."""

    reason: WarmReason
    detail: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A model's failures in a row under the present circumstances, and when it may be tried again."""

    count: int
    last: Run
    until: datetime | None  #: None: not by itself


def need(model: Model, coverage: Coverage | None, host: Host) -> Need | None:
    """Return why a model is not warm on a host that has a device; None if it is.  ``host`` is as its programs meet it.

    It is warm if a good run had the present workload, each environment of that run is still offered (or, if it touched
    none, the host offers exactly what it did then), all its entries are still there and whole, nothing that the run
    needed has changed, and no newer run denies it.  An earlier driver that comes back brings its old proof with it.
    Where only the compiler is another, an environment counts as offered if all that programs will look for instead is
    there.  What cannot be read now counts as it was known: whether that is so, `unread` says.
    """
    coverage = applicable(coverage, host) if coverage is not None else None
    good = coverage.good if coverage is not None else None
    if coverage is None or good is None:
        return _never_warmed(model, coverage.last if coverage is not None else None, host)
    if good.workload != model.workload.digest:
        return Need(WarmReason.CHANGED, "its workload changed since it was warmed")
    if why := _against(good, coverage, host):
        return Need(WarmReason.DRIVER, why)
    if coverage.remaining < coverage.entries:
        lost = coverage.entries - coverage.remaining
        where = [f"{one.entries - one.remaining} {one.kind}" for one in coverage.layers if one.remaining < one.entries]
        which = f" ({', '.join(where)})" if where else ""
        if coverage.elsewhere:
            moved = f"it caches in another store now, where {lost} of its {coverage.entries} entries are not{which}"
            return Need(WarmReason.LOST, moved)
        return Need(WarmReason.LOST, f"{lost} of its {coverage.entries} entries are gone or damaged{which}")
    for one in coverage.denials:
        if one.id > good.id and _denies(one, coverage, host):
            return Need(WarmReason.RETRY, f"run {one.id} did not prove it again: {one.detail}")
    if coverage.changes:
        return Need(WarmReason.PROGRAM, f"not proven as it is now: {listed(coverage.changes)}")
    return None


def _denies(run: Run, coverage: Coverage, host: Host) -> bool:
    """Return whether a run that showed that a model is not warm counts for what programs meet now, as a proof does."""
    met = all(_offered(one, coverage.successors, host) for one in run.environments)
    return run.host == host.signature or (met and bool(run.environments) and host.gave(run.host))


def _against(good: Run, coverage: Coverage, host: Host) -> str:
    """Return what of a host is not as it was when a run warmed a model; empty if nothing."""
    gone = sorted(one for one in good.environments if not _offered(one, coverage.successors, host))
    if gone:
        return _gone(gone[0], host) + _rebuilt(coverage)
    if not host.gave(good.host):
        # Of runs in catalogs of earlier versions it was not noted.
        known = (
            "changed since it was warmed"
            if given_by(good.host)
            else "are set now, and none were noted when it was warmed"
        )
        return f"driver.variables, or the daemon's own of their kind, {known}"
    if came := _came(good, coverage.appeared, host):
        used = {one.lineage for one in good.environments}
        drivers = {one: f"driver {one.toolchain} for {one.device}" for one in came if one.lineage in used}
        which = ", ".join(sorted({drivers.get(one, one.device) for one in came}))
        return f"{which} came since it was warmed: its programs may use that now"
    return "" if _holds(coverage, host) else "the host's devices or drivers changed since it was warmed"


def unread(coverage: Coverage | None, host: Host) -> str:
    """Return what of a model's entries, or of where it caches, cannot be read now; empty if nothing."""
    coverage = applicable(coverage, host) if coverage is not None else None
    if coverage is None or not coverage.unreadable:
        return ""
    what = f"{coverage.unread} of its {coverage.entries} entries" if coverage.unread else "where it caches"
    return f"{what} cannot be read now ({coverage.unreadable})"


def listed(changes: Sequence[str]) -> str:
    """Name what changed, the first few of it."""
    more = len(changes) - _NAMED
    return "; ".join([*changes[:_NAMED], *([f"and {more} more"] if more > 0 else [])])


def applicable(coverage: Coverage, host: Host) -> Coverage:
    """Let that proof count which holds for the drivers that a model's programs meet now; else the newest."""
    if coverage.good is None or _holds(coverage, host):
        return coverage
    subtotal = [one for one in coverage.proofs if _holds(one, host)]
    if not subtotal:
        return coverage
    best = max(subtotal, key=lambda one: (one.remaining >= one.entries, not one.unreadable, one.run.id))
    return replace(
        coverage,
        good=best.run,
        entries=best.entries,
        remaining=best.remaining,
        layers=best.layers,
        successors=best.successors,
        elsewhere=best.elsewhere,
        appeared=best.appeared,
        unread=best.unread,
        unreadable=best.unreadable,
        changes=(),
    )


def _holds(proof: Proof | Coverage, host: Host) -> bool:
    """Return whether a run shows anything for what programs meet now."""
    run = proof.run if isinstance(proof, Proof) else proof.good
    if run is None or not host.gave(run.host) or _came(run, proof.appeared, host):
        return False
    if not run.environments:
        return run.host == host.signature
    return all(_offered(one, proof.successors, host) for one in run.environments)


def _came(run: Run, appeared: Iterable[Target], host: Host) -> tuple[Target, ...]:
    """Return what came since a run began and programs meet now: devices, and other drivers for those that it used."""
    new = frozenset(appeared)
    idle = {one.lineage for one in host.environments if one not in new} - {one.lineage for one in run.environments}
    some = [one for one in appeared if one in host.environments and one.lineage not in idle]
    # What other models had before it is no news of the host's: what this one met then, its signature tells.
    used = {one.lineage for one in run.environments}
    others = [one for one in host.environments if one.lineage in used and one not in run.environments]
    rest = tuple(one for one in host.environments if one not in others)
    some += others if others and replace(host, environments=rest).signature == run.host else []
    return tuple(one for one in dict.fromkeys(some) if not any(_alike(one, mine) for mine in run.environments))


def _offered(environment: Target, successors: Collection[Target], host: Host) -> bool:
    """Return whether programs meet an environment, or one with another compiler that has all that they look for."""
    return environment in host.environments or any(
        _alike(one, environment) and one in host.environments for one in successors
    )


def _alike(one: Target, other: Target) -> bool:
    return (one.lineage, one.toolchain) == (other.lineage, other.toolchain)


def met_another_compiler(good: Run, host: Host) -> bool:
    """Return whether the run that shows that a model is warm met another compiler."""
    return not set(good.environments) <= set(host.environments)


def rests_on_successors(coverage: Coverage, host: Host) -> bool:
    """Return whether a proof counts only because of what lies where it was predicted for another compiler."""
    coverage = applicable(coverage, host)
    good = coverage.good
    return good is not None and met_another_compiler(good, host) and _holds(coverage, host)


def _never_warmed(model: Model, last: Run | None, host: Host) -> Need:
    if last is None or last.outcome in _SILENT:
        return Need(WarmReason.NEVER, "it has never been warmed")
    if last.workload != model.workload.digest:
        return Need(WarmReason.CHANGED, "its workload changed since it was tried")
    if last.host != host.signature:
        return Need(WarmReason.DRIVER, "the host's devices or drivers changed since it was tried")
    return Need(WarmReason.NEVER, "it has never been warmed")


def _gone(environment: Target, host: Host) -> str:
    successors = [one for one in host.environments if one.lineage == environment.lineage]
    present = sorted({one.toolchain for one in successors})
    alike = next((one for one in successors if one.toolchain == environment.toolchain), None)
    if alike is not None:
        what = " and ".join(sorted({name for name, _ in set(environment.facts) ^ set(alike.facts)}))
        return f"the {what} of driver {environment.toolchain} changed since it was warmed for {environment.device}"
    if present:
        return f"it was warmed for driver {environment.toolchain}; {environment.device} now has {', '.join(present)}"
    return f"it was warmed for {environment.device}, which this host does not offer now"


def _rebuilt(coverage: Coverage) -> str:
    if not coverage.inherited:
        return ""
    # Entries of a model that were there at no proof were made again, too.
    of = f", of {coverage.entries} that it had" if coverage.inherited <= coverage.entries else ""
    return f"; for that {coverage.inherited} entries are there already{of}"


def uncached(model: Model, coverage: Coverage | None, host: Host) -> Run | None:
    """Return the run that showed that a model uses no cache that we know; None if none did, or things changed since."""
    last = coverage.last if coverage is not None else None
    if last is None or last.outcome is not Outcome.UNCACHED or last.workload != model.workload.digest:
        return None
    # With another driver a program may find a device that it did not find before.
    return last if last.host == host.signature or model.workload.exercise.elsewhere else None


def failure(model: Model, coverage: Coverage | None, host: Host, policy: Policy, now: datetime) -> Failure | None:
    """Tell how often a model failed in a row; None if it did not, or if it may start afresh because things changed."""
    last = coverage.last if coverage is not None else None
    if coverage is None or last is None or coverage.failures <= 0:
        return None
    if last.workload != model.workload.digest or last.host != host.signature:
        return None
    if coverage.failures >= policy.attempts or last.outcome is Outcome.CRASHED:
        return Failure(coverage.failures, last, None)
    ended = last.finished if last.finished is not None else last.started
    if last.outcome in _SILENT or ended > now:
        # We were stopped, or the clock was set back: neither is a reason to wait.
        return Failure(coverage.failures, last, now)
    delay = min(policy.retry_after * 2.0 ** (coverage.failures - 1), _LONGEST_DELAY)
    return Failure(coverage.failures, last, ended + timedelta(seconds=delay))


def rest(coverage: Coverage | None, wanted: Need, policy: Policy, now: datetime) -> Deferred | None:
    """Return until when a model is not run again that changes in each run: its program writes what it needs itself.

    Or somebody works at it: then no run is of much use before he has done.
    """
    if coverage is None or wanted.reason is not WarmReason.PROGRAM or coverage.again < _IN_A_ROW:
        return None
    if not any(one.endswith(MEANWHILE) for one in coverage.changes):
        return None
    ended = coverage.last.finished if coverage.last is not None else None
    delay = min(policy.retry_after * 2.0 ** (coverage.again - _IN_A_ROW), _LONGEST_DELAY)
    until = ended + timedelta(seconds=delay) if ended is not None and ended <= now else now
    why = f"{coverage.again + 1} runs in a row were of no use, as it changed in each; {_after(until)}"
    return Deferred(coverage.model, f"{wanted.detail}; {why}", until) if until > now else None


def describe(failed: Failure) -> str:
    """Tell of failures, as the beginning of a sentence."""
    how = f"{failed.last.outcome or 'failed'}: {failed.last.detail}" if failed.last.detail else f"{failed.last.outcome}"
    times = "once" if failed.count == 1 else f"{failed.count} times in a row"
    return f"it could not be warmed, {times} ({how})"


def plan_prewarm(
    models: Iterable[Model],
    coverage: Iterable[Coverage],
    host: Host,
    policy: Policy,
    now: datetime,
    *,
    away: Mapping[ModelName, Waiting] | None = None,
    force: frozenset[ModelName] | None = None,
    patient: bool = True,
) -> PrewarmPlan:
    """Decide which models to warm now, the most urgent first (priority, then name), and which wait.

    Models in ``force`` are warmed even if they are warm, or failed too often: somebody asked for them by name.  What
    changes in the midst of each run waits, if one is ``patient``, as nobody is who asked for all that is stale.  What
    is ``away`` waits, too: its run would fail, and what it makes would lie where a home is to be mounted.
    """
    known = {one.model: one for one in coverage}
    warm: list[Warm] = []
    deferred: list[Deferred] = []
    covered: list[ModelName] = []
    for model in sorted(models, key=lambda one: (-one.priority, one.name)):
        here = host.seen_by(model.name)
        if not here.environments and not model.workload.exercise.elsewhere:
            deferred.append(Deferred(model.name, f"{NO_DEVICE}; see: xpucachectl why {model.name}", None))
            continue
        mine = known.get(model.name)
        wanted = need(model, mine, here)
        if force is not None and model.name in force:
            warm.append(
                Warm(model, WarmReason.MANUAL, f"asked for; {wanted.detail if wanted else 'it is warm already'}")
            )
            continue
        shut = unread(mine, here)
        if wanted is None and not shut:
            covered.append(model.name)
            continue
        if uncached(model, mine, here) is not None:
            deferred.append(nothing_to_warm(model.name))
            continue
        failed = failure(model, mine, here, policy, now)
        if away and model.name in away:
            deferred.append(Deferred(model.name, away[model.name].why, None))
        elif wanted is None or shut:
            # A run could neither find what is there nor show that it was kept.
            deferred.append(Deferred(model.name, shut, None))
        elif failed is None and patient and (late := rest(mine, wanted, policy, now)) is not None:
            deferred.append(late)
        elif failed is None:
            warm.append(Warm(model, wanted.reason, wanted.detail))
        elif failed.until is not None and failed.until <= now:
            warm.append(Warm(model, WarmReason.RETRY, f"{describe(failed)}; {wanted.detail}"))
        else:
            deferred.append(Deferred(model.name, f"{describe(failed)}; {again(failed)}", failed.until))
    return PrewarmPlan(tuple(warm), tuple(deferred), tuple(covered))


def again(failed: Failure) -> str:
    """Return when a model that failed is tried again."""
    if failed.until is None:
        return "it is not tried again until its workload or the driver changes, or somebody asks for it"
    return _after(failed.until)


def _after(until: datetime) -> str:
    return f"it is tried again after {until:%Y-%m-%d %H:%M} UTC"
