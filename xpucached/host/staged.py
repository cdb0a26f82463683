"""Observe: drivers that lie on this host and are not installed: packages that were downloaded, and images.

A package counts as the package manager's own if it lies, complete, where that leaves what it has verified, and nobody
but root can have put it there.  Nothing is unpacked here; files are listed, and their managers' tools asked.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import sockets
from xpucached.domain.ahead import StagedDriver
from xpucached.host import package_tools
from xpucached.host.digests import told_of_file
from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xpucached.domain.ahead import StagedPackage
    from xpucached.host.package_tools import PackageFile, Versions
    from xpucached.host.roots import HostRoots

_DRIVERS: Final = re.compile(
    # The GPU's driver and its compiler, in Debian's, Ubuntu's, Intel's, Fedora's and openSUSE's words …
    r"intel-(?:opencl(?:-icd)?|level-zero(?:-gpu)?|compute-runtime|graphics-compiler|gmmlib|ocloc"
    r"|igc(?:-core|-opencl|-cm)?(?:-\d+)?)"
    r"|lib(?:ze-intel-gpu|igc|igdfcl|igdgmm|iga|opencl-clang|opencl-clang-)[\d.]*"
    # … what the compiler is built on …
    r"|lib(?:llvm|clang-cpp|LLVM|llvmspirvlib)[\d.]*(?:t64)?|llvm[\d.]*-libs|opencl-clang[\d.]*"
    # … and the driver for the CPU.
    r"|intel-opencl-rt|intel-oneapi-(?:runtime-(?:opencl|tbb|tcm|compilers?(?:-common)?)|opencl)"
)
"""The packages of drivers and compilers.  What a driver's installed files belong to is one, whatever it is called."""

_DEB: Final = re.compile(r"([a-z0-9][a-z0-9+.-]+)_[^_/]+_[a-z0-9-]+\.deb")
_RPM: Final = re.compile(r"([\w+.-]+)-[^-/]+-[^-/]+\.[a-z0-9_]+\.rpm")
_MOST_NAMES: Final = 50_000  # in one folder
_MOST_FOLDERS: Final = 64
_MOST_PACKAGES: Final = 64
_MOST_IMAGES: Final = 8

_TELLING: Final = (
    "",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/intel-opencl",
    "usr/lib64",
    "usr/lib64/intel-opencl",
    "etc/OpenCL/vendors",
    "opt/intel",
)
"""The folders of an image of which one is another when its driver is."""

_remembered: dict[tuple[str, int, int, int], PackageFile] = {}
_listed: set[tuple[str, int, int, int]] = set()
"""The files of which the lists were asked, and which are what they know."""


@dataclass(frozen=True, slots=True)
class Lying:
    """What lies there, and why some of it is not taken."""

    drivers: tuple[StagedDriver, ...] = ()
    refused: tuple[str, ...] = ()  #: sentences


def folders(places: HostRoots = HERE) -> tuple[Path, ...]:
    """Return where package managers leave what they downloaded; only such as are there."""
    found = [places.caches / "apt/archives"]
    for pattern in ("dnf/*/packages", "libdnf5/*/packages", "zypp/packages/*", "zypp/packages/*/*"):
        found += sorted(places.caches.glob(pattern))[:_MOST_FOLDERS]
    return tuple(folder for folder in found if folder.is_dir())


def stamp(patterns: Iterable[str] = (), places: HostRoots = HERE) -> str:
    """Give 16 hex digits that change with what lies there; empty if nothing does.  Lists folders, and asks no tool."""
    digest = hashlib.blake2b(digest_size=8)
    empty = True
    for path, status in _packages(places, frozenset()):
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns} {status.st_uid}\n".encode(errors="replace"))
        empty = False
    for image in _images(patterns):
        digest.update(_stamp_of(image).encode())
        empty = False
    return "" if empty else digest.hexdigest()


