"""What a model's program needs: the files by which a later change is noticed.  Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct


class Role(StrEnum):
    """What a file is to the program that needs it."""

    PROGRAM = "program"  #: what is started, and the interpreter that it names
    SCRIPT = "script"
    MODULE = "module"  #: a Python module that is part of no installed package
    LIBRARY = "library"  #: mapped as code
    LINK = "link"  #: a directory of libraries, or in which it works, that is come to by a link
    PACKAGES = "packages"  #: a directory with installed packages
    PACKAGE = "package"  #: the record of an installed Python package
    ARGUMENT = "argument"  #: named in the arguments, or below a directory that is
    FOLDER = "folder"  #: a directory that is named in the arguments, or below one
    DATA = "data"  #: mapped, and not as code: weights
    CACHE = "cache"  #: a directory of compilers that are no kind of ours, which held files

    @property
    def is_code(self) -> bool:
        """Return whether it decides what runs, so that a change while it ran cannot be taken for an output."""
        return self not in {Role.ARGUMENT, Role.FOLDER, Role.DATA, Role.CACHE}


MEANWHILE: Final = "was changed while the run that proved it went on"
"""How a change is told of what is `Dependency.unsettled`."""


class Dependency(Struct, frozen=True):
    """One file or directory, as it was when a run proved that its model is warm."""

    role: Role
    path: str
    size: int
    modified: int  #: nanoseconds since 1970
    changed: int  #: the same, of its inode
    inode: int
    digest: str = ""  #: of its content, of a directory's names, or of where a link leads; empty: not read
    version: str = ""
    """Of a package: its name and version; of what is started, and a link: where it leads; of what the words name:
    whether it was unsettled before."""
    unsettled: bool = False  #: it changed while the run went on
