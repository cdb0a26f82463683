"""Act: take entries out of the stores of kinds whose entries are one file or one directory each.

Under what keeps programs away, if the kind has that, an entry goes in one step: into the trash, or aside and away.  So
a death in between leaves it whole in one place; of one that went for good a rest may stay aside, which `sweep` removes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xpucached.domain.names import EntryKey
from xpucached.domain.stores import UNSETTLED, Entry, EntryId, Store
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import folders, fs
from xpucached.kinds.trash import FOLDER, TrashFolder
from xpucached.processes.cancellation import until_cancelled

log = logging.getLogger(__name__)

GONE: Final = ".xpucached.gone"
"""How the name of a directory ends that is on its way out."""


class StoreClosed(OSError):
    """Nothing can be put into a store now, whatever it is."""


@contextlib.contextmanager
def always(_root: int, _key: EntryKey) -> Iterator[bool]:
    """Keep nobody away: programs of this kind mind nothing that goes in one step."""
    yield True


def unsettled(_root: int, _key: EntryKey, _freed: int) -> None:
    """Put nothing right: programs of this kind count nothing."""


def report_error(
    entry: EntryId, error: OSError, failed: Callable[[Path, OSError], None] | None, what: str = "removed"
) -> None:
    """Tell what a disk refused; what somebody forged there is no trouble of the disk."""
    log.warning("an entry could not be %s: %s: %s", what, entry.key, error)
    if failed is not None and fs.refused(error):
        failed(entry.store.root, error)


@contextlib.contextmanager
def opened(entry: EntryId) -> Iterator[tuple[list[int], str, tuple[str, ...]]]:
    """Open every directory from the root to the one that holds an entry; give them, its name there, and their names."""
    *path, name = entry.key.split("/")
    with contextlib.ExitStack() as stack:
        root, status = stack.enter_context(fs.root_to_change(os.fspath(entry.store.root)))
        descriptors = [root]
        for part in path:
            descriptors.append(stack.enter_context(fs.directory_in(descriptors[-1], part, status.st_dev)))
        yield descriptors, name, tuple(path)


@dataclass(frozen=True, slots=True, eq=False)
class PathRemover:
    """Removes entries that lie at the path that is their key; see `Remover`."""

    stamp: Callable[[int, str], str]
    """What `Entry.stamp` of what has a name in a directory would be now.  Raises OSError."""
    trash: TrashFolder | None = None
    exclusive: Callable[[int, EntryKey], AbstractContextManager[bool]] = always
    """Holds, in a root, what keeps programs from making or reading this entry; False: busy."""
    settle: Callable[[int, EntryKey, int], None] = unsettled
    """Puts right in a root what programs count, while that is held: so many bytes are gone."""
    of_all: bool = False  #: whether what keeps them away is one thing for all entries of a store

    def remove(
        self,
        entries: Sequence[Entry],
        notes: Mapping[EntryId, TrashLabel] | None = None,
        failed: Callable[[Path, OSError], None] | None = None,
    ) -> Mapping[EntryId, bool]:
        """Take entries out; see `Remover.remove`."""
        results = {entry.id: False for entry in entries}
        busy: set[Store] = set()
        for entry in until_cancelled(entries):
            try:
                # Somebody may hold it for ever: it is waited for once.
                results[entry.id] = entry.id.store not in busy and self._remove(
                    entry, (notes or {}).get(entry.id), busy
                )
            except FileNotFoundError:
                # Somebody else removed it, which is what was wanted.
                results[entry.id] = True
            except OSError as error:
                report_error(entry.id, error, failed)
        return results

    def _remove(self, entry: Entry, note: TrashLabel | None, busy: set[Store]) -> bool:
        with opened(entry.id) as (descriptors, name, _), self.exclusive(descriptors[0], entry.id.key) as held:
            here, device = descriptors[-1], os.fstat(descriptors[0]).st_dev
            if not held and self.of_all:
                busy.add(entry.id.store)
            if not held or entry.state in UNSETTLED or self.stamp(here, name) != entry.stamp:
                return False
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            if note is None or not self._take(entry, here, note, status):
                # Without room for a label it goes for good: a full disk is why it has to go at all.
                if stat.S_ISDIR(status.st_mode):
                    with fs.directory_in(here, name, device) as directory:
                        # What cannot be taken apart as a whole stays where it is.
                        folders.allocated(directory, device)
                    os.rename(name, name + GONE, src_dir_fd=here, dst_dir_fd=here)
                    folders.remove(here, name + GONE, device)
                else:
                    os.unlink(name, dir_fd=here)
            try:
                self.settle(descriptors[0], entry.id.key, entry.size)
            except OSError as error:
                log.warning("what programs count could not be put right: %s: %s", entry.id.store.root, error)
        return True

    def _take(self, entry: Entry, here: int, note: TrashLabel, status: os.stat_result) -> bool:
        if self.trash is None:
            return False
        suffix = FOLDER if stat.S_ISDIR(status.st_mode) else ""
        try:
            with self.trash.home(entry.id.store.root) as (home, name, device):
                return self.trash.take(home, name, device, here, entry, note, {suffix: status})
        except OSError as error:
            # It lies beside the root, where we may not write, or nothing can be moved to: directories may have quotas.
            # What is somebody else's there has the same number, but no second name.
            if not isinstance(error, PermissionError) and not (error.errno == errno.EXDEV and error.filename2):
                raise
            return False

    def sweep(self, entry: EntryId) -> bool:
        """Finish what a dead daemon of ours began with an entry; see `Remover.sweep`."""
        try:
            with opened(entry) as (descriptors, name, _):
                there = os.stat(name + GONE, dir_fd=descriptors[-1], follow_symlinks=False)
                folders.remove(descriptors[-1], name + GONE, there.st_dev)
        except FileNotFoundError:
            return False
        except OSError as error:
            report_error(entry, error, None, "swept")
            return False
        return True


def by_directory(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Divide entries by the directories that they lie in."""
    found: dict[tuple[Store, str], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.id.store, entry.id.key.rpartition("/")[0]), []).append(entry)
    return list(found.values())
