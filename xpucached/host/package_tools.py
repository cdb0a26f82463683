"""Observe: what package files say of themselves, and what is installed; asks the package managers' own tools.

Nothing is installed by any of these questions, and no script of a package is run.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.domain.ahead import StagedPackage
from xpucached.host import tools
from xpucached.processes import child

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_FIELDS: Final = ("Package", "Version", "Architecture", "Pre-Depends", "Depends", "Installed-Size")
_LONGEST: Final = 256
_PATIENCE: Final = 10.0
_DIGEST: Final = Path(__file__).resolve().parents[1] / "libexec" / "file_digest.py"
_READING: Final = 100.0  # seconds for a package's content, less than a look may take
_MAGIC: Final = b"!<arch>\n"
_HEAD: Final = 60
_SIZES: Final = slice(48, 58)
_MOST_MEMBERS: Final = 16
_DEPENDENCY: Final = re.compile(r"([a-z0-9][a-z0-9+.-]+)(?::\w+)?\s*(?:\(\s*(<<|<=|=|>=|>>)\s*([^\s)]+)\s*\))?")
_RELATIONS: Final = {"<<": "lt", "<=": "le", "=": "eq", ">=": "ge", ">>": "gt"}
_RPM_VERSION: Final = re.compile(r"[\w.+~^:-]{1,256}")
_RPM_FIELDS: Final = r"%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\t%{ARCH}\t%{LONGSIZE}\n"
_NO_EPOCH: Final = "0:"


@dataclass(frozen=True, slots=True)
class PackageFile:
    """What a package file says of itself."""

    package: StagedPackage
    architecture: str
    depends: tuple[tuple[tuple[str, str, str], ...], ...] = ()
    """What it needs: of each alternatives, as name, relation and version; the last two are empty where any will do."""


@dataclass(slots=True)
class Versions:
    """Compares versions as their package manager does, each pair once."""

    kind: str
    _known: dict[tuple[str, str, str], bool] = field(default_factory=dict)

    def holds(self, version: str, relation: str, other: str) -> bool:
        """Return whether ``version`` is in this relation (``gt``, ``eq`` …) to the other."""
        key = (version, relation, other)
        if key not in self._known:
            self._known[key] = self._ask(*key)
        return self._known[key]

    def _ask(self, version: str, relation: str, other: str) -> bool:
        if self.kind == "deb":
            words = ["dpkg", "--compare-versions", version, relation, other]
            try:
                return (
                    child.run(words, variables={"PATH": child.search_path(os.environ)}, seconds=_PATIENCE).status == 0
                )
            except (OSError, ValueError):
                return False
        if not (_RPM_VERSION.fullmatch(version) and _RPM_VERSION.fullmatch(other)):
            return False
        said = tools.output(["rpm", "--eval", f'%{{lua:print(rpm.vercmp("{version}", "{other}"))}}']).strip()
        wanted = {"lt": {"-1"}, "le": {"-1", "0"}, "eq": {"0"}, "ge": {"0", "1"}, "gt": {"1"}}
        return said in wanted[relation]


# -- Debian's -------------------------------------------------------------------------------------------------------


def is_whole(path: Path) -> bool:
    """Return whether a package of Debian's is as long as its parts say: one that is cut short is not."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(_MAGIC)) != _MAGIC:
            return False
        at = len(_MAGIC)
        for _ in range(_MOST_MEMBERS):
            if at == size:
                return True
            file.seek(at)
            head = file.read(_HEAD)
            digits = head[_SIZES].strip()
            if len(head) != _HEAD or not digits.isdigit():
                return False
            at += _HEAD + int(digits)
            # The padding of the last part may be left out.
            at += at % 2 if at != size else 0
    return False


