"""Observe: the user-mode driver and compiler files that programs load; reads libraries, asks the package manager.

Which files those are follows from the same variables and files that the loaders read: OpenCL's ICD files and
``OCL_ICD_*``, Level Zero's ``ZE_ENABLE_ALT_DRIVERS``, ``LD_LIBRARY_PATH`` and the dynamic loader's cache.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import heapq
import itertools
import logging
import os
import re
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from xpucached import mounts, reading
from xpucached.domain.host import DriverFile
from xpucached.host import tools
from xpucached.host.digests import head, told_of_file
from xpucached.host.elf import build_id
from xpucached.host.roots import HERE
from xpucached.quantities import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from xpucached.host.roots import HostRoots

log = logging.getLogger(__name__)

_LOADERS = ("libOpenCL.so.1", "libze_loader.so.1")
_LEVEL_ZERO = "libze_intel_gpu.so.1"
_DRIVERS = ("libintelocl.so", "libigdrcl.so", "libze_intel_gpu.so")
_MOST_DRIVERS = 8
# What the GPU drivers load by name when they first compile something, and no loader configuration tells.
_COMPILERS = ("libigc.so.*", "libigdfcl.so.*", "libopencl-clang.so.*")
# What Intel's CPU driver loads from its own directory; cl.cfg holds its settings.
_NEIGHBOURS = ("libcommon_clang.so*", "libOclCpuBackEnd*.so*", "cl.cfg")
_BY_PATTERN = re.compile("|".join(map(fnmatch.translate, (*_COMPILERS, *_NEIGHBOURS)))).match
_MOST_FILES = 256
_MOST_NAMES = 3_000_000  # in one directory
_LONGEST_ICD = 4096
_LONGEST_RECORD = 4 << 20
_LONGEST_RECORDS = 64 << 20  # bytes of them in all that one look reads
_MOST_INTERPRETERS = 16
# Paths in a record are relative to site-packages.
_RECORDED = re.compile(r"^\.\./\.\./(?:\.\./lib/)?([^/,\n]+),", re.MULTILINE)
_RPM_DATABASES = tuple(map(Path, ("/var/lib/rpm", "/usr/lib/sysimage/rpm", "/usr/share/rpm")))
_LONGEST_LINKS = 40  # the kernel's own limit
# Each step takes one character, or a dot and one: what a file is called may be meant to be tried in many ways.
_VERSION = re.compile(r"\.so\.(\d+(?=[.+])(?:\.?[\w+])+)$")

_remembered: dict[tuple[Path, int, int], str | None] = {}


# -- which files --------------------------------------------------------------------------------------------------


class _LibrarySearch:
    """Where the dynamic loader finds libraries, for programs with these variables."""

    def __init__(self, variables: Mapping[str, str], places: HostRoots) -> None:
        listed = re.split("[:;]", variables.get("LD_LIBRARY_PATH", ""))
        self.first = [Path(one) for one in listed if one.startswith("/")][:64]
        self.cached = tools.loader_cache(places)
        self.last = list(places.libraries)
        self._names: dict[Path, list[str]] = {}

    def find(self, name: str) -> Path | None:
        """Return the file that a program gets when it loads ``name``."""
        if "/" in name:
            return Path(name) if name.startswith("/") else None
        candidates = [folder / name for folder in self.first]
        candidates += map(Path, self.cached.get(name, []))
        candidates += [folder / name for folder in self.last]
        return next((one for one in candidates if stat.S_ISREG(_mode(one))), None)

    def match(self, pattern: str, nearby: Sequence[Path] = ()) -> list[Path]:
        """Return all files whose name matches, in ``nearby`` directories and wherever the loader looks."""
        found = [
            folder / name
            for folder in (*self.first, *nearby, *self.last)
            for name in self._list(folder)
            if fnmatch.fnmatchcase(name, pattern)
        ]
        for name, paths in self.cached.items():
            if fnmatch.fnmatchcase(name, pattern):
                found += map(Path, paths)
        return found

    def beside(self, pattern: str, folder: Path) -> list[Path]:
        """Return the files of one directory whose name matches."""
        return [folder / name for name in self._list(folder) if fnmatch.fnmatchcase(name, pattern)]

    def _list(self, folder: Path) -> list[str]:
        if folder not in self._names:
            self._names[folder] = sorted(_listed(folder, _BY_PATTERN))
        return self._names[folder]


def _listed(folder: Path, wanted: Callable[[str], object]) -> list[str]:
    """Return those of a directory's names that are wanted; none if it is none.  Raises OSError as `told_of_file`."""
    try:
        with os.scandir(folder) as listed:
            found = [one.name for one in itertools.islice(listed, _MOST_NAMES) if wanted(one.name)]
            if next(listed, None) is not None:
                log.warning("a file of a driver may be missed: %s holds more than %d names", folder, _MOST_NAMES)
            return found
    except OSError as error:
        told_of_file(error)
    except ValueError:
        pass
    return []


