"""`server.redact`: what those see who may only read, value by value."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Union, cast, get_args, get_origin

import pytest
from msgspec import Struct
from msgspec.structs import fields, replace

from tests.support import api_stub
from xpucached.api import requests
from xpucached.domain.diagnosis import Cause, Explanation
from xpucached.domain.host import Host, Problem
from xpucached.domain.jobs import ErrorInfo, Job, JobState, Progress
from xpucached.domain.libraries import Libraries
from xpucached.domain.models import ModelStatus, WarmReason, Warmth
from xpucached.domain.names import JobId
from xpucached.domain.queries import EntryPage
from xpucached.domain.secrecy import HIDDEN
from xpucached.domain.workloads import RunSpec
from xpucached.server import routes
from xpucached.server.redact import redact, redact_environment, redact_settings
from xpucached.service.model_caches import as_store

SECRET = "geheim"  # noqa: S105 - what must not be seen
JOB = Job(JobId("3"), "evict", JobState.DONE, api_stub.NOW)


def seen(one: ModelStatus) -> ModelStatus:
    """Return a model as others see it."""
    shown = redact(one)
    assert isinstance(shown, ModelStatus)
    return shown


def test_of_a_model_the_program_is_shown_and_not_its_arguments() -> None:
    for command, shown in (
        ((), ()),
        (("/bin/app",), ("/bin/app",)),
        (("/bin/app", SECRET), ("/bin/app", HIDDEN)),
        # Not even how many there are.
        (("/bin/app", SECRET, SECRET, SECRET), ("/bin/app", HIDDEN)),
    ):
        one = replace(api_stub.make_model(), command=command)
        assert seen(one).command == shown
        assert seen(one).variables == {"HF_TOKEN": HIDDEN}


def test_of_an_exercise_texts_are_hidden_that_are_there() -> None:
    spec = RunSpec(target=SECRET, inputs="", options={"a": SECRET})
    shown = seen(replace(api_stub.make_model(), exercise=spec)).exercise
    assert (shown.target, shown.inputs, shown.options) == (HIDDEN, "", {"a": HIDDEN})


def test_a_model_s_digest_is_that_of_what_is_shown() -> None:
    """One of its arguments could be guessed, and the guess proven by it."""
    one = api_stub.make_model()
    other = replace(one, command=("/usr/bin/python3", SECRET), variables={"HF_TOKEN": "other"})
    assert seen(one).workload == seen(other).workload != one.workload


@pytest.mark.parametrize(
    ("warmth", "reason", "hidden"),
    [
        (Warmth.WARM, None, False),
        (Warmth.COLD, WarmReason.DRIVER, False),
        (Warmth.COLD, WarmReason.PROGRAM, True),
        (Warmth.FAILED, WarmReason.NEVER, True),
        (Warmth.FAILED, WarmReason.PROGRAM, True),
    ],
)
def test_why_a_model_is_cold_is_shown_unless_it_quotes_its_program(
    warmth: Warmth,
    reason: WarmReason | None,
    hidden: bool,  # noqa: FBT001 - a parameter
) -> None:
    one = replace(api_stub.make_model(), warmth=warmth, reason=reason, why="so", changes=("a", "b"))
    assert seen(one).why == (HIDDEN if hidden else "so")
    assert seen(one).changes == ((HIDDEN, HIDDEN) if hidden else ("a", "b"))


def test_what_a_run_printed_is_not_shown_nor_what_it_was() -> None:
    run = seen(api_stub.make_model()).run
    assert run is not None
    assert (run.detail, run.output, run.workload) == (HIDDEN, "", HIDDEN)
    (trial,) = run.trials
    assert (trial.detail, trial.output, trial.evidence) == (HIDDEN, "", ())


def test_of_a_job_it_is_told_that_it_failed_and_not_why() -> None:
    failed = replace(JOB, error=ErrorInfo("busy", SECRET, SECRET), progress=Progress(detail=SECRET))
    shown = redact(failed)
    assert isinstance(shown, Job)
    assert shown.error == ErrorInfo("busy", f"the job failed: {HIDDEN}", "its user sees why")
    assert shown.progress.detail == HIDDEN
    assert redact(JOB) == JOB


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (Cause.PROGRAM, f"what it needs has changed: {HIDDEN}"),
        (Cause.WARMING, "it is being warmed just now"),
        (Cause.DRIVER, "so"),
        (Cause.UNSAFE, HIDDEN),
    ],
)
def test_a_finding_is_shown_whose_sentence_is_ours(cause: Cause, message: str) -> None:
    assert redact(Explanation(cause, "so")) == Explanation(cause, message)


def test_places_of_libraries_are_not_shown() -> None:
    shown = redact(Libraries((), (Path("/secret/a"),), (Path("/secret/b"), Path("/secret/c"))))
    assert shown == Libraries((), (Path(HIDDEN),), (Path(HIDDEN),) * 2)


def test_where_a_variable_of_a_model_leads_is_not_shown() -> None:
    ours, named, led, _ = api_stub.CACHES
    shown = redact(tuple(as_store(one, api_stub.NOW) for one in (ours, named, led)))
    assert isinstance(shown, tuple)
    assert [one.store for one in shown] == [one.cache.path for one in shown] == [ours.path, named.path, Path(HIDDEN)]
    assert [(one.notes, one.cache.note) for one in shown] == [((), ""), *[((), HIDDEN)] * 2]


def test_a_status_does_not_repeat_a_problem_that_it_hides() -> None:
    bad, fine = Problem("bad-model", f"{SECRET} is wrong"), Problem("no-gpu", "no GPU")
    for problem, said in ((bad, f"This host: {HIDDEN}."), (fine, "This host: no GPU.")):
        one = replace(api_stub.make_status(), problems=(problem,), sentence=f"This host: {problem.message}.")
        assert getattr(redact(one), "sentence", None) == said


# -- every text of every answer, by name: what is new is hidden, or somebody writes here that it is nobody's secret ----

SHOWN: Final = """
Ahead: drivers id what
Baseline: host variant
ComparedVariant: variant
Comparison: differing
CompiledShare: kind library
Compiling: stores
CostlyEntry: driver kernel models ref
Day: day
Defect: code message
Device: architecture kernel_driver kernel_driver_version name pci_address pci_id render_node
DeviceUsage: device
Diagnosis: model
DiskLine: device name
DriverAnswer: device driver platform version
DriverChange: stamp
DriverFile: build_id package version
DriverInUse: models stamp
DriverUsage: driver
Deferred: model
Entry: constants detail digest facts input source stamp
EntryId: key
EntryPage: next
ErrorInfo: code
Event: topic
Evict: detail
EvictCache: detail
Evictable: plan_id
EvictionReport: busy plan_id removed
Explanation: command
Finding: defect fault key message ref
GpuUse: address architecture name
GraphicsUse: device driver
Hello: features version
Host: boot kernel stamp
IndexedEntry: architecture bundle inherited last_used_by models program replay
Job: id kind
Kernel: display library name
KindUsage: kind
Layer: kind
ModelCache: model named ref shared
ModelStatus: before beyond command directory due name source store
ModelUsage: model
Overview: host version
OverviewModel: model
PrewarmReport: covered
Problem: code
Program: libraries name unit
PushOutcome: digest reference
ReplayReport: into
RemovedModel: name too_large
Restored: detail entry key ref
Run: host kernel model
RunSpec: caches compare device precisions python shapes
RuntimeCheck: build
SameInput: key kind ref store
Shift: model variant
Status: ahead_refused version
StatusSummary: ahead failed models problems sentence
Store: kind root
StoreStatus: kind via
SyclRuntime: build
Target: device facts family kind toolchain
Trashed: detail device driver key ref
TrashReport: dropped
Trial: device
UnderWay: what
UpgradeCost: appeared vanished
Variant: device precision shape
WarmthChange: model
Watching: reason
"""
"""Texts of answers that others may see, by their types.

