"""Door: the host, its devices, drivers, problems and settings, for people.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.printing import plain
from xpucached.render.text import Cell, Colour, age, facts, fold, section, size, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xpucached.domain.host import Device, DriverFile, Host, Problem
    from xpucached.domain.targets import Target
    from xpucached.render.text import TextStyle


def problems(values: Sequence[Problem], style: TextStyle, *, brief: bool = False) -> str:
    """Write problems, each once and with its hint; ``brief`` writes of those with one code and hint only the first."""
    alike: dict[object, list[Problem]] = {}
    for one in dict.fromkeys(values):
        alike.setdefault((one.code, one.hint) if brief else one, []).append(one)
    lines: list[str] = []
    for first, *others in alike.values():
        subject = f"{first.subject}: " if first.subject and first.subject not in first.message else ""
        more = f", and {len(others)} more: xpucachectl doctor" if others else ""
        said = f"{plain(subject + first.message)} ({plain(first.code)}){more}"
        lines.append(f"{style.paint('!', Colour.RED)} {fold(said, style, 2)}")
        if first.hint:
            lines.append(f"  {fold(plain(first.hint), style, 2)}")
    return "\n".join(lines)


def device_table(values: Iterable[Device], style: TextStyle) -> str:
    """Write one line per device."""
    rows: list[list[str | Cell]] = [
        [
            one.name,
            one.architecture,
            ", ".join(sorted({answer.driver for answer in one.answers})) or "none",
            " ".join(part for part in (one.kernel_driver, one.kernel_driver_version) if part) or "-",
            one.pci_address or "-",
        ]
        for one in values
    ]
    return table(("NAME", "ARCH", "DRIVER", "KERNEL", "PCI"), rows, style)


def drivers_in_use(value: Host, style: TextStyle) -> str:
    """Write whom the host's own driver serves, and to which other drivers models are led by their own variables."""
    heads = ("DRIVER", "DEVICE", "MODELS")
    some = [("all others", value.environments), *((", ".join(one.models), one.environments) for one in value.drivers)]
    # One driver serves caches of several kinds, and is several platforms.
    rows = [
        [driver, device, models]
        for models, environments in some
        for driver, device in dict.fromkeys((one.toolchain, one.device) for one in environments) or [("none", "-")]
    ]
    return table(heads, rows, style)


def devices(value: Host, style: TextStyle) -> str:
    """Write devices, environments, driver files and problems of the host."""
    none = "no devices by the host's own driver" if value.offered else "no devices"
    parts = [device_table(value.devices, style) if value.devices else none]
    if value.environments:
        parts.append(section("What programs use now", _targets(value.environments, style), style))
    if value.driver:
        parts.append(section("Driver files", _files(value.driver, style), style))
    for driver in value.drivers:
        whom = ", ".join(driver.models)
        met = _targets(driver.environments, style) if driver.environments else "no devices"
        parts.append(section(f"What programs of {plain(whom)} use now", met, style))
        led = facts(sorted(driver.variables.items()), style, whole=set(driver.variables))
        parts.append(section("Led there by", led, style))
        if driver.driver:
            parts.append(section("Its files", _files(driver.driver, style), style))
    if value.problems:
        parts.append(section("Problems", problems(value.problems, style), style))
    return "\n\n".join(parts)


def _targets(values: Iterable[Target], style: TextStyle) -> str:
    rows = [
        [one.kind, one.family, one.device, ", ".join(text for _, text in one.facts), one.toolchain, one.fingerprint]
        for one in values
    ]
    return table(("KIND", "PLATFORM", "DEVICE", "VERSION", "DRIVER", "FINGERPRINT"), rows, style)


def _files(values: Iterable[DriverFile], style: TextStyle) -> str:
    rows = [
        [str(one.path), one.version or "-", size(one.size), age(one.modified, style.now), one.package or "-"]
        for one in values
    ]
    return table(("FILE", "VERSION", "SIZE", "CHANGED", "PACKAGE"), rows, style, right="SIZE")


def settings(values: Mapping[str, str], style: TextStyle) -> str:
    """Write settings, one a line."""
    return table(("SETTING", "VALUE"), sorted(values.items()), style)
