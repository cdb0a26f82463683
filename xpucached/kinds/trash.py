"""Act: a trash, where entries wait that were taken out of a store: they can come back, or go for good.

Every kind keeps it alike, under a name at which none of its programs looks: in the store's root, so that what moves
there never leaves its file system and its owner's rights, or beside the root where programs count what is in it.  Each
entry has a directory: a label (``about.json``, written before the first file moves) and ``leaf``, with its files under
the names that they had.  What else is a kind's own stands in `TrashFolder`.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xpucached.domain.names import EntryKey, TrashRef
from xpucached.domain.stores import Entry, Store
from xpucached.domain.trash import Restored, Trashed, TrashLabel
from xpucached.kinds import folders, fs, listing, statx
from xpucached.kinds.trash_labels import BLANK, Label, label_of, loads
from xpucached.processes.cancellation import until_cancelled

log = logging.getLogger(__name__)

ABOUT: Final = "about.json"
LEAF: Final = "leaf"
REF: Final = re.compile(r"[0-9a-f]{12}\Z")
_LIMIT: Final = 64 << 10
"""Bytes of a label; ours have some hundred."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMLINK})
MOST: Final = 50_000
"""Items of one trash that are looked at at a time.  Who may write there may put millions of them."""

_PAGES: Final = 100
"""So often so many more are looked at, to tell what all of them take."""

_TEXT: Final = 64 << 20
"""So many characters of labels are kept at a time."""

_FILES: Final = 1000
"""So many names in an item's leaf are looked at; of ours it has five."""

FOLDER: Final = "/"
"""The suffix of an entry that is a directory, and moves as a whole."""


@contextlib.contextmanager
def same_place(_root: int, here: int, _leaf: int, label: Label) -> Iterator[str | None]:
    """Return an entry the name that it had; none if something is there."""
    yield None if listing.exists(here, label.slot) else label.slot


