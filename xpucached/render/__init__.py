"""Door: the daemon's values as tables and sentences for people.  Pure: values in, text out.

What comes from caches and file names is never trusted: control characters are shown, not sent to the terminal.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from xpucached.domain import EntryState, JobState, Outcome, StoreOrigin, StoreState, Verdict, Warmth, WatchMode
from xpucached.render import keeping
from xpucached.render.keeping import trash as trash
from xpucached.render.text import (
    Cell,
    Colour,
    age,
    count,
    facts,
    fits,
    fold,
    plain,
    safe,
    seconds,
    section,
    size,
    table,
)
from xpucached.render.trials import exercise, trials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from xpucached.domain import (
        Device,
        EntryPage,
        Environment,
        Event,
        EvictionReport,
        Host,
        IndexedEntry,
        Job,
        ModelStatus,
        PrewarmReport,
        Problem,
        ReplayReport,
        Run,
        Status,
        StoreStatus,
        Watching,
    )
    from xpucached.render.text import Look


# -- status ---------------------------------------------------------------------------------------------------------

_VERDICTS: Final[Mapping[Verdict, Colour]] = {
    Verdict.WARM: Colour.GREEN,
    Verdict.COLD: Colour.YELLOW,
    Verdict.WARMING: Colour.YELLOW,
    Verdict.STARTING: Colour.YELLOW,
    Verdict.NO_MODELS: Colour.YELLOW,
    Verdict.FAILED: Colour.RED,
    Verdict.NO_DEVICE: Colour.RED,
}
_WARMTHS: Final[Mapping[Warmth, Colour]] = {
    Warmth.WARM: Colour.GREEN,
    Warmth.COLD: Colour.YELLOW,
    Warmth.WARMING: Colour.YELLOW,
    Warmth.FAILED: Colour.RED,
}


def status(value: Status, look: Look) -> str:
    """Write how the host stands: first the sentence, then what it rests on."""
    parts = [look.paint(fold(plain(value.sentence), look), _VERDICTS[value.verdict])]
    figures = f"{count(value.entries, 'entry')}, {size(value.allocated)}"
    if value.flawed:
        figures += f", {value.flawed} flawed"
    if value.stale:
        figures += f", {value.stale} for drivers or devices that are not here"
    pairs = [
        ("cache", figures),
        ("daemon", f"{value.version}, pid {value.pid}, started {age(value.started, look.now)}"),
    ]
    if value.host is not None:
        pairs.insert(0, ("host", f"Linux {value.host.kernel}, surveyed {age(value.host.surveyed, look.now)}"))
    pairs.append(("watching", watching(value.watching, look)))
    if value.changes:
        last = max(value.changes, key=lambda one: one.at)
        pairs.append(("driver", f"changed {age(last.at, look.now)}{_change(last.appeared, last.vanished)}"))
    parts.append(facts(pairs, look))
    if value.host is not None and value.host.devices:
        parts.append(section("Devices", _device_table(value.host.devices, look), look))
    if value.stores:
        parts.append(section("Stores", stores(value.stores, look), look))
    if value.models:
        parts.append(section("Models", models(value.models, look), look))
    if value.problems:
        parts.append(section("Problems", problems(value.problems, look), look))
    running = [one for one in value.jobs if one.state in _UNDER_WAY]
    if running:
        parts.append(section("Jobs", jobs(running, look), look))
    return "\n\n".join(parts)


_MODES: Final[Mapping[WatchMode, str]] = {
    WatchMode.FANOTIFY: "by fanotify, every file",
    WatchMode.CLASSIC: "by fanotify, every file that is written",
    WatchMode.INOTIFY: "by inotify, new directories",
    WatchMode.POLLING: "not everything, by looking again and again",
}


def watching(value: Watching, look: Look) -> str:
    """Write how changes are noticed, why not better, and what programs compiled."""
    text = f"{_MODES[value.mode]} ({value.mode})"
    if value.opens:
        text += ", and what programs load"
    if value.reason:
        text += f"; not better: {plain(value.reason)}"
    if value.compiled:
        text += f"; seen to be compiled by programs: {count(value.compiled, 'entry')}"
    if value.compiling:
        last = value.compiling[0]
        text += f", last by {plain(last.program.label)} {age(last.last, look.now)}"
    return text


def _change(appeared: Sequence[Environment], vanished: Sequence[Environment]) -> str:
    news = ", ".join(sorted({one.driver for one in appeared}))
    olds = ", ".join(sorted({one.driver for one in vanished}))
    return f": {olds} → {news}" if news and olds else f": {news} appeared" if news else f": {olds} went" if olds else ""


def problems(values: Iterable[Problem], look: Look) -> str:
    """Write problems, each with its hint."""
    lines: list[str] = []
    for one in values:
        subject = f"{one.subject}: " if one.subject and one.subject not in one.message else ""
        lines.append(f"{look.paint('!', Colour.RED)} {fold(f'{plain(subject + one.message)} ({one.code})', look, 2)}")
        if one.hint:
            lines.append(f"  {fold(plain(one.hint), look, 2)}")
    return "\n".join(lines)


# -- the host -------------------------------------------------------------------------------------------------------


def _device_table(values: Iterable[Device], look: Look) -> str:
    rows: list[list[str | Cell]] = [
        [
            one.name,
            one.architecture,
            ", ".join(sorted({environment.driver for environment in one.environments})) or "none",
            " ".join(part for part in (one.kernel_driver, one.kernel_driver_version) if part) or "-",
            one.pci_address or "-",
        ]
        for one in values
    ]
    return table(("NAME", "ARCH", "DRIVER", "KERNEL", "PCI"), rows, look)


def devices(value: Host, look: Look) -> str:
    """Write devices, environments, driver files and problems of the host."""
    parts = [_device_table(value.devices, look) if value.devices else "no devices"]
    if value.environments:
        rows = [[one.platform, one.device, one.version, one.driver, one.fingerprint] for one in value.environments]
        heads = ("PLATFORM", "DEVICE", "VERSION", "DRIVER", "FINGERPRINT")
        parts.append(section("What programs use now", table(heads, rows, look), look))
    if value.driver:
        rows = [
            [str(one.path), one.version or "-", size(one.size), age(one.modified, look.now), one.package or "-"]
            for one in value.driver
        ]
        files = table(("FILE", "VERSION", "SIZE", "CHANGED", "PACKAGE"), rows, look, right="SIZE", paths="FILE")
        parts.append(section("Driver files", files, look))
    if value.problems:
        parts.append(section("Problems", problems(value.problems, look), look))
    return "\n\n".join(parts)


# -- stores and entries ---------------------------------------------------------------------------------------------


def stores(values: Sequence[StoreStatus], look: Look) -> str:
    """Write one line per store, and below the table what is worth knowing about one."""
    if not values:
        return "no stores"
    rows: list[list[str | Cell]] = [
        [
            one.store.kind,
            str(one.store.root),
            Cell(one.state, Colour.YELLOW if _amiss(one) else None),
            str(one.entries),
            Cell(str(one.flawed), Colour.YELLOW if one.flawed else None),
            size(one.allocated),
            age(one.scanned, look.now),
            one.origin if one.via in {"", one.origin} else f"{one.origin}: {one.via}",
        ]
        for one in values
    ]
    heads = ("KIND", "STORE", "STATE", "ENTRIES", "FLAWED", "SIZE", "LOOKED AT", "ORIGIN")
    text = table(heads, rows, look, right="ENTRIES FLAWED SIZE", paths="STORE", first={"ORIGIN": 8})
    notes = [
        f"{look.paint('!', Colour.YELLOW)} {plain(f'{one.store.root}: {note}')}" for one in values for note in one.notes
    ]
    return "\n".join([text, *notes])


def _amiss(one: StoreStatus) -> bool:
    # Places where programs may cache are often still empty; only one that somebody listed was meant to be there.
    expected = one.origin is StoreOrigin.CONFIGURED
    return one.state not in {StoreState.OK, StoreState.UNSEEN} and (one.state is not StoreState.MISSING or expected)


_ENTRY_HEADS: Final[tuple[str, ...]] = ("REF", "STATE", "ARCH", "DRIVER", "SIZE", "USED", "MODELS", "KERNELS")
# What may be said once below a table that is too wide, if it is the same in every row.
_SHARED: Final = ("ARCH", "DRIVER", "MODELS")


def entries(page: EntryPage, look: Look) -> str:
    """Write one line per entry, store by store, and how many there are."""
    if not page.entries:
        return "no entries"
    rows = _entry_rows(page.entries, look)
    heads, shared = _ENTRY_HEADS, ""
    if len(rows) > 1 and not fits(heads, rows, look):
        same = {
            head: _text(rows[0][index])
            for index, head in enumerate(heads)
            if head in _SHARED and len({_text(row[index]) for row in rows}) == 1
        }
        shared = ", ".join(f"{head.lower()} {text}" for head, text in same.items() if text != "-")
        rows = [[one for head, one in zip(heads, row, strict=True) if head not in same] for row in rows]
        heads = tuple(head for head in heads if head not in same)
    places: dict[str, list[list[str | Cell]]] = {}
    for one, row in zip(page.entries, rows, strict=True):
        places.setdefault(str(one.entry.id.store.root), []).append(row)
    tables = {
        place: table(heads, some, look, right="SIZE", first={"DRIVER": 12, "MODELS": 10})
        for place, some in places.items()
    }
    parts = [section(plain(place), text, look) if len(tables) > 1 else text for place, text in tables.items()]
    shown = len(page.entries)
    total = f"{count(page.total, 'entry')}, {size(page.size)}"
    last = total if shown == page.total else f"{shown} of {total}"
    return "\n\n".join(parts) + f"\n{last}" + (f"\nin every row: {plain(shared)}" if shared else "")


def _text(one: str | Cell) -> str:
    return one.text if isinstance(one, Cell) else one


def _entry_rows(values: Iterable[IndexedEntry], look: Look) -> list[list[str | Cell]]:
    return [
        [
            one.entry.id.ref,
            Cell(one.entry.flaw or one.entry.state, None if one.entry.state is EntryState.OK else Colour.YELLOW),
            one.architecture or "-",
            one.entry.environment.driver if one.entry.environment else "-",
            size(one.entry.allocated),
            age(one.last_used, look.now),
            ", ".join(one.models) or "-",
            _kernels(one),
        ]
        for one in values
    ]


def _kernels(one: IndexedEntry) -> str:
    kernels = one.entry.kernels
    if not kernels:
        return "-"
    more = f" (+{len(kernels) - 1})" if len(kernels) > 1 else ""
    return brief(kernels[0].display) + more


_SCOPES: Final = re.compile(r"(?:\b[^\W\d]\w*|\(anonymous namespace\))::")
_CASTS: Final = re.compile(r"\((?:(?:un)?signed )?(?:bool|char|short|int|long|long long)\)(?=-?\d)")


def brief(kernel: str) -> str:
    """Write a kernel's name without its namespaces, so that the part which tells it apart comes first."""
    short = _CASTS.sub("", _SCOPES.sub("", kernel)).replace("> >", ">>")
    return short or kernel


