"""What the system's tools are asked, and what of it is remembered."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from xpucached.host import tools
from xpucached.host.roots import HostRoots

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES = (
    "2 libs found in cache\n\tlibur.so.0 (libc6,x86-64) => {0}/libur.so.0\n\tlibur.so.0 (libc6) => /i386/libur.so.0\n"
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the answers that the loader's tool still has, the last first; without any it gives none."""
    answers: list[str] = []

    def answer(command: Sequence[str]) -> str:
        assert list(command[1:3]) == ["-p", "-C"]
        if not answers:
            raise OSError(errno.EAGAIN, "a tool gave no answer: it took too long", command[0])
        return answers.pop()

    monkeypatch.setattr(tools, "_caches", {})
    monkeypatch.setattr(tools, "answer", answer)
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/sbin/{name}")
    return answers


def test_the_loader_s_cache_is_read_once_until_another_file_is_there(tmp_path: Path, asked: list[str]) -> None:
    places = HostRoots(etc=tmp_path)
    (tmp_path / "ld.so.cache").write_text("one")
    asked += [LINES.format("/new"), LINES.format("/old")]
    old = {"libur.so.0": ["/old/libur.so.0", "/i386/libur.so.0"]}
    assert tools.loader_cache(places) == tools.loader_cache(places) == old

    # As an installation does it; the file is as long as before.
    (tmp_path / "ld.so.cache~").write_text("two")
    (tmp_path / "ld.so.cache~").rename(tmp_path / "ld.so.cache")
    assert tools.loader_cache(places)["libur.so.0"][0] == "/new/libur.so.0"
    assert not asked


def test_without_an_answer_the_loader_s_tool_is_asked_again(tmp_path: Path, asked: list[str]) -> None:
    places = HostRoots(etc=tmp_path)
    assert tools.loader_cache(places) == {}
    (tmp_path / "ld.so.cache").write_text("one")
    # What it lists is not said to be gone.
    with pytest.raises(OSError, match="gave no answer"):
        tools.loader_cache(places)
    asked += [LINES.format("/late")]
    assert tools.loader_cache(places)["libur.so.0"][0] == "/late/libur.so.0"


def test_not_every_cache_that_ever_was_is_remembered(tmp_path: Path, asked: list[str]) -> None:
    for number in range(3 * tools._MOST_CACHES):
        asked.append(LINES.format(number))
        (tmp_path / "ld.so.cache").write_text("x" * number)
        assert tools.loader_cache(HostRoots(etc=tmp_path))
        assert 0 < len(tools._caches) <= tools._MOST_CACHES


def test_the_loader_s_tool_is_not_looked_for_where_somebody_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ldconfig").write_text("#!/bin/sh\n")
    (tmp_path / "ldconfig").chmod(0o755)
    (tmp_path / "ld.so.cache").touch()
    started: list[str] = []
    monkeypatch.setattr(tools, "_caches", {})

    def answer(command: Sequence[str]) -> str:
        started.append(command[0])
        return ""

    monkeypatch.setattr(tools, "answer", answer)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".:/usr/bin")
    tools.loader_cache(HostRoots(etc=tmp_path))
    assert all(one.startswith("/") for one in started), started
