"""xpucachectl, in the test's process and as one of its own, against a real server."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests import REPOSITORY
from tests.support import host_stub
from tests.support.api_stub import NASTY, NOW, Running, make_entry, make_status, running
from tests.support.command_line import run
from xpucached import __version__, cli, sockets
from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.api.endpoints import VERSION, Right
from xpucached.cli import commands_jobs, connect, program, progress, quick, terminal
from xpucached.domain.checks import Level, check
from xpucached.domain.host import Problem
from xpucached.domain.jobs import Event, Job, JobState
from xpucached.domain.models import Outcome
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.plans import Deferred
from xpucached.domain.queries import EntryQuery
from xpucached.domain.reports import PrewarmReport
from xpucached.domain.status import Status, Verdict
from xpucached.domain.stores import Kernel
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.errors import Busy, Unavailable
from xpucached.render import jobs
from xpucached.render.status import monitoring
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from xpucached.domain.queries import EntryPage

COMMAND: Final = (sys.executable, "-m", "xpucached.cli")


@contextlib.contextmanager
def started(*words: str, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Start a command line as a process that Ctrl-C ends; a test that fails does not wait for it."""
    # Whoever runs the tests in the background of a script lets them ignore SIGINT, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        child = subprocess.Popen(
            [*COMMAND, *words], stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=REPOSITORY, process_group=0
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with child:
        try:
            yield child
        except BaseException:
            child.kill()
            raise


# -- looking --------------------------------------------------------------------------------------------------------

LOOKING: Final = [
    (("status",), "This host is warm."),
    (("ls",), "3 entries, 12 KiB"),
    (("show", make_entry(1).entry.id.ref), "1/2/3/4/1"),
    (("stores",), "/var/cache/xpucached/sycl"),
    (("devices",), "bmg-g21"),
    (("df",), "2.0 MiB could go: xpucachectl evict"),
    (("model", "list"), "resnet"),
    (("model", "show", "resnet"), "/usr/bin/python3 app.py"),
    (("jobs",), "no jobs"),
    (("events",), ""),
    (("runs",), "warmed"),
    (("runs", "resnet", "--limit", "3"), "warmed"),
    (("env",), "export SYCL_CACHE_PERSISTENT=1"),
    (("config", "show"), "10m (default)"),
    (("version",), f"xpucachectl {__version__}\nxpucached {__version__}"),
]


@pytest.mark.parametrize(("words", "needle"), LOOKING, ids=lambda one: " ".join(one) if isinstance(one, tuple) else "")
def test_looking(served: Running, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], needle: str) -> None:
    status, out, err = run(capsys, *words)

    assert (status, err) == (0, "")
    assert needle in out


@pytest.mark.parametrize("words", [words for words, _ in LOOKING], ids=" ".join)
def test_json_everywhere(served: Running, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    status, out, _ = run(capsys, *words, "--json")

    body = json.loads(out)
    assert (status, body["api"]) == (0, 1)
    assert "data" in body


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("status",), "warm"),
        (("ls", "--limit", "1"), make_entry(1).entry.id.ref),
        (("stores",), "/var/cache/xpucached/sycl"),
        (("model", "list"), "resnet"),
        (("runs",), "7"),
        (("scan", "--no-wait"), "1"),
        (("evict", "--dry-run"), None),
    ],
)
def test_quiet_gives_names(
    served: Running, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], names: str | None
) -> None:
    status, out, err = run(capsys, "-q", *words)

    assert (status, err) == (0, "")
    assert out.strip() == (names or served.service.known[2].entry.id.ref)


