"""Observe: which files what Python imports comes from, from file to file, and which places those add to the search.

Nothing is run or parsed: see `python_imports`.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from typing import TYPE_CHECKING, Final

from xpucached.domain.dependencies import Role
from xpucached.host import python_imports
from xpucached.host.digests import beginning, is_file, plain
from xpucached.printing import encodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xpucached.domain.models import Workload

MOST: Final = 10_000
"""Files that are noted of one model."""

MOST_ROOTS: Final = 64
"""Directories of ``PYTHONPATH``, of libraries, and those that installed packages add."""
MODULES: Final = 2000
"""Files that are searched."""
_TEXT: Final = 1 << 20
"""Bytes of a script that are searched for imports."""
_TEXTS: Final = 32 << 20
"""Bytes that are searched in all."""
_MOST_IMPORTS: Final = 20_000
"""Names that the imports of one file are followed for."""
_MOST_LOOKUPS: Final = 500_000
"""Places in all at which modules are looked for."""


class Modules:
    """Collects paths, each with its first role, up to a number; within what was left of the bounds ``before``."""

    def __init__(self, workload: Workload, variables: Mapping[str, str], before: Modules | None = None) -> None:
        self.paths: dict[str, Role] = {}
        self._variables = {**variables, **workload.variables}
        self._directory = os.fspath(workload.directory)
        self._searched: set[str] = set()
        self._waiting: deque[tuple[str, str, str]] = deque()
        self._busy = False
        self._added: list[str] = []  # what interpreters search for modules besides their packages
        self._missing, self._tried = dict[str, None](), 0  # modules that so many of those, and others, do not have
        self.left: int = before.left if before is not None else _TEXTS
        self.lookups: int = before.lookups if before is not None else _MOST_LOOKUPS

    def add(self, path: str, role: Role) -> None:
        """Note a path, unless there are enough."""
        # What is no Unicode cannot be written down.  Spaces of other scripts, and what nobody can print, can.
        if len(self.paths) < MOST and encodable(path) == path:
            self.paths.setdefault(plain(path), role)

    def _roots(self) -> list[str]:
        given = (*self._variables.get("PYTHONPATH", "").split(":"), *self._added)
        roots = (os.path.normpath(os.path.join(self._directory, one)) for one in given if one)
        return list(itertools.islice(dict.fromkeys(roots), MOST_ROOTS))

    def _search(self, places: Iterable[str]) -> None:
        """Look for modules in these directories, too."""
        for place in map(os.path.normpath, places):
            self.lookups -= 1
            new = place not in self._added and len(self._added) < MOST_ROOTS
            if new and self.lookups > 0 and os.path.isdir(place):
                self._added.append(place)
            elif self.lookups > 0 and place.endswith(python_imports.ARCHIVES) and is_file(place):
                self.add(place, Role.MODULE)

    def _read(self, path: str, root: str, package: str) -> None:
        """Search a file for imports; ``package`` is what it is a module of, below ``root``."""
        if path not in self._searched and len(self._searched) < MODULES:
            self._searched.add(path)
            self._imports(self._text(path), root, package, path)

    def _text(self, path: str) -> str:
        content = beginning(path, min(_TEXT, self.left))
        self.left -= len(content)
        return content.decode("utf-8-sig", "replace")

    def _imports(self, text: str, root: str, package: str, path: str = "") -> None:
        self._search(python_imports.searched(text, path, self._directory, self._variables))
        for script in python_imports.scripts(text, path, self._directory):
            self.lookups -= 1
            if self.lookups > 0 and is_file(script):
                self.add(script, Role.MODULE)
                self._waiting.append((script, os.path.dirname(script), ""))
        roots = [root, *(one for one in self._roots() if one != root)]
        self._modules(itertools.islice(python_imports.imported(text, package), _MOST_IMPORTS), roots)

    def _modules(self, wanted: Iterable[str], roots: Sequence[str]) -> None:
        """Note the files of modules that lie below these directories, and what they import themselves."""
        for name in dict.fromkeys(wanted):
            parts = name.split(".")
            if not all(python_imports.NAME.match(part) for part in parts):
                continue
            for root in roots[: max(0, self.lookups)]:
                self.lookups -= 1
                files = list(python_imports.module_files(root, parts))
                for path, package in files:
                    self.add(path, Role.MODULE)
                    # Not by recursion: a chain of imports may be as long as somebody likes.
                    self._waiting.append((path, root, package))
                if files:
                    break
            else:
                self._missing |= {name: None} if len(self._missing) < _MOST_IMPORTS else {}
        if not self._busy:
            self._busy = True
            while self._waiting or self._tried < len(self._added):
                if self._waiting:
                    self._read(*self._waiting.popleft())
                else:
                    # One file may say where modules are that another one imports: ``import _paths``, ``import net``.
                    places, self._tried = self._added[self._tried :], len(self._added)
                    missing, self._missing = self._missing, {}
                    self._modules(missing, places)
            self._busy = False
