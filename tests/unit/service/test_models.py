"""Models that are declared in files: what cannot be read just now is not taken for removed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
from typing import TYPE_CHECKING

from tests.support import catalogs
from xpucached.catalog.models import all_models
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service
from xpucached.service.context import Context
from xpucached.settings import loading

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def listing_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = os.listdir

    def fail(place: str | Path) -> list[str]:
        if os.fspath(place) == os.fspath(folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return listdir(place)

    monkeypatch.setattr(os, "listdir", fail)


def test_models_whose_directory_cannot_be_read_just_now_are_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models.d"
    folder.mkdir()
    (folder / "net.toml").write_text('command = ["/bin/true"]\n', encoding="utf-8")
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "XPUCACHED_PATHS_MODELS": str(folder)}
    config = loading.load(None, user=True, environ=environ)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        models = Service(Context(config, catalog, {}), ProcessStarter({}, "test")).models

        def known() -> list[str]:
            asyncio.run(models.load())
            return [one.name for one in catalog.read(all_models)]

        assert known() == ["net"]
        with monkeypatch.context() as disk:
            listing_fails(folder, disk)
            assert known() == ["net"]
            assert [one.code for one in models.problems] == ["bad-settings"]
        assert known() == ["net"]
        # One that is removed is forgotten.
        (folder / "net.toml").unlink()
        assert known() == []


def test_a_model_of_the_host_s_directory_whose_file_is_damaged_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models.d"
    folder.mkdir()
    file = folder / "net.toml"
    name = pwd.getpwuid(os.getuid()).pw_name
    file.write_text(f'user = "{name}"\ncommand = ["/bin/true"]\n', encoding="utf-8")
    monkeypatch.setattr(loading, "_HOST_MODELS", folder)
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    config = loading.load(None, user=True, environ=environ, worker=True)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        models = Service(Context(config, catalog, {}), ProcessStarter({}, "test")).models
        asyncio.run(models.load())
        file.write_text(f'user = "{name}"\ncommand = ["/bin/true"]\npriority = "?"\n', encoding="utf-8")
        asyncio.run(models.load())
        assert [one.name for one in catalog.read(all_models)] == ["net"]
