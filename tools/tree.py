"""The tree of files that packages of distributions are made of; ``make_deb.py`` and ``make_rpm.py`` pack it.

It holds the whole program with an environment of its own for each version of Python that it may meet, so that nothing
is fetched when it is installed.  What the environments share (all that is pure Python) lies there once.  Wheels are
fetched with pip, as it is set up here, and kept in a folder; from the same folder the same tree is made each time.

Usage: ``python tools/tree.py DIRECTORY [--optional]`` only fetches the wheels, for tests, which read no network.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING, Final

import source_date

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""Debian 12's and Ubuntu 22.04's, Ubuntu 24.04's, Debian 13's, and Ubuntu 26.04's."""

HOME: Final = "usr/lib/xpucached"
_MARK: Final = ".complete"
_UNITS: Final = (".service", ".socket", ".path", ".timer", ".target", ".slice")
# What the packages ask for (libc6 >= 2.28), and everything older: pip takes no such list by itself.
_PLATFORMS: Final = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
)
_PROGRAM_FOLDERS: Final = ("usr/bin", "etc/shadow-maint/userdel-pre.d")
_DROPPED: Final = frozenset({"tests", "test", "__pycache__"})

_PLACES: Final[Mapping[str, str]] = {
    "": "usr/lib/systemd/system",
    "user": "usr/lib/systemd/user",
    "sysusers.d": "usr/lib/sysusers.d",
    "tmpfiles.d": "usr/lib/tmpfiles.d",
    "polkit": "usr/share/polkit-1/rules.d",
    "udev": "usr/lib/udev/rules.d",
    "catalog": "usr/lib/systemd/catalog",
    "userdel-pre.d": "etc/shadow-maint/userdel-pre.d",
    "system-preset": "usr/lib/systemd/system-preset",
    "user-preset": "usr/lib/systemd/user-preset",
    "completions/bash": "usr/share/bash-completion/completions",
    "completions/zsh": "usr/share/zsh/{zsh}",
    "completions/fish": "usr/share/fish/vendor_completions.d",
}
"""Where a folder of the wheel's units, man pages and completions goes; what is not here is an example."""


class Failure(Exception):
    """Something that a person must put right; the text says what."""


@dataclass(frozen=True, slots=True)
class Part:
    """One package that is bundled."""

    name: str
    version: str
    license: str

    @classmethod
    def of(cls, wheel: Path) -> Part:
        """Read it from a wheel."""
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)]
            head = HeaderParser().parsestr(archive.read(name).decode("utf-8"))
        classes = [one.rpartition(" :: ")[2] for one in head.get_all("Classifier", []) if one.startswith("License ::")]
        said = str(head.get("License-Expression") or "") or ", ".join(classes) or str(head.get("License") or "unknown")
        return cls(str(head["Name"]), str(head["Version"]), said.splitlines()[0].strip())


def needs(version: str) -> tuple[str, ...]:
    """Return what the program needs with a Python, as pip understands it: also what reads and signs bundles.

    pip would hold the bounds of what is needed against the Python that runs pip.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = (*project["dependencies"], *project["optional-dependencies"]["share"])
    minor, found = int(version.partition(".")[2]), list[str]()
    for one in asked:
        name, _, bound = str(one).partition(";")
        below = re.search(r"python_version < '3\.(\d+)'", bound)
        if below is None or minor < int(below[1]):
            found.append(name)
    return tuple(found)


def is_fetched(place: Path, pythons: Sequence[str] = PYTHONS) -> bool:
    """Return whether the wheels are there for what the program needs now."""
    marks = {place / version / _MARK: "\n".join(needs(version)) for version in pythons}
    return all(mark.is_file() and mark.read_text(encoding="utf-8") == wanted for mark, wanted in marks.items())


def fetch(place: Path, pythons: Sequence[str] = PYTHONS) -> None:
    """Fetch the wheels that our own one needs, for each Python; what is there already is taken as it is."""
    missing = [version for version in pythons if not is_fetched(place, [version])]
    # Each waits for the network most of its time.
    with ThreadPoolExecutor() as threads:
        for _ in threads.map(lambda version: _fetch(place / version, version), missing):
            continue


def _fetch(target: Path, version: str) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    command += [f"--abi={abi}" for abi in (f"cp{version.replace('.', '')}", "abi3", "none")]
    command += [f"--platform={platform}" for platform in _PLATFORMS]
    done = subprocess.run([*command, f"--dest={target}", *needs(version)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"the wheels for Python {version} cannot be had: {done.stderr.strip()[-2000:]}")
    (target / _MARK).write_text("\n".join(needs(version)), encoding="utf-8")


def make(wheel: Path, wheels: Path, tree: Path, *, zsh: str, pythons: Sequence[str] = PYTHONS) -> tuple[Part, ...]:
    """Make the tree, which must not be there yet; gives what is bundled besides ourselves."""
    found = {version: {path.name: path for path in (wheels / version).glob("*.whl")} for version in pythons}
    shared = set.intersection(*(set(names) for names in found.values()))
    common = tree / HOME / "common"
    # The same file for all says of itself that it works with all.
    for name in sorted(shared):
        _unpack(found[pythons[0]][name], common)
    _unpack(wheel, common)
    for version, names in found.items():
        _environment(tree, version)
        site = tree / HOME / f"python{version}/lib/python{version}/site-packages"
        for name, path in sorted(names.items()):
            if name not in shared:
                _unpack(path, site)
    _launchers(tree, pythons)
    _furnish(tree, common / "xpucached", zsh)
    settle(tree)
    parts = {Part.of(path) for names in found.values() for path in names.values()}
    return tuple(sorted(parts, key=lambda part: (part.name.lower(), part.version)))


def _unpack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            head, _, rest = name.partition("/")
            # What a wheel would put elsewhere are programs of its own, which nobody here calls.
            if name.endswith("/") or head.endswith(".data") or _DROPPED & set(rest.split("/")[:-1]):
                continue
            path = target / name
            # Nothing that is unpacked is a link, so a name tells where it goes.
            if {"", ".."} & {*name.split("/")}:
                raise Failure(f"{wheel.name}: {name} lies outside")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))


def _environment(tree: Path, version: str) -> None:
    """Make what ``python -m venv`` would, for an interpreter that need not be here."""
    place = tree / HOME / f"python{version}"
    site = place / f"lib/python{version}/site-packages"
    site.mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "bin/python").symlink_to(f"/usr/bin/python{version}")
    (place / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n", encoding="utf-8"
    )
    (site / "common.pth").write_text(f"/{HOME}/common\n", encoding="utf-8")


_LAUNCHER: Final = """\
#!/bin/sh
# Runs {program} with the newest Python for which the package brings an environment.
for version in {versions}; do
    python=/usr/lib/xpucached/python$version/bin/python
    [ -x "$python" ] && exec "$python" -I -m {module} "$@"
