"""Figures for Prometheus, their alerts and the board: read by the programs that will read them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest
from msgspec.structs import replace

from tests import REPOSITORY
from tests.support import api_stub, histories
from tests.support.asking import SocketConnection
from tests.support.builders import sycl_target
from xpucached.domain.bundles import CompilerLibrary
from xpucached.domain.fleet import HostFingerprint, HostTarget, HostWarm
from xpucached.domain.models import Warmth
from xpucached.domain.names import ModelName
from xpucached.domain.status import Verdict
from xpucached.domain.users import HostStatus, UserStatus, WorkerState
from xpucached.hostd import figures
from xpucached.render import fleet, metrics
from xpucached.server import metrics_port

if TYPE_CHECKING:
    from collections.abc import Iterator

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
openmetrics_parser = pytest.importorskip("prometheus_client.openmetrics.parser")

EXAMPLES = REPOSITORY / "examples"
MODELS = tuple(replace(api_stub.make_model(), name=name) for name in (histories.LLAMA, histories.WHISPER))
STATUS = replace(api_stub.make_status(), models=MODELS)
OVERVIEW, DAYS = histories.make_overview(), histories.make_days()


def promtool(*words: str, given: str | None = None) -> str:
    """Run promtool; skip, or fail where it must be here, without it."""
    program = shutil.which("promtool")
    if program is None:
        message = "promtool is not installed (Debian: apt-get install prometheus)"
        if os.environ.get("XPUCACHED_REQUIRE_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    done = subprocess.run(
        [program, *words], input=given, capture_output=True, text=True, check=False, timeout=60, cwd=EXAMPLES
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def samples(text: str, *, openmetrics: bool = False) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Read figures as Prometheus' own client does."""
    families = (openmetrics_parser if openmetrics else parser).text_string_to_metric_families(text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for each in families for one in each.samples}


def test_both_formats_say_the_same_and_what_is_so() -> None:
    text = samples(metrics.metrics(STATUS, OVERVIEW, DAYS))
    assert text == samples(metrics.metrics(STATUS, OVERVIEW, DAYS, openmetrics=True), openmetrics=True)
    for name, labels, value in (
        ("xpucached_verdict", {"verdict": STATUS.verdict}, 1),
        ("xpucached_models", {"warmth": "failed"}, 0),
        ("xpucached_spared_seconds_total", {}, 101.0),
        ("xpucached_allocated_bytes", {"driver": "gone"}, 9_371_648),
        ("xpucached_evictable_bytes", {"reason": "superseded-driver"}, 9_371_648),
        ("xpucached_runs_total", {"outcome": "warmed"}, 2),
        ("xpucached_problems", {"code": "not-watched"}, 1),
    ):
        assert text[name, tuple(sorted(labels.items()))] == value
    # What nobody watched is not there, and no nought.
    unwatched = tuple(replace(one, loads=None, avoided_seconds=None, compiled=None) for one in DAYS)
    names = {name for name, _ in samples(metrics.metrics(STATUS, OVERVIEW, unwatched))}
    assert not names & {"xpucached_loads_total", "xpucached_avoided_seconds_total"}
    assert "xpucached_spared_seconds_total" in names


def test_labels_are_bounded_and_hold_any_name() -> None:
    one = STATUS.models[0]
    names = [ModelName(histories.NASTY + "\n\\"), *(ModelName(f"model-{number}") for number in range(999))]
    many = replace(STATUS, models=tuple(replace(one, name=name, warmth=Warmth.WARM) for name in names))
    read = samples(metrics.metrics(many, OVERVIEW, DAYS))
    assert len(read) <= 420
    assert ("xpucached_model_warm", (("model", names[0]),)) in read


def test_the_socket_gives_figures(tmp_path: Path) -> None:
    with api_stub.running(tmp_path) as door:
        for accept, media, read in (
            ("*/*", metrics.TEXT, samples),
            ("application/openmetrics-text; version=1.0.0", metrics.OPENMETRICS, None),
        ):
            connection = SocketConnection(door.path)
            connection.request("GET", "/v1/metrics", headers={"Accept": accept})
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            assert answer.headers["content-type"] == media
            assert read(text) if read is not None else samples(text, openmetrics=True)


def test_the_host_s_figures_are_a_file_that_is_never_half_written(tmp_path: Path) -> None:
    users = (
        UserStatus("a", 1, WorkerState.AWAKE, Verdict.WARM, warm=3, entries=5, allocated=4096, problems=("no-gpu",)),
        UserStatus("b", 2, WorkerState.ASLEEP, Verdict.COLD, cold=2, failed=(ModelName("x"),), problems=("a", "b")),
    )
    # What a worker said before its user had a daemon of their own is no figure.
    own = replace(users[1], user="c", uid=3, state=WorkerState.ASIDE, warm=1, entries=1, allocated=1)
    # Nor does what one worker says of itself hide what another's says.
    names = tuple(ModelName(f"m{number}") for number in range(9))
    liar = UserStatus("d", 4, WorkerState.ASLEEP, Verdict.FAILED, failed=names)
    status = HostStatus("1", histories.NOW, "stamp", histories.NOW, (), (*users, own, liar))
    text = metrics.host_metrics(status, histories.NOW)
    read = samples(text)
    assert read["xpucached_users", (("verdict", "cold"),)] == 1
    assert (read["xpucached_entries", ()], read["xpucached_allocated_bytes", ()]) == (5, 4096)
    assert samples(metrics.host_metrics(status, histories.NOW, openmetrics=True), openmetrics=True) == read
    models = {labels[0][1]: count for (name, labels), count in read.items() if name == "xpucached_models"}
    assert models == {"warm": 3, "cold": 1, "failed": 10}
    # Of what a worker says no word becomes a series but those that there are.
    problems = {labels: count for (name, labels), count in read.items() if name == "xpucached_problems"}
    assert problems == {(("code", "no-gpu"),): 1, (("code", "unknown"),): 2}
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    (tmp_path / f".{figures.NAME}.new").symlink_to(victim)
    before = os.umask(0o027)
    try:
        figures.write(tmp_path, text)
    finally:
        os.umask(before)
    file = tmp_path / figures.NAME
    assert file.read_text() == text
    assert victim.read_text() == "theirs"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert not (tmp_path / f".{figures.NAME}.new").exists()


