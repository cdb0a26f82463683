"""The wire: values and requests there and back, its description, and its manual."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from tests import REPOSITORY
from tests.support import api_stub, histories
from xpucached import codec, quantities, sockets
from xpucached.api import client, host_requests, imports, intake, looking, openapi, requests
from xpucached.api.endpoints import Request
from xpucached.domain.bundles import MadeEntry
from xpucached.domain.defects import Effect
from xpucached.domain.diagnosis import Baseline, Diagnosis
from xpucached.domain.host import Host
from xpucached.domain.jobs import ErrorInfo, Event, Job, JobState
from xpucached.domain.models import ModelStatus, Outcome, Run, WarmReason, Warmth
from xpucached.domain.names import AwareDatetime, EntryKey, JobId, KindName, ModelName
from xpucached.domain.overview import Overview
from xpucached.domain.plans import EvictReason, IndexedEntry
from xpucached.domain.queries import EntryPage, EntryQuery
from xpucached.domain.reports import PrewarmReport, ScanReport, TrashReport
from xpucached.domain.status import Status, Verdict
from xpucached.domain.stores import EntryState, ImageFormat, StoreOrigin, StoreState, StoreStatus
from xpucached.domain.targets import Origin
from xpucached.domain.trash import Trashed
from xpucached.domain.users import SavedState
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.errors import Conflict, NotFound, RequestError, Unavailable, XpucachedError
from xpucached.kinds import sycl
from xpucached.messages import Json
from xpucached.service.handlers import HANDLERS
from xpucached.service.model_caches import as_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROTOCOL = REPOSITORY / "docs" / "protocol.md"

JOB = Job(
    id=JobId("3"),
    kind="evict",
    state=JobState.DONE,
    created=api_stub.NOW,
    mended=api_stub.make_verification(),
    report=api_stub.make_eviction(dry_run=False),
    error=ErrorInfo("busy", "too much to do", "wait"),
)

SAMPLES: list[tuple[object, object]] = [
    (Status, api_stub.make_status(jobs=(JOB,))),
    (Host, api_stub.make_host()),
    (tuple[StoreStatus, ...], (api_stub.make_store(), as_store(api_stub.CACHES[1], api_stub.NOW))),
    (EntryPage, EntryPage((api_stub.make_entry(1), api_stub.make_defective()), 9, 4096, "2")),
    (IndexedEntry, api_stub.make_defective()),
    (tuple[ModelStatus, ...], (api_stub.make_model(),)),
    (tuple[Run, ...], (api_stub.make_run(),)),
    (IndexedEntry, replace(api_stub.make_entry(1), estimated=0.5)),
    (IndexedEntry, replace(api_stub.make_entry(1), cost=0.5)),
    (Overview, histories.make_overview()),
    (Job, JOB),
    (tuple[Event, ...], (Event(1, api_stub.NOW, "evicted", api_stub.NASTY, {"store": api_stub.NASTY}),)),
    (Diagnosis, api_stub.make_diagnosis()),
    (tuple[Baseline, ...], (api_stub.make_baseline(),)),
    (tuple[Trashed, ...], (api_stub.make_trashed(),)),
    (Job, replace(JOB, report=PrewarmReport((api_stub.make_run(),)))),
    (Job, replace(JOB, report=TrashReport((), (api_stub.TRASHED,), 1))),
    (Job, replace(JOB, report=ScanReport(1, 2, 3, 4, 5, 6.0))),
    (requests.Hello, requests.Hello(1, "1.2.3")),
]

REQUESTS: list[Request[object]] = [
    requests.GetHello(),
    requests.GetStatus(),
    requests.GetSummary(),
    requests.ListDevices(),
    requests.ListStores(),
    requests.ListEntries(),
    requests.ListEntries(
        ref="00ff",
        kind=KindName("sycl"),
        store=Path("/a b/ü&c=d"),
        driver="25.*",
        architecture="bmg-g21",
        device="Arc",
        model=ModelName("a+b"),
        state=EntryState.DEFECTIVE,
        defect=sycl.defects.BIN_EMPTY.code,
        kernel="operator()",
        min_size=0,
        max_size=1 << 40,
        unused=0.5,
        limit=7,
        after="x/y?z",
    ),
    requests.GetEntry(ref="0123456789ab"),
    requests.ListModels(),
    requests.GetModel(name=ModelName("résumé/%2F?")),
    requests.GetWhy(name=ModelName("résumé/%2F?")),
    requests.GetHistory(name=ModelName("x")),
    requests.AddModel(
        name=ModelName("resnet"),
        command=("/bin/sh", "-c", "echo '\x07'"),
        directory=Path("/srv"),
        variables={"A": "ü=\n"},
        timeout=1,
        store=Path("/s"),
        priority=99,
        pinned=True,
        before=("app@1.service",),
        replace=True,
    ),
    requests.AddModel(
        name=ModelName("loaded"),
        directory=Path("/srv"),
        exercise=RunSpec(
            loader=Loader.TRANSFORMERS,
            python="/usr/bin/python3",
            target="/srv/model",
            inputs="random",
            device="xpu:*",
            precisions=("float16", "int8"),
            shapes=("1x8",),
            require_device=True,
            caches=(Path("/c"),),
            memory=1,
            tolerance=0.5,
            options={"a": "1"},
        ),
    ),
    requests.RemoveModel(name=ModelName("x")),
    requests.RemoveModel(name=ModelName("x"), caches=True),
    requests.RemoveModel(name=ModelName("x"), dry_run=True),
    requests.ListRuns(model=ModelName("x"), limit=3),
    requests.PrewarmModels(models=(ModelName("a"), ModelName("b")), force=True),
    requests.PrewarmModels(all=True),
    requests.EvictEntries(dry_run=True, refs=("00",), reasons=("defective",)),
    requests.EvictEntries(plan="0123456789ab"),
    requests.VerifyStores(stores=(Path("/s"),), fix=True, faults_only=True),
    requests.VerifyStores(deep=True),
    requests.ListTrash(),
    requests.RestoreTrash(refs=("00",)),
    requests.RestoreTrash(all=True),
    requests.EmptyTrash(refs=("00",)),
    requests.ReplayEntries(dry_run=True, stores=(Path("/a"),), models=(ModelName("net"),), to="00ff"),
    imports.NoteImport(
        bundle=f"sha256:{'0' * 64}", made=(MadeEntry(KindName("sycl"), Path("/s"), EntryKey("1"), "", ""),)
    ),
    imports.NoteComing(
        bundle=f"sha256:{'0' * 64}", made=(MadeEntry(KindName("sycl"), Path("/s"), EntryKey("1"), "", ""),)
    ),
    requests.ScanStores(stores=(Path("/s"),), full=True),
    requests.Refresh(),
    requests.ListJobs(),
    requests.GetJob(id=JobId("3")),
    requests.WaitJob(id=JobId("3"), timeout=1.5),
    requests.CancelJob(id=JobId("3")),
    looking.ListEvents(since=4, follow=True),
    looking.ListEvents(since=4, wait=2.5),
    looking.GetUsage(top=3),
    looking.ListDays(since="2026-11-01", until="2026-11-30"),
    looking.ListWarmth(since=api_stub.NOW, model=ModelName("a+b"), limit=7),
    looking.SeeShifts(models=(ModelName("a+b"),)),
    looking.GetEvictable(),
    looking.GetOverview(),
    looking.GetMetrics(format=looking.MetricsFormat.OPENMETRICS),
    looking.GetDiskUse(),
    requests.GetConfig(),
    requests.GetEnv(model=ModelName("x")),
    requests.GetOpenApi(),
]


@pytest.mark.parametrize(("kind", "value"), SAMPLES, ids=lambda one: getattr(one, "__name__", None))
def test_a_value_comes_back_as_it_went(kind: object, value: object) -> None:
    written = codec.dumps(codec.to_json(value))

    assert codec.from_json(cast("type[object]", kind), json.loads(written)) == value


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_a_request_comes_out_as_it_went_in(request_: Request[object]) -> None:
    method, target, body = client.compose(request_)
    path, _, query = target.partition("?")
    row = next(one for one in requests.ENDPOINTS if one.request is type(request_))
    pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", row.path)
    match = re.fullmatch(pattern, path)

    assert match is not None
    placeholders = {name: unquote(text) for name, text in match.groupdict().items()}
    assert method == row.method
    assert intake.read(row, placeholders, query, body or b"") == request_


def read(request: type[Request[object]], query: str = "", body: object = None) -> Request[object]:
    row = next(one for one in requests.ENDPOINTS if one.request is request)
    return intake.read(row, {}, query, codec.dumps(cast("Json", body)) if body is not None else b"")


@pytest.mark.parametrize(
    ("request_", "query", "body", "said"),
    [
        (
            requests.ListEntries,
            "state=x+-+at+`$.foo`",
            None,
            "state: expected 'ok', 'defective', 'unfinished' or 'unread'",
        ),
        (
            requests.ListEntries,
            "state=x+-+at+`$.foo",
            None,
            "state: expected 'ok', 'defective', 'unfinished' or 'unread'",
        ),
        (
            requests.AddModel,
            "",
            {"name": "n", "directory": "/", "exercise": {"loader": "x - at `$.q"}},
            "exercise.loader: expected ",
        ),
        (
            requests.AddModel,
            "",
            {"name": "n", "command": ["/x"], "directory": "/", "variables": {"=" + " - at `$" * 9_000: "v"}},
            "cannot be a variable",
        ),
    ],
    ids=["whole", "half", "body", "long"],
)
def test_no_text_that_a_refusal_quotes_says_where_the_fault_is(
    request_: type[Request[object]], query: str, body: object, said: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read(request_, query, body)

    assert said in caught.value.message or len(caught.value.message) == 200
    assert len(caught.value.message) < 500


MEETING: Final = """
import sys, threading
import msgspec
from xpucached import codec
sys.setswitchinterval(1e-6)
def meet(barrier, kind):
    barrier.wait()
    codec.convert({"shared": None}, kind)
