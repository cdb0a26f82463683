"""Replay: what an entry was compiled from, and putting a compiled program where the runtime looks for it.

Only the first level of a path depends on the driver, so the place of a rebuilt entry is known in advance.  A leaf is
made beside and renamed into place as a whole: a program sees all of it or nothing.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import struct
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

from xpucached.binaries import formats
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import NoRecipe, Recipe
from xpucached.kinds import folders, fs, images, listing
from xpucached.kinds.sycl import entry_format, locks, makers, targets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.domain.recipes import RecordedRecipe
    from xpucached.domain.stores import Entry
    from xpucached.domain.targets import Target

STAGING: Final = entry_format.OURS
"""The directory in a store's root where leaves are made.  No runtime looks at names that are not numbers."""

_FILE_MODE: Final = "file-mode"
_DIRECTORY_MODE: Final = "directory-mode"
_ACCESS_TIME: Final = "access-time"
"""Its runtime keeps a birth time beside each entry."""

_RETRIES: Final = 3
_TOGETHER: Final = 32
"""Programs for which the disk is waited together; their files are open meanwhile."""
_WAITING: Final = 2
"""So many times that many wait at a time."""

_numbers = itertools.count()
_ours: set[str] = set()
"""The names of leaves that we are making just now."""

_staging = threading.Lock()
"""Held while the staging directory is made or removed."""


def recipe(entry: Entry, recorded: RecordedRecipe | None = None) -> Recipe | NoRecipe:  # noqa: ARG001 - it says all itself
    """Read again what an entry was compiled from; see `Rebuilder.recipe`."""
    *path, slot = entry.id.key.split("/")
    try:
        with contextlib.ExitStack() as stack:
            here, status = stack.enter_context(fs.root_directory(os.fspath(entry.id.store.root)))
            for name in path:
                here = stack.enter_context(fs.directory_in(here, name, status.st_dev))
            # Without the bits above those of rights: the group's comes with the directory above, wherever it has it.
            directory_mode = stat.S_IMODE(os.fstat(here).st_mode) & 0o777
            access_time = listing.exists(here, f"{slot}_access_time.txt")
            with fs.regular_file(here, f"{slot}.src") as (descriptor, found):
                if found.st_uid != os.geteuid():
                    return NoRecipe.FOREIGN
                data = fs.read(descriptor, min(entry_format.READ_LIMIT, found.st_size + 1))
                source = entry_format.source(data, max(found.st_size, len(data)))
    except OSError:
        return NoRecipe.UNREADABLE
    if not source.complete:
        return NoRecipe.DAMAGED
    if not source.whole:
        return NoRecipe.UNREADABLE
    # The path is the checksum: what does not hash to its own place is not what the runtime compiled.
    if list(source.directories) != path:
        return NoRecipe.DAMAGED
    if source.constants:
        return NoRecipe.CONSTANTS
    modules = formats.modules(source.image)
    if modules != 1:
        return NoRecipe.SEVERAL if modules else NoRecipe.NATIVE
    return Recipe(
        entry.id,
        source.image,
        source.options,
        {
            _FILE_MODE: f"{stat.S_IMODE(found.st_mode):o}",
            _DIRECTORY_MODE: f"{directory_mode:o}",
            **({_ACCESS_TIME: "kept"} if access_time else {}),
        },
    )


def unusable(environment: Target, binary: bytes) -> str | None:
    """Return what is wrong with a compiled program; see `Rebuilder.unusable`."""
    return images.damage(binary, intel=images.is_intel(environment.family))


def _path(recipe: Recipe, target: Target) -> list[str]:
    hashed = (targets.device_field(target), recipe.input, b"", recipe.options)
    return list(map(entry_format.directory_name, hashed))


def expected_key(recipe: Recipe, target: Target) -> EntryKey:
    """Return where the runtime will look first; see `Rebuilder.expected_key`."""
    return EntryKey("/".join((*_path(recipe, target), "0")))


def publish(recipe: Recipe, environment: Target, binary: bytes, into: Path | None = None) -> EntryKey | None:
    """Put a compiled program in its place; see `Rebuilder.publish`."""
    with LeafBatch(into or recipe.entry.store.root, together=False) as batch:
        batch.add(recipe, environment, binary)
        (key,) = batch.publish()
    return key


