"""Door: the domain's values as JSON, and back, by msgspec.  Pure.

Every value goes field by field.  One is friendlier flat: `IndexedEntry`, which stands on the wire as `EntryShape`; what
holds one has a twin that holds the shape, made here.  The keys are promises (``docs/protocol.md``).
"""

from __future__ import annotations

import functools
import json
import operator
import re
import threading
import types
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, replace

from xpucached.domain.defects import Defect, Effect
from xpucached.domain.jobs import Job
from xpucached.domain.models import ModelStatus, Run
from xpucached.domain.names import Architecture, AwareDatetime, EntryKey, EntryRef, Fingerprint, KindName, ModelName
from xpucached.domain.plans import IndexedEntry, SameInput
from xpucached.domain.recipes import RecipeState
from xpucached.domain.reports import EvictionReport, ReplayReport
from xpucached.domain.status import Status
from xpucached.domain.stores import Entry, EntryId, EntryState, ImageFormat, Kernel, Store
from xpucached.domain.targets import Origin, Target
from xpucached.domain.usage import Cost, CostSource

if TYPE_CHECKING:
    from xpucached.messages import Json

T = TypeVar("T")


class EntryShape(Struct, frozen=True):
    """One compiled program in a store."""

    ref: EntryRef
    kind: KindName
    store: Path
    key: EntryKey
    state: EntryState
    defect: str | None
    effect: Effect | None  #: what the defect costs
    message: str  #: the defect in a sentence
    detail: str
    target: Target | None
    device: str | None  #: the target's, as its kind names it
    driver: str | None  #: the target's toolchain
    fingerprint: Fingerprint | None  #: the target's
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
    created: AwareDatetime
    accessed: AwareDatetime | None
    first_seen: AwareDatetime
    last_used: AwareDatetime
    last_used_by: str
    models: tuple[ModelName, ...]
    stamp: str
    hits: int = 0
    program: str = ""
    inherited: tuple[ModelName, ...] = ()
    input: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    elsewhere: tuple[SameInput, ...] = ()
    bundle: str = ""
    recipe: RecipeState | None = None
    replay: str = ""
    cost: Cost | None = None  #: what compiling it takes; null: unknown


EntryShape.__name__ = IndexedEntry.__name__  # what the description calls it


def _shared(kind: type[Struct]) -> tuple[str, ...]:
    return tuple(name for name in EntryShape.__struct_fields__ if name in kind.__struct_fields__)


_OF_ENTRY: Final = tuple(name for name in _shared(Entry) if name != "defect")
_OF_INDEXED: Final = tuple(name for name in _shared(IndexedEntry) if name != "cost")


def _flatten(value: IndexedEntry) -> EntryShape:
    entry, target = value.entry, value.entry.environment
    return EntryShape(
        ref=entry.id.ref,
        kind=entry.id.store.kind,
        store=entry.id.store.root,
        key=entry.id.key,
        defect=entry.defect.code if entry.defect else None,
        effect=entry.effect,
        message=entry.defect.message if entry.defect else "",
        target=target,
        device=target.device if target else None,
        driver=target.toolchain if target else None,
        fingerprint=target.fingerprint if target else None,
        cost=_cost(value),
        **{name: getattr(entry, name) for name in _OF_ENTRY},
        **{name: getattr(value, name) for name in _OF_INDEXED},
    )


def _cost(value: IndexedEntry) -> Cost | None:
    source, seconds = CostSource.of(value), value.estimated if value.cost is None else value.cost
    return None if source is None or seconds is None else Cost(seconds, source)


def _gather(wire: EntryShape) -> IndexedEntry:
    defect = None
    if wire.defect is not None:
        defect = Defect(wire.defect, wire.effect or Effect.UNKNOWN, wire.message, ())
    entry = Entry(
        id=EntryId(Store(wire.kind, wire.store), wire.key),
        environment=wire.target,
        defect=defect,
        **{name: getattr(wire, name) for name in _OF_ENTRY},
    )
    value = IndexedEntry(entry, **{name: getattr(wire, name) for name in _OF_INDEXED})
    if wire.cost is None:
        return value
    seconds, estimated = wire.cost.seconds, wire.cost.source is CostSource.ESTIMATE
    return replace(value, estimated=seconds) if estimated else replace(value, cost=seconds)


# -- twins: what holds an entry, as it stands on the wire -----------------------------------------------------------

_ORIGINALS: Final[dict[type, type[Struct]]] = {}


def _default(one: FieldInfo) -> object:
    made = one.default_factory
    return msgspec.field(default=one.default) if made is NODEFAULT else msgspec.field(default_factory=made)


@functools.cache
def twin(kind: Hashable) -> object:
    """Return the type that stands on the wire for this one: itself, unless there is an entry in it."""
    if kind is IndexedEntry:
        return EntryShape
    if isinstance(kind, type) and issubclass(kind, Struct):
        members = [(one, twin(one.type)) for one in msgspec.structs.fields(kind)]
        if all(one.type is other for one, other in members):
            return kind
        made = msgspec.defstruct(
            kind.__name__,
            [(one.name, other) if one.required else (one.name, other, _default(one)) for one, other in members],
            namespace={"__doc__": kind.__doc__},
            frozen=True,
            tag_field=kind.__struct_config__.tag_field,
            tag=kind.__struct_config__.tag,
        )
        _ORIGINALS[made] = kind
        return made
    if get_origin(kind) is Annotated:
        return kind
    some = get_args(kind)
    others = tuple(map(twin, some))
    if others == some:
        return kind
    union = get_origin(kind) in {Union, types.UnionType}
    return functools.reduce(operator.or_, others) if union else tuple[others]  # type: ignore[valid-type] # made here


