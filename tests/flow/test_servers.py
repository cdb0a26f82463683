"""Models that are servers: started, asked, and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests import INSTANCE, REPOSITORY
from tests.flow.test_daemon import driven
from tests.support.daemons import daemon
from xpucached.domain.models import Outcome, Workload
from xpucached.domain.workloads import RunSpec
from xpucached.kinds.sycl.preflight import SYCL_CHECK
from xpucached.processes import serving
from xpucached.processes.output import Trace
from xpucached.processes.supervised import ProcessStarter

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemons import Daemon
    from tests.support.runtimes import Runtime
    from xpucached.processes.results import RunResult

SERVER: Final = REPOSITORY / "tests/support/server.py"


@pytest.fixture
def port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        number: int = one.getsockname()[1]
    return number


def execute(*command: object, timeout: float = 20, **said: object) -> RunResult:
    spec = RunSpec(**said)  # type: ignore[arg-type]
    assert not list(spec.mistakes())
    workload = Workload(tuple(map(str, command)), Path("/tmp"), {}, timeout, spec)
    return asyncio.run(ProcessStarter(os.environ, INSTANCE).execute(workload, {}, Trace(), polite=True))


def written(place: Path, *requests: object) -> str:
    path = place / "requests.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in requests))
    return str(path)


@pytest.mark.flow
def test_a_server_is_asked_when_it_is_ready_and_then_stopped(tmp_path: Path, port: int) -> None:
    base = f"http://localhost:{port}"
    file = written(
        tmp_path, {"path": "/a?b=1", "body": {"prompt": "Hi"}}, {"method": "POST", "path": "/c", "body": "x"}
    )
    done = execute(sys.executable, SERVER, port, ready_url=f"{base}/health", requests=file)
    assert (done.outcome, done.exit_status, done.detail) == (None, 0, "")
    assert done.output.splitlines()[-2:] == ['asked /a?b=1 {"prompt": "Hi"} application/json', "asked /c x None"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    # Of a line in its output; whole URLs are where there is none to begin with.
    file = written(tmp_path, {"path": f"{base}/"})
    done = execute(sys.executable, SERVER, port, ready_line=f"ing on {port}", requests=file)
    assert (done.outcome, f"listening on {port}" in done.output) == (None, True)
    # What it started ends with it.
    done = execute("/bin/sh", "-c", "echo here; sleep 600 & wait", ready_line="here")
    assert done.outcome is None


@pytest.mark.flow
def test_a_server_that_cannot_be_used_has_failed_with_the_cause(tmp_path: Path, port: int) -> None:
    url = f"http://127.0.0.1:{port}/"
    ended = execute(sys.executable, "-c", "import sys; sys.exit('no weights')", ready_url=url)
    assert (ended.outcome, ended.output) == (Outcome.FAILED, "no weights")
    assert ended.detail.startswith("it ended before it was ready (exit status 1)")
    away = execute("/bin/sh", "-c", "sleep 600 & exit 0", ready_line="x")
    assert away.detail.endswith("(exit status 0); a server has to stay in the foreground")
    crashed = execute("/bin/sh", "-c", "kill -11 $$", ready_line="x")
    assert (crashed.outcome, crashed.exit_status) == (Outcome.FAILED, 139), "as shells tell of it"
    late = execute("/bin/sleep", 600, ready_url=url, ready_timeout=0.3)
    assert late.detail.startswith(f"it was not ready after 0.3 s; {url}: no answer")
    for path, said in (("/fail", "500 Internal Server Error: ok"), ("/end", "it ended while it was sent request 1")):
        file = written(tmp_path, {"method": "POST", "path": path})
        wrong = execute(sys.executable, SERVER, port, ready_url=url, requests=file)
        assert (wrong.outcome, said in wrong.detail) == (Outcome.FAILED, True), wrong.detail
    with socket.create_server(("127.0.0.1", port)):
        taken = execute(sys.executable, SERVER, port, ready_url=url)
    assert taken.detail.startswith(f"127.0.0.1:{port}: something else listens there already")
    gone = execute(sys.executable, SERVER, port, ready_url=url, requests="/no/such/file")
    assert (gone.outcome, gone.detail) == (Outcome.FAILED, "/no/such/file: No such file or directory")
    slow = execute("/bin/sleep", 600, ready_url=url, timeout=0.5)
    assert slow.outcome is Outcome.TIMED_OUT


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "there is no request in it; expected one JSON object a line"),
        ("\n \n", "there is no request in it"),
        ("{", ":1: it is nested deeper"),
        ("\n[]", ":2: "),
        ('{"path": "x"}', "expected a path that begins with /"),
        ('{"path": "/x", "url": 1}', "unknown key 'url'; known are: method, path, body, headers"),
        ('{"path": "http://example.org/"}', "a model's requests go nowhere else"),
        ('{"path": "http://127.0.0.1.example.org/"}', "a model's requests go nowhere else"),
        ('{"path": "//example.org/x"}', "a model's requests go nowhere else"),
        ('{"path": "/x", "method": "GET\\r\\n"}', "method: expected a word"),
        ('{"path": "/x\\r\\nHost: y"}', "expected a path"),
        ('{"path": "/x", "headers": {"a": "b\\r\\nc: d"}}', "headers: expected names"),
    ],
)
def test_a_file_of_requests_that_cannot_be_meant_is_refused(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "requests"
    path.write_text(line)
    with pytest.raises(serving.BadRequestsFile) as refused:
        serving.read(str(path), "http://127.0.0.1:8000/health")
    assert said in str(refused.value)


def test_what_is_no_file_of_requests_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b" " * ((4 << 20) + 1))
    for name in ("fifo", "large", "\0", "."):
        with pytest.raises(serving.BadRequestsFile):
            serving.read(f"{tmp_path}/{name}", "")


@pytest.mark.runtime
@pytest.mark.timeout(300)
def test_a_server_that_compiles_is_proven_warm(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime], tmp_path: Path, port: int
) -> None:
    rt = runtime("rt2025.2")
    file = written(tmp_path, {"method": "POST", "path": "/build"})
    python, url = sys.executable, f"http://127.0.0.1:{port}/"
    words = (python, "-I", "-S", "-B", str(SERVER), str(port), str(SYCL_CHECK.parent), f"{rt.lib}/libsycl.so.8", "one")
    with daemon(home, short_dir) as one:
        driven(one, rt, tmp_path / "driver")
        one.start()
        empty = tmp_path / "empty"
        empty.touch()
        refused = one.ctl("model", "add", "net", "--ready-url", url, "--requests", str(empty), "--", *words, check=64)
        assert "there is no request in it" in refused.stderr
        refused = one.ctl("model", "add", "net", "--ready-url", "http://example.org/", "--", *words, check=64)
        assert "expected a URL on this host" in refused.stderr
        one.ctl("model", "add", "net", "--ready-url", url, "--requests", file, "--", *words)
        one.ctl("prewarm", "net")
        found = one.ask("model", "show", "net")
        assert found["warmth"] == "warm", found
        assert found["entries"] == 1
        shown = one.ctl("model", "show", "net").stdout
        assert f"ready when {url} answers, within 10 min" in shown
        assert _declared(one, file, url, words)["warmth"] == "warm", "a model file says the same"


def _declared(one: Daemon, file: str, url: str, words: tuple[str, ...]) -> dict[str, object]:
    folder = one.config.parent / "models.d"
    folder.mkdir(exist_ok=True)
    (folder / "declared.toml").write_text(
        f"command = {json.dumps(words)}\nready_url = '{url}'\nready_timeout = '1m'\nrequests = '{file}'\n"
    )
    one.until(lambda: any(row["name"] == "declared" for row in one.rows("model", "list")))
    one.ctl("prewarm", "declared")
    return one.ask("model", "show", "declared")
