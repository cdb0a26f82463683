"""Door: the daemon's values as tables and sentences for people.  Pure: values in, text out.

What comes from caches and file names is never trusted: control characters are shown, not sent to the terminal.
"""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from xpucached.domain.activity import WatchMode
from xpucached.domain.status import Verdict
from xpucached.printing import safe
from xpucached.render.entries import brief as brief
from xpucached.render.entries import entries as entries
from xpucached.render.entries import entry as entry
from xpucached.render.entries import entry_total as entry_total
from xpucached.render.entries import stores as stores
from xpucached.render.jobs import UNDER_WAY
from xpucached.render.jobs import event as event
from xpucached.render.jobs import eviction as eviction
from xpucached.render.jobs import job as job
from xpucached.render.jobs import jobs as jobs
from xpucached.render.jobs import prewarming as prewarming
from xpucached.render.jobs import progress as progress
from xpucached.render.jobs import replay as replay
from xpucached.render.models import model as model
from xpucached.render.models import models as models
from xpucached.render.models import run as run
from xpucached.render.models import runs as runs
from xpucached.render.text import Cell, Colour, age, count, facts, fold, plain, section, size, table
from xpucached.render.trash import trash as trash

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from xpucached.domain.activity import Watching
    from xpucached.domain.host import Device, DriverFile, Host, Problem
    from xpucached.domain.status import Status
    from xpucached.domain.targets import Target
    from xpucached.render.text import TextStyle

# -- status ---------------------------------------------------------------------------------------------------------

_VERDICTS: Final[Mapping[Verdict, Colour]] = {
    Verdict.WARM: Colour.GREEN,
    Verdict.UNCACHED: Colour.GREEN,
    Verdict.COLD: Colour.YELLOW,
    Verdict.WAITING: Colour.YELLOW,
    Verdict.WARMING: Colour.YELLOW,
    Verdict.STARTING: Colour.YELLOW,
    Verdict.NO_MODELS: Colour.YELLOW,
    Verdict.FAILED: Colour.RED,
    Verdict.NO_DEVICE: Colour.RED,
}


def status(value: Status, style: TextStyle) -> str:
    """Write how the host stands: first the sentence, then what it rests on."""
    parts = [style.paint(fold(plain(value.sentence), style), _VERDICTS[value.verdict])]
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
    pairs.append(("watching", watching(value.watching, style)))
    if value.changes:
        last = max(value.changes, key=lambda one: one.at)
        pairs.append(("driver", f"changed {age(last.at, style.now)}{_change(last.appeared, last.vanished)}"))
    parts.append(facts(pairs, style))
    if value.host is not None and value.host.devices:
        parts.append(section("Devices", _device_table(value.host.devices, style), style))
    if value.host is not None and value.host.drivers:
        parts.append(section("Drivers in use", _drivers(value.host, style), style))
    if value.stores:
        parts.append(section("Stores", stores(value.stores, style), style))
    if value.models:
        parts.append(section("Models", models(value.models, style), style))
    if value.problems:
        parts.append(section("Problems", problems(value.problems, style), style))
    running = [one for one in value.jobs if one.state in UNDER_WAY]
    if running:
        parts.append(section("Jobs", jobs(running, style), style))
    return "\n\n".join(parts)


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
    if value.reason:
        text += f"; not better: {plain(value.reason)}"
    if value.compiled:
        text += f"; seen to be compiled by programs: {count(value.compiled, 'entry')}"
    if value.compiling:
        last = value.compiling[0]
        text += f", last by {plain(last.program.label)} {age(last.last, style.now)}"
    return text


def _change(appeared: Sequence[Target], vanished: Sequence[Target]) -> str:
    news = ", ".join(sorted({one.driver for one in appeared}))
    olds = ", ".join(sorted({one.driver for one in vanished}))
    return f": {olds} → {news}" if news and olds else f": {news} appeared" if news else f": {olds} went" if olds else ""


def problems(values: Iterable[Problem], style: TextStyle) -> str:
    """Write problems, each with its hint."""
    lines: list[str] = []
    for one in values:
        subject = f"{one.subject}: " if one.subject and one.subject not in one.message else ""
        lines.append(f"{style.paint('!', Colour.RED)} {fold(f'{plain(subject + one.message)} ({one.code})', style, 2)}")
        if one.hint:
            lines.append(f"  {fold(plain(one.hint), style, 2)}")
    return "\n".join(lines)


