"""Decide: what became slower or faster after a change, beyond the unrest of the model's own runs.  Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from xpucached.domain.diagnosis import Figure
from xpucached.domain.models import Outcome
from xpucached.domain.shifts import Shift
from xpucached.planning.baselines import FEWEST, limit, samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xpucached.domain.models import Run

_TOLD: Final = frozenset({Figure.COLD, Figure.WARM, Figure.STEADY})
"""Figures of which a change is told: what somebody waits for."""

_ALIKE: Final = 0.1
"""A cold pass is compared with those that compiled as many programs, give or take such a part."""


def shifts(runs: Iterable[Run]) -> tuple[Shift, ...]:
    """Return what became slower or faster with a change on the host, and still is, over these runs of one model.

    The median of the runs since a change is compared with that of those before it: with the time between it and the
    change before, where that has four runs or more, else with all earlier ones, if the last of them is one of these.
    Where fewer than four are known, their unrest is not, and nothing is said.  Runs of the model as it was registered
    before count for nothing.
    """
    newest_first = sorted((one for one in runs if one.finished is not None), key=lambda one: one.id, reverse=True)
    if not newest_first:
        return ()
    workload = newest_first[0].workload
    periods = _periods([one for one in reversed(newest_first) if one.workload == workload])
    values = [_values(period) for _, period in periods]
    found = [shift for number in range(1, len(periods)) for shift in _compared(periods, values, number)]
    return tuple(one for one in found if _holds(one, values))


def _periods(runs: Sequence[Run]) -> list[tuple[tuple[str, ...], list[Run]]]:
    """Part runs, oldest first, where something changed; with each part comes what did."""
    periods: list[tuple[tuple[str, ...], list[Run]]] = []
    last: Run | None = None
    for run in runs:
        if run.outcome not in {Outcome.WARMED, Outcome.UNPROVEN}:
            continue
        changed = between(last, run) if last is not None else ()
        if last is None or changed:
            periods.append((changed, []))
        periods[-1][1].append(run)
        last = run
    return periods


def sentence(one: Shift) -> str:
    """Say what is slower or faster, by how much, how well that is known, and what came between."""
    name = one.figure.removesuffix("-seconds").replace("-", " ")
    runs = "1 run" if one.after_runs == 1 else f"median of {one.after_runs} runs"
    return (
        f"{one.variant}, {name} pass: {'slower' if one.slower else 'faster'}, {one.before:.3g} s → {one.after:.3g} s"
        f" ({runs}; before, the median of {one.before_runs} and {one.spread:.2g} s around it),"
        f" since {'; '.join(one.changed)}"
    )


def between(earlier: Run, later: Run) -> tuple[str, ...]:
    """Return what changed between two runs of one model that follow each other, a sentence each."""
    return (*_drivers(earlier, later), *_kernels(earlier, later), *_runtimes(earlier, later), *_files(earlier, later))


def _drivers(earlier: Run, later: Run) -> Iterable[str]:
    was = {one.lineage: one.toolchain for one in earlier.environments}
    told = False
    for one in later.environments:
        before = was.get(one.lineage)
        if before is not None and before != one.toolchain:
            told = True
            yield f"{one.device}: driver {before} → {one.toolchain}"
    if not told and later.host != earlier.host:
        yield "the devices, their drivers, or the variables that all programs get are others"


def _kernels(earlier: Run, later: Run) -> Iterable[str]:
    if earlier.kernel and later.kernel and earlier.kernel != later.kernel:
        yield f"Linux {earlier.kernel} → {later.kernel}"


def _runtimes(earlier: Run, later: Run) -> Iterable[str]:
    if earlier.libraries is None or later.libraries is None:
        return
    was = {one.library.name: one.build for one in earlier.libraries.runtimes}
    now = {one.library.name: one.build for one in later.libraries.runtimes}
    # Who has none mapped was not seen to use one: that says nothing.
    if was and now and was != now:
        others = sorted(name for name in now if was.get(name) != now[name]) or sorted(was.keys() - now.keys())
        yield f"the SYCL runtime is another build ({', '.join(others)})"


def _files(earlier: Run, later: Run) -> Iterable[str]:
    # What was told of a run that proved nothing is told again of the next: it is compared with the last proof.
    known = () if earlier.outcome is Outcome.WARMED else earlier.changes
    return (one for one in later.changes if one not in known)


_Values = dict[tuple[str, Figure], list[tuple[float, int]]]
"""Each figure of each variant, with the number of programs that the first pass compiled."""


def _compared(
    periods: Sequence[tuple[tuple[str, ...], Sequence[Run]]], values: Sequence[_Values], number: int
) -> Iterable[Shift]:
    """Compare a period with those before it."""
    first = periods[number][1][0]
    for (variant, figure), after in values[number].items():
        if figure not in _TOLD:
            continue
        before = [_alike(figure, one.get((variant, figure), []), after) for one in values[:number]]
        nearest = next((place for place in reversed(range(number)) if before[place]), None)
        last = [] if nearest is None else before[nearest]
        compared = last if len(last) >= FEWEST else [value for period in before for value in period]
        if nearest is None or len(compared) < FEWEST:
            continue
        usual, now = median(compared), median(value for value, _ in after)
        spread = median(abs(value - usual) for value in compared)
        chance = limit(figure, usual, spread)
        # What was so before the change did not come with it.
        if abs(now - usual) > chance >= abs(median(last) - usual):
            numbers = (usual, spread, len(compared), now, len(after))
            changed = dict.fromkeys(word for words, _ in periods[nearest + 1 : number + 1] for word in words)
            yield Shift(0, first.model, variant, figure, first.id, first.started, *numbers, tuple(changed))


def _holds(shift: Shift, values: Sequence[_Values]) -> bool:
    """Return whether the newest runs that tell are still as far from what was usual, to the same side."""
    key = (shift.variant, shift.figure)
    newest = next((one[key] for one in reversed(values) if key in one), [])
    now = median(value for value, _ in newest) if newest else shift.after
    far = now - shift.before if shift.slower else shift.before - now
    return far > limit(shift.figure, shift.before, shift.spread)


def _values(runs: Iterable[Run]) -> _Values:
    found: _Values = {}
    for run in runs:
        created = {one.variant.label: one.passes[0].created for one in run.trials if one.passes}
        default = run.passes[0].created if run.passes else 0
        for variant, figure, value in samples(run):
            found.setdefault((variant, figure), []).append((value, created.get(variant, default)))
    return found


def _alike(figure: Figure, before: Iterable[tuple[float, int]], after: Sequence[tuple[float, int]]) -> list[float]:
    """Leave out cold passes that compiled more, or less: with what was compiled ahead, one is only quicker."""
    if figure is not Figure.COLD:
        return [value for value, _ in before]
    compiled = median(created for _, created in after)
    return [value for value, created in before if abs(created - compiled) <= _ALIKE * compiled]
