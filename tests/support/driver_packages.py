"""Packages of Debian's, made of anything."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO


def control(name: str, version: str, depends: str = "") -> str:
    """Return the control file of a package."""
    needs = f"Depends: {depends}\n" if depends else ""
    maintainer = "Maintainer: nobody <nobody@invalid.invalid>\n"
    return f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n{maintainer}{needs}Description: a driver\n"


def deb(place: Path, tree: Path, name: str, version: str, depends: str = "") -> Path:
    """Pack a tree as a package of Debian's."""
    (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (tree / "DEBIAN").chmod(0o755)  # dpkg-deb takes no other, as a umask of 077 leaves it
    (tree / "DEBIAN/control").write_text(control(name, version, depends))
    made = place / f"{name}_{version}_amd64.deb"
    words = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", os.fspath(tree), os.fspath(made)]
    subprocess.run(words, check=True, capture_output=True)
    return made


def deb_of_files(
    place: Path, name: str, version: str, files: Mapping[str, Path | str | bytes], triggers: str = ""
) -> Path:
    """Pack files where they lie, for large ones that nobody wants to copy first.

    ``files`` names, for each path in the package, the file that holds what shall lie there, where a link there leads,
    or what it holds.
    """
    made = place / f"{name}_{version}_amd64.deb"
    about = {"control": control(name, version).encode()} | ({"triggers": triggers.encode()} if triggers else {})
    with made.open("wb") as file:
        file.write(b"!<arch>\n")
        for member, content in (("debian-binary", b"2.0\n"), ("control.tar", about), ("data.tar", files)):
            head = file.tell()
            file.seek(60, os.SEEK_CUR)
            if isinstance(content, bytes):
                file.write(content)
            else:
                _tar(file, content)
            end = file.tell()
            file.seek(head)
            file.write(f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{end - head - 60:<10}`\n".encode())
            file.seek(end)
    return made


def _tar(file: IO[bytes], files: Mapping[str, Path | str | bytes]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        # dpkg makes no folder that it is not told of.
        folders = {str(folder) for path in files for folder in PurePosixPath(path).parents} - {"."}
        for folder in sorted(folders):
            entry = tarfile.TarInfo(f"./{folder}")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path, what in files.items():
            entry = tarfile.TarInfo(f"./{path}")
            entry.mtime = what.stat().st_mtime if isinstance(what, Path) else time.time()
            if isinstance(what, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, what
                tar.addfile(entry)
            elif isinstance(what, bytes):
                entry.size = len(what)
                tar.addfile(entry, io.BytesIO(what))
            else:
                entry.size = what.stat().st_size
                with what.open("rb") as source:
                    tar.addfile(entry, source)
