"""What a run asked the driver's cache for: the traces that the driver left in the root, which are taken away.

A trace may be forged, and two programs may have written one at once: it says how an entry is compiled only if the
entry's name comes out of it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.binaries import zebin
from xpucached.domain.names import EntryKey
from xpucached.domain.recipes import RecordedRecipe, Recording
from xpucached.domain.stores import Store
from xpucached.host import gpu_devices
from xpucached.kinds import fs, listing
from xpucached.kinds.neo import deriving, discovery, layout, trace
from xpucached.kinds.neo.predicting import KeyPredictor, lineage
from xpucached.kinds.neo.targets import compilers, target_of

if TYPE_CHECKING:
    from xpucached.domain.host import Host
    from xpucached.domain.stores import EntryId
    from xpucached.domain.targets import Target

MARKS: Final[tuple[bytes, ...]] = ()
"""The driver tells nothing in lines."""

_REPLACING: Final = ("neo.config", "igdrcl.config")
"""Files whose switches the driver takes instead of the environment's, if one lies where the program works."""

_TRACE, _INPUT = ".trace", ".input"

_MOST: Final = 20_000
"""Traces that are read; what the others ask for counts by their names."""

_LONGEST: Final = 16 << 20
"""Bytes of an input; oneDNN's largest source has 262 kB."""

_READ: Final = 1 << 30
"""Bytes of inputs and entries that are read of one pass."""

_KEPT: Final = 64 << 20
"""Bytes of traces and of different inputs that are held at a time."""

_ASKED: Final = 200_000
"""Traces that are counted: after so many it is not known what else was asked for."""

_HASHED: Final = 24 << 20
"""Bytes of different inputs that are hashed: one million takes 0.7 s."""

_SECONDS: Final = 30.0
"""What names are made from is anybody's, and as long as they like: after so many the rest is not read, nor hashed."""

_MOST_IPS: Final = 8
"""Versions of GPUs that are tried for one platform."""

_MAKER: Final = trace.KeyMaker()
"""One for all passes: a replay reads a trace for each program of a library, and most have the same input."""


_NAMES: Final = KeyPredictor()

_marks: Final[dict[Path, str | OSError]] = {}
"""A file in each store in which a pass goes on: where it is gone, somebody took traces away that were the pass's."""


def variables(store: Store) -> Mapping[str, str]:  # noqa: ARG001 - each store has its own traces
    """Return the variables that make the driver leave traces; see `Recorder.variables`."""
    return {"NEOReadDebugKeys": "1", "BinaryCacheTrace": "1"}


def why_untold(directory: Path) -> str:
    """Return why the driver leaves no traces of programs that work here; see `Recorder.why_untold`."""
    for name in _REPLACING:
        if os.path.lexists(directory / name):
            return f"{name} in its directory replaces the switches with which its GPU driver tells what it asks for"
    return ""


def why_not_kept(host: Host) -> str:
    """Return which driver keeps nothing, and so has nothing to tell of; see `Recorder.why_not_kept`."""
    if not any(map(gpu_devices.is_gpu, host.answers)):
        # It is there for nobody.
        return ""
    files = ", ".join(str(one.path) for one in discovery.without_cache(host))
    return files and f"the GPU driver is too old to keep what it compiles ({files})"


def read(store: Store, lines: Iterable[str]) -> Recording:  # noqa: ARG001
    """Read nothing from lines; see `Recorder.read`."""
    return Recording()


