"""Entries that travel: the two files of a slot, always the lowest, and the recipe that is in one of them."""

from __future__ import annotations

import contextlib
import os
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from xpucached.binaries import formats
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import Recipe
from xpucached.domain.stores import Entry, EntryId, FoundStore, StoreOrigin
from xpucached.kinds import fs, images, listing
from xpucached.kinds.known_cursor import KnownCursor
from xpucached.kinds.portability import Packed
from xpucached.kinds.sycl import entry_format, reader, recipes, scanner, targets
from xpucached.kinds.sycl.scan_state import ScanState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from xpucached.domain.bundles import RecipeLine
    from xpucached.domain.stores import Store
    from xpucached.domain.targets import Target

FORMAT: Final = "dirs-v1"
"""Four levels of directories, a slot's source with four fields, its program in a frame of one."""

_FILE: Final = re.compile(r"(?:0|[1-9][0-9]{0,19})(?:/(?:0|[1-9][0-9]{0,19})){3}/0\.(?:bin|src)\Z", re.ASCII)
_SLOT: Final = "0"
_FIELDS: Final = 4
_FRAME: Final = 16
_PLAIN: Final = frozenset({f"{_SLOT}.bin", f"{_SLOT}.src"})
_ACCESSED: Final = f"{_SLOT}_access_time.txt"
_NEW: Final = {"file-mode": "644", "directory-mode": "755", "access-time": "kept"}
"""How what came from elsewhere lies in a store: a birth time goes with it, or the runtime would never let it go."""


def is_file(name: str) -> bool:
    """Return whether a file of a bundle may be called so; see `Portable.is_file`."""
    return _FILE.match(name) is not None


def place(key: EntryKey) -> EntryKey | None:
    """Return the lowest slot of the same leaf; see `Portable.place`."""
    path = key.split("/")
    numbered = len(path) == _FIELDS + 1 and all(entry_format.NUMBER.match(one) for one in path)
    return EntryKey("/".join((*path[:-1], _SLOT))) if numbered else None


def pack(entry: Entry) -> tuple[Mapping[str, bytes], Recipe]:
    """Return a slot's two files, and its recipe; see `Portable.pack`."""
    *path, slot = entry.id.key.split("/")
    with contextlib.ExitStack() as stack:
        here, status = stack.enter_context(fs.root_directory(os.fspath(entry.id.store.root)))
        for name in path:
            here = stack.enter_context(fs.directory_in(here, name, status.st_dev))
        return _packed(here, "/".join(path), slot, entry.id.store, entry.environment)


def _packed(leaf: int, path: str, slot: str, store: Store, target: Target | None) -> tuple[Mapping[str, bytes], Recipe]:
    """Do so in a leaf that is open.  Raises as `pack` does."""
    if listing.exists(leaf, f"{slot}.lock"):
        raise ValueError("a program is writing it")
    source, before = _read(leaf, f"{slot}.src")
    program, _ = _read(leaf, f"{slot}.bin")
    # Who replaced one meanwhile replaced both.
    after = os.stat(f"{slot}.src", dir_fd=leaf, follow_symlinks=False)
    if _state(after) != _state(before) or listing.exists(leaf, f"{slot}.lock"):
        raise ValueError("a program is writing it")
    files = {f"{path}/{_SLOT}.bin": program, f"{path}/{_SLOT}.src": source}
    if target is None:
        raise ValueError("it does not say what it is for")
    recipe, _ = unpack(store, target, files)
    return files, recipe


def _read(directory: int, name: str) -> tuple[bytes, os.stat_result]:
    with fs.regular_file(directory, name) as (descriptor, found):
        if found.st_uid != os.geteuid():
            raise ValueError("somebody else wrote it")
        if found.st_size > entry_format.READ_LIMIT:
            raise ValueError("it is too large")
        return fs.read(descriptor, min(entry_format.READ_LIMIT, found.st_size + 1)), found


