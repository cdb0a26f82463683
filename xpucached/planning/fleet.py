"""Decide: which hosts are equal, and in what the others differ from most of them.  Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.domain.fleet import FleetDifference, FleetGroup
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from xpucached.domain.fleet import FleetHost, HostFingerprint, HostTarget

_ABSENT: Final = "not there"
_UNKNOWN: Final = "not known"
_TOGETHER: Final = 32 << 20
"""Bytes that all differences may take, about: who is forged to have thousands of things differs so from each host."""
_EACH: Final = 100


def groups(hosts: Iterable[tuple[FleetHost, str]]) -> tuple[FleetGroup, ...]:
    """Put equal hosts together, those that most are like first; each host comes with where it was read.

    A host of which something is not known is equal to none.  Raises `RequestError` where too much differs.
    """
    whole = list(hosts)
    often = Counter(one.name for one, _ in whole)
    found: dict[str, list[str]] = {}
    first: dict[str, HostFingerprint] = {}
    for number, (one, source) in enumerate(whole):
        key = one.told.fingerprint or f"?{number}"
        # Two that call themselves the same are told apart by where they came from.
        found.setdefault(key, []).append(one.name if often[one.name] == 1 else f"{one.name} ({source})")
        first.setdefault(key, one.told)
    keys = sorted(found, key=lambda key: (key.startswith("?"), -len(found[key]), key))
    made = [FleetGroup(first[key].fingerprint, tuple(sorted(found[key])), first[key]) for key in keys]
    left = _TOGETHER
    for number, group in enumerate(made):
        differing = differences(group.told, made[0].told)
        left -= sum(_EACH + len(each.what) + len(each.here) + len(each.most) for each in differing)
        if left < 0:
            message = f"what is otherwise than on most hosts takes more than {_TOGETHER} bytes to tell"
            raise RequestError(message, hint="compare some of them")
        made[number] = replace(group, differences=differing)
    return tuple(made)


def differences(here: HostFingerprint, most: HostFingerprint) -> tuple[FleetDifference, ...]:
    """Return in what one host differs from another, and what of it is not known."""
    found = [FleetDifference(one, _UNKNOWN, "") for one in here.unknown]
    ours, theirs = _devices(here), _devices(most)
    for key in sorted({*ours, *theirs}):
        found += _device(key, ours.get(key, ()), theirs.get(key, ()))
    found += _named("", *(_libraries(one) for one in (here, most)))
    found += _named("format of ", *({key: {text} for key, text in one.formats.items()} for one in (here, most)))
    return tuple(found)


def _devices(of: HostFingerprint) -> Mapping[tuple[str, str, str], list[HostTarget]]:
    made: dict[tuple[str, str, str], list[HostTarget]] = {}
    for one in of.targets:
        made.setdefault(one.target.lineage, []).append(one)
    return made


def _libraries(of: HostFingerprint) -> Mapping[str, set[str]]:
    made: dict[str, set[str]] = {}
    for one in of.compiler:
        made.setdefault(one.name, set()).add(one.id)
    return made


_FACETS: Final[Sequence[tuple[str, Callable[[HostTarget], str]]]] = (
    ("driver of", lambda one: one.target.toolchain),
    ("facts of", lambda one: " ".join(f"{name}={text}" for name, text in one.target.facts)),
    ("instructions of", lambda one: one.isa or _UNKNOWN),
)


def _device(of: tuple[str, str, str], here: Sequence[HostTarget], most: Sequence[HostTarget]) -> list[FleetDifference]:
    if not (here and most):
        there = _words(one.target.toolchain for one in here or most)
        return [FleetDifference(_what("device", of), *((there, _ABSENT) if here else (_ABSENT, there)))]
    pairs = ((name, _words(map(tell, here)), _words(map(tell, most))) for name, tell in _FACETS)
    return [FleetDifference(_what(name, of), ours, theirs) for name, ours, theirs in pairs if ours != theirs]


def _what(name: str, of: tuple[str, str, str]) -> str:
    # Not a template: a device's name is somebody else's text.
    kind, family, device = of
    return f"{kind}: {name} {device}, through {family}"


def _named(before: str, here: Mapping[str, set[str]], most: Mapping[str, set[str]]) -> list[FleetDifference]:
    return [
        FleetDifference(before + name, _words(here.get(name, ())), _words(most.get(name, ())))
        for name in sorted({*here, *most})
        if here.get(name) != most.get(name)
    ]


def _words(texts: Iterable[str]) -> str:
    return ", ".join(sorted(set(texts))) or _ABSENT