def entry(one: IndexedEntry, look: Look) -> str:
    """Write everything about one entry."""
    held = one.entry
    known = held.environment
    pairs = [
        ("ref", held.id.ref),
        ("store", f"{held.id.store.root} ({held.id.store.kind})"),
        ("key", held.id.key),
        ("state", held.state),
        ("flaw", f"{held.flaw}: {held.flaw.words}" if held.flaw else ""),
        ("effect", held.flaw.effect if held.flaw else ""),
        ("evidence", held.detail),
        ("platform", known.platform if known else "unknown"),
        ("device", known.device if known else ""),
        ("version", known.version if known else ""),
        ("driver", known.driver if known else ""),
        ("architecture", one.architecture or ""),
        ("origin", one.origin or ""),
        ("options", held.options),
        ("constants", held.constants),
        ("image", f"{held.image}, {size(held.image_size)}" if held.image else ""),
        ("binary", held.binary or ""),
        ("digest", held.digest or ""),
        ("size", f"{size(held.size)}, {size(held.allocated)} on disk"),
        ("created", f"{held.created:%Y-%m-%d %H:%M:%S} UTC, {age(held.created, look.now)}"),
        ("last used", f"{age(one.last_used, look.now)} ({one.last_used_by})"),
        ("seen loaded", f"{one.hits} times, last by {one.program}" if one.hits else ""),
        ("first seen", age(one.first_seen, look.now)),
        ("models", ", ".join(one.models)),
    ]
    text = facts(pairs, look)
    if held.kernels:
        lines = [
            f"  {plain(kernel.display)}{f'  [{plain(kernel.library)}]' if kernel.library else ''}"
            for kernel in held.kernels
        ]
        text += "\n" + section(count(len(held.kernels), "kernel"), "\n".join(lines), look)
    return text


