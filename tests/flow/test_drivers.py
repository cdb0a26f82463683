"""Drivers: what a model's own variables lead to, several on one host, and what a runtime is trusted with."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests import REPOSITORY
from tests.flow.test_daemon import driven, switch, warm
from tests.support.builders import sycl_target
from tests.support.daemons import daemon
from tests.unit.planning import test_planning as planned
from tests.unit.planning.test_planning import NOW
from tests.unit.planning.test_planning_replay import indexed
from xpucached.catalog import Catalog
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import KEPT, begin_run, finish_run, newest_runs
from xpucached.catalog.surveys import last_survey, record_survey
from xpucached.catalog.targets import target_presence
from xpucached.domain.host import DriverInUse, Host, Presence, Problem
from xpucached.domain.libraries import Libraries
from xpucached.domain.models import Attribution, Outcome, Proof, WarmReason
from xpucached.domain.names import ModelName
from xpucached.domain.plans import Policy, Subtotal
from xpucached.domain.status import Verdict
from xpucached.domain.stores import Store
from xpucached.domain.targets import Target
from xpucached.kinds.sycl import trace
from xpucached.kinds.table import MODELS, lineages
from xpucached.planning.preselect import plan_preselection
from xpucached.planning.prewarm import need, plan_prewarm
from xpucached.planning.replay import plan_replay
from xpucached.planning.verdict import of_drivers, verdict, warmth
from xpucached.server.redact import redact
from xpucached.service import survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemons import Daemon
    from tests.support.runtimes import Runtime
    from xpucached.domain.plans import IndexedEntry


def register(host: Daemon, name: str, runtime: Runtime, variables: dict[str, str]) -> None:
    """Register a model of each sort, both led by these variables: a command, and ``NAME-loaded``."""
    given = [word for item in variables.items() for word in ("--env", "=".join(item))]
    host.ctl("model", "add", name, *given, "--", *runtime.program("first", "second"))
    host.ctl("model", "add", f"{name}-loaded", *runtime.loader("second", "third"), *given)


def finds_it_warm(host: Daemon, name: str, program: list[str]) -> None:
    """See that a program compiles nothing, started by ``run`` and with each form of what ``env`` prints."""
    bare = {name: host.environment[name] for name in ("PATH", "XDG_RUNTIME_DIR")} | {"PYTHONPATH": str(REPOSITORY)}
    bare |= {"HOME": str(host.home), "SYCL_CACHE_TRACE": "5"}
    text = shlex.join(program)
    lines = host.ctl("env", name, "--docker").stdout.splitlines()
    # A unit's line stands in quotes behind "Environment=", and one of environment.d has its value in them.
    unit = [shlex.split(line.partition("=")[2])[0] for line in host.ctl("env", name, "--systemd").stdout.splitlines()]
    session = [shlex.split(line)[0] for line in host.ctl("env", name, "--environment-d").stdout.splitlines()]
    as_json = [f"{name}={value}" for name, value in host.ask("env", name).items()]
    for line in (
        [sys.executable, "-m", "xpucached.cli", "--user", "run", name, "--", *program],
        ["/bin/sh", "-c", f"{host.ctl('env', name).stdout}\n{text}"],
        ["env", *lines, *program],
        ["env", *as_json, *program],
        ["env", *unit, *program],
        ["env", *session, *program],
    ):
        done = subprocess.run(line, env=bare, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, (line, done.stderr)
        root = next(one.partition("=")[2] for one in lines if one.startswith("SYCL_CACHE_DIR="))
        told = trace.read(Store(MODELS, Path(root)), done.stderr.splitlines())
        assert (told.created, len(told.used)) == (frozenset(), 2), (line, done.stderr)


def runs_of(host: Daemon, *names: str) -> dict[str, int]:
    return {name: len(host.rows("runs", name)) for name in names}


def drivers_of(host: Daemon, name: str) -> set[str]:
    return {str(row["driver"]) for row in host.rows("ls", "--model", name, "--driver", "current")}


# -- decisions --------------------------------------------------------------------------------------------------------

CPU: Final = "Intel(R) Xeon(R)"
A1, A2, A3, B1, B2, B3 = (
    sycl_target("Intel(R) OpenCL", CPU, "OpenCL 3.0", number) for number in ("a1", "a2", "a3", "b1", "b2", "b3")
)


def led(*environments: Target, models: tuple[str, ...] = ("trial",), place: str = "/opt/trial") -> DriverInUse:
    named = {"OCL_ICD_FILENAMES": f"{place}/libintelocl.so"}
    return DriverInUse(named, tuple(map(ModelName, models)), place, environments=environments)


def two(own: Target | None, *drivers: DriverInUse) -> Host:
    return Host(NOW, "boot", "6", "stamp", environments=(own,) if own else (), drivers=drivers)


def test_each_model_is_judged_by_the_driver_to_which_it_is_led() -> None:
    here = two(A1, led(B1))
    own, trial = planned.model("own"), planned.model("trial")
    known = {
        name: replace(planned.coverage(planned.run(of, environments=(met,))), model=of.name)
        for name, of, met in (("own", own, A1), ("trial", trial, B1))
    }

    made = plan_prewarm([own, trial], known.values(), here, Policy(), NOW)
    assert made.covered == ("own", "trial")
    # One of them is upgraded, the other is not concerned.
    upgraded = plan_prewarm([own, trial], known.values(), two(A1, led(B2)), Policy(), NOW)
    assert ([one.model.name for one in upgraded.warm], upgraded.covered) == (["trial"], ("own",))
    # One of them does not answer: there is no device for its models, and one for the others.
    silent = two(A1, led())
    assert [one.model for one in plan_prewarm([own, trial], known.values(), silent, Policy(), NOW).deferred] == [
        "trial"
    ]
    (problem,) = of_drivers(silent)
    assert (problem.code, problem.subject) == ("driver-silent", "trial")
    assert problem.message.endswith("offers no device: it does not say why")
    assert verdict(two(None, led(B1)), [], [])[0] is Verdict.NO_MODELS


def test_why_a_driver_is_silent_is_what_it_says_itself() -> None:
    told = [Problem(code, f"said by {code}") for code in ("no-gpu", "driver-missing", "probe-hung", "no-opencl")]
    problems = of_drivers(two(A1, replace(led(), problems=tuple(told))))
    assert [one.code for one in problems] == ["driver-missing", "probe-hung", "driver-silent"]
    assert problems[-1].message.endswith("offers no device: said by probe-hung; said by no-opencl")


def test_who_may_only_read_sees_a_driver_and_not_what_leads_to_it() -> None:
    missing = Problem("driver-missing", "OCL_ICD_FILENAMES names /secret, which is not there")
    driver = replace(led(B1, place="/secret"), stamp="s", problems=(missing,))
    shown = redact((two(A1, driver), *of_drivers(two(A1, driver)), *of_drivers(two(A1, led(place="/secret")))))

    assert "/secret" not in str(shown)
    assert "b1" in str(shown)
    assert "trial" in str(shown)


def test_a_driver_that_cannot_be_looked_at_any_more_costs_no_other_model_its_own() -> None:
    libraries = Libraries(
        further=(Path("/", "a" * 300, "libintelocl.so"), Path("/", "b" * 300, "libze_intel_gpu.so.1"))
    )
    assert survey._mapped(libraries, {}) == {}


def test_an_earlier_driver_brings_its_proof_with_it() -> None:
    model = planned.model()
    old = Proof(planned.run(model, on=two(A1), environments=(A1,), number=1), 4, 4)
    known = planned.coverage(planned.run(model, on=two(A2), environments=(A2,), number=2), remaining=0)
    known = replace(known, proofs=(Proof(known.good or old.run, 4, 0), old))

    assert need(model, known, two(A1)) is None
    assert warmth(model, known, two(A1), Policy(), NOW)[1].startswith("all its 4 entries are there; run 1 proved it")
    lost = replace(known, proofs=(replace(old, remaining=3),))
    assert (need(model, lost, two(A1)) or old).reason is WarmReason.LOST  # type: ignore[union-attr]
    assert (need(model, known, two(A3)) or old).reason is WarmReason.DRIVER  # type: ignore[union-attr]


def rebuilt(here: Host, *entries: IndexedEntry) -> list[tuple[str, str]]:
    models = {one.name: one for one in map(planned.model, ("own", "trial"))}
    made = plan_replay(entries, here, models, (), NOW, lineages=lineages())
    return sorted((one.entry.entry.id.key.split("/")[1], one.to.toolchain) for one in made.rebuild)


def test_entries_are_rebuilt_for_the_drivers_that_their_models_use() -> None:
    some = [
        indexed("1", A1, models=("own",)),
        indexed("2", B1, models=("trial",)),
        indexed("3", A1),
        indexed("4", B1),
        indexed("5", A1, models=("own", "trial")),
    ]
    # All of it is there: nothing is made for a driver that its models do not use.
    assert rebuilt(two(A1, led(B1)), *some[:4]) == []
    # What two models share is wanted for both drivers.
    assert rebuilt(two(A1, led(B1)), *some) == [("5", "b1")]
    # Of no model: for the host's own driver, when it has gone.
    assert rebuilt(two(A1, led(B2)), *some[:4]) == [("2", "b2"), ("4", "a1")]
    assert rebuilt(two(A2, led(B1)), *some[:4]) == [("1", "a2"), ("3", "a2")]
    assert rebuilt(two(None, led(B2)), *some[:4]) == [("2", "b2")]


def test_each_driver_in_use_keeps_a_generation_of_its_own() -> None:
    def here(environment: Target, first: float, last: float, driver: DriverInUse | None) -> Presence:
        known = planned.presence(environment, first, last)
        return replace(known, drivers=frozenset({driver.id if driver is not None else ""}))

    trial = led(B2)
    # The one on trial changed long ago, the host's own twice since then.
    own = (here(A1, 90, 40, None), here(A2, 40, 20, None), here(A3, 20, 0, None))
    history = (here(B1, 90, 60, trial), here(B2, 60, 0, trial), *own)
    entries = [planned.entry(one.toolchain, environment=one, created=89) for one in (A1, A2, A3, B1, B2)]

    made = planned.evict(*entries, on=two(A3, trial), history=history)
    assert [one.entry.entry.environment for one in made.evict] == [A1]
    preselection = plan_preselection(
        [Subtotal(one.entry.id.store, one.entry.environment, 1, 1) for one in entries],
        two(A3, trial),
        history,
        {},
        Policy(),
        NOW,
    )
    assert preselection.environments == {A1}


def test_the_proof_of_each_driver_is_kept_however_many_runs_follow(tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path / "catalog.sqlite")
    try:
        net = planned.model()
        catalog.write(add_model, net)
        for signature, times in (("a", 2), ("b", KEPT + 1)):
            for _ in range(times):
                begun = catalog.write(begin_run, net, WarmReason.MANUAL, signature, NOW)
                catalog.write(finish_run, begun.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW)
        (known,) = catalog.read(model_coverage)
        assert [(one.run.host, one.run.id) for one in known.proofs] == [("b", KEPT + 3), ("a", 2)]
        assert len(catalog.read(newest_runs, net.name, 2 * KEPT)) == KEPT + 1
        # Which driver offered what is remembered, also when models are led to another one.
        catalog.write(record_survey, two(A1, led(B1)))
        assert catalog.read(last_survey) == two(A1, led(B1))
        change = catalog.write(record_survey, two(A1, led(B2)))
        assert change is not None
        assert (change.appeared, change.vanished) == ((B2,), (B1,))
        offers = {one.environment: one.drivers for one in catalog.read(target_presence)}
        assert offers == {A1: {""}, B1: {led().id}, B2: {led().id}}
    finally:
        catalog.close()


# -- with real drivers ------------------------------------------------------------------------------------------------


@pytest.mark.runtime
@pytest.mark.timeout(900)
def test_two_drivers_at_once_are_both_warm_and_one_is_upgraded_without_the_other(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    first, trial, later = runtime("rt2025.2"), runtime("drv2025.3"), runtime("drv2026.0")
    link, own = tmp_path / "trial", tmp_path / "own"
    switch(link, trial)
    switch(own, first)
    with daemon(home, short_dir) as one:
        # No driver is the host's own: each model is led to its driver by its own variables.
        one.configure("[schedule]\nsettle = '0.2s'\n")
        one.start()
        for name, driver in (("old", own), ("new", link)):
            variables = {"LD_LIBRARY_PATH": str(first.lib), "OCL_ICD_FILENAMES": f"{driver}/libintelocl.so"}
            register(one, name, first, variables)
        names = ("old", "old-loaded", "new", "new-loaded")
        one.ctl("prewarm", *names)
        for name in names:
            warm(one, name)
        before = runs_of(one, *names)
        assert set(before.values()) == {1}
        assert drivers_of(one, "old").isdisjoint(drivers_of(one, "new"))
        used = one.ask("status")["host"]["drivers"]  # type: ignore[index]
        assert [row["models"] for row in used] == [["new", "new-loaded"], ["old", "old-loaded"]]
        # Looked at again, and asked again, nothing is run a second time, and nothing is rebuilt for the other one.
        one.ctl("scan")
        assert one.ask("prewarm", "--stale")["report"]["runs"] == []  # type: ignore[index]
        assert "nothing to rebuild" in one.ctl("replay").stdout
        assert runs_of(one, *names) == before
        kept = {row["ref"] for row in one.rows("ls", "--model", "old")}
        # What both drivers' entries take is what the stores hold, and nothing of it could go.
        disk = one.ask("df")
        held: list[dict[str, int]] = [row for row in one.rows("stores") if row["entries"]]  # type: ignore[misc]
        drivers: list[dict[str, object]] = disk["drivers"]  # type: ignore[assignment]
        assert [(row["present"], row["reclaimable"]) for row in drivers] == [(True, 0)] * 2
        assert disk["allocated"] == sum(row["allocated"] for row in held)
        assert disk["entries"] == sum(row["entries"] for row in held)
        assert {row["name"] for row in disk["models"]} == set(names)  # type: ignore[attr-defined]
        # A program in a shell that knows nothing finds what was warmed for its driver, and compiles nothing.
        assert one.ctl("run", "nobody", "--", "true", check=66).stderr.startswith("xpucachectl: ")
        for name in ("old", "new"):
            finds_it_warm(one, name, first.program("first", "second"))

        # As pip would do it: other files at the same place.
        switch(link, later)
        one.until(lambda: any(row["topic"] == "driver-changed" for row in one.rows("events")))
        one.until(lambda: any(row["topic"] == "replayed" for row in one.rows("events")))
        for name in ("new", "new-loaded"):
            one.until(lambda name=name: runs_of(one, name)[name] == 2)  # type: ignore[misc]
            warm(one, name)
            # Replay had rebuilt all of it, for this driver.
            assert [row["created"] for row in one.rows("runs", name)[0]["passes"]] == [0]  # type: ignore[attr-defined]
        assert runs_of(one, "old", "old-loaded") == {"old": 1, "old-loaded": 1}
        assert {row["ref"] for row in one.rows("ls", "--model", "old", "--driver", "current")} == kept
        (event,) = [row for row in one.rows("events") if row["topic"] == "driver-changed"]
        assert event["fields"]["models"] == "new, new-loaded"  # type: ignore[index]
        # Nothing of the driver that is not on trial was made again.
        assert len(one.rows("ls", "--driver", next(iter(drivers_of(one, "old"))))) == len(
            {row["ref"] for name in ("old", "old-loaded") for row in one.rows("ls", "--model", name)}
        )

        # And back: the old proof holds, nothing is run.
        done = runs_of(one, *names)
        switch(link, trial)
        one.until(lambda: sum(row["topic"] == "driver-changed" for row in one.rows("events")) == 2)
        one.until(one.idle)
        for name in names:
            warm(one, name)
        assert runs_of(one, *names) == done


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_driver_that_a_program_finds_by_itself_is_its_driver(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    real, trial = runtime("rt2025.2"), runtime("drv2025.3")
    with daemon(home, short_dir) as one:
        driven(one, real, tmp_path / "driver")
        one.start()
        # As a script does that activates something.
        script = f"OCL_ICD_FILENAMES={trial.driver} exec {' '.join(real.program('first'))}"
        one.ctl("model", "add", "net", "--", "/bin/sh", "-c", script)
        one.ctl("prewarm", "net")
        assert warm(one, "net")["reason"] is None
        (used,) = one.ask("status")["host"]["drivers"]  # type: ignore[index]
        assert used["models"] == ["net"]
        assert used["variables"]["OCL_ICD_FILENAMES"].startswith(str(trial.driver.resolve()))
        one.ctl("scan")
        assert one.ask("prewarm", "--stale")["report"]["runs"] == []  # type: ignore[index]


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_driver_that_does_not_answer_is_told_of_and_costs_only_its_own_models(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    real, gone = runtime("rt2025.2"), tmp_path / "nowhere" / "libintelocl.so"
    with daemon(home, short_dir) as one:
        driven(one, real, tmp_path / "driver")
        one.start()
        register(one, "net", real, {})
        register(one, "lost", real, {"OCL_ICD_FILENAMES": str(gone)})
        names = ("lost", "lost-loaded")
        one.ctl("prewarm", "net", "net-loaded")
        warm(one, "net")
        warm(one, "net-loaded")
        assert [one.ask("model", "show", name)["warmth"] for name in names] == ["cold", "cold"]
        assert one.ask("prewarm", *names)["report"]["runs"] == []  # type: ignore[index]
        problems = {row["code"]: row["message"] for row in one.ask("status")["problems"]}  # type: ignore[attr-defined]
        whose = "for lost, lost-loaded: "
        assert problems["driver-missing"] == f"{whose}OCL_ICD_FILENAMES names {gone}, which is not there"
        assert problems["driver-silent"].startswith(whose)


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_after_a_driver_change_the_cache_stays_on_for_what_ran_with_this_runtime(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    real, link = runtime("rt2025.3"), tmp_path / "driver"
    with daemon(home, short_dir) as one:
        driven(one, real, link)
        with one.config.open("a") as file:
            file.write("\nprewarm = false\nreplay = false\n")
        one.start()
        one.ctl("model", "add", "plain", "--", *real.builder("parts"))
        # It finds the same runtime beside its interpreter, and never loads it.
        one.ctl("model", "add", "idle", "--", str(real.python), "-c", "import json")
        one.ctl("prewarm", "plain")
        one.ctl("prewarm", "idle", check=None)
        (run,) = one.rows("runs", "plain")
        (library,) = [row["library"] for row in run["libraries"]["runtimes"]]  # type: ignore[index]
        assert library.startswith(str(real.lib.resolve() / "libsycl.so."))
        assert run["libraries"]["drivers"] == [str((real.lib / "libintelocl.so").resolve())]  # type: ignore[index]

        switch(link, runtime("drv2026.0"))
        one.until(lambda: one.ask("model", "show", "plain")["reason"] == "driver-changed")
        assert one.ask("env", "plain")["SYCL_CACHE_PERSISTENT"] == "1"
        assert "unsafe-runtime" not in {row["cause"] for row in one.ask("why", "plain")["explanations"]}  # type: ignore[attr-defined]
        one.ctl("scan")
        (problem,) = [row for row in one.ask("status")["problems"] if row["code"] == "unsafe-runtime"]  # type: ignore[attr-defined]
        assert problem["message"].endswith("used by plain")
        assert problem["hint"].startswith("nothing is to be done: all of these ran with it without a crash")
