"""Door: configuration and model files; with `host` the only reader of the outside.  Home of pydantic-settings.

One TOML file, and ``XPUCACHED_SECTION_KEY`` variables over it.  What is wrong is refused with its file, its line and
what was expected, so whoever holds a `Settings` needs no checks of his own.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from xpucached import sockets
from xpucached.domain.plans import Limits, Policy
from xpucached.domain.throttling import ThrottlePolicy
from xpucached.errors import SettingsError, guess
from xpucached.settings import mounts, store_places
from xpucached.settings.model_files import models as models
from xpucached.settings.model_files import owners as owners
from xpucached.settings.schema import (
    PREFIX,
    RENAMED,
    UNLIMITED,
    Document,
    Key,
    LimitsSection,
    PolicySection,
    Workers,
    explain,
    keys,
    spell,
    window,
)
from xpucached.settings.toml import TOLD, ConfigMistake, Toml, read, refuse

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pydantic_core import ErrorDetails

    from xpucached.domain.names import KindName

_NAME: Final = "xpucached"
_HOST_MODELS: Final = Path("/etc", _NAME, "models.d")

_MANUAL: Final = "docs/configuration.md describes every key and variable"

# The client's variable for the same thing, so that one variable moves both ends of the socket.
_SOCKET: Final = "XPUCACHED_SOCKET"

# What begins like ours and is not configuration: the mark of a model's process, and where the tests find runtimes.
_FOREIGN: Final = frozenset(
    {
        "XPUCACHED_DEBIAN",
        "XPUCACHED_REQUIRE_RUNTIMES",
        "XPUCACHED_REQUIRE_SYSTEMD",
        "XPUCACHED_RUN",
        "XPUCACHED_RUNTIMES",
    }
)


class Settings(Struct, frozen=True):
    """The configuration in effect."""

    file: Path  #: the file that was read, or that would be if it were there
    state: Path  #: directory of the catalog and the lock
    cache: Path  #: directory of the managed stores
    socket: Path
    socket_mode: int
    models_directory: Path
    find_stores: bool
    store_paths: Mapping[Path, KindName | None]  #: with the kind, if it is said
    variables: Mapping[str, str]  #: what programs that use the cache find in their environment on this host
    probe_timeout: float
    compile_timeout: float
    policy: Policy
    throttle: ThrottlePolicy
    scan_interval: float
    settle: float
    scrub: float | None  #: seconds in which every entry is read again once
    replay_automatically: bool
    prewarm_automatically: bool
    evict_automatically: bool
    watch_mode: str  #: ``auto``, ``inotify`` or ``polling``: the best way that may be used
    watch_loads: bool  #: whether programs' loads shall be seen
    watch_socket: Path  #: of the host's watcher
    workers: Workers
    log_level: str  #: as `logging` spells it
    host_models: Path | None  #: where an administrator says what models users have; None if that is not for us
    _shown: Mapping[str, str]

    def managed(self, kind: KindName) -> Path:
        """Tell where our own store of a kind is."""
        return self.cache / kind

    def shown(self) -> Mapping[str, str]:
        """Give every key as ``section.key``, with its value and in brackets where that comes from."""
        return self._shown


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
        file = Path.cwd() / file
    try:
        toml = Toml.parse(file, read(file))
    except FileNotFoundError as error:
        if path is not None:
            raise SettingsError(f"{file}: there is no such file") from error
        toml = Toml(file, "", {})
    given = _given(environ)
    over: dict[str, dict[str, object]] = {}
    for key, (_, value) in given.items():
        over.setdefault(key.section, {})[key.name] = value
    try:
        document = Document(file=toml.values, variables=over)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        mistakes = {_mistake(fault, toml, given) for fault in faults[:TOLD]}
        raise refuse(sorted(mistakes, key=_order), _MANUAL, untold=len(faults[TOLD:])) from error
    return _settle(document, toml, given, places, user=user, worker=worker)


def _settle(
    document: Document,
    toml: Toml,
    given: Mapping[Key, tuple[str, object]],
    places: _Places,
    *,
    user: bool,
    worker: bool,
) -> Settings:
    paths, policy, schedule, throttle = document.paths, document.policy, document.schedule, document.throttle
    settings = Settings(
        file=toml.path,
        state=paths.state or places.state,
        cache=paths.cache or places.cache,
        socket=paths.socket or _runtime(places) / f"{_NAME}.sock",
        # Who may connect may read; of the host's daemon everybody may, and who may change is asked of each.
        socket_mode=paths.socket_mode if paths.socket_mode is not None else 0o600 if user else 0o666,
        models_directory=paths.models or places.configuration / "models.d",
        find_stores=document.stores.found,
        store_paths=store_places.parted(document.stores.paths),
        variables=dict(document.driver.variables),
        probe_timeout=document.driver.probe_timeout,
        compile_timeout=document.driver.compile_timeout,
        policy=Policy(
            keep_driver_generations=policy.keep_driver_generations,
            max_unused=policy.max_unused,
            max_bytes=policy.max_bytes,
            grace=policy.grace,
            attempts=policy.attempts,
            retry_after=policy.retry_after,
            min_free_bytes=policy.min_free_bytes,
            quota=policy.quota,
            low_water=policy.low_water / 100,
            trash_keep=policy.trash_keep,
            trash_max_bytes=policy.trash_max_bytes,
            limits=_limits(policy),
        ),
        throttle=ThrottlePolicy(
            window=window(throttle.window),
            only_when_idle=throttle.only_when_idle,
            cpu_pressure=throttle.cpu_pressure,
            memory_pressure=throttle.memory_pressure,
            io_pressure=throttle.io_pressure,
            gpu_busy=throttle.gpu_busy,
            max_wait=throttle.max_wait,
            isolate=throttle.isolate,
            tasks=throttle.tasks,
        ),
        scan_interval=schedule.scan_interval,
        settle=schedule.settle,
        scrub=schedule.scrub,
        replay_automatically=schedule.replay,
        prewarm_automatically=schedule.prewarm,
        evict_automatically=schedule.evict,
        watch_mode=document.watch.mode,
        watch_loads=document.watch.loads,
        watch_socket=document.watch.socket,
        workers=document.workers,
        log_level=document.log.level.upper(),
        host_models=_HOST_MODELS if worker else None,
        _shown={},
    )
    _check_state(settings.state, user=user)
    return replace(settings, _shown=_show(settings, document, toml, given))


def _limits(policy: PolicySection) -> tuple[Limits, ...]:
    """Give the limits of single stores and users.  Raises `SettingsError` for a user whom nobody knows."""
    found: list[Limits] = []
    for name, one in policy.users.items():
        try:
            uid = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
        except KeyError as error:
            raise SettingsError(f"policy.users: there is no user {name!r} on this host", hint=_MANUAL) from error
        found.append(_limit(one, None, uid))
    for name, one in policy.stores.items():
        found.append(_limit(one, Path(os.path.realpath(name)), None))
    return tuple(found)


def _limit(one: LimitsSection, store: Path | None, user: int | None) -> Limits:
    return Limits(
        store, user, one.keep_driver_generations, one.max_unused, one.max_bytes, one.min_free_bytes, one.grace
    )


# -- where things are ---------------------------------------------------------------------------------------------


def _places(*, user: bool, environ: Mapping[str, str]) -> _Places:
    """Follow the XDG base directories or the host's, and systemd where it made directories for us."""
    if user:
        home = environ.get("HOME", "")
        base = Path(home) if home.startswith("/") else Path(pwd.getpwuid(os.getuid()).pw_dir)

        def xdg(variable: str, otherwise: Path) -> Path:
            # The specification says that a relative value is to be ignored.
            value = environ.get(variable, "")
            return Path(value) if value.startswith("/") else otherwise

        try:
            runtime: Path | None = Path(sockets.runtime_directory(environ)) / _NAME
        except sockets.Homeless:
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
        lacking = sockets.Homeless()
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
    if status is not None and (status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH):
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


