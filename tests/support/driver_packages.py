"""Packages of Debian's, made of anything."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def control(name: str, version: str, depends: str = "") -> str:
    """Return the control file of a package."""
    needs = f"Depends: {depends}\n" if depends else ""
    maintainer = "Maintainer: nobody <nobody@invalid.invalid>\n"
    return f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n{maintainer}{needs}Description: a driver\n"


def deb(place: Path, tree: Path, name: str, version: str, depends: str = "") -> Path:
    """Pack a tree as a package of Debian's."""
    (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (tree / "DEBIAN/control").write_text(control(name, version, depends))
    made = place / f"{name}_{version}_amd64.deb"
    words = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", os.fspath(tree), os.fspath(made)]
    subprocess.run(words, check=True, capture_output=True)
    return made
