"""Which files of a folder, a wheel or an environment can bring device code; the walk is bounded and follows no link."""

from __future__ import annotations

import itertools
import os
import stat
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached.errors import NotFound
from xpucached.inspection.content import Content, OpenFile, Unreadable
from xpucached.inspection.zips import ZipArchive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NO_CODE: Final = "neither a library, a program, device code nor an archive, so there is nothing to tell of it"

COPIES: Final = "copies of what was read"
_MOST_FILES: Final = 1 << 21
_MOST_NOTES: Final = 100
_MOST_PACKAGES: Final = 1 << 16
_LONGEST_PACKAGE: Final = 255
"""Characters of a folder's name; an archive that is nearly all hole could have gigabytes of them."""
_METADATA: Final = ".dist-info"
_DEEPEST: Final = 64
_SMALLEST: Final = 128
_ZIP: Final = b"PK\3\4"
_MAGICS: Final = (
    b"\x7fELF",
    b"!<arch>\n",
    b"\x03\x02\x23\x07",
    b"CTNI",
    b"INTC",
    b"__CLANG_OFFLOAD_BUNDLE__",
    b"\x10\xff\x10\xad",
    b"\x28\xb5\x2f\xfd",
)
"""How files begin that may bring device code."""
_TEXTS: Final = (
    ".py",
    ".pyc",
    ".pyi",
    ".h",
    ".hpp",
    ".hxx",
    ".c",
    ".cpp",
    ".txt",
    ".md",
    ".rst",
    ".json",
    ".cmake",
    ".yaml",
    ".yml",
    ".toml",
    ".html",
    ".js",
    ".css",
)
"""Names of files that are not even opened."""


class Found(Struct, frozen=True):
    """A file that may bring device code."""

    name: str
    content: Content
    check: Callable[[], None]  #: raises `Unreadable` if it changed since it was opened


class SearchedFiles:
    """What is looked through, and what was left out."""

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self.unread = False
        self.opened = 0
        self.packages: dict[str, str] = {}  #: what is installed there, and its version
        self._tell = tell

    def note(self, name: str, wrong: Unreadable) -> None:
        """Note that a file could not be read, and why."""
        self.unread = True
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(f"{name}: {wrong}")
        else:
            self.skipped["more that cannot be read"] += 1

    def contents(self, path: Path) -> Iterator[Found]:
        """Yield each file that may bring device code.  Raises `NotFound`."""
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            raise NotFound(f"{path}: {getattr(error, 'strerror', None) or error}") from error
        if stat.S_ISDIR(status.st_mode):
            yield from self._folder(path)
        else:
            yield from self._file(path, path.name, alone=True)

    def _note_package(self, folder: str) -> None:
        if folder.endswith(_METADATA) and len(folder) <= _LONGEST_PACKAGE and len(self.packages) < _MOST_PACKAGES:
            name, _, version = folder.removesuffix(_METADATA).partition("-")
            self.packages[name.lower().replace("-", "_")] = version

    def _folder(self, root: Path) -> Iterator[Found]:
        # Two names of one file, or two ways into one folder, are one; links are not followed, so there is no loop.
        seen: set[tuple[int, int]] = set()
        waiting = [(str(root), 0)]
        files = 0
        while waiting:
            folder, depth = waiting.pop()
            try:
                with os.scandir(folder) as rows:
                    some = itertools.islice(rows, _MOST_FILES + 1 - files)
                    entries = sorted(some, key=lambda one: one.name)
            except OSError:
                self.skipped["folders that cannot be read"] += 1
                continue
            below: list[tuple[str, int]] = []
            for entry in entries:
                files += 1
                if files > _MOST_FILES:
                    self.notes.append(f"only the first {_MOST_FILES} files were looked at")
                    return
                try:
                    if entry.is_dir(follow_symlinks=False):
                        self._note_package(entry.name)
                        below.append((entry.path, depth + 1))
                    elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(_TEXTS):
                        status = entry.stat(follow_symlinks=False)
                        identity = (status.st_dev, status.st_ino)
                        if status.st_size >= _SMALLEST and identity not in seen:
                            seen.add(identity)
                            yield from self._file(Path(entry.path), os.path.relpath(entry.path, root), alone=False)
                except OSError:
                    self.skipped["files that cannot be read"] += 1
            if depth < _DEEPEST:
                waiting += reversed(below)
            elif below:
                self.skipped["folders that are too deep"] += len(below)

    def _file(self, path: Path, name: str, *, alone: bool) -> Iterator[Found]:
        try:
            with OpenFile(path) as opened:
                head = opened.content.read(0, 64)
                if head.startswith(_ZIP):
                    # Packages that lie about in an environment are no part of it.
                    if alone:
                        yield from self._archive(opened)
                elif head.startswith(_MAGICS):
                    self.opened += 1
                    self._tell(name)
                    yield Found(name, opened.content, opened.check)
                elif alone:
                    raise NotFound(f"{path}: {_NO_CODE}", hint="name a library, a program, a wheel or a folder")
        except Unreadable as error:
            if alone:
                raise NotFound(f"{path}: {error}") from error
            self.note(name, error)

    def _archive(self, opened: OpenFile) -> Iterator[Found]:
        archive = ZipArchive(opened.content)
        # A wheel holds no links: a library with three names is in it three times.
        seen: set[tuple[int, int]] = set()
        for member in archive.members():
            self._note_package(member.name.partition("/")[0])
            if member.name.endswith((*_TEXTS, "/")) or member.size < _SMALLEST:
                continue
            if (member.checksum, member.size) in seen:
                self.skipped[COPIES] += 1
                continue
            try:
                head = archive.beginning(member)
                if head.startswith(_ZIP):
                    self.skipped["archives inside the archive"] += 1
                elif head.startswith(_MAGICS):
                    seen.add((member.checksum, member.size))
                    self.opened += 1
                    self._tell(member.name)
                    with archive.unpack(member) as content:
                        yield Found(member.name, content, opened.check)
            except Unreadable as error:
                self.note(member.name, error)
