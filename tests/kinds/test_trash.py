"""What all kinds share of the trash: what is shown of it, what is let be, and how something comes back."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.kinds import fakes
from tests.kinds.test_contract import LABEL, OLD, Filled
from tests.kinds.test_sycl_damage import look
from tests.support import forks
from tests.support.builders import SyclStore, native, sycl_target
from tests.support.users import site, unused
from xpucached.domain.names import TrashRef
from xpucached.domain.plans import Recipe
from xpucached.domain.stores import EntryId, Store
from xpucached.kinds import folders, fs, sycl, trash
from xpucached.kinds.sycl.recipes import LeafBatch
from xpucached.kinds.trash_labels import Label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from xpucached.kinds.interface import Kind

PASSING, LASTING = OSError(errno.EIO, "Input/output error"), OSError(errno.ELOOP, "Too many levels of symbolic links")
CLOSED = PermissionError(errno.EACCES, "Permission denied")


def put_away(place: Path, kind: Kind = fakes.FULL) -> tuple[Filled, list[Path]]:
    """Fill a store and put all of it away; give also the items of the trash."""
    fakes.fill(place / "store", kind, OLD)
    filled = Filled(kind, place / "store")
    filled.remove(filled.look().entries, LABEL)
    folder = place / ".gone.store" if kind is fakes.FULL else place / "store" / ".gone"
    return filled, sorted(folder.iterdir())


def shown(filled: Filled) -> dict[str, bool]:
    """Return what the trash is said to hold, and whether it is whole."""
    return {one.ref: one.whole for one in filled.trash.trash(filled.store)}


# -- a disk that does not give everything -----------------------------------------------------------------------------


def test_an_item_that_cannot_be_opened_is_passed_over_and_the_others_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled, items = put_away(tmp_path)
    closed, others = items[0].name, [one.name for one in items[1:]]
    opening = fs.enter

    def enter(parent: int, name: str, device: int, owner: int) -> tuple[int, os.stat_result]:
        if name == closed:
            raise CLOSED
        return opening(parent, name, device, owner)

    monkeypatch.setattr(fs, "enter", enter)
    assert shown(filled) == dict.fromkeys(others, True)


@pytest.mark.parametrize("what", [trash.ABOUT, trash.LEAF])
@pytest.mark.parametrize(
    ("error", "there"), [(PASSING, False), (CLOSED, False), (LASTING, True)], ids=["passing", "closed", "lasting"]
)
def test_what_the_disk_does_not_give_just_now_is_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, error: OSError, *, there: bool
) -> None:
    filled, items = put_away(tmp_path)
    opening = fs._open

    def fails(name: str, flags: int, directory: int) -> int:
        if name == what:
            raise error
        return opening(name, flags, directory)

    monkeypatch.setattr(fs, "_open", fails)
    # What is no label, and no leaf, never was an entry's: it is shown as what goes next.
    assert shown(filled) == (dict.fromkeys([one.name for one in items], False) if there else {})


def test_of_an_item_whose_files_cannot_be_looked_at_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled, items = put_away(tmp_path)
    looking = trash.TrashFolder.statuses
    seen: list[int | None] = []

    def statuses(self: trash.TrashFolder, place: int | None, label: Label) -> dict[str, os.stat_result]:
        seen.append(place)
        if len(seen) == 1:
            raise PASSING
        return looking(self, place, label)

    monkeypatch.setattr(trash.TrashFolder, "statuses", statuses)
    assert list(shown(filled).values()) == [True] * (len(items) - 1)


# -- what is not ours -------------------------------------------------------------------------------------------------


def test_only_what_can_be_an_item_is_dropped_or_comes_back(tmp_path: Path) -> None:
    filled, items = put_away(tmp_path)
    strange = items[0].rename(items[0].with_name("somebody-s"))
    ref = TrashRef(strange.name)
    assert filled.trash.discard(filled.store, (ref,)) == frozenset()
    (told,) = filled.trash.restore(filled.store, (ref,))
    assert (told.key, told.detail) == (None, "it is not there any more")
    assert (strange / trash.ABOUT).exists()
    assert list((strange / trash.LEAF).iterdir())


def test_what_the_disk_refuses_is_told_and_what_somebody_forged_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled, items = put_away(tmp_path)
    ref = TrashRef(items[0].name)
    failed: list[int | None] = []
    (items[0] / "theirs").write_bytes(b"")

    assert filled.trash.discard(filled.store, (ref,), lambda _, error: failed.append(error.errno)) == frozenset()
    assert failed == []

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "unlink", read_only)
    assert (
        filled.trash.discard(filled.store, (TrashRef(items[1].name),), lambda _, error: failed.append(error.errno))
        == frozenset()
    )
    assert failed == [errno.EROFS]


# -- coming back ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["longer", "a directory", "a pipe", "a link", "gone"])
def test_what_is_not_what_was_put_away_does_not_come_back(tmp_path: Path, how: str) -> None:
    filled, items = put_away(tmp_path)
    (file,) = (items[0] / trash.LEAF).iterdir()
    content = file.read_bytes()
    file.unlink()
    match how:
        case "longer":
            file.write_bytes(content + b"x")
        case "a directory":
            file.mkdir()
        case "a link":
            file.symlink_to(tmp_path / "aside")
            (tmp_path / "aside").write_bytes(content)
        case "a pipe":
            # An empty one, as a file may be that was put away.
            label = items[0] / trash.ABOUT
            label.write_text(label.read_text().replace(f"[{len(content)}, ", "[0, "))
            os.mkfifo(file)
    assert shown(filled)[items[0].name] is False
    (told,) = filled.trash.restore(filled.store, (TrashRef(items[0].name),))
    assert told.key is None
    assert told.detail == ("not all its files are there" if how == "gone" else "its  is not the one that was put here")
    assert filled.files() == {}


def test_a_file_in_the_place_of_a_directory_does_not_come_back(tmp_path: Path) -> None:
    filled, items = put_away(tmp_path, fakes.NEST)
    (folder,) = (items[0] / trash.LEAF).iterdir()
    folder.rename(tmp_path / "aside")
    folder.write_bytes(b"")
    assert shown(filled)[items[0].name] is False
    assert filled.trash.restore(filled.store, (TrashRef(items[0].name),))[0].key is None


def of_sycl(place: Path) -> tuple[Path, Store]:
    """Put an entry of a SYCL store away, whose leaf others may list; give the leaf."""
    made = SyclStore(place / "store").add()
    made.leaf.chmod(0o750)
    scan = look(place / "store")
    assert all(sycl.remover.remove(scan.entries, {one.id: LABEL for one in scan.entries}).values())
    assert not made.leaf.exists()
    return made.leaf, scan.found.store


def moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the names under which files come from now on, in their order."""
    renaming = os.rename
    seen: list[str] = []

    def rename(name: str, other: str, **more: int) -> None:
        renaming(name, other, **more)
        seen.append(other)

    monkeypatch.setattr(os, "rename", rename)
    return iter(seen)