for number in range(60):
    inner = msgspec.defstruct(f"Inner{number}", [(f"f{one}", int | None | str) for one in range(30)])
    shared = msgspec.defstruct(f"Shared{number}", [(f"f{one}", inner) for one in range(20)])
    kinds = [msgspec.defstruct(f"Kind{number}{one}", [("shared", shared | None)]) for one in range(2)] * 2
    barrier = threading.Barrier(len(kinds))
    threads = [threading.Thread(target=meet, args=(barrier, kind)) for kind in kinds]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
"""


@pytest.mark.flow
def test_threads_that_meet_a_type_for_the_first_time_at_once_do_not_crash() -> None:
    done = subprocess.run([sys.executable, "-c", MEETING], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fault_is_found_in_a_sentence_of_any_length() -> None:
    """To look for its place once for each of its beginnings would take an hour."""
    place, text = codec.fault(msgspec.ValidationError(" - at `$" * 500_000))
    assert (place, len(text)) == ("", 200)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (requests.GetModel(name=ModelName("")), "name: there can be none that is called ''"),
        (requests.GetWhy(name=ModelName("..")), "name: there can be none that is called '..'"),
        (
            requests.ReplayEntries(dry_run=True, into=Path(os.fsdecode(b"/x/\xff"))),
            r"into: this is not UTF-8 text: '/x/\udcff'",
        ),
    ],
    ids=["empty", "above", "bytes"],
)
def test_what_no_request_can_say_is_refused_by_its_name(request_: Request[object], said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        client.compose(request_)


LOADED = {"loader": "torchscript", "python": "/python", "device": "cpu"}


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("directory", {"directory": "/a\0"}),
        ("store", {"store": "/a\0"}),
        ("exercise.caches", {"exercise": {"caches": ["/a\0"]}}),
        ("exercise.inputs", {"exercise": {**LOADED, "target": "/m", "inputs": "/a\0"}, "command": []}),
        ("exercise.target", {"exercise": {**LOADED, "target": "/a\0", "inputs": "random"}, "command": []}),
    ],
)
def test_no_path_of_a_model_holds_what_the_kernel_takes_for_its_end(key: str, given: dict[str, object]) -> None:
    body = {"name": "n", "command": ["/x"], "directory": "/", **given}
    with pytest.raises(RequestError) as caught:
        read(requests.AddModel, "", body)
    assert caught.value.message.startswith(f"{key}: expected ")


def test_every_request_has_a_sample_and_a_row() -> None:
    assert {type(one) for one in REQUESTS} == {row.request for row in requests.ENDPOINTS}
    assert len(requests.ENDPOINTS) == len({(row.method, row.path) for row in requests.ENDPOINTS})


def test_every_request_has_a_handler() -> None:
    assert set(HANDLERS) == {row.request for row in requests.ENDPOINTS}


def test_a_list_of_entries_asks_all_that_a_query_can() -> None:
    assert [one.name for one in fields(requests.ListEntries)] == [one.name for one in fields(EntryQuery)]


def test_a_page_is_bounded() -> None:
    assert requests.ListEntries().query.limit == requests.DEFAULT_PAGE
    assert requests.ListEntries(limit=10**9).query.limit == requests.MAX_PAGE


def test_an_entry_is_flat() -> None:
    wire = cast("dict[str, Json]", codec.to_json(api_stub.make_entry(1)))

    assert {name: wire[name] for name in ("kind", "store", "key", "driver", "architecture", "state", "defect")} == {
        "kind": "sycl",
        "store": "/var/cache/xpucached/sycl",
        "key": "1/2/3/4/1",
        "driver": "25.18.33578",
        "architecture": "bmg-g21",
        "state": "ok",
        "defect": None,
    }
    assert wire["ref"] == api_stub.make_entry(1).entry.id.ref
    assert wire["fingerprint"] == api_stub.OPENCL.fingerprint
    kernels = json.loads(codec.dumps(wire["kernels"]))
    assert kernels == [{"name": "_ZTS4Gemm", "display": "Gemm", "library": "oneDNN"}]


def test_a_defect_says_what_it_costs() -> None:
    wire = cast("dict[str, Json]", codec.to_json(api_stub.make_defective()))

    assert (wire["defect"], wire["effect"], wire["message"]) == ("bin-empty", "grows", sycl.defects.BIN_EMPTY.message)


def test_times_are_utc() -> None:
    there = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))

    assert codec.to_json(there) == "2026-01-02T01:04:05Z"
    assert codec.from_json(datetime, "2026-01-02T01:04:05Z") == there.astimezone(UTC)


@given(st.text() | st.text(st.characters(categories=["Cs", "Cc"])))
def test_any_text_can_be_written(text: str) -> None:
    written = codec.dumps(codec.to_json(text))

    # Two halves that meet are one character again, as in UTF-16.
    assert json.loads(written) == text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert all(0x20 <= byte < 0x7F for byte in written)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_has_no_number_for_is_null(value: float) -> None:
    assert codec.dumps(codec.to_json(value)) == b"null"


def test_a_newer_daemons_answer_is_read() -> None:
    wire = cast("dict[str, Json]", codec.to_json(api_stub.make_entry(1)))

    assert codec.from_json(IndexedEntry, {**wire, "novelty": 1}) == api_stub.make_entry(1)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"size": "1"}, "data.size"),
        ({"state": "splendid"}, "splendid"),
        ({"kernels": [{"name": 3, "display": "x"}]}, r"data.kernels\[0\].name"),
        ({"created": "yesterday"}, "data.created"),
        ({"created": "2026-01-02T03:04:05"}, "data.created"),
    ],
)
def test_another_programs_answer_is_not(change: dict[str, Json], place: str) -> None:
    wire = cast("dict[str, Json]", codec.to_json(api_stub.make_entry(1)))

    with pytest.raises(ValueError, match=place):
        codec.from_json(IndexedEntry, {**wire, **change})


def zoneless(kinds: Iterable[object]) -> set[str]:
    """Name what holds a time that may come without its zone."""
    found: set[str] = set()
    seen: set[object] = set()

    def look(kind: object, place: str) -> None:
        if isinstance(kind, msgspec.inspect.DateTimeType) and not kind.tz:
            found.add(place)
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls in seen:
                return
            seen.add(kind.cls)
            place = kind.cls.__name__
        if isinstance(kind, msgspec.Struct):
            for name in kind.__struct_fields__:
                inner = getattr(kind, name)
                for one in inner if isinstance(inner, tuple) else [inner]:
                    look(one, place)

    for kind in msgspec.inspect.multi_type_info(list(map(codec.twin, kinds))):
        look(kind, "")
    return found


def test_no_time_comes_without_its_zone() -> None:
    """One without cannot be compared with ours: whoever reads it in another's answer would stumble."""
    rows = {*requests.ENDPOINTS, *host_requests.ENDPOINTS}

    assert zoneless([SavedState, *(kind for row in rows for kind in (row.request, row.reply))]) == set()