# -- models and runs ------------------------------------------------------------------------------------------------


def models(values: Sequence[ModelStatus], look: Look) -> str:
    """Write one line per model."""
    if not values:
        return "no models"
    rows: list[list[str | Cell]] = [
        [
            one.model.name,
            Cell(one.warmth, _WARMTHS[one.warmth]),
            str(one.entries),
            size(one.allocated),
            seconds(one.cold_seconds),
            seconds(one.warm_seconds),
            one.why,
        ]
        for one in values
    ]
    heads = ("NAME", "STATE", "ENTRIES", "SIZE", "FIRST", "AGAIN", "WHY")
    return table(heads, rows, look, right="ENTRIES SIZE FIRST AGAIN")


def model(value: ModelStatus, look: Look) -> str:
    """Write everything about one model."""
    registered, workload = value.model, value.model.workload
    pairs = [
        ("name", registered.name),
        ("state", f"{value.warmth}: {value.why}" if value.why else value.warmth),
        ("command", shlex.join(workload.command)),
        *exercise(workload.exercise),
        ("directory", str(workload.directory)),
        ("timeout", seconds(workload.timeout)),
        ("store", str(registered.store) if registered.store else "the managed store"),
        ("priority", f"{registered.priority}{', pinned' if registered.pinned else ''}"),
        ("source", registered.source),
        ("before", ", ".join(registered.before)),
        ("entries", f"{value.entries}, {size(value.allocated)}"),
        ("first pass", seconds(value.cold_seconds) if value.cold_seconds is not None else ""),
        ("warm pass", seconds(value.warm_seconds) if value.warm_seconds is not None else ""),
    ]
    parts = [facts(pairs, look, whole=("command", "directory"))]
    if workload.variables:
        lines = (plain(f"{name}={shlex.quote(text)}") for name, text in sorted(workload.variables.items()))
        parts.append(section("Variables", "\n".join(lines), look))
    if value.run:
        parts.append(section("Last run", run(value.run, look), look))
    return "\n\n".join(parts)


