"""Present: what a host tells of itself, in the forms of those who collect it, and many hosts compared.  Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from xpucached.domain.bundles import DOMAIN
from xpucached.printing import plain
from xpucached.render.metrics import Families
from xpucached.render.text import count, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.domain.fleet import FleetGroup, FleetReport, HostFingerprint
    from xpucached.render.text import TextStyle

_UNKNOWN: Final = "not known"
_LONGEST_LABEL: Final = 63
_SHORT: Final = 12
"""Hex digits of a library's identity that a table shows; ``--json`` has all."""


def fingerprint(of: HostFingerprint, style: TextStyle) -> str:
    """Write what decides on a host about compiled programs."""
    head = of.fingerprint or f"{_UNKNOWN}, because this is not: {', '.join(of.unknown)}"
    lines = [f"fingerprint {head}", f"warm: {_warm(of)}"]
    rows = [
        (one.target.kind, one.target.device, one.target.toolchain, one.target.family, one.isa) for one in of.targets
    ]
    lines += ["", table(("KIND", "DEVICE", "DRIVER", "THROUGH", "INSTRUCTIONS"), rows, style)]
    lines += ["", table(("COMPILER", "ID"), [(one.name, one.id) for one in of.compiler], style)]
    return "\n".join(lines)


def _warm(of: HostFingerprint) -> str:
    if of.warm is None:
        return _UNKNOWN
    models = [f"{number} {plain(how)}" for how, number in sorted(of.warm.models.items()) if number]
    return ", ".join((f"{of.warm.entries} entries", *(f"models {one}" for one in models)))


def prometheus(of: HostFingerprint) -> str:
    """Write it as metrics: an empty label is none to Prometheus, so an unknown fingerprint is not there."""
    page = Families(openmetrics=False)
    rows = sorted({(one.target.kind, one.target.device, one.target.toolchain) for one in of.targets})
    given = {"fingerprint": of.fingerprint} if of.fingerprint else {}
    page.add(
        "xpucached_host",
        "info",
        "What decides on this host about compiled programs.",
        [({**given, "kind": kind, "device": device, "driver": driver}, 1) for kind, device, driver in rows],
    )
    if of.warm is not None:
        page.gauge("xpucached_host_entries", "Entries that are looked after.", of.warm.entries)
        page.add(
            "xpucached_host_models",
            "gauge",
            "Registered models by how they stand.",
            [({"warmth": how}, number) for how, number in sorted(of.warm.models.items())],
        )
    return page.text()


def label(text: str) -> str:
    """Return a text as the value of a node's label: 63 characters at most, letters and digits at its ends."""
    kept = re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:_LONGEST_LABEL]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+\Z", "", kept)


def features(of: HostFingerprint) -> str:
    """Write it as a file of features for Node Feature Discovery; what is not known is not in it."""
    found = {"fingerprint": of.fingerprint}
    pairs = sorted({(one.target.device, one.target.toolchain) for one in of.targets})
    for number, (device, driver) in enumerate(pairs):
        found |= {f"device-{number}": device, f"driver-{number}": driver}
    return "".join(f"{DOMAIN}/{name}={label(text)}\n" for name, text in found.items() if label(text))


# -- many hosts -------------------------------------------------------------------------------------------------------


def fleet(of: FleetReport, style: TextStyle) -> str:
    """Write which hosts differ, and in what."""
    hosts = sum(len(one.hosts) for one in of.groups)
    if of.equal:
        lines = [f"all are equal: {count(hosts, 'host')}, fingerprint {of.groups[0].fingerprint}"]
    else:
        known = len({one.fingerprint for one in of.groups if one.fingerprint})
        unknown = sum(not one.fingerprint for one in of.groups)
        words = [count(hosts, "host"), count(known, "fingerprint")]
        words += [f"{unknown} with something that is not known"] if unknown else []
        rows = [row for one in of.groups for row in _rows(one)]
        lines = [", ".join(words)]
        lines += ["", table(("FINGERPRINT", "WHAT", "HERE", "MOST HAVE", "HOSTS"), rows, style)] if rows else []
    taken = [
        (one.bundle.name, one.taking, group.fingerprint or _UNKNOWN, one.why, ", ".join(group.hosts))
        for group in of.groups
        for one in group.takes
    ]
    if taken:
        lines += ["", table(("BUNDLE", "SERVES WITH", "FINGERPRINT", "REASON", "HOSTS"), taken, style)]
    lines += [f"not read: {plain(one.source)}: {plain(one.why)}" for one in of.unreadable]
    return "\n".join(lines)


def _rows(of: FleetGroup) -> Iterator[tuple[str, ...]]:
    mine, whose = of.fingerprint or _UNKNOWN, ", ".join(of.hosts)
    if not of.differences:
        yield (mine, "", "", "", whose)
    for number, one in enumerate(of.differences):
        yield (mine, one.what, _short(one.here), _short(one.most), "" if number else whose)


def _short(text: str) -> str:
    return re.sub(rf"\b(sha256|build-id):([0-9a-f]{{{_SHORT}}})[0-9a-f]+", r"\1:\2", text)


def names(of: FleetReport) -> str:
    """Return only the names of the hosts that are not as most are."""
    return "\n".join(plain(name) for one in of.groups if one.differences or not one.fingerprint for name in one.hosts)