def mapped_drivers(libraries: Iterable[Path], since: datetime) -> tuple[Path, ...]:
    """Return the drivers among the libraries that processes had mapped, the first of which began at ``since``."""
    found = (path for path in sorted(libraries) if path.name.startswith(_DRIVERS) and not replaced(path, since))
    return tuple(itertools.islice(found, _MOST_DRIVERS))


def replaced(library: Path, since: datetime) -> bool:
    """Return whether a library is gone or was replaced after a moment, and may not be what was mapped then.

    One from the future was put there while the clock was wrong.
    """
    try:
        return since.timestamp() < library.stat().st_ctime <= time.time()
    except (OSError, ValueError):
        return True


def _icd_folders(variables: Mapping[str, str], places: HostRoots) -> list[Path]:
    """Return the directories or single files that name OpenCL drivers."""
    vendors = variables.get("OCL_ICD_VENDORS") or variables.get("OPENCL_VENDOR_PATH")
    return [Path(vendors)] if vendors and vendors.startswith("/") else [places.etc / "OpenCL/vendors"]


def _icds(variables: Mapping[str, str], places: HostRoots) -> list[str]:
    """Return the OpenCL drivers that the loader will load, as names or paths."""
    named = [one for one in variables.get("OCL_ICD_FILENAMES", "").split(":") if one]
    for folder in _icd_folders(variables, places):
        files = [folder]
        if stat.S_ISDIR(_mode(folder)):
            names = heapq.nsmallest(_MOST_FILES, _listed(folder, lambda name: name.endswith(".icd")))
            files = [folder / name for name in names]
        for file in files:
            text = _head(file)
            if text:
                named.append(text.splitlines()[0].strip())
    return [one for one in named if one and "\0" not in one]


def _head(path: Path) -> str:
    """Read the beginning of a small text file; empty if it is none.  Raises OSError as `told_of_file`."""
    try:
        descriptor = reading.opened(path)
    except OSError as error:
        told_of_file(error)
        return ""
    except ValueError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, _LONGEST_ICD).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _paths(variables: Mapping[str, str], places: HostRoots) -> list[Path]:
    """Return every file of the driver, as programs name it, links not followed."""
    libraries = _LibrarySearch(variables, places)
    alternative = [one for one in variables.get("ZE_ENABLE_ALT_DRIVERS", "").split(",") if one]
    names = [*_LOADERS, *(alternative or [_LEVEL_ZERO]), *_icds(variables, places)]
    found = [path for path in map(libraries.find, names) if path is not None]
    drivers = [path for path in found if path.name not in _LOADERS]
    for driver in drivers:
        home = _target(driver).parent
        for pattern in _NEIGHBOURS if driver.name.startswith("libintelocl") else ():
            found += libraries.beside(pattern, home)
    if any(path.name.startswith(("libze_intel_gpu", "libigdrcl")) for path in drivers):
        homes = [folder for driver in drivers for folder in (_target(driver).parent, _target(driver).parent.parent)]
        for pattern in _COMPILERS:
            found += libraries.match(pattern, homes)
    files = list(dict.fromkeys(found))
    if len(files) > _MOST_FILES:
        log.warning("a change of the driver may be missed: it has more than %d files", _MOST_FILES)
    return files[:_MOST_FILES]


