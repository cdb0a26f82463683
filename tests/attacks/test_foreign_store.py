"""A user wants a daemon of root's to work in his store: to read what he cannot, to run code as root, or to stop it."""

from __future__ import annotations

import os
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support.builders import SyclStore
from tests.support.daemons import Daemon, daemon
from xpucached.domain.stores import FoundStore, Scan, Store, StoreOrigin, StoreState
from xpucached.kinds import sycl
from xpucached.kinds.sycl import makers

if TYPE_CHECKING:
    from collections.abc import Iterator

THEM: Final = 12345

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be given the store of another user")


@pytest.fixture
def theirs() -> Iterator[SyclStore]:
    """Return a store of another user, with a link of its own making and a pipe in the place of a file."""
    place = Path(tempfile.mkdtemp(prefix="xpu-"))
    place.chmod(0o755)
    store = SyclStore(place / "theirs" / "store")
    for number in range(3):
        made = store.add(f"_ZTS{number}", driver="2024.18")
        for path in (made.bin, made.src, made.access_time):
            os.utime(path, (0, 0))
    for path in (store.root.parent, *store.root.parent.rglob("*")):
        os.chown(path, THEM, THEM, follow_symlinks=False)
        if path.is_dir():
            path.chmod(0o700)
            # A day is enough to be taken for old.
            os.utime(path, (0, 0))
    yield store
    shutil.rmtree(place)


def everything(place: Path) -> dict[Path, tuple[int, ...]]:
    """Return what there is, and when each was last read, written and changed."""
    return {
        path: (there.st_uid, there.st_mode, there.st_size, there.st_atime_ns, there.st_mtime_ns, there.st_ctime_ns)
        for path in (place, *place.rglob("*"))
        for there in (path.lstat(),)
    }


def problems(one: Daemon) -> list[dict[str, str]]:
    """Return what ``status`` says is wrong."""
    found = one.ask("status")["problems"]
    assert isinstance(found, list)
    return found


def untouched(store: SyclStore, before: dict[Path, tuple[int, ...]]) -> bool:
    """Return whether nothing was written, and nothing but names was read (which is our own looking)."""
    now = everything(store.root)
    return {path: value[:3] + value[4:] for path, value in now.items()} == {
        path: value[:3] + value[4:] for path, value in before.items()
    }


def test_root_itself_opens_no_store_of_others(theirs: SyclStore) -> None:
    found = FoundStore(Store(sycl.NAME, theirs.root), StoreOrigin.CONFIGURED, "test")

    def look() -> Scan:
        return sycl.scanner.scan(found, datetime.now(UTC), {}, None)

    os.chown(theirs.root, 0, 0)
    entries = look().entries
    os.chown(theirs.root, THEM, THEM)
    before = everything(theirs.root)
    refused = look()
    assert refused.state is StoreState.UNREADABLE
    assert f"user {THEM}" in refused.notes[0]
    assert refused.entries == ()
    for entry in entries:
        assert not any(sycl.remover.remove([entry]).values())
        assert not sycl.remover.sweep(entry.id)
        assert sycl.recipes.recipe(entry) == "unreadable"
    assert sycl.trash_files.trash(found.store) == ()
    assert untouched(theirs, before)


def test_a_root_daemon_leaves_the_store_of_another_user_alone(theirs: SyclStore, home: Path, short_dir: Path) -> None:
    # What another daemon's death left behind would be finished, and what is unused would go, were it root's.
    lock = next(theirs.root.glob("*/*/*/*")) / "0.lock"
    lock.write_bytes(f"xpucached {replace(makers.ourselves(), pid=999_999_999)}\n".encode())
    os.chown(lock, THEM, THEM)
    before = everything(theirs.root)
    with daemon(home, short_dir) as one:
        one.configure(
            f"[stores]\npaths = ['{theirs.root}']\n[policy]\ngrace = '0s'\nmax_unused = '1d'\n"
            "[schedule]\nsettle = '0.1s'\n"
        )
        one.start()
        (problem,) = [problem for problem in problems(one) if problem["code"] == "foreign-store"]
        assert problem["subject"] == str(theirs.root)
        assert f"user {THEM}" in problem["message"]
        assert f"xpucachectl --of {THEM} stores" in problem["hint"]
        assert str(theirs.root) not in [row["store"] for row in one.rows("stores")]
        assert one.rows("ls") == []
        refused = one.ctl("scan", str(theirs.root), check=65)
        assert f"belongs to user {THEM}" in refused.stdout
        one.ctl("evict")
        one.ctl("verify", "--fix")
        assert "Traceback" not in one.log.read_text()
    assert untouched(theirs, before)


def test_a_root_daemon_runs_no_model_in_the_store_of_another_user(
    theirs: SyclStore, home: Path, short_dir: Path
) -> None:
    ran = short_dir / "ran"
    with daemon(home, short_dir) as one:
        file = one.config.parent / "models.d" / "declared.toml"
        file.parent.mkdir(parents=True)
        words = f"command = ['touch', '{ran}']\nstore = '{theirs.root}'\ndevice = 'cpu'\n"
        file.write_text(words)
        one.start()
        refused = one.ctl("model", "add", "typed", "--store", str(theirs.root), "--", "touch", str(ran), check=65)
        assert f"belongs to user {THEM}" in refused.stderr
        one.ctl("prewarm", "declared", check=1)
        (declared,) = one.rows("model", "list")
        assert f"belongs to user {THEM}" in str(declared)
        assert "foreign-store" in [problem["code"] for problem in problems(one)]
    assert not ran.exists()
