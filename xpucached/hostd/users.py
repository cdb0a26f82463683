"""Who is looked after: read from the password file and the configuration, every time anew."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import sockets
from xpucached.domain.host import Problem
from xpucached.domain.names import ModelName
from xpucached.settings import loading, model_files
from xpucached.settings.sections import Workers

if TYPE_CHECKING:
    from xpucached.settings import Settings

_NOBODY: Final = frozenset({0, 65534, 4294967295})
_USUAL: Final = (1000, 60000)
_NO_LOGIN: Final = frozenset({"nologin", "false"})
_LINE: Final = re.compile(r"^(UID_MIN|UID_MAX)\s+(\d+)\s*$", re.MULTILINE)


def managed_users(
    wanted: Workers, owners: Iterable[str], etc: Path = Path("/etc"), *, host_daemon: int | None = None
) -> Mapping[int, str]:
    """Return who may have a worker, by number: who can log in, who is named, and the users of model files.

    An account of the system has one only if the configuration names it; root, nobody and ``host_daemon``, the account
    of the host's daemon, never.  The host's daemon starts no other worker, and a worker of anybody else ends at once.
    """
    first, last = _range(etc)
    found: dict[int, str] = {}
    if wanted.humans:
        # The range is that of people's accounts, in which systemd makes no other ones either.
        found = {one.pw_uid: one.pw_name for one in pwd.getpwall() if first <= one.pw_uid <= last and _logs_in(one)}
    for name in (*wanted.include, *owners):
        with contextlib.suppress(KeyError, ValueError):
            one = user(name)
            found[one.pw_uid] = one.pw_name
    for name in wanted.exclude:
        with contextlib.suppress(KeyError, ValueError):
            found.pop(user(name).pw_uid, None)
    return {uid: name for uid, name in found.items() if uid not in _NOBODY and uid != host_daemon}


def _logs_in(one: pwd.struct_passwd) -> bool:
    return one.pw_shell.rpartition("/")[2] not in _NO_LOGIN


def may_have_worker(uid: int, config: Settings | None, *, had: bool) -> bool:
    """Return whether a user may have a worker by the host's configuration; None is one that cannot be read.

    Who ``had`` one keeps it while a model file cannot be read, which may name this user.
    """
    try:
        host_daemon: int | None = pwd.getpwnam(sockets.ACCOUNT).pw_uid
    except KeyError:
        host_daemon = None
    if config is None:
        return uid in managed_users(Workers(), (), host_daemon=host_daemon)
    named, problems = model_files.owners(config.paths.models)
    owners = (*named.values(), str(uid)) if problems and had else named.values()
    return uid in managed_users(config.workers, owners, host_daemon=host_daemon)


@dataclass(frozen=True, slots=True)
class ManagedUsers:
    """Who is looked after, whose the models of the host's directory are, and what is wrong with their files."""

    people: Mapping[int, str]
    named: Mapping[ModelName, str]
    owners: Mapping[ModelName, int]
    problems: tuple[Problem, ...]


def read_users(config: Settings, before: Mapping[ModelName, str]) -> ManagedUsers:
    """See who is looked after.  Blocks for as long as the host's user database takes.

    ``before`` is whom the model files named last: while one cannot be read, they are not dismissed.
    """
    named, problems = model_files.owners(config.paths.models)
    if problems:
        named = {**before, **named}
    numbers: dict[str, int] = {}
    strangers: dict[str, Problem] = {}
    for where, name in (
        *(("a model file", one) for one in named.values()),
        *(("workers.include", one) for one in config.workers.include),
    ):
        try:
            numbers[name] = user(name).pw_uid
        except (KeyError, ValueError):
            message = f"{where} names the user {name}, whom nobody knows"
            strangers.setdefault(name, Problem("no-such-user", message, "correct it, or see: getent passwd"))
    owners = {model: numbers[name] for model, name in named.items() if name in numbers}
    people = managed_users(config.workers, numbers, host_daemon=os.getuid())
    outdated = loading.outdated(config, "systemctl reload xpucached")
    return ManagedUsers(people, named, owners, (*problems, *strangers.values(), *outdated))


def user(name: str) -> pwd.struct_passwd:
    """Return a user by name or number.  Raises `KeyError`, and `ValueError` for what can be no name."""
    return pwd.getpwuid(int(name)) if name.isdecimal() and len(name) <= len("4294967295") else pwd.getpwnam(name)


def _range(etc: Path) -> tuple[int, int]:
    try:
        said = dict(_LINE.findall((etc / "login.defs").read_text(encoding="utf-8", errors="replace")))
    except OSError:
        said = {}
    return int(said.get("UID_MIN", _USUAL[0])), int(said.get("UID_MAX", _USUAL[1]))