done
echo "{program}: this package is made for Python {either}, and none of them is here" >&2
echo "hint: install one of them (apt-get install python3), or a package that was made for this release" >&2
exit 69
"""


_PROGRAMS: Final = {
    "xpucached": "xpucached",
    "xpucachectl": "xpucached.cli",
    "xpucached-watch": "xpucached.watchd",
}


_COMMAND: Final = re.compile(rb"^(Exec\w+=[-@:+!|]*)(xpucached|xpucachectl|xpucached-watch)(?=\s|$)", re.MULTILINE)


def _launchers(tree: Path, pythons: Sequence[str]) -> None:
    newest_first = sorted(pythons, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    for program, module in _PROGRAMS.items():
        path = tree / "usr/bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        words = {"program": program, "module": module, "either": " or ".join(pythons)}
        path.write_text(_LAUNCHER.format(versions=" ".join(newest_first), **words), encoding="utf-8")
        path.chmod(0o755)


def _furnish(tree: Path, package: Path, zsh: str) -> None:
    """Put units, man pages, completions and the example where a distribution has them."""
    manual = package / "data" / "manual"
    if not manual.is_dir():
        raise Failure("the wheel has no man pages; make dist builds one that has")
    docs = tree / "usr/share/doc/xpucached"
    for top in (package / "units", manual):
        for path in sorted(top.rglob("*")):
            if path.is_file():
                _settle_one(tree, docs, path.relative_to(top).as_posix(), path.read_bytes(), zsh)
        # Where the administrator looks for them is elsewhere, and `setup` has nothing to do here.
        shutil.rmtree(top)
    # One page, delivered three ways: Cockpit has the module and the style that the program itself brings.
    for path in sorted([*(ROOT / "cockpit").iterdir(), *(package / "data/page").iterdir()]):
        _write(tree / "usr/share/cockpit/xpucached" / path.name, path.read_bytes())
    for path in sorted((ROOT / "docs").glob("*.md")):
        _write(docs / f"{path.name}.gz", _gzip(path.read_bytes()))
    for path in sorted((ROOT / "docs/examples").glob("*.toml")):
        _write(docs / "examples" / path.name, path.read_bytes())
    for name in ("models.d", "trust.d"):
        (tree / "etc/xpucached" / name).mkdir(parents=True, exist_ok=True)


def _settle_one(tree: Path, docs: Path, name: str, content: bytes, zsh: str) -> None:
    folder, _, file = name.rpartition("/")
    if folder == "man":
        _write(tree / f"usr/share/man/man{file[-1]}/{file}.gz", _gzip(content))
    elif name == "xpucached.toml":
        _write(tree / "etc/xpucached/xpucached.toml", content)
    elif folder in _PLACES and (folder not in {"", "user"} or file.endswith(_UNITS)):
        # Looked for by name, a program in /usr/local/bin would come first.
        text = _COMMAND.sub(rb"\1/usr/bin/\2", content)
        _write(tree / _PLACES[folder].format(zsh=zsh) / file, text)
    else:
        _write(docs / "examples" / name.removeprefix("examples/"), content)


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def settle(tree: Path) -> None:
    """Give every file one time and one of two modes, whatever this process's mask is."""
    when = source_date.seconds()
    for path in walk(tree):
        if not path.is_symlink():
            program = path.parent.relative_to(tree).as_posix() in _PROGRAM_FOLDERS
            path.chmod(0o755 if path.is_dir() or program else 0o644)
        os.utime(path, (when, when), follow_symlinks=False)
    os.utime(tree, (when, when))
    tree.chmod(0o755)


def walk(tree: Path) -> Iterator[Path]:
    """Return everything in a tree, always in the same order."""
    return iter(sorted(tree.rglob("*")))


def startable(tree: Path) -> tuple[str, ...]:
    """Return the host's units that an administrator can enable; none is enabled by a package (see the preset)."""
    return tuple(
        path.name
        for path in sorted((tree / _PLACES[""]).iterdir())
        if "@." not in path.name and "\n[Install]\n" in path.read_text(encoding="utf-8")
    )


def templates(tree: Path) -> tuple[str, ...]:
    """Return the host's templates."""
    return tuple(path.name for path in sorted((tree / _PLACES[""]).iterdir()) if "@." in path.name)


def main() -> int:
    """Fetch the wheels into the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Fetch the wheels that packages of distributions bring.")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("--optional", action="store_true", help="say why if they cannot be had, and go on")
    asked = parser.parse_args()
    try:
        fetch(asked.directory)
    except Failure as problem:
        print(f"bundle: {problem}", file=sys.stderr)
        return 0 if asked.optional else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
