"""What is taken out of a program's stderr, what is passed on, and what is made of it."""

from __future__ import annotations

import contextlib
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from xpucached.kinds.sycl import following
from xpucached.render.text import TextStyle
from xpucached.render.traces import trace
from xpucached.tracing import observer

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW: Final = datetime.now(UTC)
ROOT: Final = "/c/store"
KEY: Final = "1/2/3/4"
ASKED: Final = "[In-Memory Cache][Thread Id:{}][Program Cache][Key:{{imageId = 1}}]: Program inserted."
KEPT: Final = f"[Persistent Cache]: device binary has been cached: {ROOT}/{KEY}/{{}}.bin"
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


def told(*lines: tuple[str, float]) -> following.SyclFollower:
    follower = following.follow()
    for line, at in lines:
        follower.take(line, at)
    return follower


def test_time_is_measured_where_one_program_is_compiled_at_a_time_and_else_unknown() -> None:
    alone = told((ASKED.format(1), 1.0), (KEPT.format(0), 3.5), (ASKED.format(1), 4.0), (FOUND.format(1), 9.0)).told()
    assert (alone.programs, alone.nowhere, alone.seconds, alone.unmeasured) == (2, 1, 2.5, 0), "the file is not there"
    assert [(one.root, one.kept, one.found, one.lost) for one in alone.stores] == [(Path(ROOT), 0, 1, 1)]
    both = told((ASKED.format(1), 1.0), (ASKED.format(2), 1.0), (KEPT.format(0), 3.0), (KEPT.format(1), 4.0)).told()
    assert (both.programs, both.seconds, both.unmeasured) == (2, None, 2)
    # Another thread's answer is taken for one's own, and is counted all the same.
    lines = [(ASKED.format(1), 1.0), (ASKED.format(2), 1.0), (KEPT.format(0), 3.0), (ASKED.format(2), 3.0)]
    mixed = told(*lines, (KEPT.format(1), 4.0), (KEPT.format(2), 5.0)).told()
    assert (mixed.programs, mixed.nowhere, mixed.seconds, mixed.unmeasured) == (3, 3, None, 3), "all three are lost"
    again = told(*lines, (KEPT.format(1), 4.0), (KEPT.format(2), 5.0), (ASKED.format(3), 6.0), (KEPT.format(3), 6.5))
    assert (again.told().seconds, again.told().unmeasured) == (0.5, 3), "then nobody waits any more"
    more = told((ASKED.format(1), 1.0), (FOUND.format(0), 2.0), (FOUND.format(1), 2.0)).told()
    assert (more.programs, more.nowhere) == (None, None)
    older = told(("*** Code caching: enabled", 0.0), (f"*** Code caching: {FOUND[20:].format(0)[:-1]}", 1.0)).told()
    assert (older.programs, older.nowhere, older.seconds) == (None, None, None)
    assert older.stores[0].found == 1
    off = told((ASKED.format(1), 1.0), ("[Persistent Cache]: disabled", 1.0), (ASKED.format(1), 9.0)).told()
    assert (off.programs, off.nowhere, off.seconds, off.off) == (2, 2, None, True)


@pytest.mark.parametrize("path", ["/", "/1/2/3/4/0.bin", "1/2/3", "/x" * 3000, "/a/ext_kernel_compiler", "/;;;", ""])
def test_what_a_program_invents_harms_nobody(path: str) -> None:
    follower = told((f"[Persistent Cache]: device binary has been cached: {path}", 0.0), (ASKED, 1.0))
    assert sum(one.kept for one in follower.told().stores) == 0


def test_who_invents_stores_and_threads_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_MOST_ROOTS", 3)
    stored = "[Persistent Cache]: device binary has been cached: {}/1/2/3/4/0.bin"
    follower = told(*((stored.format(f"/invented{number}"), 0.0) for number in range(9)))
    assert len(follower.told().stores) == 3
    assert not told((stored.format("/long" * 1000), 0.0)).told().stores
    waiting = told((f"[In-Memory Cache][Thread Id:{'1' * 9999}]: Program inserted.", 1.0))
    assert [len(thread) for thread in waiting._waiting] == [64]


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
