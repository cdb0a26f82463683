"""Observe: what a model's program needs, as it was when a run proved it."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import mounts
from xpucached.domain.dependencies import Dependency, Role
from xpucached.host import library_names
from xpucached.host.dependencies import Needs
from xpucached.host.digests import Reader, Unread, digest_names, is_file, names, ordinary, plain, told_of_file
from xpucached.host.python_modules import MOST
from xpucached.host.python_packages import packages, site_of
from xpucached.printing import encodable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from xpucached.domain.models import Workload

_DATA: Final = 1 << 20
"""Bytes from which on a mapped file that is no code is taken for weights."""

_SET: Final = 1_000_000_000
"""Nanoseconds by which a clock that is only corrected is not off."""

_OF_INTERPRETERS: Final = frozenset({Role.SCRIPT, Role.MODULE, Role.PACKAGES})
"""What else their words name a program names as it likes, most often what it writes."""

NAMED: Final = frozenset({Role.ARGUMENT, Role.FOLDER})
"""What the words name, be it read or written: only what becomes of it tells."""

_AGAIN: Final = "unsettled before"  # the version of what the words name that was so in an earlier run of the series
FOLDERS: Final = frozenset({Role.FOLDER, Role.PACKAGES, Role.LINK})
LED: Final = frozenset({Role.PROGRAM, Role.SCRIPT, Role.LINK})
"""What lies beside or in these is loaded from where they lie themselves, whatever link leads there."""

_ORDER: Final = {role: number for number, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class DependencySnapshot:
    """What the words of a model name, as it was before a pass."""

    named: tuple[Dependency, ...]
    began: int  #: nanoseconds since 1970, by the clock that the kernel stamps files with
    steady: int  #: the same moment by the clock that nobody sets
    read: Mapping[str, Dependency] = field(default_factory=dict)
    """By path, with digests: what the words name, what an earlier pass loaded, and the packages beside it; before the
    first pass, and without: what changed while the last proof's run went on."""
    places: tuple[str, ...] = ()  #: where libraries are looked for first
    met: frozenset[str] = frozenset()  #: names by which earlier passes came to what they needed


def named(
    workload: Workload,
    variables: Mapping[str, str],
    loaded: Iterable[str] | None = None,
    digested: Iterable[Dependency] = (),
    places: Iterable[str] = (),
) -> DependencySnapshot:
    """Look at what a workload's words name; before another pass read it, and what was ``loaded`` in the one before.

    What is ``digested`` already, as in the last proof, is not read again.  ``places`` are those where it was seen to
    look for programs and libraries.
    """
    needs = Needs(workload, variables)
    needs.look()
    there = tuple(found for path, role in needs.paths.items() if (found := _look(path, role)) is not None)
    read: Mapping[str, Dependency]
    if loaded is None:
        again = (_look(one.path, one.role) for one in digested if one.unsettled)
        read = {one.path: one for one in again if one is not None}
    else:
        led = library_names.names(loaded, needs.library_places)
        files = {name: _look(name, Role.LIBRARY) for path in led for name in (path, *led[path])}
        files |= {path: _look(path, Role.LINK) for path in library_names.links(led, places)}
        beside = Needs(workload, {})
        for site in sorted(set(filter(None, map(site_of, led)))):
            beside.add_packages(site)
        files |= {path: _look(path, role) for path, role in beside.paths.items()}
        read = _digested((*there, *filter(None, files.values())), digested)
    met = frozenset((*read, *map(plain, places)))
    return DependencySnapshot(there, time.time_ns(), _steady(), read, tuple(needs.library_places), met)


def _script(one: Workload) -> tuple[object, ...]:
    """Return what an interpreter runs, without the words behind its script."""
    words = next((number for number, word in enumerate(one.command[1:], 2) if not word.startswith("-")), None)
    return one.directory, tuple(sorted(one.variables.items())), one.command[:words]