_GOOD: Final = frozenset({Outcome.WARMED})


def _outcome(one: Run) -> Cell:
    if one.outcome is None:
        return Cell("running", Colour.YELLOW)
    return Cell(one.outcome, Colour.GREEN if one.outcome in _GOOD else Colour.RED)


def run(one: Run, look: Look) -> str:
    """Write everything about one run."""
    outcome = _outcome(one)
    pairs = [
        ("run", f"{one.id}, {one.model}, {one.reason}"),
        ("outcome", f"{outcome.text}: {one.detail}" if one.detail else outcome.text),
        ("started", age(one.started, look.now)),
        *(
            (
                f"pass {number}",
                f"{seconds(each.seconds)}, {each.created} created, {each.used} used, {_exit(each.exit_status)}",
            )
            for number, each in enumerate(one.passes, 1)
        ),
    ]
    text = facts(pairs, look)
    if len(one.trials) > 1 or any(each.figures or each.evidence for each in one.trials):
        text += "\n\n" + trials(one.trials, look)
    if one.output:
        lines = "\n".join(f"  {safe(line)}" for line in one.output.splitlines())
        text += "\n\n" + section("Output", lines, look)
    return text


def _exit(status: int | None) -> str:
    if status is None:
        return "never started"
    return f"ended by signal {-status}" if status < 0 else f"exit status {status}"