def _out(value: object) -> object:
    if isinstance(value, IndexedEntry):
        return _flatten(value)
    if isinstance(value, tuple):
        return tuple(map(_out, value))
    if isinstance(value, Struct) and (wire := twin(type(value))) is not type(value):
        members = (_out(getattr(value, name)) for name in value.__struct_fields__)
        return cast("type[Struct]", wire)(*members)
    return value


def _in(value: object) -> object:
    if isinstance(value, EntryShape):
        return _gather(value)
    if isinstance(value, tuple):
        return tuple(map(_in, value))
    if type(value) in _ORIGINALS:
        names = cast("Struct", value).__struct_fields__
        return _ORIGINALS[type(value)](*(_in(getattr(value, name)) for name in names))
    return value


# -- out, and back --------------------------------------------------------------------------------------------------


def to_json(value: object) -> Json:
    """Turn a domain value into what `dumps` writes: lists are tuples still.  Never fails for a domain value."""
    if isinstance(value, datetime):
        value = value.astimezone(UTC)
    return cast("Json", msgspec.to_builtins(_out(value), str_keys=True, enc_hook=_encode))


def _encode(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    message = f"no JSON for {type(value).__name__}"
    raise TypeError(message)


def dumps(value: Json) -> bytes:
    """Write JSON as ASCII: lone surrogates (file names that are no UTF-8) and control characters come out escaped."""
    try:
        text = _dumps(value)
    except ValueError:
        # There are no such numbers in JSON as infinity.
        text = _dumps(json.loads(json.dumps(value), parse_constant=lambda _: None))
    # The one control character that JSON lets pass.
    return text.replace("\x7f", "\\u007f").encode("ascii")


_dumps: Final = functools.partial(json.dumps, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def from_json(kind: type[T], value: Json) -> T:
    """Read what `to_json` wrote.  Unknown keys are ignored: the daemon may be newer than we are.

    Raises `ValueError` that names the place.
    """
    try:
        return cast("T", _in(convert(value, twin(cast("Hashable", kind)))))
    except msgspec.ValidationError as error:
        place, text = fault(error)
        raise ValueError(f"{'.'.join(filter(None, ('data', place)))}: {text}".replace(".[", "[")) from None


_met: Final[set[object]] = set()
_meeting: Final = threading.Lock()
"""Where two threads meet types that share one for the first time at once, msgspec crashes."""


def convert(value: object, kind: object, *, strict: bool = True) -> object:
    """Read a value that goes field by field.  Raises `msgspec.ValidationError`; see `fault`."""
    read = functools.partial(msgspec.convert, value, cast("type[object]", kind), strict=strict, dec_hook=_decode)
    if kind in _met:
        return read()
    with _meeting:
        try:
            return read()
        finally:
            _met.add(kind)


def _decode(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    message = f"Expected `str`, got `{type(value).__name__}`"
    raise TypeError(message)


_LONGEST: Final = 200
"""Characters of what is wrong, and of where, that are told: a sentence may quote all that was said."""
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_KINDS: Final = {"int": "integer", "bool": "boolean", "float": "number", "str": "string"}


def fault(error: Exception) -> tuple[str, str]:
    """Return the place of a fault in a value, empty if that is the whole, and what is wrong there."""
    # From the end: what stands before it may quote anything.
    text, _, place = str(error).rpartition(" - at `")
    if not text or not place.endswith("`"):
        text, place = str(error), ""
    text, place = text[:_LONGEST], place.rpartition("$")[2].removeprefix(".").removesuffix("`")[:_LONGEST]
    if missing := _MISSING.fullmatch(text):
        return ".".join(filter(None, (place, missing[1]))), "is required"
    if expected := re.match(r"Expected `(\w+)", text):
        kind = expected[1]
        return place, f"expected {'an' if kind in {'object', 'array'} else 'a valid'} {_KINDS.get(kind, kind)}"
    return place, text


# -- what lists leave out -------------------------------------------------------------------------------------------


def brief_job(job: Job) -> Job:
    """Return a job without its reports: a plan may name every entry of the host."""
    return replace(job, mended=None, report=None)


def without_kernels(job: Job) -> Job:
    """Return a job whose plan names its entries without their kernels, of which one entry may have thousands."""

    def slim(one: IndexedEntry) -> IndexedEntry:
        return replace(one, entry=replace(one.entry, kernels=()))

    report = job.report
    if isinstance(report, EvictionReport):
        gone = tuple(replace(one, entry=slim(one.entry)) for one in report.plan.evict)
        return replace(job, report=replace(report, plan=replace(report.plan, evict=gone)))
    if isinstance(report, ReplayReport):
        built = tuple(replace(one, entry=slim(one.entry)) for one in report.plan.rebuild)
        return replace(job, report=replace(report, plan=replace(report.plan, rebuild=built)))
    return job


def brief_run(run: Run) -> Run:
    """Return a run with no more of what it printed than the line that says why it failed."""
    return replace(run, output=run.last_words, trials=tuple(replace(one, output="") for one in run.trials))


def brief_model(model: ModelStatus) -> ModelStatus:
    """Return a model with a brief run; see `brief_run`."""
    return replace(model, run=brief_run(model.run)) if model.run else model


def brief_status(status: Status) -> Status:
    """Return the status without the reports of its jobs and the output of its runs."""
    return replace(
        status,
        jobs=tuple(brief_job(one) for one in status.jobs),
        models=tuple(brief_model(one) for one in status.models),
    )