def _unknown(name: str, known: Collection[str]) -> str:
    now = name
    for earlier, later in RENAMED.items():
        now = re.sub(rf"(?<=_){earlier.upper()}(?=_|$)", later.upper(), now)
    if now in known:
        return f"unknown variable; it is called {now} now"
    near = guess(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known])
    meant = near.replace("did you mean ", f"did you mean {PREFIX}")
    return f"unknown variable; {meant or 'expected one such as XPUCACHED_LOG_LEVEL'}"


def _given(environ: Mapping[str, str]) -> dict[Key, tuple[str, object]]:
    """Read our variables: for each key that one sets, the variable's name and the value."""
    known = {key.variable: key for key in keys()}
    known[_SOCKET] = known["XPUCACHED_PATHS_SOCKET"]
    found: dict[Key, tuple[str, object]] = {}
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
            found.setdefault(_plain(key), (name, key.from_text(environ[name])))
        except ValueError as error:
            mistakes.append(ConfigMistake(name, str(error)))
    if mistakes:
        raise refuse(mistakes, _MANUAL, untold=untold)
    return found


def _plain(key: Key) -> Key:
    """Give a key that can be looked up: lists and tables cannot be hashed."""
    return Key(key.section, key.name, None)


def _mistake(fault: ErrorDetails, toml: Toml, given: Mapping[Key, tuple[str, object]]) -> ConfigMistake:
    place = fault["loc"]
    section = str(place[0])
    names = [key.name for key in keys() if key.section == section]
    known = names if len(place) > 1 else list(Document.model_fields)
    what = explain(fault, known)
    if len(place) > 1:
        variable, _ = given.get(Key(section, str(place[1]), None), ("", None))
        if variable:
            return ConfigMistake(variable, what)
    return toml.mistake(place, what)


