"""Many programs for one store: no program finds one before the disk has it, and what was beside goes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests import REPOSITORY
from tests.kinds.test_fs import opened
from tests.kinds.test_sycl import maker
from tests.kinds.test_sycl_recipes import NEW, look, recipe_of
from tests.support.builders import native
from tests.support.faults import Calls
from xpucached.kinds.sycl import recipes

if TYPE_CHECKING:
    from tests.support.builders import SyclStore
    from tests.support.faults import Faults

PUBLISHING = """
import sys
from pathlib import Path
from msgspec.structs import replace
from tests.kinds.test_sycl_recipes import NEW, only
from tests.support.builders import SyclStore, native
from xpucached.kinds.sycl import recipes
source = SyclStore(Path(sys.argv[1]))
recipe = recipes.recipe(only(source))
with recipes.LeafBatch(Path(sys.argv[2])) as batch:
    for number in range(3):
        batch.add(replace(recipe, options=b"-D%d" % number), NEW, native(900))
    try:
        print(len(list(batch.publish())))
    except OSError as error:
        print(error.strerror)
"""


def published(strike: Faults, source: SyclStore, into: Path) -> str:
    command = [sys.executable, "-c", PUBLISHING, str(source.root), str(into)]
    variables = {**os.environ, **strike.variables, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout


@pytest.mark.flow
def test_the_disk_is_waited_for_before_any_is_in_its_place(
    strike: Faults, sycl_store: SyclStore, tmp_path: Path
) -> None:
    sycl_store.add()
    into = tmp_path / "into"
    into.mkdir()
    strike.fail(into, errno.EIO, Calls.SYNCS, first=12)
    assert published(strike, sycl_store, into) == "Input/output error\n"
    assert strike.stop() == 12
    assert list(into.iterdir()) == []

    strike.count(into, Calls.SYNCS)
    assert published(strike, sycl_store, into) == "3\n"
    assert strike.stop() == 12
    assert len(look(into).entries) == 3
    assert [path.name for path in into.iterdir() if not path.name.isdigit()] == []


def test_each_file_of_a_program_is_waited_for(
    sycl_store: SyclStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sycl_store.add()
    waited: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: waited.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    into = tmp_path / "into"
    into.mkdir()
    with recipes.LeafBatch(into) as batch:
        batch.add(recipe_of(sycl_store), NEW, native(900))
        assert len(list(batch.publish())) == 1
    assert {"0.bin", "0.src"} <= {path.name for path in waited}


def test_32_programs_are_waited_for_together(sycl_store: SyclStore) -> None:
    sycl_store.add()
    recipe = recipe_of(sycl_store)
    with recipes.LeafBatch(sycl_store.root) as batch:
        for _ in range(31):
            batch.add(recipe, NEW, native(300))
        assert not batch._syncing
        batch.add(recipe, NEW, native(300))
        assert (len(batch._syncing), batch._descriptors) == (1, [])


def test_who_removed_what_was_beside_is_told_of(sycl_store: SyclStore) -> None:
    sycl_store.add()
    with recipes.LeafBatch(sycl_store.root) as batch:
        batch.add(recipe_of(sycl_store), NEW, native(900))
        (beside,) = (sycl_store.root / recipes.STAGING).iterdir()
        for path in beside.iterdir():
            path.unlink()
        beside.rmdir()
        with pytest.raises(FileNotFoundError):
            list(batch.publish())


def test_programs_of_several_devices_leave_no_directory_open(sycl_store: SyclStore) -> None:
    sycl_store.add()
    with recipes.LeafBatch(sycl_store.root) as batch:
        for device in ("one", "another", "a third"):
            batch.add(recipe_of(sycl_store), replace(NEW, device=device), native(900))
        assert None not in list(batch.publish())
    assert len(look(sycl_store.root).entries) == 4
    assert [path for path in opened() if path.startswith(f"{sycl_store.root}/")] == []


def test_where_a_device_s_directory_is_another_one_meanwhile_the_next_program_goes_there(
    sycl_store: SyclStore, tmp_path: Path
) -> None:
    sycl_store.add()
    recipe = recipe_of(sycl_store)
    with recipes.LeafBatch(sycl_store.root) as batch:
        for options in (b"-O1", b"-O2"):
            batch.add(replace(recipe, options=options), NEW, native(900))
        published = batch.publish()
        first = next(published)
        assert first is not None
        device = sycl_store.root / first.partition("/")[0]
        device.rename(tmp_path / "aside")
        device.mkdir()
        (second,) = published
    assert (sycl_store.root / f"{second}.bin").is_file()
    assert len(list((tmp_path / "aside").rglob("*.bin"))) == 1


def test_what_a_living_one_makes_slowly_is_not_swept(sycl_store: SyclStore) -> None:
    beside = sycl_store.root / recipes.STAGING / f"{maker(os.getppid())}-0"
    beside.mkdir(parents=True)
    os.utime(beside, (0, 0))
    assert look(sycl_store.root).ours == ()
    recipes.clear_staging(os.fspath(sycl_store.root))
    assert beside.is_dir()


def test_one_descriptor_that_cannot_be_closed_leaves_no_other_open() -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    recipes._close([ours, 1 << 30])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ours)