def find(installed: Iterable[str], patterns: Iterable[str] = (), places: HostRoots = HERE, *, owner: int = 0) -> Lying:
    """Find the drivers that lie on this host and are not installed.

    ``installed`` are the packages of the driver in use, as ``name version``; ``patterns`` name images; ``owner`` is
    whose a package's file must be.  Raises OSError only for what keeps it from looking at all.
    """
    names = frozenset(one.partition(" ")[0] for one in installed)
    drivers: list[StagedDriver] = []
    refused: list[str] = []
    files: dict[str, list[Path]] = {"deb": [], "rpm": []}
    for path, status in itertools.islice(_packages(places, names), _MOST_PACKAGES):
        why = _distrusted(path, status, owner)
        if why:
            refused.append(f"{path} is not looked at: {why}")
        else:
            files[path.suffix[1:]].append(path)
    for kind, paths in files.items():
        if paths and shutil.which({"deb": "dpkg-deb", "rpm": "rpm"}[kind]):
            found = _set_of(kind, paths, names, refused)
            if found is not None:
                drivers.append(found)
    drivers += [StagedDriver(_stamp_of(image), image=image) for image in _images(patterns)]
    return Lying(tuple(drivers), tuple(refused))


# -- packages -------------------------------------------------------------------------------------------------------