def interpreted(workload: Workload, some: Sequence[Workload]) -> dict[str, Role]:
    """Return what interpreters of a workload's run that were seen at work: scripts, modules, directories of packages.

    What its script reads as its own where it goes (``cd app; . ./env.sh``) nobody sees: there its words name that.
    """
    words = tuple(path if is_file(path := os.path.join(workload.directory, one)) else one for one in workload.command)
    went = {one.directory: replace(one, command=words) for one in reversed(some) if one.directory != workload.directory}
    some = (*some, *(went.values() if words else ()))
    found: dict[str, Role] = {}
    needs: Needs | None = None
    # Many may run the same with other arguments: what only these name comes last, where the bound may be used up.
    firsts = {_script(one): one for one in reversed(some)}
    for one in sorted(some, key=lambda one: firsts[_script(one)] is not one):
        needs = Needs(one, {}, needs)
        needs.follow(one.command)
        found |= {path: role for path, role in needs.paths.items() if role in _OF_INTERPRETERS}
    return found


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
    told: Iterable[tuple[str, Role]],
    ours: Collection[str],
    last: Iterable[Dependency] = (),
    others: Iterable[Dependency] = (),
    earlier: DependencySnapshot | None = None,
    mapped_before: Iterable[str] = (),
    places: Iterable[str] = (),
    *,
    same_workload: bool = True,
) -> tuple[Dependency, ...]:
    """Return what a pass needed that began with ``then``, and proved its model.

    ``code`` and ``data`` are the files that it mapped, ``told`` what its processes told otherwise: scripts, modules and
    directories of packages, and ``places`` where these looked for programs and libraries.  ``ours`` are the directories
    of caches, ``others`` what other models need, whose digests need not be taken twice.  What it wrote itself is left
    out: changed data at once (in an earlier pass of the same run, too: ``earlier`` is what there was before that), if
    the last proof, whose dependencies ``last`` are, does not know it; changed code, and such data, if it changed in the
    last proof too, and now in each pass, or was not there before, which those, ``then`` and ``mapped_before``, the code
    of earlier passes, tell; else it is unsettled.  Of what directories of the arguments hold changed code is left out
    as well if the last proof, of the ``same_workload``, left it out.
    """
    ended, reader = time.time_ns(), Reader()
    known = {one.path: one for one in last}
    passed_over = _passed_over(then, earlier or then, known) if same_workload else set[str]()
    turns, moved = set[str](), set[str]()
    again = any(one.unsettled for one in known.values())
    if earlier is not None:
        # What a program writes itself it writes in each pass; who works at it hardly does.
        first = {one.path: one for one in (*earlier.read.values(), *earlier.named)}
        turns = _by_turns(then, first, known)
        looked = (*then.read.values(), *then.named)
        # Two that it writes, of which the last proof has one alone, would be unsettled by turns without end.
        moved = {one.path for one in looked if again and _moved(first.get(one.path), one, earlier.began)}
        still = {one.path for one in looked if alike(first.get(one.path), one)}
        known |= {path: replace(known[path], unsettled=False) for path in still & known.keys()}
    found = _as_named(then, earlier, known, ours, reader, passed_over, turns, moved)
    marked = {path for path, one in known.items() if again and one.version == _AGAIN} & found.keys()
    found |= {path: replace(found[path], version=_AGAIN) for path in marked if found[path].role in NAMED}
    seen = Needs(workload, {})
    sites: set[str] = set()
    led = library_names.names(code, then.places)
    links = library_names.links(led, places)
    mapped_as = (*dict.fromkeys(led, Role.LIBRARY).items(), *dict.fromkeys(links, Role.LINK).items())
    roles = (*mapped_as, *told, *dict.fromkeys(data, Role.DATA).items())
    for path, role in roles:
        site = path if role is Role.PACKAGES else site_of(path)
        if site is not None:
            sites.add(site)
        if role in {Role.LIBRARY, Role.DATA} or site is None:
            for name in (path, *(led[path] if role is Role.LIBRARY else ())):
                seen.add(name, role)
    for site in sorted(sites):
        seen.add_packages(site)
    # What led to one of them before the pass, or was one, and does not do so, or is gone, after it.
    met = frozenset(seen.paths)
    mapped = {(one.inode, one.digest) for path in led if (one := then.read.get(path)) is not None}
    led_there = (one for one in then.read.values() if one.role is Role.LINK or (one.inode, one.digest) in mapped)
    for path, link in sorted((one.path, one.role is Role.LINK) for one in led_there):
        seen.add(path, Role.LINK if link else Role.LIBRARY)
    before = {old.path: old for old in then.named}
    settled = {*mapped_before, *before, *then.read, *(path for path, one in known.items() if one.role not in NAMED)}
    settled -= {path for path, one in known.items() if one.unsettled} | passed_over | moved
    # By a link that each start makes under another name, no other start comes to anything.
    once = ((met ^ then.met) & seen.paths.keys()) - known.keys() - before.keys() if known or earlier else ()
    ours = (*ours, *library_names.made_since(once, (earlier or then).began))
    for path, role in seen.paths.items():
        # What a directory of the arguments holds may be code all the same, and is no output then.
        if path in found or (path in before and not role.is_code) or _below(path, ours) or not ordinary(path):
            continue
        now, was = _look(path, role), then.read.get(path, known.get(path))
        # What changed during the pass is its own work; what comes from the future is as old as a wrong clock.  Where
        # files are stamped by a server's clock, only what was looked at before tells.
        old = then.read.get(path, before.get(path, now))
        own = now is None or old is None or then.began <= now.changed <= ended or not _same(old, now)
        if own and (same := _unchanged(was, now, reader)) is not None:
            found[path] = same
        elif own and (role.is_code or path in known) and path in settled and (one := now or was or old) is not None:
            found[path] = replace(one, unsettled=True)
        elif now is not None and not own and (role is not Role.DATA or now.size >= _DATA):
            found[path] = now
    chosen = sorted(found.values(), key=lambda one: (_ORDER[one.role], one.path))[:MOST]
    read = _digested(chosen, (*others, *known.values(), *then.read.values()))
    return tuple(read[one.path] for one in chosen)