def test_that_with_which_an_entry_is_found_comes_back_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaf, store = of_sycl(tmp_path)
    came = moves(monkeypatch)
    (one,) = sycl.trash_files.trash(store)
    assert sycl.trash_files.restore(store, (one.ref,))[0].key is not None
    assert list(came) == ["0.bin", "0_access_time.txt", "0.src"]
    assert sorted(path.name for path in leaf.iterdir()) == ["0.bin", "0.src", "0_access_time.txt"]


@pytest.mark.parametrize("given", [0, 0o077])
def test_directories_come_back_with_the_mode_that_they_had(tmp_path: Path, given: int) -> None:
    leaf, store = of_sycl(tmp_path)
    (one,) = sycl.trash_files.trash(store)
    mask = os.umask(given)
    try:
        assert sycl.trash_files.restore(store, (one.ref,))[0].key is not None
    finally:
        os.umask(mask)
    assert leaf.stat().st_mode & 0o777 == 0o750


def test_the_owner_can_enter_what_comes_back_whatever_its_label_says(tmp_path: Path) -> None:
    leaf, store = of_sycl(tmp_path)
    (label,) = (tmp_path / "store").rglob(trash.ABOUT)
    label.write_text(label.read_text().replace(f'"mode": {0o750}', '"mode": 0'))
    (one,) = sycl.trash_files.trash(store)
    assert sycl.trash_files.restore(store, (one.ref,))[0].key is not None
    assert leaf.stat().st_mode & 0o777 == 0o700


