"""What a host tells of itself, and many hosts compared.  What other hosts wrote is read with care: it may be forged."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec
from msgspec.structs import replace

from xpucached import codec, messages, reading, state_files
from xpucached.bundle import members
from xpucached.bundling import drivers
from xpucached.bundling.signing import verdict
from xpucached.domain.bundles import BundleContent
from xpucached.domain.fleet import (
    FINGERPRINT_SCHEMA,
    FingerprintReport,
    FleetHost,
    FleetReport,
    FleetTaking,
    HostFingerprint,
    HostTarget,
    UnreadFingerprint,
)
from xpucached.errors import NotFound, RequestError
from xpucached.kinds.table import KINDS
from xpucached.planning import fleet
from xpucached.planning.imports import Taking, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xpucached.bundling.progress import Progress
    from xpucached.domain.bundles import BundleFacts
    from xpucached.domain.fleet import AskFingerprint, DiffFleet, FleetGroup

LARGEST: Final = 256 << 10
"""Bytes of one fingerprint; real ones have some 3 KiB."""

_MOST_VALUES: Final = 4000
_LONGEST: Final = 1000
"""Characters of one text in a fingerprint."""

_LARGEST_FILE: Final = 32 << 20
_LARGEST_TOGETHER: Final = 64 << 20
_MOST_HOSTS: Final = 10_000
_HOST: Final = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,254})?")
"""A name that can be given to other programs: what begins with a dash would be an option to them."""


def fingerprint(order: AskFingerprint, progress: Progress) -> FingerprintReport:
    """Ask the driver, and read what compiles; see `AskFingerprint`."""
    progress(0, 0, "asking the driver who it is")
    timeout = drivers.settings().driver.probe_timeout
    with drivers.used(order.driver_root, order.device, timeout) as used:
        targets = tuple(sorted({HostTarget(one, used.isa(one)) for one in used.driver.environments}))
        progress(0, 0, "reading the compiler")
        told = HostFingerprint(targets, used.compiler, _formats(), os.uname().nodename)
    return FingerprintReport(told)


def _formats() -> dict[str, str]:
    return {name: one.portable.FORMAT for name, one in KINDS.items() if one.portable and one.portable.FORMAT}


# -- reading what others wrote ----------------------------------------------------------------------------------------


def diff(order: DiffFleet, progress: Progress) -> FleetReport:
    """Compare hosts; see `DiffFleet`.  Raises `NotFound` and `RequestError`."""
    hosts: list[tuple[FleetHost, str]] = []
    unreadable: list[UnreadFingerprint] = []
    size = 0
    for source, data in _sources(order):
        for where, text in _parts(source, data):
            size += len(text)
            if len(hosts) + len(unreadable) >= _MOST_HOSTS or size > _LARGEST_TOGETHER:
                message = f"more than {_MOST_HOSTS} hosts, or {_LARGEST_TOGETHER} bytes"
                raise RequestError(message, hint="compare some of them")
            try:
                told = read(text)
            except messages.BadMessage as error:
                unreadable.append(UnreadFingerprint(where, str(error)))
            else:
                hosts.append((FleetHost(told.host or where, told), where))
    if not hosts and not unreadable:
        raise NotFound("there is no fingerprint", hint="make some: xpucachectl fingerprint --json > HOST.json")
    found = fleet.groups(hosts)
    for path in order.bundles:
        progress(0, 0, f"reading {path.name}")
        found = _with_bundle(found, path)
    return FleetReport(found, tuple(unreadable))


def _sources(order: DiffFleet) -> Iterator[tuple[str, bytes | str]]:
    """Yield where something came from, and its bytes, or why these cannot be had."""
    if order.given is not None:
        yield "standard input", order.given.encode("utf-8", "surrogatepass")
    for path in order.sources:
        if path.is_dir():
            try:
                with os.scandir(path) as there:
                    names = sorted(one.name for one, _ in zip(there, range(10 * _MOST_HOSTS), strict=False))
            except OSError as error:
                raise NotFound(f"{path}: {error.strerror}") from error
            for name in names:
                if name.endswith(".json") and not name.startswith("."):
                    # What a person names may be a link; what lies in a folder, to which others may write, is none.
                    yield _shown(name), _content(path / name, follow=False)
        elif os.path.lexists(path):
            yield _shown(path.name), _content(path)
        else:
            raise NotFound(f"{path} is not there", hint="name files that xpucachectl fingerprint --json wrote, or -")


def _shown(name: str) -> str:
    return f"./{name}" if name.startswith("-") else name


def _content(path: Path, *, follow: bool = True) -> bytes | str:
    try:
        file = state_files.stream(reading.opened(path, follow=follow))
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return "it is no file"
        try:
            data = file.read(_LARGEST_FILE + 1)
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
    return data if len(data) <= _LARGEST_FILE else f"it has more than {_LARGEST_FILE} bytes"


def _parts(source: str, data: bytes | str) -> Iterator[tuple[str, bytes | str]]:
    """Yield each fingerprint of a file: one, or one in each line."""
    if isinstance(data, str) or b"\n" not in data.strip() or not data.partition(b"\n")[0].rstrip().endswith(b"}"):
        yield source, data
        return
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            yield f"{source}:{number}", line


def read(data: bytes | str) -> HostFingerprint:
    """Read a fingerprint that another host wrote, alone or as `xpucachectl --json` prints it.  Raises `BadMessage`.

    What it says that its fingerprint is does not count: that is made anew of all else.
    """
    if isinstance(data, str):
        raise messages.BadMessage(data)
    told = messages.members(messages.parse(data, largest=LARGEST, most=_MOST_VALUES))
    if "data" in told:
        told = messages.members(told["data"])
    if told.get("schema") != FINGERPRINT_SCHEMA:
        raise messages.BadMessage(f"it is no fingerprint of schema {FINGERPRINT_SCHEMA}")
    try:
        made = cast("HostFingerprint", codec.convert(told, HostFingerprint))
    except (msgspec.ValidationError, TypeError) as error:
        raise messages.BadMessage(f"it is no fingerprint: {error}") from None
    if any(len(one) > _LONGEST for one in _texts(made)):
        raise messages.BadMessage(f"it has a text of more than {_LONGEST} characters")
    if _HOST.fullmatch(made.host) is None:
        raise messages.BadMessage("what it calls itself is no host's name")
    if made.warm is not None and min((made.warm.entries, *made.warm.models.values())) < 0:
        raise messages.BadMessage("it counts less than nothing")
    return made


def _texts(of: HostFingerprint) -> Iterator[str]:
    yield of.host
    for one in of.targets:
        target = one.target
        yield from (target.kind, target.family, target.device, target.toolchain, one.isa)
        yield from (text for fact in target.facts for text in fact)
    for library in of.compiler:
        yield from (library.name, library.id)
    for name, text in of.formats.items():
        yield from (name, text)


# -- what they could take from a bundle -------------------------------------------------------------------------------

_WORDS: Final = {Taking.PUBLISH: "binaries", Taking.REBUILD: "recipes", Taking.LEAVE: "nothing"}


def _with_bundle(groups: Iterable[FleetGroup], path: Path) -> tuple[FleetGroup, ...]:
    bundle = members.opened(path)
    with bundle.layout:
        families: set[tuple[str, str]] = set()
        images: list[tuple[BundleFacts, str | None, str]] = []
        for member in bundle.members:
            if member.facts.content is BundleContent.RECIPES:
                families |= {(line.kind, line.family) for lines, _ in bundle.recipes(member) for line in lines}
            else:
                signed = verdict(bundle, member)
                images.append((member.facts, signed.signer, signed.why))
        return tuple(replace(one, takes=(*one.takes, _takes(one, path, images, families))) for one in groups)


def _takes(
    group: FleetGroup,
    path: Path,
    images: list[tuple[BundleFacts, str | None, str]],
    families: set[tuple[str, str]],
) -> FleetTaking:
    """Say what hosts could take, if they trust the keys that are trusted here."""
    here = {one.target: one.isa for one in group.told.targets}
    compiler = tuple(sorted(set(group.told.compiler)))
    judged = [(judge(facts, signer, why, here, compiler, here), signer) for facts, signer, why in images]
    fits = next((signer for taken, signer in judged if taken.taking is Taking.PUBLISH), None)
    if fits is not None:
        return FleetTaking(path, _WORDS[Taking.PUBLISH], f"where {fits} is trusted")
    if any((one.kind, one.family) in families for one in here):
        why = next((taken.why for taken, _ in judged if taken.taking is Taking.REBUILD), "")
        return FleetTaking(path, _WORDS[Taking.REBUILD], why or "it holds no programs for them")
    return FleetTaking(path, _WORDS[Taking.LEAVE], "it holds nothing for their devices")
