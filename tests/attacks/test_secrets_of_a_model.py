# ruff: noqa: ARG002 - what stands in for the service takes what the service takes
"""A token among a model's arguments, in its variables, or in what it prints: nobody reads it but its owner and root."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pytest

from tests import doors
from tests.doors import NOW, Standin, running
from xpucached import api
from xpucached.api import Right
from xpucached.domain import (
    Cause,
    Diagnosis,
    Event,
    Exercise,
    Finding,
    Job,
    JobId,
    JobState,
    Loader,
    ModelStatus,
    Outcome,
    PrewarmReport,
    Problem,
    Progress,
    Refusal,
    Run,
    Status,
    Warmth,
)
from xpucached.domain.plans import Deferred
from xpucached.server.redact import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from xpucached.domain import ModelName

SECRET: Final = "s3cr3t"  # noqa: S105 - that is what it is about


def run() -> Run:
    """Give a run whose program printed the token when it failed."""
    made = doors.make_run()
    trial = replace(made.trials[0], detail=SECRET, output=SECRET, evidence=(SECRET,))
    return replace(made, outcome=Outcome.FAILED, detail=f"exit status 1: {SECRET}", output=SECRET, trials=(trial,))


def model() -> ModelStatus:
    """Give a model that is told the token in every way there is."""
    known = doors.make_model(warmth=Warmth.FAILED)
    exercise = Exercise(
        loader=Loader.TRANSFORMERS, target=f"/models/{SECRET}", inputs=SECRET, options={"token": SECRET}, python="/p"
    )
    workload = replace(
        known.model.workload,
        command=("/usr/bin/python3", "app.py", f"--token={SECRET}", SECRET),
        variables={"TOKEN": SECRET},
        exercise=exercise,
    )
    return replace(known, model=replace(known.model, workload=workload), why=f"failed: {SECRET}", run=run())


def job() -> Job:
    """Give a job that failed with what its program said."""
    report = PrewarmReport(runs=(run(),), covered=(), deferred=(Deferred(model().model.name, SECRET, None),))
    return Job(
        JobId("prewarm-1"),
        "prewarm",
        JobState.FAILED,
        NOW,
        progress=Progress(1, 2, f"app.py: {SECRET}"),
        prewarm=report,
        error=Refusal("run-failed", f"not warm: resnet: {SECRET}", SECRET),
    )


@dataclass
class Secretive(Standin):
    """A service that knows the token."""

    async def status(self) -> Status:
        """How this host stands."""
        problem = Problem("automatic-job-failed", f"failed: {SECRET}", SECRET)
        status = doors.make_status(jobs=(job(),))
        sentence = f"No device: programs find none on this host: {problem.message}"
        return replace(status, models=(model(),), problems=(*status.problems, problem), sentence=sentence)

    async def models(self) -> tuple[ModelStatus, ...]:
        """Give all models."""
        return (model(),)

    async def model(self, name: ModelName) -> ModelStatus:
        """Give one model."""
        return model()

    async def why(self, name: ModelName) -> Diagnosis:
        """Say why a model failed."""
        return Diagnosis(
            name, Warmth.FAILED, tuple(Finding(one, SECRET) for one in (Cause.FAILED, Cause.CRASH, Cause.UNCACHED))
        )

    async def runs(self, model: ModelName | None, limit: int) -> tuple[Run, ...]:
        """Give the newest runs."""
        return (run(),)

    async def jobs(self) -> tuple[Job, ...]:
        """Give the jobs."""
        return (job(),)

    async def job(self, id: JobId) -> Job:  # noqa: A002 - as the protocol names it
        """Give one job."""
        return job()

    async def wait(self, id: JobId, timeout: float) -> Job:  # noqa: A002, ASYNC109 - as the protocol names it
        """Give one job."""
        return job()

    async def prewarm(self, request: api.PrewarmModels) -> Job:
        """Begin to prewarm."""
        return job()

    async def config(self) -> Mapping[str, str]:
        """Give settings."""
        return {"policy.grace": "600", "driver.variables": f"{{'TOKEN': '{SECRET}'}} (xpucached.toml:3)"}


def ask(one: doors.Running, method: str, target: str, *headers: str) -> str:
    """Give the whole answer as it comes, or what there is of one that does not end."""
    body = '{"stale": true}' if method == "POST" else ""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}"]
    with one.connect() as client:
        client.settimeout(2.0 if "follow" in target else 20.0)
        client.sendall(("\r\n".join([*lines, *headers]) + f"\r\n\r\n{body}").encode())
        said = b""
        try:
            while part := client.recv(65536):
                said += part
        except TimeoutError:
            pass
    return said.decode()


READS: Final = [row.path for row in api.ENDPOINTS if row.method == "GET"]


def reader(_uid: int, right: Right) -> bool:
    """Let everybody read."""
    return right is Right.READ


def nobody(_uid: int, _right: Right) -> bool:
    """Let nobody do anything, but whoever tends."""
    return False


def ways() -> list[str]:
    """Give every address that can be read."""
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


def test_the_owner_sees_it(short_dir: Path) -> None:
    with running(short_dir, service=Secretive()) as one:
        for way in ("/v1/models/resnet", "/v1/runs", "/v1/jobs/prewarm-1", "/v1/models/resnet/why", "/v1/config"):
            assert SECRET in ask(one, "GET", way), way
