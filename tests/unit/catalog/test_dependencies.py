"""What programs needed when they were proven: kept with the newest proof of each kind, and with no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support import catalogs
from tests.unit.catalog.test_catalog import NEW, NOW, OLD, model
from xpucached.catalog import dependencies
from xpucached.catalog.dependencies import noted_runs, record_dependencies, refresh_dependencies, run_dependencies
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.domain.dependencies import Dependency, Role
from xpucached.domain.models import Attribution, Model, Outcome, WarmReason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.catalog import Catalog
    from xpucached.domain.targets import Target

SCRIPT: Final = Dependency(Role.SCRIPT, "/opt/app.py", 10, 11, 12, 13, "digest", "", unsettled=True)
PACKAGE: Final = Dependency(Role.PACKAGE, "/opt/torch.dist-info/RECORD", 20, 21, 22, 23, "other", "torch 2.6")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = catalogs.fresh(tmp_path / "catalog.sqlite")
    opened.write(add_model, model())
    yield opened
    opened.close()


def ended(
    catalog: Catalog,
    *targets: Target,
    of: Model | None = None,
    host: str = "here",
    outcome: Outcome = Outcome.WARMED,
) -> int:
    """Let a run of a model end that needed its script."""
    begun = catalog.write(begin_run, of or model(), WarmReason.MANUAL, host, NOW)
    attribution = Attribution(frozenset(), frozenset())
    catalog.write(finish_run, begun.id, outcome, (), attribution, targets, "", "", NOW, needs=(SCRIPT,))
    return begun.id


def noted(catalog: Catalog) -> list[int]:
    return sorted(catalog.read(noted_runs, range(100)))


def test_what_a_run_needed_comes_back_as_it_was(catalog: Catalog) -> None:
    number = ended(catalog, OLD)
    assert catalog.read(run_dependencies, [number, number + 1]) == {number: (SCRIPT,)}
    assert catalog.read(run_dependencies, []) == {}
    assert catalog.read(noted_runs, [number + 1]) == frozenset()
    catalog.write(record_dependencies, number, (PACKAGE, SCRIPT))
    assert catalog.read(run_dependencies, [number]) == {number: (PACKAGE, SCRIPT)}


def test_times_are_noted_anew_of_that_run_and_of_none_that_is_forgotten(catalog: Catalog) -> None:
    first, second = ended(catalog, OLD), ended(catalog, NEW)
    catalog.write(refresh_dependencies, second, (replace(SCRIPT, modified=99),))
    assert catalog.read(run_dependencies, [first, second]) == {
        first: (SCRIPT,),
        second: (replace(SCRIPT, modified=99),),
    }
    catalog.write(refresh_dependencies, second + 1, (SCRIPT,))
    assert noted(catalog) == [first, second]


def test_a_run_that_proved_nothing_leaves_what_is_known(catalog: Catalog) -> None:
    proof = ended(catalog, OLD)
    ended(catalog, OLD, outcome=Outcome.UNPROVEN)
    assert noted(catalog) == [proof]
    # Nor is it noted if it comes by another way.
    failed = ended(catalog, OLD, outcome=Outcome.FAILED)
    catalog.write(record_dependencies, failed, (SCRIPT,))
    assert noted(catalog) == [proof]


def test_the_newest_proof_for_the_same_targets_takes_the_place_of_the_one_before(catalog: Catalog) -> None:
    ended(catalog, OLD)
    other = ended(catalog, NEW)
    both = ended(catalog, OLD, NEW)
    again = ended(catalog, OLD)
    assert noted(catalog) == [other, both, again]


def test_a_proof_with_another_driver_beside_it_takes_no_other_s_place(catalog: Catalog) -> None:
    """That driver may go again, and with it what the later proof counts for."""
    without = ended(catalog, OLD, host="here")
    beside = ended(catalog, OLD, host="with another driver")
    assert noted(catalog) == [without, beside]


def test_a_proof_with_other_variables_takes_no_other_s_place(catalog: Catalog) -> None:
    """The setting may be taken back, and with it the earlier proof counts again."""
    without = ended(catalog, OLD, host="here")
    ended(catalog, OLD, host="here-given")
    given = ended(catalog, OLD, host="here-given")
    assert noted(catalog) == [without, given]


def test_without_targets_the_host_tells_proofs_apart(catalog: Catalog) -> None:
    ended(catalog, host="here")
    there = ended(catalog, host="there")
    here = ended(catalog, host="here")
    assert noted(catalog) == [there, here]


def test_each_workload_and_each_model_has_its_own(catalog: Catalog) -> None:
    first = ended(catalog, OLD)
    catalog.write(add_model, model("other"))
    other = ended(catalog, OLD, of=model("other"))
    catalog.write(add_model, model(command="python3.12"))
    second = ended(catalog, OLD, of=model(command="python3.12"))
    assert noted(catalog) == [first, other, second]


def test_so_many_proofs_are_kept_and_no_more(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "_KEPT", 3)
    runs = [ended(catalog, replace(OLD, toolchain=str(number))) for number in range(3)]
    assert noted(catalog) == runs
    runs.append(ended(catalog, NEW))
    assert noted(catalog) == runs[1:]