def _state(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def unpack(store: Store, target: Target, files: Mapping[str, bytes]) -> tuple[Recipe, bytes]:
    """Take a leaf apart; see `Portable.unpack`."""
    names = sorted(files)
    leaf = names[0].rpartition("/")[0]
    if names != [f"{leaf}/{_SLOT}.bin", f"{leaf}/{_SLOT}.src"]:
        raise ValueError("half an entry")
    program, data = (files[name] for name in names)
    source = entry_format.source(data, len(data))
    if not source.whole or source.defect is not None:
        raise ValueError(f"its source is damaged: {source.detail}")
    if "/".join(source.directories) != leaf:
        raise ValueError("it does not lie where its content belongs")
    if source.device != targets.device_field(target):
        raise ValueError("it is for another environment")
    frame = entry_format.frame(program[:_FRAME], len(program), lambda at: program[at : at + 8])
    if frame.defect is not None or int.from_bytes(program[:8], "little") != 1:
        raise ValueError(f"its program is damaged: {frame.detail or 'it holds several'}")
    if source.constants:
        raise ValueError("it was compiled with specialization constants")
    binary = program[_FRAME:]
    wrong = images.damage(binary, intel=images.is_intel(target.family))
    if wrong is not None:
        raise ValueError(f"its program is damaged: {wrong}")
    return Recipe(EntryId(store, EntryKey(f"{leaf}/{_SLOT}")), source.image, source.options, _NEW), binary


def batch(root: Path) -> recipes.LeafBatch:
    """Begin to put programs into a store; see `Portable.batch`."""
    return recipes.LeafBatch(root)


def walk(store: Store) -> Mapping[Target, tuple[int, Iterator[Packed]]] | None:
    """Go through a store once; see `Portable.walk`."""
    found: dict[Target, tuple[int, Iterator[Packed]]] = {}
    look = _Walk(store, datetime.now(UTC))
    with look.opened() as state:
        for name in sorted(listing.names(state.root)):
            if entry_format.NUMBER.match(name):
                target = reader.environment_of(state, name)
                if target is None or target in found:
                    return None
                with fs.directory_in(state.root, name, state.device) as here:
                    found[target] = (len(listing.names(here)), look.device(name, target))
            elif name == entry_format.RTC:
                return None
    return found


class _Walk:
    """Goes through a store, one device after the other."""

    def __init__(self, store: Store, now: datetime) -> None:
        self._store = store
        self._now = now

    @contextlib.contextmanager
    def opened(self) -> Iterator[ScanState]:
        """Open the store as a scan does that knows nothing."""
        found = FoundStore(self._store, StoreOrigin.CONFIGURED, "named")
        with fs.root_directory(os.fspath(self._store.root)) as (root, status):
            yield ScanState(found, self._now, KnownCursor(()), False, root, status, inside=False)  # noqa: FBT003

    def device(self, name: str, target: Target) -> Iterator[Packed]:
        """Yield the entries below the directory of a device."""
        with self.opened() as state:
            yield from self._below(state, state.root, state.status.st_uid, name, "", target)

    def _below(
        self, state: ScanState, parent: int, owner: int, name: str, above: str, target: Target
    ) -> Iterator[Packed]:
        try:
            here, status = fs.enter(parent, name, state.device, owner)
        except OSError as error:
            if fs.passing(error):
                raise
            return
        path = f"{above}{name}"
        try:
            if path.count("/") == _FIELDS - 1:
                yield from self._leaf(state, here, path, target)
                return
            for below in sorted(listing.names(here)):
                if entry_format.NUMBER.match(below):
                    yield from self._below(state, here, status.st_uid, below, f"{path}/", target)
        finally:
            os.close(here)

    def _leaf(self, state: ScanState, leaf: int, path: str, target: Target) -> Iterator[Packed]:
        """Pack the only entry of a leaf; what is otherwise is looked at as a scan does."""
        files = {one.name for one in listing.entries(leaf) if one.is_file(follow_symlinks=False)}
        if files - {_ACCESSED} == _PLAIN:
            try:
                content = _packed(leaf, path, _SLOT, self._store, target)
            except (ValueError, OSError):
                pass
            else:
                yield Packed(Entry(content[1].entry, "", 0, 0, self._now, None, environment=target), content)
                return
        yield from map(Packed, sorted(scanner.leaf(state, leaf, path), key=lambda one: one.id.key))


def lineage(recipe: Recipe) -> str:
    """Return the leaf below the device's directory; see `Portable.lineage`."""
    return _lineage(entry_format.directory_name(recipe.input), recipe.options)


def _lineage(module: str, options: bytes) -> str:
    return "/".join((module, *map(entry_format.directory_name, (b"", options))))


def facts(recipe: Recipe) -> Mapping[str, str]:  # noqa: ARG001 - modes are each host's own
    """Return nothing; see `Portable.facts`."""
    return {}


def recipe(store: Store, line: RecipeLine, given: bytes) -> Recipe:
    """Return a recipe that travelled; see `Portable.recipe`."""
    if line.facts:
        raise ValueError("it has facts that no recipe of this kind has")
    if _lineage(_module(given), line.options) != line.at:
        raise ValueError("it is not what its name says")
    return Recipe(EntryId(store, EntryKey(f"0/{line.at}/{_SLOT}")), given, line.options, _NEW)


@lru_cache(maxsize=1)
def _module(given: bytes) -> str:
    """Return the directory of a module, of which a bundle may have any number of recipes one after the other."""
    if formats.modules(given) != 1:
        raise ValueError("it is not one module of SPIR-V")
    return entry_format.directory_name(given)
