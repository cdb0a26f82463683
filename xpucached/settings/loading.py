"""How the configuration is read: a file, and variables over it.  Touches the file, and asks for users."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from xpucached import mounts, sockets
from xpucached.domain.host import Problem
from xpucached.errors import SettingsError, guess
from xpucached.settings import Settings
from xpucached.settings.keys import PREFIX, SECTIONS, keys
from xpucached.settings.sections import Paths
from xpucached.settings.toml import TOLD, ConfigMistake, Toml, others_write, read, refuse
from xpucached.settings.values import RENAMED, UnknownUser, Wrong, declared, filled, table, uid, unknown

_NAME: Final = "xpucached"
_HOST_MODELS: Final = Path("/etc", _NAME, "models.d")

_MANUAL: Final = "docs/configuration.md describes every key and variable"

# The client's variable for the same thing, so that one variable moves both ends of the socket.
_SOCKET: Final = "XPUCACHED_SOCKET"

# What begins like ours and is not configuration: the mark of a model's process, the key for bundles, and where
# the tests find runtimes.
_FOREIGN: Final = frozenset(
    {
        "XPUCACHED_DEBIAN",
        "XPUCACHED_REQUIRE_GPU_DRIVER",
        "XPUCACHED_REQUIRE_RUNTIMES",
        "XPUCACHED_REQUIRE_SYSTEMD",
        "XPUCACHED_RUN",
        "XPUCACHED_RUNTIMES",
        "XPUCACHED_SIGNING_KEY",
        "XPUCACHED_SIGNING_PASSWORD",
    }
)

Given = Mapping[tuple[str, str], tuple[str, object]]
"""What our variables say: for each key, by section and name, the variable and the value."""


class _Places(Struct, frozen=True):
    """Where things are when nobody says otherwise."""

    configuration: Path
    state: Path
    cache: Path
    runtime: Path | None


def load(path: Path | None, *, user: bool, environ: Mapping[str, str], worker: bool = False) -> Settings:
    """Read the configuration: of the user that we run as, or of the host.

    ``path`` None is the usual place, where nothing need be.  A ``worker`` has what its user has configured, without
    his places: those systemd says.  Raises `SettingsError`.
    """
    places = _places(user=user, environ=environ)
    file = path if path is not None else places.configuration / f"{_NAME}.toml"
    if not file.is_absolute():
        try:
            file = Path.cwd() / file
        except FileNotFoundError as error:
            raise SettingsError(f"{file}: the directory in which this was started is gone") from error
    try:
        toml = Toml.parse(file, read(file))
    except FileNotFoundError as error:
        if path is not None:
            raise SettingsError(f"{file}: there is no such file") from error
        toml = Toml(file, "", {})
    given = _given(environ)
    over: dict[str, dict[str, object]] = {}
    for (section, name), (_, value) in given.items():
        over.setdefault(section, {})[name] = value
    given_all = _laid_over(toml.values, over)
    unknown_users = {} if user else _without_unknown_users(given_all)
    try:
        sections = _sections(given_all)
    except Wrong as error:
        mistakes = {_mistake(place, what, toml, given) for place, what in error.mistakes[:TOLD]}
        raise refuse(sorted(mistakes, key=_order), _MANUAL, untold=len(error.mistakes[TOLD:])) from error
    usual: dict[str, object] = {
        "state": places.state,
        "cache": places.cache,
        # Who may connect may read; of the host's daemon everybody may, and who may change is asked of each.
        "socket_mode": 0o600 if user else 0o666,
        "models": places.configuration / "models.d",
    }
    if "socket" not in sections["paths"]:
        ours = worker and user and places.runtime is None
        usual["socket"] = Path(sockets.worker_path(os.getuid())) if ours else _runtime(places) / f"{_NAME}.sock"
    values = {name: filled(kind, sections[name]) for name, kind in SECTIONS.items() if name != "paths"}
    paths = filled(Paths, {**usual, **sections["paths"]})
    host_models = _HOST_MODELS if worker else None
    settings = filled(Settings, values, file=toml.path, paths=paths, host_models=host_models)
    _check_state(paths.state, user=user)
    told = {
        name: str(_mistake(("policy", "users", name), what, toml, given))
        for name, what in [*unknown_users.items()][:TOLD]
    }
    return replace(settings, digest=_digest(toml.text), shown=_shown(settings, toml, given), unknown_users=told)


def outdated(settings: Settings, reload: str) -> tuple[Problem, ...]:
    """Tell whether the file is another than the one that was read; ``reload`` is how it is read again."""
    try:
        digest = _digest(read(settings.file))
    except FileNotFoundError:
        digest = ""
    except SettingsError as error:
        digest = str(error)
    if digest == settings.digest:
        return ()
    message = f"{settings.file} has changed since it was read, and what it says now is not in effect"
    return (Problem("not-reloaded", message, f"to have it read: {reload}", str(settings.file)),)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() if text else ""


# -- where things are ---------------------------------------------------------------------------------------------


def home(environ: Mapping[str, str]) -> Path:
    """Return our user's home directory.  Raises `SettingsError` where nothing says which one that is."""
    named = environ.get("HOME", "")
    if named.startswith("/"):
        return Path(named)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        message = f"user {os.getuid()} has no account here, and HOME names no directory"
        raise SettingsError(message, hint="set HOME to a directory that belongs to that user") from None


