"""What all kinds share of removing: what goes in one step, what stands in its way, and what a death leaves."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.kinds import fakes
from tests.kinds.test_contract import LABEL, OLD, Filled
from xpucached.domain.stores import UNSETTLED
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import fs, removal, statx

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from xpucached.kinds.interface import Kind


class Killed(BaseException):
    """The process died here."""


def made(root: Path, kind: Kind) -> Filled:
    fakes.fill(root, kind, OLD)
    return Filled(kind, root)


KINDS = pytest.mark.parametrize("kind", [fakes.BARE, fakes.FULL, fakes.NEST], ids=lambda kind: kind.name)


@KINDS
@pytest.mark.parametrize("label", [None, LABEL], ids=["for good", "into the trash"])
@pytest.mark.parametrize("death", range(14))
def test_a_death_at_any_point_leaves_an_entry_whole_in_one_place_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, label: TrashLabel | None, death: int
) -> None:
    store = made(tmp_path / "store", kind)
    before = store.files()
    going, *_ = sorted(store.look().entries, key=lambda one: one.id.key)
    calls = 0

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            nonlocal calls
            calls += 1
            if calls > death:
                raise Killed
            return real(*args, **more)

        return call

    for name in ("rename", "unlink", "rmdir", "mkdir", "write", "pwrite"):
        monkeypatch.setattr(os, name, dying(getattr(os, name)))
    try:
        kind.remover.remove([going], None if label is None else {going.id: label})
        done = True
    except Killed:
        done = False
    monkeypatch.undo()

    swept = kind.remover.sweep(going.id)
    assert not kind.remover.sweep(going.id)
    assert not list((tmp_path / "store").glob(f"*{removal.GONE}"))
    left = {name: content for name, content in store.files().items() if name.startswith(going.id.key)}
    whole = {name: content for name, content in before.items() if name.startswith(going.id.key)}
    inside = [one for one in kind.trash.trash(store.store) if one.whole] if kind.trash is not None else []
    assert left in ({}, whole)
    assert len(inside) + bool(left) == (1 if left or (label is not None and kind.trash is not None) else 0)
    assert not (swept and done)
    assert store.files().items() >= {one for one in before.items() if one not in whole.items()}
    if inside and kind.trash is not None:
        assert [one.key for one in kind.trash.restore(store.store, tuple(one.ref for one in inside))] == [going.id.key]
        assert store.files() == before


def test_what_programs_hold_stays(tmp_path: Path) -> None:
    store = made(tmp_path / "store", fakes.FULL)
    before, entries = store.files(), store.look().entries
    with (store.root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert set(fakes.FULL.remover.remove(entries, {one.id: LABEL for one in entries}).values()) == {False}
    assert store.files() == before
    for state in UNSETTLED:
        unsettled = [replace(one, state=state) for one in entries]
        assert set(fakes.FULL.remover.remove(unsettled).values()) == {False}
    assert store.files() == before


def test_what_programs_count_is_put_right(tmp_path: Path) -> None:
    store = made(tmp_path / "store", fakes.FULL)
    entries = store.look().entries
    (store.root / "size").write_text(f"{sum(one.size for one in entries):020}")
    fakes.FULL.remover.remove(entries[:1], {entries[0].id: LABEL})
    fakes.FULL.remover.remove(entries[1:2])

    assert int((store.root / "size").read_text()) == entries[2].size


@pytest.mark.parametrize("kind", [fakes.FULL, fakes.NEST], ids=lambda kind: kind.name)
def test_on_a_full_disk_it_goes_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    store = made(tmp_path / "store", kind)
    entries = store.look().entries

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fs, "make", full)
    store.remove(entries, LABEL)

    assert (store.files(), store.trash.trash(store.store)) == ({}, ())


def test_beside_a_root_where_we_may_not_write_it_goes_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(tmp_path / "store", fakes.FULL)
    real = os.mkdir

    def refused(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if path == ".gone.store":
            raise PermissionError(13, "Permission denied")
        real(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", refused)
    store.remove(store.look().entries, LABEL)

    assert (store.files(), store.trash.trash(store.store)) == ({}, ())
    assert not (tmp_path / ".gone.store").exists()


@pytest.mark.parametrize("what", ["it is mounted there", "it has a quota of its own"])
def test_where_nothing_can_be_moved_to_the_trash_it_goes_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    store = made(tmp_path / "store", fakes.FULL)
    entries = store.look().entries
    root = store.root.stat().st_ino

    def refused(name: str, other: str, **_: int) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link", name, None, other)

    if what == "it is mounted there":
        monkeypatch.setattr(statx, "mounted", lambda descriptor: os.fstat(descriptor).st_ino == root)
    monkeypatch.setattr(os, "rename", refused)
    store.remove(entries, LABEL)

    assert (store.files(), store.trash.trash(store.store)) == ({}, ())
    assert (tmp_path / ".gone.store").exists() is not what.startswith("it is mounted")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_where_somebody_else_has_made_the_trash_it_stays(tmp_path: Path) -> None:
    store = made(tmp_path / "store", fakes.FULL)
    entries, before = store.look().entries, store.files()
    (tmp_path / ".gone.store").mkdir()
    os.chown(tmp_path / ".gone.store", 4711, -1)
    gone = fakes.FULL.remover.remove(entries, {one.id: LABEL for one in entries})

    assert not any(gone.values())
    assert store.files() == before


def test_the_trash_lies_where_the_kind_wants_it(tmp_path: Path) -> None:
    for kind, place in ((fakes.FULL, ".gone.full"), (fakes.NEST, "nest/.gone")):
        store = made(tmp_path / kind.name, kind)
        store.remove(store.look().entries, LABEL)
        assert len(list((tmp_path / place).iterdir())) == 3
        assert store.trash.trash_size(store.store) > 0
        store.trash.discard(store.store, tuple(one.ref for one in store.trash.trash(store.store)))
        assert not (tmp_path / place).exists()


@pytest.mark.parametrize("kind", [fakes.FULL, fakes.NEST], ids=lambda kind: kind.name)
def test_what_a_program_has_made_again_stays(tmp_path: Path, kind: Kind) -> None:
    store = made(tmp_path / "store", kind)
    (going, *_) = sorted(store.look().entries, key=lambda one: one.id.key)
    store.remove([going], LABEL)
    fakes.fill(store.root, kind, OLD, [going.id.key.partition(".")[0]])
    again = store.files()
    (item,) = store.trash.trash(store.store)

    (told,) = store.trash.restore(store.store, (item.ref,))
    assert (told.key, told.detail) == (going.id.key, "a program has made it again meanwhile")
    assert (store.files(), store.trash.trash(store.store)) == (again, ())


def test_a_directory_that_somebody_filled_or_nested_without_end_is_not_taken_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(tmp_path / "store", fakes.NEST)
    (store.root / "a1.nest").joinpath(*["deep"] * 40).mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.write_text("not ours")
    (store.root / "b2.nest" / "link").symlink_to(outside)
    entries = {str(one.id.key): one for one in store.look().entries}
    assert store.kind.remover.remove([entries["b2.nest"]]) == {entries["b2.nest"].id: True}
    assert outside.read_text() == "not ours"

    failed: list[OSError] = []
    assert store.kind.remover.remove([entries["a1.nest"]], None, lambda _, error: failed.append(error)) == {
        entries["a1.nest"].id: False
    }
    monkeypatch.setattr("xpucached.kinds.folders._MOST", 1)
    assert store.kind.remover.remove([entries["c3.nest"]]) == {entries["c3.nest"].id: False}
    assert set(store.files()) == {f"{name}.nest/{file}" for name in ("a1", "c3") for file in ("program", "target")}


def test_an_entry_is_gone_also_where_what_programs_count_cannot_be_put_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    store = made(tmp_path / "store", fakes.FULL)
    going, *_ = store.look().entries
    remover = removal.PathRemover(fakes.stamp_of, settle=fails)
    assert remover.remove([going]) == {going.id: True}
    assert going.id not in {one.id for one in store.look().entries}
    assert "could not be put right" in caplog.text