def _target(path: Path) -> Path:
    return Path(mounts.real(path))


def _mode(path: Path, *, follow_symlinks: bool = True) -> int:
    """Return a file's mode; 0 if there is none, or none that we may see (pathlib's own questions raise for those)."""
    try:
        return path.stat(follow_symlinks=follow_symlinks).st_mode
    except (OSError, ValueError):
        return 0


# -- what is known of them ----------------------------------------------------------------------------------------


def driver_files(variables: Mapping[str, str], places: HostRoots = HERE) -> tuple[DriverFile, ...]:
    """Return the driver and compiler files that programs with these variables load, each file once, by path.

    Raises OSError where that cannot be told now, as without a free descriptor: what is not seen would count as gone.
    """
    chosen: dict[Path, tuple[Path, os.stat_result]] = {}
    for path in _paths(variables, places):
        target = _target(path)
        try:
            status = target.stat()
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):
            chosen.setdefault(target, (path, status))
    known = packages(chosen)
    files = []
    for target, (path, status) in chosen.items():
        package = known.get(target)
        files.append(
            DriverFile(
                path=path,
                target=target,
                version=_version(target, status.st_size) or (package.rpartition(" ")[2] if package else None),
                size=status.st_size,
                modified=moment(status.st_mtime_ns),
                build_id=build_id(target),
                package=package,
            )
        )
    return tuple(sorted(files, key=lambda file: (file.path, file.target)))


def _version(target: Path, size: int) -> str | None:
    """Read a library's version from its name, or from its twin's: wheels hold copies where packages hold links."""
    found = _VERSION.search(target.name)
    if found:
        return found.group(1)
    if target.suffix != ".so":
        return None
    try:
        for one in itertools.islice(target.parent.iterdir(), _MOST_NAMES):
            twin = _VERSION.search(one.name)
            if twin and one.name[: twin.start()] + ".so" == target.name and one.stat().st_size == size:
                return twin.group(1)
    except OSError:
        pass
    return None


