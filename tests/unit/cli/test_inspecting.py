"""What is said of a file that cannot be looked at."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from tests.support.api_stub import NOW, make_entry
from xpucached.api import requests
from xpucached.cli import inspecting_models
from xpucached.domain.host import Host
from xpucached.domain.queries import EntryPage
from xpucached.domain.stores import Kernel

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from xpucached.api.client import Answer, Client


def test_what_may_not_be_looked_at_is_not_called_absent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert inspecting_models._why_absent(tmp_path / "none") == "no such file"
    assert inspecting_models._why_absent(tmp_path / "file/below") == "not a directory"
    assert inspecting_models._why_absent(tmp_path / ("n" * 300)) == "file name too long"


class Endless:
    """Answers in a daemon's place, with kernels whose names are long, and always with a further page."""

    def __init__(self) -> None:
        self.asked = 0

    def call(self, request: object) -> Answer[object]:
        """Answer."""
        if isinstance(request, requests.ListDevices):
            return answer(Host(NOW, "", "", ""))
        if isinstance(request, requests.ListStores):
            return answer(())
        self.asked += 1
        one = make_entry(1)
        kernel = Kernel(f"{self.asked:07}" * 100_000, "long")
        one = replace(one, entry=replace(one.entry, kernels=(kernel,)))
        return answer(EntryPage((one,), 10, 10, "2"))


def answer(value: object) -> Answer[object]:
    """Return an answer with this value."""
    return cast("Answer[object]", SimpleNamespace(value=value))


def test_of_what_a_daemon_answers_no_names_are_kept_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Endless()
    tracemalloc.start()
    try:
        told = inspecting_models.asked(cast("Client", daemon), None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told.used is None
    assert daemon.asked == inspecting_models._PAGES
    # A name has 700,000 characters, and there were fifty.
    assert peak < 10_000_000
    monkeypatch.setattr(inspecting_models, "_SECONDS", -1.0)
    daemon = Endless()
    inspecting_models.asked(cast("Client", daemon), None)
    assert daemon.asked == 1


def test_a_device_s_name_of_many_digits_is_searched_once() -> None:
    # With a look at each digit from each other one it would take hours.
    assert inspecting_models._VERSION.findall("1" * 1_000_000 + ".") == []
    assert inspecting_models._VERSION.findall("a v25.18.33578 of 1.2.3.4") == ["25.18.33578", "1.2.3"]