# -- what goes --------------------------------------------------------------------------------------------------------


def test_what_somebody_else_removed_is_gone(tmp_path: Path) -> None:
    fakes.fill(tmp_path / "full", fakes.FULL, OLD)
    filled = Filled(fakes.FULL, tmp_path / "full")
    entry, *others = filled.look().entries
    (filled.root / entry.id.key).unlink()
    assert fakes.FULL.remover.remove([entry, *others]) == dict.fromkeys([entry.id, *(one.id for one in others)], True)

    store = SyclStore(tmp_path / "store")
    slots = [store.add("_ZTS1k", slot=number) for number in range(2)] + [store.add("_ZTS1o")]
    entries = {str(one.id.key): one for one in look(store.root).entries}
    alone, upper = (entries[str(made.bin.relative_to(store.root).with_suffix(""))] for made in (slots[2], slots[1]))
    for made in slots[1:]:
        for file in (made.src, made.bin, made.access_time):
            file.unlink()
    slots[2].leaf.rmdir()
    assert sycl.remover.remove([alone, upper]) == {alone.id: True, upper.id: True}
    assert slots[0].bin.exists()


def test_of_directories_only_an_empty_one_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / "full" / "inner").mkdir(parents=True)
    (place / "empty").mkdir()
    (place / "link").symlink_to("full")
    with fs.folder(str(place)) as directory:
        for name in ("empty", "link", "nothing"):
            folders.unlink(directory, name)
        with pytest.raises(OSError, match="not empty"):
            folders.unlink(directory, "full")
    assert [path.name for path in place.iterdir()] == ["full"]


def test_a_file_in_the_place_of_a_directory_leaves_the_trash(tmp_path: Path) -> None:
    filled, items = put_away(tmp_path, fakes.NEST)
    (folder,) = (items[0] / trash.LEAF).iterdir()
    folder.rename(tmp_path / "aside")
    folder.write_bytes(b"")
    ref = TrashRef(items[0].name)
    assert filled.trash.discard(filled.store, (ref,)) == {ref}
    assert not items[0].exists()


# -- a trash that somebody has filled ---------------------------------------------------------------------------------


def test_a_trash_is_looked_at_in_a_hundred_pages_of_50000_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled, _ = put_away(tmp_path)
    asked: list[int] = []

    def names(_self: object, _home: int, _name: str, _device: int, most: int, _after: str = "") -> list[str]:
        asked.append(most)
        return ["none"] * most

    monkeypatch.setattr(trash.TrashFolder, "names", names)
    monkeypatch.setattr(trash.TrashFolder, "_described", lambda *_: ())
    assert filled.trash.trash_size(filled.store) == 0
    assert asked == [50_000] * 100


def test_what_is_told_of_a_trash_has_64_million_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled, _ = put_away(tmp_path)
    (one, *_) = filled.trash.trash(filled.store)
    quarter = replace(one, detail="x" * (16 << 20), device="", driver="")
    for more, shown in ((replace(quarter, detail=quarter.detail + "x"), 3), (quarter, 4)):
        every = [quarter, quarter, quarter, more]
        monkeypatch.setattr(trash.TrashFolder, "_there", lambda *_, every=every: every)
        assert len(filled.trash.trash(filled.store)) == shown
    monkeypatch.setattr(trash.TrashFolder, "_there", lambda *_: [one] * 50_001)
    assert len(filled.trash.trash(filled.store)) == 50_000


def test_a_thousand_names_of_an_item_are_looked_at(tmp_path: Path) -> None:
    for number in range(1001):
        (tmp_path / str(number)).touch()
    with fs.folder(str(tmp_path)) as leaf:
        assert len(trash._files(leaf, lambda _: True)) == 1000


# -- who shares a store -----------------------------------------------------------------------------------------------


