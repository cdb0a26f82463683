"""Door: how the host stands, for people and for monitoring.  Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from xpucached.domain.activity import WatchMode
from xpucached.domain.jobs import UNDER_WAY
from xpucached.domain.status import Verdict
from xpucached.printing import plain
from xpucached.render.diagnosis import shifts
from xpucached.render.entries import stores
from xpucached.render.host import device_table, drivers_in_use, problems
from xpucached.render.jobs import jobs
from xpucached.render.models import models
from xpucached.render.text import Colour, age, cells, count, cut, facts, fold, section, size
from xpucached.render.usage import saved

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from xpucached.domain.activity import Watching
    from xpucached.domain.ahead import Ahead
    from xpucached.domain.checks import Check
    from xpucached.domain.pushes import PushOutcome
    from xpucached.domain.status import Status
    from xpucached.domain.targets import Target
    from xpucached.render.text import TextStyle

_VERDICTS: Final[Mapping[Verdict, Colour]] = {
    Verdict.WARM: Colour.GREEN,
    Verdict.UNCACHED: Colour.GREEN,
    Verdict.COLD: Colour.YELLOW,
    Verdict.WAITING: Colour.YELLOW,
    Verdict.WARMING: Colour.YELLOW,
    Verdict.UNKNOWN: Colour.YELLOW,
    Verdict.STARTING: Colour.YELLOW,
    Verdict.NO_MODELS: Colour.YELLOW,
    Verdict.FAILED: Colour.RED,
    Verdict.NO_DEVICE: Colour.RED,
}


def status(value: Status, style: TextStyle) -> str:
    """Write how the host stands: first the sentence, then what it rests on."""
    first, rest = headline(plain(value.sentence))
    parts = [style.paint(first, _VERDICTS[value.verdict])]
    # What is a problem is told there.
    if rest and not any(plain(one.message) in rest for one in value.problems if len(one.message) > _SHORT):
        parts[0] += f"\n{fold(rest, style)}"
    figures = f"{count(value.entries, 'entry')}, {size(value.allocated)}"
    if value.defective:
        figures += f", {value.defective} defective"
    if value.stale:
        figures += f", {value.stale} for drivers or devices that are not here"
    pairs = [
        ("cache", figures),
        ("daemon", f"{value.version}, pid {value.pid}, started {age(value.started, style.now)}"),
    ]
    if value.host is not None:
        pairs.insert(0, ("host", f"Linux {value.host.kernel}, surveyed {age(value.host.surveyed, style.now)}"))
    pairs.append(("saved", "" if value.saved is None else saved(value.saved, style)))
    if value.watching.mode is WatchMode.POLLING:
        pairs.append(("watching", f"{_MODES[WatchMode.POLLING]}; see: xpucachectl doctor"))
    if value.changes:
        last = max(value.changes, key=lambda one: one.at)
        pairs.append(("driver", f"changed {age(last.at, style.now)}{_change(last.appeared, last.vanished)}"))
    pairs += [("next driver", _ahead(one)) for one in value.ahead]
    pairs += [("next driver", plain(one)) for one in value.ahead_refused]
    pairs.append(("pushed", "" if value.pushed is None else _pushed(value.pushed, style)))
    parts.append(facts(pairs, style))
    if value.host is not None and value.host.devices:
        parts.append(section("Devices", device_table(value.host.devices, style), style))
    if value.host is not None and value.host.drivers:
        parts.append(section("Drivers in use", drivers_in_use(value.host, style), style))
    if value.stores:
        parts.append(section("Stores", stores(value.stores, style), style))
    if value.models:
        parts.append(section("Models", models(value.models, style), style))
    parts += _trouble(value, style)
    running = [one for one in value.jobs if one.state in UNDER_WAY]
    if running:
        parts.append(section("Jobs", jobs(running, style), style))
    return "\n\n".join(parts)


def _trouble(value: Status, style: TextStyle) -> Iterator[str]:
    """Write what somebody should see: what is another since a change, and what is not well."""
    if value.shifts:
        told = f"{shifts(value.shifts, style)}\nshown until: xpucachectl seen"
        yield section("Slower or faster since a change", told, style)
    if value.problems:
        yield section("Problems", problems(value.problems, style, brief=True), style)


_LONGEST: Final = 99
"""Columns of the first line."""

_SHORT: Final = 12
"""A message of so few characters may stand in any sentence."""

_ENDS: Final = ((": ", " ("), (", ",), (" ",))
_PARENTHESIS: Final = re.compile(r"\([^()]*\)?")
"""Where a sentence is parted, it is not parted within one."""


def headline(sentence: str) -> tuple[str, str]:
    """Part a sentence: its beginning, of less than 100 columns, and the rest; it is parted where it has parts."""
    outer = _PARENTHESIS.sub(lambda found: "(" + "_" * (len(found[0]) - 1), sentence)
    first = outer.find("; ")
    if first > 0 and cells(sentence[:first]) <= _LONGEST:
        return sentence[:first].rstrip(), sentence[first:].lstrip("; ").strip()
    if cells(sentence) <= _LONGEST:
        return sentence, ""
    for ends in _ENDS:
        at = max(outer.rfind(end, 0, _LONGEST) for end in ends)
        if at > 0 and cells(sentence[:at]) <= _LONGEST:
            return sentence[:at].rstrip(), sentence[at:].lstrip(" :,").strip()
    return cut(sentence, _LONGEST), sentence


def _pushed(last: PushOutcome, style: TextStyle) -> str:
    """Write what became of the last push of what was compiled here."""
    if last.error:
        what = "failed"
    elif last.digest:
        what = f"{plain(last.digest[:_DIGEST])} to {plain(last.reference)}"
    else:
        what = "there was nothing to push"
    return f"{what}, {age(last.at, style.now)}"


_DIGEST: Final = len("sha256:") + 12


def _ahead(one: Ahead) -> str:
    """Write how far it is prepared for a driver that is not installed."""
    name = f" ({plain(one.what)})" if one.drivers else ""
    entries = f"; {count(one.entries, 'entry')} for it" if one.entries else ""
    return f"{plain(one.words)}{name}{entries}{f': {plain(one.detail)}' if one.detail else ''}"


_MODES: Final[Mapping[WatchMode, str]] = {
    WatchMode.FANOTIFY: "by fanotify, every file",
    WatchMode.CLASSIC: "by fanotify, every file that is written",
    WatchMode.INOTIFY: "by inotify, new directories",
    WatchMode.POLLING: "not everything, by looking again and again",
}


def watching(value: Watching, style: TextStyle) -> str:
    """Write how changes are noticed, why not better, and what programs compiled."""
    text = f"{_MODES[value.mode]} ({value.mode})"
    if value.loads:
        text += ", and what programs load"
    elif value.mode in {WatchMode.FANOTIFY, WatchMode.CLASSIC}:
        text += "; not what programs load (watch.loads)"
    else:
        text += "; what programs load is seen by fanotify alone"
    if value.reason:
        text += f"; not better: {plain(value.reason)}"
    if value.compiled:
        text += f"; seen to be compiled by programs: {count(value.compiled, 'entry')}"
    if value.compiling:
        last = value.compiling[0]
        text += f", last by {plain(last.program.label)} {age(last.last, style.now)}"
    return text


def _change(appeared: Sequence[Target], vanished: Sequence[Target]) -> str:
    news = ", ".join(sorted({one.toolchain for one in appeared}))
    olds = ", ".join(sorted({one.toolchain for one in vanished}))
    return f": {olds} → {news}" if news and olds else f": {news} appeared" if news else f": {olds} went" if olds else ""


# -- for monitoring -------------------------------------------------------------------------------------------------


def monitoring(value: Check) -> str:
    """Write the one line that monitoring reads, in the form of its plugins: what it says, and after a bar figures."""
    # A bar in the sentence would begin the figures.
    line = f"XPUCACHED {value.level.name} - {plain(value.sentence).replace('|', '/')}"
    figures = " ".join(f"{name}={figure}" for name, figure in value.figures.items())
    return f"{line} | {figures}" if figures else line
