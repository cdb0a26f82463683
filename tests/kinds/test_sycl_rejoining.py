"""What a dead daemon began with a slot of a SYCL store is finished."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

import pytest

from xpucached.domain.names import EntryKey
from xpucached.domain.stores import EntryId, Store
from xpucached.kinds import removal, sycl
from xpucached.kinds.sycl import locks, remover

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.builders import SyclStore

HALF = ("0.bin", "0.lock")
REST = ("1.src", "1_access_time.txt", "1.lock")
WHOLE = ("0.bin", "0.lock", "0.src", "0_access_time.txt")


@pytest.mark.parametrize(
    ("there", "after"),
    [
        ((*HALF, *REST), WHOLE),
        ((*HALF, "1.src", "1.lock"), ("0.bin", "0.lock", "0.src")),
        (
            (*HALF, "1.bin", "1.src", "1.lock", "2.src", "2.lock"),
            ("0.bin", "0.lock", "0.src", "1.bin", "1.lock", "1.src"),
        ),
        ((*HALF, "1.src"), (*HALF, "1.src")),
        ((*HALF, "1.src", "2.src", "2.lock"), ("0.bin", "0.lock", "0.src", "1.src")),
        ((*HALF, "1.lock", "1_access_time.txt"), (*HALF, "1.lock", "1_access_time.txt")),
        ((*HALF, *REST, "2.src", "2.lock"), (*WHOLE, "2.lock", "2.src")),
        ((*WHOLE, *REST), (*WHOLE, *REST)),
        (("0.lock", *REST), ("0.lock", *REST)),
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_the_half_with_the_source_comes_to_the_half_with_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], after: tuple[str, ...], *, ours: bool
) -> None:
    leaf = tmp_path / "leaf"
    leaf.mkdir()
    for name in there:
        (leaf / name).touch()

    @contextlib.contextmanager
    def inherited(*_: object) -> Iterator[bool]:
        yield ours

    monkeypatch.setattr(locks, "inherited", inherited)
    descriptor = os.open(leaf, os.O_RDONLY)
    try:
        remover._rejoin(descriptor, "0")
    finally:
        os.close(descriptor)
    assert sorted(path.name for path in leaf.iterdir()) == sorted(after if ours else there)


@pytest.mark.parametrize(("before", "freed", "after"), [(b"1000", 300, b"700"), (b"200", 300, b"0"), (b"x", 3, b"x")])
def test_the_runtimes_own_total_is_put_right(tmp_path: Path, before: bytes, freed: int, after: bytes) -> None:
    total = tmp_path / "cache_size.txt"
    total.write_bytes(before)
    total.chmod(0o640)
    (tmp_path / "cache_size.txt.xpucached").symlink_to("elsewhere")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        remover._correct_size(descriptor, freed)
        assert total.read_bytes() == after
        assert total.stat().st_mode & 0o777 == 0o640
        (tmp_path / "cache_size.txt.lock").touch()
        remover._correct_size(descriptor, 1)
        assert total.read_bytes() == after, "the runtime is at it"
        total.unlink()
        remover._correct_size(descriptor, 1)
    finally:
        os.close(descriptor)
    assert not total.exists()
    assert not (tmp_path / "elsewhere").exists()


def swept(store: SyclStore, key: str) -> bool:
    return remover.sweep(EntryId(Store(sycl.NAME, store.root), EntryKey(key)))


@pytest.mark.parametrize("suffix", ["bin", "src"])
def test_a_removal_that_was_begun_is_finished(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    slots = [sycl_store.add("_ZTS1a", slot=number, size=300 + number) for number in range(2)]
    key = f"{slots[0].leaf.relative_to(sycl_store.root)}/0"
    assert not swept(sycl_store, key), "nobody has left a lock there"
    other = slots[1].bin.read_bytes()
    slots[0].lock.touch()
    (slots[0].leaf / f"0.{suffix}").unlink()

    @contextlib.contextmanager
    def inherited(*_: object) -> Iterator[bool]:
        yield True

    monkeypatch.setattr(locks, "inherited", inherited)
    assert swept(sycl_store, key)
    assert sorted(path.name for path in slots[0].leaf.iterdir()) == ["0.bin", "0.src", "0_access_time.txt"]
    assert slots[0].bin.read_bytes() == other, "the higher slot came down"


def test_what_is_whole_stays_and_only_its_lock_goes(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = sycl_store.add()
    slot.lock.touch()

    @contextlib.contextmanager
    def inherited(*_: object) -> Iterator[bool]:
        yield True

    monkeypatch.setattr(locks, "inherited", inherited)
    assert swept(sycl_store, f"{slot.leaf.relative_to(sycl_store.root)}/0")
    assert sorted(path.name for path in slot.leaf.iterdir()) == ["0.bin", "0.src", "0_access_time.txt"]


def test_what_is_gone_or_cannot_be_opened_is_not_swept(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    key = f"{sycl_store.add().leaf.relative_to(sycl_store.root)}/0"
    assert not swept(sycl_store, "1/2/3/4/0")

    def refuse(*_: object) -> object:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(removal, "opened", refuse)
    assert not swept(sycl_store, key)
