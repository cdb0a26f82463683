"""Door: what may stand in the configuration, as pydantic sees it.  Pure.

A key's documentation is ``docs/configuration.md``; a test compares the two.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from xpucached import quantities, sockets
from xpucached.errors import guess
from xpucached.settings import store_places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

PREFIX: Final = "XPUCACHED_"

UNLIMITED: Final = "unlimited"

_DAY: Final = 86400.0


def spell(seconds: float) -> str:
    """Write a duration as it may stand in the configuration."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


# -- values -------------------------------------------------------------------------------------------------------


def _duration(least: float, most: float, *, unlimited: bool = False) -> Callable[[object], object]:
    """Make what reads a duration between two bounds, in seconds; None is unlimited."""
    expected = f"expected a duration such as 90s, 10m or 7d, from {spell(least)} to {spell(most)}"
    expected += f', or "{UNLIMITED}"' if unlimited else ""

    def read(value: object) -> float | None:
        if unlimited and (value is None or value == UNLIMITED):
            return None
        seconds = _number(value, quantities.duration, expected)
        if not least <= seconds <= most:
            raise ValueError(expected)
        return float(seconds)

    return read


def _size(value: object) -> int | None:
    """Read a size in bytes above 0; None is unlimited."""
    # To some runtimes 0 means no limit.  Here it could mean either, so it means nothing.
    expected = f'expected a size above 0 such as 512MB or 10GiB, or "{UNLIMITED}"'
    if value is None or value == UNLIMITED:
        return None
    if isinstance(value, float):
        raise ValueError(expected)  # noqa: TRY004 - pydantic turns only a ValueError into an answer
    number = int(_number(value, quantities.size, expected))
    if not 0 < number < 1 << 63:
        raise ValueError(expected)
    return number


def _bounded_size(value: object) -> int:
    """Read a size in bytes above 0."""
    size = _size(value)
    if size is None:
        expected = "expected a size above 0 such as 512MB or 10GiB"
        raise ValueError(expected)
    return size


def _own_unused(value: object) -> float | None:
    """Read how long an entry of one store or user may be unused; infinite where it is unlimited there."""
    if value is None:
        return None
    seconds = _duration(1, 36500 * _DAY, unlimited=True)(value)
    return float(seconds) if isinstance(seconds, float) else math.inf


def _by_path(value: object) -> object:
    """Read tables whose names are stores."""
    if isinstance(value, dict):
        for name in value:
            absolute(name)
    return value


def _number(value: object, read: Callable[[str], float], expected: str) -> float:
    if isinstance(value, str):
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(expected) from error
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise ValueError(expected)


def absolute(value: object) -> object:
    """Read an absolute path."""
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        expected = "expected an absolute path (~ and variables are not expanded)"
        raise ValueError(expected)
    return Path(value)


def _mode(value: object) -> object:
    """Read permissions in octal digits, as ``chmod`` takes them."""
    if value is None:
        return None
    text = value if isinstance(value, str) else ""
    if not (len(text) in {3, 4} and set(text) <= set("01234567")) or int(text, 8) & ~0o666 or not int(text, 8) & 0o600:
        expected = 'expected permissions to read and write in octal digits as a string, such as "0660"'
        raise ValueError(expected)
    return int(text, 8)


def variables(value: object) -> object:
    """Read environment variables."""
    if not isinstance(value, dict):
        expected = 'expected a table of variables, such as { LD_LIBRARY_PATH = "/opt/driver/lib" }'
        raise ValueError(expected)  # noqa: TRY004 - pydantic turns only a ValueError into an answer
    for name, text in value.items():
        if not name or "=" in name or "\0" in name:
            message = f"{name!r} cannot be the name of a variable"
            raise ValueError(message)
        if not isinstance(text, str) or "\0" in text:
            message = f"{name}: expected a string"
            raise ValueError(message)
    return value


def lower(value: object) -> object:
    """Read a word without regard to its case."""
    return value.lower() if isinstance(value, str) else value


AbsolutePath = Annotated[Path, BeforeValidator(absolute)]
Variables = Annotated[Mapping[str, str], BeforeValidator(variables)]


# -- the sections -------------------------------------------------------------------------------------------------


