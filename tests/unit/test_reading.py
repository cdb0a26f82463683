"""Files of other programs, where somebody has put links to our own among them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from xpucached import reading
from xpucached.catalog import Catalog
from xpucached.catalog.models import add_model, all_models
from xpucached.domain.models import Model, Workload
from xpucached.domain.names import ModelName
from xpucached.host import compiler_files, digests, drivers, elf
from xpucached.host.digests import Reader
from xpucached.processes import serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIDES = ("", "-wal", "-shm")
READERS: dict[str, Callable[[Path], object]] = {
    "content": lambda path: Reader().digest(str(path)),
    "beginning": lambda path: digests.beginning(str(path), 100),
    "build id": elf.build_id,
    "driver": drivers._head,
    "compiler": lambda path: compiler_files._read(path, ()),
    "requests": lambda path: serving._content(str(path)),
}
GUEST = """
import pathlib, sys
from xpucached.catalog import Catalog
Catalog.open(pathlib.Path(sys.argv[1]), guest=True).close()
"""


def _model(name: str, folder: Path) -> Model:
    return Model(ModelName(name), Workload(("/bin/true",), folder))


@pytest.mark.flow
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", READERS)
def test_a_link_to_our_catalog_costs_it_nothing(name: str, side: str, tmp_path: Path) -> None:
    """To close a file lets go of all locks that a process has on it: the next to open it would believe itself alone."""
    path = tmp_path / "state" / "catalog.sqlite"
    catalog = Catalog.open(path)
    link = tmp_path / "tokenizer.model"
    link.symlink_to(f"{path}{side}")
    catalog.write(add_model, _model("one", tmp_path))
    with contextlib.suppress(PermissionError):
        READERS[name](link)
    subprocess.run([sys.executable, "-c", GUEST, str(path)], check=True)
    assert all(os.path.lexists(f"{path}{one}") for one in SIDES)
    catalog.write(add_model, _model("two", tmp_path))
    # As after a kill: what is on the disk counts, and not what this process remembers.
    with contextlib.closing(Catalog.open(path, guest=True)) as after:
        assert [one.name for one in after.read(all_models)] == ["one", "two"]
    catalog.close()


def test_what_is_no_database_of_ours_is_read_as_ever(tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path / "catalog.sqlite")
    plain, link, gone = tmp_path / "plain", tmp_path / "link", tmp_path / "gone"
    plain.write_bytes(b"content")
    link.symlink_to(plain)
    for path in (plain, link):
        descriptor = reading.opened(path)
        assert os.read(descriptor, 100) == b"content"
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)
    with pytest.raises(OSError, match="link"):
        reading.opened(link, follow=False)
    with pytest.raises(FileNotFoundError) as error:
        reading.opened(gone)
    assert error.value.filename == str(gone)
    os.mkfifo(tmp_path / "pipe")
    os.close(reading.opened(tmp_path / "pipe"))
    catalog.close()
    # Nobody holds locks on it any more.
    os.close(reading.opened(tmp_path / "catalog.sqlite"))