def read_deb(path: Path) -> PackageFile | None:
    """Read a package file of Debian's; None if it cannot be one."""
    size = path.stat().st_size
    said: dict[str, str] = {}
    name = ""
    for line in tools.output(["dpkg-deb", "--field", os.fspath(path), *_FIELDS]).splitlines():
        if line.startswith((" ", "\t")):
            said[name] = f"{said.get(name, '')} {line.strip()}"
            continue
        name, _, value = line.partition(":")
        said[name] = value.strip()
    if not said.get("Package") or not said.get("Version"):
        return None
    unpacked = said.get("Installed-Size", "")
    package = StagedPackage(
        said["Package"][:_LONGEST],
        said["Version"][:_LONGEST],
        path,
        size,
        int(unpacked) << 10 if unpacked.isdecimal() and len(unpacked) < _HEAD else 0,
    )
    needs = f"{said.get('Pre-Depends', '')},{said.get('Depends', '')}"
    return PackageFile(package, said.get("Architecture", ""), _dependencies(needs))


def _dependencies(text: str) -> tuple[tuple[tuple[str, str, str], ...], ...]:
    found = []
    for group in text.split(","):
        matches = [_DEPENDENCY.fullmatch(one.strip()) for one in group.split("|")]
        some = tuple((one[1], _RELATIONS.get(one[2] or "", ""), one[3] or "") for one in matches if one)
        if some:
            found.append(some)
    return tuple(found)


def differs_from_lists(file: PackageFile) -> bool:
    """Return whether the package lists know this version with another content; what they do not know, they do not.

    Raises OSError where the content cannot be read.
    """
    package = file.package
    if shutil.which("apt-cache") is None:
        return False
    name = f"{package.name}:{file.architecture}" if file.architecture not in {"", "all"} else package.name
    said = tools.output(["apt-cache", "show", "--no-all-versions", f"{name}={package.version}"])
    sums = set(re.findall(r"^SHA256: ([0-9a-f]{64})$", said, re.MULTILINE))
    return bool(sums) and _sha256(package.path) not in sums


def _sha256(path: Path) -> str:
    done = child.run([*child.python(_DIGEST), os.fspath(path)], variables={}, seconds=_READING)
    if done.status != 0:
        raise OSError(errno.EIO, f"who reads its content {done.words}", os.fspath(path))
    return done.output.decode("ascii", "replace").strip()


def installed_debs(names: Collection[str]) -> Mapping[str, str]:
    """Return the versions of these packages of Debian's, of those that are installed."""
    return _installed_debs(names) if names else {}


def _installed_debs(names: Iterable[str]) -> Mapping[str, str]:
    shown = tools.output(["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${db:Status-Status}\n", *sorted(names)])
    rows = [line.split("\t") for line in shown.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}  # noqa: PLR2004 - fields


# -- rpm's ----------------------------------------------------------------------------------------------------------


def read_rpm(path: Path) -> PackageFile | None:
    """Read a package file of rpm's; None if it cannot be one, or its digests are not those of its content."""
    size = path.stat().st_size
    # Whoever downloaded it has checked the signature; without the host's keys a user could not.
    if "digests OK" not in tools.output(["rpm", "--checksig", "--nosignature", os.fspath(path)]):
        return None
    shown = tools.output(["rpm", "-qp", "--nosignature", "--qf", _RPM_FIELDS, os.fspath(path)]).splitlines()
    fields = shown[0].split("\t") if len(shown) == 1 else []
    if len(fields) != len(_RPM_FIELDS.split(r"\t")):
        return None
    name, version, architecture, unpacked = fields
    package = StagedPackage(
        name[:_LONGEST],
        version.removeprefix(_NO_EPOCH)[:_LONGEST],
        path,
        size,
        int(unpacked) if unpacked.isdecimal() else 0,
    )
    return PackageFile(package, architecture)


def installed_rpms(names: Collection[str]) -> Mapping[str, str]:
    """Return the versions of these packages of rpm's, of those that are installed."""
    found: dict[str, str] = {}
    shown = tools.output(["rpm", "-q", "--qf", _RPM_FIELDS, *sorted(names)]) if names else ""
    for line in shown.splitlines():
        row: Sequence[str] = line.split("\t")
        if len(row) == len(_RPM_FIELDS.split(r"\t")):
            found[row[0]] = row[1].removeprefix(_NO_EPOCH)
    return found