class Section(BaseModel):
    """A table in which nothing unknown may stand."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Paths(Section):
    """Where things are; each None has a default that depends on who we run as."""

    state: AbsolutePath | None = None
    cache: AbsolutePath | None = None
    socket: AbsolutePath | None = None
    socket_mode: Annotated[int | None, BeforeValidator(_mode)] = None
    models: AbsolutePath | None = None


class Stores(Section):
    """Which stores are looked after, besides our own."""

    found: bool = True
    paths: Annotated[list[Annotated[str, BeforeValidator(store_places.checked)]], Field(max_length=1000)] = []


class Driver(Section):
    """How the driver is asked."""

    variables: Variables = {}
    probe_timeout: Annotated[float, BeforeValidator(_duration(1, 600))] = 30.0
    compile_timeout: Annotated[float, BeforeValidator(_duration(1, 86400))] = 300.0


class LimitsSection(Section):
    """What holds for one store or one user; what is not given holds as for all."""

    keep_driver_generations: Annotated[int | None, Field(ge=0, le=1000)] = None
    max_unused: Annotated[float | None, BeforeValidator(_own_unused)] = None
    max_bytes: Annotated[int | None, BeforeValidator(_size)] = None
    min_free_bytes: Annotated[int | None, BeforeValidator(_size)] = None
    grace: Annotated[float | None, BeforeValidator(_duration(0, 365 * _DAY))] = None


class PolicySection(Section):
    """What is kept, and what is tried."""

    keep_driver_generations: Annotated[int, Field(ge=0, le=1000)] = 1
    max_unused: Annotated[float | None, BeforeValidator(_duration(1, 36500 * _DAY, unlimited=True))] = 90 * _DAY
    max_bytes: Annotated[int | None, BeforeValidator(_size)] = None
    grace: Annotated[float, BeforeValidator(_duration(0, 365 * _DAY))] = 600.0
    min_free_bytes: Annotated[int | None, BeforeValidator(_size)] = None
    quota: Annotated[int | None, BeforeValidator(_size)] = None
    low_water: Annotated[int, Field(ge=1, le=100)] = 100
    trash_keep: Annotated[float, BeforeValidator(_duration(0, 365 * _DAY))] = 7 * _DAY
    trash_max_bytes: Annotated[int, BeforeValidator(_bounded_size)] = 1 << 30
    stores: Annotated[dict[str, LimitsSection], BeforeValidator(_by_path)] = {}
    users: dict[str, LimitsSection] = {}
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    retry_after: Annotated[float, BeforeValidator(_duration(0, 365 * _DAY))] = 900.0


class Schedule(Section):
    """When we look, and what follows by itself."""

    scan_interval: Annotated[float, BeforeValidator(_duration(1, 365 * _DAY))] = 600.0
    settle: Annotated[float, BeforeValidator(_duration(0, 60))] = 2.0
    scrub: Annotated[float | None, BeforeValidator(_duration(60, 36500 * _DAY, unlimited=True))] = 7 * _DAY
    replay: bool = True
    prewarm: bool = True
    evict: bool = True


_WINDOW: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d) ?- ?([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_ALWAYS: Final = "always"


def _window(value: object) -> str:
    """Read a time of day as it is written, ``22:00-06:00``, or `_ALWAYS`."""
    match = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    if value != _ALWAYS and (match is None or match.groups()[:2] == match.groups()[2:]):
        expected = 'expected two different times of day, such as "22:00-06:00", or "always"'
        raise ValueError(expected)
    return str(value)


def window(text: str) -> tuple[int, int] | None:
    """Turn a window into minutes after midnight."""
    match = _WINDOW.fullmatch(text)
    if match is None:
        return None
    hour, minute, last_hour, last_minute = map(int, match.groups())
    return hour * 60 + minute, last_hour * 60 + last_minute


def _percent(value: object) -> int | None:
    """Read a share in percent; None is no limit."""
    expected = f'expected whole percent, such as 40 or "40%", from 1 to 100, or "{UNLIMITED}"'
    if value is None or value == UNLIMITED:
        return None
    number = _number(value, lambda text: float(text.removesuffix("%")), expected)
    if not 1 <= number <= 100:  # noqa: PLR2004 - the sentence says it
        raise ValueError(expected)
    return round(number)


Percent = Annotated[int | None, BeforeValidator(_percent)]


class ThrottleSection(Section):
    """How runs that nobody waits for behave towards others."""

    window: Annotated[str, BeforeValidator(_window)] = _ALWAYS
    only_when_idle: bool = False
    cpu_pressure: Percent = 60
    memory_pressure: Percent = 10
    io_pressure: Percent = 40
    gpu_busy: Percent = 20
    max_wait: Annotated[float, BeforeValidator(_duration(0, 7 * _DAY))] = 3600.0
    isolate: bool = True
    tasks: Annotated[int, Field(ge=16, le=1_000_000)] = 4096


class WatchSection(Section):
    """How changes are noticed."""

    mode: Annotated[Literal["auto", "inotify", "polling"], BeforeValidator(lower)] = "auto"
    loads: bool = False
    socket: AbsolutePath = Path(sockets.WATCH)


def _names(value: object) -> object:
    """Read users, by name or number."""
    expected = 'expected an array of users, by name or number, such as ["llm", "1005"]'
    if not isinstance(value, list) or not all(isinstance(one, str) and _USER.fullmatch(one) for one in value):
        raise ValueError(expected)
    return value


_USER: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@-]{0,63}\$?", re.ASCII)


class Workers(Section):
    """Whom the host's daemon looks after, and how long a worker stays."""

    humans: bool = True
    include: Annotated[list[str], BeforeValidator(_names)] = []
    exclude: Annotated[list[str], BeforeValidator(_names)] = []
    every: Annotated[float, BeforeValidator(_duration(60, 365 * _DAY))] = 3600.0
    idle: Annotated[float | None, BeforeValidator(_duration(1, 365 * _DAY, unlimited=True))] = 900.0