def _packages(places: HostRoots, names: frozenset[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files that are called like packages of drivers, or of these names; links, too, to be refused."""
    for folder in folders(places):
        try:
            with os.scandir(folder) as entries:
                for entry in sorted(itertools.islice(entries, _MOST_NAMES), key=lambda one: one.name):
                    match = (_DEB if entry.name.endswith(".deb") else _RPM).fullmatch(entry.name)
                    if match is None or not (match[1] in names or _DRIVERS.fullmatch(match[1])):
                        continue
                    try:
                        yield Path(entry.path), entry.stat(follow_symlinks=False)
                    except OSError:
                        continue  # removed meanwhile
        except OSError as error:
            told_of_file(error)


def _distrusted(path: Path, status: os.stat_result, owner: int) -> str:
    """Say why somebody else than the package manager may have put a file there; empty if not."""
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if status.st_uid != owner:
        return f"it belongs to user {status.st_uid}, and not to root"
    if status.st_mode & 0o022:
        return "others may write to it"
    try:
        sockets.check_way(os.fspath(path), sockets.Trusted(owner))
    except sockets.UntrustedPeer as error:
        return f"{error.place or path.parent} is not root's alone"
    except OSError as error:
        return str(error.strerror)
    return ""


def _set_of(kind: str, paths: Iterable[Path], names: frozenset[str], refused: list[str]) -> StagedDriver | None:
    """Return the packages that would take the place of what is installed, with what these need; None if none would."""
    versions = package_tools.Versions(kind)
    files = [file for path in paths if (file := _read(kind, path, refused)) is not None]
    needed = {name for file in files for group in file.depends for name, _, _ in group}
    ask = package_tools.installed_debs if kind == "deb" else package_tools.installed_rpms
    there = ask({file.package.name for file in files} | needed | names) if files else {}

    def is_newer(file: PackageFile) -> bool:
        name, version = file.package.name, file.package.version
        return name in there and versions.holds(version, "gt", there[name])

    # To ask the lists takes longer than all the rest, so only where something would be taken.
    if kind == "deb" and any(map(is_newer, files)):
        files = [file for file in files if _is_as_listed(file, refused)]
    newest: dict[str, PackageFile] = {}
    for file in files:
        known = newest.get(file.package.name)
        if known is None or versions.holds(file.package.version, "gt", known.package.version):
            newest[file.package.name] = file
    upgrades = {name: file for name, file in newest.items() if is_newer(file)}
    if not upgrades:
        return None
    chosen = dict(upgrades)
    # What is new here belongs to it where one of these needs it; rpms say that in other words than names.
    new = {name: file for name, file in newest.items() if name not in there}
    if kind == "rpm":
        chosen |= new
    while fresh := {
        name: new[name]
        for file in chosen.values()
        for group in file.depends
        for name, _, _ in group
        if name in new and name not in chosen
    }:
        chosen |= fresh
    packages = tuple(replace(file.package, replaces=there.get(name, "")) for name, file in sorted(chosen.items()))
    return StagedDriver(_digest(packages), packages, missing=_missing(chosen, there, versions))


def _read(kind: str, path: Path, refused: list[str]) -> PackageFile | None:
    """Read one package, each file once; what is incomplete is refused."""
    try:
        key = _identity(path)
        if key in _remembered:
            return _remembered[key]
        if kind == "deb" and not package_tools.is_whole(path):
            refused.append(f"{path} is not looked at: it is not complete")
            return None
        file = package_tools.read_deb(path) if kind == "deb" else package_tools.read_rpm(path)
        if file is None:
            refused.append(f"{path} is not looked at: it is no package, or is damaged")
            return None
    except OSError:
        return None  # removed meanwhile
    if len(_remembered) > 4 * _MOST_PACKAGES:
        _remembered.clear()
    _remembered[key] = file
    return file


def _is_as_listed(file: PackageFile, refused: list[str]) -> bool:
    """Return whether a package is what the lists know, as far as they know it; each file is asked about once."""
    path = file.package.path
    try:
        key = _identity(path)
        if key in _listed:
            return True
        if package_tools.differs_from_lists(file):
            refused.append(f"{path} is not looked at: it is not what the package lists know under this version")
            return False
    except FileNotFoundError:
        return False  # removed meanwhile
    except OSError as error:
        refused.append(f"{path} is not looked at: {error.strerror}")
        return False
    if len(_listed) > 4 * _MOST_PACKAGES:
        _listed.clear()
    _listed.add(key)
    return True


def _identity(path: Path) -> tuple[str, int, int, int]:
    status = path.lstat()
    return os.fspath(path), status.st_ino, status.st_size, status.st_mtime_ns


def _missing(chosen: Mapping[str, PackageFile], there: Mapping[str, str], versions: Versions) -> tuple[str, ...]:
    """Say what these packages need that is neither here nor among them: it may be on its way."""
    missing: list[str] = []
    for name, file in sorted(chosen.items()):
        for group in file.depends:
            if not any(_is_met(one, chosen, there, versions) for one in group):
                other, relation, version = group[0]
                words = f"{other} {version}".strip() if relation in {"", "eq"} else f"{other} ({relation} {version})"
                missing.append(f"{name} needs {words}")
    return tuple(missing)


def _is_met(
    wanted: tuple[str, str, str],
    chosen: Mapping[str, PackageFile],
    there: Mapping[str, str],
    versions: Versions,
) -> bool:
    name, relation, version = wanted
    found = chosen[name].package.version if name in chosen else there.get(name)
    if found is None:
        # It may stand for something that another package provides: then the driver itself shows whether it is there.
        return not _DRIVERS.fullmatch(name)
    return not relation or versions.holds(found, relation, version)


def _digest(packages: Sequence[StagedPackage]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for one in packages:
        digest.update(f"{one.name} {one.version} {one.size}\n".encode())
    return digest.hexdigest()


# -- images ---------------------------------------------------------------------------------------------------------


def _images(patterns: Iterable[str]) -> list[Path]:
    """Return the folders that the administrator names, without the one that this system runs from."""
    here = Path("/").stat()
    found: list[Path] = []
    for pattern in patterns:
        for path in _named(pattern):
            try:
                status = path.stat()
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode) and not os.path.samestat(status, here):
                found.append(path)
    return list(dict.fromkeys(found))[-_MOST_IMAGES:]


def _named(pattern: str) -> list[Path]:
    # Of a pattern that names nothing below the root, pathlib makes an error that is none of a file.
    names = [name for name in pattern.split("/") if name not in {"", "."}]
    try:
        return sorted(itertools.islice(Path("/").glob("/".join(names)), _MOST_NAMES)) if names else []
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return []
        raise


def _stamp_of(image: Path) -> str:
    digest = hashlib.blake2b(os.fsencode(image), digest_size=8)
    for name in _TELLING:
        try:
            status = (image / name).stat()
        except OSError:
            continue
        digest.update(f"{name} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
    return digest.hexdigest()