def stamp(files: Iterable[DriverFile], kernel: str) -> str:
    """Return 16 hex digits that change whenever a driver file, or the kernel, does."""
    digest = hashlib.blake2b(kernel.encode(), digest_size=8)
    for file in sorted(files, key=lambda one: (one.path, one.target)):
        fields = (file.path, file.target, file.size, file.modified.isoformat(), file.build_id)
        digest.update("\0".join(map(str, fields)).encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def packages(paths: Iterable[Path]) -> Mapping[Path, str | None]:
    """Return which package each file is from, as ``name version``; None where no package manager knows it.

    Answers are remembered for as long as a file keeps its size and time.
    """
    keys: dict[Path, tuple[Path, int, int]] = {}
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        keys[path] = (path, status.st_size, status.st_mtime_ns)
    unknown = [path for path, key in keys.items() if key not in _remembered]
    if unknown:
        answers = _ask_dpkg(unknown) if shutil.which("dpkg-query") else {}
        rest = [path for path in unknown if path not in answers]
        if rest and _rpm_has_packages() and shutil.which("rpm"):
            answers |= _ask_rpm(rest)
        answers |= _wheels([path for path in unknown if path not in answers])
        if len(_remembered) > 10 * _MOST_FILES:
            _remembered.clear()
        _remembered.update({keys[path]: answers.get(path) for path in unknown})
    return {path: _remembered.get(key) for path, key in keys.items()}


def _ask_dpkg(paths: Sequence[Path]) -> dict[Path, str]:
    """Ask dpkg, under both names that a file has where ``/lib`` is a link to ``/usr/lib``."""
    names = {os.fspath(path): path for path in paths}
    names |= {name.removeprefix("/usr"): path for name, path in tuple(names.items()) if name.startswith("/usr/lib")}
    owners: dict[Path, str] = {}
    for line in tools.output(["dpkg-query", "-S", *names]).splitlines():
        owner, colon, name = line.partition(": ")
        if colon and name in names and not line.startswith("diversion by "):
            owners[names[name]] = owner.split(",", 1)[0]
    if not owners:
        return {}
    shown = tools.output(
        ["dpkg-query", "-W", "-f", "${binary:Package} ${Package} ${Version}\n", *sorted(set(owners.values()))]
    )
    versions: dict[str, str] = {}
    for line in shown.splitlines():
        full, short, version = (*line.split(" "), "", "")[:3]
        for name in (full, short):
            versions[name] = f"{short} {version}"
    return {path: versions[owner] for path, owner in owners.items() if owner in versions}


def _rpm_has_packages() -> bool:
    """Return whether rpm has a database: where it is only a tool, it takes a while to say that it knows nothing."""
    for folder in _RPM_DATABASES:
        with contextlib.suppress(OSError):
            if os.listdir(folder):
                return True
    return False


def _ask_rpm(paths: Sequence[Path]) -> dict[Path, str]:
    """Ask rpm, which answers one line per file in the order they were given."""
    lines = tools.output(["rpm", "-qf", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\n", *map(os.fspath, paths)]).splitlines()
    if len(lines) != len(paths):
        return {}
    return {path: line for path, line in zip(paths, lines, strict=True) if re.fullmatch(r"\S+ \S+", line)}


def _wheels(paths: Sequence[Path]) -> dict[Path, str]:
    """Look for the Python packages that put libraries into the ``lib`` directory of their virtual environment."""
    found: dict[Path, str] = {}
    left = _LONGEST_RECORDS
    for folder in dict.fromkeys(path.parent for path in paths):
        missing = {path.name: path for path in paths if path.parent == folder}
        for record in _records(folder):
            name, dash, version = record.parent.name.removesuffix(".dist-info").rpartition("-")
            text = head(os.fspath(record), min(left, _LONGEST_RECORD)).decode("utf-8", "replace")
            left -= len(text)
            for line in _RECORDED.finditer(text) if dash else ():
                if path := missing.get(line[1]):
                    found.setdefault(path, f"{name.replace('_', '-')} {version}")
    return found


def _records(folder: Path) -> list[Path]:
    """Return where the packages of the virtual environment around a ``lib`` directory say what they installed."""
    interpreters = heapq.nsmallest(_MOST_INTERPRETERS, _listed(folder, lambda name: name.startswith("python3")))
    places = [folder / name / "site-packages" for name in interpreters]
    installed = [place / name for place in places for name in _listed(place, lambda name: name.endswith(".dist-info"))]
    return [one / "RECORD" for one in heapq.nsmallest(_MOST_FILES, installed)]


# -- where a change shows -----------------------------------------------------------------------------------------


def watched(variables: Mapping[str, str], places: HostRoots = HERE) -> tuple[Path, ...]:
    """Return the directories in which something happens when the driver changes.

    One in which a driver is named may be missing; the others are there.
    """
    folders: list[Path] = [places.etc]  # the loader's cache is renamed into it at the end of every installation
    for folder in _icd_folders(variables, places):
        folders += [folder, folder.parent]
    there = [folder for folder in folders if stat.S_ISDIR(_mode(folder))]
    named = (folder for path in _paths(variables, places) for folder in _trail(path))
    return tuple(dict.fromkeys((*there, *named)))


def _trail(path: Path) -> list[Path]:
    """Return the directories of a file, of what it links to, and of every link on the way."""
    folders: list[Path] = []
    for _ in range(_LONGEST_LINKS):
        folders.append(path.parent)
        steps = (*reversed(path.parents), path)
        link = next((one for one in steps if stat.S_ISLNK(_mode(one, follow_symlinks=False))), None)
        if link is None:
            break
        folders.append(link.parent)
        try:
            onward = link.parent / link.readlink()
        except OSError:
            break
        path = Path(os.path.normpath(onward / path.relative_to(link)))
    return folders
