"""Observe: which files a model's command names: program, script, its own modules, packages, arguments.

Nothing of the program is run or parsed: imports are found by their words, so a module that only a text names is taken
too, and one that is named by no text is not seen.  See ``docs/models.md`` for what nobody can see.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import mounts
from xpucached.domain.dependencies import Role
from xpucached.domain.workloads import FORMS, RANDOM, SHIPPED, Loader, Named
from xpucached.host import library_names, python_imports, python_packages, shell_words
from xpucached.host.digests import beginning, is_file, names, ordinary, plain, told_of_file
from xpucached.host.python_modules import MODULES, MOST, MOST_ROOTS, Modules
from xpucached.host.python_packages import PYTHON, packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xpucached.domain.models import Workload

_MOST_STARTED: Final = 100
_FOLDER: Final = 4000  # names in one directory; a larger one is not listed
_DEPTH: Final = 6
_LONGEST: Final = 4096
_UP: Final = 8  # words behind a ``cd`` that may still say where it leads
_WORKS: Final = frozenset({"--app-dir", "--chdir", "--working-directory"})
"""Options for where a program works, or a server of Python finds its module …"""
_WORKS_OF: Final = dict.fromkeys(("env", "poetry", "uv"), _WORKS | {"-C", "--directory", "--project"})
"""… and of these themselves, with which others mean something else."""


class Needs(Modules):
    """Collects what a workload needs."""

    def __init__(self, workload: Workload, variables: Mapping[str, str], before: Needs | None = None) -> None:
        super().__init__(workload, variables, before)
        self._workload = workload
        self.library_places = [os.path.join(self._directory, one) for one in library_names.given(self._variables)]
        self._in_script, self._lists, self._starts = False, True, True
        self._folders: dict[str, None] = {}  # what holds much has the room that is left
        self._scripts: deque[tuple[str, bool]] = deque()
        self._interpreters, self._started = set[str](), set[str]()
        self._gone: list[str] = []  # directories to which a shell went
        self._beside = ""  # the directory of the script whose words are followed

    def look(self) -> None:
        """Note what the workload names."""
        workload = self._workload
        exercise = workload.exercise
        words = [*workload.command] if exercise.loader is Loader.COMMAND else [exercise.python]
        program = self._which(words[0]) if words else None
        if program is not None:
            self._program(program, 0)
        self.follow(words)
        if FORMS[exercise.loader].target is Named.FUNCTION:
            self._modules([exercise.target.partition(":")[0]], [self._directory, *self._roots()])
        elif exercise.target:
            # What a loader reads it reads wherever the model works.
            self._argument(exercise.target, works_there=False)
        for text in (
            exercise.inputs if exercise.inputs not in {RANDOM, SHIPPED} else "",
            exercise.requests,
            *exercise.options.values(),
        ):
            self._argument(text)
        works = (plain(path) for path in (self._directory, *self._gone))
        for path in (*map(plain, self.library_places), *(one for one in works if one not in self._folders)):
            # Libraries, and what Pythons tell, are noted by where they lie, and programs come to them by this.
            if mounts.real(path) != path:
                self.add(path, Role.LINK)
        for path in self._folders:
            self._folder(path, 0)

    # -- what is started ----------------------------------------------------------------------------------------------

    def _which(self, word: str) -> str | None:
        if "/" in word:
            found = os.path.join(self._directory, word)
            return found if is_file(found) else None
        for place in self._variables.get("PATH", os.defpath).split(":")[: max(0, self.lookups)]:
            self.lookups -= 1
            found = os.path.join(self._directory, place, word)
            if is_file(found) and os.access(found, os.X_OK):
                return found
        return None

    def _program(self, path: str, depth: int, *, lists: bool = True) -> None:
        """Note a program, the interpreter that its first line names, and the packages beside that."""
        self.add(path, Role.PROGRAM)
        if PYTHON.match(os.path.basename(path)):
            self._packages_of(path)
        begin = beginning(path, 256)
        if not begin.startswith(b"#!") or depth > 1:
            return
        line = os.fsdecode(begin[2:].partition(b"\n")[0]).split()
        if line and os.path.basename(line[0]) == "env":
            line = shell_words.of_env(line[1:], self._variables)[1]
        found = self._which(line[0]) if line else None
        if found is not None:
            self._program(found, depth + 1)
            if PYTHON.match(os.path.basename(found)):
                self._read(path, os.path.dirname(mounts.real(path)), "")
            elif os.path.basename(found) in shell_words.SHELLS:
                self._begins(os.path.basename(found), line[1:])
                self._shell_script(path, lists=lists)
                if PYTHON.match(os.path.basename(path)):
                    for said in python_packages.chosen_by(Path(path), self._workload.directory):
                        self.add(said, Role.ARGUMENT)

    def _packages_of(self, interpreter: str) -> None:
        if interpreter not in self._interpreters:
            self._interpreters.add(interpreter)
            sites = python_packages.sites(python_packages.interpreter(Path(interpreter)), self._variables)
            for site in sites:
                self.add_packages(os.fspath(site))
            self._added += map(os.fspath, (*python_packages.added(sites), *python_packages.editable(sites)))
            for path in python_packages.activated(Path(interpreter)):
                self.add(os.fspath(path), Role.SCRIPT)

    def _pythons(self, places: Iterable[str]) -> None:
        """Note the Pythons, and their packages, of directories in which programs are looked for first."""
        for path in (os.path.join(place, name) for place in places for name in ("python3", "python")):
            if len(self._interpreters) < MOST_ROOTS and is_file(path):
                self.add(path, Role.PROGRAM)
                self._packages_of(path)

    def add_packages(self, site: str) -> None:
        """Note the packages that are installed in a directory."""
        try:
            found = names(site, MOST)
        except OSError as error:
            told_of_file(error)
            return
        self.add(site, Role.PACKAGES)
        for name in packages(found or ()).values():
            self.add(os.path.join(site, name), Role.PACKAGE)
        for name in python_packages.by_hand(found or ()):
            self.add(os.path.join(site, name), Role.MODULE)

    # -- words --------------------------------------------------------------------------------------------------------

    def follow(self, words: Sequence[str]) -> None:
        """Note what the words of a command name: interpreters, scripts, modules and files."""
        ahead = deque(words)
        after: str | None = None  # what an interpreter still waits for
        python = shell = text = False
        seen, inside, works = 0, self._in_script, _WORKS  # of what a shell runs; options for where that works
        self._search(one for one in self._roots() if one.endswith(python_imports.ARCHIVES))
        while ahead and seen < shell_words.MOST:
            word = ahead.popleft()
            seen += 1
            self._search_by(word if not self._in_script else "", self._directory)
            name = os.path.basename(word)
            works = _WORKS_OF.get(name) or (works if word == "run" or word.startswith("-") else _WORKS)
            if word.partition("=")[0] in works and self._is_told_to_work(word, ahead):
                continue
            if after is not None:
                self._given(after, word)
                python, after = python and after in python_packages.WITH_VALUE, None
                continue
            if name == "env" and not python:
                ahead = deque(itertools.chain(*shell_words.of_env(ahead, self._variables)))
            if text and not word.startswith(("-", "+")):
                text, inside = False, True
                ahead.extendleft(self._meant(one, self._directory) for one in reversed(shell_words.of_command(word)))
            elif PYTHON.match(name) or name in shell_words.SHELLS:
                python, shell, text = bool(PYTHON.match(name)), name in shell_words.SHELLS, False
                for found in filter(None, map(self._which, self._there(word) if "/" in word else [word])):
                    self._program(found, 0)
                self._begins(name, ahead)
            elif python and word.startswith("-"):
                after = word if word in python_packages.WITH_VALUE else None
                if option := python_packages.OPTION.fullmatch(word):
                    after = f"-{option[1]}"
                    ahead.extendleft([option[2]] if option[2] else [])
            elif shell and word.startswith(("-", "+")):
                text = text or ("c" in word and not word.startswith("--"))
                after = word if shell_words.VALUE.fullmatch(word) else None
            elif inside and word in {".", "source", "cd", "pushd"} and not python and ahead:
                self._shell_goes(word, ahead)
            else:
                self._files(word, python=python, shell=shell, started=not python and (inside or not shell))
                python = shell = False

    def _begins(self, shell: str, words: Iterable[str]) -> None:
        """Note what a shell reads before all else: a person's own files, and what these read, but nothing they name."""
        ahead = deque(shell_words.begins_with(shell, words, self._variables))
        while ahead and len(self._searched) < MODULES:
            path = ahead.popleft()
            if os.path.isdir(path):
                self._argument(path)
            elif path not in self._searched and os.path.isabs(path) and is_file(path):
                self._searched.add(path)
                self.add(path, Role.SCRIPT)
                beside = os.path.dirname(mounts.real(path))
                ahead += [self._meant(word, beside) for word in shell_words.sourced(self._text(path))]

    def _shell_goes(self, word: str, ahead: deque[str]) -> None:
        """Note the file that a shell reads as its own, or the directory to which it goes."""
        if word in {".", "source"}:
            for one in self._there(ahead[0]):
                self._named_script(one, python=False, lists=False)
            return
        while len(ahead) > 1 and len(ahead[0]) > 1 and ahead[0].startswith("-"):
            ahead.popleft()
        said = "$" if (word := ahead.popleft()) == "dirname" else word
        known = shell_words.expanded(said, self._variables)
        if shell_words.begins(said, self._variables):
            self._goes(known)
        elif self._beside:
            # Most often it is the script's own directory, or one from there: ``$HERE/..``, ``$(dirname "$0")/..``.
            ups = (one for one in itertools.islice(ahead, _UP) if one.startswith("/.."))
            for one in (known, *ups):
                self._goes(os.path.join(self._beside, one.lstrip("/")))

    def _goes(self, word: str) -> list[str]:
        """Note, and return, where a program works: there what it writes cannot be told from what it needs."""
        found = [plain(os.path.join(self._directory, one)) for one in self._there(word) if one]
        # All that is everybody's lies in the root.
        places = [one for one in found if one != "/" and os.path.isdir(one)]
        self._gone = list(dict.fromkeys((*self._gone, *places)))[:MOST_ROOTS]
        return places

    def _is_told_to_work(self, word: str, ahead: deque[str]) -> bool:
        """Return whether there is a directory behind such an option, or in the next word, which is taken then."""
        given = word.partition("=")[2]
        places = self._goes(given or next(iter(ahead), ""))
        if places and not given:
            ahead.popleft()
        # What it loads may stand before that, and was not found then.
        self._search(places)
        self._modules((), ())
        return bool(places)

    def _there(self, word: str) -> list[str]:
        """Return a word, and what it, or its part behind ``=``, names where a shell went, save these places."""
        name, equals, text = word.partition("=") if "=" in word else ("", "", word)
        text = text.removeprefix(f"{self._directory.rstrip('/')}/")
        if not text or text.startswith(("-", "/")) or len(text) > _LONGEST or "\0" in text:
            return [word]
        self.lookups -= len(self._gone)
        found = [word]
        for place in self._gone if self.lookups > 0 else ():
            path = plain(os.path.join(place, text))
            if os.path.lexists(path) and not f"{place}/".startswith(f"{path.rstrip('/')}/"):
                found.append(f"{name}{equals}{path}")
        return found

    def _given(self, option: str, word: str) -> None:
        """Note what an interpreter's option names."""
        if option == "-m":
            self._modules([word], [self._directory, *self._gone, *self._roots()])
        elif option == "-c":
            self._imports(word, self._directory, "")

    def _files(self, word: str, *, python: bool, shell: bool, started: bool) -> None:
        for one in self._there(word):
            self._file(one, python=python, shell=shell, started=started)

    def _file(self, word: str, *, python: bool, shell: bool, started: bool) -> None:
        """Note a file that a word names: the script of an interpreter, or what is ``started`` by its name."""
        if python or shell or word.endswith(".py"):
            self._named_script(word, python=python or word.endswith(".py"))
        if started:
            self._start(word)
        if not self._in_script and (module := python_imports.served(word)):
            # Of a script's words only those of what was seen at work tell where that is.
            self._modules([module], [self._directory, *self._gone, *self._roots()])
        self._argument(word)

    def _start(self, word: str) -> None:
        """Note what a script needs that is started by its name; of one that is another's not what directories hold."""
        sought = self._starts and self.lookups > 0 and ("/" in word or not self._in_script)
        found = self._which(word) if sought else None
        if found is None or found in self._started or len(self._started) >= _MOST_STARTED:
            return
        if os.access(found, os.X_OK) and beginning(found, 2) == b"#!":
            self._started.add(found)
            self._program(found, 0, lists=not self._in_script)

    def _named_script(self, word: str, *, python: bool, lists: bool = True) -> None:
        path = os.path.join(self._directory, word)
        inner = os.path.join(path, "__main__.py")
        if python and is_file(inner):
            self.add(inner, Role.SCRIPT)
            self._read(inner, mounts.real(path), "")
        elif is_file(path):
            self.add(path, Role.SCRIPT)
            if python:
                self._read(path, os.path.dirname(mounts.real(path)), "")
                return
            if os.path.basename(path).startswith("activate"):
                self._pythons([os.path.dirname(path)])
            self._shell_script(path, lists=lists)

    def _shell_script(self, path: str, *, lists: bool) -> None:
        if path not in self._searched and len(self._searched) < MODULES:
            self._searched.add(path)
            self._scripts.append((path, lists))
        # Not by recursion: a script may start another one, and so on.
        while self._scripts and not self._in_script:
            path, lists = self._scripts.popleft()
            beside, text = os.path.dirname(mounts.real(path)), self._text(path)
            # What it reads as its own says where modules are looked for, too.
            read = [self._meant(word, beside) for word in shell_words.sourced(text)]
            self._search_by("\n".join([*map(self._text, filter(os.path.isabs, read)), text]), beside)
            for code in shell_words.of_python(text):
                self._imports(code, self._directory, "")
            # A shell's script in the place of a Python chooses one, and the directory that it names is where these lie.
            self._in_script, self._starts = True, not PYTHON.match(os.path.basename(path))
            self._lists, self._beside = lists and self._starts, beside
            self.follow([self._meant(word, beside) for word in shell_words.of_script(text)])
            self._in_script, self._lists, self._starts, self._beside = False, True, True, ""

    def _search_by(self, text: str, beside: str) -> None:
        """Look for modules and libraries also where a text says so to programs."""
        for name, part in shell_words.searched(text, MOST_ROOTS):
            # What is not known is a directory of the script's own, if it is not what there was before.
            known = shell_words.expanded(part, self._variables) or "." * (name == "PYTHONPATH" and name not in part)
            places = self._below(known, beside) if known else ()
            if name == "PYTHONPATH":
                self._search(places)
            elif name == "PATH":
                self._pythons(places)
            elif len(self.library_places) < MOST_ROOTS:
                self.library_places += map(os.path.dirname, places) if name == "LD_PRELOAD" else places

    def _meant(self, word: str, beside: str) -> str:
        """Return the file that a word of a shell's script names, or what it gives a variable; else the word.

        What stands for a directory is most often the script's own, or the one above: ``$HERE/app.py``, or what is left
        of ``$(dirname "$0")/app.py``.
        """
        text = shell_words.value(word)
        if not (known := shell_words.expanded(text, self._variables)) or "\0" in known or self.lookups <= 0:
            return word
        self.lookups -= 3
        named = "/" in known or "." in known
        starts = text == word and (PYTHON.match(known) or known in shell_words.SHELLS)
        return next((path for path in self._below(known, beside) if named and is_file(path)), known if starts else word)

    def _below(self, text: str, beside: str) -> Iterator[str]:
        """Yield what a text of a shell's script may lead to."""
        yield os.path.join(self._directory, text)
        yield from (os.path.join(place, text.lstrip("/")) for place in (beside, os.path.dirname(beside)))

    def _argument(self, word: str, *, works_there: bool = True) -> None:
        """Note the file or directory that a word, or its part behind ``=``, names.

        Where the program itself works, what it writes cannot be told from what it needs: with ``works_there`` that
        directory is passed over.
        """
        for text in dict.fromkeys((word, word.partition("=")[2])):
            if not text or len(text) > _LONGEST or "\0" in text:
                continue
            path = plain(os.path.join(self._directory, text))
            try:
                mode = os.stat(path).st_mode
            except (OSError, ValueError):
                continue
            if not ordinary(path):
                continue
            if stat.S_ISREG(mode):
                self.add(path, Role.ARGUMENT)
            elif works_there and f"{self._directory}/".startswith(f"{path.rstrip('/')}/"):
                continue
            elif stat.S_ISDIR(mode) and self._lists:
                self._folders[path] = None

    def _folder(self, path: str, depth: int, linked: tuple[str, ...] = ()) -> None:
        """Note what a directory holds; ``linked`` are those that hold the links by which it was come to."""
        if len(self.paths) >= MOST:
            return
        try:
            found = names(path, _FOLDER)
        except OSError as error:
            told_of_file(error)
            return
        self.add(path, Role.FOLDER)
        for name, folder in found or ():
            inner = os.path.join(path, name)
            if folder and depth < _DEPTH and not name.startswith(".") and name != "__pycache__":
                self._folder(inner, depth + 1, linked)
            elif not folder and ordinary(inner):
                if is_file(inner):
                    self.add(inner, Role.ARGUMENT)
                elif depth < _DEPTH and not name.startswith(".") and os.path.isdir(inner):
                    # Not back to where it is linked from, nor to where the program works.
                    real = f"{mounts.real(inner).rstrip('/')}/"
                    here = (*linked, mounts.real(path))
                    if not any(f"{one}/".startswith(real) for one in (*here, mounts.real(self._directory))):
                        self._folder(inner, depth + 1, here)
