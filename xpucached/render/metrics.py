"""Present: figures for Prometheus, in its text format or in OpenMetrics.  Pure.

The values of labels are few and known, but for the names of models, of which there are 100 at most.  What is known is
always written, with 0: a series that appears later hides its first step from ``increase()``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from xpucached.domain.activity import WatchMode
from xpucached.domain.host import CODES
from xpucached.domain.models import Warmth
from xpucached.domain.plans import EvictReason
from xpucached.domain.status import Verdict
from xpucached.printing import encodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from xpucached.domain.overview import Overview
    from xpucached.domain.status import Status
    from xpucached.domain.usage import Amount, Day
    from xpucached.domain.users import HostStatus

    Labels = Mapping[str, str]

MOST_MODELS: Final = 100
"""Models with figures of their own: those with the highest priority."""

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Families:
    """Metric families as they are written one after the other."""

    def __init__(self, *, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self._lines: list[str] = []

    def add(self, name: str, kind: str, help_: str, samples: Iterable[tuple[Labels, float]], unit: str = "") -> None:
        """Add a family.  One without samples is left out: what is not known is not there."""
        rows = list(samples)
        if not rows:
            return
        # In OpenMetrics a family has no suffix, and its samples have; in the older format both have.
        suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
        family = name if self._openmetrics else name + suffix
        kind = "gauge" if kind == "info" and not self._openmetrics else kind
        self._lines += [f"# HELP {family} {help_}", f"# TYPE {family} {kind}"]
        if self._openmetrics and unit:
            self._lines.append(f"# UNIT {family} {unit}")
        for labels, value in rows:
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            self._lines.append(f"{name}{suffix}{f'{{{inside}}}' if inside else ''} {value!r}")

    def gauge(self, name: str, help_: str, value: float, unit: str = "") -> None:
        """Add a gauge of one sample."""
        self.add(name, "gauge", help_, [({}, value)], unit)

    def text(self) -> str:
        """Return all of it."""
        return "\n".join([*self._lines, *(["# EOF"] if self._openmetrics else [])]) + "\n"


def _escaped(text: str) -> str:
    return encodable(text).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _known(label: str, words: Iterable[str], found: Mapping[str, float]) -> list[tuple[Labels, float]]:
    return [({label: str(word)}, found.get(str(word), 0)) for word in words]


def metrics(status: Status, overview: Overview, days: Sequence[Day], *, openmetrics: bool = False) -> str:
    """Write the figures of a user's daemon; ``days`` are all since the beginning."""
    page = Families(openmetrics=openmetrics)
    driver = "/".join(one.driver for one in overview.usage.drivers[:4] if one.present)
    _beginning(page, status.version, driver, overview.started, overview.at)
    page.add(
        "xpucached_verdict",
        "gauge",
        "1 for the verdict that holds, 0 for the others.",
        _known("verdict", Verdict, {status.verdict: 1}),
    )
    page.add(
        "xpucached_watch",
        "gauge",
        "1 for the way in which changes are noticed, 0 for the others.",
        _known("mode", WatchMode, {status.watching.mode: 1}),
    )
    page.add(
        "xpucached_models",
        "gauge",
        "Registered models by how they stand.",
        _known("warmth", Warmth, Counter(str(one.warmth) for one in status.models)),
    )
    _of_models(page, status, overview)
    _of_entries(page, overview)
    page.add(
        "xpucached_evictable_bytes",
        "gauge",
        "Bytes that eviction would free now, by reason.",
        _known("reason", EvictReason, {str(one.reason): one.allocated for one in overview.evictable.reasons}),
        "bytes",
    )
    page.gauge("xpucached_defective_entries", "Damaged entries.", status.defective)
    if status.changes:
        at = max(one.at for one in status.changes).timestamp()
        page.gauge("xpucached_driver_changed_timestamp_seconds", "When the driver last became another.", at, "seconds")
    _of_days(page, days)
    page.add(
        "xpucached_compiling_programs",
        "gauge",
        "Programs that were seen to compile in the last hour; of services users waited.",
        _known(
            "serves",
            ("yes", "no"),
            Counter("yes" if one.program.serves else "no" for one in status.watching.compiling),
        ),
    )
    page.add(
        "xpucached_problems",
        "gauge",
        "Problems that status shows, by code.",
        [({"code": code}, count) for code, count in sorted(overview.problems.items())],
    )
    page.gauge("xpucached_jobs", "Jobs under way.", len(status.jobs))
    return page.text()


def _beginning(page: Families, version: str, driver: str, started: datetime, now: datetime) -> None:
    page.add("xpucached", "info", "The program and the drivers.", [({"version": version, "driver": driver}, 1)])
    page.gauge("xpucached_start_time_seconds", "When the daemon began.", started.timestamp(), "seconds")
    page.gauge("xpucached_written_timestamp_seconds", "When these figures were taken.", now.timestamp(), "seconds")