def _moved(old: Dependency | None, now: Dependency, began: int) -> bool:
    """Return whether a first pass that ``began`` then changed a file; of what no word names the clock alone tells."""
    return now.changed >= began if old is None else not alike(old, now)


def _passed_over(then: DependencySnapshot, first: DependencySnapshot, known: Mapping[str, Dependency]) -> set[str]:
    """Return what was there when the last proof ended, and that has none of it.

    What came between that and this run, before its ``first`` pass, is no output of the program's.
    """
    came: set[str] = set()  # directories that hold other names than in the last proof, and new ones in these
    for one in first.named:
        if one.role is Role.FOLDER and (
            one.digest != known[one.path].digest if one.path in known else os.path.dirname(one.path) in came
        ):
            came.add(one.path)
    return {one.path for one in then.named if known and one.path not in known and os.path.dirname(one.path) not in came}


def _by_turns(then: DependencySnapshot, first: Mapping[str, Dependency], known: Mapping[str, Dependency]) -> set[str]:
    """Return what lies in places in which something was unsettled, and the first pass alone changed something else.

    There a program writes its outputs by turns, and would never be proven.  A place is a directory of the arguments
    with all that it holds, or the directory of a file that they name.
    """
    folders = {one.path for one in then.named if one.role is Role.FOLDER}

    def place_of(path: str) -> str:
        place = os.path.dirname(path)
        while (above := os.path.dirname(place)) in folders and above != place:
            place = above
        return place

    places = {one.path: place_of(one.path) for one in then.named if one.role in NAMED}
    restless = {places[path] for path, one in known.items() if one.unsettled and path in places}
    others = (one for one in then.named if places.get(one.path) in restless and not known.get(one.path, one).unsettled)
    changed = (one for one in others if not alike(first.get(one.path), one))
    turning = {places[one.path] for one in changed if alike(_look(one.path, one.role), one)}
    return {path for path, place in places.items() if place in turning}


def _as_named(
    then: DependencySnapshot,
    earlier: DependencySnapshot | None,
    known: Mapping[str, Dependency],
    ours: Collection[str],
    reader: Reader,
    passed_over: Collection[str],
    turns: Collection[str],
    moved: Collection[str],
) -> dict[str, Dependency]:
    """Return what was named and is as it was, and what is not and was hardly written by the program; see `needed`."""
    found: dict[str, Dependency] = {}
    first = None if earlier is None else {one.path: one for one in earlier.named}
    for old in then.named:
        # A script that a directory of the arguments holds (``cd sub && python3 app.py``) is no output either.  But one
        # that is gone is, or that the last proof left out: a program that writes such would never be proven.
        script = old.role is Role.ARGUMENT and old.path.endswith((".py", ".sh"))
        # Nor is what the last proof's run left as it was, or, where there is none, the first of two passes.
        still = first is None or alike(first.get(old.path), old)
        read = old.path in known or (first is not None and still and old.path not in passed_over)
        code = old.role.is_code or ((script or (read and old.role in NAMED)) and not _below(old.path, ours))
        # Where the program adds names now, what the last proof has none of is an older output.
        older = old.path in passed_over and (place := os.path.dirname(old.path)) in passed_over and place not in found
        if not code and (_below(old.path, ours) or not still or (older and not script)):
            continue
        left_out = known.get(old.path, old).unsettled or (script and old.path in passed_over) or old.path in moved
        # Weights that are downloaded one after the other change once, outputs by turns again and again.
        left_out = left_out or (old.path in turns and old.path in known and known[old.path].version == _AGAIN)
        now = _look(old.path, old.role)
        if now is not None and (now == old or (old.role in FOLDERS and now.digest and now.digest == old.digest)):
            found[old.path] = now
        elif (same := _unchanged(then.read.get(old.path, known.get(old.path)), now, reader)) is not None and (
            same.version == old.version
        ):
            found[old.path] = same
        elif code and not left_out and (now is not None or old.role not in NAMED):
            found[old.path] = replace(old, unsettled=True, version=_AGAIN if old.role in NAMED else old.version)
    return found


