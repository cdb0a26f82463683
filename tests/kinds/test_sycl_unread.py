"""What cannot be read just now is no damage: it is unread, and what was known of a directory stays."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

from xpucached import shortage
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import EntryState, FoundStore, KnownEntry, Scan, Store, StoreOrigin, StoreState
from xpucached.kinds import fs, sycl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.builders import SyclStore

LASTING: Final = {"ENOENT", "EACCES", "EPERM", "ELOOP", "ENXIO", "EISDIR", "ENOTDIR", "EXDEV"}
"""All that says something of what was opened."""


def look(root: Path) -> Scan:
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
    return sycl.scanner.scan(found, datetime.now(UTC), {}, None)


def failing(name: str, number: int) -> Callable[[str, int, int], int]:
    """Return an opening that fails for what has this name."""
    opening = fs._open

    def fails(one: str, flags: int, directory: int) -> int:
        if one == name:
            raise OSError(number, os.strerror(number))
        return opening(one, flags, directory)

    return fails


@pytest.mark.parametrize("suffix", [".src", ".bin"])
def test_a_file_with_a_lease_is_not_damaged(sycl_store: SyclStore, suffix: str) -> None:
    slot = sycl_store.add()
    # Who holds a lease is told by this signal that somebody wants to open the file.
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    holder = os.open(slot.bin.with_suffix(suffix), os.O_RDWR)
    try:
        try:
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"no leases on this file system: {error}")
        (entry,) = look(sycl_store.root).entries
    finally:
        os.close(holder)
        signal.signal(signal.SIGIO, before)

    assert (entry.state, entry.defect) == (EntryState.UNREAD, None)
    assert look(sycl_store.root).entries[0].state is EntryState.OK


def test_only_few_errors_say_something_of_a_file(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = sycl_store.add()
    for number, name in errno.errorcode.items():
        with monkeypatch.context() as patch:
            patch.setattr(fs, "_open", failing(slot.bin.name, number))
            scan = look(sycl_store.root)
        if shortage.is_ours(OSError(number, "")):
            assert scan.state is StoreState.UNREADABLE
            continue
        (entry,) = scan.entries
        damaged = name in LASTING - {"ENOENT", "EXDEV"}
        waits = EntryState.UNFINISHED if name == "ENOENT" else EntryState.UNREAD
        assert entry.defect is (
            sycl.defects.BIN_UNREADABLE if damaged and name != "EISDIR" else sycl.defects.BIN_NOT_A_FILE
        ) or (not damaged and entry.defect is None and entry.state is waits), name


def test_only_few_errors_say_something_of_a_directory(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = sycl_store.add().bin.parent
    for number, name in errno.errorcode.items():
        with monkeypatch.context() as patch:
            patch.setattr(fs, "_open", failing(leaf.name, number))
            scan = look(sycl_store.root)
        assert scan.state is (StoreState.OK if name in LASTING else StoreState.UNREADABLE), name


@pytest.mark.parametrize("suffix", [".src", ".bin"])
def test_a_lock_beside_what_cannot_be_read_just_now_is_no_interrupted_write(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    slot = sycl_store.add()
    slot.lock.touch()
    os.utime(slot.lock, (1, 1))
    assert look(sycl_store.root).entries[0].defect == sycl.defects.STALE_LOCK

    name = slot.bin.with_suffix(suffix).name
    with monkeypatch.context() as patch:
        patch.setattr(fs, "_open", failing(name, errno.EAGAIN))
        assert look(sycl_store.root).entries[0].state is EntryState.UNREAD
    monkeypatch.setattr(fs, "_open", failing(name, errno.EACCES))
    assert look(sycl_store.root).entries[0].defect == sycl.defects.INTERRUPTED


def test_a_signal_ends_no_opening(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fs._has_openat2():
        pytest.skip("this kernel has no openat2")
    sycl_store.add()
    real = fs._syscall()
    assert real is not None
    interrupted = 0

    def every_second(*arguments: object) -> int:
        nonlocal interrupted
        interrupted += 1
        if interrupted % 2:
            ctypes.set_errno(errno.EINTR)
            return -1
        return int(real(*arguments))

    monkeypatch.setattr(fs, "_syscall", lambda: every_second)

    (entry,) = look(sycl_store.root).entries
    assert entry.state is EntryState.OK
    assert interrupted > 0


def test_what_is_known_below_a_directory_that_may_not_be_read_is_kept(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut, other = (sycl_store.add(kernel).leaf for kernel in ("_ZTS1a", "_ZTS1b"))
    (first,) = (one.name for one in sycl_store.root.iterdir())
    # As known, but not there: below it, beside it, and beside it with a name that begins alike.
    names = (f"{shut.parts[-3]}/1/2/7", f"{shut.parts[-3]}7/1/2/7", f"{other.parts[-3]}/1/2/7")
    gone = [EntryKey(f"{first}/{name}") for name in names]
    rows = sorted((KnownEntry(one, "stamp") for one in gone), key=lambda one: one.key)
    found = FoundStore(Store(sycl.NAME, sycl_store.root), StoreOrigin.FOUND, "test")
    monkeypatch.setattr(fs, "_open", failing(shut.parts[-3], errno.EACCES))

    *before, last = sycl.scanner.parts(found, datetime.now(UTC), rows, None)
    assert sorted(key for part in (*before, last) for key in part.vanished or ()) == sorted(gone[1:])
    assert (last.shut, last.foreign, [part.shut for part in before]) == (1, 1, [0] * len(before))
    assert "directories that may not be read, whose entries are not known now: 1" in last.notes
