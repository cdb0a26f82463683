"""Models that somebody registers: as many as every list of them can hold."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support import catalogs
from xpucached.catalog import models
from xpucached.catalog.models import add_model, all_models, register_model
from xpucached.domain.models import Added, Model, Workload
from xpucached.domain.names import ModelName
from xpucached.errors import Conflict


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
