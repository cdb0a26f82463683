"""What the two passes of a run prove, and what they cannot: a trace may be there in part only."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from tests import INSTANCE
from tests.flow.test_upkeep import alone
from tests.support import catalogs
from tests.support.builders import SyclStore, sycl_target
from xpucached.api.requests import AddModel, PrewarmModels
from xpucached.catalog import Catalog
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.models import add_model, remove_model
from xpucached.catalog.runs import begin_run, finish_run, newest_runs
from xpucached.catalog.surveys import record_survey
from xpucached.domain.host import Host, digest_of_variables
from xpucached.domain.jobs import JobState
from xpucached.domain.models import Attribution, Model, Outcome, RemovedModel, WarmReason, Warmth, Workload
from xpucached.domain.names import EntryKey, KindName, ModelName
from xpucached.domain.plans import Warm
from xpucached.domain.recipes import Recording
from xpucached.domain.reports import PrewarmReport
from xpucached.domain.stores import EntryId, Store
from xpucached.domain.workloads import RunSpec, Variant
from xpucached.errors import CatalogError
from xpucached.kinds import sycl
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service, cache_files, prewarm, recordings, survey
from xpucached.service.context import Context
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.domain.host import DriverFile
    from xpucached.domain.jobs import Job
    from xpucached.domain.models import ModelStatus, Run
    from xpucached.domain.targets import Target
    from xpucached.service.trial import Attempt


NOW: Final = datetime(2026, 5, 4, tzinfo=UTC)


def attempted(catalog: Catalog, root: Path, script: str, directory: Path) -> Attempt:
    """Run a shell script as a model that caches below ``root``."""
    return attempted_model(
        catalog, Model(ModelName("net"), Workload(("/bin/sh", "-c", script), directory, {}, 60.0), root)
    )


def attempted_model(catalog: Catalog, model: Model) -> Attempt:
    """Run a model until it is proven, or not."""

    async def attempt() -> Attempt:
        service = alone(catalog)
        found = service.finder.store_of(model)
        known = await service.scanner.entries_now([found])
        trying = service.prewarmer._trials
        return await trying.attempt(model, [found], Variant(), WarmReason.MANUAL, known, lambda _what: None)

    return asyncio.run(attempt())


@pytest.fixture
def catalog(home: Path) -> Iterator[Catalog]:
    """Return an empty catalog."""
    catalog = catalogs.fresh(home / "catalog.sqlite")
    yield catalog
    catalog.close()


@pytest.mark.parametrize("comes_again", [False, True])
def test_entries_that_no_trace_names_are_not_passed_over(
    catalog: Catalog, tmp_path: Path, *, comes_again: bool
) -> None:
    # The parent tells of an entry that it uses; its children compile, and write their stderr to a file.
    root, hidden = tmp_path / "store", tmp_path / "hidden"
    shown = SyclStore(root).add("shown").bin.relative_to(root).with_suffix("")
    for name in ("first", "second"):
        SyclStore(hidden / name).add(name, age=0)
    again = f"mv {hidden}/second {hidden}/first" if comes_again else "true"
    script = f"""
        echo '[Persistent Cache]: using cached device binary: {root}/{shown}.bin' >&2
        ( cp -r {hidden}/first/* {root}; rm -r {hidden}/first; {again} ) 2>/dev/null
        exit 0
    """
    attempt = attempted(catalog, root, script, tmp_path)

    assert [len(one.created) for one in attempt.executions] == [1, 1 if comes_again else 0]
    assert all({used.key for used in one.used} == {str(shown)} for one in attempt.executions)
    assert attempt.trial.outcome is (Outcome.UNPROVEN if comes_again else Outcome.WARMED)
    assert "trace does not name" in attempt.trial.detail


def test_a_model_of_which_the_store_cannot_take_a_program_is_not_proven(catalog: Catalog, tmp_path: Path) -> None:
    # Its leaf may not be entered, as a real runtime tells it.
    root = tmp_path / "store"
    shown = SyclStore(root).add("shown").bin.relative_to(root).with_suffix("")
    script = f"""
        echo '[Persistent Cache]: using cached device binary: {root}/{shown}.bin' >&2
        echo '[Persistent Cache]: Failed to acquire lock file: {root}/1/2/3/4/0.lock Permission denied' >&2
        echo '[Persistent Cache]: cache lock not owned {root}/1/2/3/4/0' >&2
    """
    attempt = attempted(catalog, root, script, tmp_path)

    assert attempt.trial.outcome is Outcome.UNPROVEN
    assert attempt.trial.detail.endswith("compiled 1 programs, and 1 of them could not be kept in its store")


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("echo '[Persistent Cache]: disabled' >&2", "compiles with the cache off"),
        ("echo '*** Code caching: disabled' >&2", "compiles with the cache off"),
        (
            "echo '[Persistent Cache]: device binary has been cached: /else/1/2/3/4/0.bin' >&2",
            "elsewhere: /else/1/2/3/4",
        ),
        ("SYCL_CACHE_MAX_DEVICE_IMAGE_SIZE=5000 sleep 0.3", "SYCL_CACHE_MAX_DEVICE_IMAGE_SIZE=5000 keeps programs out"),
        ("SYCL_CONFIG_FILE_NAME=$PWD/own.conf sleep 0.3", "SYCL_CACHE_MIN_DEVICE_IMAGE_SIZE=5 in "),
        ("SYCL_CACHE_MAX_DEVICE_IMAGE_SIZE=0 sleep 0.3", ""),
        ("echo '[Persistent Cache]: using cached device binary: /else/1/2/3/4/0.bin;' >&2", ""),
    ],
)
def test_where_some_of_its_programs_do_without_the_cache_a_model_is_not_proven(
    catalog: Catalog, tmp_path: Path, does: str, why: str
) -> None:
    root = tmp_path / "store"
    shown = SyclStore(root).add("shown").bin.relative_to(root).with_suffix("")
    (tmp_path / "own.conf").write_text("SYCL_CACHE_MIN_DEVICE_IMAGE_SIZE=5\n")
    script = f"echo '[Persistent Cache]: using cached device binary: {root}/{shown}.bin' >&2; {does}"
    attempt = attempted(catalog, root, script, tmp_path)

    assert attempt.trial.outcome is (Outcome.UNPROVEN if why else Outcome.WARMED), attempt.trial.detail
    assert why in attempt.trial.detail
    # What does without it altogether has nothing that is to be kept warm.
    alone = attempted(catalog, tmp_path / "other", does, tmp_path)
    assert alone.trial.outcome is Outcome.UNCACHED


def test_what_leaves_out_programs_counts_also_where_no_trace_comes_through(catalog: Catalog, tmp_path: Path) -> None:
    root, made = tmp_path / "store", tmp_path / "made"
    SyclStore(made).add("shown")
    fills = f"mkdir -p {root}; ls {root}/* >/dev/null 2>&1 || cp -r {made}/* {root}"
    script = f"{fills}; SYCL_CACHE_MIN_DEVICE_IMAGE_SIZE=5000 sleep 0.3"
    attempt = attempted(catalog, root, script, tmp_path)

    assert [len(one.created) for one in attempt.executions] == [1, 0]
    assert attempt.trial.outcome is Outcome.UNPROVEN
    assert attempt.trial.detail.startswith("SYCL_CACHE_MIN_DEVICE_IMAGE_SIZE=5000 keeps programs out")


def test_a_file_that_says_how_a_program_caches_is_part_of_what_it_needs(catalog: Catalog, tmp_path: Path) -> None:
    root, file = tmp_path / "store", tmp_path / "own.conf"
    shown = SyclStore(root).add("shown").bin.relative_to(root).with_suffix("")
    file.write_text("SYCL_CACHE_MAX_DEVICE_IMAGE_SIZE=0\n")
    uses = f"echo '[Persistent Cache]: using cached device binary: {root}/{shown}.bin' >&2"
    attempt = attempted(catalog, root, f"{uses}; SYCL_CONFIG_FILE_NAME=$PWD/own.conf sleep 0.3", tmp_path)

    assert attempt.trial.outcome is Outcome.WARMED
    assert attempt.needs is not None
    assert str(file) in {one.path for one in attempt.needs}


@pytest.mark.parametrize("uses", [False, True])
def test_a_second_pass_that_uses_nothing_of_what_the_first_compiled_proves_nothing(
    catalog: Catalog, tmp_path: Path, *, uses: bool
) -> None:
    # Its work is done, it says, and ends in good order.
    root, made = tmp_path / "store", tmp_path / "made"
    entry = SyclStore(made).add("shown").bin.relative_to(made).with_suffix("")
    again = f"echo '[Persistent Cache]: using cached device binary: {root}/{entry}.bin' >&2" if uses else "true"
    script = f"""
        if [ -d {root} ]; then {again}; exit 0; fi
        cp -r {made} {root}
        echo '[Persistent Cache]: device binary has been cached: {root}/{entry}.bin' >&2
    """
    attempt = attempted(catalog, root, script, tmp_path)

    assert [(len(one.created), len(one.used)) for one in attempt.executions] == [(1, 0), (0, int(uses))]
    assert attempt.trial.outcome is (Outcome.WARMED if uses else Outcome.UNPROVEN)
    assert ("the second pass showed no use of it" in attempt.trial.detail) is not uses


@pytest.mark.parametrize("told", ["sycl", "neo", "nothing"])
def test_what_is_told_of_one_kind_says_nothing_of_another(catalog: Catalog, tmp_path: Path, told: str) -> None:
    model = Model(ModelName("net"), Workload(("true",), tmp_path, {}, 60.0), None)
    ids = {name: EntryId(Store(KindName(name), tmp_path / name), EntryKey("a")) for name in ("sycl", "neo")}
    catalog.write(add_model, model)
    context = alone(catalog).context
    used = frozenset({ids[told]} if told in ids else ())
    results = [SimpleNamespace(created=frozenset(), used=used, mapped=(), unkept="", bounds=())]

    assert recordings.untold(context, model, results) == ""  # type: ignore[arg-type] # no proof was given yet
    run = catalog.write(begin_run, model, WarmReason.NEVER, "", NOW)
    both = Attribution(frozenset(ids.values()), frozenset())
    catalog.write(finish_run, run.id, Outcome.WARMED, (), both, (), "", "", NOW)
    said = recordings.untold(context, model, results)  # type: ignore[arg-type]
    # A program may not ask the driver for what the runtime's cache holds.
    assert ("it told nothing of entries of sycl" in said) is (told != "sycl")
    # It was seen to load what uses the driver's cache, and no SYCL runtime.
    results[0].mapped = ("/usr/lib/libze_intel_gpu.so.1", "/usr/lib/libc.so.6")
    assert (recordings.untold(context, model, results) == "") is (told != "nothing")  # type: ignore[arg-type]
    results[0].mapped += ("/usr/lib/libsycl.so.8",)
    assert (recordings.untold(context, model, results) == "") is (told == "sycl")  # type: ignore[arg-type]
    changed = replace(model, workload=replace(model.workload, command=("false",)))
    assert recordings.untold(context, changed, results) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(("told", "proven"), [(("sycl",), False), (("neo",), True), (("sycl", "neo"), True)])
def test_what_the_drivers_cache_has_all_of_needs_none_of_the_runtimes(
    catalog: Catalog, tmp_path: Path, told: tuple[str, ...], *, proven: bool
) -> None:
    # A model whose runtime crashes with its cache on has it off: the driver keeps what it compiles.
    model = Model(ModelName("net"), Workload(("true",), tmp_path, {"SYCL_CACHE_PERSISTENT": "0"}, 60.0), None)
    used = frozenset(EntryId(Store(KindName(name), tmp_path / name), EntryKey("a")) for name in told)
    off = "a program of it compiles with the cache off"
    results = [SimpleNamespace(created=frozenset(), used=used, mapped=(), unkept=off, bounds=())]
    said = recordings.untold(alone(catalog).context, model, results)  # type: ignore[arg-type] # all that is asked of it
    assert said == ("" if proven else off)


@pytest.mark.parametrize("why_incomplete", ["", "it cannot be written to"])
def test_where_nothing_can_be_told_nothing_is_proven(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why_incomplete: str
) -> None:
    root = tmp_path / "store"
    shown = SyclStore(root).add("shown").bin.relative_to(root).with_suffix("")
    monkeypatch.setattr(sycl.trace, "collect", lambda *_: Recording(why_incomplete=why_incomplete))
    attempt = attempted(
        catalog, root, f"echo '[Persistent Cache]: using cached device binary: {root}/{shown}.bin' >&2", tmp_path
    )

    assert attempt.trial.outcome is (Outcome.UNPROVEN if why_incomplete else Outcome.WARMED)
    assert why_incomplete in attempt.trial.detail


@pytest.mark.parametrize("damaged", [False, True])
def test_entries_that_programs_cannot_use_prove_nothing(catalog: Catalog, tmp_path: Path, *, damaged: bool) -> None:
    root = tmp_path / "store"
    slot = SyclStore(root).add("shown")
    if damaged:
        slot.bin.write_bytes(b"")
    shown = slot.bin.relative_to(root).with_suffix("")
    attempt = attempted(
        catalog, root, f"echo '[Persistent Cache]: using cached device binary: {root}/{shown}.bin' >&2", tmp_path
    )
    assert attempt.trial.outcome is (Outcome.UNPROVEN if damaged else Outcome.WARMED)
    if damaged:
        assert "1 of the 1 entries that it asked for cannot be used now (bin-" in attempt.trial.detail


def test_what_processes_compiled_at_once_is_proven_by_the_copy_that_is_read(catalog: Catalog, tmp_path: Path) -> None:
    # As those of `torchrun` do: no program reads the other copies, and they may go.
    root, made = tmp_path / "store", tmp_path / "made"
    one, two = (SyclStore(made).add("shown", slot=slot, age=0).bin.relative_to(made) for slot in (0, 1))
    told = "".join(
        f"echo '[Persistent Cache]: device binary has been cached: {root}/{name}' >&2; " for name in (one, two)
    )
    uses = f"echo '[Persistent Cache]: using cached device binary: {root}/{one}' >&2"
    script = f"if [ -e {root}/{one} ]; then {uses}; else mkdir -p {root}; cp -r {made}/* {root}; {told} fi"
    attempt = attempted(catalog, root, script, tmp_path)

    assert [len(one.created) for one in attempt.executions] == [2, 0]
    assert attempt.trial.outcome is Outcome.WARMED, attempt.trial.detail
    context, nothing = alone(catalog).context, frozenset[EntryId]()
    attribution = asyncio.run(recordings.attributed(context, nothing, attempt.after, attempt.executions))
    assert {entry.key for entry in attribution.created} == {str(one.with_suffix(""))}


def test_what_only_the_first_pass_asked_for_and_nobody_kept_is_none_of_the_proof(
    catalog: Catalog, tmp_path: Path
) -> None:
    # A trace also names what could not be written; the second pass did without.
    root = tmp_path / "store"
    shown = SyclStore(root).add("shown").bin.relative_to(root).with_suffix("")
    script = f"""
        echo '[Persistent Cache]: using cached device binary: {root}/{shown}.bin' >&2
        [ -e {tmp_path}/again ] || echo '[Persistent Cache]: device binary has been cached: {root}/1/2/3/4/0.bin' >&2
        touch {tmp_path}/again
    """
    attempt = attempted(catalog, root, script, tmp_path)
    assert [(len(one.created), len(one.used)) for one in attempt.executions] == [(1, 1), (0, 1)]
    assert attempt.trial.outcome is Outcome.WARMED


@pytest.mark.parametrize(
    ("script", "told"),
    [
        # OpenVINO, numba: what they find to be old has the same name afterwards.
        ("[ -e again ] || echo compiled > caches/its; touch again", "0 entries compiled, 1 files written to its own"),
        ("echo used >> caches/its", "was warm: 0 entries used, none compiled, 1 files in its own caches"),
        ("true", "was warm: 0 entries used, none compiled, 1 files in its own caches"),
    ],
)
def test_what_only_the_first_pass_writes_anew_was_compiled(
    catalog: Catalog, tmp_path: Path, script: str, told: str
) -> None:
    caches = tmp_path / "caches"
    caches.mkdir()
    (caches / "its").touch()
    os.utime(caches / "its", (0, 0))
    workload = Workload(("/bin/sh", "-c", script), tmp_path, {}, 60.0, RunSpec(caches=(caches,)))
    model = Model(ModelName("net"), workload, tmp_path / "store")
    attempt = attempted_model(catalog, model)
    assert (attempt.trial.outcome, attempt.trial.detail.startswith(told)) == (Outcome.WARMED, True), attempt.trial
    assert len(attempt.executions) == (1 if script == "true" else 2)


@pytest.mark.parametrize("more", [False, True])
def test_a_run_whose_caches_hold_too_many_files_proves_nothing(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, more: bool
) -> None:
    monkeypatch.setattr(cache_files, "MOST", 20)
    caches = tmp_path / "caches"
    (caches / "below").mkdir(parents=True)
    # The first pass writes one file more, and the second none.
    for number in range(30 if more else 10):
        (caches / "below" / str(number)).touch()
    command = ("/bin/sh", "-c", f"touch {caches}/its")
    workload = Workload(command, tmp_path, {}, 60.0, RunSpec(caches=(caches,)))
    model = Model(ModelName("net"), workload, tmp_path / "store")
    catalog.write(add_model, model)
    environments = (sycl_target("Intel(R) OpenCL", "CPU", "OpenCL 3.0", "1"),)
    catalog.write(record_survey, Host(datetime.now(UTC), "boot", "6", "stamp", environments=environments))

    async def warm() -> tuple[Warmth, list[ModelName]]:
        service = alone(catalog)
        await service.prewarmer._warm(Warm(model, WarmReason.MANUAL, ""), lambda _what: None)
        (status,) = await service.prewarmer.statuses()
        return status.warmth, [*(await service.prewarmer.plan()).covered]

    assert asyncio.run(warm()) == ((Warmth.FAILED, []) if more else (Warmth.WARM, [model.name]))
    (run,) = catalog.read(newest_runs, model.name, 1)
    assert run.outcome is (Outcome.UNPROVEN if more else Outcome.WARMED)
    unknown = "its caches hold more than 20 files, or cannot be read just now: whether a pass added any is not known"
    assert (run.detail == unknown) is more
    (coverage,) = catalog.read(model_coverage)
    assert (coverage.good is None) is more


@pytest.mark.parametrize(
    ("error", "outcome", "words"),
    [
        (RecursionError("too deep"), Outcome.FAILED, "something unexpected happened (reference "),
        (OSError(28, "No space left on device"), Outcome.FAILED, "its store cannot be made or used: [Errno 28]"),
        (asyncio.CancelledError(), Outcome.CANCELLED, "cancelled"),
    ],
)
def test_only_what_was_cancelled_is_recorded_so(
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    outcome: Outcome,
    words: str,
) -> None:
    async def broken(*_: object) -> Attempt:
        raise error

    model = Model(ModelName("net"), Workload(("/bin/true",), tmp_path, {}, 60.0), tmp_path / "store")
    catalog.write(add_model, model)

    async def warm() -> None:
        service = alone(catalog)
        monkeypatch.setattr(service.prewarmer._trials, "attempt", broken)
        await service.prewarmer._warm(Warm(model, WarmReason.MANUAL, ""), lambda _what: None)

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(warm())
    (run,) = catalog.read(newest_runs, model.name, 1)
    assert run.outcome is outcome
    assert run.detail.startswith(words)
    assert [one.failures for one in catalog.read(model_coverage)] == [int(outcome is Outcome.FAILED)]


def offer(catalog: Catalog, *environments: Target) -> None:
    """Let this host offer these, or any one."""
    some = environments or (sycl_target("Intel(R) OpenCL", "CPU", "OpenCL 3.0", "1"),)
    catalog.write(record_survey, Host(datetime.now(UTC), "boot", "6", "stamp", environments=some))


def with_a_cache(catalog: Catalog, place: Path) -> Model:
    """Return a model that fills a cache of its own, registered, on a host that has a device for it."""
    (place / "caches").mkdir()
    (place / "caches" / "its").touch()
    workload = Workload(("/bin/true",), place, {}, 60.0, RunSpec(caches=(place / "caches",)))
    model = Model(ModelName("net"), workload, place / "store")
    catalog.write(add_model, model)
    offer(catalog)
    return model


@pytest.mark.parametrize("another", [False, True])
def test_what_a_run_proved_is_not_lost_where_the_disk_was_full_as_it_ended(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, another: bool
) -> None:
    model = with_a_cache(catalog, tmp_path)

    def full(*_: object) -> Run:
        raise CatalogError("no room")

    async def warm() -> tuple[list[ModelName], list[str]]:
        service = alone(catalog)
        with monkeypatch.context() as disk:
            disk.setattr(prewarm, "finish_run", full)
            with pytest.raises(CatalogError):
                await service.prewarmer._warm(Warm(model, WarmReason.NEVER, ""), lambda _what: None)
            assert [one.model.name for one in (await service.prewarmer.plan()).warm] == [model.name]
        if another:
            # It stands for a new catalog, where the number means another run.
            catalog.write(lambda connection: connection.exec_driver_sql("UPDATE runs SET started = started + 1"))
        covered = [*(await service.prewarmer.plan()).covered]
        return covered, [one.topic for one in await service.context.events.since(0)]

    assert asyncio.run(warm()) == ([] if another else [model.name], ["run-started", "run-finished"])
    (run,) = catalog.read(newest_runs, model.name, 5)
    assert run.outcome is (None if another else Outcome.WARMED)


def test_what_ran_with_other_variables_than_there_were_proves_nothing_for_those(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_a_cache(catalog, tmp_path)
    service = alone(catalog)
    settings, variants = service.context.settings, service.prewarmer._trials.variants

    async def read_anew(of: Model) -> object:
        """Read a configuration with other variables, as the run has begun."""
        other = replace(settings.driver, variables={"IGC_OPTION": "1"})
        service.context.settings = replace(settings, driver=other)
        return await variants(of)

    async def warm() -> tuple[Outcome | None, list[ModelName]]:
        run = await service.prewarmer._warm(Warm(model, WarmReason.NEVER, ""), lambda _what: None)
        # They are what they were again.
        service.context.settings = settings
        return run.outcome, [*(await service.prewarmer.plan()).covered]

    with monkeypatch.context() as reloading:
        reloading.setattr(service.prewarmer._trials, "variants", read_anew)
        assert asyncio.run(warm()) == (Outcome.CANCELLED, [])
    assert asyncio.run(warm()) == (Outcome.WARMED, [model.name])


def test_nothing_is_run_with_variables_with_which_no_driver_was_looked_at(catalog: Catalog, tmp_path: Path) -> None:
    model = with_a_cache(catalog, tmp_path)
    context = (service := alone(catalog)).context
    driver = replace(context.settings.driver, variables={"IGC_OPTION": "1"})
    # A configuration was read, and then the driver's files could not be.
    context.settings = replace(context.settings, driver=driver)

    async def warm() -> tuple[list[Outcome | None], list[str]]:
        job = await service.prewarmer.start(PrewarmModels(models=(model.name,)))
        report = (await context.jobs.wait(job.id, 60)).report
        assert isinstance(report, PrewarmReport)
        return [run.outcome for run in report.runs], [one.why for one in report.deferred]

    why = "the variables for all programs were changed, and the drivers have not been looked at with them yet"
    assert asyncio.run(warm()) == ([], [why])
    context.host = replace(context.present, variables=digest_of_variables(context.steering))
    assert asyncio.run(warm()) == ([Outcome.WARMED], [])


def test_a_look_at_drivers_that_fails_after_a_run_takes_nothing_from_what_it_proved(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_a_cache(catalog, tmp_path)
    service = alone(catalog)

    def refuse(*_: object) -> tuple[DriverFile, ...]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(survey, "driver_files", refuse)
    monkeypatch.setattr(recordings, "met_another_driver", lambda *_: True)

    async def warm() -> Job:
        job = await service.prewarmer.start(PrewarmModels(models=(model.name,)))
        return await service.context.jobs.wait(job.id, 60)

    job = asyncio.run(warm())
    assert (job.state, job.error) == (JobState.DONE, None)
    assert isinstance(job.report, PrewarmReport)
    assert [run.outcome for run in job.report.runs] == [Outcome.WARMED]
    assert [one.code for one in service.context.problems.all()] == ["automatic-job-failed"]


@pytest.mark.parametrize("removed", [False, True])
def test_a_model_that_was_not_warmed_meanwhile_is_not_called_warm(
    catalog: Catalog, tmp_path: Path, *, removed: bool
) -> None:
    model = Model(ModelName("net"), Workload(("/bin/sh", "-c", "exit 3"), tmp_path, {}, 60.0), tmp_path / "store")
    catalog.write(add_model, model)
    offer(catalog)

    async def warm() -> Job:
        service = alone(catalog)
        async with service.context.locks.changing:
            job = await service.prewarmer.start(PrewarmModels(stale=True))
            while "its turn" not in service.context.jobs.job(job.id).progress.detail:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            # Another job comes first, and cannot warm it; or somebody removes it.
            if removed:
                catalog.write(remove_model, model.name)
            else:
                await service.prewarmer._warm(Warm(model, WarmReason.NEVER, ""), lambda _what: None)
        return await service.context.jobs.wait(job.id, 60)

    report = asyncio.run(warm()).report
    assert isinstance(report, PrewarmReport)
    assert (report.runs, report.covered) == ((), ())
    (deferred,) = report.deferred
    assert ("removed meanwhile" if removed else "could not be warmed, once") in deferred.why


@pytest.mark.parametrize("way", ["removed", "file-gone", "replaced"])
def test_what_runs_ends_with_its_model_and_blocks_nobody(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    folder, done = tmp_path / "models.d", tmp_path / "done"
    folder.mkdir()
    name, long, short = ModelName("long"), ("/bin/sleep", "120"), ("/bin/touch", str(done))
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "XPUCACHED_PATHS_MODELS": str(folder)}
    environ |= {"XPUCACHED_STORES_FOUND": "false"}
    asked = AddModel(name=name, command=long, directory=tmp_path, variables={"PATH": "/bin"}, timeout=300.0)
    if way == "file-gone":
        text = f'command = ["/bin/sleep", "120"]\ndirectory = "{tmp_path}"\n'
        (folder / "long.toml").write_text(text, encoding="utf-8")
    offer(catalog)

    async def end() -> tuple[Job, RemovedModel | None]:
        settings = loading.load(None, user=True, environ=environ)
        service = Service(Context(settings, catalog, {}), ProcessStarter({}, INSTANCE))
        context, removed = service.context, None
        # This host's drivers are of no interest here.
        monkeypatch.setattr(service.surveyor, "meet_drivers", AsyncMock())
        await service.models.load()
        if way != "file-gone":
            await service.models.add(asked)
        job = await service.prewarmer.start(PrewarmModels(models=(name,)))
        while "pass" not in context.jobs.job(job.id).progress.detail:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        # What is as it was goes on.
        await service.models.load()
        if way != "file-gone":
            await service.models.add(replace(asked, if_changed=True))
        assert context.jobs.job(job.id).finished is None
        if way == "removed":
            removed = await service.models.remove(name)
        elif way == "file-gone":
            (folder / "long.toml").unlink()
            await service.models.load()
        else:
            await service.models.add(replace(asked, command=short, replace=True))
        ended = await context.jobs.wait(job.id, 30)
        assert not context.locks.changing.locked()
        await service.stop()
        return ended, removed

    job, removed = asyncio.run(end())
    assert job.state is not JobState.RUNNING
    assert removed == (RemovedModel(name, ended=True) if way == "removed" else None)
    report = job.report
    assert isinstance(report, PrewarmReport)
    if way == "replaced":
        # It was asked for, and so it is run as it is now.
        new, old = catalog.read(newest_runs, name, 5)
        assert (old.outcome, old.detail) == (Outcome.CANCELLED, "its model was changed")
        assert (new.outcome, done.exists()) == (Outcome.UNCACHED, True)
        assert [one.id for one in report.runs] == [new.id]
    else:
        assert [one.why for one in report.deferred] == ["it was removed meanwhile"]


@pytest.mark.parametrize("taken", [False, True])
def test_what_one_variant_was_proven_with_must_outlive_the_others(
    catalog: Catalog, tmp_path: Path, *, taken: bool
) -> None:
    root, made = tmp_path / "store", tmp_path / "made"
    keys = [SyclStore(made / name).add(name).bin.relative_to(made / name).with_suffix("") for name in ("1x1", "2x2")]
    script = f"""
        entry=$1
        if [ -e {root}/$entry.bin ]; then
            echo "[Persistent Cache]: using cached device binary: {root}/$entry.bin" >&2
        else
            mkdir -p {root}; cp -r {made}/$0/* {root}
            echo "[Persistent Cache]: device binary has been cached: {root}/$entry.bin" >&2
        fi
    """
    # As the runtime's own eviction does, if there is a limit for it.
    take = f"rm {root}/{keys[0]}.*" if taken else "true"
    command = ("/bin/sh", "-c", f"case $0 in 1x1) set {keys[0]};; *) {take}; set {keys[1]};; esac; {script}", "{shape}")
    workload = Workload(command, tmp_path, {}, 60.0, RunSpec(shapes=("1x1", "2x2")))
    model = Model(ModelName("net"), workload, root)
    catalog.write(add_model, model)

    async def warm() -> tuple[Run, Warmth]:
        run = await alone(catalog, root).prewarmer._warm(Warm(model, WarmReason.MANUAL, ""), lambda _what: None)
        offer(catalog, *run.environments)
        (status,) = await alone(catalog, root).prewarmer.statuses()
        return run, status.warmth

    run, warmth = asyncio.run(warm())
    assert [one.outcome for one in run.trials] == [Outcome.WARMED] * 2
    assert (run.outcome, warmth) == ((Outcome.UNPROVEN, Warmth.COLD) if taken else (Outcome.WARMED, Warmth.WARM))
    assert ("1 of the 2 entries that it asked for cannot be used now" in run.detail) is taken


def test_a_variant_that_uses_no_cache_keeps_the_others_from_no_proof(catalog: Catalog, tmp_path: Path) -> None:
    root, made, app = tmp_path / "store", tmp_path / "made", tmp_path / "app.sh"
    entry = SyclStore(made).add("1x1").bin.relative_to(made).with_suffix("")
    app.write_text(f"""[ $1 = 1x1 ] || exit 0
        if [ -e {root}/{entry}.bin ]; then
            echo "[Persistent Cache]: using cached device binary: {root}/{entry}.bin" >&2
        else
            mkdir -p {root}; cp -r {made}/* {root}
            echo "[Persistent Cache]: device binary has been cached: {root}/{entry}.bin" >&2
        fi
    """)
    workload = Workload(("/bin/sh", str(app), "{shape}"), tmp_path, {}, 60.0, RunSpec(shapes=("1x1", "2x2")))
    model = Model(ModelName("net"), workload, root)
    catalog.write(add_model, model)

    async def warm() -> tuple[list[Outcome | None], ModelStatus]:
        run = await alone(catalog, root).prewarmer._warm(Warm(model, WarmReason.MANUAL, ""), lambda _what: None)
        offer(catalog, *run.environments)
        (status,) = await alone(catalog, root).prewarmer.statuses()
        return [one.outcome for one in run.trials], status

    for _ in range(3):
        outcomes, status = asyncio.run(warm())
        assert (outcomes, status.warmth) == ([Outcome.WARMED, Outcome.UNCACHED], Warmth.WARM)
    app.write_text(app.read_text() + "true\n")
    (status,) = asyncio.run(alone(catalog, root).prewarmer.statuses())
    assert (status.warmth, status.changes) == (Warmth.CHANGED, ("app.sh was modified",))


@pytest.mark.parametrize("moves", ["", "model", "link"])
def test_entries_in_a_store_that_a_model_no_longer_uses_prove_nothing(
    catalog: Catalog, tmp_path: Path, moves: str
) -> None:
    # Both stores are looked after, and the earlier one is as it was.
    root, other, place = tmp_path / "store", tmp_path / "other", tmp_path / "place"
    shown = SyclStore(root).add("shown").bin.relative_to(root).with_suffix("")
    SyclStore(other).add("another")
    place.symlink_to(root)
    script = f"echo '[Persistent Cache]: using cached device binary: {root}/{shown}.bin' >&2"
    model = Model(ModelName("net"), Workload(("/bin/sh", "-c", script), tmp_path, {}, 60.0), place)
    catalog.write(add_model, model)

    async def warm() -> ModelStatus:
        service = alone(catalog, root, other)
        run = await service.prewarmer._warm(Warm(model, WarmReason.MANUAL, ""), lambda _what: None)
        offer(catalog, *run.environments)
        if moves == "model":
            catalog.write(add_model, replace(model, store=other))
        elif moves == "link":
            place.unlink()
            place.symlink_to(other)
        service = alone(catalog, root, other)
        await service.scanner.scan_stores()
        (status,) = await service.prewarmer.statuses()
        return status

    status = asyncio.run(warm())
    assert (status.warmth, status.reason) == ((Warmth.COLD, WarmReason.LOST) if moves else (Warmth.WARM, None))
    if moves:
        assert status.why == "it caches in another store now, where 1 of its 1 entries are not (1 sycl)"
        assert [one.remaining for one in status.layers] == [0]


@pytest.mark.parametrize("left", ["all", "nothing", "locks", "no directory"])
def test_a_model_whose_other_caches_are_gone_is_not_called_warm(catalog: Catalog, tmp_path: Path, left: str) -> None:
    caches = tmp_path / "caches"
    command = ("/bin/sh", "-c", f"mkdir -p {caches}/triton; touch {caches}/triton/kernel")
    model = Model(
        ModelName("net"), Workload(command, tmp_path, {}, 60.0, RunSpec(caches=(caches,))), tmp_path / "store"
    )
    catalog.write(add_model, model)
    offer(catalog)

    async def warm() -> ModelStatus:
        run = await alone(catalog).prewarmer._warm(Warm(model, WarmReason.MANUAL, ""), lambda _what: None)
        assert run.outcome is Outcome.WARMED
        if left != "all":
            shutil.rmtree(caches)
        if left == "nothing":
            caches.mkdir()
        if left == "locks":
            # As programs leave it whose files somebody has removed.
            (caches / "triton" / "empty").mkdir(parents=True)
            (caches / "triton" / "kernel.lock").touch()
        (caches / "more").touch() if left == "all" else None
        (status,) = await alone(catalog).prewarmer.statuses()
        return status

    status = asyncio.run(warm())
    empty = "caches holds nothing any more: what was cached there is gone"
    gone = empty if left in {"nothing", "locks"} else "caches is gone"
    assert (status.warmth, status.changes) == ((Warmth.WARM, ()) if left == "all" else (Warmth.CHANGED, (gone,)))
