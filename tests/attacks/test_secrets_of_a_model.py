# ruff: noqa: ARG002 - what stands in for the service takes what the service takes
"""A token among a model's arguments, in its variables, or in what it prints: nobody reads it but its owner and root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from tests.support.api_stub import NOW, Standin, running
from xpucached import codec
from xpucached.api import requests
from xpucached.api.endpoints import Right
from xpucached.daemon import main
from xpucached.domain.defects import RepairAction
from xpucached.domain.diagnosis import Cause, Diagnosis, Explanation, RuntimeCheck, Safety
from xpucached.domain.host import DriverFile, DriverInUse, Problem
from xpucached.domain.jobs import ErrorInfo, Event, Job, JobState, Progress
from xpucached.domain.libraries import Libraries, SyclRuntime
from xpucached.domain.models import ModelStatus, Outcome, Run, Warmth
from xpucached.domain.names import EntryKey, JobId, KindName
from xpucached.domain.plans import Deferred, ReplayPlan
from xpucached.domain.reports import PrewarmReport, ReplayReport, VerifyReport
from xpucached.domain.secrecy import HIDDEN
from xpucached.domain.status import Status
from xpucached.domain.stores import EntryId, Store
from xpucached.domain.trash import Comparison, Finding
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.errors import SettingsError
from xpucached.kinds.sycl.defects import BIN_EMPTY
from xpucached.server.redact import redact
from xpucached.service import automatic
from xpucached.service.automatic import AutomaticWork
from xpucached.service.events import Events
from xpucached.service.problems import ProblemList
from xpucached.settings import model_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpucached.domain.names import ModelName
    from xpucached.service.context import Context

SECRET: Final = "s3cr3t"  # noqa: S105 - that is what it is about


def run() -> Run:
    """Return a run whose program printed the token when it failed."""
    made = api_stub.make_run()
    trial = replace(made.trials[0], detail=SECRET, output=SECRET, evidence=(SECRET,))
    return replace(made, outcome=Outcome.FAILED, detail=f"exit status 1: {SECRET}", output=SECRET, trials=(trial,))


def model() -> ModelStatus:
    """Return a model that is told the token in every way there is."""
    known = api_stub.make_model(warmth=Warmth.FAILED)
    exercise = RunSpec(
        loader=Loader.TRANSFORMERS, target=f"/models/{SECRET}", inputs=SECRET, options={"token": SECRET}, python="/p"
    )
    workload = replace(
        known.model.workload,
        command=("/usr/bin/python3", "app.py", f"--token={SECRET}", SECRET),
        variables={"TOKEN": SECRET},
        exercise=exercise,
    )
    again = replace(known.model, workload=workload)
    return ModelStatus.of(again, known.warmth, f"failed: {SECRET}", run=run())


def job() -> Job:
    """Return a job that failed with what its program said."""
    report = PrewarmReport(runs=(run(),), covered=(), deferred=(Deferred(model().model.name, SECRET, None),))
    return Job(
        JobId("prewarm-1"),
        "prewarm",
        JobState.FAILED,
        NOW,
        progress=Progress(1, 2, f"app.py: {SECRET}"),
        report=report,
        error=ErrorInfo("run-failed", f"not warm: resnet: {SECRET}", SECRET),
    )


@dataclass
class Secretive(Standin):
    """A service that knows the token."""

    async def status(self) -> Status:
        """How this host stands."""
        problem = Problem("automatic-job-failed", f"failed: {SECRET}", SECRET)
        status = api_stub.make_status(jobs=(job(),))
        sentence = f"No device: programs find none on this host: {problem.message}"
        return replace(status, models=(model(),), problems=(*status.problems, problem), sentence=sentence)

    async def models(self) -> tuple[ModelStatus, ...]:
        """Return all models."""
        return (model(),)

    async def model(self, name: ModelName) -> ModelStatus:
        """Return one model."""
        return model()

    async def why(self, name: ModelName) -> Diagnosis:
        """Return why a model failed."""
        return Diagnosis(
            name, Warmth.FAILED, tuple(Explanation(one, SECRET) for one in (Cause.FAILED, Cause.CRASH, Cause.UNCACHED))
        )

    async def runs(self, model: ModelName | None, limit: int) -> tuple[Run, ...]:
        """Return the newest runs."""
        return (run(),)

    async def jobs(self) -> tuple[Job, ...]:
        """Return the jobs."""
        return (job(),)

    async def job(self, id: JobId) -> Job:  # noqa: A002 - as the protocol names it
        """Return one job."""
        return job()

    async def wait(self, id: JobId, timeout: float) -> Job:  # noqa: A002, ASYNC109 - as the protocol names it
        """Return one job."""
        return job()

    async def prewarm(self, request: requests.PrewarmModels) -> Job:
        """Begin to prewarm."""
        return job()

    async def config(self) -> Mapping[str, str]:
        """Return settings."""
        return {"policy.grace": "600", "driver.variables": f"{{'TOKEN': '{SECRET}'}} (xpucached.toml:3)"}


def ask(one: api_stub.Running, method: str, target: str, *headers: str) -> str:
    """Return the whole answer as it comes, or what there is of one that does not end."""
    body = '{"stale": true}' if method == "POST" else ""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}"]
    with one.connect() as client:
        client.settimeout(20.0)
        client.sendall(("\r\n".join([*lines, *headers]) + f"\r\n\r\n{body}").encode())
        said = b""
        try:
            while part := client.recv(65536):
                said += part
                if "follow" in target:
                    client.settimeout(2.0)
        except TimeoutError:
            pass
    return said.decode()


READS: Final = [row.path for row in requests.ENDPOINTS if row.method == "GET"]


def reader(_uid: int, right: Right) -> bool:
    """Let everybody read."""
    return right is Right.READ


def nobody(_uid: int, _right: Right) -> bool:
    """Let nobody do anything, but whoever tends."""
    return False


def ways() -> list[str]:
    """Return every address that can be read."""
    filled = [path.replace("{name}", "resnet").replace("{id}", "prewarm-1").replace("{ref}", "1") for path in READS]
    return [*filled, "/v1/events?follow=true", "text"]


@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("allowed", [reader, nobody])
def test_no_answer_to_others_holds_what_is_the_owner_s(
    short_dir: Path, way: str, allowed: Callable[[int, Right], bool]
) -> None:
    event = Event(1, NOW, "run-finished", "resnet: failed", {"detail": SECRET, "model": "resnet"})
    job = Event(2, NOW, "automatic-job-failed", SECRET, {"hint": SECRET})
    service = Secretive(log=[event, job])
    with running(short_dir, service=service, allowed=allowed, tends=lambda _uid: allowed is nobody) as one:
        if way == "text":
            said = ask(one, "GET", "/v1/status", "Accept: text/plain", "Xpucached-Look: plain")
        else:
            said = ask(one, "GET", way)

    assert said.startswith("HTTP/1.1 ")
    assert SECRET not in said
    if way in {"/v1/models", "/v1/models/resnet"}:
        assert HIDDEN in said
        assert "/usr/bin/python3" in said


def test_neither_does_the_answer_to_who_may_have_it_done(short_dir: Path) -> None:
    with running(short_dir, service=Secretive(), allowed=nobody, tends=lambda _uid: True) as one:
        said = ask(one, "POST", "/v1/prewarm")

    assert " 202 " in said
    assert SECRET not in said


def quoting(place: Path) -> list[Problem]:
    """Return what settings say of a command that is no list, and of variables that are none: they quote the value."""
    for name, line in (("one", f'command = "python3 app.py {SECRET}"'), ("two", f'variables = ["TOKEN={SECRET}"]')):
        (place / f"{name}.toml").write_text(f"timeout = 5\n{line}\n")
    _, found = model_files.models(place)
    return list(found)


def test_what_compilers_say_is_the_owner_s_in_every_report() -> None:
    said = (f"cannot compile -DTOKEN={SECRET}",)
    store = Store(KindName("sycl"), Path("/store"))
    entry = EntryId(store, EntryKey("1/2/3/4/0"))
    detail = f"not compiled again: {said[0]}"
    found = Finding.of(entry, BIN_EMPTY, BIN_EMPTY.effect, detail, RepairAction.LEAVE, done=False)
    verified = VerifyReport(True, 1, 1, (found,), deep=Comparison(failures=said))  # noqa: FBT003 - it mended
    plan = ReplayPlan()
    replayed = ReplayReport(
        plan, dry_run=False, failures=said, confirmed=f"the SYCL runtime in /{SECRET} names them so"
    )
    for report in (verified, replayed):
        assert SECRET in str(report)
        assert SECRET not in str(redact(replace(job(), report=report)))
    assert BIN_EMPTY.code in str(redact(verified))


def test_what_quotes_a_refused_value_is_told_by_file_and_line(short_dir: Path) -> None:
    found = quoting(short_dir)
    assert SECRET in str(found)
    shown = redact(tuple(found))

    assert SECRET not in str(shown)
    assert [(one.code, one.subject) for one in found] == [(one.code, one.subject) for one in shown]  # type: ignore[attr-defined] # the same kind
    assert "line 2" in str(shown)


def test_a_problem_or_an_event_that_nobody_listed_is_hidden() -> None:
    problem = Problem("some-news", SECRET, SECRET, SECRET)
    event = Event(1, NOW, "some-news", SECRET, {"command": SECRET, "model": "resnet"})
    driver = Problem("driver-missing", f"OCL_ICD_FILENAMES names /{SECRET}", "", f"/{SECRET}")
    silent = Problem("driver-silent", f"it said: {SECRET}", "", "resnet")
    shown = redact((problem, event, driver, silent))

    assert SECRET not in str(shown)
    assert "resnet" in str(shown)
    assert redact(Problem("no-gpu", "no GPU")) == Problem("no-gpu", "no GPU")


def test_neither_libraries_nor_a_driver_s_files_say_where_variables_lead() -> None:
    place = Path(f"/{SECRET}/lib.so")
    libraries = Libraries((SyclRuntime(place, "b", 1),), (place,), (place,))
    file = DriverFile(place, place, "1", 5, NOW, "id", "package 1")
    driver = DriverInUse({}, (), "stamp", driver=(file,), problems=(Problem("probe-crashed", SECRET),))
    shown = str(
        redact((replace(run(), libraries=libraries), driver, RuntimeCheck("b", place, Safety.UNSAFE, SECRET, NOW)))
    )

    assert SECRET not in shown
    assert "package 1" in shown


def test_no_answer_to_others_lets_a_guess_of_arguments_be_proven(short_dir: Path) -> None:
    known = model()
    digest = known.model.workload.digest
    assert known.run is not None
    ran = replace(known, run=replace(known.run, workload=digest))

    assert digest in str(codec.to_json(ran))
    assert digest not in str(codec.to_json(redact(ran)))


def test_the_system_s_journal_hears_that_something_failed_and_not_what_it_quotes(
    caplog: pytest.LogCaptureFixture, short_dir: Path
) -> None:
    context = SimpleNamespace(events=Events(lambda: NOW), problems=ProblemList(), catalog=SimpleNamespace(trouble=None))
    parts = AutomaticWork(cast("Context", context))
    with caplog.at_level("INFO"):
        parts.failed(automatic.SCAN, ErrorInfo("some-code", f"no {SECRET}", SECRET))
        context.events.post("compiled", SECRET, {"command": SECRET})
        context.events.post("model-added", "resnet")

    assert SECRET not in caplog.text
    assert "some-code" in caplog.text
    assert "model-added: resnet" in caplog.text
    assert SECRET in context.problems.all()[0].message


def test_a_worker_whose_configuration_is_refused_quotes_none_of_it(
    capsys: pytest.CaptureFixture[str], short_dir: Path
) -> None:
    file = short_dir / "xpucached.toml"
    file.write_text(f'models = "{SECRET}"\n[policy]\ngrace = "{SECRET}"\n')
    file.chmod(0o600)

    assert main.main(["--worker", "--config", str(file)]) == SettingsError.exit
    assert SECRET not in "".join(capsys.readouterr())
    assert main.main(["--user", "--check", "--config", str(file)]) == SettingsError.exit
    assert SECRET in "".join(capsys.readouterr())


def test_the_owner_sees_it(short_dir: Path) -> None:
    with running(short_dir, service=Secretive()) as one:
        for way in ("/v1/models/resnet", "/v1/runs", "/v1/jobs/prewarm-1", "/v1/models/resnet/why", "/v1/config"):
            assert SECRET in ask(one, "GET", way), way
