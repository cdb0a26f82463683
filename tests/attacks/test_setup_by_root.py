"""Root sets up the host's service from what another user made, or in the home of another user: neither is done."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support import silent_filesystem
from xpucached import deadlines
from xpucached.bundle.revocations import revocations
from xpucached.bundling import drivers, signing, sources
from xpucached.cli import belonging, connect, installation, installed_files
from xpucached.daemon import configuration
from xpucached.domain.bundles import ExportBundle
from xpucached.errors import Conflict, Denied, DiskError, RegistryDenied, SettingsError
from xpucached.registry import accounts, reference
from xpucached.settings import loading

if TYPE_CHECKING:
    from tests.support.users import User


@pytest.fixture
def programs(common: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the commands, that everybody reaches and only root changes."""
    place = common / "venv" / "bin"
    place.mkdir(parents=True)
    for name in installation._PROGRAMS:
        (place / name).write_text("#!/bin/sh\n")
        (place / name).chmod(0o755)
    # What the tests run with may be anywhere.
    monkeypatch.setattr(sys, "executable", shutil.which("sh"))
    monkeypatch.setattr(installation, "_PACKAGE", place)
    monkeypatch.setattr(os, "__file__", shutil.which("sh"))
    return place


@pytest.mark.parametrize("what", ["venv", "venv/bin", "venv/bin/xpucached", "venv/bin/xpucached-watch"])
def test_what_another_user_can_change_does_not_become_a_service(
    attacker: User, common: Path, programs: Path, what: str
) -> None:
    place = installation.Place.of(user=False, root=None, environ={})
    installation.check(place, programs, remove=False)
    part = common / what
    attacker.owns(part)
    with pytest.raises(Conflict, match="can be changed by others"):
        installation.check(place, programs, remove=False)


@pytest.mark.parametrize("what", ["venv", "venv/bin/xpucached"])
def test_nor_does_what_everybody_can_change(attacker: User, common: Path, programs: Path, what: str) -> None:
    place = installation.Place.of(user=False, root=None, environ={})
    (common / what).chmod(0o777)
    with pytest.raises(Conflict, match="can be changed by others"):
        installation.check(place, programs, remove=False)


@pytest.mark.parametrize("group", [100, 1000])  # many systems have everybody in ``users``, which is 100
@pytest.mark.parametrize("what", ["venv", "venv/bin/xpucached"])
def test_nor_does_what_a_group_of_people_can_change(common: Path, programs: Path, what: str, group: int) -> None:
    place = installation.Place.of(user=False, root=None, environ={})
    os.chown(common / what, 0, 50)
    (common / what).chmod(0o775)
    installation.check(place, programs, remove=False)
    os.chown(common / what, 0, group)
    with pytest.raises(Conflict, match="can be changed by others"):
        installation.check(place, programs, remove=False)


def test_what_roots_umask_closed_to_the_service_does_not_become_one(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after pip under a umask of 077, in an environment that was made under another."""
    place = installation.Place.of(user=False, root=None, environ={})
    modules = programs.parent / "lib" / "xpucached"
    modules.mkdir(parents=True)
    monkeypatch.setattr(installation, "_PACKAGE", modules)
    monkeypatch.setattr(sys, "prefix", str(programs.parent))
    installation.check(place, programs, remove=False)
    modules.chmod(0o700)
    with pytest.raises(Conflict, match=f"{modules} is closed to other users") as refused:
        installation.check(place, programs, remove=False)
    assert refused.value.hint == f"chmod -R go+rX {programs.parent}"


@pytest.mark.parametrize("more", [0, 39])
def test_nor_does_a_link_to_what_another_user_made(attacker: User, programs: Path, more: int) -> None:
    theirs = attacker.home / "xpucached"
    theirs.write_text("#!/bin/sh\n")
    theirs.chmod(0o755)
    attacker.home.chmod(0o755)
    (programs / "xpucached").unlink()
    links = [programs / "xpucached", *(programs / str(number) for number in range(more))]
    for link, target in zip(links, [*links[1:], theirs], strict=True):
        link.symlink_to(target)
    assert links[0].read_text()
    place = installation.Place.of(user=False, root=None, environ={})
    with pytest.raises(Conflict, match="can be changed by others"):
        installation.check(place, programs, remove=False)


def test_nor_does_what_is_come_to_by_a_link_of_another_user(
    attacker: User, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when root makes an environment with a Python that somebody has a link to: where that leads, he says."""
    theirs = attacker.home / "python3"
    theirs.symlink_to(sys.executable)
    attacker.owns(theirs)
    attacker.home.chmod(0o755)
    (programs / "python3").symlink_to(theirs)
    monkeypatch.setattr(sys, "executable", str(programs / "python3"))
    place = installation.Place.of(user=False, root=None, environ={})
    with pytest.raises(Conflict, match="can be changed by others"):
        installation.check(place, programs, remove=False)


@pytest.mark.parametrize("variable", ["HOME", "XDG_DATA_HOME"])
@pytest.mark.parametrize("below", ["", "new", "link/share", "closed/share"])
def test_root_does_not_set_up_in_the_home_of_another_user(
    attacker: User, common: Path, variable: str, below: str
) -> None:
    """The record there would name the files that root removes."""
    ours = common / "ours"
    ours.mkdir()
    (ours / "link").symlink_to(attacker.home)
    # What root made there is root's, and can be moved away all the same.
    (attacker.home / "closed/share").mkdir(parents=True)
    there = ours / below if below.startswith("link") else attacker.home / below
    precious = common / "precious"
    precious.write_text("of root's")
    record = there / (".local/share" if variable == "HOME" else "") / "xpucached/setup.json"
    if below != "new":
        record.parent.mkdir(parents=True)
        record.write_bytes(installed_files.spelled({str(precious): installed_files.digest(precious.read_bytes())}))
    place = installation.Place.of(user=True, root=None, environ={"HOME": str(ours), variable: str(there)})

    with pytest.raises(Denied, match="belongs to somebody else"):
        installation.removal(place, running=False)
    with pytest.raises(Denied, match="belongs to somebody else"):
        installation.plan(place, Path("/usr/bin"), installation.packed(), running=False)


@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"])
@pytest.mark.parametrize("below", ["", "closed", "new", "link"])
def test_root_s_daemon_keeps_nothing_in_the_home_of_another_user(
    attacker: User, common: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str
) -> None:
    """Whatever is looked at first can be exchanged there, and the catalog names what root runs."""
    ours = common / "ours"
    ours.mkdir()
    (ours / "link").symlink_to(attacker.home)
    # What root made there is root's, and can be moved away all the same.
    (attacker.home / "closed").mkdir()
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(ours))
    monkeypatch.setenv("HOME", str(ours))
    options = argparse.Namespace(config=None, user=True, worker=False, check=False)
    assert configuration.load(options).paths.state.is_relative_to(ours)

    monkeypatch.setenv(variable, str(ours / below if below == "link" else attacker.home / below))
    with pytest.raises(SettingsError, match=rf"^{variable}: .* may be another user's") as refused:
        configuration.load(options)
    # As the hint says.
    assert "set paths.state and paths.cache" in refused.value.hint
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"XPUCACHED_PATHS_{name}", str(ours / name))
    assert configuration.load(options).paths.state == ours / "STATE"


