"""Door: what people type who know other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

HINTS: Final = {
    **dict.fromkeys(("list", "images"), "entries: xpucachectl ls; models: xpucachectl model list"),
    **dict.fromkeys(("rm", "remove", "delete"), "xpucachectl model remove NAME, or of entries: xpucachectl evict REF"),
    **dict.fromkeys(
        ("prune", "gc", "clean", "cleanup", "clear", "purge"),
        "xpucachectl evict, and then: xpucachectl trash empty",
    ),
    **dict.fromkeys(("add", "register"), "xpucachectl model add NAME -- COMMAND"),
    **dict.fromkeys(("warm", "warmup", "start", "pull"), "xpucachectl prewarm NAME"),
    **dict.fromkeys(("logs", "log", "history"), "xpucachectl events; of a model: xpucachectl model show NAME"),
    "ps": "xpucachectl jobs",
    **dict.fromkeys(("du", "size"), "xpucachectl df"),
    **dict.fromkeys(("check", "health"), "xpucachectl status --check"),
    **dict.fromkeys(("repair", "fix", "fsck"), "xpucachectl verify --fix"),
    **dict.fromkeys(("rescan", "refresh", "update"), "xpucachectl scan"),
    **dict.fromkeys(("exec", "launch"), "xpucachectl run MODEL -- COMMAND"),
    **dict.fromkeys(("strace", "profile", "time"), "xpucachectl trace -- COMMAND"),
}
"""What people type who know other programs, and what it is called here."""

SAME: Final = {
    ("model", "ls"): "list",
    ("model", "rm"): "remove",
    ("model", "delete"): "remove",
    ("trash", "ls"): "list",
    ("trash", "rm"): "empty",
}
"""Second words of commands that are understood as others."""

ALONE: Final = {"model": "list", "trash": "list", "config": "show"}
"""What commands with second words do where none is given."""

OPTIONS: Final = dict.fromkeys(
    (("evict", "--max-bytes"), ("evict", "--max-size"), ("evict", "--size")),
    'set policy.max_bytes in the configuration, such as "100 KiB", and then: xpucachectl evict',
)
"""Options that people expect of a command, and where that is said here."""

_VALUED: Final = frozenset({"--socket", "--of"})
"""Options before a command that have a value."""


_ALONE: Final = frozenset({"-h", "--help", "--version"})
"""Options that ask for something themselves."""


def _command_at(argv: Sequence[str]) -> int:
    """Return where the command stands; -1 if there is none."""
    before = ("", *argv)
    return next((at for at, word in enumerate(argv) if not word.startswith("-") and before[at] not in _VALUED), -1)


def is_bare(argv: Sequence[str]) -> bool:
    """Return whether a command line asks for nothing: it says at most whom to ask, and how to write the answer."""
    return _command_at(argv) < 0 and _ALONE.isdisjoint(argv) and "--" not in argv


def understood(argv: list[str]) -> list[str]:
    """Return a command line in which the second word of a command is there, and is what it is called here."""
    first = _command_at(argv)
    if first < 0:
        return argv
    rest = argv[first + 1 :]
    if argv[first] in ALONE and _command_at(rest) < 0 and _ALONE.isdisjoint(rest):
        return [*argv[: first + 1], ALONE[argv[first]], *rest]
    if not rest:
        return argv
    same = SAME.get((argv[first], argv[first + 1]), argv[first + 1])
    return [*argv[: first + 1], same, *argv[first + 2 :]]
