"""Models that are declared in files: what cannot be read just now is not taken for removed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests import INSTANCE
from tests.support import catalogs
from tests.support.api_stub import make_model
from xpucached.api.requests import AddModel
from xpucached.catalog.models import all_models
from xpucached.cli import capture_env
from xpucached.domain.models import Added, WarmReason, Warmth
from xpucached.domain.names import ModelName
from xpucached.errors import Conflict
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service
from xpucached.service.context import Context
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def listing_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = os.listdir

    def fail(place: str | Path) -> list[str]:
        if os.fspath(place) == os.fspath(folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return listdir(place)

    monkeypatch.setattr(os, "listdir", fail)


COMMANDS: Final = ("/bin/true",), ("/bin/false",)


def test_the_same_thing_twice_is_no_error_and_another_one_is(tmp_path: Path) -> None:
    """By command alone, and beside a file: who owns a model changes it."""
    folder = tmp_path / "models.d"
    folder.mkdir()
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "XPUCACHED_PATHS_MODELS": str(folder)}
    config = loading.load(None, user=True, environ=environ)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        context = Context(config, catalog, {})
        service = Service(context, ProcessStarter({}, INSTANCE))
        models = service.models
        plain = AddModel(name=ModelName("net"), command=COMMANDS[0], directory=Path("/"), timeout=60.0)
        other = replace(plain, command=COMMANDS[1])

        def add(request: AddModel) -> str:
            before = len(context.events._kept)
            added = asyncio.run(models.add(request))
            assert len(context.events._kept) - before == (added is not Added.SAME)
            return added

        def known() -> list[tuple[str, ...]]:
            return [(one.source, *one.workload.command) for one in catalog.read(all_models)]

        assert [add(plain), add(plain), add(replace(plain, if_changed=True))] == [
            "registered",
            "already-so",
            "already-so",
        ]
        with pytest.raises(Conflict, match=r"and differs in: command, timeout$"):
            add(replace(other, timeout=5.0))
        assert [add(replace(plain, replace=True)), add(replace(other, if_changed=True))] == ["replaced", "replaced"]
        assert known() == [("socket", *COMMANDS[1])]

        # A file that says something else is a conflict; one that says the same is none, and owns it no more.
        file = folder / "net.toml"
        file.write_text('command = ["/bin/true"]\ndirectory = "/"\ntimeout = "60s"\n', encoding="utf-8")
        asyncio.run(models.load())
        assert ([one.code for one in models.problems], known()) == (["conflict"], [("socket", *COMMANDS[1])])
        add(replace(plain, replace=True))
        asyncio.run(models.load())
        assert (models.problems, known()) == ((), [("socket", *COMMANDS[0])])
        # What other compilers cached for it goes with it.
        own = config.paths.cache / "models" / plain.name / "inductor"
        own.mkdir(parents=True)
        (own / "kernel.so").write_bytes(b"x" * 5000)
        (went,) = asyncio.run(models.remove(plain.name)).caches
        assert (own.parent.exists(), went.path, went.files, went.stays) == (False, own.parent, 1, "")
        assert went.allocated >= 5000
        asyncio.run(models.load())
        assert known() == [(str(file), *COMMANDS[0])]
        assert add(plain) == add(replace(plain, replace=True)) == add(replace(plain, if_changed=True)) == "already-so"
        for one in (other, replace(other, replace=True), replace(other, if_changed=True)):
            with pytest.raises(Conflict, match=r"is declared in .*net\.toml, and differs in: command$"):
                add(one)
        assert known() == [(str(file), *COMMANDS[0])]
        # With a file it goes when that has been away for a while; what is wrong with one says nothing.
        own.mkdir(parents=True)
        file.write_text("command = 1", encoding="utf-8")
        asyncio.run(models.load())
        file.unlink()
        asyncio.run(models.load())
        assert (own.exists(), known()) == (True, [])
        (*_, said) = asyncio.run(service.context.events.since(0))
        assert (said.topic, said.fields) == ("model-removed", {"model": plain.name})


def test_who_registers_a_model_hears_when_it_is_warmed(tmp_path: Path) -> None:
    config = loading.load(None, user=True, environ={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        context = Context(config, catalog, {})
        upkeep, cold = Service(context, ProcessStarter({}, INSTANCE)).upkeep, make_model(warmth=Warmth.COLD)
        calm = ", once the host is calm"
        assert upkeep.due(cold) == f"It is warmed by itself as soon as this host has been looked at{calm}"
        context.ready = True
        device = "there is a device for it, which its own variables may lead to (--env)"
        assert upkeep.due(cold) == f"It is warmed by itself as soon as {device}{calm}"
        anywhere = replace(cold, reason=WarmReason.NEVER)
        assert upkeep.due(anywhere) == f"It is warmed by itself in a moment{calm}"
        failed = make_model(warmth=Warmth.FAILED)
        assert upkeep.due(failed) == ""
        shut = (datetime.now().astimezone().hour + 2) % 24 * 60
        context.settings = replace(config, throttle=replace(config.throttle, window=(shut, shut + 30)))
        assert upkeep.due(anywhere).endswith(f"; it waits for its time, {shut // 60:02}:00 to {shut // 60:02}:30")
        context.settings = replace(config, schedule=replace(config.schedule, prewarm=False))
        assert upkeep.due(cold) == upkeep.due(failed) == "It is not warmed by itself, as schedule.prewarm is off"
        assert upkeep.due(make_model()) == ""


def test_a_shell_that_env_set_up_registers_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "xpucached.toml").write_text('[driver]\nvariables = { OCL_ICD_FILENAMES = "/x/libintelocl.so" }\n')
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    config = loading.load(tmp_path / "xpucached.toml", user=True, environ=environ)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        service = Service(Context(config, catalog, {}), ProcessStarter({}, INSTANCE))

        def add(name: str, shell: Mapping[str, str]) -> Added:
            taken = capture_env.capture(("/bin/true",), tmp_path, ("ONE=1",), None, {"PATH": "/bin", **shell})
            request = AddModel(
                name=ModelName(name),
                command=taken.command,
                directory=taken.directory,
                variables=taken.variables,
                store=taken.store,
            )
            return asyncio.run(service.models.add(request))

        assert add("net", {}) is Added.REGISTERED
        place = config.paths.cache / "models" / "net" / "inductor"
        place.mkdir(parents=True)
        (place / "kernel.so").touch()
        shell = asyncio.run(service.explainer.variables(ModelName("net")))
        assert shell.keys() >= {"SYCL_CACHE_DIR", "OCL_ICD_FILENAMES", "TORCHINDUCTOR_CACHE_DIR"}
        assert add("net", shell) is Added.SAME
        # Another one, too, caches in its own directories, and in what somebody chose.
        assert add("other", {**shell, "TRITON_CACHE_DIR": "/chosen", "OCL_ICD_FILENAMES": "/y"}) is Added.REGISTERED
        net, other = catalog.read(all_models)
        assert (net.store, other.store) == (None, None)
        assert other.workload.variables == {
            **net.workload.variables,
            "TRITON_CACHE_DIR": "/chosen",
            "OCL_ICD_FILENAMES": "/y",
        }
        assert add("third", {"SYCL_CACHE_DIR": str(tmp_path / "mine")}) is Added.REGISTERED
        assert catalog.read(all_models)[-1].store == tmp_path / "mine"


def test_models_whose_directory_cannot_be_read_just_now_are_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models.d"
    folder.mkdir()
    (folder / "net.toml").write_text('command = ["/bin/true"]\n', encoding="utf-8")
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "XPUCACHED_PATHS_MODELS": str(folder)}
    config = loading.load(None, user=True, environ=environ)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        models = Service(Context(config, catalog, {}), ProcessStarter({}, INSTANCE)).models

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


@pytest.mark.parametrize("linked", [False, True])
def test_models_of_a_home_that_is_away_stay_and_nothing_goes_by_settings_that_were_not_read(
    tmp_path: Path, *, linked: bool
) -> None:
    """As one that is mounted or unlocked at the login; a directory that was removed is another thing."""
    home, away = tmp_path / "home", tmp_path / "away"
    folder = home / "xpucached" / "models.d"
    if linked:
        folder.parent.mkdir(parents=True)
        folder.symlink_to(tmp_path / "dotfiles")
        home = tmp_path / "dotfiles"
        home.mkdir()
    else:
        folder.mkdir(parents=True)
    (folder / "net.toml").write_text('command = ["/bin/true"]\n', encoding="utf-8")
    environ = {
        "HOME": str(tmp_path / "home"),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "home"),
        "XPUCACHED_PATHS_STATE": str(tmp_path / "state"),
    }
    config = loading.load(None, user=True, environ=environ)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        context = Context(config, catalog, {})
        models = Service(context, ProcessStarter({}, INSTANCE)).models

        def known() -> tuple[list[str], list[str], bool]:
            asyncio.run(models.load())
            names = [str(one.name) for one in catalog.read(all_models)]
            codes = [one.code for one in models.problems]
            # They wait as long as they are.
            assert list(context.away) == (names if "models-away" in codes else [])
            return names, codes, context.settings_unread

        home.rename(away)
        assert known() == ([], [], False)
        away.rename(home)
        assert known() == (["net"], [], False)
        home.rename(away)
        assert known() == (["net"], ["models-away"], True)
        away.rename(home)
        assert known() == (["net"], [], False)
        # What its file of settings says is not known before it is read.
        config.file.write_text("schedule.evict = false\n", encoding="utf-8")
        assert known() == (["net"], ["not-reloaded"], True)
        context.settings = loading.load(None, user=True, environ=environ)
        assert known() == (["net"], [], False)
        (folder / "net.toml").unlink()
        folder.unlink() if linked else folder.rmdir()
        assert known() == ([], [], False)


def test_settings_that_were_read_before_are_unread_while_their_home_is_away(tmp_path: Path) -> None:
    home, away, state = tmp_path / "home", tmp_path / "away", tmp_path / "state"
    (home / "xpucached").mkdir(parents=True)
    state.mkdir()
    environ = {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_CONFIG_HOME": str(home),
        "XPUCACHED_PATHS_STATE": str(state),
    }
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:

        def started() -> Callable[[], bool]:
            """Start a daemon that looks, and tells, again and again."""
            context = Context(loading.load(None, user=True, environ=environ), catalog, {})
            models = Service(context, ProcessStarter({}, INSTANCE)).models

            def unread() -> bool:
                asyncio.run(models.load())
                assert context.settings_unread == ("not-reloaded" in [one.code for one in models.problems])
                return context.settings_unread

            return unread

        def comes_and_goes() -> list[bool]:
            there = started()()
            home.rename(away)
            unread = started()
            gone = unread()
            # As at a login, after which the daemon goes on, and a logout.
            away.rename(home)
            there = unread() if gone else there
            home.rename(away)
            later = [unread(), started()()]
            away.rename(home)
            return [there, gone, *later, started()()]

        assert comes_and_goes() == [False] * 5
        (home / "xpucached/xpucached.toml").write_text("schedule.evict = false\n", encoding="utf-8")
        assert comes_and_goes() == [True, True, True, True, False]
        # Who removes all that was set wants what is usual.
        shutil.rmtree(home / "xpucached")
        assert comes_and_goes() == [False] * 5


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
        models = Service(Context(config, catalog, {}), ProcessStarter({}, INSTANCE)).models
        asyncio.run(models.load())
        file.write_text(f'user = "{name}"\ncommand = ["/bin/true"]\npriority = "?"\n', encoding="utf-8")
        asyncio.run(models.load())
        assert [one.name for one in catalog.read(all_models)] == ["net"]
