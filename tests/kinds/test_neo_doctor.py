"""What is wrong with the number of a GPU driver's cache, while programs may be writing it."""

from __future__ import annotations

import errno
import os
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

from xpucached.domain.stores import Store
from xpucached.kinds import folders, sycl
from xpucached.kinds.neo import counting, defects, doctor, layout
from xpucached.kinds.neo.counting import Counted
from xpucached.kinds.neo.kind import KIND
from xpucached.kinds.sycl.defects import SIZE_GARBAGE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from xpucached.domain.defects import StoreFault
    from xpucached.kinds.interface import Kind

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


def given(*answers: object) -> Callable[..., object]:
    """Return what gives one answer after the other, and the last again and again."""
    left = list(answers)
    return lambda *_: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize(
    ("sizes", "believed", "free", "agreed"),
    [
        ([10], [10], [True], (10, 10)),
        ([10], [5], [True], (10, 5)),
        ([10, 12, 12], [5], [True], (12, 5)),
        ([10], [5, 6, 6], [True], (10, 6)),
        ([10, 10, 10], [5], [True, False, True], (10, 5)),
        (range(100), [-1], [True], (10, None)),
    ],
)
def test_a_number_is_wrong_only_if_nobody_has_changed_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    believed: list[int],
    free: list[bool],
    agreed: tuple[int, int | None],
) -> None:
    monkeypatch.setattr(doctor, "_in_the_way", lambda *_: False)
    monkeypatch.setattr(counting, "count", given(*(Counted(sure=True, size=size) for size in sizes)))
    monkeypatch.setattr(counting, "believed", given(*believed))
    monkeypatch.setattr(counting, "free", given(*free))
    counted, total = doctor._agreed(0, "/c", NOW)
    assert (counted.size, total) == agreed


@pytest.mark.parametrize("first", ["0", "1", "2"])
def test_what_another_user_s_program_left_keeps_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    files = [tmp_path / f"cl_cache.00000{number}" for number in "012"]
    for path in files:
        path.touch()
        os.utime(path, (0, 0))
    unlink = folders.unlink

    def sticky(directory: int, name: str) -> None:
        if name.endswith(first):
            raise PermissionError(errno.EPERM, "it is another user's", name)
        unlink(directory, name)

    monkeypatch.setattr(folders, "unlink", sticky)
    store = Store(KIND.name, tmp_path)
    assert not doctor.clear(store, defects.LEFT_BEHIND, NOW, None)
    assert [path.name[-1] for path in files if path.exists()] == [first]
    assert "it is another user's" in caplog.text
    monkeypatch.undo()
    assert doctor.clear(store, defects.LEFT_BEHIND, NOW, None)


@pytest.mark.parametrize(
    ("mode", "uid", "blocks"),
    [
        (stat.S_IFREG | 0o644, 1000, False),
        (stat.S_IFREG | 0o444, 1000, True),
        (stat.S_IFREG | 0o444, 0, False),
        (stat.S_IFDIR | 0o755, 1000, True),
        (stat.S_IFIFO | 0o644, 1000, True),
    ],
)
def test_what_no_program_could_open_to_write_is_in_the_way(
    monkeypatch: pytest.MonkeyPatch, mode: int, uid: int, *, blocks: bool
) -> None:
    status = os.stat_result((mode, 1, 1, 1, uid, uid, 0, 0, 0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_, **__: status)
        found = doctor._in_the_way(0, "/c")
    assert found is blocks


@pytest.mark.parametrize(
    ("target", "blocks"), [("file", False), ("none", True), ("total", True), ("/proc/self", False)]
)
def test_a_link_is_in_the_way_where_it_leads_to_nothing(tmp_path: Path, target: str, *, blocks: bool) -> None:
    (tmp_path / "file").touch()
    total = tmp_path / layout.TOTAL
    total.symlink_to(total.name if target == "total" else target)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert doctor._in_the_way(descriptor, str(tmp_path)) is blocks
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("error", [FileNotFoundError(), IsADirectoryError(), PermissionError(), OSError(5, "broken")])
def test_without_a_number_there_is_nothing_to_agree_on(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def believed(_: int) -> int:
        raise error

    monkeypatch.setattr(doctor, "_in_the_way", lambda *_: False)
    monkeypatch.setattr(counting, "count", lambda *_: Counted(sure=True, size=10))
    monkeypatch.setattr(counting, "believed", believed)
    if type(error) is OSError:
        with pytest.raises(OSError, match="broken"):
            doctor._agreed(0, "/c", NOW)
        return
    counted, total = doctor._agreed(0, "/c", NOW)
    assert (counted.size, total) == (10, None)


@pytest.mark.parametrize(("kind", "fault"), [(KIND, defects.TOTAL_BLOCKED), (sycl.KIND, SIZE_GARBAGE)])
def test_why_no_end_could_be_put_to_a_fault_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: Kind, fault: StoreFault
) -> None:
    (tmp_path / layout.TOTAL).symlink_to("nowhere")
    (tmp_path / "cache_size.txt").write_text("garbage")

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "unlink", read_only)
    assert kind.doctor is not None
    assert not kind.doctor.clear(Store(kind.name, tmp_path), fault, NOW, None)
    assert fault.code in caplog.text
    assert "Read-only file system" in caplog.text
