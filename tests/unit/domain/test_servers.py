"""What may be said of a model that is a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpucached.domain.models import Model, ModelStatus, Warmth, Workload
from xpucached.domain.names import ModelName
from xpucached.domain.workloads import Loader, RunSpec, is_loopback
from xpucached.server.redact import redact

GOOD = "http://127.0.0.1:8000/health"


@pytest.mark.parametrize("url", [GOOD, "http://localhost", "HTTP://LOCALHOST:1/", "http://[::1]:65535/x?y#z"])
def test_this_host_is_asked(url: str) -> None:
    assert is_loopback(url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8000", "https://127.0.0.1/", "http://127.0.0.1.example.org/", "http://127.0.0.1@example.org/"),
        *("http://user@127.0.0.1/", "http://128.0.0.1/", "http://127.0.0.256/", "http://127.0.0.1:0/"),
        *("http://127.0.0.1:65536/", "http://127.0.0.1/a b", "http://127.0.0.1/\r\nHost: x", "http://0.0.0.0/"),
        *("http://localhost.example.org", "http://2130706433/", "http://[::2]/", GOOD + "x" * 9000),
    ],
)
def test_no_other_host_is_asked(url: str) -> None:
    assert not is_loopback(url)
    assert not url or [key for key, _ in RunSpec(ready_url=url).mistakes()] == ["ready_url"]


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (RunSpec(ready_url=GOOD, ready_line="x"), "ready_line"),
        (RunSpec(ready_line="two\nlines"), "ready_line"),
        (RunSpec(ready_line="x", ready_timeout=0), "ready_timeout"),
        (RunSpec(requests="/r"), "requests"),
        (RunSpec(ready_url=GOOD, requests="r"), "requests"),
        (RunSpec(Loader.PYTHON, "/p", "a:b", device="xpu", ready_url=GOOD), "ready_url"),
    ],
)
def test_what_can_never_work_is_named(spec: RunSpec, key: str) -> None:
    assert [name for name, _ in spec.mistakes()] == [key]


def test_models_that_are_no_servers_have_the_digest_that_they_had_before_there_were_any() -> None:
    def digest(spec: RunSpec) -> str:
        return Workload(("/bin/true",), Path("/"), {}, 9, spec).digest

    assert digest(RunSpec(device="xpu")) == "46afd3ce90cbe971"
    assert digest(RunSpec(device="xpu", ready_url=GOOD)) != digest(RunSpec(device="xpu", ready_url=GOOD, requests="/r"))


def test_others_do_not_see_what_a_server_is_asked() -> None:
    spec = RunSpec(ready_url=f"{GOOD}?key=secret", requests="/home/me/secret")
    one = ModelStatus.of(Model(ModelName("chat"), Workload(("/bin/true",), Path("/"), {}, 9, spec)), Warmth.COLD, "")
    assert "secret" not in repr(redact(one))
