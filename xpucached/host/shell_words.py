"""Observe: what a shell's command or script says, by its words: nothing of it is run."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SHELLS: Final = frozenset({"sh", "ash", "bash", "dash", "fish", "ksh", "rbash", "zsh"})
MOST: Final = 10_000
"""Words of one text."""
VALUE: Final = re.compile(r"[-+](?!-)\w*[oO]|--(?:rcfile|init-file)", re.ASCII)
"""An option of a shell's that has a value, in the next word."""

_FIRST: Final = {
    "bash": ("$BASH_ENV",),
    "fish": tuple(f"{place}/fish/{name}" for place in ("/etc", "$CONFIG") for name in ("config.fish", "conf.d")),
    "zsh": ("/etc/zshenv", "/etc/zsh/zshenv", "$ZDOTDIR/.zshenv"),
}
"""What shells read before all else …"""
_OF_PERSON: Final = {
    "bash": ("/etc/bash.bashrc", "~/.bash_profile", "~/.bash_login", "~/.bashrc"),
    "fish": (),
    "zsh": tuple(
        f"{place}{name}" for place in ("/etc/", "/etc/zsh/", "$ZDOTDIR/.") for name in ("zprofile", "zshrc", "zlogin")
    ),
}
"""… and where a person logs in, or types."""
_OF_ALL: Final = ("/etc/profile", "/etc/profile.d", "~/.profile", "$ENV")
_PERSON: Final = re.compile(r"-(?!-)\w*[il]\w*|--(?:login|interactive)", re.ASCII)
_MOST_OPTIONS: Final = 16

_TEXT: Final = 1 << 20
_LONGEST: Final = 4096
_MOST_TEXTS: Final = 100
"""Files that one script reads as its own, and texts of Python in it."""

_SPLIT: Final = re.compile(r"(?:-[i0v]*S|--s[a-z-]*(?:=|\Z))(.*)", re.DOTALL)
"""The option of ``env`` whose value is taken apart."""
_OF_ENV: Final = re.compile(r"-[i0v]*[uCaP]|--(?:u|c|a)[a-z0-9-]*")
"""One of ``env`` that has a value in the next word."""
_MOST_SPLIT: Final = 8

_BETWEEN: Final = re.compile(r"[\s;|&()'\"`<>]+")
_ASSIGNED: Final = re.compile(r"\w+=(.*)", re.ASCII | re.DOTALL)
_VARIABLE: Final = re.compile(
    r"\$(?:\{(\w*+)(?!:?\+)(?::?[-=]([^}$]{0,200}+)|[^}]{0,200}+)\}|\{[^}]{0,200}+\}|(\w+)|$)", re.ASCII
)
"""With what stands for it if it is not set, as in ``${PYTHON:-python3}``."""
_BEGINS: Final = re.compile(r"\$(?:\{[^}]{0,200}+\}|\w*)|[^$]", re.ASCII | re.DOTALL)
_PART: Final = re.compile(r"(?:\$\{[^}]{0,200}+\}|[^:])+")
_INNERMOST: Final = r"\([^()\0]{0,200}+\)"
_INNER: Final = rf"\((?:[^()\0]|{_INNERMOST}){{0,200}}+\)"
_COMMAND: Final = rf"\$\((?:[^()\0]|{_INNER}){{0,200}}+\)|`[^`\0]{{0,200}}+`"
_SEARCHED: Final = re.compile(
    rf"((?<!\w)PATH|PYTHONPATH|LD_LIBRARY_PATH|LD_PRELOAD)\+?=[\"']?((?:{_COMMAND}|[^\s;\"'\0])+)"
)
_RUN: Final = re.compile(_COMMAND)
"""What a script runs in the place of a word, most often to find its own directory: as little known as a variable."""
_WITHIN: Final = re.compile(r"[)}](/[^\s\"')`:]+)")
"""What such a command adds to a directory: ``$(cd "$(dirname "$0")/lib" && pwd)``."""
_SOURCED: Final = re.compile(rf"(?:^|[\s;&|(])(?:\.|source)[ \t]+[\"']?((?:{_COMMAND}|[^\s;&|)\"'\0])+)", re.MULTILINE)
_PYTHON: Final = re.compile(r"""\s-c[ \t]*(?:"([^"]{1,4096})"|'([^']{1,4096})')""")