# -- the host -------------------------------------------------------------------------------------------------------


def _device_table(values: Iterable[Device], style: TextStyle) -> str:
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
    return table(("NAME", "ARCH", "DRIVER", "KERNEL", "PCI"), rows, style)


def _drivers(value: Host, style: TextStyle) -> str:
    """Write whom the host's own driver serves, and to which other drivers models are led by their own variables."""
    heads = ("DRIVER", "DEVICE", "MODELS")
    some = [("all others", value.environments), *((", ".join(one.models), one.environments) for one in value.drivers)]
    rows = [
        [environment.driver if environment else "none", environment.device if environment else "-", models]
        for models, environments in some
        for environment in (environments or (None,))
    ]
    return table(heads, rows, style)


def devices(value: Host, style: TextStyle) -> str:
    """Write devices, environments, driver files and problems of the host."""
    parts = [_device_table(value.devices, style) if value.devices else "no devices"]
    if value.environments:
        rows = [[one.platform, one.device, one.version, one.driver, one.fingerprint] for one in value.environments]
        heads = ("PLATFORM", "DEVICE", "VERSION", "DRIVER", "FINGERPRINT")
        parts.append(section("What programs use now", table(heads, rows, style), style))
    if value.driver:
        parts.append(section("Driver files", _files(value.driver, style), style))
    for driver in value.drivers:
        whom = ", ".join(driver.models)
        rows = [[one.platform, one.device, one.version, one.driver, one.fingerprint] for one in driver.environments]
        heads = ("PLATFORM", "DEVICE", "VERSION", "DRIVER", "FINGERPRINT")
        met = table(heads, rows, style) if rows else "no devices"
        parts.append(section(f"What programs of {plain(whom)} use now", met, style))
        led = facts(sorted(driver.variables.items()), style, whole=set(driver.variables))
        parts.append(section("Led there by", led, style))
        if driver.driver:
            parts.append(section("Its files", _files(driver.driver, style), style))
    if value.problems:
        parts.append(section("Problems", problems(value.problems, style), style))
    return "\n\n".join(parts)


def _files(values: Iterable[DriverFile], style: TextStyle) -> str:
    rows = [
        [str(one.path), one.version or "-", size(one.size), age(one.modified, style.now), one.package or "-"]
        for one in values
    ]
    return table(("FILE", "VERSION", "SIZE", "CHANGED", "PACKAGE"), rows, style, right="SIZE", paths="FILE")


# -- settings and variables -----------------------------------------------------------------------------------------


def settings(values: Mapping[str, str], style: TextStyle) -> str:
    """Write settings, one a line."""
    return table(("SETTING", "VALUE"), sorted(values.items()), style)


class Syntax(StrEnum):
    """For whom variables are written."""

    SHELL = "shell"
    SYSTEMD = "systemd"
    DOCKER = "docker"


def variables(values: Mapping[str, str], syntax: Syntax, known: Collection[str]) -> str:
    """Write variables so that a shell, a systemd unit or a docker env file takes them, and nothing else.

    Only those of ``known`` are written.  Raises `ValueError` for a value with control characters: no program
    means them, and each form and terminal reads them in its own way.
    """
    written = {name: text for name, text in values.items() if name in known}
    for name, text in written.items():
        if safe(text) != text:
            raise ValueError(f"{name} cannot be written: there are control characters in {safe(text)}")
    return "\n".join(_WRITERS[syntax](name, text) for name, text in sorted(written.items()))


def unknown_variables(values: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """Give the names that are no variables of a cache; a daemon that is newer may know more of them."""
    return tuple(sorted(name for name in values if name not in known))


def _shell(name: str, text: str) -> str:
    return f"export {name}={shlex.quote(text)}"


def _systemd(name: str, text: str) -> str:
    # In a unit % begins a specifier; inside double quotes \ and " need a backslash.
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'Environment="{name}={quoted}"'


def _docker(name: str, text: str) -> str:
    return f"{name}={text}"


_WRITERS: Final[Mapping[Syntax, Callable[[str, str], str]]] = {
    Syntax.SHELL: _shell,
    Syntax.SYSTEMD: _systemd,
    Syntax.DOCKER: _docker,
}