def _places(*, user: bool, environ: Mapping[str, str]) -> _Places:
    """Follow the XDG base directories or the host's, and systemd where it made directories for us."""
    if user:
        base = home(environ)

        def xdg(variable: str, otherwise: Path) -> Path:
            # The specification says that a relative value is to be ignored.
            value = environ.get(variable, "")
            return Path(value) if value.startswith("/") else otherwise

        try:
            runtime: Path | None = Path(sockets.runtime_directory(environ)) / _NAME
        except sockets.NoRuntimeDirectory:
            runtime = None
        usual = _Places(
            xdg("XDG_CONFIG_HOME", base / ".config") / _NAME,
            xdg("XDG_STATE_HOME", base / ".local/state") / _NAME,
            xdg("XDG_CACHE_HOME", base / ".cache") / _NAME,
            runtime,
        )
    else:
        usual = _Places(*(Path(base, _NAME) for base in ("/etc", "/var/lib", "/var/cache", "/run")))

    def made(variable: str) -> Path | None:
        # systemd separates several by colons; the first is ours.
        value = environ.get(variable, "").partition(":")[0]
        return Path(value) if value.startswith("/") else None

    return _Places(
        made("CONFIGURATION_DIRECTORY") or usual.configuration,
        made("STATE_DIRECTORY") or usual.state,
        made("CACHE_DIRECTORY") or usual.cache,
        made("RUNTIME_DIRECTORY") or usual.runtime,
    )


def _runtime(places: _Places) -> Path:
    if places.runtime is None:
        lacking = sockets.NoRuntimeDirectory()
        raise SettingsError(str(lacking), hint=lacking.hint)
    return places.runtime


def _check_state(directory: Path, *, user: bool) -> None:
    """Refuse a place for the catalog that several hosts share, or that somebody else could have made for us.

    Hosts would write to it past each other's locks.  The host's own directory is systemd's, and root checks it for us.
    """
    try:
        status = directory.stat() if user else None
    except OSError:
        status = None
    if status is not None and (status.st_uid != os.geteuid() or others_write(status)):
        raise SettingsError(
            f"paths.state: {directory} is not ours alone (uid {status.st_uid}, mode {stat.filemode(status.st_mode)})",
            hint="set paths.state to a directory that belongs to you and that others may not write to",
        )
    kind = mounts.network(directory)
    if kind:
        raise SettingsError(
            f"paths.state: {directory} is on a network file system ({kind}), where a catalog is not safe",
            hint="set paths.state, or XPUCACHED_PATHS_STATE, to a directory of yours on a disk of this host",
        )


# -- variables, mistakes, and what is shown -----------------------------------------------------------------------


def _laid_over(file: Mapping[str, object], variables: Mapping[str, object]) -> dict[str, object]:
    """Return what both say together; of what both say the variables count, and tables hold what each has in them."""
    both = dict(file)
    for name, value in variables.items():
        below = both.get(name)
        both[name] = _laid_over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return both


