"""Every screen as people see it, at 80 and at 200 columns, with no model, one and twenty: files to be read.

They lie in ``screens``.  Who changes a screen on purpose writes them anew with ``SCREENS=write``, and reads
what has changed.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from xpucached.domain.host import Problem
from xpucached.domain.jobs import Job, JobState, Progress
from xpucached.domain.models import ModelStatus, Outcome, Warmth
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.queries import EntryPage
from xpucached.planning.verdict import verdict
from xpucached.render import diagnosis, disk, entries, host, jobs, models, status, text, trash
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCREENS: Final = Path(__file__).with_name("screens")
NOW: Final = api_stub.NOW + timedelta(days=3)
WIDTHS: Final = (80, 200)
COUNTS: Final = (0, 1, 20)

_NAMES: Final = (
    "resnet",
    "meta-llama-3.1-8b-instruct-awq-int4",
    "stable-diffusion-xl-base-1.0-refiner-turbo-openvino-int8",
    "qwen2.5-0.5b",
)
_WHYS: Final = {
    Warmth.WARM: "all its 17 entries are there (17 sycl); run 12 proved it on 2026-11-03 10:12 UTC",
    Warmth.COLD: "it was never run here",
    Warmth.CHANGED: "/srv/app/.venv/lib/python3.11/site-packages/torch/lib/libtorch_xpu.so changed since it was proven",
    Warmth.UNKNOWN: "its cache cannot be read: /mnt/share/sycl: permission denied: nobody knows whether it is warm",
    Warmth.WAITING: "waiting since 09:30 UTC: the GPU is busy; the driver has changed: 24.1 → 25.18.33578",
    Warmth.WARMING: "the driver has changed",
    Warmth.FAILED: "its command ended with exit status 1; it is tried again after 2026-11-03 12:00 UTC",
    Warmth.UNCACHED: "its runs used no cache that xpucached knows",
}


def several(count: int) -> tuple[ModelStatus, ...]:
    """Return so many models, in every state."""
    found = []
    for number, state in zip(range(count), [*Warmth] * 3, strict=False):
        one = api_stub.make_model(f"{_NAMES[number % len(_NAMES)]}{f'-{number}' if number > 3 else ''}", state)
        run = one.run
        if run is not None and state is Warmth.FAILED:
            said = "Traceback (most recent call last):\n  File app.py\nModuleNotFoundError: No module named 'torch'"
            run = replace(run, outcome=Outcome.FAILED, detail="exit status 1", output=said)
        found.append(replace(one, why=_WHYS[state], run=run))
    return tuple(found)


def status_of(count: int, style: TextStyle) -> str:
    """Return the status of a host with so many models."""
    known = several(count)
    value = api_stub.make_status()
    word, sentence = verdict(value.host, known, ())
    found = (*value.problems, *(Problem("no-room", f"store {number} is full", "free room") for number in range(3)))
    running = Job(
        id=JobId("7"),
        kind="prewarm",
        state=JobState.RUNNING,
        created=api_stub.NOW,
        progress=Progress(3, 20, "resnet: second pass"),
    )
    under_way = (running,) if count > 1 else ()
    value = replace(value, verdict=word, sentence=sentence, models=known, problems=found, jobs=under_way)
    return status.status(value, style)


def entries_of(count: int, style: TextStyle) -> str:
    """Return a list of so many entries, and their sum."""
    some = tuple(replace(api_stub.make_entry(number), models=_names(number)) for number in range(count))
    if not some:
        return "no entries"
    page = EntryPage(some, count, 4096 * count)
    return f"{entries.entries(some, style)}\n{entries.entry_total(page, count)}"


def _names(number: int) -> tuple[ModelName, ...]:
    return tuple(map(ModelName, _NAMES[: number % 3]))


SHOWN: Final[dict[str, Callable[[int, TextStyle], str]]] = {
    "status": status_of,
    "model-list": lambda count, style: models.models(several(count), style),
    "model-show": lambda count, style: "\n\n".join(models.model(one, style) for one in several(count)[:1]),
    "runs": lambda count, style: models.runs([one.run for one in several(count) if one.run], style),
    "ls": entries_of,
    "show": lambda count, style: "\n\n".join(
        entries.entry(api_stub.make_entry(one), style) for one in range(count)[:1]
    ),
    "stores": lambda count, style: entries.stores((api_stub.make_store(),) * min(count, 3), style),
    "df": lambda count, style: disk.disk(api_stub.make_disk(several(count)), style) if count else "",
    "devices": lambda count, style: host.devices(api_stub.make_host(), style) if count == 1 else "",
    "why": lambda count, style: diagnosis.why(api_stub.make_diagnosis(), style) if count == 1 else "",
    "trash-list": lambda count, style: trash.trash((api_stub.make_trashed(),) * count, style),
    "evict": lambda count, style: jobs.eviction(api_stub.make_eviction(dry_run=True), style) if count == 1 else "",
}


def screen(shown: Callable[[int, TextStyle], str]) -> str:
    """Return a screen at every width with every number of models."""
    parts: list[str] = []
    for width in WIDTHS:
        for count in COUNTS:
            written = shown(count, TextStyle(NOW, width))
            parts += [f"== {width} columns, {text.count(count, 'model')} ==", written, ""] if written else []
    return "\n".join(line.rstrip() for line in "\n".join(parts).splitlines()) + "\n"


@pytest.mark.parametrize("name", SHOWN)
def test_a_screen_is_as_it_was_read(name: str) -> None:
    file = SCREENS / f"{name}.txt"
    written = screen(SHOWN[name])
    if os.environ.get("SCREENS") == "write":
        file.write_text(written, encoding="utf-8")
    assert written == file.read_text(encoding="utf-8")


def test_no_screen_is_there_that_nothing_shows() -> None:
    assert {one.stem for one in SCREENS.glob("*.txt")} == set(SHOWN)


def wider(lines: Sequence[str]) -> list[str]:
    """Return the lines that are wider than their heading says."""
    width, wide = 0, []
    for line in lines:
        if line.startswith("== "):
            width = int(line.split()[1])
        elif text.cells(line) > width and " " in line.strip():
            wide.append(line)
    return wide


@pytest.mark.parametrize("name", ["status", "model-list", "runs", "ls", "stores"])
def test_screens_fit_and_cut_no_name(name: str) -> None:
    lines = (SCREENS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert wider(lines) == []
    whole = (SCREENS / "model-list.txt").read_text(encoding="utf-8")
    assert all(whole.count(one) >= 10 for one in _NAMES)