def test_a_time_that_may_come_without_its_zone_is_found() -> None:
    inner = msgspec.defstruct("Inner", [("at", tuple[datetime, ...] | None)])
    outer = msgspec.defstruct("Outer", [("inner", dict[str, inner]), ("at", AwareDatetime)])  # type: ignore[valid-type] # made here

    assert zoneless([outer]) == {"Inner"}


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match=r"data\.kind: is required"):
        codec.from_json(type(api_stub.OPENCL), {})


def test_lists_leave_reports_out() -> None:
    brief = codec.brief_status(api_stub.make_status(jobs=(JOB,)))

    assert (brief.jobs[0].mended, brief.jobs[0].report) == (None, None)
    assert brief.models[0].run is not None
    assert brief.models[0].run.output == ""


def test_a_refusal_becomes_the_error_that_it_was() -> None:
    for kind in (NotFound, Conflict, RequestError, Unavailable):
        error = client.refusal(kind.code, "so", "therefore")
        assert (type(error), error.message, error.hint) == (kind, "so", "therefore")
    assert type(client.refusal("never-heard", "so", "")) is XpucachedError


@pytest.mark.flow
@pytest.mark.parametrize("module", ["api.requests", "api.client", "codec", "cli", "render"])
def test_the_clients_side_is_light(module: str) -> None:
    program = f"import sys, xpucached.{module}; print(sorted(sys.modules))"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    for heavy in ("pydantic", "starlette", "uvicorn", "sqlalchemy", "rich", "asyncio"):
        assert f"'{heavy}'" not in done.stdout


