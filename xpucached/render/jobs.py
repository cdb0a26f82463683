"""Door: jobs, what they did, and events, for people.  Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from xpucached.domain.jobs import UNDER_WAY, JobState
from xpucached.domain.plans import EvictReason
from xpucached.domain.reports import EvictionReport, PrewarmReport, ReplayReport, ScanReport, TrashReport, VerifyReport
from xpucached.printing import plain, quoted, safe
from xpucached.render import trash
from xpucached.render.models import detail, outcome_of
from xpucached.render.text import Cell, Colour, age, count, fold, seconds, size, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Sized
    from datetime import datetime

    from xpucached.domain.jobs import Event, Job
    from xpucached.render.text import TextStyle

_LAST_LINES: Final = 10
"""So many lines of what a failed run printed are shown at once."""

_JOB_COLOURS: Final[Mapping[JobState, Colour]] = {
    JobState.QUEUED: Colour.DIM,
    JobState.RUNNING: Colour.YELLOW,
    JobState.DONE: Colour.GREEN,
    JobState.FAILED: Colour.RED,
    JobState.CANCELLED: Colour.YELLOW,
}


def progress(job: Job, now: datetime | None = None) -> str:
    """Write how far a job is, in one line; with how long it may last, if it is said what time it is ``now``."""
    done = _done(job, now)
    detail = f": {job.progress.detail}" if job.progress.detail else ""
    left = f", {_left(job, now)}" if now is not None and _left(job, now) else ""
    return plain(f"{job.kind} {job.state}{f' {done}' if done else ''}{left}{detail}")


def _done(job: Job, now: datetime | None) -> str:
    """Write how many parts are done, and which part of the whole that is: of the usual time, or else of the parts."""
    done, total, ends = job.progress.done, job.progress.total, job.progress.ends
    if not total or job.state not in UNDER_WAY:
        return f"{done}/{total}" if total else ""
    share = done / total
    if now is not None and ends is not None and job.started is not None and ends > job.started:
        # Of one part that takes long, the parts say nothing; what is not done is not 100 %.
        share = max(share, min((now - job.started) / (ends - job.started), 0.99))
    return f"{done}/{total}{f' ({int(share * 100)} %)' if 0 < share < 1 else ''}"


def _left(job: Job, now: datetime) -> str:
    """Write how long a job may last; nothing once that is over."""
    ends = job.progress.ends
    return (
        f"about {seconds(float(round((ends - now).total_seconds())))} left" if ends is not None and ends > now else ""
    )


def jobs(values: Sequence[Job], style: TextStyle, owners: Sequence[str] = ()) -> str:
    """Write one line per job."""
    if not values:
        return "no jobs"
    rows: list[list[str | Cell]] = [
        [
            one.id,
            one.kind,
            Cell(one.state, _JOB_COLOURS[one.state]),
            _done(one, style.now) or "-",
            age(one.created, style.now),
            one.error.message if one.error else _now(one, style.now) if one.state in UNDER_WAY else "",
        ]
        for one in values
    ]
    return table(("JOB", "WHAT", "STATE", "DONE", "ASKED", "DETAIL"), rows, style, owners=owners)


def job(one: Job, style: TextStyle) -> str:
    """Write what became of a job."""
    if one.error is not None:
        hint = f"\n{plain(one.error.hint)}" if one.error.hint else ""
        what = style.paint(plain(f"{one.kind} {one.state}"), _JOB_COLOURS[one.state])
        said = f"{what}: {plain(one.error.message)}{hint}"
        # What a program that failed printed says most often why.
        return f"{said}\n\n{prewarming(one.report, style)}" if isinstance(one.report, PrewarmReport) else said
    mended = f"{trash.verification(one.mended, style)}\n\n" if one.mended is not None else ""
    match one.report:
        case EvictionReport() as report:
            return f"{mended}{eviction(report, style)}"
        case ReplayReport() as report:
            return replay(report, style)
        case PrewarmReport() as report:
            return prewarming(report, style)
        case VerifyReport() as report:
            return trash.verification(report, style)
        case TrashReport() as report:
            return trash.trash_report(report, style)
        case ScanReport() as report:
            changes = f"{report.added} new, {report.changed} changed, {report.vanished} gone"
            looked = f"looked at {count(report.stores, 'store')} in {seconds(report.seconds)}"
            unread = f"; not read: {report.unread} directories or entries" if report.unread else ""
            return f"{looked}: {count(report.entries, 'entry')}, {changes}{unread}"
        case None:
            return f"{mended}{progress(one)}"


def _now(job: Job, now: datetime) -> str:
    return "; ".join(filter(None, (_left(job, now), job.progress.detail)))


def prewarming(report: PrewarmReport, style: TextStyle) -> str:
    """Write what prewarming did."""
    lines: list[str] = []
    for one in report.runs:
        outcome = outcome_of(one)
        how = f": {detail(one)}" if detail(one) else ""
        said = fold(plain(one.model + how), style, len(plain(outcome.text)) + 2)
        lines.append(f"{style.paint(plain(outcome.text), outcome.colour)}  {said}")
        if one.last_words:
            last = [line for line in one.output.splitlines() if line.strip()][-_LAST_LINES:]
            lines += [f"    {safe(line)}" for line in last if len(last) > 1]
            lines.append(f"  all of it: xpucachectl model show {quoted(one.model)}")
    lines += [f"{style.paint('warm already', Colour.GREEN)}  {plain(name)}" for name in report.covered]
    for late in report.deferred:
        head = style.paint("uncached", Colour.DIM) if late.uncached else style.paint("not now", Colour.YELLOW)
        indent = len("uncached" if late.uncached else "not now") + 2
        lines.append(f"{head}  {fold(plain(f'{late.model}: {late.why}'), style, indent)}")
    return "\n".join(lines) or "nothing to warm"


def eviction(report: EvictionReport, style: TextStyle) -> str:
    """Write what was evicted, or would be."""
    gone, busy = frozenset(report.removed), frozenset(report.busy)
    rows: list[list[str | Cell]] = [
        [
            one.entry.entry.id.ref,
            "would go" if report.dry_run else _fate(one.entry.entry.id.ref in gone, one.entry.entry.id.ref in busy),
            one.reason,
            size(one.entry.entry.allocated),
            one.entry.entry.environment.toolchain if one.entry.entry.environment else "-",
            one.detail,
        ]
        for one in report.plan.evict
    ]
    stays = {one.path: one.stays for one in report.caches}
    rows += [
        [
            one.cache.ref,
            "would go" if report.dry_run else _fate(not stays.get(one.cache.path, "-"), True),  # noqa: FBT003
            one.reason,
            size(one.cache.allocated),
            "-",
            f"{one.cache.path}: {stays.get(one.cache.path) or one.detail}",
        ]
        for one in report.plan.caches
    ]
    kept = f", {count(report.plan.kept, 'entry')} kept" if report.plan.kept else ""
    if not rows:
        return f"nothing to evict{kept}"
    heads = ("REF", "FATE", "REASON", "SIZE", "DRIVER", "WHY")
    text = table(heads, rows, style, right="SIZE")
    if report.dry_run:
        goes = f"would evict {_counted(report.plan.evict, report.plan.caches)} and free {size(report.plan.frees)}{kept}"
        if not report.plan_id:
            return f"{text}\n{goes}"
        mended = any(one.reason is EvictReason.DEFECTIVE for one in report.plan.evict)
        first = "what is defective is mended first where that can be, unless it goes by a plan\n" if mended else ""
        return f"{text}\n{goes}\n{first}exactly this: xpucachectl evict --plan {quoted(report.plan_id)}"
    gone_places = [one for one in report.caches if not one.stays]
    stay_places = len(report.caches) - len(gone_places)
    left = f", {len(busy) + stay_places} busy and left" if busy or stay_places else ""
    away = max(0, report.freed - report.trashed)
    freed = f" and freed {size(away)}" if away or not report.trashed else ""
    all_of_it = "" if away else "all "
    of_it = " of it" if away else ""
    trashed = f", {all_of_it}{size(report.trashed)}{of_it} still in the trash" if report.trashed else ""
    ref = quoted(report.removed[0]) if len(report.removed) == 1 else "REF"
    back = f"\nback again: xpucachectl trash restore {ref}" if report.trashed else ""
    return f"{text}\nevicted {_counted(gone, gone_places)}{freed}{trashed}{left}{kept}{back}"


def _counted(entries: Sized, directories: Sized) -> str:
    """Write how many entries, and how many directories of models if there are any."""
    if not len(directories):
        return count(len(entries), "entry")
    whole = count(len(directories), "directory")
    return f"{count(len(entries), 'entry')} and {whole}" if len(entries) else whole


def replay(report: ReplayReport, style: TextStyle) -> str:
    """Write what was rebuilt, or would be, per store and model."""
    groups: Counter[tuple[str, str, str, str, str]] = Counter()
    times: dict[tuple[str, str, str, str, str], float | None] = {}
    for one in report.plan.rebuild:
        models = ", ".join(one.entry.models) or "-"
        group = (str(one.entry.entry.id.store.root), models, one.reason, one.to.device, one.to.toolchain)
        groups[group] += 1
        so_far = times.get(group, 0.0)
        times[group] = None if so_far is None or one.seconds is None else so_far + one.seconds
    rows: list[list[str | Cell]] = [
        [root, models, reason, str(number), _estimate(times[root, models, reason, device, driver]), device, driver]
        for (root, models, reason, device, driver), number in groups.items()
    ]
    heads = ("STORE", "MODELS", "REASON", "ENTRIES", "COMPILING", "FOR DEVICE", "AND DRIVER")
    lines = [table(heads, rows, style, right="ENTRIES COMPILING")] if rows else []
    lines += [f"left to the models: {number} {why}" for why, number in sorted(report.skipped.items())]
    lines += [style.paint(f"failed  {plain(words)}", Colour.RED) for words in report.failures]
    there = f"{count(report.plan.covered, 'entry')} there already"
    if report.confirmed:
        lines.append(f"confirmed: {plain(report.confirmed)}")
    if report.dry_run:
        about = f" in about {seconds(report.plan.seconds)}" if report.plan.seconds is not None else ""
        lines.append(f"would rebuild {count(len(report.plan.rebuild), 'entry')}{about}, {there}{_part(report.share)}")
    elif not report.plan.rebuild:
        lines.append(f"nothing to rebuild, {there}")
    else:
        rate = f" ({report.rebuilt / report.seconds:.1f} a second)" if report.seconds > 0 else ""
        failed = f", {report.failed} failed" if report.failed else ""
        done = f"rebuilt {count(report.rebuilt, 'entry')} in {seconds(report.seconds)}{rate}{failed}"
        lines.append(f"{done}, {there}{_part(report.share)}")
        where = f"what is in {plain(str(report.into))}" if report.into is not None else "it"
        lines.append(f"programs that use {where} need not compile for {seconds(report.compile_seconds)}")
    return "\n".join(lines)


def _estimate(value: float | None) -> str:
    return "-" if value is None else f"~{seconds(value)}"


def _part(share: float | None) -> str:
    if share is None or not 0 <= share < 1:
        return ""
    # Rounded up, what is missing would not be.
    percent = int(share * 100 + 1e-9)
    return f", {percent if percent or not share else 'less than 1'}% of what is in use"


def _fate(gone: bool, busy: bool) -> str:  # noqa: FBT001 - two facts, not two switches
    return "gone" if gone else "busy" if busy else "left"


def event(one: Event) -> str:
    """Write an event as one line; a field that its message has said already is left out."""
    said = frozenset(re.findall(r"[^\s:;,]+", one.message))
    rest = "".join(f" {name}={quoted(text)}" for name, text in sorted(one.fields.items()) if text not in said)
    return plain(f"{one.at:%Y-%m-%dT%H:%M:%SZ} {one.topic}: {one.message}{rest}")


def events_of(values: Sequence[Event], _style: TextStyle, owners: Sequence[str]) -> str:
    """Write events of several users, each as one line that begins with whose it is."""
    return "\n".join(f"{plain(owner)}  {event(one)}" for owner, one in zip(owners, values, strict=True)) or "no events"