def _of_models(page: Families, status: Status, overview: Overview) -> None:
    models = sorted(status.models, key=lambda one: (-one.priority, one.model.name))[:MOST_MODELS]
    shown = {one.model.name for one in models}
    page.add(
        "xpucached_model_warm",
        "gauge",
        f"1 if the model is warm; the first {MOST_MODELS} by priority.",
        [({"model": one.model.name}, int(one.warmth is Warmth.WARM)) for one in models],
    )
    used = [one for one in overview.usage.models if one.model in shown]
    page.add(
        "xpucached_model_bytes",
        "gauge",
        "Bytes of a model's entries for what is here now: its own, and shared with others.",
        [
            ({"model": one.model, "share": share}, amount.allocated)
            for one in used
            for share, amount in (("own", one.own), ("shared", one.shared))
        ],
        "bytes",
    )


def _of_entries(page: Families, overview: Overview) -> None:
    def sums(here: bool) -> list[Amount]:  # noqa: FBT001 - one of two words
        return [one for one in overview.usage.drivers if one.present is here]

    both = (("present", sums(here=True)), ("gone", sums(here=False)))
    page.add(
        "xpucached_entries",
        "gauge",
        "Entries, for drivers that are here and for others.",
        [({"driver": word}, sum(one.entries for one in some)) for word, some in both],
    )
    page.add(
        "xpucached_allocated_bytes",
        "gauge",
        "Bytes on disk, for drivers that are here and for others.",
        [({"driver": word}, sum(one.allocated for one in some)) for word, some in both],
        "bytes",
    )
    page.add(
        "xpucached_compile_cost_seconds",
        "gauge",
        "Seconds that compiling all entries takes, measured or estimated.",
        [({"driver": word}, sum(one.seconds for one in some)) for word, some in both],
        "seconds",
    )


def _of_days(page: Families, days: Sequence[Day]) -> None:
    def total(name: str) -> float:
        return sum(getattr(one, name) or 0 for one in days)

    by = (("replay", "replayed", "replay_seconds"), ("prewarm", "prewarmed", "prewarm_seconds"))
    compiles: list[tuple[Labels, float]] = [({"by": word}, total(count)) for word, count, _ in by]
    if any(one.compiled is not None for one in days):
        compiles.append(({"by": "program"}, total("compiled")))
    page.add("xpucached_compiles", "counter", "Entries compiled, by who did.", compiles)
    page.add(
        "xpucached_compile_seconds",
        "counter",
        "Seconds that we compiled.",
        [({"by": word}, total(seconds)) for word, _, seconds in by],
        "seconds",
    )
    spared = total("spared_seconds")
    page.add(
        "xpucached_spared_seconds",
        "counter",
        "Seconds of compiling that replay spared models.",
        [({}, spared)],
        "seconds",
    )
    if any(one.loads is not None for one in days):
        page.add("xpucached_loads", "counter", "Loads of entries that were seen.", [({}, total("loads"))])
        page.add(
            "xpucached_avoided_seconds",
            "counter",
            "Seconds of compiling that seen loads avoided, measured or estimated.",
            [({}, total("avoided_seconds"))],
            "seconds",
        )
    page.add(
        "xpucached_runs",
        "counter",
        "Runs of models by how they ended.",
        [({"outcome": word}, total(word)) for word in ("warmed", "failed")],
    )
    page.add("xpucached_evicted_bytes", "counter", "Bytes that eviction freed.", [({}, total("freed"))], "bytes")
    page.add("xpucached_driver_changes", "counter", "Changes of driver or device.", [({}, total("changes"))])


def host_metrics(status: HostStatus, now: datetime, *, openmetrics: bool = False) -> str:
    """Write the figures of the host's daemon: of all users together, as each one's worker last said."""
    page = Families(openmetrics=openmetrics)
    _beginning(page, status.version, "", status.started, now)
    verdicts = Counter(str(one.verdict) for one in status.known if one.verdict is not None)
    page.add("xpucached_users", "gauge", "Users by their verdicts.", _known("verdict", Verdict, verdicts))
    failed = sum(len(one.failed) for one in status.known)
    models = {
        "warm": sum(one.warm for one in status.known),
        # Of each alone: what one's worker says of itself costs nobody else's.
        "cold": sum(max(0, one.cold - len(one.failed)) for one in status.known) + len(status.in_vain),
        "failed": failed,
    }
    page.add(
        "xpucached_models",
        "gauge",
        "Models of all users by how they stand; cold is what is neither warm nor failed.",
        _known("warmth", models, models),
    )
    page.gauge("xpucached_entries", "Entries of all users.", sum(one.entries for one in status.known))
    page.gauge(
        "xpucached_allocated_bytes",
        "Bytes on disk of all users.",
        sum(one.allocated for one in status.known),
        "bytes",
    )
    if status.changed is not None:
        page.gauge(
            "xpucached_driver_changed_timestamp_seconds",
            "When the driver last became another.",
            status.changed.timestamp(),
            "seconds",
        )
    # A user's worker may say what it likes, another word each time, and each word would be a series for ever.
    theirs = (code if code in CODES else "unknown" for one in status.known for code in one.problems)
    codes = Counter([*(one.code for one in status.problems), *theirs])
    page.add(
        "xpucached_problems",
        "gauge",
        "Problems of the host and of its users, by code.",
        [({"code": code}, count) for code, count in sorted(codes.items())],
    )
    return page.text()
