"""Whose entries those are that replay made, and those that a program compiled from source while it ran."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests import REPOSITORY
from tests.flow.test_daemon import driven, switch
from tests.support import catalogs
from tests.support.daemons import daemon
from tests.unit.catalog.test_catalog import NEW, NOW, OLD, architecture, entry, host, model, scan
from xpucached.catalog import Catalog
from xpucached.catalog.builds import record_build
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.entries import all_entries, entry_page, find_entry
from xpucached.catalog.figures import model_sizes
from xpucached.catalog.models import add_model, remove_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.scans import record_scan
from xpucached.catalog.surveys import record_survey
from xpucached.domain.models import Attribution, Outcome, Pass, WarmReason
from xpucached.domain.names import ModelName
from xpucached.domain.plans import Built, Policy
from xpucached.domain.queries import EntryQuery
from xpucached.domain.stores import ImageFormat
from xpucached.domain.targets import Origin
from xpucached.kinds.table import lineages
from xpucached.planning.prewarm import plan_prewarm
from xpucached.planning.replay import ReplayScope, plan_replay
from xpucached.service.evict_decision import decided

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemons import Daemon
    from tests.support.runtimes import Runtime
    from xpucached.domain.stores import Entry
    from xpucached.domain.targets import Target

NET = ModelName("net")
OLDS = tuple(entry(f"1/{number}/3/4/0", image=ImageFormat.SPIRV) for number in range(4))
NEWS = tuple(
    entry(f"2/{number}/3/4/0", environment=NEW, created=NOW, digest="ab", image=ImageFormat.SPIRV)
    for number in range(4)
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """Return a catalog in which replay has rebuilt three of the four entries that a model was seen to use."""
    opened = catalogs.fresh(tmp_path / "catalog.sqlite")
    opened.write(record_survey, host(OLD))
    opened.write(add_model, model())
    opened.write(add_model, model("other"))
    opened.write(record_scan, scan(*OLDS), architecture)
    begun = opened.write(begin_run, model(), WarmReason.NEVER, host(OLD).signature, NOW)
    attributed(opened, begun.id, OLDS, OLD)
    opened.write(record_survey, host(NEW))
    for one in NEWS[:3]:
        opened.write(record_build, Built(one.id, NEW, Origin.REBUILT, "two", 10, 1.0, "ab", (NET,)), NOW)
    opened.write(record_scan, scan(*OLDS, *NEWS[:3]), architecture)
    yield opened
    opened.close()


def attributed(catalog: Catalog, number: int, entries: tuple[Entry, ...], of: Target) -> None:
    ids = frozenset(one.id for one in entries)
    passes = (Pass(1.0, 1.0, 1, 0, 0, len(ids)),)
    catalog.write(finish_run, number, Outcome.WARMED, passes, Attribution(used=ids), (of,), "", "", NOW)


def listed(catalog: Catalog) -> set[str]:
    present = frozenset({NEW.fingerprint})
    found = catalog.read(entry_page, EntryQuery(model=NET, driver="current"), present=present, now=NOW)
    return {one.entry.id.key for one in found.entries}


def test_what_replay_made_is_inherited_and_doubles_nothing(catalog: Catalog) -> None:
    assert listed(catalog) == {one.id.key for one in NEWS[:3]}
    rebuilt = catalog.read(find_entry, NEWS[0].id.ref)
    assert (rebuilt.models, rebuilt.inherited) == ((NET,), (NET,))
    seen = catalog.read(find_entry, OLDS[0].id.ref)
    assert (seen.models, seen.inherited) == ((NET,), ())
    # Four programs, three of them for both drivers.
    assert catalog.read(model_sizes) == {NET: (4, 4 * 4096)}
    coverage = next(one for one in catalog.read(model_coverage) if one.model == NET)
    assert (coverage.entries, coverage.remaining, coverage.inherited) == (4, 4, 3)
    [warm] = plan_prewarm([model()], [coverage], host(NEW), Policy(), NOW).warm
    assert warm.detail.endswith("; for that 3 entries are there already, of 4 that it had")
    # It is the source of the next replay, too, though the model never ran under this driver.
    scope = ReplayScope(models={NET})
    newest = replace(NEW, toolchain="1.7")
    plan = plan_replay(catalog.read(all_entries), host(newest), {NET: model()}, (), NOW, scope, lineages=lineages())
    assert [one.reason.value for one in plan.rebuild] == ["model"] * 4
    assert {one.entry.entry.environment for one in plan.rebuild if one.entry.inherited} == {NEW}


def test_when_the_model_runs_what_it_is_seen_to_use_takes_the_place(catalog: Catalog) -> None:
    catalog.write(record_scan, scan(*OLDS, *NEWS), architecture)
    begun = catalog.write(begin_run, model(), WarmReason.DRIVER, host(NEW).signature, NOW)
    # It uses two of the three, and one that replay did not make.
    attributed(catalog, begun.id, (NEWS[0], NEWS[1], NEWS[3]), NEW)
    assert listed(catalog) == {NEWS[number].id.key for number in (0, 1, 3)}
    assert all(not one.inherited for one in catalog.read(all_entries))
    # And no later look gives it back.
    changed = replace(NEWS[2], stamp="touched")
    catalog.write(record_scan, scan(*OLDS, NEWS[0], NEWS[1], changed, NEWS[3]), architecture)
    assert listed(catalog) == {NEWS[number].id.key for number in (0, 1, 3)}


def test_a_run_that_fails_takes_nothing_away(catalog: Catalog) -> None:
    begun = catalog.write(begin_run, model(), WarmReason.DRIVER, host(NEW).signature, NOW)
    catalog.write(finish_run, begun.id, Outcome.FAILED, (), Attribution(), (NEW,), "", "", NOW)
    assert listed(catalog) == {one.id.key for one in NEWS[:3]}
    catalog.write(remove_model, NET)
    assert listed(catalog) == set()


def test_what_somebody_else_compiled_there_is_not_inherited(catalog: Catalog) -> None:
    theirs = entry("2/9/3/4/0", environment=NEW, digest="theirs")
    catalog.write(record_build, Built(theirs.id, NEW, Origin.REBUILT, "two", 10, 1.0, "ours", (NET,)), NOW)
    catalog.write(record_scan, scan(*OLDS, *NEWS, theirs), architecture)
    assert catalog.read(find_entry, theirs.id.ref).models == ()


def test_a_generation_that_somebody_else_made_in_between_takes_nothing_away(catalog: Catalog) -> None:
    catalog.write(record_scan, scan(*OLDS, *NEWS), architecture)
    assert catalog.read(find_entry, NEWS[3].id.ref).models == ()
    newest = replace(NEW, toolchain="1.7")
    entries = catalog.read(all_entries)
    plan = plan_replay(entries, host(newest), {NET: model()}, (), NOW, lineages=lineages())

    assert {one.entry.entry.id for one in plan.rebuild} == {one.id for one in NEWS}
    assert [one.entry.models for one in plan.rebuild] == [(NET,)] * 4


@pytest.mark.parametrize("pinned", [True, False])
def test_what_a_pinned_model_inherited_is_not_evicted(catalog: Catalog, *, pinned: bool) -> None:
    pinning = replace(model(), pinned=pinned)
    catalog.write(add_model, pinning)
    policy = Policy(max_bytes=1, grace=0.0)
    plan = decided(catalog, host(NEW), frozenset(), {NET: pinning}, policy, NOW, asked=True)
    gone = {one.entry.entry.id.key for one in plan.evict}
    assert {one.id.key for one in OLDS} <= gone
    assert {one.id.key for one in NEWS[:3]} <= gone if not pinned else gone.isdisjoint(one.id.key for one in NEWS[:3])
    # By itself the daemon takes nothing that it would only make again.
    alone = decided(catalog, host(NEW), frozenset(), {NET: pinning}, policy, NOW, asked=False)
    assert {one.entry.entry.id.key for one in alone.evict}.isdisjoint(one.id.key for one in NEWS[:3])


# -- with real runtimes -----------------------------------------------------------------------------------------------


@pytest.fixture
def keeper(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that is not started yet."""
    with daemon(home, short_dir) as one:
        yield one


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_after_a_real_replay_a_model_has_its_entries_before_it_runs(
    keeper: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    link = tmp_path / "driver"
    driven(keeper, first, link)
    with keeper.config.open("a") as file:
        file.write("prewarm = false\nreplay = false\n")
    keeper.start()
    names = keeper.add_models(first)
    keeper.ctl("prewarm", *names)
    before = {name: keeper.ask("model", "show", name)["entries"] for name in names}
    switch(link, second)
    keeper.until(lambda: {keeper.ask("model", "show", name)["reason"] for name in names} == {"driver-changed"})
    keeper.ctl("replay")
    for name in names:
        present = keeper.rows("ls", "--model", name, "--driver", "current")
        assert len(present) == before[name]
        assert all(name in one["inherited"] for one in present)  # type: ignore[operator]
        shown = keeper.ask("model", "show", name)
        assert (shown["entries"], shown["warmth"]) == (before[name], "cold")
        assert f"for that {before[name]} entries are there already" in str(shown["why"])
        assert "not seen in a run yet" in keeper.ctl("show", str(present[0]["ref"])).stdout
    for name in names:
        keeper.ctl("prewarm", name)
        present = keeper.rows("ls", "--model", name, "--driver", "current")
        assert [name in one["inherited"] for one in present] == [False] * before[name]  # type: ignore[operator]
        assert keeper.ask("model", "show", name)["entries"] == before[name]


COMPILER = shutil.which("g++")


@pytest.mark.runtime
@pytest.mark.timeout(600)
@pytest.mark.skipif(COMPILER is None, reason="no g++ to build a program that compiles at run time")
def test_what_a_program_compiles_from_source_belongs_to_its_model(
    keeper: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    real = runtime("rt2026.2")
    program = tmp_path / "rtc"
    source = REPOSITORY / "tests" / "support" / "application" / "rtc.cpp"
    options = ["-std=c++17", "-w", f"-I{real.root}/include", f"-L{real.lib}", "-lsycl", "-Wl,--allow-shlib-undefined"]
    subprocess.run([str(COMPILER), str(source), "-o", str(program), *options], check=True)
    driven(keeper, real, tmp_path / "driver", "[policy]\ngrace = '0s'\nmax_bytes = 1\n")
    with keeper.config.open("a") as file:
        file.write("prewarm = false\nevict = false\n")
    keeper.start()
    keeper.ctl("model", "add", "rtc", "--pinned", "--", str(program), "2")
    keeper.ctl("prewarm", "rtc")
    assert keeper.ask("model", "show", "rtc")["warmth"] == "warm"
    cold, proof = list[dict[str, int]](keeper.rows("runs", "rtc")[0]["passes"])  # type: ignore[call-overload]
    assert (cold["created"], proof["created"], proof["used"]) == (2, 0, 2)
    keys = {str(one["key"]) for one in keeper.rows("ls", "--model", "rtc")}
    assert any(key.startswith("ext_kernel_compiler/") for key in keys)
    assert keys == {str(one["key"]) for one in keeper.rows("ls")}
    # A budget of nothing takes nothing that a pinned model needs.
    assert keeper.ask("evict")["report"]["removed"] == []  # type: ignore[index]
    # And without its intermediate code it is not warm: it would compile for half a minute.
    for path in keeper.home.rglob("ir.bin"):
        path.unlink()
    keeper.ctl("scan")
    assert keeper.ask("model", "show", "rtc")["reason"] == "entries-lost"