def become(group: int, uid: int) -> None:
    """Go on as a user of a group, who lets it write what is the user's."""
    os.setgroups([group])
    os.setgid(uid)
    os.setuid(uid)
    os.umask(0o002)


def as_user(group: int, uid: int, work: Callable[[], object]) -> None:
    """Do something as such a user."""

    def act() -> None:
        become(group, uid)
        work()

    assert os.waitpid(forks.copy(act), 0)[1] == 0


@contextlib.contextmanager
def shared_store() -> Iterator[tuple[Path, int, int, int]]:
    """Make a store in which two users of a group have an entry each; give also its owner, the guest and the group."""
    owner, guest, group = unused(), unused(1), unused(2)
    with site() as place:
        root = place / "store"
        root.mkdir()
        os.chown(root, owner, group)
        root.chmod(0o2775)
        for uid in (owner, guest):
            as_user(group, uid, functools.partial(SyclStore(root).add, f"_ZTS{uid}"))
        yield root, owner, guest, group


@pytest.mark.flow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")
@pytest.mark.parametrize("first", ["its owner", "a guest"])
def test_each_who_shares_a_store_has_a_trash_that_nobody_else_enters(first: str) -> None:
    with shared_store() as (root, owner, guest, group):
        act, store = functools.partial(as_user, group), Store(sycl.NAME, root)

        def evict() -> None:
            (entry,) = [one for one in look(root).entries if (root / f"{one.id.key}.bin").stat().st_uid == os.geteuid()]
            assert sycl.KIND.remover.remove([entry], {entry.id: LABEL}) == {entry.id: True}
            (there,) = sycl.trash_files.trash(store)
            assert (there.key, there.whole) == (entry.id.key, True)

        def restore() -> None:
            (there,) = sycl.trash_files.trash(store)
            assert sycl.trash_files.restore(store, (there.ref,))[0].key == there.key

        for uid in (owner, guest) if first == "its owner" else (guest, owner):
            act(uid, evict)
        modes = {path.name: (path.stat().st_uid, path.stat().st_mode & 0o777) for path in root.glob(".*")}
        assert modes == {".xpucached.trash": (owner, 0o700), f".xpucached.trash-{guest}": (guest, 0o700)}
        # A daemon goes into directories of its own user and of the root's owner only: so the owner's is made first.
        for uid in (owner, guest):
            act(uid, restore)
        assert not list(root.glob(".*"))


@pytest.mark.flow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")
@pytest.mark.parametrize("first", ["its owner", "a guest"])
def test_who_puts_something_into_a_shared_store_keeps_nobody_from_doing_so(first: str) -> None:
    with shared_store() as (root, owner, guest, group):
        act = functools.partial(as_user, group)
        one, other = (owner, guest) if first == "its owner" else (guest, owner)

        def publish(batch: LeafBatch) -> None:
            there = look(root).entries
            (own,) = [each for each in there if (root / f"{each.id.key}.bin").stat().st_uid == os.geteuid()]
            recipe = sycl.recipes.recipe(own)
            assert isinstance(recipe, Recipe)
            batch.add(recipe, sycl_target("P", "D", "V", "another one"), native(300))

        def whole() -> None:
            with LeafBatch(root) as batch:
                publish(batch)
                assert len([*batch.publish()]) == 1
            # What the other one is making is nothing to be cleared.
            assert look(root).ours == ()

        def stops() -> None:
            become(group, one)
            with LeafBatch(root) as batch:
                publish(batch)
                os.kill(os.getpid(), signal.SIGSTOP)

        pid = forks.copy(stops)
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        try:
            act(other, whole)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

        def clear() -> None:
            assert [sycl.remover.sweep(EntryId(Store(sycl.NAME, root), key)) for key in look(root).ours] == [True]

        act(one, clear)
        assert not list(root.glob(".*"))


def test_the_trash_of_another_user_is_nothing_strange_in_a_store(tmp_path: Path) -> None:
    store = SyclStore(tmp_path / "store")
    store.add()
    for name in (".xpucached.trash-12345", ".xpucached-12345"):
        (store.root / name).mkdir(0o700)
    assert look(store.root).foreign == 0