FINGERPRINT: Final = HostFingerprint(
    (HostTarget(sycl_target("Intel(R) OpenCL", 'a "quoted" \\ name\n', "1", "2+3"), "cpu:0"),),
    (CompilerLibrary("libigc.so", "build-id:00"),),
    {"sycl": "dirs-v1"},
    "host",
    HostWarm(3, {"warm": 2, "cold": 0}),
)


async def over_a_port(text: str) -> str:
    """Return figures as they are read from a port of the loopback address."""

    async def take(_asked: object) -> str:
        return text

    port = metrics_port.MetricsPort(take)
    with metrics_port.bind(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    assert await port.take(listen) is None

    def read() -> str:
        with urllib.request.urlopen(f"http://{listen}/v1/metrics", timeout=20) as answer:
            return cast("bytes", answer.read()).decode()

    try:
        return await asyncio.to_thread(read)
    finally:
        await port.stop()


def test_promtool_finds_nothing_wrong() -> None:
    for text in (
        asyncio.run(over_a_port(metrics.metrics(STATUS, OVERVIEW, DAYS))),
        metrics.host_metrics(HostStatus("1", histories.NOW, "", histories.NOW, (), ()), histories.NOW),
        fleet.prometheus(FINGERPRINT),
    ):
        assert promtool("check", "metrics", given=text) == ""
    promtool("check", "rules", "prometheus/xpucached-rules.yml")
    promtool("test", "rules", "prometheus/xpucached-rules-test.yml")


def board() -> dict[str, object]:
    """Return the board."""
    found: dict[str, object] = json.loads((EXAMPLES / "grafana/xpucached.json").read_text(encoding="utf-8"))
    return found


def queries(value: object) -> Iterator[str]:
    """Yield every query of the board."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key == "expr":
                yield str(one).replace('"$instance"', '".+"')
            else:
                yield from queries(one)
    elif isinstance(value, list):
        for one in value:
            yield from queries(one)


def test_rules_and_board_ask_for_what_there_is() -> None:
    known = {name for name, _ in samples(metrics.metrics(STATUS, OVERVIEW, DAYS))}
    rules = (EXAMPLES / "prometheus/xpucached-rules.yml").read_text(encoding="utf-8")
    asked = set(re.findall(r"xpucached_\w+", "\n".join([rules, *queries(board())])))
    assert asked <= known
    panels = cast("list[dict[str, dict[str, int]]]", board()["panels"])
    assert len({str(one["id"]) for one in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for one in panels:
        place = one["gridPos"]
        cells = {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}
        assert not cells & taken
        taken |= cells


def test_every_query_of_the_board_finds_something_in_a_real_prometheus(tmp_path: Path) -> None:
    """A day of our figures is put into its store, and each query is asked."""
    program = shutil.which("prometheus")
    if program is None:
        promtool()
    now = int(time.time()) // 60 * 60
    head, lines = metrics.metrics(STATUS, OVERVIEW, DAYS, openmetrics=True), []
    for step in (*range(0, 1500, 5), *range(1500, 26 * 60)):
        at = now - (26 * 60 - step) * 60
        for line in head.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.replace("{", '{instance="h",', 1) if "{" in name else f'{name}{{instance="h"}}'
                grown = float(value) * (step + 1) if "_total" in name else float(value) + (step > 1546)
                lines.append((name.partition("{")[0], f"{name} {grown} {at}"))
    (tmp_path / "in").write_text("\n".join(line for _, line in sorted(lines)) + "\n# EOF\n")
    promtool("tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "in"), str(tmp_path / "data"))
    (tmp_path / "empty.yml").write_text("{}\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    words = [program or "", f"--storage.tsdb.path={tmp_path}/data", f"--config.file={tmp_path}/empty.yml"]
    with subprocess.Popen(
        [*words, f"--web.listen-address={place}"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as server:
        try:
            for query in queries(board()):
                asked = urllib.parse.urlencode({"query": query, "time": now - 600})
                found_some = _ask(f"http://{place}/api/v1/query?{asked}")
                assert found_some, query
        finally:
            server.terminate()


def _ask(address: str) -> list[object]:
    """Return the result of a query, once the server answers."""
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - our own server
                found: list[object] = json.load(answer)["data"]["result"]
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.2)
        else:
            return found