class LeafBatch:
    """Programs that are written beside, and put in their places when the disk has them; see `Portable.batch`."""

    def __init__(self, root: Path, *, together: bool = True) -> None:
        """``together``: the disk is waited for beside, for many programs at once, and not before `add` returns."""
        self._path = os.fspath(root)
        self._together = together
        self._stack = contextlib.ExitStack()
        self._pool = ThreadPoolExecutor(_WAITING)
        self._syncing: deque[Future[None]] = deque()
        self._descriptors: list[int] = []  #: what was written and the disk may not have yet
        self._root = self._device = self._staging = -1
        self._beside: dict[str, tuple[list[str], int]] = {}
        """What is beside: by its name there, where it goes and the mode of its directories."""
        self._entered: tuple[str, int, os.stat_result] | None = None
        """The device's directory into which the one before went: its name, its descriptor, and what it is."""

    def __enter__(self) -> Self:
        self._root, status = self._stack.enter_context(fs.root_to_change(self._path))
        self._device = status.st_dev
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self._pool.shutdown()
            _close(self._descriptors)
            self._leave()
            _ours.difference_update(self._beside)
            for name in self._beside:
                _discard(self._staging, name)
            with _staging, contextlib.suppress(OSError):
                os.rmdir(folders.own(self._root, STAGING), dir_fd=self._root)

    def add(self, recipe: Recipe, environment: Target, binary: bytes) -> None:
        """Write a program beside.  Raises OSError."""
        fields = (targets.device_field(environment), recipe.options, b"", recipe.input)
        source = b"".join(struct.pack("<Q", len(one)) + one for one in fields)
        file_mode, directory_mode = (int(recipe.facts[name], 8) for name in (_FILE_MODE, _DIRECTORY_MODE))
        contents = {"0.bin": struct.pack("<QQ", 1, len(binary)) + binary, "0.src": source}
        if _ACCESS_TIME in recipe.facts:
            contents["0_access_time.txt"] = b"%d" % time.time_ns()
        name = self._made(directory_mode, _path(recipe, environment))
        leaf, _ = fs.enter(self._staging, name, self._device, os.geteuid())
        self._descriptors.append(leaf)
        folders.allow_all(leaf, directory_mode)
        for file, content in contents.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptors.append(os.open(file, flags, file_mode & 0o666, dir_fd=leaf))
            _write(self._descriptors[-1], content, file_mode & 0o666)
        if not self._together or len(self._descriptors) >= _TOGETHER * (len(contents) + 1):
            self._sync()

    def _sync(self) -> None:
        """Have the disk waited for.  Raises OSError of those before."""
        while len(self._syncing) >= _WAITING:
            self._syncing.popleft().result()
        # Who waits for them closes them.
        descriptors, self._descriptors = self._descriptors, []
        self._syncing.append(self._pool.submit(_wait, descriptors))

    def publish(self) -> Iterator[EntryKey | None]:
        """Wait until the disk has them all, and put one after the other in its place; see `Portable.batch`."""
        self._sync()
        while self._syncing:
            self._syncing.popleft().result()
        for name, (path, mode) in list(self._beside.items()):
            placed = any(self._place(name, path, mode) for _ in range(_RETRIES))
            if not placed:
                # Nothing is said to be there that is not: who removed what was beside must be told of.
                os.stat(name, dir_fd=self._staging, follow_symlinks=False)
                _discard(self._staging, name)
            del self._beside[name]
            _ours.discard(name)
            yield EntryKey("/".join((*path, "0"))) if placed else None

    def _place(self, name: str, path: list[str], mode: int) -> bool:
        """Rename a leaf into place: False if there is one already, or if its parents went away just now."""
        try:
            with contextlib.ExitStack() as stack:
                here = folders.below(stack, self._enter(path[0], mode), path[1:-1], mode)
                os.rename(name, path[-1], src_dir_fd=self._staging, dst_dir_fd=here)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                return False
            raise
        return True

    def _enter(self, name: str, mode: int) -> int:
        """Open the directory of a device, or the same again if that is still what has this name."""
        if self._entered is not None and self._entered[0] == name:
            _, here, status = self._entered
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=self._root, follow_symlinks=False)
                if (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino):
                    return here
        self._leave()
        new = folders.make(self._root, name, mode)
        here, status = fs.enter(self._root, name, self._device, os.fstat(self._root).st_uid)
        self._entered = (name, here, status)
        if new:
            folders.allow_all(here, mode)
        return here

    def _leave(self) -> None:
        if self._entered is not None:
            os.close(self._entered[1])
            self._entered = None

    def _made(self, mode: int, path: list[str]) -> str:
        """Make a directory beside; give its name there."""
        with _staging:
            name = f"{makers.ourselves()}-{next(_numbers)}"
            # Before it is there: a look that comes meanwhile would take it for a dead daemon's.
            _ours.add(name)
            try:
                if self._beside:
                    os.mkdir(name, mode, dir_fd=self._staging)
                else:
                    self._staging = self._stack.enter_context(_staged(self._root, self._device, name, mode))
            except BaseException:
                _ours.discard(name)
                raise
            self._beside[name] = (path, mode)
        return name


