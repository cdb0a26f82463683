"""Who is looked after: read from the password file and the configuration, every time anew."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from xpucached import sockets
from xpucached.domain.host import Problem
from xpucached.domain.names import ModelName
from xpucached.hostd import stamps
from xpucached.hostd.sentences import names_missing
from xpucached.settings import loading, model_files
from xpucached.settings.sections import Workers

if TYPE_CHECKING:
    from xpucached.settings import Settings

_NOBODY: Final = frozenset({0, 65534, 4294967295})
_USUAL: Final = (1000, 60000)
_LONG_NUMBER: Final = 11
_CORRECT: Final = "correct it, or see: getent passwd"
_NO_LOGIN: Final = frozenset({"nologin", "false"})
_LINE: Final = re.compile(r"^(UID_MIN|UID_MAX)\s+(\d+)\s*$", re.MULTILINE)


class Accounts:
    """The host's user database, together with who was looked after before.

    Nobody is told whether a directory service that gives no account has none, or is away; and without a free descriptor
    nobody has one.  So who was known is gone only if the host's own file had him, and has him no more: of all others
    it is unknown, and they count as they were known.
    """

    def __init__(
        self,
        known: Mapping[int, str] = MappingProxyType({}),
        elsewhere: Mapping[int, bool] = MappingProxyType({}),
        own: Collection[int] = frozenset(),
    ) -> None:
        """``known`` are the users until now, ``own`` the numbers in the host's own file.

        ``elsewhere`` are the known ones that were not in it, and whether they were told without being asked for.
        """
        self._unsure = {uid: name for uid, name in known.items() if uid in own or uid in elsewhere}
        self._before, self._own = elsewhere, own
        self._listed: frozenset[int] = frozenset()
        self.missing: dict[int, str] = {}
        """Who was known, and is not told now."""

    def named(self, name: str) -> tuple[int, str]:
        """Return a user's number and name.  Raises `KeyError`, and `ValueError` for what can be no name."""
        try:
            one = user(name)
        except KeyError:
            for uid, known in self._unsure.items():
                if name in {known, str(uid)} and self._stays(uid, known):
                    return uid, known
            raise
        return one.pw_uid, one.pw_name

    def humans(self, first: int, last: int) -> dict[int, str]:
        """Return whose accounts are people's, with numbers in this range."""
        told = pwd.getpwall()
        self._listed = frozenset(one.pw_uid for one in told)
        found = {one.pw_uid: one.pw_name for one in told if first <= one.pw_uid <= last and _logs_in(one)}
        # A directory that tells of others is there.
        away = self._listed.difference(self._own).isdisjoint(uid for uid, listed in self._before.items() if listed)
        for uid, name in self._unsure.items():
            was = uid in self._own or (away and self._before.get(uid, False))
            if was and first <= uid <= last and uid not in self._listed and self._stays(uid, name):
                found[uid] = name
        return found

    def elsewhere(self, people: Iterable[int]) -> dict[int, bool]:
        """Return which of these the host's own file does not have, and whether they are told unasked."""
        listed = {*self._listed, *(uid for uid, was in self._before.items() if was)}
        return {uid: uid in listed for uid in people if uid not in self._own}

    def _stays(self, uid: int, name: str) -> bool:
        """Return whether somebody known is missing, or is told only now: what failed a moment ago may work again."""
        for one in (name, str(uid)) if uid not in self.missing else ():
            with contextlib.suppress(KeyError):
                found = user(one)
                return (found.pw_uid, found.pw_name) == (uid, name)  # else his number or name is somebody else's now
        self.missing[uid] = name
        return True


def managed_users(
    wanted: Workers,
    owners: Iterable[str],
    etc: Path = Path("/etc"),
    *,
    host_daemon: int | None = None,
    accounts: Accounts | None = None,
) -> Mapping[int, str]:
    """Return who may have a worker, by number: who can log in, who is named, and the users of model files.

    An account of the system has one only if the configuration names it; root, nobody and ``host_daemon``, the account
    of the host's daemon, never.  The host's daemon starts no other worker, and a worker of anybody else ends at once.
    """
    accounts = accounts or Accounts()
    # The range is that of people's accounts, in which systemd makes no other ones either.
    found = accounts.humans(*_range(etc)) if wanted.humans else {}
    for name in (*wanted.include, *owners):
        with contextlib.suppress(KeyError, ValueError):
            found.update([accounts.named(name)])
    for name in wanted.exclude:
        with contextlib.suppress(KeyError, ValueError):
            found.pop(accounts.named(name)[0], None)
    return {uid: name for uid, name in found.items() if uid not in _NOBODY and uid != host_daemon}


