"""Models that somebody registers: as many as every list of them can hold."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from tests.support import catalogs
from xpucached.catalog import models
from xpucached.catalog.models import (
    add_model,
    all_models,
    checked_models,
    find_model,
    models_by_name,
    register_model,
    registered_model,
    remove_model,
)
from xpucached.catalog.tables import MODELS
from xpucached.domain.models import REGISTERED, Added, Model, Workload
from xpucached.domain.names import ModelName
from xpucached.errors import Conflict, NotFound


def test_no_more_are_registered_than_a_list_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MOST", 2)

    def model(name: str) -> Model:
        return Model(ModelName(name), Workload(("/bin/true",), Path("/")))

    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:

        def register(one: Model, *, replaces: bool = False) -> Added:
            return catalog.write(register_model, one, replaces=replaces, if_changed=False)

        # Those of files have a bound of their own.
        catalog.write(add_model, replace(model("file"), source="/etc/models.d/file.toml"))
        for name in ("a", "b"):
            assert register(model(name)) is Added.REGISTERED
        with pytest.raises(Conflict, match="2 models are registered"):
            register(model("c"))
        assert register(replace(model("a"), pinned=True), replaces=True) is Added.REPLACED
        assert [one.name for one in catalog.read(all_models)] == ["a", "b", "file"]


FILE = "/etc/models.d/file.toml"


@pytest.mark.parametrize(
    ("source", "changed", "replaces", "if_changed", "found"),
    [
        (None, False, False, False, Added.REGISTERED),
        (None, False, True, True, Added.REGISTERED),
        (REGISTERED, False, False, False, Added.SAME),
        (REGISTERED, False, False, True, Added.SAME),
        # Who says that it is to be replaced gets it anew, though nothing is another.
        (REGISTERED, False, True, False, Added.REPLACED),
        (REGISTERED, True, False, False, None),
        (REGISTERED, True, True, False, Added.REPLACED),
        (REGISTERED, True, False, True, Added.REPLACED),
        (FILE, False, False, False, Added.SAME),
        (FILE, False, True, False, Added.SAME),
        (FILE, True, False, False, None),
        (FILE, True, True, True, None),
    ],
)
def test_a_model_of_that_name_stays_unless_it_is_to_be_replaced(
    tmp_path: Path,
    source: str | None,
    changed: bool,  # noqa: FBT001 - a column of the table
    replaces: bool,  # noqa: FBT001
    if_changed: bool,  # noqa: FBT001
    found: Added | None,
) -> None:
    net = Model(ModelName("net"), Workload(("/bin/true",), Path("/")))
    other = replace(net, priority=7, workload=replace(net.workload, timeout=9.0))
    given = other if changed else net
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        if source is not None:
            catalog.write(add_model, replace(net, source=source))
        if found is None:
            why = "is registered already" if source == REGISTERED else f"is declared in {FILE}"
            with pytest.raises(Conflict, match=f"net {why}, and differs in: priority, timeout"):
                catalog.write(register_model, given, replaces=replaces, if_changed=if_changed)
            assert catalog.read(all_models) == (replace(net, source=source or ""),)
        else:
            assert catalog.write(register_model, given, replaces=replaces, if_changed=if_changed) is found
            assert catalog.read(all_models) == (replace(given, source=source or REGISTERED),)


def test_only_a_registered_model_whose_command_is_what_it_was_is_taken_over(tmp_path: Path) -> None:
    net = Model(ModelName("net"), Workload(("/bin/true",), Path("/")))
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        catalog.write(add_model, net)
        catalog.write(add_model, replace(net, name=ModelName("file"), source=FILE))
        names = [ModelName(name) for name in ("net", "file", "none")]
        assert [catalog.read(registered_model, name) for name in names] == [net, None, None]
        catalog.write(lambda connection: connection.execute(sa.update(MODELS).values(command=["/bin/evil"])))
        assert catalog.read(registered_model, net.name) is None


def test_a_model_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    net = Model(ModelName("net"), Workload(("/bin/true",), Path("/")))
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        catalog.write(add_model, net)
        assert catalog.read(find_model, net.name) == net
        assert catalog.read(models_by_name) == {net.name: net}
        assert catalog.read(checked_models, ["net"]) == catalog.read(checked_models, []) == (net,)
        for ask in (
            lambda: catalog.read(find_model, ModelName("nett")),
            lambda: catalog.read(checked_models, ["net", "nett"]),
            lambda: catalog.write(remove_model, ModelName("nett")),
        ):
            with pytest.raises(NotFound, match="nett"):
                ask()
        catalog.write(remove_model, net.name)
        assert catalog.read(all_models) == ()