def _order(mistake: ConfigMistake) -> tuple[str, int, str]:
    head, _, line = mistake.where.rpartition(":")
    return (head, int(line), mistake.what) if line.isdecimal() else (mistake.where, 0, mistake.what)


def _show(
    settings: Settings, document: Document, toml: Toml, given: Mapping[Key, tuple[str, object]]
) -> Mapping[str, str]:
    settled: Mapping[tuple[str, str], object] = {
        ("paths", "state"): settings.state,
        ("paths", "cache"): settings.cache,
        ("paths", "socket"): settings.socket,
        ("paths", "socket_mode"): f"{settings.socket_mode:04o}",
        ("paths", "models"): settings.models_directory,
    }
    shown: dict[str, str] = {}
    for key in keys():
        section = getattr(document, key.section)
        value = settled.get((key.section, key.name), getattr(section, key.name))
        variable, _ = given.get(_plain(key), ("", None))
        if variable:
            origin = variable
        elif _has(toml.values, (key.section, key.name)):
            origin = f"{toml.path}:{toml.line((key.section, key.name))}"
        else:
            origin = "default"
        shown[f"{key.section}.{key.name}"] = f"{_spelled(value)} ({origin})"
    return shown


def _has(values: Mapping[str, object], place: Sequence[str]) -> bool:
    section = values.get(place[0])
    return isinstance(section, dict) and place[1] in section


def _spelled(value: object) -> str:
    match value:
        case None:
            return UNLIMITED
        case bool():
            return "true" if value else "false"
        case float():
            return spell(value)
        case list():
            return ":".join(map(str, value)) or "none"
        case dict():
            return " ".join(f"{name}={_inner(text)}" for name, text in value.items()) or "none"
        case _:
            return str(value)


def _inner(value: object) -> str:
    if isinstance(value, LimitsSection):
        given = {name: getattr(value, name) for name in LimitsSection.model_fields}
        return "(" + " ".join(f"{name}={_spelled(one)}" for name, one in given.items() if one is not None) + ")"
    return str(value)
