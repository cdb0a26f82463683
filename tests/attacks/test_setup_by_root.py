"""Root sets up the host's service from what another user made, or in the home of another user: neither is done."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from xpucached.cli import installation
from xpucached.errors import Conflict, Denied

if TYPE_CHECKING:
    from pathlib import Path

    from tests.users import User


@pytest.fixture
def programs(common: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with the commands, that everybody reaches and only root changes."""
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


def test_nor_does_a_link_to_what_another_user_made(attacker: User, programs: Path) -> None:
    theirs = attacker.home / "xpucached"
    theirs.write_text("#!/bin/sh\n")
    theirs.chmod(0o755)
    attacker.home.chmod(0o755)
    (programs / "xpucached").unlink()
    (programs / "xpucached").symlink_to(theirs)
    place = installation.Place.of(user=False, root=None, environ={})
    with pytest.raises(Conflict, match="can be changed by others"):
        installation.check(place, programs, remove=False)


def test_root_does_not_set_up_in_the_home_of_another_user(attacker: User) -> None:
    """The record there would name the files that root removes."""
    with pytest.raises(Denied, match="belongs to somebody else"):
        installation.Place.of(user=True, root=None, environ={"HOME": str(attacker.home)})
