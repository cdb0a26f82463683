"""Act: what the supervisor and the model runner say, read with the suspicion that foreign code deserves.  Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Struct, field

from xpucached import messages
from xpucached.domain.device_use import GraphicsUse
from xpucached.domain.models import Figures, Outcome, RanOn
from xpucached.printing import encodable

_TEXT: Final = 2000
_MANY: Final = 100
_MOST_PATHS: Final = 10_000
_LONGEST_PATH: Final = 4096
_LARGEST: Final = 1 << 62
_LONGEST: Final = 1 << 20
"""Bytes of one line."""
_OUTCOMES: Final = {"failed", "invalid", "over-memory", "over-disk"}
_WHOLE: Final = frozenset({"tokens", "prompts", "device_memory"})


class SeenInterpreter(Struct, frozen=True):
    """A shell or a Python that was seen to run."""

    directory: str  #: where it worked
    words: tuple[str, ...]
    variables: Mapping[str, str]  #: of its own, those that lead to files


class SupervisorReport(Struct, frozen=True):
    """What the supervisor saw."""

    status: int | None = None
    outcome: Outcome | None = None
    detail: str = ""
    error: str = ""
    seconds: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    left: tuple[int, ...] = ()
    engines: Mapping[str, int] = field(default_factory=dict)
    mapped: tuple[str, ...] = ()
    mapped_data: tuple[str, ...] = ()
    interpreters: tuple[SeenInterpreter, ...] = ()
    graphics: tuple[GraphicsUse, ...] = ()
    bounds: tuple[tuple[str, str], ...] = ()  #: variables of its processes by which caches leave out programs
    places: tuple[str, ...] = ()  #: where its processes look for programs and libraries, or were come to themselves
    terminated: bool = False  #: somebody else sent the supervisor SIGTERM, as systemd does at the end of the host


@dataclass(frozen=True, slots=True)
class RunnerReport:
    """What the model runner told."""

    outcome: Outcome | None = None
    problem: str = ""
    ran_on: RanOn = RanOn.UNKNOWN
    device: str = ""
    evidence: tuple[str, ...] = ()
    figures: Figures | None = None
    devices: tuple[str, ...] = ()


def read_seen(content: bytes) -> SupervisorReport | None:
    """Read the supervisor's line; None if there is none, which means that it was killed."""
    said = _object(content.strip().rpartition(b"\n")[2])
    if said is None:
        return None
    status = said.get("status")
    engines: dict[str, int] = {}
    for pair in _list(said.get("engines")):
        match pair:
            case [str(device), spent] if (time := _whole(spent)) is not None:
                engines[device] = min(engines.get(device, 0) + time, _LARGEST)
    return SupervisorReport(
        _whole(status),
        _outcome(said.get("outcome")),
        _text(said.get("detail")),
        _text(said.get("error")),
        _number(said.get("seconds")) or 0.0,
        _number(said.get("cpu")) or 0.0,
        int(_number(said.get("peak")) or 0),
        tuple(one for one in map(_whole, _list(said.get("left"))) if one is not None),
        engines,
        paths(said.get("mapped")),
        paths(said.get("mapped_data")),
        tuple(_interpreters(said.get("interpreters"))),
        tuple(_graphics(said.get("graphics"))),
        tuple(_pairs(said.get("bounds"))),
        paths(said.get("places")),
        said.get("terminated") is True,
    )


def _pairs(said: object) -> Iterator[tuple[str, str]]:
    for one in _list(said):
        match one:
            case [str(name), str(value)] if len(name) + len(value) <= 2 * _LONGEST_PATH:
                yield encodable(name), encodable(value)


def _graphics(said: object) -> Iterator[GraphicsUse]:
    for one in _list(said):
        match one:
            case [str(device), str(driver), seconds, memory] if (spent := _number(seconds)) is not None:
                yield GraphicsUse(_text(device), _text(driver), max(0.0, spent), max(0, _whole(memory) or 0))


def _interpreters(said: object) -> Iterator[SeenInterpreter]:
    for one in map(_mapping, _list(said)):
        match one:
            case {"directory": str(directory), "words": list(words), "variables": dict(variables)} if _is_path(
                directory
            ):
                texts = (*words, *variables.values())
                # What is no Unicode cannot be written down.
                if all(isinstance(text, str) and "\0" not in text and encodable(text) == text for text in texts):
                    yield SeenInterpreter(directory, tuple(words), variables)


def read_told(content: bytes, token: str) -> RunnerReport | None:
    """Read the model runner's last line that carries the token; the model's code may have written there, too."""
    mark = token.encode()
    for line in reversed(content.split(b"\n")):
        said = _object(line) if mark in line else None
        if said is not None and said.get("token") == token and isinstance(said.get("report"), dict):
            return _told(_mapping(said["report"]))
    return None


def _told(said: Mapping[str, object]) -> RunnerReport:
    ran_on = said.get("ran_on")
    return RunnerReport(
        _outcome(said.get("outcome")),
        _text(said.get("problem")),
        RanOn(ran_on) if isinstance(ran_on, str) and ran_on in set(RanOn) else RanOn.UNKNOWN,
        _text(said.get("device")),
        tuple(_text(one) for one in _list(said.get("evidence"))),
        _figures(said.get("figures")),
        tuple(one for one in _list(said.get("devices")) if isinstance(one, str) and _is_device(one)),
    )


def _figures(said: object) -> Figures | None:
    if not isinstance(said, dict):
        return None
    numbers = {name: _number(said.get(name)) for name in Figures.__struct_fields__}
    whole = {name: int(number) for name, number in numbers.items() if name in _WHOLE and number is not None}
    parts = {name: number for name, number in numbers.items() if name not in _WHOLE}
    return Figures(**parts, **whole)  # type: ignore[arg-type] # which are whole is said above


def _object(line: bytes) -> Mapping[str, object] | None:
    try:
        # What cannot be a character stands for a byte of a path.
        return messages.members(messages.parse(line, largest=_LONGEST, escaped_bytes=True))
    except messages.BadMessage:
        return None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value[:_MANY] if isinstance(value, list) else []


def paths(value: object) -> tuple[str, ...]:
    """Take absolute paths that can be written down."""
    if not isinstance(value, list):
        return ()
    return tuple(one for one in value[:_MOST_PATHS] if isinstance(one, str) and _is_path(one))


def _is_path(text: str) -> bool:
    plain = text.startswith("/") and len(text) <= _LONGEST_PATH and "\0" not in text
    # A lone surrogate stands for bytes that are no UTF-8, and cannot be kept.
    return plain and encodable(text) == text


def _is_device(text: str) -> bool:
    # It goes into the catalog, and what cannot be written down there keeps a run from ever being over.
    return len(text) < _MANY and encodable(text) == text


def _text(value: object) -> str:
    return encodable(value[:_TEXT]) if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if abs(value) < _LARGEST else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < _LARGEST else None


def _outcome(value: object) -> Outcome | None:
    return Outcome(value) if isinstance(value, str) and value in _OUTCOMES else None