def of_command(text: str) -> list[str]:
    """Return the words of a command, and what stands between its parts."""
    words = shlex.shlex(text[:_TEXT], posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, ""
    try:
        return list(itertools.islice(words, MOST))
    except ValueError:
        return of_script(text[:_TEXT])


def of_env(words: Iterable[str], variables: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return what ``env`` is given for itself, and the command that it starts, with what ``-S`` has it take apart."""
    ahead = deque(itertools.islice(words, MOST))
    own: list[str] = []
    left = _MOST_SPLIT
    while ahead and (ahead[0].startswith("-") or "=" in ahead[0]):
        word = ahead.popleft()
        split = _SPLIT.fullmatch(word)
        if split is not None and left and (split[1] or ahead):
            left -= 1
            text = (split[1] or ahead.popleft())[:_LONGEST].replace("\\_", " ")
            ahead.extendleft(expanded(one, variables) for one in reversed(of_command(text)))
            continue
        own.append(word)
        if _OF_ENV.fullmatch(word) and ahead:
            own.append(ahead.popleft())
    return own, list(ahead)


def of_script(text: str) -> list[str]:
    """Return the words of a script, quoted or not."""
    return _BETWEEN.split(text)[:MOST]


def sourced(text: str) -> Iterator[str]:
    """Yield the words by which a script names the files that it reads as its own."""
    yield from (_unknown(match[1]) for match in itertools.islice(_SOURCED.finditer(text), _MOST_TEXTS))


def of_python(text: str) -> Iterator[str]:
    """Yield the texts that a script may give a Python to run."""
    yield from (match[1] or match[2] for match in itertools.islice(_PYTHON.finditer(text), _MOST_TEXTS))
    if "<<" in text:
        yield text


def searched(text: str, most: int) -> Iterator[tuple[str, str]]:
    """Yield the parts, with their variables, of what a text says programs, modules and libraries are found by."""
    for match in itertools.islice(_SEARCHED.finditer(text), most):
        yield from ((match[1], part) for part in _PART.findall(_unknown(match[2]))[:most])


def _unknown(text: str) -> str:
    """Return a text with a variable of no name for what is run in its midst, and what that adds to a directory."""
    return _RUN.sub(lambda run: "${}" + "".join(_WITHIN.findall(run[0])[:1]), text[:_LONGEST])


def begins_with(shell: str, words: Iterable[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the files and directories that a shell, called with these ``words``, may read before what it is given."""
    home = variables.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - it raises nothing
    places = {"CONFIG": variables.get("XDG_CONFIG_HOME") or f"{home}/.config", "ZDOTDIR": home}
    known = {**places, **variables, "HOME": home}
    options: list[str] = []
    for word in itertools.islice(words, _MOST_OPTIONS):
        if not word.startswith(("-", "+")) and not (options and VALUE.fullmatch(options[-1])):
            break
        options.append(word)
    texts = _FIRST.get(shell, ())
    if any(map(_PERSON.fullmatch, options)):
        texts += _OF_PERSON.get(shell, ()) + (_OF_ALL if shell not in {"fish", "zsh"} else ())
    yield from filter(None, (expanded(text, known) for text in texts))


def value(word: str) -> str:
    """Return what a word gives a variable; else the word."""
    assigned = _ASSIGNED.fullmatch(word)
    return assigned[1] if assigned is not None else word


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with what is known of its variables (not as ``${X:+…}``), and of ``~/``; empty if too long."""
    made, at = "", 0
    if text.startswith("~/"):
        made, at = variables.get("HOME", "~"), 1
    for one in _VARIABLE.finditer(text):
        if len(made) <= _LONGEST:
            made += text[at : one.start()] + (variables.get(one[1] or one[3] or "") or one[2] or "")
            at = one.end()
    made += text[at:]
    return made if len(made) <= _LONGEST else ""


def begins(text: str, variables: Mapping[str, str]) -> bool:
    """Return whether it is known what a text begins with."""
    found = _BEGINS.match(text)
    return found is not None and expanded(found[0], variables) != ""