def _below(path: str, places: Collection[str]) -> bool:
    return any(f"{path}/".startswith(f"{place}/") for place in places)


def alike(one: Dependency | None, other: Dependency) -> bool:
    """Return whether two looks at a file differ in no more than its inode's time, which a further name changes, too."""
    if one is None or (one.digest and other.digest and one.digest != other.digest):
        return False
    # What came to a directory and went again, or is not counted, changes its times.
    same_names = bool(one.digest and other.digest) and one.role in FOLDERS
    # File systems without numbers of inodes, as exFAT, give others after each mount; their times stay.
    same_inode = one.inode == other.inode or one.changed == other.changed
    return same_names or ((one.size, one.modified) == (other.size, other.modified) and same_inode)


def _unchanged(old: Dependency | None, now: Dependency | None, reader: Reader) -> Dependency | None:
    """Return what is there now, with its digest, if that is what it was; only what looks so is read."""
    if old is None or now is None or not old.digest or not alike(old, now):
        return None
    found = _read(now, None, reader)
    return found if found.digest == old.digest else None


def _digested(some: Iterable[Dependency], known: Iterable[Dependency]) -> dict[str, Dependency]:
    """Return these by their paths, the small ones first, with the digests of those that can be read, or were before."""
    reader, before = Reader(), {one.path: one for one in known if one.digest}
    read: dict[str, Dependency] = {}
    # A package's library has several names, all but one of them links to it: hundreds of megabytes are read once.
    by_inode: dict[int, Dependency] = {}
    for one in sorted(some, key=lambda one: one.size):
        other = by_inode.get(one.inode)
        if other is None or mounts.real(other.path) != mounts.real(one.path):
            other = before.get(one.path)
        read[one.path] = by_inode[one.inode] = _read(one, other, reader)
    return read


def _read(one: Dependency, known: Dependency | None, reader: Reader) -> Dependency:
    """Add the digest, if the file can be read, or was before."""
    if one.digest or one.unsettled or one.role in FOLDERS:
        return one
    if known is not None and known.digest and _same(one, known):
        return replace(one, digest=known.digest)
    try:
        digest = reader.digest(one.path)
        # What was written since the look at it is not what was proven, and its digest would prove it.
        now = _look(one.path, one.role)
        if now is None or not alike(one, now):
            return one
        if not _same(one, now) and reader.digest(one.path) != digest:
            return one
    except (OSError, ValueError, Unread):
        return one
    return replace(now, digest=digest)


def _look(path: str, role: Role) -> Dependency | None:
    """Return a file or a directory as it is now; None if it is not what it should be, or cannot be looked at."""
    try:
        found = os.stat(path)
        folder = role in FOLDERS
        if not (stat.S_ISDIR if folder else stat.S_ISREG)(found.st_mode):
            return None
        digest = names_digest(path, role) if folder else ""
    except OSError as error:
        told_of_file(error)
        return None
    except ValueError:
        return None
    # A directory's size and times say less than its names.
    size, version = (0, "") if folder else (found.st_size, _version(path) if role is Role.PACKAGE else "")
    if role in LED:
        version = led_to(path)
    return Dependency(role, path, size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, digest, version)


def names_digest(path: str, role: Role) -> str:
    """Return the digest of a directory's names; empty for one with too many: nobody knows whether those change."""
    if role is Role.LINK:
        return digest_names([(led_to(path), True)])
    found = names(path, MOST)
    if found is None:
        return ""
    if role is Role.PACKAGES:
        found = [(words, False) for words in sorted(packages(found))]
    # What Python keeps of its modules comes with the first start, and may come and go at any time.
    return digest_names([one for one in found if one != ("__pycache__", True)])


def led_to(path: str) -> str:
    """Return where a file or a directory lies that is come to by a link; empty if it is not, or no Unicode."""
    real = mounts.real(path)
    return real if real != path and encodable(real) == real else ""


def _version(path: str) -> str:
    folder, name = os.path.split(path)
    return next(iter(packages([(name, False), (os.path.basename(folder), True)])), "")


def _same(one: Dependency, other: Dependency) -> bool:
    return (one.size, one.modified, one.changed, one.inode) == (other.size, other.modified, other.changed, other.inode)