def test_all_pages_are_shown(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    served.service.known = [make_entry(number) for number in range(2300)]

    status, out, _ = run(capsys, "ls", "--json")

    data = json.loads(out)["data"]
    assert (status, len(data["entries"]), data["total"], data["next"]) == (0, 2300, 2300, None)
    assert len({one["ref"] for one in data["entries"]}) == 2300


@pytest.mark.parametrize("words", [(), ("--json",), ("-q",)])
def test_a_page_is_printed_before_the_next_one_is_asked_for(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    served.service.known = [make_entry(number) for number in range(2300)]
    entries, printed = served.service.entries, [""]

    async def noting(query: EntryQuery) -> EntryPage:
        printed.append(printed[-1] + capsys.readouterr().out)
        return await entries(query)

    monkeypatch.setattr(served.service, "entries", noting)
    assert run(capsys, "ls", *words)[0] == 0

    shown = [sum(one.entry.id.ref in text for one in served.service.known) for text in printed[1:]]
    # Without options a small page is asked for first, in case that is all.
    assert shown[-3:] == [0, 1000, 2000]


def test_pages_have_an_end(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served.service.known = [make_entry(number) for number in range(3500)]
    monkeypatch.setattr("xpucached.cli.listing._MOST_PAGES", 3)

    status, _, err = run(capsys, "ls", "--limit", "9999")

    assert (status, len(served.service.asked)) == (Unavailable.exit, 3)
    assert "do not end" in err


def test_a_limit_ends_the_pages(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    served.service.known = [make_entry(number) for number in range(2300)]

    _, out, _ = run(capsys, "ls", "-q", "--limit", "1500")

    assert len(out.split()) == 1500


def test_filters_reach_the_catalog(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    words = "ls --driver 25.* --arch bmg-g21 --device Arc --model resnet --store /a/../s --kind sycl --kernel Gemm"
    more = ("--state", "defective", "--defect", "bin-empty", "--size", ">1k", "--size", "<=2MiB", "--unused", "7d")

    assert run(capsys, *words.split(), *more)[0] == 0

    (query,) = served.service.asked
    expected = requests.ListEntries(
        driver="25.*",
        architecture="bmg-g21",
        device="Arc",
        model="resnet",  # type: ignore[arg-type] # as it is typed
        store=Path("/s"),
        kind="sycl",  # type: ignore[arg-type] # as it is typed
        kernel="Gemm",
        state="defective",  # type: ignore[arg-type] # as it is typed
        defect="bin-empty",
        min_size=1001,
        max_size=2 << 20,
        unused=604800.0,
        limit=1000,
    )
    assert query == expected.query


def test_common_options_stand_on_both_sides(short_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(short_dir) as one:
        for words in (
            ("--socket", str(one.path), "--json", "stores"),
            ("stores", "--socket", str(one.path), "--json"),
            ("--json", "model", "list", "--socket", str(one.path)),
            ("--json", "model", "--socket", str(one.path), "list"),
        ):
            status, out, _ = run(capsys, *words)
            assert (status, json.loads(out)["api"]) == (0, 1)


def test_escapes_do_not_reach_the_terminal(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    served.service.known = [make_entry(1, kernels=(Kernel(NASTY, NASTY, NASTY),))]

    for words in (("ls",), ("show", make_entry(1).entry.id.ref), ("ls", "--json")):
        _, out, _ = run(capsys, *words)
        assert "\x1b" not in out
        assert "\u202e" not in out


# -- monitoring -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "status", "level"),
    [
        (Verdict.WARM, 0, "OK"),
        (Verdict.COLD, 1, "WARNING"),
        (Verdict.WARMING, 1, "WARNING"),
        (Verdict.STARTING, 3, "UNKNOWN"),
        (Verdict.NO_MODELS, 1, "WARNING"),
        (Verdict.FAILED, 2, "CRITICAL"),
        (Verdict.NO_DEVICE, 3, "UNKNOWN"),
    ],
)
def test_check(served: Running, capsys: pytest.CaptureFixture[str], verdict: Verdict, status: int, level: str) -> None:
    served.service.verdict = verdict

    assert run(capsys, "status", "--check") == (
        status,
        f"XPUCACHED {level} - This host is {verdict}. | {FIGURES}\n",
        "",
    )


FIGURES: Final = "warm=1;1:;;0;1 cold=0;0;;0;1 failing=0;;0;0;1 entries=3;;;0 size=12288B;;;0"
"""Those of the stub's one model."""


@pytest.mark.parametrize(
    ("code", "level"),
    [
        ("automatic-job-failed", Level.WARNING),
        ("catalog-failing", Level.UNKNOWN),
        ("store-fault", Level.WARNING),
        ("bad-settings", Level.UNKNOWN),
        ("conflict", Level.UNKNOWN),
        ("catalog-rebuilt", Level.WARNING),
    ],
)
def test_check_of_a_warm_host_with_a_problem(
    served: Running, capsys: pytest.CaptureFixture[str], code: str, level: Level
) -> None:
    served.service.problems = (Problem(code, "this | that."),)

    line = f"XPUCACHED {level.name} - This host is warm; but this / that. | {FIGURES}\n"
    assert run(capsys, "status", "--check") == (level, line, "")


def test_a_check_that_waited_judges_by_the_clock_at_its_end(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def status() -> Status:
        return replace(make_status(), problems=(), looked=datetime.now(UTC), look_every=600.0)

    # As if the first look, for which it waits, had taken ten minutes.
    style = TextStyle(datetime.now(UTC) - timedelta(minutes=10))
    monkeypatch.setattr(terminal, "style", lambda _options: style)
    monkeypatch.setattr(served.service, "status", status)
    assert run(capsys, "status", "--check", "--wait") == (0, f"XPUCACHED OK - This host is warm. | {FIGURES}\n", "")


def test_check_without_a_daemon(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = run(capsys, "--socket", str(tmp_path / "none"), "status", "--check")

    assert (status, err) == (3, "")
    assert out.startswith("XPUCACHED UNKNOWN - no daemon answers")
    assert out.count("\n") == 1


# -- refusals -------------------------------------------------------------------------------------------------------


def test_no_daemon(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XPUCACHED_SOCKET", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(connect, "_MANAGERS", (str(tmp_path / "lib"),))

    status, out, err = run(capsys, "--user", "status")

    assert (status, out) == (69, "")
    assert err.startswith("xpucachectl: no daemon answers on ")
    # What cannot be done is not hinted at: no unit is installed.
    assert "start it: xpucached --user &; as a service: xpucachectl setup --user" in err
    assert "no service of the host's is installed here: " in run(capsys, "--system", "status")[2]
    for unit in (tmp_path / "systemd/user/xpucached.service", tmp_path / "lib/system/xpucached.service"):
        unit.parent.mkdir(parents=True)
        unit.touch()
    assert "systemctl --user restart xpucached, or xpucached --user &" in run(capsys, "--user", "status")[2]
    assert "systemctl restart xpucached" in run(capsys, "--system", "status")[2]


def test_no_daemon_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = run(capsys, "--socket", str(tmp_path / "none"), "status", "--json")

    assert (status, err) == (69, "")
    assert json.loads(out)["error"]["code"] == "unavailable"


@pytest.mark.parametrize(
    ("words", "status", "needle"),
    [
        (("dance",), 64, "dance"),
        (("ls", "--size", "3"), 64, "'>1MB'"),
        (("ls", "--size", ">x"), 64, "not a size"),
        (("ls", "--unused", "1h30"), 64, "not a duration"),
        (("ls", "--limit", "0"), 64, "1 or more"),
        (("show", "xyz"), 64, "hex digits"),
        (("show", "0123"), 66, "no entry begins with 0123"),
        (("model", "show", "bert"), 66, "no model bert"),
        (("model", "add", "x"), 64, "command is missing"),
        (("model", "add", "resnet", "--", "sh"), 65, "already"),
        (("model", "add", "x", "--", "no-such-program"), 64, "no program 'no-such-program'"),
        (("model", "add", "x", "--env", "NOT_SET", "--", "sh"), 64, "NOT_SET"),
        (("model", "add", "x", "--priority", "1000", "--", "sh"), 64, "priority: expected 0 to 100"),
        (("model", "add", "a/b", "--", "sh"), 64, "name: expected"),
        (("prewarm", "resnet", "--all"), 64, "exactly one"),
        (("prewarm", "resnet", "--stale"), 64, "exactly one"),
        (("statsu",), 64, "no command 'statsu'; did you mean status?"),
        (("model", "shw"), 64, "did you mean show?"),
        (("restore", "1"), 64, "no command 'restore'; did you mean trash restore?"),
        (("bundle",), 64, "missing: a command; expected one of export"),
        (("status", "extra"), 64, "not understood: extra"),
        (("ls", "--flaw", "bin-empty"), 64, "; it is called --defect now"),
        (("ls", "--flaw=bin-empty"), 64, "; it is called --defect now"),
        (("ls", "--state", "flawed"), 64, "it is called defective now"),
        (("evict", "--reason", "flawed"), 64, "it is called defective now"),
        (("ls", "--state", "broken"), 64, "expected one of ok, defective, unfinished, unread"),
        (("evict", "--reason", "x"), 64, "superseded-driver"),
        (("events", "--since", "x"), 64, "not a number, and no age: 'x'"),
        (("model", "add", "x", "python3", "app.py"), 64, "stands behind --"),
        (("run", "sh", "-c", "true"), 64, "stands behind --"),
        (("trash", "restore"), 64, "either REF… or --all"),
        (("trash", "restore", "--all", "ab"), 64, "either REF… or --all"),
        (("trash", "restore", "xyz"), 64, "not a reference: 'xyz'"),
        (("trash", "empty", "xyz"), 64, "not a reference: 'xyz'"),
        (("evict", "--plan", "xyz"), 64, "not a reference: 'xyz'"),
        (("model", "add", "x", "--directory", "/no/such", "--", "sh"), 64, "no directory /no/such"),
        (("jobs", "9"), 66, "no job 9"),
        (("stores", "--", "x"), 64, "only model add"),
    ],
)
def test_a_refusal_has_its_sentence_and_its_status(
    served: Running, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, needle: str
) -> None:
    found, out, err = run(capsys, *words)

    assert (found, out) == (status, "")
    assert needle in err
    assert err.startswith("xpucachectl: ")

    found, out, err = run(capsys, "--json", *words)
    assert (found, err) == (status, "")
    assert needle in json.loads(out)["error"]["message"]


def test_nothing_found_for_a_name_that_does_not_exist_is_refused(
    served: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    served.service.known = []

    assert run(capsys, "ls") == (0, "no entries\n", "")
    assert run(capsys, "ls", "--size", ">1k") == (0, "no entries match\n", "")
    assert run(capsys, "ls", "--model", "resnet") == (0, "no entries match\n", "")
    assert run(capsys, "ls", "--model", "bert")[0] == 66
    status, _, err = run(capsys, "ls", "--store", "/no/such")
    assert (status, err.splitlines()[0]) == (66, "xpucachectl: no store /no/such")


def test_the_hint_knows_who_named_the_socket(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XPUCACHED_SOCKET", raising=False)
    assert "--socket" in run(capsys, "--socket", str(tmp_path / "none"), "status")[2]
    monkeypatch.setenv("XPUCACHED_SOCKET", str(tmp_path / "none"))
    assert "XPUCACHED_SOCKET" in run(capsys, "status")[2]
    assert "xpucached --user &" in run(capsys, "--user", "status")[2]


@pytest.mark.skipif(Path(f"/run/user/{os.getuid()}").exists(), reason="this user has a directory for sockets")
def test_without_a_directory_for_sockets_no_hint_leads_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("XPUCACHED_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert "export XPUCACHED_SOCKET=" in run(capsys, "--user", "status")[2]
    monkeypatch.setenv("XPUCACHED_SOCKET", str(tmp_path / "none"))
    for words in (("--user", "status"), ("status",)):
        said = run(capsys, *words)[2]
        assert f"no daemon answers on {tmp_path}/none" in said
        assert "xpucached --user & starts a daemon there" in said
        assert "unset it" not in said
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert "; or unset it" in run(capsys, "status")[2]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("run", "sh", "-c", "a b"), "run -- sh -c 'a b'"),
        (("run", "--user", "sh", "app.py", "--json", "-v"), "run --user -- sh app.py --json -v"),
        (("run", "llama", "sh", "app.py"), "run llama -- sh app.py"),
        (("run", "sh"), "run -- sh"),
        (("run", "llama"), "run llama -- python3 app.py"),
        (("trace", "sh", "-c", "true"), "trace -- sh -c true"),
        (("run", "llama", "--no-such"), "run --help"),
    ],
)
def test_a_program_without_its_dashes_is_hinted_with_them(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], hint: str
) -> None:
    status, out, err = run(capsys, *words)
    told = json.loads(out)["error"]["hint"] if out else err.partition("hint: ")[2].rstrip()
    assert (status, told) == (64, f"xpucachectl {hint}")


@pytest.mark.skipif(
    Path(sockets.socket_path(user=False, environ={})).exists(), reason="a system's daemon may answer here"
)
def test_the_other_daemon_is_offered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_dir: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir))
    path = Path(sockets.socket_path(user=True, environ=os.environ))
    path.parent.mkdir(parents=True)
    path.touch()

    assert "; or ask your own: xpucachectl --user" in run(capsys, "--system", "status")[2]


def test_who_may_only_look(
    short_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(short_dir, allowed=lambda _uid, right: right is Right.READ) as one:
        monkeypatch.setenv("XPUCACHED_SOCKET", str(one.path))
        assert run(capsys, "scan")[0] == 77
        assert run(capsys, "status")[0] == 0


def test_another_program_on_the_socket(short_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.bind(sys.argv[1]); s.listen()\n"
        "print(flush=True)\n"
        "c = s.accept()[0]; c.recv(4096); c.sendall(b'220 hello, this is mail\\r\\n')\n"
    )
    path = short_dir / "s"
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        status, _, err = run(capsys, "--socket", str(path), "status")

    assert status == 69
    assert "is not xpucached" in err


# -- models ---------------------------------------------------------------------------------------------------------


def test_a_model_takes_over_what_decides_its_kernels(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "my-app"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        monkeypatch.delenv(name) if name not in {"XPUCACHED_SOCKET", "HOME"} else None
    for name, value in {
        "PATH": "bin:/usr/bin",
        "ZE_AFFINITY_MASK": "0",
        "NEOReadDebugKeys": "1",
        "SYCL_CACHE_PERSISTENT": "0",
        "SYCL_CACHE_DIR": "cache",
        "LD_PRELOAD": "evil.so",
        "PASSWORD": "secret",
        "WANTED": "yes",
    }.items():
        monkeypatch.setenv(name, value) if name != "LD_PRELOAD" else None

    status, out, _ = run(
        capsys,
        "model",
        "add",
        "mine",
        "--env",
        "WANTED",
        "--env",
        "X=a=b",
        "--timeout",
        "1h30m",
        "--",
        "my-app",
        "--",
        "-q",
    )

    assert status == 0
    (request,) = served.service.asked
    assert request == requests.AddModel(
        name="mine",  # type: ignore[arg-type] # as it is typed
        command=(str(program), "--", "-q"),
        directory=tmp_path,
        variables={
            "PATH": "bin:/usr/bin",
            "ZE_AFFINITY_MASK": "0",
            "NEOReadDebugKeys": "1",
            "WANTED": "yes",
            "X": "a=b",
        },
        timeout=5400.0,
        store=tmp_path / "cache",
    )
    assert "ZE_AFFINITY_MASK" in out
    assert "secret" not in out


def test_the_managed_store_can_be_asked_for(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYCL_CACHE_DIR", "/elsewhere")

    run(capsys, "model", "add", "mine", "--store", "default", "--", "sh")

    (request,) = served.service.asked
    assert isinstance(request, requests.AddModel)
    assert request.store is None


def test_a_model_is_brought_to_life_by_a_loader(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.pt").touch()
    status, out, _ = run(
        *(capsys, "model", "add", "mine", "--loader", "torchscript", "--python", sys.executable, "--target", "net.pt"),
        *("--inputs", "random", "--device", "xpu", "--precision", "float16", "--precision", "float32"),
        *("--shape", "1x3", "--require-device", "--memory", "1GiB", "--option", "a=b=c", "--store", "default"),
        *("--compare", "cpu"),
    )

    assert status == 0
    (request,) = served.service.asked
    assert isinstance(request, requests.AddModel)
    assert request.command == ()
    assert request.exercise == RunSpec(
        loader=Loader.TORCHSCRIPT,
        python=sys.executable,
        target=str(tmp_path / "net.pt"),
        inputs="random",
        device="xpu",
        precisions=("float16", "float32"),
        shapes=("1x3",),
        require_device=True,
        memory=1 << 30,
        options={"a": "b=c"},
        compare="cpu",
    )
    assert "torchscript" in out
    assert "xpu, required" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--loader", "train", "--", "sh"), "python: expected the absolute path"),
        (("--loader", "python", "--python", "/bin/sh", "--device", "cpu", "--target", "a:b", "--", "sh"), "no command"),
        (("--precision", "float17", "--", "sh"), "precisions: unknown precision"),
        (("--memory", "much", "--", "sh"), "expected a size"),
        (("--option", "a", "--", "sh"), "expected NAME=VALUE"),
    ],
)
def test_what_no_loader_could_do_is_refused(
    served: Running, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    status, _, err = run(capsys, "model", "add", "mine", *words)

    assert status == 64
    assert told in err
    assert served.service.asked == []


def test_the_variants_of_a_run_are_shown(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "model", "show", "resnet")

    assert "xpu:0 float16 1x32" in out
    assert "20.0 ms" in out
    assert "17 entries are for Arc" in out
    assert "\x1b" not in out


def test_a_model_is_removed(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "model", "remove", "resnet") == (0, "removed resnet\n", "")
    assert run(capsys, "model", "remove", "resnet")[0] == 66


# -- jobs -----------------------------------------------------------------------------------------------------------


def test_prewarming_is_seen_through(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "prewarm")

    assert status == 0
    assert served.service.asked == [requests.PrewarmModels(stale=True)]
    assert out == "warmed  resnet: 17 entries\nwarm already  bert\n"


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.UNPROVEN])
def test_failed_prewarming_has_its_status(
    served: Running, capsys: pytest.CaptureFixture[str], outcome: Outcome
) -> None:
    served.service.outcome = outcome

    status, out, err = run(capsys, "prewarm", "--all", "--json")

    assert status == 1
    assert json.loads(out)["data"]["report"]["runs"][0]["outcome"] == outcome
    assert "not every model is warm" in err


def test_what_uses_no_cache_is_no_failure_of_prewarming(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    served.service.outcome = Outcome.UNCACHED
    status, out, err = run(capsys, "prewarm", "--all")
    assert (status, err) == (0, "")
    assert out.startswith("uncached  resnet")
    report = PrewarmReport((), (), (Deferred(ModelName("plain"), "it uses no cache", None, uncached=True),))
    job = Job(JobId("prewarm-1"), "prewarm", JobState.DONE, NOW, NOW, report=report)
    assert commands_jobs._verdict(job) == 0
    assert jobs.job(job, TextStyle(NOW)) == "uncached  plain: it uses no cache"


def test_a_dry_run_changes_nothing(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "evict", "--dry-run", "--reason", "defective", "00ff")

    assert status == 0
    assert served.service.asked == [requests.EvictEntries(dry_run=True, refs=("00ff",), reasons=("defective",))]
    assert "would evict 1 entry" in out


def test_nobody_need_wait(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    served.service.hold = True

    assert run(capsys, "scan", "--full", "--no-wait") == (0, "job 1: scan running 1/2 (50 %): resnet\n", "")
    assert run(capsys, "jobs", "1")[1] == "scan running 1/2 (50 %): resnet\n"
    assert run(capsys, "jobs", "--cancel", "1")[1] == "scan cancelled 1/2: resnet\n"


def test_who_stops_waiting_leaves_the_job_running(served: Running) -> None:
    served.service.hold = True
    with started("scan") as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "scan running 1/2 (50 %): resnet\n"
        child.send_signal(signal.SIGINT)
        _, err = child.communicate()

    assert child.returncode == 130
    assert "xpucachectl jobs --cancel 1" in err
    assert "Traceback" not in err
    assert served.service.begun["1"].state is JobState.RUNNING


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_loses_is_heard_all_the_same(
    served: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Dying:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    # Whoever runs the tests in the background of a script lets them ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    served.service.hold = True
    show = progress._LineProgress.show

    def lose(lines: progress._LineProgress, job: Job) -> None:
        show(lines, job)
        # Raised in a place from which Python lets nothing out.
        Dying()

    monkeypatch.setattr(progress._LineProgress, "show", lose)
    try:
        assert run(capsys, "scan")[0] == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("terminal")
def test_progress_on_a_terminal(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    served.service.hold = True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with started("prewarm", stderr=follower) as child:
        os.close(follower)
        seen = b""
        while b"prewarm running 1/2" not in seen:
            seen += os.read(leader, 4096)
        served.service.hold = False
        try:
            while os.read(leader, 4096):
                pass
        except OSError:
            pass  # how a terminal says that nobody is left on the other side
    os.close(leader)

    assert child.returncode == 0


# -- as a process ---------------------------------------------------------------------------------------------------


def test_events_are_followed(served: Running) -> None:
    served.do(lambda: served.service.happen("first"))
    with started("events", "-f") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "2026-03-04T05:06:07Z evicted: first store='/a b'\n"
        served.do(lambda: served.service.happen("second"))
        assert "second" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate()

    assert (child.returncode, err) == (130, "")


@pytest.mark.parametrize(
    "words", [("status",), ("ls",), ("env",), ("run", "resnet", "--", "true"), ("prewarm", "resnet")], ids=" ".join
)
def test_who_waits_for_a_silent_daemon_may_end_it(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    path = short_dir / "silent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        monkeypatch.setenv("XPUCACHED_SOCKET", str(path))
        with started(*words) as child:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(1)
                child.send_signal(signal.SIGINT)
                said = child.communicate()

    assert (child.returncode, *said) == (130, "", "")


def test_a_closed_pipe_is_no_disaster(served: Running) -> None:
    served.service.known = [make_entry(number) for number in range(3000)]
    with started("ls") as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr is not None
        err = child.stderr.read()

    assert (child.returncode, err) == (141, "")


def test_a_refusal_that_nobody_reads_is_no_disaster(served: Running) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*COMMAND, "--json", "model", "show", "nobody"]
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_terminal_that_knows_only_ascii(served: Running) -> None:
    served.service.known = [make_entry(1, kernels=(Kernel("ü", "ü…", None),))]
    done = subprocess.run(
        [*COMMAND, "ls"],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )

    assert "\\xfc" in done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"xpucachectl {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["ls", "--help"], ["model", "add", "--help"], ["prewarm", "-h"]])
def test_help(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)

    assert caught.value.code == 0
    assert "usage: xpucachectl" in capsys.readouterr().out


# -- the short way --------------------------------------------------------------------------------------------------


ENTRY: Final = make_entry(1).entry.id.ref
QUICK: Final = [
    *(
        "status",
        "df",
        "ls",
        "ls --json",
        f"show {ENTRY}",
        "stores",
        "devices",
        "model list",
        "model show resnet",
        "model history resnet",
    ),
    *(
        "trash list",
        "events",
        "runs",
        "runs resnet",
        "jobs",
        "why resnet",
        "version",
        "env",
        "env resnet",
    ),
    *(
        "status --check",
        "env --docker",
        "env --systemd",
        "env resnet -q",
        "status -q",
        "ls --user",
        "runs -q --no-color",
    ),
    *("status --json", "model show resnet --json", "--json jobs", "trash list -q", "model show -q resnet"),
    *("metrics", "metrics --json", "metrics -q"),
    *(
        "ls --state ok",
        "ls --arch=bmg-g21 --state ok --json",
        "ls --driver current",
        "ls --kind sycl",
        "ls --model resnet",
        "runs --limit 5 --json",
        "runs resnet --limit=1",
        "events --since 0",
        "events --since 1 --json",
    ),
    *("ls -q", "ls --limit 2", "ls -q --limit=1000", "ls --limit 2 --json", "ls --limit 2 -q", "ls --limit 900"),
    *("version --json", "env --json", "env resnet --json", "config show --json"),
    *("config show", "config show -q", "metrics --openmetrics", "top --once", "top --once --json", "top --once -q"),
    *("usage", "usage --days", "usage --days --json", "usage --warmth", "usage --warmth -q", "usage --top 5"),
]

_SHORT: Final = [
    "__future__",
    "xpucached",
    "xpucached.cli",
    "xpucached.cli.quick",
    "xpucached.cli.quick_output",
    "xpucached.printing",
    "xpucached.sockets",
]
_FOR_ENV: Final = ["xpucached.cli.belonging", "xpucached.kinds", "xpucached.kinds.variables"]
_FOR_SHELLS: Final = ["xpucached.render", "xpucached.render.variables"]


@pytest.mark.flow
@pytest.mark.parametrize("line", [one for one in QUICK if "--user" not in one])
def test_what_only_looks_loads_next_to_nothing(served: Running, line: str) -> None:
    code = (
        "import sys, socket, enum, os\nbefore = {*sys.modules}\nfrom xpucached import cli\n"
        "status = cli.main(sys.argv[1:])\nsys.stdout.flush()\n"
        "print(*sorted({*sys.modules} - before), file=sys.stderr)\nsys.exit(status)"
    )
    words = [sys.executable, "-S", "-c", code, *line.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    # The codec is Python's own, for a terminal or a pipe.
    loaded = [name for name in done.stderr.split() if not name.startswith("encodings")]
    assert loaded == sorted(
        [
            *_SHORT,
            *(_FOR_ENV if line.startswith("env") else []),
            *(_FOR_SHELLS if line.startswith("env") and "--json" not in line else []),
        ]
    )


@pytest.mark.flow
def test_the_version_loads_nothing() -> None:
    code = (
        "import sys\nbefore = {*sys.modules}\nfrom xpucached import cli\nstatus = cli.main(['--version'])\n"
        "print(*sorted({*sys.modules} - before), file=sys.stderr)\nsys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"xpucachectl {__version__}\n", "__future__ xpucached xpucached.cli\n")


@pytest.fixture
def own(served: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    """Let the daemon be the user's own, too."""
    monkeypatch.setattr(sockets, "socket_path", lambda **_: str(served.path))
    served.service.log.append(Event(1, NOW, "evicted", "first", {"store": "/a b"}))
    return served


@pytest.mark.parametrize("line", QUICK)
@pytest.mark.parametrize("columns", [None, 80])
def test_the_short_way_writes_what_the_long_one_does(
    own: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, columns: int | None
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    words = line.split()

    def both() -> tuple[tuple[int | None, str, str], tuple[int | None, str, str]]:
        quick_status, quick_said = quick.answer(words), capsys.readouterr()
        status, said = program.main(words), capsys.readouterr()
        return (quick_status, *quick_said), (status, *said)

    # Ages are counted in seconds, and one may pass between the two.
    pairs = [both() for _ in range(3)]
    assert any(short == whole for short, whole in pairs), pairs[-1]


@pytest.mark.parametrize("verdict", Verdict)
def test_a_check_in_the_short_way_ends_as_it_says(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verdict: Verdict
) -> None:
    async def status() -> Status:
        return make_status(verdict)

    monkeypatch.setattr(served.service, "status", status)
    judged = check(make_status(verdict), NOW)
    assert quick.answer(["status", "--check"]) == judged.level
    assert capsys.readouterr().out == f"{monitoring(judged)}\n"
    assert monitoring(judged).startswith(f"XPUCACHED {judged.level.name} - {make_status(verdict).sentence} | warm=")


@pytest.mark.parametrize(
    "line",
    [
        *("", "nothing", "status now", "ls resnet", "model", "model show", "show", "why", "show 1 2", "scan", "evict"),
        *(
            "ls --limit 1001",
            "ls --limit 5000 -q",
            "events --limit 3",
            "top",
            "usage --days --warmth",
            "usage --openmetrics",
            "status --of me",
            "status --socket=/s",
            "status --verbose",
            "stores --check",
            "jobs --cancel 1",
        ),
        *(
            "--user --system status",
            "why a/b",
            "why ..%2f",
            "show ä",
            "model show a:b",
            "events -f",
            "env --docker --shell",
        ),
        *(
            "status --check --json",
            "status -- x",
            "model remove x",
            "ls --driver",
            "ls --driver -x",
            "ls --driver a&b",
            "ls --driver=",
            "ls --kind sycl --kind=neo",
            "ls --store here",
            "ls --store /a/../b",
            "ls --store /",
            "ls gemm --kind sycl",
            "events --since 7d",
            "--limit 5 runs",
            "status --since 1",
        ),
    ],
)
def test_the_short_way_leaves_what_is_not_its_own(own: Running, line: str) -> None:
    own.service.asked.clear()
    assert quick.answer(line.split()) is None
    assert own.service.asked == []


@pytest.mark.parametrize(
    "line",
    [
        "ls --arch bmg-g21 --defect bin-empty --device=Arc --driver 1.6* --kernel gemm",
        "ls --kind sycl --model resnet --state=ok --store /a/b-c",
        "runs --limit 7",
        "runs resnet --limit=7",
        "usage --top 7",
    ],
)
def test_the_short_way_asks_for_what_the_long_one_does(own: Running, line: str) -> None:
    def asked() -> list[object]:
        found = [replace(one, limit=None) if isinstance(one, EntryQuery) else one for one in own.service.asked]
        own.service.asked.clear()
        return found

    own.service.asked.clear()
    assert quick.answer(line.split()) == 0
    short = asked()
    assert program.main(line.split()) == 0
    assert len(short) == 1
    assert short == asked()


@pytest.mark.parametrize("line", ["status --wait", "status --wait --timeout=1m", "prewarm resnet --timeout=1m"])
def test_who_waits_waits_for_a_worker_that_takes_long_to_start(
    own: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    reach, busy = connect.reach, [Busy("the worker is starting, which takes long")] * 2

    def starting(options: Namespace) -> tuple[Client, bool]:
        if busy:
            raise busy.pop()
        return reach(options)

    monkeypatch.setattr(connect, "reach", starting)
    monkeypatch.setattr("xpucached.cli.progress._BEAT", 0.01)
    assert program.main(line.split()) == 0
    assert (busy, "takes long" in capsys.readouterr().err) == ([], False)
    # Who said nothing of waiting hears of it.
    busy.append(Busy("the worker is starting, which takes long"))
    assert program.main([line.partition(" ")[0]]) == Busy.exit


def test_a_daemon_of_one_s_own_that_came_while_a_worker_woke_is_asked(
    own: Running, monkeypatch: pytest.MonkeyPatch, short_dir: Path
) -> None:
    place = short_dir / "own"

    def wake() -> Client:
        place.hardlink_to(own.path)
        return Client(short_dir / "left")

    monkeypatch.setattr(sockets, "socket_path", lambda **_: str(place))
    monkeypatch.setattr(connect, "_worker", wake)
    with connect._own(None) as client:
        assert client.call(requests.GetHello()).value.api == VERSION


def test_who_waits_finds_the_daemon_for_which_a_worker_left(
    own: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_dir: Path
) -> None:
    found: list[Client | Busy] = [
        Client(short_dir / "left"),
        Busy("another worker is starting, which takes long"),
        Client(own.path),
    ]

    def reach(_options: Namespace) -> tuple[Client, bool]:
        if isinstance(one := found.pop(0), Busy):
            raise one
        return one, False

    monkeypatch.setattr(connect, "reach", reach)
    assert program.main(["status", "--wait", "--timeout=1m"]) == 0
    said = capsys.readouterr()
    assert (found, said.err) == ([], "Waiting for the daemon to answer\n")
    assert said.out.startswith("This host is warm.")


def test_the_short_way_tells_the_host_s_daemon_what_a_hook_has_to_say(
    short_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = short_dir / "host"
    monkeypatch.setattr(sockets, "ADMIN", str(path))
    monkeypatch.setattr(sockets, "PUBLIC", str(path))
    words = ["--system", "driver-changed", "--no-wait"]
    assert quick.answer(words) is None
    with host_stub.running(path) as host:
        assert (quick.answer(words), host.looks) == (0, 1)
        assert (program.main(words), host.looks) == (0, 2)
        for others in (words[:2], words[1:], [*words, "--json"], [*words, "--timeout=1s"], [*words, "--", "x"]):
            assert quick.answer(others) is None
        with monkeypatch.context() as late:
            late.setattr(quick, "_WHOLE", -1)
            assert (quick.answer(words), host.looks) == (None, 3)
        host.refuses = True
        assert quick.answer(words) is None
        assert host.looks == 3
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("line", ["config show --json", "version --json", "env --json", "stores --json"])
@pytest.mark.parametrize("said", ["\x1b[2J", "\u202e", "\x7f"])
def test_the_short_way_prints_no_json_that_a_terminal_would_obey(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    monkeypatch.setenv("XPUCACHED_SOCKET", "/s")
    monkeypatch.setattr(
        quick, "_said", lambda *_: f"SYCL_CACHE_TRACE={said}" if line.startswith("env") else f"{{{said}}}"
    )
    assert quick.answer(line.split()) is None
    assert capsys.readouterr().out == ""


def test_the_short_way_leaves_refusals_and_many_pages(own: Running, capsys: pytest.CaptureFixture[str]) -> None:
    own.service.known = [make_entry(number) for number in range(201)]
    assert quick.answer(["ls"]) is None
    assert quick.answer(["model", "show", "nobody"]) is None
    own.service.known = []
    assert quick.answer(["ls"]) == 0
    assert capsys.readouterr().out == "no entries\n"
    # Whether there is such a model at all the whole program asks.
    assert quick.answer(["ls", "--model", "resnet"]) is None
    assert quick.answer(["ls", "--model", "resnet", "--json"]) is None
    assert quick.answer(["ls", "--model", "resnet", "-q"]) is None
    for words in (["ls", "--state", "ok"], ["ls", "--state", "ok", "--limit", "3"], ["ls", "--limit", "3"]):
        for how in ([], ["--json"], ["-q"]):
            assert quick.answer([*words, *how]) == 0
            short = capsys.readouterr()
            assert (program.main([*words, *how]), capsys.readouterr()) == (0, short)
    own.service.known = [make_entry(number) for number in range(requests.MAX_PAGE + 1)]
    assert quick.answer(["ls", "--json"]) is None
    assert quick.answer(["ls", "-q"]) is None
    own.service.known.pop()
    assert capsys.readouterr().out == ""
    # A page that is just full is all there is.
    assert quick.answer(["ls", "--json"]) == 0
    assert capsys.readouterr().out.count('"key":') == requests.MAX_PAGE
    assert quick.answer(["ls", "-q"]) == 0
    assert capsys.readouterr().out.count("\n") == requests.MAX_PAGE


@pytest.mark.parametrize(
    "variables",
    [{"LD_PRELOAD": "/evil.so"}, {"SYCL_CACHE_DIR": "/a\nexport LD_PRELOAD=/evil.so"}, {"SYCL_CACHE_DIR": "\x1b[2J"}],
)
def test_the_short_way_writes_no_variable_that_is_none(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    async def env(_model: object) -> dict[str, str]:
        return variables

    monkeypatch.setattr(served.service, "env", env)
    assert quick.answer(["env"]) is None
    assert capsys.readouterr().out == ""


def test_the_short_way_gives_way_where_nobody_answers(
    short_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XPUCACHED_SOCKET", str(short_dir / "nobody"))
    status, _, said = run(capsys, "status")
    assert status == 69
    assert "no daemon answers" in said


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 99\r\n\r\nThis host",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 Oh\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nno",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
)
def test_the_short_way_takes_no_half_answer(answer: bytes, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = short_dir / "sock"
    monkeypatch.setenv("XPUCACHED_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as one:
                one.recv(4096)
                one.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert quick.answer(["status"]) is None
        thread.join()


@pytest.mark.parametrize("look", ["colour, 40", "colour", "plain, 99999999999", "plain, -3", "plain, x", "\x7f", ""])
def test_any_look_that_is_asked_for_is_answered(look: str, served: Running) -> None:
    text = quick.Command(str(served.path), None, "status", "", set()).text(look)
    assert ("\x1b[" in text) == look.startswith("colour")
