"""Write the shells' completions, from the parsers of both commands.

The build of a wheel does so, and `tools/manual.py`.  Needs shtab; the program itself never does.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import TYPE_CHECKING, Final

import shtab

from xpucached.cli import arguments
from xpucached.daemon import main as daemon
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import EntryState
from xpucached.domain.workloads import PRECISIONS
from xpucached.kinds.table import defects

if TYPE_CHECKING:
    from pathlib import Path

COMPLETIONS: Final = {
    "bash": "bash/{program}",
    "zsh": "zsh/_{program}",
    "fish": "fish/{program}.fish",
}
_FILES: Final = frozenset({"config", "cache", "inputs", "python", "socket", "target"})
_FOLDERS: Final = frozenset({"directory", "driver_cache", "driver_root", "into", "root"})
_WORDS: Final = {
    "defect": [one.code for one in defects()],
    "precision": [*PRECISIONS],
    "reason": [*map(str, EvictReason)],
    "state": [*map(str, EntryState)],
}


def _lines_of(command: str) -> dict[str, str | dict[str, str]]:
    """Return what offers the lines that a command prints, each as one word that no shell takes for more than a name.

    What prints them quotes whoever named a store.  `shtab.cmd` hands lines to ``compgen -W`` and to zsh's
    ``_arguments``, which both run what stands in ``$( )`` there.
    """
    name = f"_xpucached_lines_{hashlib.sha256(command.encode()).hexdigest()[:8]}"
    bash = f"""
{name}() {{
  local one
  while IFS= read -r one; do
    printf -v one %q "$one"
    if [[ $one == "$1"* ]]; then printf '%s\\n' "$one"; fi
  done < <({command})
}}"""
    zsh = f"""
{name}() {{
  local -a found
  found=(${{(f)"$({command})"}})
  compadd "$@" -a found
}}"""
    # A fish takes what a command prints for words as they are.
    return {"bash": name, "zsh": name, "fish": f"({command})", "preamble": {"bash": bash, "zsh": zsh}}


# What only the daemon knows is asked of it; without one nothing is offered.
_MODELS: Final = _lines_of("xpucachectl -q model list 2>/dev/null")
_ENTRIES: Final = _lines_of("xpucachectl -q ls --limit=1000 2>/dev/null")
_STORES: Final = _lines_of("xpucachectl -q stores 2>/dev/null")


def _of_devices(key: str, first: str = "") -> dict[str, str | dict[str, str]]:
    """Return what offers all values of a key in what is known of devices; JSON is asked for, as that is quickest."""
    values = f"grep -o '.{key}.:.[^,}}]*' | cut -d: -f2- | tr -d '\\042' | sort -u"
    return _lines_of(f"{first}xpucachectl --json devices 2>/dev/null | {values}")


_ASKED: Final = {
    "architecture": _of_devices("architecture"),
    "driver": _of_devices("toolchain", "echo current; "),
    "store": _STORES,
    "stores": _STORES,
    "cancel": _lines_of("xpucachectl -q jobs 2>/dev/null"),
    "id": _lines_of("xpucachectl -q jobs 2>/dev/null"),
    "model": _MODELS,
    "models": _MODELS,
    "name": _MODELS,
    "of": _lines_of("getent passwd 2>/dev/null | cut -d: -f1"),
    "ref": _ENTRIES,
    "refs": _ENTRIES,
}
_IN_TRASH: Final = _lines_of("xpucachectl -q trash list 2>/dev/null")
_LISTED: Final = {"model list": _MODELS, "stores": _STORES, "trash list": _IN_TRASH}


def completions(shell: str) -> dict[str, str]:
    """Write the completions of both commands for a shell, by the names of their files."""
    found = {}
    for parser in (daemon.parser(), arguments._parser()):  # noqa: SLF001 - see above
        for one in [parser, *below(parser)]:
            for action in one._actions:  # noqa: SLF001 - see above
                _offer(one, action)
        found[COMPLETIONS[shell].format(program=parser.prog)] = shtab.complete(parser, shell)
    return found


def _offer(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
    if not action.metavar or action.choices:
        return
    if action.dest in _WORDS:
        action.choices = _WORDS[action.dest]
    elif action.dest in _FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]  # how shtab is told
    elif action.dest in _FOLDERS:
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # the same
    elif action.metavar == "GPU":
        action.complete = _ASKED["architecture"]  # type: ignore[attr-defined]  # the same
    elif action.dest == "store" and parser.prog.endswith(" model add"):
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # the same
    elif action.dest == "patterns" and parser.prog.endswith((" list", " stores")):
        action.complete = _LISTED[parser.prog.split(maxsplit=1)[1]]  # type: ignore[attr-defined]  # the same
    elif action.dest == "refs" and " trash " in parser.prog:
        action.complete = _IN_TRASH  # type: ignore[attr-defined]  # the same
    elif action.dest in _ASKED:
        action.complete = _ASKED[action.dest]  # type: ignore[attr-defined]  # the same


def write(target: Path) -> None:
    """Write the completions of both commands for all shells below a directory."""
    for shell in COMPLETIONS:
        for name, text in completions(shell).items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def below(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return all parsers below one."""
    found: list[argparse.ArgumentParser] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to see what was declared
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - the same
            for child in action.choices.values():
                found += [child, *below(child)]
    return found
