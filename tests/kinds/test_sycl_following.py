"""What is made of the lines that a SYCL runtime writes while a program runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from xpucached.kinds.sycl import following

ROOT: Final = "/c/store"
KEY: Final = "1/2/3/4"
ASKED: Final = "[In-Memory Cache][Thread Id:{}][Program Cache][Key:{{imageId = 1}}]: Program inserted."
KEPT: Final = f"[Persistent Cache]: device binary has been cached: {ROOT}/{KEY}/{{}}.bin"
FOUND: Final = f"[Persistent Cache]: using cached device binary: {ROOT}/{KEY}/{{}}.bin;"
MADE: Final = "ext_kernel_compiler/1/2/3"
SOURCE: Final = f"ext_kernel_compiler/{'A' * 43}"


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


def kept(root: Path | str, *keys: str) -> str:
    return "[Persistent Cache]: device binary has been cached: " + ";".join(f"{root}/{key}.bin" for key in keys)


@pytest.mark.parametrize(
    ("line", "roots"),
    [
        (kept("/a", "1/2/3/4/0"), ["/a"]),
        (kept("/1", "1/2/3/4/0"), ["/1"]),
        (kept("/cache/1000", "1/2/3/4/0"), ["/cache/1000"]),
        (kept("", "1/2/3/4/0"), []),
        (kept("/a/b", "0"), ["/a/b"]),
        (kept("/a", "1/2/3/4/5/6"), ["/a/1"]),
        (kept("/a: /b", "1/2/3/4/0"), ["/b"]),
        ("[Persistent Cache]: device binary has been cached: /a/1/2/3/4/0.bin;/b/1/2/3/4/0.bin;", ["/a", "/b"]),
        ("[kernel_compiler Persistent Cache]: using cached device code IR: /a/1/2/3/4/ir", ["/a"]),
        (f"[Persistent Cache]: binary has been cached: /a/7/{MADE}/0.bin", ["/a/7"]),
        (f"[kernel_compiler Persistent Cache]: storing device code IR: /a/{SOURCE}", ["/a"]),
        (f"[kernel_compiler Persistent Cache]: storing device code IR: /a/7/{SOURCE}", ["/a/7"]),
        ("[Persistent Cache]: using cached device binary: /a/1/2/3/4/0.bin;7/8", ["/a"]),
        (kept("a", "1/2/3/4/0"), ["a"]),
        (kept("~/a/7", "1/2/3/4/0", "1/2/3/4/1"), ["~/a/7"]),
        ("[Persistent Cache]: Updating the cache size file after eviction. New size: 0", []),
        ("[Persistent Cache]: enabled", []),
        ("/a/1/2/3/4/0.bin", []),
        (": /a/b", []),
        (": /a", []),
        (": /" + "a" * 4095 + "/1", ["/" + "a" * 4095]),
        (": /" + "a" * 4096 + "/1", []),
    ],
)
def test_a_root_is_what_stands_before_the_names_of_an_entry(line: str, roots: list[str]) -> None:
    assert following._roots(line) == [Path(one) for one in roots]


def test_of_one_line_sixteen_paths_are_read() -> None:
    every = [f"/{chr(ord('a') + number)}" for number in range(18)]
    line = "[Persistent Cache]: device binary has been cached: " + ";".join(f"{one}/1/2/3/4/0" for one in every)
    assert following._roots(line) == [Path(one) for one in every[:16]]


def test_what_a_runtime_kept_counts_where_it_is_there(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first / "1/2/3/4/0.bin", first / "1/2/3/4/1.bin"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    follower = told(
        *((kept(first, f"1/2/3/4/{slot}"), 1.0) for slot in (0, 1, 1, 2, 3)),
        (f"[Persistent Cache]: using cached device binary: {second}/1/2/3/4/0.bin;", 1.0),
    )
    stores = follower.told().stores
    (nothing,) = told((kept(first, "1/2/3/4/8", "1/2/3/4/9"), 1.0)).told().stores

    assert (nothing.kept, nothing.lost) == (0, 2), "of one line"
    assert [(one.root, one.kept, one.found, one.lost) for one in stores] == [(first, 3, 0, 2), (second, 0, 1, 0)]


def test_what_is_compiled_from_source_is_asked_for_and_answered_by_one_line(tmp_path: Path) -> None:
    step = f"[kernel_compiler Persistent Cache]: storing device code IR: {tmp_path}/{SOURCE}"
    made = f"[Persistent Cache]: binary has been cached: {tmp_path}/{MADE}/0.bin"
    used = f"[Persistent Cache]: using cached binary: {tmp_path}/{MADE}/0.bin"
    one = told((step, 1.0), (made, 2.0), (used, 3.0)).told()

    assert (one.programs, one.unmeasured, one.seconds) == (2, 1, None)
    assert [(store.root, store.found) for store in one.stores] == [(tmp_path, 1)]


def test_what_is_asked_for_and_not_answered_is_kept_nowhere() -> None:
    one = told((ASKED.format(1), 1.0), (ASKED.format(1), 2.0), (FOUND.format(0), 3.0), (ASKED.format(1), 4.0)).told()
    assert (one.programs, one.nowhere) == (3, 2)
    nothing = told().told()
    assert (nothing.programs, nothing.nowhere, nothing.off, nothing.stores) == (None, None, False, ())


def test_the_times_of_one_thread_add_up_and_are_never_less_than_nothing() -> None:
    one = told((ASKED.format(1), 5.0), (KEPT.format(0), 4.0)).told()
    assert (one.seconds, one.unmeasured) == (0.0, 0)
    both = told((ASKED.format(1), 1.0), (KEPT.format(0), 1.5), (ASKED.format(1), 2.0), (KEPT.format(1), 4.0)).told()
    assert (both.seconds, both.unmeasured) == (2.5, 0)
    # Who got something without having asked has answered for one that asked.
    asked = ((FOUND.format(0), 0.0), (ASKED.format(1), 1.0), (ASKED.format(2), 1.0), (FOUND.format(1), 2.0))
    assert told(*asked, (ASKED.format(3), 5.0), (KEPT.format(0), 6.0)).told().seconds == 1.0


@pytest.mark.parametrize(
    ("line", "off"),
    [
        ("[Persistent Cache]: disabled", True),
        ("*** Code caching: disabled", True),
        ("[Persistent Cache]: Disable persistent cache", True),
        ("[Persistent Cache]: enabled", False),
    ],
)
def test_a_cache_that_is_off_says_so(line: str, *, off: bool) -> None:
    assert told((line, 1.0)).told().off is off


def test_few_threads_and_entries_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_MOST_WAITING", 2)
    monkeypatch.setattr(following, "_MOST", 2)
    follower = told(*((ASKED.format(thread), 1.0) for thread in range(4)))
    assert len(follower._waiting) == 2
    for slot in range(4):
        follower.take(kept(ROOT, f"1/2/3/4/{slot}"), 2.0)
    (store,) = follower.told().stores
    assert (store.kept, store.lost) == (2, 2), "what is not remembered is not looked for"
