"""Observe: what a model's program needs, as it was when a run proved it, and what has changed since."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.domain.dependencies import Dependency, Role
from xpucached.host.dependencies import MOST, Needs, packages, site_of
from xpucached.host.digests import Enough, Reader, Unread, digest_names, names, ordinary

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from xpucached.domain.models import Workload

_DATA: Final = 1 << 20
"""Bytes from which on a mapped file that is no code is taken for weights."""

_TOLD: Final = 20
"""Changes that are told of one model."""

_REMEMBERED: Final = 20_000
"""Comparisons whose results are remembered."""

_SET: Final = 1_000_000_000
"""Nanoseconds by which a clock that is only corrected is not off."""

_MOST_LOOKED: Final = 100_000
"""Names of one compiler's cache that are looked at for a file."""

_FOLDERS: Final = frozenset({Role.FOLDER, Role.PACKAGES})
_ORDER: Final = {role: number for number, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class DependencySnapshot:
    """What the words of a model name, as it was before a pass."""

    named: tuple[Dependency, ...]
    began: int  #: nanoseconds since 1970, by the clock that the kernel stamps files with
    steady: int  #: the same moment by the clock that nobody sets


def named(workload: Workload, variables: Mapping[str, str]) -> DependencySnapshot:
    """Look at what a workload's words name."""
    needs = Needs(workload, variables)
    needs.look()
    there = tuple(found for path, role in needs.paths.items() if (found := _look(path, role)) is not None)
    return DependencySnapshot(there, time.time_ns(), _steady())


def _steady() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def clock_was_set(since: DependencySnapshot) -> bool:
    """Return whether the clock was set: then nothing tells what is younger than the pass from what is not."""
    passed = _steady() - since.steady
    return abs(time.time_ns() - since.began - passed) > _SET + passed // 1000


def needed(
    workload: Workload,
    then: DependencySnapshot,
    code: Iterable[str],
    data: Iterable[str],
    modules: Iterable[str],
    ours: Collection[str],
    last: Iterable[Dependency] = (),
    others: Iterable[Dependency] = (),
    earlier: DependencySnapshot | None = None,
    mapped_before: Iterable[str] = (),
) -> tuple[Dependency, ...]:
    """Return what a pass needed that began with ``then``, and proved its model.

    ``code`` and ``data`` are the files that it mapped, ``modules`` those that it told, ``ours`` the directories of
    caches, ``others`` what other models need, whose digests need not be taken twice.  What it wrote itself is left out:
    changed data at once (in an earlier pass of the same run, too: ``earlier`` is what there was before that), changed
    code if it changed in the last proof too, whose dependencies ``last`` are, or was not there before, which those and
    ``mapped_before``, the code of earlier passes, tell; else such code is unsettled.
    """
    ended = time.time_ns()
    known = {one.path: one for one in last}
    found = _as_named(then, earlier, known, ours)
    seen = Needs(workload, {})
    sites: set[str] = set()
    for paths, role in ((code, Role.LIBRARY), (modules, Role.MODULE), (data, Role.DATA)):
        for path in paths:
            site = site_of(path)
            if site is not None:
                sites.add(site)
            if role is not Role.MODULE or site is None:
                for name in (path, *(_links(path) if role is Role.LIBRARY else ())):
                    seen.add(name, role)
    for site in sorted(sites):
        seen.add_packages(site)
    before = {old.path for old in then.named}
    settled = {*mapped_before, *(path for path, one in known.items() if one.role.is_code)}
    settled -= {path for path, one in known.items() if one.unsettled}
    for path, role in seen.paths.items():
        if path in before or _below(path, ours) or not ordinary(path):
            continue
        now = _look(path, role)
        # What changed during the pass is its own work; what comes from the future is as old as a wrong clock.
        own = now is None or then.began <= now.changed <= ended
        if now is not None and own and role.is_code and path in settled:
            found[path] = replace(now, unsettled=True)
        elif now is not None and not own and (role is not Role.DATA or now.size >= _DATA):
            found[path] = now
    reader = Reader()
    chosen = sorted(found.values(), key=lambda one: (_ORDER[one.role], one.path))[:MOST]
    digests = {one.path: one for one in (*others, *known.values()) if one.digest}
    read = {one.path: _read(one, digests.get(one.path), reader) for one in sorted(chosen, key=lambda one: one.size)}
    return tuple(read[one.path] for one in chosen)


def filled(places: Iterable[str]) -> tuple[Dependency, ...]:
    """Return those of these directories that hold anything: what compilers keep there is part of what was proven."""
    found: list[Dependency] = []
    for path in dict.fromkeys(places):
        with contextlib.suppress(OSError, ValueError):
            if _holds_something(path):
                found.append(Dependency(Role.CACHE, path, 0, 0, 0, 0))
    return tuple(found)


def _holds_something(path: str) -> bool:
    """Return whether there is a file below a directory that is more than a lock.  Raises OSError for the directory."""
    ahead, left = [path], _MOST_LOOKED
    while ahead:
        here = ahead.pop()
        try:
            with os.scandir(here) as there:
                for one in there:
                    left -= 1
                    if one.is_dir(follow_symlinks=False):
                        ahead.append(one.path)
                    elif not one.name.endswith(".lock"):
                        return True
                    if left < 0:
                        # So many directories are made for something.
                        return True
        except OSError:
            if here == path:
                raise
    return False


def _as_named(
    then: DependencySnapshot, earlier: DependencySnapshot | None, known: Mapping[str, Dependency], ours: Collection[str]
) -> dict[str, Dependency]:
    """Return what was named and is as it was, and code that is not; see `needed`."""
    found: dict[str, Dependency] = {}
    first = None if earlier is None else {one.path: one for one in earlier.named}
    for old in then.named:
        if not old.role.is_code and (_below(old.path, ours) or (first is not None and first.get(old.path) != old)):
            continue
        now = _look(old.path, old.role)
        if now is not None and (now == old or (old.role is Role.PACKAGES and now.digest and now.digest == old.digest)):
            found[old.path] = now
        elif old.role.is_code and not (old.path in known and known[old.path].unsettled):
            found[old.path] = replace(old, unsettled=True)
    return found


def _below(path: str, places: Collection[str]) -> bool:
    return any(f"{path}/".startswith(f"{place}/") for place in places)


def _read(one: Dependency, known: Dependency | None, reader: Reader) -> Dependency:
    """Add the digest, if the file can be read, or was before."""
    if one.digest or one.unsettled or one.role in _FOLDERS:
        return one
    if known is not None and known.digest and _same(one, known):
        return replace(one, digest=known.digest)
    try:
        digest = reader.digest(one.path)
    except (OSError, ValueError, Unread):
        return one
    # What was written since the look at it is not what was proven, and its digest would prove it.
    now = _look(one.path, one.role)
    return replace(one, digest=digest) if now is not None and _same(one, now) else one


def _look(path: str, role: Role) -> Dependency | None:
    """Return a file or a directory as it is now; None if it is not what it should be, or cannot be looked at."""
    try:
        found = os.stat(path)
        folder = role in _FOLDERS
        if not (stat.S_ISDIR if folder else stat.S_ISREG)(found.st_mode):
            return None
        digest = _listed(path, role) if folder else ""
    except (OSError, ValueError):
        return None
    # A directory's size and times say less than its names.
    size, version = (0, "") if folder else (found.st_size, _version(path) if role is Role.PACKAGE else "")
    return Dependency(role, path, size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, digest, version)


def _listed(path: str, role: Role) -> str:
    """Return the digest of a directory's names; empty for one with too many: nobody knows whether those change."""
    found = names(path, MOST)
    if found is None:
        return ""
    if role is Role.PACKAGES:
        found = [(words, False) for words in sorted(packages(found))]
    return digest_names(found)


def _version(path: str) -> str:
    folder, name = os.path.split(path)
    return next(iter(packages([(name, False), (os.path.basename(folder), True)])), "")


def _links(path: str) -> Iterable[str]:
    """Yield the shorter names of a library that lead to it: ``libfoo.so.1`` for ``libfoo.so.1.2``."""
    name = path
    while ".so." in os.path.basename(name):
        name = name.rpartition(".")[0]
        try:
            if os.path.islink(name) and os.path.realpath(name) == path:
                yield name
        except (OSError, ValueError):
            return


def _same(one: Dependency, other: Dependency) -> bool:
    return (one.size, one.modified, one.changed, one.inode) == (other.size, other.modified, other.changed, other.inode)


# -- later ----------------------------------------------------------------------------------------------------------


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
            if not _holds_something(old.path):
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
            self.said.append(f"{name} was changed while the run that proved it went on")
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
        size = 0 if old.role in _FOLDERS else found.st_size
        if (size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino) == (
            *(old.size, old.modified),
            *(old.changed, old.inode),
        ):
            return old
        now = replace(old, size=size, modified=found.st_mtime_ns, changed=found.st_ctime_ns, inode=found.st_ino)
        said = self._known.get((old, now))
        if said is None:
            try:
                said = self._known[old, now] = self._compared(old, now, name)
            except Enough:
                # The next look goes on with it.
                self.said.append(f"{name} was written anew, and has not been read yet: whether it changed is unknown")
                return old
        if not said:
            return now
        if old.role is Role.PACKAGES:
            self._sites.add(old.path)
        else:
            self.said.append(said)
        return old

    def _compared(self, old: Dependency, now: Dependency, name: str) -> str:
        """Return how the content differs; empty if it does not."""
        untouched = (now.size, now.modified, now.inode) == (old.size, old.modified, old.inode)
        try:
            if old.role in _FOLDERS:
                listed = _listed(old.path, old.role)
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
        except (OSError, ValueError) as error:
            return f"{name} was written anew and cannot be read ({_words(error)}): whether it changed is unknown"
        if old.role is Role.PACKAGE:
            return f"{old.version} was installed anew, with other contents"
        return f"{name} was {'modified' if now.inode == old.inode else 'replaced'}"

    def packages(self, needs: Sequence[Dependency]) -> list[str]:
        """Return which packages have come, gone, or another version now."""
        said: list[str] = []
        for site in sorted(self._sites):
            try:
                listed = names(site, MOST)
            except OSError:
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