@dataclass(frozen=True, slots=True, eq=False)
class TrashFolder:
    """The trash of the stores of one kind."""

    name: str  #: of the directory; see `folders.own`
    suffixes: tuple[str, ...]  #: of an entry's files, in the order in which they go; `FOLDER`: it is a directory
    is_place: Callable[[list[str]], bool]  #: of a key's names: whether a program keeps an entry there
    is_file: Callable[[str], bool]  #: whether a name in an item's leaf can be an entry's
    place: Callable[[int, int, int, Label], AbstractContextManager[str | None]] = same_place
    """Holds the place to which an item's entry may return, and gives its name; None: it was made again.

    It is given the root, the place's directory, and where the item's files lie.  Raises OSError where that cannot be
    told, or a program is at work there.
    """
    beside: bool = False  #: it lies beside the root, under its name, a dot and the root's own

    @contextlib.contextmanager
    def home(self, root: Path) -> Iterator[tuple[int, str, int]]:
        """Open the directory in which the trash of a store lies, to change it; give also its name, and their device.

        Raises OSError; `PermissionError` where there cannot be one, because the store is a file system of its own.
        """
        with fs.root_to_change(os.fspath(root)) as (descriptor, status), ExitStack() as stack:
            if not self.beside:
                yield descriptor, folders.own(descriptor, self.name), status.st_dev
                return
            above, its = stack.enter_context(fs.root_to_change(os.fspath(root.parent)))
            if its.st_dev != status.st_dev or statx.mounted(descriptor):
                raise PermissionError(errno.EXDEV, "the store is a file system of its own: it has no trash")
            yield above, f"{folders.own(above, self.name)}.{root.name}", status.st_dev

    # -- into the trash -----------------------------------------------------------------------------------------------

    def take(
        self, home: int, name: str, device: int, leaf: int, entry: Entry, note: TrashLabel, present: Present
    ) -> bool:
        """Move an entry's files into the trash: True if they are there, False if there is no room for a label.

        What keeps programs away from them must be ours.  Raises OSError.
        """
        slot = entry.id.key.rpartition("/")[2]
        moving = [suffix for suffix in self.suffixes if suffix in present]
        if not moving:
            return False
        with ExitStack() as stack:
            made = self.labelled(stack, home, name, device, leaf, entry, note, present)
            if made is None:
                return False
            for suffix in moving:
                with contextlib.suppress(FileNotFoundError):
                    _move(leaf, slot, made[1], slot, suffix)
        return True

    def labelled(
        self,
        stack: ExitStack,
        home: int,
        name: str,
        device: int,
        leaf: int,
        entry: Entry,
        note: TrashLabel,
        present: Present,
    ) -> tuple[int, int] | None:
        """Make an entry's directory in the trash, with its label; give it and where the files go."""
        facts = {one: (present[one].st_size, present[one].st_mtime_ns) for one in self.suffixes if one in present}
        label = label_of(entry, note, stat.S_IMODE(os.fstat(leaf).st_mode) & 0o777, facts)
        ref = secrets.token_hex(6)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=home)
            trash = stack.enter_context(fs.directory_in(home, name, device))
            os.mkdir(ref, 0o700, dir_fd=trash)
            stack.push(
                lambda kind, *_: self._give_up(trash, ref, device) if kind and issubclass(kind, OSError) else None
            )
            try:
                item = stack.enter_context(fs.directory_in(trash, ref, device))
                # On its way to the disk before the first file moves, so that a power failure takes no more than a
                # moment's labels; to wait for the disk would take thirty times as long as all else.
                fs.make(item, ABOUT, label.dumps())
                os.mkdir(LEAF, 0o700, dir_fd=item)
                return item, stack.enter_context(fs.directory_in(item, LEAF, device))
            except OSError:
                self.drop(trash, ref, device)
                raise
        except OSError as error:
            if error.errno in _NO_ROOM:
                return None
            raise

    def _give_up(self, trash: int, ref: str, device: int) -> None:
        """Remove an item into which nothing could be moved."""
        with contextlib.suppress(OSError), fs.directory_in(trash, ref, device) as item:
            os.rmdir(LEAF, dir_fd=item)
            self.drop(trash, ref, device)

    # -- what is in it ------------------------------------------------------------------------------------------------

    def names(self, home: int, name: str, device: int, most: int, after: str = "") -> list[str]:
        """List the items after one, in the order of their names, up to a number."""
        try:
            with fs.directory_in(home, name, device) as trash, os.scandir(trash) as listed:
                return heapq.nsmallest(most, (one.name for one in listed if one.name > after and REF.match(one.name)))
        except FileNotFoundError:
            return []

    def items(
        self, home: int, name: str, device: int, names: Iterable[str], *, each: bool = False
    ) -> Iterator[tuple[str, Label | None, int | None]]:
        """Open one of these items after the other: its name, its label if it has one, its leaf if it has one.

        What cannot be had just now is passed over: it is no debris.  Raises OSError instead where ``each`` counts.
        """
        try:
            with fs.directory_in(home, name, device) as trash:
                for ref in names:
                    with ExitStack() as stack:
                        try:
                            item = stack.enter_context(fs.directory_in(trash, ref, device))
                        except OSError as error:
                            _unknown(error, each=each)
                            continue
                        label = place = None
                        try:
                            with contextlib.suppress(ValueError):
                                label = self._label(item)
                        except OSError as error:
                            if _unknown(error, each=each):
                                continue
                        try:
                            place = stack.enter_context(fs.directory_in(item, LEAF, device))
                        except OSError as error:
                            if _unknown(error, each=each):
                                continue
                        yield ref, label, place
        except FileNotFoundError:
            return

    def _label(self, item: int) -> Label:
        """Read what an item's label says.  Raises OSError; ValueError for what is not ours."""
        with fs.regular_file(item, ABOUT) as (descriptor, _):
            return loads(fs.read(descriptor, _LIMIT), self.is_place, self.suffixes)

    def trash(self, of: Store, after: str = "") -> tuple[Trashed, ...]:
        """Return what is in a store's trash; see `Trash.trash`."""
        text = 0
        found: list[Trashed] = []
        for one in itertools.islice(self._there(of, after), MOST):
            text += len(one.detail) + len(one.device) + len(one.driver)
            if text > _TEXT and found:
                break
            found.append(one)
        return tuple(found)

    def trash_size(self, of: Store) -> int:
        """Return how much room a store's trash takes; see `Trash.trash_size`."""
        return sum(one.allocated for one in self._there(of))

    def _there(self, of: Store, after: str = "") -> Iterator[Trashed]:
        with contextlib.suppress(OSError), self._seen(of.root) as (home, name, device):
            for _ in range(_PAGES):
                names = self.names(home, name, device, MOST, after)
                yield from self._described(of, device, self.items(home, name, device, names))
                if len(names) < MOST:
                    return
                after = names[-1]
            log.warning(
                "the trash of %s holds more than %d entries: the others are not counted", of.root, _PAGES * MOST
            )

    def _described(
        self, of: Store, device: int, items: Iterable[tuple[str, Label | None, int | None]]
    ) -> Iterator[Trashed]:
        for name, written, place in items:
            label = written or BLANK
            try:
                there = self.statuses(place, label)
                size = sum(_allocated(place, file, status, device) for file, status in there.items())
            except OSError:
                # Judged by what could be seen of it, it would go for good.
                continue
            said = (label.key, label.at, label.reason, label.detail, label.quarantined, label.device, label.driver)
            yield Trashed(TrashRef(name), of, *said, size, whole=not _torn(label, there))

    @contextlib.contextmanager
    def _seen(self, root: Path) -> Iterator[tuple[int, str, int]]:
        """Open the directory in which the trash of a store lies, to look at it."""
        with fs.root_directory(os.fspath(root.parent if self.beside else root)) as (home, status):
            name = folders.own(home, self.name)
            yield home, f"{name}.{root.name}" if self.beside else name, status.st_dev

    def statuses(self, place: int | None, label: Label) -> dict[str, os.stat_result]:
        """Look at the files that a label names, and at what else there can be ours; whatever lies beside it is not."""
        statuses: dict[str, os.stat_result] = {}
        if place is None:
            return statuses
        ours = (label.slot + suffix.rstrip("/") for suffix in label.files)
        for name in dict.fromkeys((*ours, *_files(place, self.is_file))):
            with contextlib.suppress(FileNotFoundError):
                statuses[name] = os.stat(name, dir_fd=place, follow_symlinks=False)
        return statuses

    # -- out of it ----------------------------------------------------------------------------------------------------

    def discard(
        self, of: Store, refs: tuple[TrashRef, ...], failed: Callable[[Path, OSError], None] | None = None
    ) -> frozenset[TrashRef]:
        """Remove from the trash for good; see `Trash.discard`."""
        gone: set[TrashRef] = set()
        try:
            with self.home(of.root) as (home, name, device):
                with fs.directory_in(home, name, device) as place:
                    for ref in until_cancelled(refs):
                        try:
                            if self.drop(place, ref, device):
                                gone.add(ref)
                        except OSError as error:
                            if failed is not None and fs.refused(error):
                                failed(of.root, error)
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=home)
        except FileNotFoundError:
            return frozenset(refs)
        except OSError:
            return frozenset(gone)
        return frozenset(gone)

    def drop(self, trash: int, ref: str, device: int) -> bool:
        """Remove one item; only what can be an item's is touched.  Raises OSError.

        The label goes last but one: it vouches for the rest.
        """
        if not REF.match(ref):
            return False
        with contextlib.suppress(FileNotFoundError):
            with fs.directory_in(trash, ref, device) as item:
                with contextlib.suppress(FileNotFoundError):
                    with fs.directory_in(item, LEAF, device) as leaf:
                        for file in _files(leaf, self.is_file):
                            folders.clear(leaf, file, device)
                    os.rmdir(LEAF, dir_fd=item)
                folders.unlink(item, ABOUT)
            os.rmdir(ref, dir_fd=trash)
        return True

    def restore(self, of: Store, refs: tuple[TrashRef, ...]) -> tuple[Restored, ...]:
        """Bring entries back; see `Trash.restore`."""
        results = {ref: Restored(ref, None, "it is not there any more") for ref in refs}
        try:
            with self.home(of.root) as (home, name, device), fs.root_to_change(os.fspath(of.root)) as (root, _):
                for ref in until_cancelled(filter(REF.match, refs)):
                    try:
                        results[ref] = self._restore(home, name, device, root, ref)
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        results[ref] = Restored(ref, None, error.strerror or str(error))
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=home)
        except OSError as error:
            return tuple(Restored(ref, None, error.strerror or str(error)) for ref in refs)
        return tuple(results[ref] for ref in refs)

    def _restore(self, home: int, name: str, device: int, root: int, ref: TrashRef) -> Restored:
        with ExitStack() as stack:
            trash = stack.enter_context(fs.directory_in(home, name, device))
            item = stack.enter_context(fs.directory_in(trash, ref, device))
            try:
                label = self._label(item)
                place = stack.enter_context(fs.directory_in(item, LEAF, device))
            except (FileNotFoundError, ValueError):
                return Restored(ref, None, "its label is damaged")
            key, why = self.put_back(stack, label, place, root)
            if key is not None:
                with contextlib.suppress(OSError):  # it is back, and what is left of its item goes with the debris
                    self.drop(trash, ref, device)
            return Restored(ref, key, why)

    def put_back(self, stack: ExitStack, label: Label, place: int, root: int) -> tuple[EntryKey | None, str]:
        """Move an entry's files out of a leaf of the trash; give its key, or none if they stay.  Raises OSError."""
        if (torn := _torn(label, self.statuses(place, label))) is not None:
            # Cut short, it may be worse for programs than none.
            return None, torn
        here = folders.below(stack, root, filter(None, label.leaf.split("/")), label.mode | 0o700)
        with self.place(root, here, place, label) as slot:
            if slot is None:
                return label.key, "a program has made it again meanwhile"
            # The first file to go is that with which an entry is found: it comes back last.
            for suffix in (one for one in (*self.suffixes[1:], *self.suffixes[:1]) if one in label.files):
                _move(place, label.slot, here, slot, suffix)
        return EntryKey(f"{label.leaf}/{slot}" if label.leaf else slot), ""


