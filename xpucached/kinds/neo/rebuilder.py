"""Compiling again what lies in the GPU driver's cache: the driver itself does it, into a place of its own.

What it keeps there, and its trace, say under which name programs will look for it.  It goes into the store under the
driver's lock, at the place that the driver chose.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from xpucached.binaries import zebin
from xpucached.domain.host import Host, OtherDriver
from xpucached.domain.models import Workload
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import CompilerSpec, NoRecipe, Recipe
from xpucached.domain.recipes import RecordedRecipe
from xpucached.domain.stores import Entry, EntryId, Store
from xpucached.domain.targets import Target
from xpucached.kinds import folders, fs, listing, removal
from xpucached.kinds.neo import counting, discovery, layout, level_zero, recorder, soundness, trace
from xpucached.kinds.neo.targets import NAME, is_opencl

_LARGEST: Final = 64 << 20
"""Bytes of one entry."""

_ROOM: Final = trace.LONGEST
"""Bytes that there must be room for where a driver leaves its trace: where it has none, it cuts its words short."""

_TRIES: Final = 50
_PAUSE: Final = 0.1
"""Seconds, and how often: others hold the lock for milliseconds."""

_FORM, _LINEAGE = "form", "lineage"
_FILE_MODE, _DIRECTORY_MODE = "file-mode", "directory-mode"


def compiler(target: Target, place: Path) -> CompilerSpec:
    """Return what compiles for a target, and keeps and tells it in a place; see `Rebuilder.compiler`."""
    backend = "opencl" if is_opencl(target) else "level-zero"
    wanted = json.dumps([None, target.device, None, target.toolchain])
    variables = {
        **discovery.EVERYWHERE,
        **discovery.enable(place),
        **recorder.variables(Store(NAME, place)),
    }
    return CompilerSpec(("--backend", backend, "--environment", wanted), variables=tuple(variables.items()))


def lineage_key(key: EntryKey) -> str | None:  # noqa: ARG001
    """Return nothing: a key is a hash of all at once, so a recipe says it."""
    return None


def recipe(entry: Entry, recorded: RecordedRecipe | None = None) -> Recipe | NoRecipe:
    """Return what a run told of an entry, with what the entry itself holds of it; see `Rebuilder.recipe`."""
    if recorded is None:
        return NoRecipe.UNRECORDED
    content = recorded.parts.get("input")
    if content is None:
        found = _image(entry.id)
        if isinstance(found, NoRecipe):
            return found
        content = found
    try:
        options = recorded.facts["options"]
        told = json.loads(recorded.parts["driver"])
        constants = {name: bytes.fromhex(recorded.facts[name]).hex() for name in ("constants", "values")}
        if not is_opencl(recorded.target):
            options = level_zero.given(options, told["internal"]) or options
        text = {} if trace.is_spirv(content) else {_FORM: "text"}
        facts = {**constants, **text, _LINEAGE: recorded.lineage}
        return Recipe(entry.id, trace.source(content), options.encode("latin-1"), facts)
    except (ValueError, KeyError, TypeError, AttributeError):
        return NoRecipe.DAMAGED


def _image(entry: EntryId) -> bytes | NoRecipe:
    """Return the SPIR-V in an entry."""
    try:
        with _opened(entry) as (_, descriptor, status):
            if status.st_uid != os.geteuid():
                return NoRecipe.FOREIGN
            if status.st_size > _LARGEST:
                return NoRecipe.UNREADABLE
            image = zebin.image(fs.read(descriptor, status.st_size))
    except OSError:
        return NoRecipe.UNREADABLE
    except ValueError:
        return NoRecipe.DAMAGED
    return image if trace.is_spirv(image) else NoRecipe.NATIVE


@contextlib.contextmanager
def _opened(entry: EntryId) -> Iterator[tuple[int, int, os.stat_result]]:
    """Open an entry to read it; give its directory, its file and what that is.  Raises OSError."""
    with (
        removal.opened(entry) as (descriptors, name, _),
        fs.regular_file(descriptors[-1], name) as (descriptor, status),
    ):
        yield descriptors[-1], descriptor, status


def made(
    recipe: Recipe,
    environment: Target,
    host: Host,
    binary: bytes,  # noqa: ARG001 - programs load what the driver keeps
    place: Path,
) -> tuple[Recipe, bytes] | str:
    """Return what the driver kept of a program, and under which name; see `Rebuilder.made`."""
    store = Store(NAME, place)
    replaced = recorder.is_of_other_compiler(store, host)
    told = recorder.collect(store, frozenset(), host).recipes
    if replaced:
        raise OSError(errno.ESTALE, "the GPU driver's compiler has been replaced just now")
    if not told and _keeps_any(place):
        return _blamed(place, "the GPU driver's trace does not explain under which name programs look for it")
    if not told:
        raise OSError(errno.ENODATA, "the GPU driver kept nothing of what it compiled")
    mine = [one for one in told if (one.lineage, one.target) == (recipe.facts[_LINEAGE], environment)]
    if not mine:
        return _blamed(
            place, "the GPU driver was asked for something else than by its program, which would not find it"
        )
    with _opened(EntryId(store, mine[0].key)) as (directory, descriptor, status):
        if status.st_size > _LARGEST:
            return "the GPU driver kept more than an entry holds"
        content = fs.read(descriptor, status.st_size)
        modes = {
            _FILE_MODE: f"{stat.S_IMODE(status.st_mode) & 0o666:o}",
            _DIRECTORY_MODE: f"{stat.S_IMODE(os.fstat(directory).st_mode) & 0o777:o}",
        }
    return replace(recipe, facts={**recipe.facts, **modes}, made=mine[0]), content


def _keeps_any(place: Path) -> bool:
    """Return whether an entry lies where a driver puts one: what else it makes may be deeper than we can go."""
    ahead = [(os.fspath(place), 0)]
    for folder, depth in ahead:
        with os.scandir(folder) as listed:
            for one in listed:
                if one.name.endswith(layout.SUFFIXES):
                    return True
                if depth < layout.DEPTH and layout.LEVEL.match(one.name) and one.is_dir(follow_symlinks=False):
                    ahead.append((one.path, depth + 1))
    return False


def _blamed(place: Path, words: str) -> str:
    """Return what speaks against a recipe.  Raises OSError where the driver may have had no room to say all."""
    with tempfile.TemporaryFile(dir=place) as file:
        file.write(bytes(_ROOM))
    return words


def unusable(environment: Target, binary: bytes) -> str | None:  # noqa: ARG001 - the same for all
    """Return what is wrong with a compiled program; see `Rebuilder.unusable`."""
    return soundness.damage(binary) if binary else "it is empty"


def expected_key(recipe: Recipe, target: Target) -> EntryKey | None:
    """Return the key once the driver has told it; see `Rebuilder.expected_key`."""
    return recipe.made.key if recipe.made is not None and recipe.made.target == target else None


def confirm(
    targets: Collection[Target],  # noqa: ARG001
    driver: OtherDriver,  # noqa: ARG001
    workloads: Sequence[Workload],  # noqa: ARG001
    now: datetime,  # noqa: ARG001
    timeout: float = 60.0,  # noqa: ARG001
) -> str:
    """Ask nobody: the driver that looks is the one that names each entry."""
    return ""


# -- where programs look -----------------------------------------------------------------------------------------------


def publish(recipe: Recipe, environment: Target, binary: bytes, into: Path | None = None) -> EntryKey | None:
    """Put a compiled program where the driver would have; see `Rebuilder.publish`."""
    key = expected_key(recipe, environment)
    if key is None or layout.place(key) is None:
        raise OSError(errno.EINVAL, "the GPU driver did not say under which name")
    *above, name = key.split("/")
    directory_mode, file_mode = (int(recipe.facts[one], 8) for one in (_DIRECTORY_MODE, _FILE_MODE))
    with contextlib.ExitStack() as stack:
        root, _ = stack.enter_context(fs.root_to_change(os.fspath(into or recipe.entry.store.root)))
        here = folders.below(stack, root, above, directory_mode)
        if listing.exists(here, name):
            return None
        # Called as the driver calls what it writes, so that what a death leaves is known, and goes.
        temporary = f"cl_cache.{secrets.token_hex(3)}"
        # After a power cut the driver would not write over half an entry, and its program fail at every start.
        fs.make(root, temporary, binary, mode=file_mode, sync=True)
        try:
            for number in range(_TRIES):
                if number:
                    time.sleep(_PAUSE)
                with _exclusive(root) as total:
                    if total is None:
                        continue
                    if listing.exists(here, name):
                        return None
                    os.rename(temporary, name, src_dir_fd=root, dst_dir_fd=here)
                    if total >= 0:
                        counting.add(total, len(binary))
                    return key
            raise removal.StoreClosed(errno.EBUSY, "a program holds the lock of the cache")
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=root)


@contextlib.contextmanager
def _exclusive(root: int) -> Iterator[int | None]:
    """Keep drivers from writing; give the file of their number, or -1 where there is none yet; None: one writes now."""
    if counting.lockable(root) is False:
        # Whoever writes first counts what is there.
        yield -1
        return
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(counting.locked(root))
        except OSError as error:
            raise removal.StoreClosed(error.errno, error.strerror, error.filename) from error
        yield descriptor