def runs(values: Sequence[Run], look: Look) -> str:
    """Write one line per run."""
    if not values:
        return "no runs"
    rows: list[list[str | Cell]] = [
        [
            str(one.id),
            one.model,
            _outcome(one),
            one.reason,
            age(one.started, look.now),
            seconds(sum(each.seconds for each in one.passes)) if one.passes else "-",
            str(one.passes[0].created) if one.passes else "-",
            one.detail,
        ]
        for one in values
    ]
    heads = ("RUN", "MODEL", "OUTCOME", "REASON", "STARTED", "TOOK", "CREATED", "DETAIL")
    return table(heads, rows, look, right="RUN TOOK CREATED")


# -- jobs and events ------------------------------------------------------------------------------------------------

_UNDER_WAY: Final = frozenset({JobState.QUEUED, JobState.RUNNING})
_JOB_COLOURS: Final[Mapping[JobState, Colour]] = {
    JobState.QUEUED: Colour.DIM,
    JobState.RUNNING: Colour.YELLOW,
    JobState.DONE: Colour.GREEN,
    JobState.FAILED: Colour.RED,
    JobState.CANCELLED: Colour.YELLOW,
}


def progress(job: Job) -> str:
    """Write how far a job is, in one line."""
    figures = f" {job.progress.done}/{job.progress.total}" if job.progress.total else ""
    detail = f": {job.progress.detail}" if job.progress.detail else ""
    return plain(f"{job.verb} {job.state}{figures}{detail}")


def jobs(values: Sequence[Job], look: Look) -> str:
    """Write one line per job."""
    if not values:
        return "no jobs"
    rows: list[list[str | Cell]] = [
        [
            one.id,
            one.verb,
            Cell(one.state, _JOB_COLOURS[one.state]),
            f"{one.progress.done}/{one.progress.total}" if one.progress.total else "-",
            age(one.created, look.now),
            one.error.message if one.error else one.progress.detail if one.state in _UNDER_WAY else "",
        ]
        for one in values
    ]
    return table(("JOB", "WHAT", "STATE", "DONE", "ASKED", "DETAIL"), rows, look)


def job(one: Job, look: Look) -> str:
    """Write what became of a job."""
    if one.error is not None:
        hint = f"\n{plain(one.error.hint)}" if one.error.hint else ""
        return f"{look.paint(f'{one.verb} {one.state}', _JOB_COLOURS[one.state])}: {plain(one.error.message)}{hint}"
    if one.evict is not None:
        return eviction(one.evict, look)
    if one.replay is not None:
        return replay(one.replay, look)
    if one.prewarm is not None:
        return prewarming(one.prewarm, look)
    if one.verify is not None:
        return keeping.verification(one.verify, look)
    if one.trash is not None:
        return keeping.trash_report(one.trash, look)
    if one.scan is not None:
        found = one.scan
        changes = f"{found.added} new, {found.changed} changed, {found.vanished} gone"
        looked = f"looked at {count(found.stores, 'store')} in {seconds(found.seconds)}"
        return f"{looked}: {count(found.entries, 'entry')}, {changes}"
    return progress(one)


def prewarming(report: PrewarmReport, look: Look) -> str:
    """Write what prewarming did."""
    lines: list[str] = []
    for one in report.runs:
        outcome = _outcome(one)
        detail = f": {one.detail}" if one.detail else ""
        said = fold(plain(one.model + detail), look, len(plain(outcome.text)) + 2)
        lines.append(f"{look.paint(plain(outcome.text), outcome.colour)}  {said}")
    lines += [f"{look.paint('warm already', Colour.GREEN)}  {plain(name)}" for name in report.covered]
    lines += [
        f"{look.paint('not now', Colour.YELLOW)}  {plain(one.model)}: {plain(one.why)}" for one in report.deferred
    ]
    return "\n".join(lines) or "nothing to warm"