class Log(Section):
    """What is told."""

    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = "info"


class Document(BaseSettings):
    """The whole configuration: the file, and the variables over it."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    paths: Paths = Paths()
    stores: Stores = Stores()
    driver: Driver = Driver()
    policy: PolicySection = PolicySection()
    schedule: Schedule = Schedule()
    throttle: ThrottleSection = ThrottleSection()
    watch: WatchSection = WatchSection()
    workers: Workers = Workers()
    log: Log = Log()

    def __init__(self, *, file: Mapping[str, object], variables: Mapping[str, object]) -> None:
        # Passed on as what they are not, fields: this is how the sources below come by them.
        super().__init__(file=file, variables=variables)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - reads the process's variables; we are given ours
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there are none
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there are none
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the two sources that the constructor was given."""
        given = init_settings.init_kwargs if isinstance(init_settings, InitSettingsSource) else {}
        return (ConfigSource(settings_cls, given["variables"]), ConfigSource(settings_cls, given["file"]))


class ConfigSource(PydanticBaseSettingsSource):
    """Values that were read already."""

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, object]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[object, str, bool]:  # noqa: ARG002 - the base's
        """Give the value of one field."""
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, object]:
        """Give them all."""
        return dict(self._values)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the configuration."""

    section: str
    name: str
    default: object

    @property
    def variable(self) -> str:
        """The environment variable that overrides it."""
        return f"{PREFIX}{self.section}_{self.name}".upper()

    def from_text(self, text: str) -> object:
        """Turn a variable's text into what would stand in the file.

        Raises `ValueError` with a sentence that says what was expected.
        """
        match self.default:
            case bool():
                word = text.strip().lower()
                if word in {"1", "true", "yes", "on"}:
                    return True
                if word in {"0", "false", "no", "off"}:
                    return False
                expected = "expected true or false"
            case int():
                if text.strip().isdecimal() and len(text) < 20:  # noqa: PLR2004 - what fits into 64 bits
                    return int(text)
                if text.strip() == UNLIMITED:
                    # Whether that is something here, the key itself knows.
                    return UNLIMITED
                expected = "expected a whole number"
            case list():
                return store_places.listed(text)
            case dict():
                expected = 'expected a JSON object, such as {"LD_LIBRARY_PATH": "/opt/driver/lib"}'
                try:
                    value: object = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise ValueError(expected) from error
                if isinstance(value, dict):
                    return value
            case _:
                return text
        raise ValueError(expected)


def keys() -> tuple[Key, ...]:
    """Give every key there is, in the order of the documentation."""
    found: list[Key] = []
    for section, field in Document.model_fields.items():
        model = type(field.default)
        found += [
            Key(section, name, inner.get_default(call_default_factory=True))
            for name, inner in model.model_fields.items()
        ]
    return tuple(found)


# -- what is wrong, in words --------------------------------------------------------------------------------------

_WORDS: Final[Mapping[str, str]] = {
    "bool_type": "expected true or false",
    "dict_type": "expected a table",
    "int_type": "expected a whole number",
    "list_type": "expected an array",
    "model_type": "expected a table",
    "model_attributes_type": "expected a table",
    "string_type": "expected a string",
    "tuple_type": "expected an array",
}


RENAMED: Final[Mapping[str, str]] = {"manners": "throttle", "opens": "loads", "patience": "max_wait"}
"""What keys were called before 0.1.0, and what they are called now."""


def explain(fault: ErrorDetails, known: Sequence[str]) -> str:
    """Say in a sentence what is wrong with a value; ``known`` are the keys that may stand where it does."""
    kind = fault["type"]
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        name = str(fault["loc"][-1])
        if name in RENAMED and RENAMED[name] in known:
            return f"unknown key; it is called {RENAMED[name]} now"
        return f"unknown key; {guess(name, known) or 'expected one of ' + ', '.join(known)}"
    text = _WORDS.get(kind) or fault["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    shown = repr(fault["input"])
    return f"{text}; found {shown[:60]}{'…' if len(shown) > 60 else ''}"  # noqa: PLR2004 - what fits on a line
