"""Every screen as people see it, at 80 and at 200 columns, with no model, one and twenty: files to be read.

They lie in ``screens``.  Who changes a screen on purpose writes them anew with ``SCREENS=write``, and reads
what has changed.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support import api_stub, histories, screens
from xpucached.domain import checks
from xpucached.domain.host import Problem
from xpucached.domain.jobs import Event, Job, JobState, Progress
from xpucached.domain.models import ModelStatus, Outcome, RemovedModel, Warmth
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.plans import Deferred
from xpucached.domain.queries import EntryPage
from xpucached.domain.reports import PrewarmReport, TrashReport
from xpucached.domain.status import Verdict
from xpucached.domain.trash import Restored
from xpucached.domain.users import HostStatus, UserStatus, WorkerState
from xpucached.planning.verdict import verdict
from xpucached.printing import plain
from xpucached.render import (
    bundles,
    caches,
    diagnosis,
    disk,
    entries,
    fleet,
    host,
    inspection,
    jobs,
    models,
    status,
    text,
    top,
    traces,
    trash,
    usage,
    users,
)
from xpucached.render.text import TextStyle
from xpucached.service.model_caches import as_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xpucached.domain.stores import ModelCache, StoreStatus

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


def jobs_of(count: int, style: TextStyle) -> str:
    """Return so many jobs, in every state; the first two have a usual time."""
    some = []
    for number, state in zip(range(count), [*JobState] * 4, strict=False):
        running = state is JobState.RUNNING
        begun = NOW - timedelta(minutes=1) if running else None
        ends = NOW + timedelta(minutes=3) if running and number < 2 else None
        progress = Progress(number, 20, f"{_NAMES[number % 4]}: second pass", ends)
        some.append(Job(JobId(str(number)), "prewarm", state, api_stub.NOW, begun, progress=progress))
    return jobs.jobs(some, style)


def prewarmed(count: int, style: TextStyle) -> str:
    """Return what came of prewarming so many models."""
    known = several(count)
    runs = tuple(replace(one.run, model=one.name) for one in known if one.run is not None)
    deferred = tuple(Deferred(one.name, one.why, None) for one in known if one.warmth is Warmth.WAITING)
    covered = tuple(one.name for one in known if one.warmth is Warmth.WARM)
    return jobs.prewarming(PrewarmReport(runs, covered, deferred), style)


def host_of(count: int, style: TextStyle) -> str:
    """Return how a host with so many users stands."""
    states = [*WorkerState] * 4
    some = tuple(
        UserStatus(
            f"{'a-rather-long-name-of-a-user' if number % 4 == 3 else 'user'}{number}",
            1000 + number,
            states[number],
            Verdict.COLD if number % 3 else Verdict.WARM,
            entries=number * 7,
            allocated=number << 20,
            warm=2,
            cold=number % 3,
            models=(ModelName("resnet"),),
            seen=api_stub.NOW,
            looked=api_stub.NOW,
        )
        for number in range(count)
    )
    problems = api_stub.make_host().problems
    return users.host_users(HostStatus("1.2.3", api_stub.NOW, "stamp", NOW, problems, some, NOW, 1e9), style)


def events_of(count: int, _style: TextStyle) -> str:
    """Return so many events."""
    some = (
        Event(number, api_stub.NOW, "model-added", _NAMES[number % 4], {"model": _NAMES[number % 4], "of": "a user"})
        for number in range(count)
    )
    return "\n".join(map(jobs.event, some)) or "no events"


def top_of(count: int, style: TextStyle, height: int | None) -> str:
    """Return what `top` draws of so many models."""
    now = histories.NOW + timedelta(minutes=2)
    return "\n".join(
        top.lines(screens.overview(several(count)), TextStyle(now, style.width, style.colour), height=height)
    )


def once(written: Callable[[TextStyle], str]) -> Callable[[int, TextStyle], str]:
    """Return a screen on which there are no models, or always the same."""
    return lambda count, style: written(style) if count == 1 else ""


def stores_of(count: int) -> tuple[StoreStatus, ...]:
    """Return so many stores; where there are several, directories of models, too."""
    others = tuple(as_store(one, NOW) for one in api_stub.CACHES)
    return (api_stub.make_store(),) * count + others * (count > 1)


def removal(caches: Sequence[ModelCache], *, trashed: bool) -> RemovedModel:
    """Return what became of a model with these."""
    stays = ("", "--cache names it", "net uses it, too", "python3 (process 4711) uses it")
    went = tuple(replace(one, stays=why) for one, why in zip(caches, stays, strict=True))
    return RemovedModel(ModelName("net"), ended=not trashed, caches=went, trashed=trashed)


SHOWN: Final[dict[str, Callable[[int, TextStyle], str]]] = {
    "status": status_of,
    "model-list": lambda count, style: models.models(several(count), style),
    "model-show": lambda count, style: "\n\n".join(
        models.model(replace(one, caches=api_stub.CACHES[:2]), style) for one in several(count)[:1]
    ),
    "runs": lambda count, style: models.runs([one.run for one in several(count) if one.run], style),
    "ls": entries_of,
    "show": lambda count, style: "\n\n".join(
        entries.entry(api_stub.make_entry(one), style) for one in range(count)[:1]
    ),
    "stores": lambda count, style: entries.stores(stores_of(min(count, 3)), style),
    "df": lambda count, style: disk.disk(api_stub.make_disk(several(count)), style) if count else "",
    "devices": lambda count, style: host.devices(api_stub.make_host(), style) if count == 1 else "",
    "why": lambda count, style: diagnosis.why(api_stub.make_diagnosis(), style) if count == 1 else "",
    "trash-list": lambda count, style: trash.trash((api_stub.make_trashed(),) * count, style),
    "jobs": jobs_of,
    "prewarm": prewarmed,
    "host": host_of,
    "events": events_of,
    "model-remove": once(
        lambda style: "\n\n".join(
            caches.removed(removal(api_stub.CACHES, trashed=trashed), style) for trashed in (True, False)
        )
    ),
    "model-history": once(lambda style: diagnosis.history((api_stub.make_baseline(),), style)),
    "verify": once(lambda style: trash.verification(api_stub.make_verification(), style)),
    "trash-restore": once(
        lambda style: trash.trash_report(
            TrashReport((Restored(api_stub.TRASHED, api_stub.KEY),), (api_stub.TRASHED,), 4096), style
        )
    ),
    "usage": once(lambda style: usage.usage(histories.make_usage(), style)),
    "usage-days": once(lambda style: usage.days(histories.make_days(), style)),
    "usage-warmth": once(lambda style: usage.warmth(histories.make_warmth(), style)),
    "config-show": once(
        lambda style: host.settings({"policy.grace": "600 (default)", "driver.variables": "LD_LIBRARY_PATH"}, style)
    ),
    "status-check": once(lambda _style: status.monitoring(checks.check(api_stub.make_status(), NOW))),
    "top": lambda count, style: top_of(count, style, None),
    "top-24-lines": lambda count, style: top_of(count, style, 24),
    "inspect": lambda count, style: inspection.inspection(screens.inspected(count), style),
    "trace": lambda count, style: traces.trace(screens.traced(count), style),
    "bundle": lambda count, style: "\n\n".join(bundles.report(one, style) for one in screens.bundles(count)),
    "fleet": lambda count, style: fleet.fleet(screens.fleet(count), style),
    "fingerprint": once(lambda style: fleet.fingerprint(screens.fleet(1).groups[0].told, style)),
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


STRANGE: Final = (
    "/srv/with some spaces/sycl",
    "/srv/\u202ecba/\u200fneo",
    f"/srv/{'x' * 195}",
    "/srv/\x1b[31mred\x07/sycl",
    "/srv/\u4e2d\u6587\u5b57/sycl",
)


@pytest.mark.parametrize("width", [40, 80, 200, None])
def test_strange_names_are_whole_safe_and_empty_no_table(width: int | None) -> None:
    one = api_stub.make_store()
    some = tuple(replace(one, store=Path(path), notes=()) for path in STRANGE)
    written = entries.stores(some, TextStyle(NOW, width))
    for path in STRANGE:
        assert plain(path) in written, path
    assert not set(written) & {"\x1b", "\x07", "\u202e", "\u200f"}
    assert "STATE" in written.splitlines()[0]


def test_ten_thousand_models_are_shown_in_a_second_and_none_is_left_out() -> None:
    model = api_stub.make_model()
    known = tuple(replace(model, name=ModelName(f"model-{number}"), warmth=Warmth.COLD) for number in range(10_000))
    begun = time.process_time()
    shown = status.status(replace(api_stub.make_status(), models=known), TextStyle(NOW, 80, colour=True))
    assert time.process_time() - begun < 5, "0.5 s where nothing else runs"
    assert shown.count("model-") == 10_000
    assert len(verdict(api_stub.make_host(), known, ())[1]) < 200


@pytest.mark.parametrize("width", [20, 40])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", SHOWN)
def test_a_narrow_terminal_fails_no_screen(name: str, count: int, width: int) -> None:
    written = SHOWN[name](count, TextStyle(NOW, width, colour=True))
    assert "\x1b[0m" in written or not written.count("\x1b")


@pytest.mark.parametrize("name", ["status", "model-list", "runs", "ls", "stores"])
def test_screens_fit_and_cut_no_name(name: str) -> None:
    lines = (SCREENS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert wider(lines) == []
    whole = (SCREENS / "model-list.txt").read_text(encoding="utf-8")
    assert all(whole.count(one) >= 10 for one in _NAMES)
