"""Packages of Intel's driver for the CPU, made of the real one that a runtime's environment holds; and of anything."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.runtimes import Runtime

NAME: Final = "intel-opencl-rt"
PLACE: Final = "opt/intel/opencl/lib"
_OF_THE_DRIVER: Final = re.compile(
    r"lib(intelocl|common_clang|ocl_svml_\w+|tbb\w*|imf|svml|irng|intlc|hwloc|tcm)\.so[.\d]*|cl\.cfg|clblt.*|cllibrary.*"
)


def control(name: str, version: str, depends: str = "") -> str:
    """Return the control file of a package."""
    needs = f"Depends: {depends}\n" if depends else ""
    maintainer = "Maintainer: nobody <nobody@invalid.invalid>\n"
    return f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n{maintainer}{needs}Description: a driver\n"


def deb(place: Path, tree: Path, name: str, version: str, depends: str = "") -> Path:
    """Pack a tree as a package of Debian's."""
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(control(name, version, depends))
    made = place / f"{name}_{version}_amd64.deb"
    words = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", os.fspath(tree), os.fspath(made)]
    subprocess.run(words, check=True, capture_output=True)
    return made


def driver(place: Path, runtime: Runtime, version: str) -> Path:
    """Pack a runtime's driver for the CPU, with links where its environment holds copies."""
    tree = place / f"tree-{version}"
    home = tree / PLACE
    home.mkdir(parents=True)
    known: dict[int, str] = {}
    for path in sorted(runtime.lib.iterdir(), key=lambda one: len(one.name), reverse=True):
        if not _OF_THE_DRIVER.fullmatch(path.name):
            continue
        first = known.setdefault(path.stat().st_ino, path.name)
        if first == path.name:
            shutil.copy2(path, home)
        else:
            (home / path.name).symlink_to(first)
    vendors = tree / "etc/OpenCL/vendors"
    vendors.mkdir(parents=True)
    (vendors / "intel-cpu.icd").write_text(f"/{PLACE}/libintelocl.so\n")
    made = deb(place, tree, NAME, version)
    shutil.rmtree(tree)
    return made


def index(place: Path, packages: Mapping[Path, str]) -> None:
    """Write the list of a repository's packages, of which each has its control file."""
    text = ""
    for path, said in packages.items():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        text += f"{said}Filename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {digest}\n\n"
    (place / "Packages").write_text(text)
