"""Door: what people type who know other programs."""

from __future__ import annotations

from typing import Final

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

_VALUED: Final = frozenset({"--socket", "--of"})
"""Options before a command that have a value."""


def understood(argv: list[str]) -> list[str]:
    """Return a command line in which the second word of a command is what it is called here."""
    first = next((at for at, word in enumerate(argv) if not word.startswith("-") and argv[at - 1] not in _VALUED), -1)
    if not 0 <= first < len(argv) - 1:
        return argv
    same = SAME.get((argv[first], argv[first + 1]), argv[first + 1])
    return [*argv[: first + 1], same, *argv[first + 2 :]]
