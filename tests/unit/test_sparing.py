"""Modules that are loaded without others."""

from __future__ import annotations

import importlib
import ssl
import sys
from typing import TYPE_CHECKING

import pytest

from xpucached import sparing
from xpucached.server import connection

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a package that loads one of its modules by itself; the module tells whether another one is there."""
    place = tmp_path / "sparing_house"
    place.mkdir()
    (place / "__init__.py").write_text("from sparing_house import cellar\nNAME = 'whole'\n")
    (place / "cellar.py").write_text("")
    (place / "attic.py").write_text(
        "try:\n    import sparing_guest as guest\nexcept ImportError:\n    guest = None\n",
    )
    (tmp_path / "sparing_guest.py").write_text("NUMBER = 1\nOTHER = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = "sparing_house", "sparing_house.cellar", "sparing_house.attic", "sparing_guest"
    for name in names:
        # So that what a test loads is forgotten after it.
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    return "sparing_house"


def test_what_is_left_out_is_not_found_and_found_afterwards(house: str) -> None:
    with sparing.instead({"sparing_guest": None}):
        attic = importlib.import_module(f"{house}.attic")

    assert attic.guest is None
    assert importlib.import_module("sparing_guest").NUMBER == 1


def test_what_is_loaded_already_stays(house: str) -> None:
    guest = importlib.import_module("sparing_guest")
    with sparing.instead({"sparing_guest": None}):
        attic = importlib.import_module(f"{house}.attic")

    assert attic.guest is guest
    assert sys.modules["sparing_guest"] is guest


def test_it_is_found_again_when_what_was_loaded_fails(house: str) -> None:
    with pytest.raises(KeyError), sparing.instead({"sparing_guest": None}):
        raise KeyError(house)

    assert importlib.import_module("sparing_guest").NUMBER == 1


def test_a_package_does_not_load_its_modules_by_itself(house: str) -> None:
    with sparing.instead({house: sparing.package(house)}):
        importlib.import_module(f"{house}.attic")
        assert f"{house}.cellar" not in sys.modules

    assert importlib.import_module(house).NAME == "whole"
    assert f"{house}.cellar" in sys.modules


def test_a_package_that_is_asked_for_what_only_the_whole_has_is_loaded(house: str) -> None:
    with sparing.instead({house: sparing.package(house)}):
        assert importlib.import_module(house).NAME == "whole"

    assert sys.modules[house].NAME == "whole"


def test_a_package_that_is_not_installed_is_said() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'sparing_ghost'"):
        sparing.package("sparing_ghost")


@pytest.mark.usefixtures("house")
def test_what_is_deferred_is_loaded_for_what_is_not_known_of_it() -> None:
    guest = sparing.DeferredModule("sparing_guest", NUMBER=1)
    with sparing.instead({"sparing_guest": guest}):
        assert importlib.import_module("sparing_guest") is guest
        assert guest.NUMBER == 1
        assert guest.OTHER == 2
        assert importlib.import_module("sparing_guest") is not guest

    assert importlib.import_module("sparing_guest").OTHER == 2
    assert guest.OTHER == 2
    with pytest.raises(AttributeError):
        _ = guest.GHOST


def test_modules_of_python_s_own_are_found() -> None:
    assert sparing.all_there("json", "email")
    assert not sparing.all_there("json", "sparing_ghost")


def test_what_uvicorn_is_told_of_tls_is_what_there_is() -> None:
    """The defaults of its configuration, where TLS was left out."""
    known = {name: value for name, value in vars(connection._TLS).items() if not name.startswith("__")}

    assert known == {name: getattr(ssl, name) for name in known}
    assert known