Of a model's command it is the program, of a host's signature what stands before the dash; a summary is made of a status
in which all else is hidden already.
"""


HELD: Final = {"DriverFile", "ErrorInfo", "Progress", "RunSpec", "SyclRuntime"}
"""Types of which it is hidden by what holds them."""


def members_of(kind: object, known: set[type[Struct]]) -> None:
    """Add all types that a type holds."""
    if isinstance(kind, type) and issubclass(kind, Struct) and kind not in known:
        known.add(kind)
        for field in fields(kind):
            members_of(field.type, known)
    for one in get_args(kind):
        members_of(one, known)


def made(kind: object, above: tuple[object, ...] = ()) -> object:
    """Make a value of a type in which each text is secret, and whatever can have failed has."""
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    origin, some = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return made(some[0], above)
    if origin in {Union, types.UnionType}:
        return next((made(one, above) for one in some if one is not types.NoneType and one not in above), None)
    if origin is tuple:
        return tuple(made(one, above) for one in some if one is not Ellipsis and one not in above)
    if origin is not None:
        return {made(some[0], above): made(some[1], above)}
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind(**{one.name: made(one.type, (*above, kind)) for one in fields(kind)})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next((one for one in kind if one.name == "FAILED"), next(iter(kind)))
    if kind is datetime:
        return api_stub.NOW
    if isinstance(kind, type) and issubclass(kind, Path):
        return kind(f"/{SECRET}")
    return SECRET if kind is str else cast("type", kind)(1)


def secret(value: object, place: str) -> Iterator[str]:
    """Yield where a secret stands in a value; of what it holds, only where that is hidden by who holds it."""
    if isinstance(value, tuple):
        for one in value:
            yield from secret(one, place)
    elif isinstance(value, Struct) and (type(value).__name__ in HELD or not place):
        for one in fields(type(value)):
            yield from secret(getattr(value, one.name), f"{type(value).__name__}: {one.name}")
    elif SECRET in str(list(value.values()) if isinstance(value, Mapping) else value) and not isinstance(value, Struct):
        yield place


def test_every_text_of_every_answer_is_hidden_or_said_to_be_nobody_s_secret() -> None:
    known: set[type[Struct]] = set()
    for row in requests.ENDPOINTS:
        members_of(row.reply, known)
    found = {place for kind in known if kind.__name__ not in HELD for place in secret(redact(made(kind)), "")}
    lines = (line.partition(": ") for line in SHOWN.strip().split("\n"))
    listed = {f"{name}: {one}" for name, _, rest in lines for one in rest.split()}

    assert found == listed


def test_a_digest_of_the_variables_of_the_configuration_is_not_shown() -> None:
    """One of them could be guessed, and the guess proven by it."""
    host = Host(api_stub.NOW, "boot", "kernel", "stamp", variables="1234abcd")
    seen = redact(host)
    assert isinstance(seen, Host)
    assert (seen.variables, seen.signature) == ("", host.signature.partition("-")[0])
    run = redact(replace(api_stub.make_run(), host=host.signature))
    assert getattr(run, "host", None) == seen.signature


def test_what_holds_no_secret_is_the_same_value() -> None:
    entry = replace(api_stub.make_entry(1), entry=replace(api_stub.make_entry(1).entry, options=""))
    for one in (api_stub.make_store(), entry, 3, "text", None):
        assert redact(one) is one
    assert redact((api_stub.make_store(), "text")) == (api_stub.make_store(), "text")


def test_of_settings_variables_are_hidden() -> None:
    assert redact_settings({"driver.variables": SECRET, "log.level": "info"}) == {
        "driver.variables": HIDDEN,
        "log.level": "info",
    }


@pytest.mark.parametrize(
    ("value", "long"),
    [
        ((1,) * 1000, False),
        ((1,) * 1001, True),
        (EntryPage((), 0, 0, None), True),
        (JOB, False),
        (replace(JOB, report=api_stub.make_eviction(dry_run=True)), True),
        (replace(JOB, mended=api_stub.make_verification()), True),
        (requests.Hello(1, "1"), False),
    ],
)
def test_a_long_answer_is_written_where_nobody_waits(value: object, long: bool) -> None:  # noqa: FBT001 - a parameter
    assert routes._is_long(value) is long


def test_a_reader_is_told_no_variables_but_those_of_our_caches() -> None:
    ours = {"SYCL_CACHE_DIR": "/c", "NEO_CACHE_DIR": "/n"}
    theirs = {"TRITON_CACHE_DIR": SECRET, "SYCL_PROGRAM_COMPILE_OPTIONS": SECRET, "LD_LIBRARY_PATH": SECRET}
    assert redact_environment({**ours, **theirs}) == ours