def test_the_socket_is_where_both_look() -> None:
    assert Path(sockets.socket_path(user=False, environ={"XDG_RUNTIME_DIR": "/run/user/7"})) == Path(
        "/run/xpucached/xpucached.sock"
    )
    assert Path(sockets.socket_path(user=True, environ={"XDG_RUNTIME_DIR": "/run/user/7"})) == Path(
        "/run/user/7/xpucached/xpucached.sock"
    )


# -- the description ------------------------------------------------------------------------------------------------


def test_the_description_has_every_endpoint() -> None:
    document = openapi.document("1.2.3")
    paths = cast("dict[str, dict[str, Json]]", document["paths"])

    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == {
        (row.method, row.path) for row in requests.ENDPOINTS
    }


def test_every_reference_in_the_description_leads_somewhere() -> None:
    document = openapi.document("1.2.3")
    text = json.dumps(document)
    parts = cast("dict[str, dict[str, Json]]", document["components"])["schemas"]

    for name in set(re.findall(r'"#/components/schemas/(\w+)"', text)):
        assert name in parts
    assert "#/$defs" not in text


@pytest.mark.parametrize(("kind", "value"), SAMPLES, ids=lambda one: getattr(one, "__name__", None))
def test_values_are_as_described(kind: object, value: object) -> None:
    (schema,), parts = openapi.describe([kind])

    assert parts.items() <= cast("dict[str, dict[str, Json]]", openapi.document("1")["components"])["schemas"].items()
    check(schema, codec.to_json(value), parts, "data")