@contextlib.contextmanager
def _staged(root: int, device: int, name: str, mode: int) -> Iterator[int]:
    """Return the staging directory, with a new leaf in it; another daemon removes it whenever it finds it empty."""
    ours = folders.own(root, STAGING)
    for attempt in range(_RETRIES):
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(FileExistsError):
                os.mkdir(ours, 0o700, dir_fd=root)
            try:
                staging = stack.enter_context(fs.directory_in(root, ours, device))
                os.mkdir(name, mode, dir_fd=staging)
            except FileNotFoundError:
                if attempt + 1 == _RETRIES:
                    raise
                continue
            yield staging
            return


def _wait(descriptors: list[int]) -> None:
    """Wait until the disk has what was written, and close it."""
    try:
        # All of it is on its way before the first is waited for: then the file system's journal is written once for
        # many, and not for each.
        for one in descriptors:
            os.posix_fadvise(one, 0, 0, os.POSIX_FADV_DONTNEED)
        for one in descriptors:
            os.fsync(one)
    finally:
        _close(descriptors)


def _close(descriptors: list[int]) -> None:
    while descriptors:
        # Where a file system refuses to the end what was written, `fsync` has told.
        with contextlib.suppress(OSError):
            os.close(descriptors.pop())


def _write(descriptor: int, content: bytes, mode: int) -> None:
    """Write a new file, and give it the mode that it shall have whatever the mask of this process is."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        os.fchmod(descriptor, mode)


def _discard(staging: int, name: str) -> None:
    """Remove what was not renamed.  All of it is ours."""
    try:
        with fs.directory_in(staging, name, os.fstat(staging).st_dev) as leaf:
            for file in listing.names(leaf):
                os.unlink(file, dir_fd=leaf)
        os.rmdir(name, dir_fd=staging)
    except FileNotFoundError:
        return


def abandoned(root: int, device: int) -> bool:
    """Return whether a dead daemon left its staging directory."""
    try:
        with fs.directory_in(root, folders.own(root, STAGING), device) as staging:
            names = listing.names(staging)
            return not names or any(_is_left(staging, name) for name in names)
    except OSError:
        return False


def _is_left(staging: int, name: str) -> bool:
    """Return whether nobody makes this leaf any more."""
    if name in _ours:
        return False
    maker = makers.parse(name)
    if maker is not None and maker.gone is not None:
        return maker.gone
    modified = os.stat(name, dir_fd=staging, follow_symlinks=False).st_mtime_ns
    return locks.passed_since(modified, datetime.now(UTC)) >= locks.AGE


def clear_staging(root_path: str) -> bool:
    """Remove what a dead daemon was making; tell whether there was something."""
    try:
        with fs.root_to_change(root_path) as (root, status):
            ours = folders.own(root, STAGING)
            with fs.directory_in(root, ours, status.st_dev) as staging:
                for name in listing.names(staging):
                    with contextlib.suppress(OSError):
                        if _is_left(staging, name):
                            _discard(staging, name)
            with _staging, contextlib.suppress(OSError):
                os.rmdir(ours, dir_fd=root)
    except OSError:
        return False
    return True
