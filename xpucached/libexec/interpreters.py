"""Which interpreters a model's process tree runs, with what words, and where: read from /proc, again and again.

A shell's script may compute where it goes, and what it starts there with which variables: this is what came of that.
So are variables of any of its processes by which a cache leaves out programs, and says nothing of it, and where any
of them looks for programs and libraries, or was come to itself.
"""

from __future__ import annotations

import contextlib
import json
import os

# Shells are among them, because they read files as their own.
_NAMES = {"python", "pypy", "sh", "ash", "bash", "dash", "fish", "ksh", "rbash", "zsh"}
_PYTHONS = {"python", "pypy"}
_LEADING = {
    *("HOME", "PATH", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTHONUSERBASE"),
    *("BASH_ENV", "ENV", "XDG_CONFIG_HOME", "ZDOTDIR"),
}  # variables that lead to files
_SEARCHED = ("LD_LIBRARY_PATH", "PATH")  # those that say where libraries and programs are looked for
_MOST_PLACES = 256  # directories that are reported
_LONGEST_PLACE = 256
BOUNDS = {
    *("SYCL_CACHE_MIN_DEVICE_IMAGE_SIZE", "SYCL_CACHE_MAX_DEVICE_IMAGE_SIZE"),
    *("SYCL_CONFIG_FILE_NAME", "INTEL_ENABLE_OFFLOAD_ANNOTATIONS", "NEO_CACHE_PERSISTENT"),
}  # what kinds of caches go by (their `discovery.bounds`)
_MOST_BOUNDS = 16  # of these, with their values, that are reported
_LONGEST_BOUND = 4096
_MOST = 64  # interpreters that are reported
_WORDS = 16 << 10  # bytes of one's words, and …
_VARIABLES = 256 << 10  # … variables that are read
_TEXT = 128 << 10  # bytes of all of them, as JSON; whoever reads the report keeps a mebibyte of it
_SHARE = 4  # shells may take one part in so many: they may be many, and short
_WITH_VALUE = ("o", "O")  # how a shell's options end whose value is the next word
_GONE = " (deleted)"
_OURS = os.path.dirname(os.path.realpath(__file__)) + "/"  # noqa: PTH120 - text beside text


class Interpreters:
    """What was seen of them, each once."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, object]] = {}  # by what they are, as JSON
        self._text = 0
        self._scripts: set[tuple[str, str]] = set()  # of these, each with the directory
        self._bounds: set[tuple[str, str]] = set()
        self._places: dict[str, None] = {}

    def look(self, pid: int) -> None:
        """Note a process, if it is an interpreter, by what its cache leaves out programs, and what leads it."""
        with contextlib.suppress(OSError, ValueError):
            variables = _variables(pid)
            bounds = {one for one in variables if one[0] in BOUNDS and len(one[1]) <= _LONGEST_BOUND}
            self._bounds.update(sorted(bounds)[: _MOST_BOUNDS - len(self._bounds)])
            name = os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(_GONE))  # noqa: PTH115, PTH119 - without pathlib it starts faster
            kind = name.rstrip("t").rstrip(".0123456789")
            directory = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115 - as above
            self._note_places(pid, directory, variables)
            if kind in _NAMES and not directory.endswith(_GONE):
                self._note(pid, directory, variables, python=kind in _PYTHONS)

    def _note_places(self, pid: int, directory: str, variables: list[tuple[str, str]]) -> None:
        said = dict(variables)
        began_as = map(os.fsdecode, _read(pid, "cmdline", _WORDS)[:1])
        files = (*began_as, *said.get("LD_PRELOAD", "").replace(":", " ").split())
        places = [os.path.dirname(one) for one in files]  # noqa: PTH120 - text beside text
        places += [one for name in _SEARCHED for one in said.get(name, "").split(":")]
        for one in filter(None, places):
            place = os.path.join(directory, one)  # noqa: PTH118 - as above
            if len(place) <= _LONGEST_PLACE and len(self._places) < _MOST_PLACES:
                self._places[place] = None

    def _note(self, pid: int, directory: str, variables: list[tuple[str, str]], *, python: bool) -> None:
        words = [os.fsdecode(word) for word in _read(pid, "cmdline", _WORDS)]
        # What of ours runs a model is no part of it: a new version of xpucached is no reason to prove it anew.
        if any(word.startswith(_OURS) for word in words):
            return
        leading = {name: value for name, value in variables if name in _LEADING}
        # The same with other arguments, and what has no script, must not take the place of other scripts.
        script = directory, _script(words[1:], python=python)
        share = 1 if python else _SHARE
        if script in self._scripts or not script[1]:
            share *= _SHARE
        one: dict[str, object] = {"directory": directory, "words": words, "variables": leading}
        text = json.dumps(one)
        enough = len(self._found) >= _MOST // share or self._text + len(text) > _TEXT // share
        if words and text not in self._found and not enough:
            self._found[text] = one
            self._scripts.add(script)
            self._text += len(text) + 2

    def report(self) -> list[dict[str, object]]:
        """Return them, in the order in which they were seen."""
        return list(self._found.values())

    def places(self) -> list[str]:
        """Return the directories in which its processes look for programs and libraries, or were come to themselves."""
        return list(self._places)

    def bounds(self) -> list[tuple[str, str]]:
        """Return by which variables caches of its processes leave out programs."""
        return sorted(self._bounds)


def _script(words: list[str], *, python: bool) -> str:
    """Return the script, or the module, that an interpreter runs; empty if it runs a text (``-c``, ``-lc``)."""
    rest = iter(words)
    for word in rest:
        if not word.startswith(("-", "+")):
            return word
        if word.startswith("--"):
            if python and word == "--check-hash-based-pycs":
                next(rest, "")
        elif python:
            # The first of these has all that follows in its word for a value, or else the next word.
            option = next((letter for letter in word if letter in "cmWX"), "")
            value = (word.partition(option)[2] or next(rest, "")) if option else ""
            if option in {"c", "m"}:
                return value if option == "m" else ""
        elif "c" in word:
            return ""
        elif word.endswith(_WITH_VALUE):
            next(rest, "")
    return ""


def _variables(pid: int) -> list[tuple[str, str]]:
    """Return the variables with which a process began."""
    parts = (os.fsdecode(one).partition("=") for one in _read(pid, "environ", _VARIABLES))
    return [(name, value) for name, _, value in parts]


def _read(pid: int, name: str, most: int) -> list[bytes]:
    """Return what stands between null characters in a file of a process; what was cut off is left out."""
    with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - many of them
        return file.read(most).split(b"\0")[:-1]
