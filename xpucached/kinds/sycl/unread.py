"""Observe: what is wrong with a file of a slot that is no file, or that cannot be read."""

from __future__ import annotations

import errno
import os
import stat

from xpucached import shortage
from xpucached.domain.defects import Defect, Effect
from xpucached.kinds import fs
from xpucached.kinds.sycl import defects
from xpucached.kinds.sycl.scan_state import ScanState
from xpucached.kinds.sycl.slots import Slot


class Changed(Exception):
    """A program wrote here meanwhile; look again."""


class UnreadFile(Exception):
    """A file cannot be read just now, which says nothing about what is in it."""


def links(look: ScanState, leaf: int, slot: Slot, suffixes: tuple[str, ...]) -> Defect | None:
    """Judge a slot of which a file is a link, by what programs find in the place of each; None if none is one."""
    there = {suffix: slot.files[suffix] for suffix in suffixes if suffix in slot.files}
    if not any(stat.S_ISLNK(status.st_mode) for status in there.values()):
        return None
    root = os.fspath(look.store.root)
    found = [_behind(leaf, slot.name, suffix, there.get(suffix), root) for suffix in suffixes]
    return max(found, key=lambda defect: tuple(Effect).index(defect.effect))


def _behind(leaf: int, name: str, suffix: str, status: os.stat_result | None, root: str) -> Defect:
    source = suffix == ".src"
    if status is None:
        return defects.SRC_MISSING if source else defects.BIN_MISSING
    if stat.S_ISLNK(status.st_mode):
        try:
            status = fs.leads_to(leaf, name + suffix, root)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return defects.DANGLING_LINK
            return defects.LINK_AWAY if error.errno == errno.EXDEV else refused(error, suffix[1:])
    if stat.S_ISREG(status.st_mode):
        return defects.LINK
    if stat.S_ISFIFO(status.st_mode):
        return defects.SRC_FIFO if source else defects.BIN_FIFO
    return defects.SRC_NOT_A_FILE if source else defects.BIN_NOT_A_FILE


def refused(error: OSError, what: str) -> Defect:
    """Name why a file could not be read.  One that has vanished means that the leaf changed."""
    if isinstance(error, FileNotFoundError):
        raise Changed from error
    if shortage.is_ours(error):
        # Else a busy daemon would find good entries unreadable, and evict them.
        raise error
    if fs.passing(error) or error.errno == errno.EXDEV:
        # Also what is mounted on a file: the runtime reads that.
        raise UnreadFile(f"it cannot be read just now: {error.strerror}") from error
    if isinstance(error, IsADirectoryError):
        return defects.SRC_NOT_A_FILE if what == "src" else defects.BIN_NOT_A_FILE
    return defects.SRC_UNREADABLE if what == "src" else defects.BIN_UNREADABLE


def forbidden(status: os.stat_result) -> bool:
    """Return whether the owner's programs may not read a file that we, as root, may."""
    return os.geteuid() == 0 and status.st_uid != 0 and not status.st_mode & stat.S_IRUSR