Present = Mapping[str, os.stat_result]
"""The files of an entry, by suffix."""


def _move(here: int, name: str, there: int, other: str, suffix: str) -> None:
    end = suffix.rstrip("/")
    os.rename(name + end, other + end, src_dir_fd=here, dst_dir_fd=there)


def _unknown(error: OSError, *, each: bool) -> bool:
    """Return whether what could not be opened may be there all the same; raise where it must be known of ``each``."""
    if each and fs.passing(error):
        raise error
    return fs.passing(error) or isinstance(error, PermissionError)


def _torn(label: Label, there: Mapping[str, os.stat_result]) -> str | None:
    """Return which file of an entry is not what was put into the trash; None if all of them are."""
    if not label.files:
        return "its label names no files"
    for suffix, (size, _) in label.files.items():
        status = there.get(label.slot + suffix.rstrip("/"))
        if status is None:
            return "not all its files are there"
        same = stat.S_ISREG(status.st_mode) and status.st_size == size
        if not (stat.S_ISDIR(status.st_mode) if suffix == FOLDER else same):
            return f"its {suffix} is not the one that was put here"
    return None


def _allocated(place: int | None, name: str, status: os.stat_result, device: int) -> int:
    size = status.st_blocks * 512 // max(1, status.st_nlink)
    if place is None or not stat.S_ISDIR(status.st_mode):
        return size
    with fs.directory_in(place, name, device) as folder:
        return folders.allocated(folder, device)


def _files(leaf: int, is_file: Callable[[str], bool]) -> list[str]:
    with os.scandir(leaf) as listed:
        return [one.name for one in itertools.islice(listed, _FILES) if is_file(one.name)]
