"""What is taken out of a program's stderr, what is passed on, and what is made of it."""

from __future__ import annotations

import contextlib
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from xpucached.render.text import TextStyle
from xpucached.render.traces import trace
from xpucached.tracing import observer

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW: Final = datetime.now(UTC)
ROOT: Final = "/c/store"
KEY: Final = "1/2/3/4"
ASKED: Final = "[In-Memory Cache][Thread Id:{}][Program Cache][Key:{{imageId = 1}}]: Program inserted."
FOUND: Final = f"[Persistent Cache]: using cached device binary: {ROOT}/{KEY}/{{}}.bin;"


def test_what_is_not_for_us_comes_out_as_it_was_however_it_is_cut() -> None:
    theirs = b"10%\r20% [Pers\x1b[1mon]\xff\0 *** no\n[In-Memory] x\nprompt: [Persistent Cache] "
    ours = [f"{ASKED.format(1)}\n".encode(), b"*** Code caching: enabled\n", b"[Persistent Cache]: enabled\n"]
    places = (0, 4, len(theirs))
    whole = b"".join(theirs[a:b] + line for a, b, line in zip((0, *places), places, ours, strict=False))
    chance = random.Random(7)  # noqa: S311 - the same places each time
    for _ in range(200):
        listener = observer.Listener({})
        cuts = sorted(chance.choices(range(len(whole)), k=5))
        parts = [whole[a:b] for a, b in zip((0, *cuts), (*cuts, len(whole)), strict=True)]
        assert b"".join([*(listener.take(part, 0.0) for part in parts), listener.finish()]) == theirs
        assert listener.traced
    shown = observer.Listener({"SYCL_CACHE_TRACE": "1"})
    assert shown.take(whole, 0.0) + shown.finish() == whole, "who asked for the trace is given it"


def test_nothing_waits_for_the_end_of_a_line_that_is_no_trace() -> None:
    listener = observer.Listener({})
    assert listener.take(b"Password: ", 0.0) == b"Password: "
    assert listener.take(b"what [", 0.0) == b"what "
    assert listener.take(b"is it", 0.0) == b"[is it"
    long = b"[Persistent Cache]: " + b"x" * (70 << 10)
    assert listener.take(long, 0.0) == long, "a trace without an end is none"
    assert not listener.traced
    # Of a longer line of marks its last 64 KiB are one, from the first mark in them.
    mark = b"[Persistent Cache]: "
    assert listener.take(mark * 10_000 + b"\n", 0.0) == mark * (10_000 - (1 << 16) // len(mark))


def reported(listener: observer.Listener, environ: dict[str, str], *before: str) -> str:
    value = observer.report(
        [*before, "python3", "my app.py"],
        listener,
        environ,
        began=NOW - timedelta(hours=1),
        seconds=9.0,
        status=-9,
        runs_on=True,
    )
    return trace(value, TextStyle(NOW))


def test_what_is_not_known_is_said_to_be_unknown(tmp_path: Path) -> None:
    silent = reported(observer.Listener({}), {"NEO_CACHE_PERSISTENT": "0"})
    assert "how much of it was compilation is unknown" in silent
    assert "programs           unknown: it told of no cache" in silent
    assert "by signal 9" in silent
    assert "what makes it warm" not in silent

    listener = observer.Listener({})
    listener.take(f"{ASKED.format(1)}\n{FOUND.format(0)}\n".encode(), 0.0)
    assert "none of it was compilation, as its runtime tells" in reported(listener, {"NEO_CACHE_PERSISTENT": "0"})
    (tmp_path / "new").touch()
    # Another compiler worked meanwhile: nobody says for how long.
    more = reported(listener, {"NEO_CACHE_PERSISTENT": "0", "TRITON_CACHE_DIR": str(tmp_path)})
    assert "how much of it was compilation is unknown" in more
    assert f"in triton          1 new file, by whomever: {tmp_path}" in more
    assert "  xpucachectl model add my-app -- python3 'my app.py'" in more
    # What is started by us is registered without us.
    environ = {"TRITON_CACHE_DIR": str(tmp_path)}
    run = ("/opt/bin/xpucachectl", "run", "llama", "--")
    for ours in (run, ("xpucachectl", "trace", "--", *run)):
        assert reported(listener, environ, *ours).partition("warm:")[2] == more.partition("warm:")[2]


def test_the_locks_of_a_compiler_are_nothing_new(tmp_path: Path) -> None:
    # Inductor opens those of all that it loads, and so writes their times, at each warm start.
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "kernel.lock").touch()
    listener = observer.Listener({})
    listener.take(f"{ASKED.format(1)}\n{FOUND.format(0)}\n".encode(), 0.0)
    told = reported(listener, {"NEO_CACHE_PERSISTENT": "0", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})
    assert "none of it was compilation, as its runtime tells" in told
    assert "what makes it warm" not in told


def test_a_program_that_removes_its_directory_is_told_of_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    assert "ended" in reported(observer.Listener({}), {"HOME": str(tmp_path)})


def test_what_goes_while_a_cache_is_looked_at_hides_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel").write_bytes(b"")
    scan, gone = os.scandir, tmp_path / "passing"

    @contextlib.contextmanager
    def scandir(path: str) -> Iterator[list[os.DirEntry[str]]]:
        gone.write_bytes(b"")
        with scan(path) as found:
            # What passes comes first.
            every = sorted(found, key=lambda one: one.name != gone.name)
        gone.unlink()
        yield every

    monkeypatch.setattr(os, "scandir", scandir)
    told = reported(observer.Listener({}), {"NEO_CACHE_PERSISTENT": "0", "TRITON_CACHE_DIR": str(tmp_path)})
    assert "1 new file, by whomever" in told
