"""Door: the commands in what is printed, as the person who reads it has to type them.

Daemons and flows name a command by its verb.  How this person reached the daemon is known here alone: by ``--of``, by
``--user``, by ``sudo``.  Reads the environment that it is given.
"""

from __future__ import annotations

from xpucached.printing import command, quoted

TYPE_CHECKING = False  # typing and re take long to load, for who waits for one answer
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

VERBS = (
    *(
        "config",
        "devices",
        "df",
        "doctor",
        "driver-changed",
        "env",
        "events",
        "evict",
        "jobs",
        "ls",
        "metrics",
        "model",
    ),
    *("prewarm", "replay", "report", "run", "runs", "scan", "show", "status", "stores", "trace", "trash", "usage"),
    *("seen", "top", "verify", "web", "why"),
)
"""All commands that ask a daemon something."""

_PROGRAM = "xpucachectl "
_OWN = "your own: "
"""What stands before a command that is for oneself, and not for whom was asked."""


def flags(options: Namespace) -> str:
    """Return what leads a command to the daemon that was asked, with a space behind it; empty if nothing has to."""
    if options.socket is not None:
        return f"--socket {quoted(str(options.socket))} "
    if options.of:
        return f"--of {quoted(options.of)} "
    return f"--{options.scope} " if options.scope else ""


def aimed(text: str, given: str, environ: Mapping[str, str]) -> str:
    """Return a text whose commands have the flags that were ``given``, and ``sudo`` where that made this one root's."""
    if given:
        text, *rest = text.split(_PROGRAM)
        for part in rest:
            ours = not text.endswith(_OWN) and not text[-1:].isalnum() and _verb(part) in VERBS
            text += f"{_PROGRAM}{given if ours else ''}{part}"
    return _as_roots(text) if environ.get("SUDO_UID") else text


def _verb(text: str) -> str:
    """Return the word that a text begins with."""
    return text[: next((at for at, one in enumerate(text) if not (one.isalnum() or one in "-_")), len(text))]


def _as_roots(text: str) -> str:
    import re  # noqa: PLC0415 - only who uses sudo has to wait for it

    ours = rf"xpucachectl (?:-|(?:{'|'.join(VERBS)})\b)"
    return re.sub(rf"(?<!sudo )(?<!' )\b(?={ours}|systemctl (?!--user)|journalctl (?!--user))", "sudo ", text)


def to_see_a_job(job: str, given: str) -> str:
    """Return the command that shows a job; one that the host's daemon began is its user's worker's."""
    whose, number = _parted(job, given)
    return f"xpucachectl {whose or given}jobs {number}"


def to_end_a_job(job: str, given: str, *, root: bool) -> str:
    """Return the command that ends a job, which an administrator who is not root may not."""
    whose, number = _parted(job, given)
    return f"{'sudo ' if whose and not root else ''}xpucachectl {whose or given}jobs --cancel {number}"


def _parted(job: str, given: str) -> tuple[str, str]:
    uid, point, number = job.partition(".")
    # What a user's worker calls its job is that user's word, and names nobody else.
    ours = point and uid.isdecimal() and not given.startswith("--of ")
    whose, name = (f"--of {uid} ", number) if ours else ("", job)
    # Nor is it more than a word of a command that root may type.
    return whose, quoted(name)


def as_root(argv: Sequence[str]) -> str:
    """Return a command line as root would be given it."""
    return f"as root: sudo xpucachectl {command(argv)}"
