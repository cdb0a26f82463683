"""What people type who know other programs, several names at once, and parts of lists."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support.api_stub import NOW, Running, make_entry, make_model, make_run
from tests.support.command_line import run
from xpucached.api.requests import PrewarmModels
from xpucached.cli import arguments, capture_env, command_parser, exits, habits, waiting
from xpucached.domain import readiness
from xpucached.domain.jobs import Event
from xpucached.domain.models import Outcome, Warmth
from xpucached.domain.names import ModelName
from xpucached.domain.status import Verdict
from xpucached.errors import NotFound, RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from xpucached.domain.status import Status


def test_a_bare_command_shows_the_status_and_where_help_is(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert out.startswith("This host is warm.\n")
    assert "xpucachectl --help" in out.splitlines()[-1]
    # Whom to ask is no command.
    assert run(capsys, "--no-color", "--utc") == (status, out, err)
    assert run(capsys, "--json")[1].startswith('{"api":1,')


@pytest.mark.parametrize("word", habits.HINTS)
def test_what_other_programs_call_it_is_hinted(capsys: pytest.CaptureFixture[str], word: str) -> None:
    status, _, err = run(capsys, word)
    assert (status, err.splitlines()) == (64, [f"xpucachectl: no command {word!r}", f"hint: {habits.HINTS[word]}"])


def test_every_hint_names_commands_that_there_are() -> None:
    for text in habits.HINTS.values():
        for part in text.split("xpucachectl ")[1:]:
            words = [one.strip(",;") for one in part.split() if one != "or"]
            known = command_parser.commands(arguments._parser())
            assert words[0] in known, text


def test_second_words_are_understood(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("model", "ls"), ("--no-color", "model", "ls"), ("trash", "ls"), ("-q", "model", "ls")):
        assert run(capsys, *words)[0] == 0, words
    assert run(capsys, "model", "ls")[1] == run(capsys, "model", "list")[1]
    # A model may be called as a command is.
    assert arguments.parse(["prewarm", "model", "rm"]).models == ["model", "rm"]
    assert arguments.parse(["--socket", "model", "model", "rm", "a", "b"]).name == ["a", "b"]


def test_several_names_are_taken_and_the_others_are_done_where_one_fails(
    served: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    refs = [make_entry(number).entry.id.ref for number in range(1, 3)]
    status, out, _ = run(capsys, "show", *refs)
    assert (status, out.count("kernels")) == (0, run(capsys, "show", refs[0])[1].count("kernels") * 2)
    status, out, _ = run(capsys, "model", "show", "resnet", "resnet", "--json")
    assert json.loads(out)["data"]["name"] == "resnet", "the same name twice is one"
    status, out, err = run(capsys, "show", refs[0], "0" * 12, refs[1], "--json")
    assert (status, len(json.loads(out)["data"])) == (NotFound.exit, 2)
    assert err.startswith("xpucachectl: ")
    status, out, _ = run(capsys, "why", "resnet", "nobody")
    assert (status, "unsafe" in out) == (NotFound.exit, True)


def test_parts_of_lists(served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    states = [Warmth.WARM, Warmth.COLD, Warmth.FAILED]
    known = tuple(
        replace(make_model(f"{name}-{number}", states[number]), allocated=number)
        for name in ("llama", "net")
        for number in range(3)
    )

    async def models() -> object:
        return known

    monkeypatch.setattr(served.service, "models", models)

    def names(*words: str) -> list[str]:
        status, out, err = run(capsys, "model", "list", *words, "-q")
        assert (status, err) == (0, "")
        rows = json.loads(run(capsys, "model", "list", *words, "--json")[1])["data"]
        assert [row["name"] for row in rows] == out.split()
        return out.split()

    assert len(names()) == 6
    assert names("llama*") == ["llama-0", "llama-1", "llama-2"]
    assert names("llama-0", "*-2") == ["llama-0", "llama-2", "net-2"]
    assert names("--state", "cold") == ["llama-1", "net-1"]
    assert names("--sort", "size", "--limit", "2") == ["llama-2", "net-2"]
    assert names("--sort", "name", "n*") == ["net-0", "net-1", "net-2"]
    assert names("nothing*") == []
    assert run(capsys, "model", "list", "nothing*") == (0, "none of them matches\n", "")
    assert names("--since", "1s") == [], "they were run long ago"
    assert len(names("--since", "100000000d")) == 6
    some = [replace(make_run(), id=number, model=ModelName(f"net-{number % 2}")) for number in range(30)]

    async def runs(_model: ModelName | None, limit: int) -> object:
        return tuple(some[:limit])

    monkeypatch.setattr(served.service, "runs", runs)
    assert len(run(capsys, "runs", "net-*", "-q", "--limit", "30")[1].split()) == 30
    assert len(run(capsys, "runs", "*-1", "-q", "--limit", "12")[1].split()) == 12, "of all, not of the last 12"
    assert run(capsys, "runs", "x*", "-q")[1].split() == []
    assert run(capsys, "runs", "--state", "failed", "-q")[1].split() == []
    assert run(capsys, "runs", "--state", "warmed", "--sort", "time", "-q")[1].split() != []
    for words in (("model", "list", "--state", "hot"), ("stores", "--limit", "0"), ("jobs", "--since", "x")):
        status, _, err = run(capsys, *words)
        assert (status, "hint: " in err) == (64, True), err


def test_entries_are_sorted_and_told_by_their_age(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    known = [make_entry(number) for number in range(1, 4)]
    served.service.known = [
        replace(one, entry=replace(one.entry, allocated=size), first_seen=NOW - timedelta(days=days), cost=cost)
        for one, size, days, cost in zip(known, (5, 9, 7), (2, 1, 0), (3.0, None, 4.0), strict=True)
    ]

    def order(*words: str) -> list[int]:
        status, out, err = run(capsys, "ls", *words, "-q")
        assert (status, err) == (0, "")
        listed = json.loads(run(capsys, "ls", *words, "--json")[1])["data"]
        assert [row["ref"] for row in listed["entries"]] == out.split()
        return [next(at for at, one in enumerate(known) if one.entry.id.ref == ref) for ref in out.split()]

    assert order() == [0, 1, 2]
    assert order("--sort", "size") == [1, 2, 0]
    assert order("--sort", "time", "--limit", "2") == [2, 1]
    assert order("--sort", "cost") == [2, 0, 1]
    assert order("--sort", "driver") == [0, 1, 2]
    assert order("--since", "100000d", "--size", ">1") == [0, 1, 2]
    assert run(capsys, "ls", "--since", "1h") == (0, "no entries match\n", "")
    assert order(f"{known[1].entry.id.ref[:6]}*") == [1]
    assert order("*", "--limit", "2") == order("resnet*", "--limit", "2") == [0, 1]
    assert run(capsys, "ls", "nothing*") == (0, "no entries match\n", "")
    assert "3 of 3" not in run(capsys, "ls", "--sort", "used")[1]
    status, _, err = run(capsys, "ls", "--sort", "name")
    assert (status, "expected one of size, time" in err) == (64, True)


def test_events_are_told_by_topic_age_and_number(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    topics = ("model-added", "run-finished", "model-removed", "scan-finished")
    served.service.log = [
        Event(number, datetime.now(UTC) - timedelta(hours=6 - number), topic, topic)
        for number, topic in enumerate(topics, 1)
    ]

    def told(*words: str) -> list[int]:
        return [row["id"] for row in json.loads(run(capsys, "events", *words, "--json")[1])["data"]]

    assert told() == [1, 2, 3, 4]
    assert told("model-*") == [1, 3]
    assert told("run-*", "scan-*", "--limit", "1") == [4]
    assert told("--since", "2") == [3, 4]
    assert told("--since", "210m") == [3, 4]
    assert told("--since", "1h", "model-*") == []
    assert run(capsys, "events", "nothing")[1] == "no events\n"
    assert run(capsys, "events", "model-added")[1].endswith(" model-added: model-added\n")


def test_commands_end_with_what_the_manual_says(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    def ends(outcome: Outcome, verdict: Verdict, *words: str) -> int:
        served.service.outcome, served.service.verdict = outcome, verdict
        return run(capsys, *words)[0]

    warmed, warm = Outcome.WARMED, Verdict.WARM
    found = {
        "status": {ends(warmed, Verdict.STARTING, "status", "--wait", "--timeout", "1ms")},
        "status --check": {ends(warmed, one, "status", "--check") for one in Verdict},
        "prewarm": {ends(Outcome.FAILED, warm, "prewarm", "--all")},
        "model add --prewarm": {ends(Outcome.FAILED, warm, "model", "add", "x", "--prewarm", "--", "/bin/true")},
        "verify": {ends(warmed, warm, "verify")},
        "doctor": {ends(warmed, warm, "doctor")},
        "run": {ends(warmed, warm, "run", "--", "/no/such/program"), ends(warmed, warm, "run", "--", "/etc/passwd")},
        "driver-changed --wait": {*readiness.EXITS.values()},
    }
    for verb, statuses in found.items():
        assert statuses - {0} == exits.OF_COMMANDS[verb].keys(), verb


def test_settings_have_values_and_sources_apart(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(run(capsys, "config", "show", "--json")[1])["data"]
    plain = run(capsys, "config", "show")[1]
    assert shown
    for name, one in shown.items():
        assert set(one) == {"value", "source"}
        assert name in plain
    # What is no text in the configuration is none here.
    wanted = {"policy.attempts": 3, "policy.max_bytes": None, "policy.trash_max_bytes": "1GiB"}
    wanted |= {"schedule.replay": True, "paths.socket_mode": "0600"}
    assert {name: shown[name]["value"] for name in wanted} == wanted
    assert shown["policy.attempts"]["source"] == "/etc/xpucached/xpucached.toml:2"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("evict", "zzz"), 64, "expected up to 12 hex digits"),
        (("show", "zzz"), 64, "expected up to 12 hex digits"),
        (("model", "add", "a", "--env", "=1", "--", "true"), 64, "no name of a variable: '=1'"),
        (("model", "add", "a", "--env", "NOT_SET_HERE", "--", "true"), 64, "is not set here"),
        (
            ("model", "add", "a", "--loader", "torchscript", "--python", sys.executable, "--target", "/no/such/model"),
            64,
            "--target /no/such/model: No such file or directory",
        ),
    ],
)
def test_wrong_input_is_refused_with_what_to_do(
    served: Running, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, said: str
) -> None:
    got, _, err = run(capsys, *words)
    assert (got, said in err) == (status, True), err


def test_what_steers_the_compilers_is_taken_from_the_shell(tmp_path: Path) -> None:
    steering = {"SYCL_PROGRAM_COMPILE_OPTIONS", "IGC_X", "TORCHINDUCTOR_FREEZING", "TORCHDYNAMO_X", "TRITON_DEBUG"}
    steering |= {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY", "CC", "CXX"}
    shell = dict.fromkeys(("OMPI_X", "CXXFLAGS", "AWS_X", "NEO_CACHE_DIR", *steering), "1")
    taken = capture_env.capture(["true"], tmp_path, [], None, {"PATH": "/bin:/usr/bin", **shell}).variables
    assert taken.keys() == {"PATH", *steering}


def test_a_variable_needs_a_name(tmp_path: Path) -> None:
    for wrong in ("=1", "=", "", "a\0b=1"):
        with pytest.raises(RequestError, match="no name of a variable"):
            capture_env.capture(["true"], tmp_path, [wrong], None, {"PATH": "/bin:/usr/bin"})


@pytest.mark.parametrize(
    "words", [("status",), ("model", "list"), ("ls", "--limit", "2"), ("stores", "--sort", "name")]
)
def test_terminals_of_every_kind(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)

    def shown(**variables: str) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda: True)
            for name, value in ({"TERM": "xterm", "COLUMNS": "80"} | variables).items():
                patch.setenv(name, value)
            status, out, err = run(capsys, *words)
            assert (status, err) == (0, "")
            return out

    assert "\x1b[1m" in shown()
    plain = shown(TERM="dumb")
    assert "\x1b" not in plain
    assert plain == shown(NO_COLOR="1") == re.sub("\x1b\\[[0-9]*m", "", shown())
    for columns in ("40", "80", "200"):
        named = "/var/cache/xpucached/sycl" if "stores" in words else "resnet"
        assert named in shown(TERM="dumb", COLUMNS=columns), columns


def test_a_model_is_registered_with_what_is_odd_and_when_it_is_warmed(
    served: Running, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("model", "add", "net", "--store", str(tmp_path / "not-there"))
    status, out, err = run(capsys, *words, "--", "/bin/true")
    assert (status, err) == (
        0,
        f"note: there is no directory {tmp_path}/not-there yet; the first run makes the store there\n",
    )
    assert out.endswith("It is warmed by itself soon; now: xpucachectl prewarm net\n")
    status, out, err = run(capsys, *words, "--replace", "-q", "--", "/bin/true")
    assert (status, out, err) == (0, "net\n", "")
    status, out, _ = run(capsys, *words, "--replace", "--prewarm", "--", "/bin/true")
    assert (status, "warmed  resnet" in out) == (0, True), out
    assert served.service.asked[-1] == PrewarmModels(models=(ModelName("net"),))


def test_a_program_that_is_there_and_cannot_be_started_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "text").touch(0o644)
    (tmp_path / "loop").symlink_to("loop")
    for name, why in (
        ("text", "cannot be started: it is no program that may be run"),
        (".", "cannot be started: it is a directory"),
        ("loop", "cannot be started: Too many levels of symbolic links"),
        ("gone", "there is no program"),
    ):
        with pytest.raises(RequestError, match=why):
            capture_env.capture([f"{tmp_path}/{name}"], tmp_path, [], None, {"PATH": "/bin"})


def test_who_registers_a_model_without_a_device_is_given_the_whole_line_that_helps(
    served: Running, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    served.service.has_device = False  # of its own; what other models' variables lead to does not help it
    for one in (program := tmp_path / "bin/python", tmp_path / "lib/libOpenCL.so.1", tmp_path / "lib/libintelocl.so"):
        one.parent.mkdir(exist_ok=True)
        one.touch(0o755)
    libraries = tmp_path / "lib"
    line = f"--env LD_LIBRARY_PATH={libraries} --env OCL_ICD_FILENAMES={libraries}/libintelocl.so"
    _, _, err = run(capsys, "model", "add", "net", "--", str(program))
    assert f"\n  xpucachectl model add net --replace {line} -- {program}\n" in err
    _, _, err = run(capsys, "model", "add", "net", "--replace", "--pinned", "--", str(program))
    assert f"\n  xpucachectl model add net --replace {line} …  # the rest as before\n" in err
    _, out, _ = run(capsys, "why", "net")
    assert f"\n  xpucachectl model add net --replace {line} …  # the rest as before\n" in out
    _, out, _ = run(capsys, "why", "net", "--json")
    assert "libintelocl" not in out


def test_status_waits_for_a_daemon_and_for_its_first_look(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_dir: Path
) -> None:
    monkeypatch.setattr(waiting, "_PAUSE", 0.0)
    looks = iter([Verdict.STARTING, Verdict.STARTING])
    usual = served.service.status

    async def first() -> Status:
        return replace(await usual(), verdict=next(looks, Verdict.WARM))

    monkeypatch.setattr(served.service, "status", first)
    assert run(capsys, "status", "--wait") == (0, run(capsys, "status")[1], "This host is warm.\n")
    served.service.verdict, looks = Verdict.STARTING, iter([Verdict.STARTING] * 3)
    assert run(capsys, "status", "--wait", "--timeout", "0.001s")[0] == 1, "the time is up"
    nobody = ("--socket", str(short_dir / "nobody"), "status", "--wait", "--timeout", "0.1s")
    status, _, err = run(capsys, *nobody)
    assert (status, err.splitlines()[0]) == (69, "Waiting for the daemon to answer")
    assert run(capsys, *nobody, "--check")[0] == 3


def test_emptying_the_trash_asks_on_a_terminal(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    for answer, status in (("", 1), ("n\n", 1), ("yes\n", 0)):
        monkeypatch.setattr(sys.stdin, "readline", lambda answer=answer: answer)
        got, _, err = run(capsys, "trash", "empty")
        assert (got, "for good? [y/N]" in err) == (status, True), (answer, err)
    assert "[y/N]" not in run(capsys, "trash", "empty", "-y")[2]
