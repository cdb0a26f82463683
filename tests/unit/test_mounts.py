"""Where a path leads, also by links that cannot be read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support import users
from xpucached import mounts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a link to one that cannot be read and others."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name, target in {
        "closed": "/proc/1/root",
        "plain": "folder",
        "top": "/",
        "nothing": "folder/nothing",
        "round": "round",
    }.items():
        (tmp_path / name).symlink_to(target)
    return tmp_path.resolve()


def test_a_link_that_cannot_be_read_stays_as_if_it_were_none(here: Path) -> None:
    assert users.unreadable_link() == "/proc/1/root"
    (here / "behind").symlink_to("closed/below/../other")
    found = {path: mounts.real(here / path) for path in ("closed", "closed/..", "plain/../closed/x", "behind")}
    assert found == {
        "closed": "/proc/1/root",
        "closed/..": "/proc/1",
        "plain/../closed/x": "/proc/1/root/x",
        "behind": "/proc/1/root/other",
    }
    assert mounts.real("/proc/1/root") == "/proc/1/root"
    assert mounts.real("closed") in {"closed", "/proc/1/root"}  # as Python's version is
    assert mounts.network(here / "closed") == ""


def test_of_more_links_in_a_row_than_python_follows_the_rest_stays(here: Path) -> None:
    for number in range(2000):
        (here / f"{number}").symlink_to(f"{number + 1}")
    assert mounts.real(here / "0" / "x").startswith(f"{here}/")


def test_all_others_lead_where_python_says(here: Path) -> None:
    told = {
        path: (mounts.real(path), [*mounts.way(path)][-1])
        for path in (
            *(f"{here}/{name}" for name in ("plain", "plain/x", "plain/../x/", "top", "top/..", "nothing/../y", "z")),
            *("/", "//proc", f"{here}/round", f"{here}/round/x"),
        )
    }
    real = {path: os.path.realpath(path) for path in told}
    assert told == {path: (one, one if one != "//proc" else "/proc") for path, one in real.items()}
    assert mounts.real("plain") == f"{here}/folder"
    with pytest.raises(ValueError, match="null"):
        mounts.real("/a\0b")
