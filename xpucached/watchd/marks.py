"""The kernel's marks: which file systems are watched, for how many directories."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable
from typing import Final

from xpucached.watchd import kernel
from xpucached.watchd.kernel import CLOSE_NOWRITE, CLOSE_WRITE, DELETE, MOVED_FROM, MOVED_TO, ONDIR, Group
from xpucached.watchd.ownership import Root

_CHANGES: Final = CLOSE_WRITE | DELETE | MOVED_FROM | MOVED_TO | ONDIR


class Marks:
    """Marks file systems, each once for all directories that are watched there alike."""

    def __init__(self, opened: Callable[[Group], None]) -> None:
        """``opened`` is told of each queue of events that is to be read from then on."""
        self._opened = opened
        self.groups: dict[tuple[bool, bool], Group] = {}
        self._counts: Counter[tuple[bool, bool, int]] = Counter()

    def add(self, root: Root, *, loads: bool) -> str:
        """Mark the file system of a directory; say why names are not to be had there, if so."""
        reason = ""
        try:
            os.close(kernel.open_handle(root.descriptor, kernel.handle_of(root.descriptor)))
            self._mark(root, loads=False)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOSYS):
                raise
            # No handles (overlayfs), no number of its own (some subvolumes of btrfs, FUSE).
            reason = f"no names on this file system: {error.strerror}"
            root.names = False
            self._mark(root, loads=False)
        if loads:
            try:
                self._mark(root, loads=True)
                root.loads = True
            except OSError as error:
                reason = f"what is only read cannot be seen on this file system: {error.strerror}"
        return reason

    def _mark(self, root: Root, *, loads: bool) -> None:
        key = (root.names, loads)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(names=root.names)
            self._opened(group)
        group.mark(root.descriptor, _mask(names=root.names, loads=loads))
        self._counts[root.names, loads, root.device] += 1

    def remove(self, root: Root) -> None:
        """Take the marks of a directory away that no other one needs."""
        for loads in (False, True) if root.loads else (False,):
            key = (root.names, loads, root.device)
            self._counts[key] -= 1
            if self._counts[key] <= 0:
                del self._counts[key]
                with contextlib.suppress(OSError):
                    self.groups[key[:2]].unmark(root.descriptor, _mask(names=root.names, loads=loads))

    def close(self) -> None:
        """Let go of all."""
        for group in self.groups.values():
            group.close()
        self.groups.clear()


def _mask(*, names: bool, loads: bool) -> int:
    if loads:
        return CLOSE_NOWRITE
    return _CHANGES if names else CLOSE_WRITE