def collect(store: Store, before: frozenset[EntryKey], host: Host) -> Recording:
    """Read the traces of a pass and take them away; see `Recorder.collect`.

    What was asked for and was not there has been compiled, whether or not it could be kept.
    """
    mark = _marks.pop(store.root, None)
    try:
        with fs.root_to_change(os.fspath(store.root)) as (root, _):
            files = _traces(root)
            try:
                told = _Pass(root, before, host, _READ, _KEPT).read(files[: 2 * _ASKED])
            finally:
                _take_away(root, files)
            if isinstance(mark, str) and mark not in files:
                return replace(told, why_incomplete="another daemon, or a program, took traces away meanwhile")
            if len(files) > 2 * _ASKED:
                return replace(told, why_incomplete=f"it holds more than {2 * _ASKED} files of traces")
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=root):
                return replace(told, why_incomplete="it cannot be written to")
            if isinstance(mark, OSError):
                return replace(told, why_incomplete=f"no file could be made there: {mark.strerror}")
            return told
    except FileNotFoundError:
        return Recording(why_incomplete="" if mark is None else "it was removed meanwhile")
    except OSError as error:
        return Recording(why_incomplete=error.strerror or str(error))


def predict(entry: EntryId, told: RecordedRecipe, target: Target) -> EntryKey | None:
    """Return where programs will look for an entry of another compiler's; see `Recorder.predict`."""
    given = told.parts.get("input")
    if given is None:
        try:
            with fs.root_directory(os.fspath(entry.store.root)) as (root, _):
                given = zebin.image(_program(root, entry.key, _LONGEST))
        except ValueError as error:
            # It changed since it was found to be whole.
            raise OSError(errno.EBADMSG, str(error)) from error
    return _NAMES.key(told, given, target)


derive, COMMON, unkept = deriving.derive, deriving.COMMON, trace.unkept


def is_of_other_compiler(store: Store, host: Host) -> bool:
    """Return whether a trace names a compiler that is not this host's: it has been replaced just now."""
    try:
        with fs.root_to_change(os.fspath(store.root)) as (root, _):
            for name in _in_time(one for one in _traces(root)[: 2 * _MOST] if one.endswith(_TRACE)):
                # One that cannot be read says nothing of the others.
                with contextlib.suppress(OSError, ValueError), fs.regular_file(root, name) as (descriptor, _):
                    found = trace.read(fs.read(descriptor, trace.LONGEST + 1)).compiler
                    if (found.size, found.modified) not in compilers(host):
                        return True
    except OSError:
        return False
    return False


def forget(store: Store, *, begins: bool = False) -> None:
    """Take away what was left before a pass, unread; see `Recorder.forget`."""
    _marks.pop(store.root, None)
    try:
        with fs.root_to_change(os.fspath(store.root)) as (root, _):
            _take_away(root, _traces(root))
            if begins:
                # It goes as traces go, whoever takes them away.
                mark = f"{secrets.token_hex(8)}{_INPUT}"
                fs.make(root, mark, b"")
                _marks[store.root] = mark
    except OSError as error:
        if begins and not isinstance(error, FileNotFoundError):
            # Then the driver can make none, and keeps nothing.
            _marks[store.root] = error.with_traceback(None)


def _in_time(names: Iterable[str]) -> Iterator[str]:
    """Yield names until it took too long to read what they name."""
    until = time.monotonic() + _SECONDS
    return itertools.takewhile(lambda _: time.monotonic() < until, names)


def _traces(root: int) -> list[str]:
    return sorted(name for name in listing.names(root) if layout.TRACE.match(name))


def _take_away(root: int, files: Iterable[str]) -> None:
    for name in files:
        try:
            os.unlink(name, dir_fd=root)
        except OSError:
            # The driver makes no directories of such names; an empty one goes, another is no trace.
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=root)


@dataclass(slots=True)
class _Traced:
    """One lookup, as far as its files could be read."""

    key: EntryKey
    name: str
    lookup: trace.Lookup
    driver: bytes  #: what it has in common with other programs for the device
    given: bytes
    digest: str


