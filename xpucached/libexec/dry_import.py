"""Look: whether a model's own Python finds what the model would import.  Nothing of it is imported or run.

It is run by that Python, from 3.9 on, and answers one JSON object on the descriptor that ``--fd`` names:
``{"missing": [[name, the file that imports it], …], "versions": {package: version}, …}``.  Of files only
those imports are followed that happen whatever comes: not in a function, a ``try`` or an ``if``.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

_FILES = 200  # that are read in all
_LARGEST = 1 << 20
_MAIN = "__name__ == '__main__'"
_ELSEWHERE = ("sys.path", "addsitedir")  # how programs say where modules are
_LIBRARIES = ("torch", "intel-extension-for-pytorch")
_USING = {"torch", "intel_extension_for_pytorch"}
_BUILT_FOR = re.compile(r"^(xpu|cuda|hip)\b[^=\n]*= *(.*)$", re.MULTILINE)


def main() -> None:
    """Answer for the names and the file, or the text, that the arguments give."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", default="")  # where modules are looked for first; empty: nowhere
    parser.add_argument("--file")
    parser.add_argument("--text")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--names", default="")
    options = parser.parse_args()
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # that of this file
    warnings.simplefilter("ignore")  # to say one loads modules
    seen: set[str] = set()
    # As when the program starts.  Nothing is loaded meanwhile: what lies there has names as modules of Python's own.
    sys.path[:0] = [options.place] * bool(options.place)
    missing = _missing(options, seen)
    del sys.path[: bool(options.place)]
    told = {
        "missing": missing,
        "versions": _versions() if seen.intersection(_USING) else {},
        "built_for": _built_for() if "torch" in seen else {},
        "extended": "intel_extension_for_pytorch" in seen,
    }
    os.write(options.fd, json.dumps(told).encode("ascii"))


def _missing(options: argparse.Namespace, seen: set[str]) -> list[tuple[str, str]]:
    """Return what is not found, and by which file it is imported; note in ``seen`` all that is imported."""
    named = [name for name in options.names.split(",") if name]
    texts = [options.text or "", _read(options.file) if options.file else ""]
    waiting = [(name, "") for name in (*named, *_imports(texts[0], main=True))]
    waiting += [(name, options.file) for name in _imports(texts[1], main=True)]
    missing: list[tuple[str, str]] = []
    read = 0
    while waiting:
        name, by = waiting.pop(0)
        if name in seen or name in sys.builtin_module_names:
            continue
        seen.add(name)
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            continue  # what it is cannot be told without running something
        if found is None:
            missing.append((name, by))
        elif found.origin is not None and options.place and read < _FILES and _is_own(found.origin, options.place):
            read += 1
            texts.append(_read(found.origin))
            waiting += [(one, found.origin) for one in _imports(texts[-1], main=False)]
    # What is found where they say themselves that modules are looked for, only running them tells.
    elsewhere = any(word in text for text in texts for word in _ELSEWHERE)
    return [one for one in missing if one[0] in named] if elsewhere else missing


def _is_own(file: str, place: str) -> bool:
    below = Path(os.path.relpath(os.path.realpath(file), os.path.realpath(place))).parts
    return file.endswith(".py") and not {os.pardir, "site-packages", "dist-packages"}.intersection(below)


def _read(file: str) -> str:
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as stream:
            return stream.read(_LARGEST)
    except OSError:
        return ""


def _imports(text: str, *, main: bool) -> Iterator[str]:
    """Yield the first names of all modules that a text imports whatever comes; with ``main`` it is what is started."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    while body:
        one = body.pop(0)
        if isinstance(one, ast.Import):
            yield from (name.name.partition(".")[0] for name in one.names)
        elif isinstance(one, ast.ImportFrom) and not one.level and one.module:
            yield one.module.partition(".")[0]
        elif isinstance(one, ast.With) or (main and isinstance(one, ast.If) and ast.unparse(one.test) == _MAIN):
            body[:0] = one.body


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
    return found


def _built_for() -> dict[str, bool]:
    """Return for each sort of device whether torch was built for it, as far as it says."""
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError, AttributeError):
        return {}
    if found is None or found.origin is None:
        return {}
    text = _read(str(Path(found.origin).with_name("version.py")))
    return {name: value.strip() != "None" for name, value in _BUILT_FOR.findall(text)}


if __name__ == "__main__":
    main()