def check(schema: Mapping[str, object], value: object, parts: Mapping[str, object], place: str) -> None:
    """Hold a value against as much of JSON Schema as the description uses."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        check(cast("Mapping[str, object]", parts[name]), value, parts, place)
    elif "discriminator" in schema:
        told = cast("Mapping[str, Mapping[str, str]]", schema["discriminator"])
        tag = cast("Mapping[str, str]", value)[cast("str", told["propertyName"])]
        check({"$ref": told["mapping"][tag]}, value, parts, place)
    elif "anyOf" in schema:
        choices = cast("list[Mapping[str, object]]", schema["anyOf"])
        if value is None:
            assert {"type": "null"} in choices, place
        else:
            check(next(one for one in choices if one != {"type": "null"}), value, parts, place)
    elif schema.get("type") == "object" and "properties" in schema:
        assert isinstance(value, dict), place
        members = cast("Mapping[str, Mapping[str, object]]", schema["properties"])
        assert set(value) == set(members), place
        for name, one in members.items():
            check(one, value[name], parts, f"{place}.{name}")
    elif schema.get("type") == "object":
        assert isinstance(value, dict), place
        for name, one in value.items():
            check(cast("Mapping[str, object]", schema["additionalProperties"]), one, parts, f"{place}.{name}")
    elif schema.get("type") == "array":
        assert isinstance(value, tuple), place
        shapes = [*cast("list[object]", schema.get("prefixItems", [])), *repeat(schema["items"], len(value))]
        for shape, one in zip(shapes, value, strict=False):
            check(cast("Mapping[str, object]", shape), one, parts, f"{place}[]")
    else:
        kinds: dict[object, tuple[type, ...]] = {
            "string": (str,),
            "integer": (int,),
            "number": (int, float),
            "boolean": (bool,),
        }
        # What tells kinds apart is a word of one, and a text without saying so.
        assert isinstance(value, kinds[schema.get("type", "string")]), place
        assert value in cast("list[object]", schema.get("enum", [value])), place


def test_the_manual_has_every_endpoint_and_its_keys() -> None:
    manual = PROTOCOL.read_text(encoding="utf-8")

    for row in requests.ENDPOINTS:
        line = next((one for one in manual.splitlines() if f"`{row.method} {row.path}`" in one), "")
        assert line, f"{row.method} {row.path}"
        for one in fields(row.request):
            assert f"`{one.name}`" in line or f"{{{one.name}}}" in row.path, f"{row.path}: {one.name}"
        assert row.right.value in line


def test_the_manual_has_every_key_of_every_value() -> None:
    manual = PROTOCOL.read_text(encoding="utf-8")
    parts = cast("Mapping[str, Mapping[str, object]]", openapi.document("1")["components"])["schemas"]
    asked = {row.request.__name__ for row in requests.ENDPOINTS}

    for name, schema in cast("Mapping[str, Mapping[str, object]]", parts).items():
        if name in asked or "properties" not in schema:
            continue
        section = manual.partition(f"### {name}\n")[2].partition("\n#")[0]
        assert section, name
        for key in cast("Mapping[str, object]", schema["properties"]):
            assert f"`{key}`" in section, f"{name}.{key}"


@pytest.mark.parametrize(
    "words",
    [
        EntryState,
        Effect,
        Origin,
        StoreOrigin,
        StoreState,
        ImageFormat,
        Outcome,
        WarmReason,
        Warmth,
        EvictReason,
        JobState,
        Verdict,
    ],
    ids=lambda one: one.__name__,
)
def test_the_manual_has_every_word_of_every_list(words: type[StrEnum]) -> None:
    manual = PROTOCOL.read_text(encoding="utf-8")

    assert [one.value for one in words if f"`{one.value}`" not in manual] == []


# -- quantities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512k", 512_000),
        ("10MB", 10**7),
        ("1GiB", 2**30),
        ("1.5 KiB", 1536),
        ("2T", 2 * 10**12),
    ],
)
def test_a_size_is_read(text: str, count: int) -> None:
    assert quantities.size(text) == count


@pytest.mark.parametrize("text", ["", "x", "-1", "1x", "1 000", "1e3", "٣", "1.k", "9" * 30])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        quantities.size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("7d", 604_800),
        ("1h30m", 5400),
        ("1h 30min", 5400),
        ("250ms", 0.25),
        ("1.5 h", 5400),
        ("2w", 1_209_600),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert quantities.duration(text) == seconds


@pytest.mark.parametrize("text", ["", " ", "x", "-1d", "1y", "1h30", "30 1h", "1d!", "inf", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        quantities.duration(text)


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/events", f"since={-(10**30)}"),
        ("/v1/events", f"since={10**30}"),
        ("/v1/events", "since=-1"),
        ("/v1/entries", f"max_size={1 << 63}"),
        ("/v1/entries", f"limit={1 << 64}"),
        ("/v1/runs", f"limit={1 << 64}"),
    ],
)
def test_a_number_that_the_catalog_cannot_take_is_refused(path: str, query: str) -> None:
    row = next(one for one in requests.ENDPOINTS if (one.method, one.path) == ("GET", path))
    with pytest.raises(RequestError, match=query.partition("=")[0]):
        intake.read(row, {}, query, b"")