def _logs_in(one: pwd.struct_passwd) -> bool:
    return one.pw_shell.rpartition("/")[2] not in _NO_LOGIN


def may_have_worker(uid: int, config: Settings | None, *, had: bool) -> bool:
    """Return whether a user may have a worker by the host's configuration; None is one that cannot be read.

    Who ``had`` one keeps it while that, or a model file, cannot be read: it may name this user, and the host's daemon
    goes by what it said before.
    """
    try:
        host_daemon: int | None = pwd.getpwnam(sockets.ACCOUNT).pw_uid
    except KeyError:
        host_daemon = None
    if config is None:
        return uid in managed_users(Workers(), (str(uid),) if had else (), host_daemon=host_daemon)
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
    elsewhere: dict[int, bool]  #: as `Accounts` takes it the next time
    files: str = ""  #: another one when a file of the host's directory was written


def read_users(
    config: Settings,
    before: Mapping[ModelName, str],
    known: Mapping[int, str],
    elsewhere: Mapping[int, bool],
    etc: Path = Path("/etc"),
) -> ManagedUsers:
    """See who is looked after.  Blocks for as long as the host's user database takes; raises OSError.

    ``before`` is whom the model files named last: while one cannot be read, they are not dismissed.  ``known`` and
    ``elsewhere`` are for `Accounts`.
    """
    accounts = Accounts(known, elsewhere, _numbers(etc / "passwd"))
    # What is written while they are read is another text the next time.
    files = stamps.of(config.paths.models)
    named, problems = model_files.owners(config.paths.models)
    if problems:
        named = {**before, **named}
    numbers: dict[str, int] = {}
    unknown = misnamed(named.values(), accounts)
    for where, name in (
        *(("a model file", one) for one in named.values()),
        *(("workers.include", one) for one in config.workers.include),
    ):
        try:
            numbers[name], _ = accounts.named(name)
        except (KeyError, ValueError):
            message = f"{where} names the user {name}, whom nobody knows"
            unknown.setdefault(name, Problem("no-such-user", message, _CORRECT))
    for name, said in config.unknown_users.items():
        try:
            accounts.named(name)
        except KeyError:
            unknown.setdefault(name, Problem("no-such-user", said, _CORRECT))
    owners = {model: numbers[name] for model, name in named.items() if name in numbers and name not in unknown}
    people = managed_users(config.workers, numbers, etc, host_daemon=os.getuid(), accounts=accounts)
    missing = names_missing(sorted(accounts.missing[uid] for uid in people if uid in accounts.missing))
    outdated = loading.outdated(config, "systemctl reload xpucached")
    told = (*problems, *unknown.values(), *missing, *outdated)
    return ManagedUsers(people, named, owners, told, accounts.elsewhere(people), files)


def by_owner(owners: Mapping[ModelName, int]) -> dict[int, tuple[ModelName, ...]]:
    """Return by users which models are theirs."""
    found: dict[int, list[ModelName]] = {}
    for name, uid in owners.items():
        found.setdefault(uid, []).append(name)
    return {uid: tuple(names) for uid, names in found.items()}


def misnamed(named: Iterable[str], accounts: Accounts) -> dict[str, Problem]:
    """Return which users of model files are called otherwise: a directory service may know a user by several names.

    A worker knows its user's own name and number, and no other: such a model would be nobody's.
    """
    found = {}
    for name in named:
        with contextlib.suppress(KeyError, ValueError):
            uid, _ = accounts.named(name)
            _, own = accounts.named(str(uid))
            if not model_files.means(name, uid, own):
                message = f"a model file names the user {name}, who is {own} here"
                found[name] = Problem("no-such-user", message, f'write: user = "{own}"')
    return found


def user(name: str) -> pwd.struct_passwd:
    """Return a user by name or number.  Raises `KeyError`, and `ValueError` for what can be no name."""
    return pwd.getpwuid(int(name)) if name.isdecimal() and len(name) <= len("4294967295") else pwd.getpwnam(name)


def _numbers(file: Path) -> frozenset[int]:
    """Return whose numbers are in a password file.  Raises OSError where it cannot be read."""
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return frozenset()
    fields = (line.split(b":", 3) for line in lines)
    return frozenset(int(some[2]) for some in fields if some[2:] and some[2].isdigit() and len(some[2]) < _LONG_NUMBER)


def _range(etc: Path) -> tuple[int, int]:
    try:
        said = dict(_LINE.findall((etc / "login.defs").read_text(encoding="utf-8", errors="replace")))
    except OSError:
        said = {}
    return int(said.get("UID_MIN", _USUAL[0])), int(said.get("UID_MAX", _USUAL[1]))