@dataclass(slots=True)
class _Pass:
    """The reading of the traces of one pass."""

    root: int
    before: frozenset[EntryKey]
    host: Host
    left: int  #: bytes that may still be read, and …
    room: int  #: … held
    inputs: dict[str, bytes] = field(default_factory=dict)  #: by digest: most programs of a library have the same
    alike: dict[bytes, tuple[trace.Lookup, bytes]] = field(default_factory=dict)  #: by what `_shared` gives
    ips: dict[tuple[int, ...], list[int | None]] = field(default_factory=dict)  #: the GPUs' versions, by platform

    def read(self, files: Iterable[str]) -> Recording:
        """Return what was asked for, and how it is compiled."""
        known: dict[str, EntryKey] = {}
        for key in sorted(self.before):
            # A directory's entry comes before a flat one, which later drivers never read.
            known.setdefault(key.rpartition("/")[2].partition(".")[0], key)
        asked: dict[str, EntryKey | None] = {}
        for file in files:
            name, _, what = file.rpartition(".")
            if f".{what}" == _TRACE and not self._is_directory(file):
                asked[name] = self._answer(name, known)
        if any(key is not None and "/" in key for key in asked.values()):
            # A driver that looks into directories reads no flat entry, though nothing came in its place.
            asked = {name: self._find(name, flat=False) if _is_flat(key) else key for name, key in asked.items()}
        keys = {name: key or _missing(name) for name, key in asked.items()}
        there = {name: key for name, key in asked.items() if key is not None}
        every = frozenset(keys.values())
        recipes = tuple(self._recipes(there))
        return Recording(every - self.before, every & self.before, recipes)

    def _is_directory(self, name: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(name, dir_fd=self.root, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def _answer(self, name: str, known: Mapping[str, EntryKey]) -> EntryKey | None:
        """Return the entry of a name; where a driver could not have put one into its directory, a flat one is none."""
        found = known.get(name) or self._find(name)
        if not _is_flat(found):
            return found
        for place in (name[0], f"{name[0]}/{name[1]}"):
            if listing.exists(self.root, place) and not (
                self._is_directory(place) and os.access(place, os.W_OK | os.X_OK, dir_fd=self.root)
            ):
                return None
        return found

    def _find(self, name: str, *, flat: bool = True) -> EntryKey | None:
        """Return the entry of a name that was made in this pass; not what a link leads to, where nobody may answer."""
        deep = self._is_directory(name[0]) and self._is_directory(f"{name[0]}/{name[1]}")
        for above in (*([f"{name[0]}/{name[1]}/"] if deep else []), *([""] if flat else [])):
            for suffix in layout.SUFFIXES:
                with contextlib.suppress(OSError):
                    os.stat(f"{above}{name}{suffix}", dir_fd=self.root, follow_symlinks=False)
                    return EntryKey(f"{above}{name}{suffix}")
        return None

    def _recipes(self, there: Mapping[str, EntryKey]) -> Iterator[RecordedRecipe]:
        names = sorted(there)[:_MOST]
        traced = [one for name in _in_time(names) if (one := self._traced(name, there[name])) is not None]
        # Text first: an entry holds the SPIR-V from which it was compiled.  Equal inputs are hashed once, in a row.
        hashed: set[tuple[trace.CompilerFile, str]] = set()
        left = _HASHED
        until = time.monotonic() + _SECONDS
        for one in sorted(traced, key=_in_a_row):
            if time.monotonic() > until:
                return
            if (one.lookup.compiler, one.digest) not in hashed:
                hashed.add((one.lookup.compiler, one.digest))
                left -= len(one.given)
                if left < 0:
                    return
            recipe = self._recipe(one)
            if recipe is not None:
                yield recipe

    def _traced(self, name: str, key: EntryKey) -> _Traced | None:
        """Read the files of one lookup; None if they are none of a driver, or there is no room for them."""
        try:
            lookup = trace.read(self._content(name + _TRACE, trace.LONGEST))
            given = self._content(name + _INPUT, _LONGEST)
        except (OSError, ValueError):
            return None
        driver, digest = _shared(lookup), hashlib.sha256(given).hexdigest()
        needed = len(lookup.options) + len(lookup.constants) + len(lookup.values)
        needed += len(driver) * 2 if driver not in self.alike else 0
        needed += len(given) if digest not in self.inputs else 0
        if needed > self.room:
            return None
        self.room -= needed
        first, driver = self.alike.setdefault(driver, (lookup, driver))
        lookup = replace(first, options=lookup.options, constants=lookup.constants, values=lookup.values)
        return _Traced(key, name, lookup, driver, self.inputs.setdefault(digest, given), digest)

    def _content(self, name: str, longest: int) -> bytes:
        """Read a small file.  Raises OSError, and ValueError if it is too large."""
        with fs.regular_file(self.root, name) as (descriptor, status):
            if status.st_size > min(longest, self.left):
                raise ValueError("it is too large to be read")
            self.left -= status.st_size
            return fs.read(descriptor, status.st_size)

    def _recipe(self, one: _Traced) -> RecordedRecipe | None:
        """Return how an entry is compiled, if its name comes out of its trace, and it is known for what it is."""
        target = target_of(one.lookup, self.host)
        if target is None:
            return None
        lookup, ips = one.lookup, self.ips.setdefault(one.lookup.platform, [])
        spirv = trace.is_spirv(one.given)
        entry = None if ips and not spirv else self._entry(one.key)
        if entry is not None and entry.ip not in ips and len(ips) < _MOST_IPS:
            ips.append(entry.ip)
        ip = next((ip for ip in (*ips, None) if _MAKER.key(lookup, one.given, ip) == one.name), 0)
        if ip == 0:
            return None
        parts = {"driver": one.driver}
        if not (spirv and entry is not None and entry.input == one.digest):
            parts["input"] = one.given
        facts = {
            "options": lookup.options.decode("latin-1"),
            "constants": lookup.constants.hex(),
            "values": lookup.values.hex(),
            "ip": "" if ip is None else str(ip),
        }
        return RecordedRecipe(one.key, target, lineage(one.lookup, one.digest), parts, facts)

    def _entry(self, key: EntryKey) -> zebin.Zebin | None:
        try:
            data = _program(self.root, key, min(_LONGEST, self.left))
            self.left -= len(data)
            return zebin.read(data)
        except (OSError, ValueError):
            return None


def _is_flat(key: EntryKey | None) -> bool:
    return key is not None and "/" not in key


def _program(root: int, key: EntryKey, longest: int) -> bytes:
    """Read an entry.  Raises OSError, and ValueError if it is too large."""
    *above, name = key.split("/")
    with contextlib.ExitStack() as opened:
        here = root
        for part in above:
            here = opened.enter_context(fs.directory_in(here, part, os.fstat(root).st_dev))
        descriptor, status = opened.enter_context(fs.regular_file(here, name))
        if status.st_size > longest:
            raise ValueError("it is too large to be read")
        return fs.read(descriptor, status.st_size)


def _in_a_row(one: _Traced) -> tuple[object, ...]:
    """Return an order in which what is hashed alike comes in a row."""
    compiler = one.lookup.compiler
    return (
        *(trace.is_spirv(one.given), one.digest),
        *(compiler.size, compiler.modified, compiler.revision or b"", one.name),
    )


def _missing(name: str) -> EntryKey:
    """Return the key of what was asked for and is not there: where drivers would have put it."""
    return EntryKey(f"{name[0]}/{name[1]}/{name}{layout.SUFFIXES[0]}")


def _shared(lookup: trace.Lookup) -> bytes:
    """Return what all programs for a device have in common, in one text."""
    told = {
        "internal": lookup.internal.decode("latin-1"),
        "platform": lookup.platform,
        "features": lookup.features.hex(),
        "workarounds": lookup.workarounds.hex(),
        "compiler": [
            lookup.compiler.size,
            lookup.compiler.modified,
            (lookup.compiler.revision or b"").decode("latin-1"),
        ],
    }
    return json.dumps(told, sort_keys=True).encode()