def eviction(report: EvictionReport, look: Look) -> str:
    """Write what was evicted, or would be."""
    gone, busy = frozenset(report.removed), frozenset(report.busy)
    rows: list[list[str | Cell]] = [
        [
            one.entry.entry.id.ref,
            "would go" if report.dry_run else _fate(one.entry.entry.id.ref in gone, one.entry.entry.id.ref in busy),
            one.reason,
            size(one.entry.entry.allocated),
            one.entry.entry.environment.driver if one.entry.entry.environment else "-",
            one.detail,
        ]
        for one in report.plan.evict
    ]
    kept = f"{count(report.plan.kept, 'entry')} kept"
    if not rows:
        return f"nothing to evict, {kept}"
    heads = ("REF", "FATE", "REASON", "SIZE", "DRIVER", "WHY")
    text = table(heads, rows, look, right="SIZE", first={"DRIVER": 12})
    if report.dry_run:
        goes = f"would evict {count(len(rows), 'entry')} and free {size(report.plan.frees)}, {kept}"
        exactly = f"\nexactly this: xpucachectl evict --plan {report.plan_id}" if report.plan_id else ""
        return f"{text}\n{goes}{exactly}"
    left = f", {len(busy)} busy and left" if busy else ""
    away = max(0, report.freed - report.trashed)
    freed = f" and freed {size(away)}" if away or not report.trashed else ""
    trashed = f", {size(report.trashed)} {'of it' if away else 'all'} still in the trash" if report.trashed else ""
    return f"{text}\nevicted {count(len(gone), 'entry')}{freed}{trashed}{left}, {kept}"


def replay(report: ReplayReport, look: Look) -> str:
    """Write what was rebuilt, or would be, per store and model."""
    groups: Counter[tuple[str, str, str, str, str]] = Counter()
    times: dict[tuple[str, str, str, str, str], float | None] = {}
    for one in report.plan.rebuild:
        models = ", ".join(one.entry.models) or "-"
        group = (str(one.entry.entry.id.store.root), models, one.reason, one.to.device, one.to.driver)
        groups[group] += 1
        so_far = times.get(group, 0.0)
        times[group] = None if so_far is None or one.seconds is None else so_far + one.seconds
    rows: list[list[str | Cell]] = [
        [root, models, reason, str(number), _estimate(times[root, models, reason, device, driver]), device, driver]
        for (root, models, reason, device, driver), number in groups.items()
    ]
    heads = ("STORE", "MODELS", "REASON", "ENTRIES", "COMPILING", "FOR DEVICE", "AND DRIVER")
    lines = [table(heads, rows, look, right="ENTRIES COMPILING")] if rows else []
    lines += [f"left to the models: {number} {why}" for why, number in sorted(report.skipped.items())]
    lines += [look.paint(f"failed  {plain(words)}", Colour.RED) for words in report.failures]
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
    return "" if share is None or share == 1 else f", {share:.0%} of what is in use"


def _fate(gone: bool, busy: bool) -> str:  # noqa: FBT001 - two facts, not two switches
    return "gone" if gone else "busy" if busy else "left"


def event(one: Event) -> str:
    """Write an event as one line; a field that its message has said already is left out."""
    said = frozenset(re.findall(r"[^\s:;,]+", one.message))
    rest = "".join(f" {name}={shlex.quote(text)}" for name, text in sorted(one.fields.items()) if text not in said)
    return plain(f"{one.at:%Y-%m-%dT%H:%M:%SZ} {one.topic}: {one.message}{rest}")


# -- settings and variables -----------------------------------------------------------------------------------------


def settings(values: Mapping[str, str], look: Look) -> str:
    """Write settings, one a line."""
    return table(("SETTING", "VALUE"), sorted(values.items()), look)


class Syntax(StrEnum):
    """For whom variables are written."""

    SHELL = "shell"
    SYSTEMD = "systemd"
    DOCKER = "docker"


def variables(values: Mapping[str, str], syntax: Syntax) -> str:
    """Write variables so that a shell, a systemd unit or a docker env file takes them.

    Raises `ValueError` for a value that the form cannot hold.
    """
    return "\n".join(_WRITERS[syntax](name, text) for name, text in sorted(values.items()))


def _shell(name: str, text: str) -> str:
    return f"export {name}={shlex.quote(text)}"


def _systemd(name: str, text: str) -> str:
    # In a unit % begins a specifier; inside double quotes \ and " need a backslash.
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'Environment="{name}={quoted}"'


def _docker(name: str, text: str) -> str:
    if "\n" in text:
        raise ValueError(f"{name}: a docker env file cannot hold a line break")
    return f"{name}={text}"


_WRITERS: Final[Mapping[Syntax, Callable[[str, str], str]]] = {
    Syntax.SHELL: _shell,
    Syntax.SYSTEMD: _systemd,
    Syntax.DOCKER: _docker,
}
