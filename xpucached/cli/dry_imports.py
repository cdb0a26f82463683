"""Door: what a model's own Python would not find, before the first run does.  Asks that Python; nothing is imported."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

import xpucached
from xpucached import mounts
from xpucached.domain.workloads import FORMS, QUANTIZERS, Loader, Named
from xpucached.printing import plain
from xpucached.processes import child

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from xpucached.api.requests import AddModel

_PROGRAM: Final = Path(xpucached.__file__).parent / "libexec" / "dry_import.py"
_PATIENCE: Final = 10.0
_PYTHON: Final = re.compile(r"(?:.*/)?python[\d.]*")
_WITH_VALUE: Final = frozenset({"-X", "-W", "--check-hash-based-pycs"})
_IPEX: Final = "intel-extension-for-pytorch"
_SHOWN: Final = 5
_FILE: Final = "--file="


class _WhatIsFound(msgspec.Struct, frozen=True):
    missing: tuple[tuple[str, str], ...]  #: what, and in which file its import stands; none: nobody's but the loader's
    versions: dict[str, str]
    built_for: dict[str, bool]  #: sorts of devices that torch says it was built for, or not
    extended: bool  #: whether its extension is imported


def notes(asked: AddModel) -> Iterator[str]:
    """Yield what will not work in the Python that a model is run with, a sentence each."""
    exercise = asked.exercise
    names = [*FORMS[exercise.loader].imports]
    names += {QUANTIZERS[one] for one in exercise.precisions if one in QUANTIZERS}
    if exercise.loader is Loader.COMMAND:
        python, place, words = _of_command(asked.command, asked.directory)
        if words and _is_absent(script := words[0].removeprefix(_FILE)):
            yield f"there is no {plain(script)}; as it is, a run fails"
            return
    else:
        python, place, words = exercise.python, "", []
        if FORMS[exercise.loader].target is Named.FUNCTION:
            # What stands above a module would be run.
            names.append(exercise.target.partition(":")[0].partition(".")[0])
            place = str(asked.directory)
    if not names and not words:
        return
    shown = plain(python)
    try:
        told = child.run(
            (python, "-B", str(_PROGRAM), f"--place={place}", f"--names={','.join(names)}", *words),
            variables=child.environment(_absolute(asked)),
            seconds=_PATIENCE,
            answering="--fd",
        )
    except (OSError, ValueError) as error:
        yield f"{shown} cannot be started: {getattr(error, 'strerror', None) or error}"
        return
    try:
        # That Python is not ours: it may say anything.
        found = msgspec.json.decode(told.output, type=_WhatIsFound)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        yield f"{shown} was asked whether it finds what the model imports, and {told.words}"
        return
    yield from _missing(found, shown, place or str(asked.directory))
    yield from _unfit(found, exercise.device.partition(":")[0])


def _absolute(asked: AddModel) -> Mapping[str, str]:
    """Return a model's variables, with the places of ``PYTHONPATH`` as they are from its directory."""
    places = (one for one in asked.variables.get("PYTHONPATH", "").split(":") if one)
    return {**asked.variables, "PYTHONPATH": ":".join(str(asked.directory / one) for one in places)}


def _of_command(command: Sequence[str], directory: Path) -> tuple[str, str, list[str]]:
    """Return the Python that a command starts, where it looks for modules first, and what it runs, as words for us.

    There are none if it starts no Python, or in a way that is not understood.
    """
    python, *rest = command
    if not _PYTHON.fullmatch(python):
        python, rest = _named_in(Path(python)), [python]
    words = iter(rest if python else ())
    for word in words:
        if word in {"-m", "-c"}:
            given = next(words, "")
            return python, str(directory), [f"--names={given.partition('.')[0]}" if word == "-m" else f"--text={given}"]
        if word in _WITH_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            script = Path(mounts.real(directory / word))
            return (
                python,
                str(script.parent),
                [f"{_FILE}{script}"] if _is_absent(str(script)) or script.is_file() else [],
            )
    return "", "", []


def _is_absent(script: str) -> bool:
    """Return whether there is no such file; what cannot be seen from here may be there."""
    try:
        os.stat(script)  # noqa: PTH116 - of any word
    except FileNotFoundError:
        return script.startswith("/")
    except (OSError, ValueError):
        pass
    return False


def _named_in(path: Path) -> str:
    """Return the Python that the first line of a program names; empty if that is another interpreter, or none."""
    try:
        # To open a pipe would wait for who writes into it.
        if not path.is_file():
            return ""
        with path.open("rb") as stream:
            begin = stream.readline(256)
    except OSError:
        return ""
    words = os.fsdecode(begin[2:]).split() if begin.startswith(b"#!") else []
    word = next((one for one in words if not one.endswith("/env") and not one.startswith("-")), "")
    return word if _PYTHON.fullmatch(word) else ""


def _missing(found: _WhatIsFound, python: str, place: str) -> Iterator[str]:
    by: dict[str, list[str]] = {}
    for name, file in found.missing:
        by.setdefault(file, []).append(name)
    for file, names in by.items():
        shown = " and ".join(map(plain, names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN))
        where = f", which {plain(file)} imports" if file else f" in {plain(place)}"
        yield (
            f"{python} does not find {shown}{where}; as it is, a run fails. "
            "Is it the Python of the program's own environment?"
        )


def _unfit(found: _WhatIsFound, kind: str) -> Iterator[str]:
    """Say which torch cannot use the device that is meant, and which extension does not load beside it."""
    torch, extension = (plain(found.versions.get(name, "")) for name in ("torch", _IPEX))
    built = found.built_for
    lacks = {"xpu": built.get("xpu") is False, "cuda": built.get("cuda") is False and not built.get("hip")}
    if lacks.get(kind) and not (kind == "xpu" and extension):
        yield f"its torch {torch} was built without {kind}, and sees no such device: install one that was built for it"
    loads = found.extended or (kind == "xpu" and not built.get("xpu"))
    if torch and extension and loads and torch.split(".")[:2] != extension.split(".")[:2]:
        yield (
            f"{_IPEX} {extension} does not load beside torch {torch}: it needs the torch of its own version, "
            "and torch from 2.5 on does without it"
        )
