"""Entries that travel: the two files of a slot, always the lowest, and the recipe that is in one of them."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

from xpucached.binaries import formats
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import Recipe
from xpucached.domain.stores import EntryId
from xpucached.kinds import fs, images, listing
from xpucached.kinds.sycl import entry_format, recipes, targets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from xpucached.domain.bundles import RecipeLine
    from xpucached.domain.stores import Entry, Store
    from xpucached.domain.targets import Target

FORMAT: Final = "dirs-v1"
"""Four levels of directories, a slot's source with four fields, its program in a frame of one."""

_FILE: Final = re.compile(r"(?:0|[1-9][0-9]{0,19})(?:/(?:0|[1-9][0-9]{0,19})){3}/0\.(?:bin|src)\Z", re.ASCII)
_SLOT: Final = "0"
_FIELDS: Final = 4
_FRAME: Final = 16
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
        if listing.exists(here, f"{slot}.lock"):
            raise ValueError("a program is writing it")
        source, before = _read(here, f"{slot}.src")
        program, _ = _read(here, f"{slot}.bin")
        # Who replaced one meanwhile replaced both.
        after = os.stat(f"{slot}.src", dir_fd=here, follow_symlinks=False)
        if _state(after) != _state(before) or listing.exists(here, f"{slot}.lock"):
            raise ValueError("a program is writing it")
    files = {f"{'/'.join(path)}/{_SLOT}.bin": program, f"{'/'.join(path)}/{_SLOT}.src": source}
    if entry.environment is None:
        raise ValueError("it does not say what it is for")
    recipe, _ = unpack(entry.id.store, entry.environment, files)
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
    if source.device != entry_format.data(targets.identity(target)):
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


def lineage(recipe: Recipe) -> str:
    """Return the leaf below the device's directory; see `Portable.lineage`."""
    return "/".join(str(entry_format.string_hash(one)) for one in (recipe.input, b"", recipe.options))


def facts(recipe: Recipe) -> Mapping[str, str]:  # noqa: ARG001 - modes are each host's own
    """Return nothing; see `Portable.facts`."""
    return {}


def recipe(store: Store, line: RecipeLine, given: bytes) -> Recipe:
    """Return a recipe that travelled; see `Portable.recipe`."""
    if line.facts:
        raise ValueError("it has facts that no recipe of this kind has")
    if formats.modules(given) != 1:
        raise ValueError("it is not one module of SPIR-V")
    found = Recipe(EntryId(store, EntryKey(f"0/{line.at}/{_SLOT}")), given, line.options, _NEW)
    if lineage(found) != line.at:
        raise ValueError("it is not what its name says")
    return found
