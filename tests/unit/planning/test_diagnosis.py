"""Why a model is cold or slow, and what is usual: tables of cases, and real processes of a unit."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from tests.support.api_stub import make_entry, make_model, make_run
from tests.support.daemons import daemon
from xpucached.domain.diagnosis import Application, Baseline, Cause, Figure, RuntimeCheck, Safety
from xpucached.domain.libraries import Libraries, SyclRuntime
from xpucached.domain.models import Figures, Outcome, Pass, Trial, WarmReason, Warmth, is_unit
from xpucached.domain.names import EntryKey, KindName, ModelName
from xpucached.domain.stores import EntryId, EntryState, Kernel, Store
from xpucached.domain.targets import Origin
from xpucached.domain.workloads import Variant
from xpucached.host import process_table, process_units
from xpucached.host.roots import HostRoots
from xpucached.kinds import sycl
from xpucached.kinds.table import built_from
from xpucached.planning.baselines import baselines, limit, summed, usual_seconds
from xpucached.planning.diagnosis import beyond, diagnose, trusted
from xpucached.render import diagnosis, models
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.runtimes import Runtime
    from xpucached.domain.diagnosis import Diagnosis
    from xpucached.domain.models import ModelStatus, Run
    from xpucached.domain.plans import IndexedEntry

NOW: Final = datetime(2026, 11, 1, 12, tzinfo=UTC)
STORE: Final = Path("/cache/sycl")
LOOK: Final = TextStyle(NOW, None, False)  # noqa: FBT003 - no colours


def status(
    warmth: Warmth = Warmth.WARM, reason: WarmReason | None = None, outcome: Outcome = Outcome.WARMED
) -> ModelStatus:
    one = make_model("net", warmth)
    run = replace(make_run(), outcome=outcome, detail="ended by SIGSEGV with the cache on")
    return replace(one, reason=reason, run=run)


def check_runtime(safety: Safety) -> RuntimeCheck:
    return RuntimeCheck("b1", Path("/venv/lib/libsycl.so.8"), safety, "with 1 it was ended by SIGSEGV", NOW)


def app(*, uid: int = 1000, visible: bool = True, enabled: bool = True, store: Path | None = STORE) -> Application:
    return Application("app.service", 77, uid, visible, enabled, store)


def entry(key: str, *, root: Path = STORE, models: Sequence[str] = (), options: str = "") -> IndexedEntry:
    one = make_entry(1)
    held = replace(one.entry, id=EntryId(Store(KindName("sycl"), root), EntryKey(key)), options=options)
    return replace(one, entry=held, models=tuple(map(ModelName, models)))


def ask(
    of: ModelStatus | None = None,
    *,
    runtimes: Sequence[RuntimeCheck] = (),
    applications: Sequence[Application] | None = (),
    entries: Sequence[IndexedEntry] = (),
    figures: Sequence[Baseline] = (),
    gpus: bool = False,
) -> Diagnosis:
    return diagnose(
        of or status(),
        runtimes=runtimes,
        store=STORE,
        applications=applications,
        entries=entries,
        baselines=figures,
        uid=1000,
        gpus=gpus,
        selecting=("ONEAPI_DEVICE_SELECTOR",),
        built_from=built_from,
    )


@pytest.mark.parametrize(
    ("of", "cause", "command"),
    [
        (status(Warmth.COLD, WarmReason.NEVER), Cause.NEVER, "xpucachectl prewarm net"),
        (status(Warmth.COLD, WarmReason.CHANGED), Cause.CHANGED, "xpucachectl prewarm net"),
        (status(Warmth.COLD, WarmReason.DRIVER), Cause.DRIVER, "xpucachectl prewarm net"),
        (status(Warmth.COLD, WarmReason.LOST), Cause.LOST, "xpucachectl prewarm net"),
        (status(Warmth.COLD, None), Cause.NO_DEVICE, "xpucachectl devices"),
        (status(Warmth.WARMING, WarmReason.NEVER), Cause.WARMING, "xpucachectl jobs"),
        (status(Warmth.FAILED, WarmReason.RETRY, Outcome.FAILED), Cause.FAILED, "xpucachectl runs net"),
        (status(Warmth.FAILED, WarmReason.RETRY, Outcome.CRASHED), Cause.CRASH, "xpucachectl env net"),
    ],
)
def test_a_model_is_cold_for_a_reason(of: ModelStatus, cause: Cause, command: str) -> None:
    first = ask(of).explanations[0]

    assert (first.cause, first.command) == (cause, command)


def test_the_usual_time_of_models_is_that_of_their_last_passes() -> None:
    known = replace(make_model(), cold_seconds=40.0, warm_seconds=2.0)
    assert usual_seconds([known, known]) == 84.0
    assert usual_seconds([]) == 0.0
    assert usual_seconds([known, None]) is usual_seconds([known, replace(known, warm_seconds=None)]) is None


def test_nothing_speaks_against_a_warm_model_whose_application_uses_its_store() -> None:
    made = ask(
        runtimes=[check_runtime(Safety.SAFE)], applications=[app()], entries=[entry("1/2/3/4/0", models=["net"])]
    )

    assert made.explanations == ()
    assert "nothing speaks against it" in diagnosis.why(made, LOOK)


def test_a_program_that_does_more_than_its_command_shows_by_what_no_run_compiled() -> None:
    known = status()
    assert known.run is not None
    warm = replace(known, run=replace(known.run, environments=(make_entry(1).entry.environment or api_stub.OPENCL,)))
    mine, other = entry("1/2/3/4/0", models=["net"]), entry("1/2/3/5/0")
    one = beyond(warm, [other], [mine, other])
    assert one.startswith("one program of oneDNN was compiled in its store since it was proven, and by no model's run")
    assert beyond(warm, [other, entry("6/0")], [mine]).startswith("2 programs of oneDNN were compiled")
    # It is said by why, and by what is shown of the model.
    (explanation,) = diagnose(warm, store=STORE, beyond=one, uid=1000, built_from=built_from).explanations
    assert explanation.command == "xpucachectl model add net --replace -- COMMAND"
    assert explanation.message.startswith(one)
    assert one in models.model(replace(warm, beyond=one), LOOK)
    assert "Compiled besides" not in models.model(warm, LOOK)

    def changed(**facts: object) -> IndexedEntry:
        return replace(other, entry=replace(other.entry, **facts))

    stranger = changed(kernels=(Kernel("_ZTS4Mine", "Mine", None),))
    # Not where it is cold anyway, nor of another driver, damaged, made by us, brought along, or of any program's own.
    assert beyond(replace(warm, warmth=Warmth.COLD), [other], [mine]) == ""
    elsewhere = [changed(environment=None), changed(state=EntryState.DEFECTIVE), stranger]
    ours = [replace(other, origin=origin) for origin in (Origin.REBUILT, Origin.AHEAD, Origin.IMPORTED)]
    assert beyond(warm, [*elsewhere, *ours], [mine]) == ""
    # In a store of its own whatever comes counts.
    alone = replace(warm, store=STORE)
    assert beyond(alone, [stranger], [mine]).startswith("one program was compiled in its store")


@pytest.mark.parametrize(
    ("one", "cause", "command"),
    [
        (app(enabled=False), Cause.CACHE_OFF, "xpucachectl env net --systemd (into: systemctl edit app.service)"),
        (app(store=Path("/other")), Cause.OTHER_STORE, "xpucachectl env net --systemd"),
        (app(uid=33, store=Path("/other")), Cause.FOREIGN_STORE, "run xpucached --user as user 33"),
        (app(uid=33, visible=False, enabled=False), Cause.HIDDEN, "systemctl show -p Environment app.service"),
    ],
)
def test_a_warm_model_is_of_no_use_to_an_application_that_looks_elsewhere(
    one: Application, cause: Cause, command: str
) -> None:
    (explanation,) = ask(applications=[one]).explanations

    assert explanation.cause is cause
    assert explanation.command.startswith(command)
    assert "process 77 of app.service" in explanation.message


def test_another_key_for_the_same_program_is_seen_in_the_store() -> None:
    mine = entry("1/2/3/4/0", models=["net"])
    same_image = entry("1/2/3/9/0", options="-cl-fast-relaxed-math")
    # Another program, the same one again, and what is no entry of that kind.
    others = [entry("1/7/3/9/0"), entry("1/2/3/4/1"), entry("ext_kernel_compiler/k/ir")]
    (explanation,) = ask(entries=[mine, same_image, *others]).explanations

    assert explanation.cause is Cause.OPTIONS
    assert explanation.message.startswith("1 of its programs")
    assert "-cl-fast-relaxed-math" in explanation.message


def test_an_application_that_keeps_what_its_driver_compiles_elsewhere_is_named() -> None:
    ours = Store(KindName("neo"), Path("/cache/neo"))
    astray = replace(app(store=Path("/home/a/.cache/neo_compiler_cache")), kept=ours)
    (explanation,) = ask(applications=[app(), astray]).explanations

    assert explanation.cause is Cause.OTHER_STORE
    assert "caches (neo) in /home/a/.cache/neo_compiler_cache, but the model was warmed in /cache/neo" in (
        explanation.message
    )
    assert ask(applications=[app(), replace(astray, store=ours.root)]).explanations == ()
    (explanation,) = ask(applications=[replace(astray, enabled=False)]).explanations
    assert "the cache (neo) is off in process 77" in explanation.message


def test_the_same_program_in_another_store_is_somebody_who_does_not_use_ours() -> None:
    mine = entry("1/2/3/4/0", models=["net"])
    (explanation,) = ask(entries=[mine, entry("1/2/3/4/0", root=Path("/home/a/.cache/libsycl_cache"))]).explanations

    assert explanation.cause is Cause.OTHER_STORE
    assert "/home/a/.cache/libsycl_cache" in explanation.message


def test_what_keeps_the_model_cold_comes_before_what_keeps_its_application_from_it() -> None:
    made = ask(
        status(Warmth.COLD, WarmReason.NEVER),
        runtimes=[check_runtime(Safety.UNSAFE)],
        applications=[app(enabled=False)],
    )

    assert [one.cause for one in made.explanations] == [Cause.NEVER, Cause.UNSAFE, Cause.CACHE_OFF]


@pytest.mark.parametrize(
    ("of", "safety", "on"),
    [
        (status(), Safety.UNSAFE, True),
        (status(Warmth.COLD), Safety.UNSAFE, False),
        (status(Warmth.COLD), Safety.SAFE, True),
        (status(Warmth.COLD), Safety.UNKNOWN, True),
        (status(Warmth.FAILED, WarmReason.RETRY, Outcome.CRASHED), Safety.SAFE, False),
    ],
)
def test_the_cache_is_switched_on_where_it_is_safe_or_was_seen_to_work(
    of: ModelStatus, safety: Safety, *, on: bool
) -> None:
    assert trusted(of, [check_runtime(safety)]) is on


def ran(outcome: Outcome = Outcome.WARMED, build: str = "b1", *, cached: bool = True, workload: str = "") -> Run:
    made = Pass(1.0, 1.0, 1, 0, int(cached), 0)
    libraries = Libraries((SyclRuntime(Path("/venv/lib/libsycl.so.8"), build, 2),))
    digest = workload or status().model.workload.digest
    return replace(make_run(), outcome=outcome, workload=digest, passes=(made,), libraries=libraries)


@pytest.mark.parametrize(
    ("runs", "on"),
    [
        ([ran()], True),
        ([ran(Outcome.UNPROVEN)], True),
        ([ran(build="b2")], False),
        ([ran(cached=False)], False),
        ([ran(workload="another")], False),
        ([ran(Outcome.FAILED)], False),
        ([ran(Outcome.FAILED), ran()], True),
        ([ran(Outcome.CRASHED), ran()], False),
        ([replace(ran(), libraries=None)], False),
    ],
)
def test_what_ran_well_with_this_build_of_the_runtime_is_trusted_with_another_driver(
    runs: Sequence[Run], *, on: bool
) -> None:
    cold = status(Warmth.COLD, WarmReason.DRIVER)

    assert trusted(cold, [check_runtime(Safety.UNSAFE)], runs) is on
    unsafe = [check_runtime(Safety.UNSAFE)]
    made = diagnose(cold, runtimes=unsafe, runs=runs, store=STORE, uid=1000, built_from=built_from)
    assert (Cause.UNSAFE in {one.cause for one in made.explanations}) is not on


def test_a_runtime_that_no_run_loaded_is_not_called_the_program_s() -> None:
    cold, unsafe = status(Warmth.COLD, WarmReason.NEVER), [check_runtime(Safety.UNSAFE)]
    seen = diagnose(cold, runtimes=unsafe, runs=[ran(build="b2")], store=STORE, uid=1000, built_from=built_from)
    for made, is_its in ((ask(cold, runtimes=unsafe), False), (seen, True)):
        (found,) = [one.message for one in made.explanations if one.cause is Cause.UNSAFE]
        assert found.startswith("its SYCL runtime") is is_its
        assert found.startswith("should its program use SYCL, ") is not is_its
        assert ("\nIts SYCL runtimes\n" in diagnosis.why(made, LOOK)) is is_its


def test_before_a_model_s_first_run_it_is_said_what_tells_what_it_will_compile() -> None:
    never, driver = (ask(status(Warmth.COLD, why)).explanations[0] for why in (WarmReason.NEVER, WarmReason.DRIVER))
    assert never.message.endswith("compiled already: xpucachectl why net --programs")
    assert "--programs" not in driver.message


def test_above_the_variables_stands_what_is_unsafe() -> None:
    cold = ask(status(Warmth.COLD, WarmReason.NEVER), runtimes=[check_runtime(Safety.UNSAFE)])
    warm = ask(runtimes=[check_runtime(Safety.UNSAFE)])

    assert any("unsafe" in line for line in diagnosis.caution(cold))
    assert any("the cache is off here, and each start compiles all" in line for line in diagnosis.caution(cold))
    assert "without a crash" in diagnosis.caution(warm)[-1]
    assert diagnosis.caution(ask(runtimes=[check_runtime(Safety.SAFE)])) == ()


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("app.service", True),
        ("app@1-2.service", True),
        ("machine-x\\x2dy.scope", True),
        ("app", False),
        ("../app.service", False),
        ("-.slice", False),
        ("app.service\n", False),
    ],
)
def test_a_unit_is_named_whole(text: str, *, is_one: bool) -> None:
    assert is_unit(text) is is_one


# -- figures ----------------------------------------------------------------------------------------------------------


def run(number: int, *, warm: float, host: str = "h1", outcome: Outcome = Outcome.WARMED, cold: float = 0) -> Run:
    passes: tuple[Pass, ...] = (Pass(warm, warm, 1 << 30, 0, 0, 17),)
    if cold:
        passes = (Pass(cold, cold, 1 << 30, 0, 17, 0), *passes)
    at = NOW + timedelta(hours=number)
    one = replace(make_run(), id=number, started=at, finished=at, outcome=outcome, host=host)
    return replace(one, passes=passes, trials=())


def figure(made: Sequence[Baseline], which: Figure, host: str = "h1") -> Baseline:
    (one,) = [one for one in made if one.figure is which and one.host == host]
    return one


def test_the_newest_is_compared_with_the_median_of_those_before() -> None:
    made = figure(baselines([run(n, warm=w) for n, w in enumerate((1.0, 1.1, 0.9, 1.0, 3.0))]), Figure.WARM)

    assert (made.newest, made.median, made.samples, made.worse) == (3.0, 1.0, 5, True)
    assert made.deviation == pytest.approx(0.05)
    assert made.at == NOW + timedelta(hours=4)


@pytest.mark.parametrize(
    ("before", "newest", "worse"),
    [
        ((10.0, 10.0, 10.0), 100.0, False),  # too few to know
        ((10.0, 10.0, 10.0, 10.0), 10.9, False),  # within a tenth
        ((10.0, 10.0, 10.0, 10.0), 11.5, True),
        ((10.0, 14.0, 8.0, 12.0), 14.5, False),  # it was never still
        ((0.10, 0.10, 0.10, 0.10), 0.25, False),  # what any host adds
        ((10.0, 10.0, 10.0, 10.0), 1.0, False),  # faster is not worse
        ((10.0, 500.0, 10.0, 10.0, 10.0), 12.0, True),  # one bad night does not hide it
    ],
)
def test_worse_is_more_than_chance(before: Sequence[float], newest: float, *, worse: bool) -> None:
    runs = [run(number, warm=seconds) for number, seconds in enumerate((*before, newest))]

    assert figure(baselines(runs), Figure.WARM).worse is worse


@pytest.mark.parametrize(
    ("of", "least"),
    [
        (Figure.COLD, 0.5),
        (Figure.WARM, 0.2),
        (Figure.STEADY, 0.001),
        (Figure.CPU, 0.5),
        (Figure.MEMORY, 32 << 20),
        (Figure.DEVICE_MEMORY, 32 << 20),
    ],
)
def test_chance_is_the_most_of_what_hosts_add_a_tenth_and_four_deviations(of: Figure, least: float) -> None:
    assert limit(of, 0.0, 0.0) == least
    assert limit(of, 1e9, 0.0) == 1e8
    assert limit(of, 1e9, 1e8) == pytest.approx(4 * 1.4826 * 1e8)


def test_environments_and_failures_are_kept_apart() -> None:
    runs = [run(1, warm=1), run(2, warm=5, host="h2"), run(3, warm=9, outcome=Outcome.FAILED), run(4, warm=2, cold=60)]
    made = baselines(runs)

    assert figure(made, Figure.WARM).median == 1
    assert figure(made, Figure.WARM, "h2").median is None
    assert figure(made, Figure.COLD).newest == 60


def test_variants_have_figures_of_their_own() -> None:
    trials = tuple(
        Trial(
            Variant("xpu:0", precision),
            Outcome.WARMED,
            (Pass(seconds, 1, 1, 0, 0, 3),),
            figures=(Figures(steady_seconds=0.01, device_memory=1 << 20),),
        )
        for precision, seconds in (("float16", 1.0), ("float32", 2.0))
    )
    made = baselines([replace(run(1, warm=9), trials=trials)])

    assert {(one.variant, one.newest) for one in made if one.figure is Figure.WARM} == {
        ("xpu:0 float16", 1.0),
        ("xpu:0 float32", 2.0),
    }
    assert {one.figure for one in made} >= {Figure.STEADY, Figure.DEVICE_MEMORY}


def test_what_is_worse_is_shown_and_is_a_reason() -> None:
    made = baselines([run(n, warm=w, cold=60) for n, w in enumerate((1.0, 1.0, 1.0, 1.0, 3.0))])
    found = ask(figures=made).explanations
    table = diagnosis.history(made, LOOK)

    assert {one.cause for one in found} == {Cause.SLOWER}
    assert found[0].command == "xpucachectl model history net"
    assert "worse" in table
    assert "usually" in diagnosis.usual(made, LOOK)
    assert diagnosis.history((), LOOK) == "no figures yet"


# -- the processes of a unit ------------------------------------------------------------------------------------------


@pytest.mark.flow
def test_the_processes_of_a_unit_are_found_by_their_group(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"SYCL_CACHE_PERSISTENT": "1", "SYCL_CACHE_DIR": "/srv/cache", "TOKEN": "secret"},
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        # Making a group takes a systemd; what the kernel says of one is a line in a file.
        place = tmp_path / str(child.pid)
        place.mkdir()
        (place / "cgroup").write_text("0::/system.slice/app.service/worker\n")
        (place / "stat").symlink_to(f"/proc/{child.pid}/stat")
        seen = process_table.of_units(["app.service", "worker.service", "p.service"], places=HostRoots(proc=tmp_path))
        child.communicate(b"\n")

    assert list(seen) == ["app.service"]
    (one,) = seen["app.service"]
    assert one.pid == child.pid
    assert sycl.discovery.locate(one) == (Path("/srv/cache"), f"process {child.pid} ({one.name})")
    assert sycl.discovery.enabled(one)
    assert not sycl.discovery.enabled(replace(one, variables={}))
    assert "TOKEN" not in one.variables
    assert process_table.of_units(()) == {}


def test_a_group_that_somebody_made_below_his_own_is_no_unit_of_the_host_s(tmp_path: Path) -> None:
    def unit(text: str) -> str:
        (tmp_path / "cgroup").write_text(text)
        return process_units.unit_of(tmp_path / "cgroup")

    mine, other = f"user@{os.getuid()}.service", f"user@{os.getuid() + 1}.service"
    assert unit("0::/system.slice/app.service\n") == "app.service"
    assert unit("9:name=systemd:/system.slice/app.service\n4:memory:/x.scope\n0::/\n") == "app.service"
    assert unit("0::/system.slice/docker-1.scope/x/app.service\n") == "docker-1.scope"
    assert unit(f"0::/user.slice/user-1.slice/{other}/app.slice/app.service\n") == other
    assert unit("0::/user.slice/user-1.slice/session-1.scope\n") == "session-1.scope"
    # Who runs in ours is ourselves.
    assert unit(f"0::/user.slice/user-1.slice/{mine}/app.slice/app.service/y.scope\n") == "app.service"
    assert unit(f"0::/user.slice/user-1.slice/{mine}/app.slice/\x1b[2J.service\n") == mine
    assert unit("4:memory:/app.service\n0::/a.slice\n") == ""


def test_where_there_is_no_room_to_look_it_is_not_said_that_no_program_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_group: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("xpucached.host.process_units.unit_of", full)
    with pytest.raises(OSError, match="Too many"):
        process_table.of_units(["app.service"])
    (found,) = ask(applications=None).explanations
    assert found.cause is Cause.HIDDEN
    assert "unknown" in found.message


# -- with a runtime that really crashes -------------------------------------------------------------------------------


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_model_that_crashes_with_the_cache_on_is_told_from_one_that_is_broken(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime]
) -> None:
    real = runtime("rt2025.3")
    variables = f"{{ LD_LIBRARY_PATH = '{real.lib}', OCL_ICD_FILENAMES = '{real.driver}' }}"
    with daemon(home, short_dir) as one:
        one.configure(f"[driver]\nvariables = {variables}\n[schedule]\nsettle = '0.2s'\nprewarm = false\n")
        one.start()
        one.ctl("model", "add", "bf16", "--", *real.builder("library"))
        one.ctl("model", "add", "plain", "--", *real.builder("parts"))

        # Before anybody ran them: nobody knows whether they are of the kind that crashes.
        assert one.ask("why", "plain")["explanations"][0]["cause"] == "never-run"  # type: ignore[index]
        assert one.ask("env", "plain")["SYCL_CACHE_PERSISTENT"] == "0"
        assert one.ctl("prewarm", "plain", "--timeout", "60s").returncode == 0
        assert one.ctl("prewarm", "bf16", check=1).returncode == 1

        (run,) = one.rows("runs", "bf16")
        assert run["outcome"] == "crashed-with-cache"
        assert "SIGSEGV with the cache on; with the cache off it ran to its end" in str(run["detail"])
        first = one.ask("why", "bf16")["explanations"][0]  # type: ignore[index]
        assert (first["cause"], first["command"]) == ("crashed-with-cache", "xpucachectl env bf16")
        assert one.ask("env", "bf16")["SYCL_CACHE_PERSISTENT"] == "0"
        assert one.ctl("env", "bf16", "--systemd").stdout.startswith("# ")
        # The other one ran with the same runtime, and is told to go on.
        assert one.ask("why", "plain")["explanations"] == []
        assert one.ask("env", "plain")["SYCL_CACHE_PERSISTENT"] == "1"
        problems = {row["code"]: row for row in one.ask("status")["problems"]}  # type: ignore[attr-defined]
        assert str(real.lib) in problems["unsafe-runtime"]["message"]
        hint = problems["unsafe-runtime"]["hint"]
        assert hint.endswith("crashed (bf16); another runtime may mend it, seen by: xpucachectl prewarm bf16")
        assert {row["figure"] for row in one.rows("model", "history", "plain")} >= {"cold-seconds", "warm-seconds"}
        assert "Usually" in one.ctl("model", "show", "plain").stdout
        assert one.end() == 0


def test_the_passes_of_all_variants_are_added_and_the_first_failure_is_theirs() -> None:
    first, second = Pass(1.0, 2.0, 30, 0, 4, 0), Pass(0.5, 0.25, 10, 0, 0, 4)
    failed, ended = Pass(3.0, 1.0, 20, 5, 1, 2), Pass(1.0, 1.0, 5, -9, 0, 0)

    def of(*passes: Pass) -> Trial:
        return Trial(Variant(), Outcome.WARMED, passes)

    assert summed([]) == ()
    assert summed([of(first, second)]) == (first, second)
    # The second variant needed no second pass: its first one was proof.
    assert summed([of(first, second), of(failed)]) == (Pass(4.0, 3.0, 30, 5, 5, 2), Pass(3.5, 1.25, 20, 5, 1, 6))
    assert [one.exit_status for one in summed([of(first), of(failed), of(ended)])] == [5]
    assert [one.exit_status for one in summed([of(ended), of(failed)])] == [-9]
