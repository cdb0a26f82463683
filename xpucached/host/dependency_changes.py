"""Observe: what has changed of what a model's program needed when a run proved it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import mounts
from xpucached.domain.dependencies import MEANWHILE, Dependency, Role
from xpucached.host.digests import Enough, Reader, Unread, holds_something, names
from xpucached.host.proofs import FOLDERS, LED, alike, led_to, names_digest
from xpucached.host.python_modules import MOST
from xpucached.host.python_packages import packages, site_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TOLD: Final = 20
"""Changes that are told of one model."""

_REMEMBERED: Final = 20_000
"""Comparisons whose results are remembered."""


@dataclass(frozen=True, slots=True)
class DependencyChanges:
    """Whether what a model needs is as it was."""

    changes: tuple[str, ...]  #: a sentence each; empty: nothing changed
    needs: tuple[Dependency, ...]  #: the same, with the times that they have now where the content stayed the same


class DependencyChecker:
    """Compares what models needed with what is there now, and remembers what was read for that."""

    def __init__(self) -> None:
        self._read: dict[tuple[Dependency, Dependency], str] = {}

    def compare(self, needs: Sequence[Dependency], directory: str) -> DependencyChanges:
        """Look at each; read again only what looks changed.

        ``directory`` is the model's: what lies there is named without it.
        """
        if len(self._read) > _REMEMBERED:
            self._read.clear()
        look = _Look(self._read, directory)
        now = tuple(look.cache(one) if one.role is Role.CACHE else look.at(one) for one in needs)
        told = [*look.packages(needs), *look.said]
        if len(told) > _TOLD:
            told = [*told[: _TOLD - 1], f"and {len(told) - _TOLD + 1} more"]
        return DependencyChanges(tuple(told), now)


class _Look:
    """One comparison of one model."""

    def __init__(self, read: dict[tuple[Dependency, Dependency], str], directory: str) -> None:
        self.said: list[str] = []
        self._directory = directory.rstrip("/") + "/"
        self._known = read
        self._reader = Reader()
        self._sites: set[str] = set()

    def cache(self, old: Dependency) -> Dependency:
        """See whether a compiler's cache still holds anything; what programs add to it changes nothing."""
        name = old.path.removeprefix(self._directory)
        try:
            if not holds_something(old.path):
                self.said.append(f"{name} holds nothing any more: what was cached there is gone")
        except (FileNotFoundError, NotADirectoryError):
            self.said.append(f"{name} is gone")
        except (OSError, ValueError) as error:
            self.said.append(f"{name} cannot be looked at ({_words(error)}): whether it changed is unknown")
        return old

    def at(self, old: Dependency) -> Dependency:
        """Compare one; give it as it is to be remembered."""
        name = old.path.removeprefix(self._directory)
        if old.unsettled:
            self.said.append(f"{name} {MEANWHILE}")
            return old
        try:
            found = os.stat(old.path)
        except (FileNotFoundError, NotADirectoryError):
            if old.role is not Role.PACKAGE:
                self.said.append(f"{name} is gone")
            elif site_of(old.path) not in self._sites:
                self.said.append(f"the record of {old.version} is gone")
            return old
        except (OSError, ValueError) as error:
            self.said.append(f"{name} cannot be looked at ({_words(error)}): whether it changed is unknown")
            return old
        size = 0 if old.role in FOLDERS else found.st_size
        as_it_was = (size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino) == (
            *(old.size, old.modified),
            *(old.changed, old.inode),
        )
        if old.role in LED and (old.version or not as_it_was) and led_to(old.path) != old.version:
            # It may be the same file still, or say the same: what lies beside it is another one's.
            self.said.append(f"{name} leads to {mounts.real(old.path)} now")
            return old
        if as_it_was:
            return old
        now = replace(old, size=size, modified=found.st_mtime_ns, changed=found.st_ctime_ns, inode=found.st_ino)
        said = self._compared_once(old, now, name)
        if not said:
            return now
        if old.role is Role.PACKAGES:
            self._sites.add(old.path)
        else:
            self.said.append(said)
        return old

    def _compared_once(self, old: Dependency, now: Dependency, name: str) -> str:
        """Return the same as `_compared`; what cannot be read just now is asked for again by the next look."""
        said = self._known.get((old, now))
        if said is None:
            try:
                said = self._known[old, now] = self._compared(old, now, name)
            except Enough:
                return f"{name} was written anew, and has not been read yet: whether it changed is unknown"
            except (OSError, ValueError) as error:
                return f"{name} was written anew and cannot be read ({_words(error)}): whether it changed is unknown"
        return said

    def _compared(self, old: Dependency, now: Dependency, name: str) -> str:
        """Return how the content differs; empty if it does not.  Raises OSError, ValueError and `Enough`."""
        untouched = alike(old, now)
        try:
            if old.role in FOLDERS:
                listed = names_digest(old.path, old.role)
                if not listed:
                    return f"{name} changed, and holds more than {MOST} names: whether files were added is unknown"
                return "" if listed == old.digest else f"files were added to {name}, or taken away"
            if untouched and not old.digest:
                return ""
            if now.size == old.size and old.digest and self._reader.digest(old.path) == old.digest:
                return ""
        except Enough:
            raise
        except Unread:
            return "" if untouched else f"{name} was written anew, and is too large to be compared"
        if old.role is Role.PACKAGE:
            return f"{old.version} was installed anew, with other contents"
        return f"{name} was {'modified' if now.inode == old.inode else 'replaced'}"

    def packages(self, needs: Sequence[Dependency]) -> list[str]:
        """Return which packages have come, gone, or another version now."""
        said: list[str] = []
        for site in sorted(self._sites):
            try:
                listed = names(site, MOST)
            except OSError as error:
                said.append(f"{site} cannot be listed ({_words(error)}): which packages changed is unknown")
                continue
            if listed is None:
                said.append(f"{site} changed, and holds more than {MOST} names: which packages changed is unknown")
                continue
            there = packages(listed)
            prefix = f"{site}/"
            now = _versions(there)
            was = _versions(one.version for one in needs if one.role is Role.PACKAGE and one.path.startswith(prefix))
            for name in sorted(now.keys() | was.keys()):
                if now.get(name) == was.get(name):
                    continue
                if name not in was:
                    said.append(f"{name} {now[name]} was installed")
                elif name not in now:
                    said.append(f"{name} {was[name]} was removed")
                else:
                    said.append(f"{name} {was[name]} → {now[name]}")
            if now == was:
                said.append(f"the packages in {site} changed")
        return said


def _words(error: OSError | ValueError) -> str:
    return error.strerror or "unknown" if isinstance(error, OSError) else str(error)


def _versions(words: Iterable[str]) -> dict[str, str]:
    return {name: version for name, _, version in (one.partition(" ") for one in words)}
