"""What a request may say, to its last number, and what is promised about all of them."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from msgspec.structs import fields, replace

from tests.support.values import changeable
from xpucached import api, codec
from xpucached.api import host_requests, imports, intake, looking, openapi, requests
from xpucached.api.endpoints import Right, row
from xpucached.domain.bundles import MadeEntry
from xpucached.domain.jobs import Job
from xpucached.domain.names import EntryKey, JobId, KindName, ModelName
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.api.endpoints import Endpoint, Request

ROWS = tuple({one.path + one.method: one for one in (*requests.ENDPOINTS, *host_requests.ENDPOINTS)}.values())

LONG = ModelName("a" * 200)
MADE = MadeEntry(KindName("sycl"), Path("/s"), EntryKey("1"), "", "")
DIGEST = f"sha256:{64 * '0'}"
ENTRIES, MODEL, RUNS = requests.ListEntries, requests.AddModel, requests.ListRuns

BOUNDS: list[tuple[type[Request[object]], dict[str, object], dict[str, object]]] = [
    (ENTRIES, {"ref": "0"}, {"ref": ""}),
    (ENTRIES, {"ref": "0123456789ab"}, {"ref": "0123456789abc"}),
    (ENTRIES, {"ref": "ff"}, {"ref": "FF"}),
    (ENTRIES, {"limit": 1}, {"limit": 0}),
    (ENTRIES, {"min_size": 0}, {"min_size": -1}),
    (ENTRIES, {"max_size": 0}, {"max_size": -1}),
    (ENTRIES, {"unused": 0.0}, {"unused": -0.1}),
    (ENTRIES, {"unused": 1e300}, {"unused": float("inf")}),
    (requests.GetEntry, {"ref": "0123456789ab"}, {"ref": "x"}),
    (MODEL, {"name": "n"}, {"name": "a b"}),
    (MODEL, {"command": ("/x",)}, {"command": ()}),
    (MODEL, {"command": ("/x", "")}, {"command": ("",)}),
    (MODEL, {"command": ("/x",)}, {"command": ("x",)}),
    (MODEL, {"command": ("/x", "y")}, {"command": ("/x", "y\0")}),
    (MODEL, {"exercise": RunSpec(device="cpu")}, {"exercise": RunSpec(device="tpu")}),
    (MODEL, {"directory": Path("/")}, {"directory": Path("srv")}),
    (MODEL, {"directory": Path("/")}, {"directory": Path("/\0")}),
    (MODEL, {"store": Path("/")}, {"store": Path("s")}),
    (MODEL, {"before": ("app.service",)}, {"before": ("app.service", "app")}),
    (MODEL, {"timeout": 0.1}, {"timeout": 0}),
    (MODEL, {"timeout": 86400.0}, {"timeout": 86400.1}),
    (MODEL, {"priority": 0}, {"priority": -1}),
    (MODEL, {"priority": 100}, {"priority": 101}),
    (MODEL, {"variables": {"A": ""}}, {"variables": {"": "a"}}),
    (MODEL, {"variables": {"A": "="}}, {"variables": {"A=": ""}}),
    (MODEL, {"variables": {"A": "b"}}, {"variables": {"A": "\0"}}),
    (RUNS, {"limit": 1}, {"limit": 0}),
    (RUNS, {"limit": requests.MAX_PAGE}, {"limit": requests.MAX_PAGE + 1}),
    (requests.PrewarmModels, {"all": True}, {}),
    (requests.PrewarmModels, {"stale": True}, {"stale": True, "all": True}),
    (requests.PrewarmModels, {"models": ("a",)}, {"models": ("a",), "all": True}),
    (requests.PrewarmModels, {"models": ("a", "b") * 500}, {"models": ("a",) * 1001}),
    (requests.PrewarmModels, {"models": (LONG,)}, {"models": (LONG + "a",)}),
    (requests.EvictEntries, {"refs": ("00",)}, {"refs": ("00", "x")}),
    (requests.EvictEntries, {"plan": "00"}, {"plan": "0x"}),
    (requests.EvictEntries, {"plan": "00"}, {"plan": "00", "dry_run": True}),
    (requests.EvictEntries, {"plan": "00"}, {"plan": "00", "refs": ("00",)}),
    (requests.EvictEntries, {"plan": "00"}, {"plan": "00", "reasons": ("defective",)}),
    (requests.VerifyStores, {"stores": (Path("/s"),)}, {"stores": (Path("/s"), Path("s"))}),
    (requests.VerifyStores, {"deep": True, "fix": True}, {"deep": True, "faults_only": True}),
    (requests.VerifyStores, {"faults_only": True, "fix": True}, {"faults_only": True, "deep": True}),
    (requests.RestoreTrash, {"all": True}, {}),
    (requests.RestoreTrash, {"refs": ("00",)}, {"refs": ("00",), "all": True}),
    (requests.RestoreTrash, {"refs": ("00",)}, {"refs": ("00", "x")}),
    (requests.EmptyTrash, {}, {"refs": ("x",)}),
    (requests.ReplayEntries, {"stores": (Path("/s"),)}, {"stores": (Path("s"),)}),
    (requests.ReplayEntries, {"models": (LONG,)}, {"models": (LONG + "a",)}),
    (requests.ReplayEntries, {"driver_root": Path("/d")}, {"driver_root": Path("d")}),
    (requests.ReplayEntries, {"into": Path("/d")}, {"into": Path("d")}),
    (requests.ReplayEntries, {"driver_cache": Path("/d")}, {"driver_cache": Path("d")}),
    (imports.NoteImport, {"bundle": DIGEST}, {"bundle": "sha256:0"}),
    (imports.NoteImport, {"made": (MADE,)}, {"made": (replace(MADE, input_size=-1),)}),
    (imports.NoteComing, {"made": (MADE,)}, {"made": (replace(MADE, input_size=-1),)}),
    (imports.NoteImport, {"made": (replace(MADE, seconds=0.0),)}, {"made": (replace(MADE, seconds=-0.1),)}),
    (imports.NoteImport, {"made": (replace(MADE, input_size=0),)}, {"made": (replace(MADE, input_size=1 << 50),)}),
    (
        imports.NoteImport,
        {"made": (replace(MADE, input_size=(1 << 50) - 1),)},
        {"made": (replace(MADE, input_size=1 << 51),)},
    ),
    (imports.NoteImport, {"made": (replace(MADE, seconds=1e9),)}, {"made": (replace(MADE, seconds=1e9 + 1),)}),
    (imports.NoteImport, {"made": (MADE,)}, {"made": (replace(MADE, store=Path("s")),)}),
    (imports.NoteImport, {"made": (MADE,)}, {"made": (MADE, replace(MADE, store=Path("/\0")))}),
    (imports.NoteImport, {"made": 1000 * (MADE,)}, {"made": 1001 * (MADE,)}),
    (imports.NoteImport, {"signer": 200 * "k"}, {"signer": 201 * "k"}),
    (imports.NoteImport, {"signing_key": DIGEST}, {"signing_key": DIGEST[:-1]}),
    (imports.NoteImport, {"digests": 256 * (DIGEST,)}, {"digests": 257 * (DIGEST,)}),
    (imports.NoteImport, {"digests": (DIGEST,)}, {"digests": (DIGEST, f"{DIGEST}0")}),
    (requests.ScanStores, {"stores": (Path("/s"),)}, {"stores": (Path("s"),)}),
    (requests.WaitJob, {"timeout": 0.0}, {"timeout": -0.1}),
    (requests.WaitJob, {"timeout": 300.0}, {"timeout": 300.1}),
    (looking.ListEvents, {"since": 0}, {"since": -1}),
    (looking.ListEvents, {"wait": 0.0}, {"wait": -0.1}),
    (looking.ListEvents, {"wait": 60.0}, {"wait": 60.1}),
    (looking.ListEvents, {"follow": True}, {"follow": True, "wait": 0.1}),
    (looking.GetUsage, {"top": 0}, {"top": -1}),
    (looking.GetUsage, {"top": 100}, {"top": 101}),
    (looking.ListDays, {"since": ""}, {"since": "0"}),
    (looking.ListDays, {"since": "2026-02-28"}, {"since": "2026-02-29"}),
    (looking.ListDays, {"until": "2026-11-22"}, {"until": "20261122"}),
    (looking.ListWarmth, {"limit": 1}, {"limit": 0}),
    (looking.ListWarmth, {"limit": 1000}, {"limit": 1001}),
    (looking.SeeShifts, {"models": 1000 * ("a",)}, {"models": 1001 * ("a",)}),
]
"""A request, what it may say, and what it may no longer say."""

NEEDED: Mapping[type[Request[object]], dict[str, object]] = {
    MODEL: {"name": "n", "directory": Path("/"), "command": ("/x",)},
    requests.WaitJob: {"id": "3"},
    imports.NoteImport: {"bundle": DIGEST, "made": ()},
    imports.NoteComing: {"bundle": DIGEST, "made": ()},
}


@pytest.mark.parametrize(("asked", "fits", "refused"), BOUNDS, ids=lambda one: getattr(one, "__name__", str(one)[:40]))
def test_a_request_may_say_what_it_may_and_nothing_beyond(
    asked: type[Request[object]], fits: dict[str, object], refused: dict[str, object]
) -> None:
    needed = NEEDED.get(asked, {})

    asked(**needed | fits)
    with pytest.raises(ValueError, match=r"^\w+(\.\w+)?: "):
        asked(**needed | refused)


def test_where_nothing_is_said_it_is_as_the_manual_says() -> None:
    model = requests.AddModel(name=ModelName("n"), directory=Path("/"), command=("/x",))
    assert (model.timeout, model.priority) == (30 * 60, 50)
    assert requests.WaitJob(id=JobId("3")).timeout == 30
    assert (requests.ListRuns().limit, looking.GetUsage().top, looking.ListWarmth().limit) == (20, 20, 200)
    assert (looking.ListEvents().since, looking.ListEvents().wait) == (0, 0)


def test_entries_of_a_bundle_come_in_parts_that_one_request_takes() -> None:
    assert list(imports.parts([])) == []
    few = [replace(MADE, key=EntryKey(str(number))) for number in range(imports.MOST + 1)]
    assert list(imports.parts(few)) == [tuple(few[:-1]), tuple(few[-1:])]
    # So long that as many as there may be of them have exactly the bytes that a part may have.
    each = (512 << 10) // 32
    long = replace(MADE, store=Path("/" + "s" * (each - len(codec.dumps(codec.to_json(MADE))) + 1)))
    assert len(codec.dumps(codec.to_json(long))) == each
    assert [len(one) for one in imports.parts(65 * [long])] == [32, 32, 1]
    # One that is longer than a part goes alone.
    longer = replace(MADE, store=Path("/" + "s" * (512 << 10)))
    assert list(imports.parts([MADE, longer, MADE])) == [(MADE,), (longer,), (MADE,)]


def test_a_loader_has_no_command() -> None:
    how = RunSpec(loader=Loader.PYTHON, python="/p", target="a:b", device="cpu")
    MODEL(name=ModelName("n"), directory=Path("/"), exercise=how)
    with pytest.raises(ValueError, match=r"^command: the loader python has none"):
        MODEL(name=ModelName("n"), directory=Path("/"), exercise=how, command=("/x",))


@pytest.mark.parametrize("goes", ROWS, ids=lambda one: one.request.__name__)
class TestEveryRequest:
    """What holds for each row of both tables."""

    def test_does_not_change_once_it_was_made_and_says_what_each_value_is(self, goes: Endpoint) -> None:
        assert goes.request.__struct_config__.frozen
        declared = inspect.get_annotations(goes.request)
        named = [one for name, one in inspect.signature(goes.request).parameters.items() if name in declared]
        assert {one.kind for one in named} <= {inspect.Parameter.KEYWORD_ONLY}

    def test_does_nothing_that_was_not_asked_for(self, goes: Endpoint) -> None:
        flags = {one.name: one.default for one in fields(goes.request) if one.type is bool}
        assert not any(flags.values()), flags

    def test_that_changes_something_needs_the_right_to(self, goes: Endpoint) -> None:
        assert goes.right is (Right.READ if goes.method == "GET" else Right.CHANGE)

    def test_tells_what_became_of_it(self, goes: Endpoint) -> None:
        begins = goes.method == "POST" and goes.reply is Job
        expected = (202, "/v1/jobs/{id}") if begins else (200, None)
        if goes.request is MODEL:
            expected = (201, "/v1/models/{name}")
        elif goes.request in {requests.Refresh, host_requests.StepAside}:
            expected = (202, None)
        assert (goes.status, goes.location) == expected

    def test_goes_with_a_query_or_a_body_and_never_with_both(self, goes: Endpoint) -> None:
        if goes.method == "POST":
            with pytest.raises(RequestError, match="takes no query string"):
                intake.read(goes, {}, "a=b", b"{}")
        with pytest.raises(RequestError, match=r"^novelty: unknown key; known are: "):
            intake.read(goes, {}, *(("", b'{"novelty": 1}') if goes.method == "POST" else ("novelty=1", b"")))

    def test_is_described(self, goes: Endpoint) -> None:
        if goes not in requests.ENDPOINTS:
            return
        document = openapi.document("1")
        paths = cast("Mapping[str, Mapping[str, Mapping[str, object]]]", document["paths"])
        told = paths[goes.path][goes.method.lower()]
        answers = cast("Mapping[str, Mapping[str, Mapping[str, Mapping[str, object]]]]", told["responses"])
        given = answers[str(goes.status)]["content"]
        schema = cast("Mapping[str, Mapping[str, object]]", given["application/json"]["schema"])

        assert ("parameters" in told) == (goes.method != "POST" and bool(fields(goes.request)))
        assert ("requestBody" in told) == (goes.method == "POST")
        assert ("description" in told) == (goes.right is Right.CHANGE)
        for one in cast("list[Mapping[str, object]]", told.get("parameters", [])):
            assert (one["in"] == "path") == (one["name"] in goes.placeholders)
            assert one["required"] or one["in"] == "query"
            assert one["required"] == (one["name"] in {field.name for field in fields(goes.request) if field.required})
        if goes.method == "POST":
            needs = any(field.required for field in fields(goes.request))
            assert cast("Mapping[str, object]", told["requestBody"])["required"] is needs
        # The description of the wire comes bare; everything else in an envelope.
        bare = goes.request is requests.GetOpenApi
        assert set(schema.get("properties", {})) == (set() if bare else {"api", "data"})
        assert ("application/x-ndjson" in given) == (goes.request is looking.ListEvents)
        assert ("text/plain" in given) == (goes.request is looking.GetMetrics)
        refused = cast("Mapping[str, object]", answers["default"]["content"]["application/json"]["schema"])
        assert refused["required"] == ["api", "error"]
        parts = cast("Mapping[str, Mapping[str, object]]", document["components"])["schemas"]
        assert (goes.request.__name__ in parts) == (goes.method == "POST")


def test_values_do_not_change() -> None:
    assert changeable(api) == set()


def read(request: type[Request[object]], query: str = "", body: bytes = b"") -> Request[object]:
    return intake.read(row(request), {}, query, body)


def test_a_body_may_be_left_out_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(requests.ScanStores) == requests.ScanStores()

    body = b'{"stores": ["/a", "/b"]}'
    both = requests.ScanStores(stores=(Path("/a"), Path("/b")))
    assert read(requests.ScanStores, body=body + b" " * ((1 << 20) - len(body))) == both
    with pytest.raises(RequestError, match="the body cannot be read: it has more than 1048576 bytes"):
        read(requests.ScanStores, body=body + b" " * ((1 << 20) - len(body) + 1))

    many = b'{"refs": [%s]}' % b",".join([b'"00"'] * 10_000)
    assert read(requests.EmptyTrash, body=many) == requests.EmptyTrash(refs=("00",) * 10_000)
    with pytest.raises(RequestError, match="more than 10000 values"):
        read(requests.EmptyTrash, body=many.replace(b"[", b'["00",'))


def test_a_query_string_has_so_many_fields_and_each_one_once() -> None:
    with pytest.raises(RequestError, match=r"^limit: given twice"):
        read(RUNS, "limit=1&limit=1")
    with pytest.raises(RequestError, match="unknown key"):
        read(RUNS, "&".join(f"k{number}=" for number in range(64)))
    with pytest.raises(RequestError, match="more than 64 fields"):
        read(RUNS, "&".join(f"k{number}=" for number in range(65)))
    # An empty value is one: not the same as none at all.
    with pytest.raises(RequestError, match=r"^limit: "):
        read(RUNS, "limit=")


def test_what_stands_in_the_path_cannot_be_said_again() -> None:
    with pytest.raises(RequestError, match=r"^name: stands in the path already"):
        intake.read(row(requests.GetModel), {"name": "net"}, "name=other", b"")


def test_text_is_a_number_in_a_query_and_not_in_a_body() -> None:
    assert read(RUNS, "limit=3") == requests.ListRuns(limit=3)
    with pytest.raises(RequestError, match=r"^priority: "):
        read(MODEL, body=b'{"name": "n", "directory": "/", "command": ["/x"], "priority": "3"}')


def test_an_unknown_key_is_named_with_its_place_and_those_there_are() -> None:
    given = b'{"name": "n", "directory": "/", "command": ["/x"], "exercise": {"colour": 1}}'
    with pytest.raises(RequestError, match=r"^exercise\.colour: unknown key; known are: loader, python"):
        read(MODEL, body=given)
    with pytest.raises(RequestError, match=r"^x: unknown key; known are: none"):
        intake.read(row(requests.GetModel), {"name": "n"}, "x=1", b"")
    for length, quoted in ((100, 100 * "k"), (101, f"{100 * 'k'}…")):
        with pytest.raises(RequestError, match=f"^{quoted}: unknown key"):
            read(MODEL, body=given.replace(b'"exercise": {"colour": 1}', f'"{length * "k"}": 1'.encode()))
    # What a variable is called is its user's business.
    named = read(MODEL, body=given.replace(b'"exercise": {"colour": 1}', b'"variables": {"colour": "1"}'))
    assert cast("requests.AddModel", named).variables == {"colour": "1"}


@pytest.mark.parametrize(("number", "fits"), [((1 << 63) - 1, False), (1 << 63, False), (1 << 62, False), (5, True)])
def test_a_number_within_a_value_is_bounded_too(number: int, fits: bool) -> None:  # noqa: FBT001 - a parameter
    body = b'{"name": "n", "directory": "/", "command": ["/x"], "exercise": {"memory": %d}}' % number
    if fits:
        assert cast("requests.AddModel", read(MODEL, body=body)).exercise.memory == number
    else:
        with pytest.raises(RequestError, match=r"^exercise\.memory: "):
            read(MODEL, body=body)


@pytest.mark.parametrize(("number", "fits"), [((1 << 63) - 1, True), (1 << 63, False)])
def test_a_number_has_at_most_64_bits(number: int, fits: bool) -> None:  # noqa: FBT001 - a parameter
    if fits:
        assert read(looking.ListEvents, f"since={number}") == looking.ListEvents(since=number)
    else:
        with pytest.raises(RequestError, match=r"^since: expected a number of at most 64 bits"):
            read(looking.ListEvents, f"since={number}")


@pytest.mark.parametrize("since", ["253402300799.9999999", "253402300800", "253402300801", "1764237600000"])
def test_a_time_beyond_the_calendar_is_refused(since: str) -> None:
    with pytest.raises(RequestError):
        read(looking.ListWarmth, f"since={since}")


class Numbers(msgspec.Struct):
    """A number that may be below zero, alone and within another value."""

    one: int
    inner: Numbers | None = None


@pytest.mark.parametrize(("number", "fits"), [(-(1 << 63), True), (-(1 << 63) - 1, False), (1 << 63, False)])
def test_a_number_below_zero_has_at_most_64_bits_too(number: int, fits: bool) -> None:  # noqa: FBT001 - a parameter
    for given, place in ((Numbers(number), "one"), (Numbers(0, Numbers(number)), r"inner\.one")):
        with contextlib.nullcontext() if fits else pytest.raises(RequestError, match=f"^{place}: expected a number"):
            intake._check_numbers(given, "")


HARMLESS: list[tuple[Request[object], bool]] = [
    (requests.GetStatus(), True),
    (requests.GetSummary(), True),
    (requests.PrewarmModels(models=(ModelName("a"),)), True),
    (requests.EvictEntries(), True),
    (requests.EvictEntries(dry_run=True), True),
    (requests.EvictEntries(refs=("00",)), False),
    (requests.EvictEntries(plan="00"), False),
    (requests.ReplayEntries(), True),
    (requests.ReplayEntries(models=(ModelName("a"),), dry_run=True), True),
    (requests.ReplayEntries(into=Path("/x")), False),
    (requests.ReplayEntries(to="00"), False),
    (requests.ScanStores(full=True), True),
    (requests.ScanStores(stores=(Path("/s"),)), False),
    (requests.ListEntries(), False),
    (requests.GetConfig(), False),
    (requests.VerifyStores(fix=True), False),
    (requests.EmptyTrash(), False),
]


@pytest.mark.parametrize(("asked", "may"), HARMLESS, ids=str)
def test_the_host_daemon_asks_a_worker_for_what_names_no_place(asked: Request[object], may: bool) -> None:  # noqa: FBT001 - a parameter
    assert host_requests.is_tending(asked) is may


def test_a_page_of_entries_is_bounded_whatever_is_asked() -> None:
    asked = [ENTRIES(limit=limit).query.limit for limit in (None, 1, 999, requests.MAX_PAGE + 1)]
    assert asked == [200, 1, 999, 1000]


def test_a_filter_that_there_is_not_is_refused() -> None:
    table = row(ENTRIES)
    assert intake.read(table, {}, "kind=sycl", b"") == ENTRIES(kind=KindName("sycl"))
    with pytest.raises(RequestError, match="colour"):
        intake.read(table, {}, "colour=red", b"")