def test_nor_does_it_wait_for_what_lies_in_that_home(attacker: User) -> None:
    """Who the way belongs to is looked at before what is further on."""
    with silent_filesystem.mounted(attacker.home / "away") as away:
        place = installation.Place.of(user=True, root=None, environ={"HOME": str(away / "home")})
        with pytest.raises(Denied, match="belongs to somebody else"):
            installation.removal(place, running=False)


def test_nor_does_a_hint(attacker: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody answers it says whether there is a unit of the user's."""
    with silent_filesystem.mounted(attacker.home / "away") as away:
        monkeypatch.setenv("HOME", str(away))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(away / "config"))
        assert "start" in connect._start_own()


def test_nor_do_variables_that_lead_there(attacker: User) -> None:
    """What a user's daemon answers root, who asks it for the variables of its cache."""
    with silent_filesystem.mounted(attacker.home / "away") as away:
        values = {"LD_LIBRARY_PATH": str(away / "lib"), "ZE_ENABLE_ALT_DRIVERS": str(away / "driver.so")}
        assert belonging.taken(values) == ({}, (), tuple(values))


def test_nor_do_bundles(attacker: User, common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts, keys and the configuration lie below HOME, and it may answer for a while, and then no more."""
    monkeypatch.setattr(deadlines, "OF_HOMES", 0.2)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with silent_filesystem.mounted(attacker.home / "away") as away:
        monkeypatch.setenv("HOME", str(away / "home"))
        with pytest.raises(RegistryDenied, match="does not answer"):
            accounts.account(reference.parse("registry.example.com/a:b"), os.environ)
        for read in (drivers.settings, lambda: signing.of_keys(revocations)):
            with pytest.raises(TimeoutError, match="does not answer"):
                read()
    theirs = attacker.home / "theirs"
    theirs.mkdir()
    (theirs / "catalog.sqlite").write_text("mine")
    attacker.owns(theirs)
    own = loading.load(None, user=True, environ={"HOME": str(common), "XDG_RUNTIME_DIR": str(common)})
    settings = replace(own, paths=replace(own.paths, state=theirs))
    monkeypatch.setenv("HOME", str(common))
    with (
        pytest.raises(Denied, match="may be another user's"),
        sources.selected(ExportBundle(common / "bundle"), settings),
    ):
        pass


def test_where_nothing_can_be_noted_setup_says_so(common: Path) -> None:
    environ = {"HOME": str(common), "XDG_DATA_HOME": "/proc/nowhere"}
    place = installation.Place.of(user=True, root=None, environ=environ)
    with pytest.raises(DiskError, match="which says what was set up, cannot be written"):
        installation.carry_out(installation.Plan((), (), place.record, {"/nowhere": ""}))


def test_nor_where_everybody_may_write(common: Path) -> None:
    (common / "open").mkdir()
    (common / "open").chmod(0o1777)
    place = installation.Place.of(
        user=True, root=None, environ={"HOME": str(common), "XDG_DATA_HOME": str(common / "open/share")}
    )

    with pytest.raises(Denied, match="others may write to it"):
        installation.plan(place, Path("/usr/bin"), installation.packed(), running=False)


def test_a_group_of_the_system_may_write_where_root_sets_up_and_a_user_s_own_where_he_does(
    attacker: User, common: Path
) -> None:
    staff = common / "staff"
    staff.mkdir()
    os.chown(staff, 0, 50)
    staff.chmod(0o2775)
    place = installation.Place.of(user=False, root=staff, environ={})
    assert installation.plan(place, Path("/usr/bin"), installation.packed(), running=False).steps

    for group in (100, 1000):
        os.chown(staff, 0, group)
        with pytest.raises(Denied, match="others may write to it"):
            installation.plan(place, Path("/usr/bin"), installation.packed(), running=False)

    attacker.home.chmod(0o775)
    assert "nothing was set up" in attacker.ctl("setup", "--user", "--remove").stdout