def _without_unknown_users(given: dict[str, object]) -> Mapping[str, str]:
    """Take out limits of users whom nobody knows, as while a directory service is away; give what is said of each."""
    policy = given.get("policy")
    users = policy.get("users") if isinstance(policy, dict) else None
    found: dict[str, str] = {}
    for name in users if isinstance(users, dict) else ():
        try:
            uid(name)
        except UnknownUser as error:
            found[name] = str(error)
        except ValueError:
            pass  # it can be no name at all, and is refused
    if found and isinstance(policy, dict) and isinstance(users, dict):
        given["policy"] = {**policy, "users": {name: inner for name, inner in users.items() if name not in found}}
    return found


def _sections(given: Mapping[str, object]) -> Mapping[str, dict[str, object]]:
    """Read all sections: of each, what is given.  Raises `Wrong` with all that is wrong."""
    read: dict[str, dict[str, object]] = {}
    mistakes: list[tuple[tuple[str, ...], str]] = []
    for name, kind in SECTIONS.items():
        try:
            read[name] = table(declared(kind), given.get(name, {}))
        except Wrong as error:
            mistakes += [((name, *place), what) for place, what in error.mistakes]
    mistakes += [((name,), unknown(name, SECTIONS)) for name in given if name not in SECTIONS]
    if mistakes:
        raise Wrong(*mistakes)
    return read


def _unknown(name: str, known: Collection[str]) -> str:
    now = name
    for earlier, later in RENAMED.items():
        now = re.sub(rf"(?<=_){earlier.upper()}(?=_|$)", later.upper(), now)
    if now in known:
        return f"unknown variable; it is called {now} now"
    near = guess(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known])
    meant = near.replace("did you mean ", f"did you mean {PREFIX}")
    return f"unknown variable; {meant or 'expected one such as XPUCACHED_LOG_LEVEL'}"


def _given(environ: Mapping[str, str]) -> Given:
    """Read our variables."""
    known = {key.variable: key for key in keys()}
    known[_SOCKET] = known["XPUCACHED_PATHS_SOCKET"]
    found: dict[tuple[str, str], tuple[str, object]] = {}
    mistakes: list[ConfigMistake] = []
    untold = 0
    # In this order the daemon's own variable for the socket comes before the client's, and wins.
    for name in sorted(name for name in environ if name.startswith(PREFIX) and name not in _FOREIGN):
        key = known.get(name)
        if key is None and len(mistakes) >= TOLD:
            untold += 1
            continue
        if key is None:
            mistakes.append(ConfigMistake(name, _unknown(name, known)))
            continue
        try:
            found.setdefault((key.section, key.name), (name, key.from_text(environ[name])))
        except ValueError as error:
            mistakes.append(ConfigMistake(name, str(error)))
    if mistakes:
        raise refuse(mistakes, _MANUAL, untold=untold)
    return found


def _mistake(place: tuple[str, ...], what: str, toml: Toml, given: Given) -> ConfigMistake:
    section, name, *_ = (*place, "")
    variable, _ = given.get((section, name), ("", None))
    return ConfigMistake(variable, what) if variable else toml.mistake(place, what)


def _order(mistake: ConfigMistake) -> tuple[str, int, str]:
    head, _, line = mistake.where.rpartition(":")
    return (head, int(line), mistake.what) if line.isdecimal() else (mistake.where, 0, mistake.what)


def _shown(settings: Settings, toml: Toml, given: Given) -> Mapping[str, str]:
    shown: dict[str, str] = {}
    for key in keys():
        place = (key.section, key.name)
        variable, _ = given.get(place, ("", None))
        section = toml.values.get(key.section)
        if variable:
            origin = variable
        elif isinstance(section, dict) and key.name in section:
            # What stands before it may hold anything; see `answers.typed`.
            origin = f"{toml.path}:{toml.line(place)}".replace(" (", "\\x20(")
        else:
            origin = "default"
        shown[".".join(place)] = f"{key.spelled(getattr(getattr(settings, key.section), key.name))} ({origin})"
    return shown
