"""Door: the domain's values as JSON, and back.  Pure.

Most values go field by field.  A few are friendlier flat, or with a derived field; those have a *shape*: a dataclass
that is what stands on the wire, and two functions.  Keys of shapes and of values are promises (``docs/protocol.md``).
"""

from __future__ import annotations

import functools
import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from xpucached.domain.defects import Defect, Effect
from xpucached.domain.host import Device, DriverFile, DriverInUse, Host, Problem
from xpucached.domain.jobs import Job
from xpucached.domain.models import Model, ModelStatus, Run, WarmReason, Warmth, Workload
from xpucached.domain.names import Architecture, EntryKey, EntryRef, Fingerprint, KindName, ModelName
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.status import Status
from xpucached.domain.stores import (
    Entry,
    EntryId,
    EntryState,
    ImageFormat,
    Kernel,
    Store,
    StoreOrigin,
    StoreState,
    StoreStatus,
)
from xpucached.domain.targets import Origin, Target
from xpucached.domain.workloads import RunSpec

if TYPE_CHECKING:
    from xpucached.api import Json

T = TypeVar("T")
Wire = TypeVar("Wire")


# -- shapes: what stands on the wire where that is not the value itself --------------------------------------------


@dataclass(frozen=True, slots=True)
class TargetShape:
    """An environment, and the fingerprint that stands for it elsewhere."""

    platform: str
    device: str
    version: str
    driver: str
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class EntryShape:
    """An indexed entry, flat."""

    ref: EntryRef
    kind: KindName
    store: Path
    key: EntryKey
    state: EntryState
    defect: Defect | None
    effect: Effect | None  #: what the defect costs
    message: str  #: the defect in a sentence
    detail: str
    platform: str | None
    device: str | None
    version: str | None
    driver: str | None
    fingerprint: Fingerprint | None
    origin: Origin | None
    architecture: Architecture | None
    options: str
    constants: str
    image: ImageFormat | None
    image_size: int
    binary: ImageFormat | None
    digest: str | None
    kernels: tuple[Kernel, ...]
    size: int
    allocated: int
    created: datetime
    accessed: datetime | None
    first_seen: datetime
    last_used: datetime
    last_used_by: str
    models: tuple[ModelName, ...]
    stamp: str
    hits: int = 0
    program: str = ""
    inherited: tuple[ModelName, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreShape:
    """A store's status, flat; ``store`` is its root directory."""

    kind: KindName
    store: Path
    origin: StoreOrigin
    via: str
    state: StoreState
    owner: int | None
    entries: int
    defective: int
    unfinished: int
    size: int
    allocated: int
    foreign: int
    scanned: datetime | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's status, flat."""

    name: ModelName
    warmth: Warmth
    why: str
    reason: WarmReason | None
    entries: int
    allocated: int
    cold_seconds: float | None
    warm_seconds: float | None
    command: tuple[str, ...]
    directory: Path
    variables: Mapping[str, str]
    timeout: float
    exercise: RunSpec
    workload: str  #: digest of the four above; a run names the one it ran
    store: Path | None
    priority: int
    pinned: bool
    source: str
    before: tuple[str, ...]
    run: Run | None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostShape:
    """The host, and the signature that runs refer to."""

    surveyed: datetime
    boot: str
    kernel: str
    stamp: str
    signature: str
    devices: tuple[Device, ...]
    driver: tuple[DriverFile, ...]
    environments: tuple[Target, ...]
    problems: tuple[Problem, ...]
    drivers: tuple[DriverInUse, ...] = ()


def _environment_out(value: Target) -> TargetShape:
    return TargetShape(value.platform, value.device, value.version, value.driver, value.fingerprint)


def _environment_in(wire: TargetShape) -> Target:
    return Target(wire.platform, wire.device, wire.version, wire.driver)


def _entry_out(value: IndexedEntry) -> EntryShape:
    entry, environment = value.entry, value.entry.environment
    return EntryShape(
        ref=entry.id.ref,
        kind=entry.id.store.kind,
        store=entry.id.store.root,
        key=entry.id.key,
        state=entry.state,
        defect=entry.defect,
        effect=entry.effect,
        message=entry.defect.message if entry.defect else "",
        detail=entry.detail,
        platform=environment.platform if environment else None,
        device=environment.device if environment else None,
        version=environment.version if environment else None,
        driver=environment.driver if environment else None,
        fingerprint=environment.fingerprint if environment else None,
        origin=value.origin,
        architecture=value.architecture,
        options=entry.options,
        constants=entry.constants,
        image=entry.image,
        image_size=entry.image_size,
        binary=entry.binary,
        digest=entry.digest,
        kernels=entry.kernels,
        size=entry.size,
        allocated=entry.allocated,
        created=entry.created,
        accessed=entry.accessed,
        first_seen=value.first_seen,
        last_used=value.last_used,
        last_used_by=value.last_used_by,
        models=value.models,
        inherited=value.inherited,
        stamp=entry.stamp,
        hits=value.hits,
        program=value.program,
    )


def _entry_in(wire: EntryShape) -> IndexedEntry:
    environment = None
    if wire.platform is not None and wire.device is not None and wire.version is not None and wire.driver is not None:
        environment = Target(wire.platform, wire.device, wire.version, wire.driver)
    entry = Entry(
        id=EntryId(Store(wire.kind, wire.store), wire.key),
        stamp=wire.stamp,
        size=wire.size,
        allocated=wire.allocated,
        created=wire.created,
        accessed=wire.accessed,
        environment=environment,
        options=wire.options,
        constants=wire.constants,
        image=wire.image,
        image_size=wire.image_size,
        binary=wire.binary,
        digest=wire.digest,
        kernels=wire.kernels,
        state=wire.state,
        defect=wire.defect,
        detail=wire.detail,
    )
    return IndexedEntry(
        entry=entry,
        origin=wire.origin,
        architecture=wire.architecture,
        models=wire.models,
        inherited=wire.inherited,
        first_seen=wire.first_seen,
        last_used=wire.last_used,
        last_used_by=wire.last_used_by,
        hits=wire.hits,
        program=wire.program,
    )


def _store_out(value: StoreStatus) -> StoreShape:
    rest = {one.name: getattr(value, one.name) for one in fields(value) if one.name != "store"}
    return StoreShape(kind=value.store.kind, store=value.store.root, **rest)


def _store_in(wire: StoreShape) -> StoreStatus:
    rest = {one.name: getattr(wire, one.name) for one in fields(wire) if one.name not in {"kind", "store"}}
    return StoreStatus(store=Store(wire.kind, wire.store), **rest)


def _model_out(value: ModelStatus) -> ModelShape:
    model, workload = value.model, value.model.workload
    return ModelShape(
        name=model.name,
        warmth=value.warmth,
        why=value.why,
        reason=value.reason,
        entries=value.entries,
        allocated=value.allocated,
        cold_seconds=value.cold_seconds,
        warm_seconds=value.warm_seconds,
        command=workload.command,
        directory=workload.directory,
        variables=workload.variables,
        timeout=workload.timeout,
        exercise=workload.exercise,
        workload=workload.digest,
        store=model.store,
        priority=model.priority,
        pinned=model.pinned,
        source=model.source,
        before=model.before,
        run=value.run,
        changes=value.changes,
    )


def _model_in(wire: ModelShape) -> ModelStatus:
    workload = Workload(wire.command, wire.directory, wire.variables, wire.timeout, wire.exercise)
    return ModelStatus(
        model=Model(wire.name, workload, wire.store, wire.priority, wire.pinned, wire.source, wire.before),
        warmth=wire.warmth,
        why=wire.why,
        reason=wire.reason,
        entries=wire.entries,
        allocated=wire.allocated,
        cold_seconds=wire.cold_seconds,
        warm_seconds=wire.warm_seconds,
        run=wire.run,
        changes=wire.changes,
    )


def _host_out(value: Host) -> HostShape:
    return HostShape(signature=value.signature, **{one.name: getattr(value, one.name) for one in fields(value)})


def _host_in(wire: HostShape) -> Host:
    return Host(**{one.name: getattr(wire, one.name) for one in fields(wire) if one.name != "signature"})


@dataclass(frozen=True, slots=True)
class Shape:
    """How values of one type stand on the wire."""

    wire: type
    _out: Callable[[object], object]
    _in: Callable[[object], object]

    def flatten(self, value: object) -> object:
        """From the value to what stands on the wire."""
        return self._out(value)

    def gather(self, wire: object) -> object:
        """And back."""
        return self._in(wire)


def _shape(out: Callable[[T], Wire], back: Callable[[Wire], T], wire: type[Wire]) -> Shape:
    return Shape(wire, cast("Callable[[object], object]", out), cast("Callable[[object], object]", back))


SHAPES: Final[Mapping[type, Shape]] = {
    Target: _shape(_environment_out, _environment_in, TargetShape),
    IndexedEntry: _shape(_entry_out, _entry_in, EntryShape),
    StoreStatus: _shape(_store_out, _store_in, StoreShape),
    ModelStatus: _shape(_model_out, _model_in, ModelShape),
    Host: _shape(_host_out, _host_in, HostShape),
}
"""The values that do not go field by field."""


# -- out ------------------------------------------------------------------------------------------------------------


def to_json(value: object) -> Json:
    """Turn a domain value into what JSON can hold.  Never fails for a domain value."""
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[return-value] # the line above says so
    if (writer := _known.get(kind)) is None:
        writer = _known[kind] = _writer(kind)
    return writer(value)


_PLAIN: Final = frozenset({types.NoneType, bool, int, str})
_known: Final[dict[type, Callable[[object], Json]]] = {}


def _writer(kind: type) -> Callable[[object], Json]:
    """Give what writes values of a type; to find that out takes longer than to write a page of entries."""
    # Enums first: a `StrEnum` is a text too.
    if issubclass(kind, Enum):
        return lambda value: str(cast("Enum", value).value)
    for base, writer in _WRITERS:
        if issubclass(kind, base):
            return writer
    shape = SHAPES.get(kind)
    if shape is not None:
        inner = _fields(shape.wire)
        return lambda value: inner(shape.flatten(value))
    if is_dataclass(kind):
        return _fields(kind)
    message = f"no JSON for {kind.__name__}"
    raise TypeError(message)


def _fields(kind: type) -> Callable[[object], Json]:
    names = _names(kind)
    return lambda value: {name: one if type(one := getattr(value, name)) in _PLAIN else to_json(one) for name in names}


def _time(value: datetime) -> str:
    return (value if value.tzinfo is UTC else value.astimezone(UTC)).isoformat().removesuffix("+00:00") + "Z"


_WRITERS: Final = cast(
    "tuple[tuple[type, Callable[[object], Json]], ...]",
    (
        (datetime, _time),
        (float, lambda value: value if math.isfinite(value) else None),
        (Path, str),
        (Mapping, lambda value: {str(key): to_json(one) for key, one in value.items()}),
        (tuple, lambda value: [to_json(one) for one in value]),
        (list, lambda value: [to_json(one) for one in value]),
        ((int, str), lambda value: value),
    ),
)


def dumps(value: Json) -> bytes:
    """Write JSON as ASCII: lone surrogates (file names that are no UTF-8) and control characters come out escaped."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # The one control character that JSON lets pass.
    return text.replace("\x7f", "\\u007f").encode("ascii")


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


# -- and back -------------------------------------------------------------------------------------------------------


def from_json(kind: type[T], value: Json) -> T:
    """Read what `to_json` wrote.  Unknown keys are ignored: the daemon may be newer than we are.

    Raises `ValueError` that names the place.
    """
    return cast("T", _read(kind, value, "data"))


def _read(kind: object, value: Json, place: str) -> object:  # noqa: PLR0911, PLR0912 - one line per form
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        if value is None:
            return None
        return _read(next(one for one in arguments if one is not types.NoneType), value, place)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(arguments[0], one, f"{place}[{index}]") for index, one in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {key: _read(arguments[1], one, f"{place}.{key}") for key, one in value.items()}
    if kind in {None, types.NoneType} and value is None:
        return None
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in {bool, int, str} and type(value) is kind:
        return value
    if isinstance(kind, type) and isinstance(value, str):
        if issubclass(kind, Enum | Path):
            return kind(value)
        if kind is datetime:
            return datetime.fromisoformat(value)
    if isinstance(kind, type) and kind in SHAPES:
        shape = SHAPES[kind]
        return shape.gather(_read(shape.wire, value, place))
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        return kind(**_members(kind, value, place))
    message = f"{place}: unexpected {json.dumps(value)[:60]}"
    raise ValueError(message)


def _members(kind: type, value: dict[str, Json], place: str) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, (hint, optional) in _hints(kind).items():
        if name in value:
            members[name] = _read(hint, value[name], f"{place}.{name}")
        elif not optional:
            message = f"{place}: {name} is missing"
            raise ValueError(message)
    return members


@functools.cache
def _hints(kind: type) -> Mapping[str, tuple[object, bool]]:
    hints = get_type_hints(kind)
    return {
        one.name: (hints[one.name], one.default is not MISSING or one.default_factory is not MISSING)
        for one in fields(kind)
    }


# -- what lists leave out -------------------------------------------------------------------------------------------


def brief_job(job: Job) -> Job:
    """Give a job without its reports: a plan may name every entry of the host."""
    return replace(job, scan=None, prewarm=None, evict=None, replay=None, trash=None, verify=None)


def without_kernels(job: Job) -> Job:
    """Give a job whose plan names its entries without their kernels, of which one entry may have thousands."""

    def slim(one: IndexedEntry) -> IndexedEntry:
        return replace(one, entry=replace(one.entry, kernels=()))

    if job.evict is not None:
        gone = tuple(replace(one, entry=slim(one.entry)) for one in job.evict.plan.evict)
        job = replace(job, evict=replace(job.evict, plan=replace(job.evict.plan, evict=gone)))
    if job.replay is not None:
        built = tuple(replace(one, entry=slim(one.entry)) for one in job.replay.plan.rebuild)
        job = replace(job, replay=replace(job.replay, plan=replace(job.replay.plan, rebuild=built)))
    return job


def brief_run(run: Run) -> Run:
    """Give a run with no more of what it printed than the line that says why it failed."""
    return replace(run, output=run.last_words, trials=tuple(replace(one, output="") for one in run.trials))


def brief_model(model: ModelStatus) -> ModelStatus:
    """Give a model with a brief run; see `brief_run`."""
    return replace(model, run=brief_run(model.run)) if model.run else model


def brief_status(status: Status) -> Status:
    """Give the status without the reports of its jobs and the output of its runs."""
    return replace(
        status,
        jobs=tuple(brief_job(one) for one in status.jobs),
        models=tuple(brief_model(one) for one in status.models),
    )
