"""Observe: what a Python file imports, by its words, and where it lets modules be looked for."""

from __future__ import annotations

import itertools
import os
import re
from typing import TYPE_CHECKING, Final

from xpucached import mounts
from xpucached.host.digests import is_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NAME: Final = re.compile(r"[^\W\d]\w*\Z")

_IMPORT: Final = re.compile(r"(?:^|[:;])[ \t]*import[ \t]+([^\n#;]+)", re.MULTILINE)
_FROM: Final = re.compile(
    r"(?:^|[:;])[ \t]*from[ \t]+([.\w]{1,500})[ \t]+import[ \t]*(\([^)]{0,2000}\)|[^\n;]+)", re.MULTILINE
)
_COMMENT: Final = re.compile(r"""("[^"\n]*"|'[^'\n]*')|#[^\n]*""")
"""Or a text in quotes, in which such a sign begins none."""
_BY_NAME: Final = re.compile(
    r"(?:import_module|__import__)\(\s*[\"']([\w.]+)[\"'](?:,\s*(?:package=)?[\"']([\w.]+)[\"'])?"
)
_MOST_LISTED: Final = 1000
"""Names of one import: a line of a megabyte must not become gigabytes of names."""

_SERVED: Final = re.compile(r"(?:[-\w]*=)?([^\W\d][\w.]*):[^\W\d][\w.]*(?:\(.*)?\Z", re.DOTALL)
"""What servers are told to load, ``main:app`` or ``main:make()``, and no port or number of a device."""
ARCHIVES: Final = (".zip", ".egg", ".whl", ".pyz")
"""How files end that may stand where directories of modules do."""

_ADDS: Final = ("sys.path", "addsitedir")
_LITERAL: Final = re.compile(r"[\"']([^\"'\n\0]{1,200})[\"']")
_SCRIPT: Final = re.compile(r"[\"']([^\"'\n\0]{1,200}\.py)[\"']")
_MOST_LITERALS: Final = 100
_MOST_GIVEN: Final = 8
"""Variables of one text that may say where modules are."""
_PLACED: Final = re.compile(r"\A\{[^{}]*\}/+")
"""How a text in quotes may begin that is completed as it runs."""
_ABOVE: Final = 3
"""Directories above a file that may be added to where modules are looked for."""


def imported(text: str, package: str) -> Iterator[str]:
    """Yield the names of modules that a text imports; ``package`` is what it is a module of."""
    text = text.replace("\\\n", " ")
    for match in _IMPORT.finditer(text):
        yield from (part.split()[0] for part in match[1].split(",") if part.split())
    yield from (_absolute(match[1], match[2] or package) for match in _BY_NAME.finditer(text))
    for match in _FROM.finditer(_COMMENT.sub(r"\1", text)):
        module = _absolute(match[1], package)
        listed = match[2].strip("()").split(",", _MOST_LISTED)[:_MOST_LISTED]
        inner = [part.split()[0] for part in listed if part.split()]
        yield module
        yield from (f"{module}.{name}" if module else name for name in inner if NAME.match(name))


def served(word: str) -> str:
    """Return the module that a word tells a server to load (``uvicorn main:app``); empty if it tells none."""
    match = _SERVED.match(word)
    return match[1] if match is not None else ""


def _absolute(module: str, package: str) -> str:
    """Return a module's name from the top, if ``package`` imports it."""
    dots = len(module) - len(module.lstrip("."))
    if not dots:
        return module
    base = package.split(".") if package else []
    return ".".join(filter(None, [*base[: len(base) - dots + 1], module[dots:]]))


def module_files(root: str, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that importing a module loads, each with the package that it is in."""
    place = root
    for number, part in enumerate(parts):
        package = ".".join(parts[: number + 1])
        inside = os.path.join(place, part)
        if is_file(f"{inside}.py"):
            yield f"{inside}.py", ".".join(parts[:number])
            return
        if not os.path.isdir(inside):
            return
        if is_file(f"{inside}/__init__.py"):
            yield f"{inside}/__init__.py", package
        if number == len(parts) - 1 and is_file(f"{inside}/__main__.py"):
            yield f"{inside}/__main__.py", package
        place = inside


def scripts(text: str, path: str, directory: str) -> Iterator[str]:
    """Yield where files may be that a text runs or loads by name: beside its own, or in the ``directory``."""
    for match in itertools.islice(_SCRIPT.finditer(text), _MOST_LITERALS):
        for place in dict.fromkeys((os.path.dirname(path) or directory, directory)):
            yield os.path.normpath(os.path.join(place, match[1]))


def searched(text: str, path: str, directory: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the places that a text may add to those in which modules are looked for.

    They are those above where its file lies, if it has one, and those that its words name from there, from the
    ``directory`` in which the program works, or from where one of its ``variables`` leads that it names.
    """
    if not any(word in text for word in _ADDS):
        return
    words = [match[1] for match in itertools.islice(_LITERAL.finditer(text), _MOST_LITERALS)]
    given = [variables[one] for one in dict.fromkeys(words) if variables.get(one, "").startswith("/")][:_MOST_GIVEN]
    above = [os.path.dirname(mounts.real(path)) if path else directory]
    for _ in range(_ABOVE if path else 0):
        above.append(os.path.dirname(above[-1]))
    places = [*above[1:], *given]
    for word in words:
        home = variables.get("HOME", "") if word.startswith("~/") else ""
        meant = f"{home}{word[1:]}" if home else _PLACED.sub("", word)
        places += (os.path.normpath(os.path.join(place, meant)) for place in (*above, directory, *given))
    yield from (place for place in dict.fromkeys(places) if place.count("/") > 1)
