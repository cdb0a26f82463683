"""What keeps a bundle from being read is told apart: what it is, and what may pass."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import bundles
from xpucached.bundle import members
from xpucached.errors import BadBundle, DiskError

if TYPE_CHECKING:
    from pathlib import Path

NAMES: Final = ("oci-layout", "index.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_that_may_not_be_read_is_not_called_bad(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that root has copied: it was passed over for ever, also when it could be read."""
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    place = bundles.write(tmp_path / "bundle", bundles.layout()).relative_to(tmp_path)
    (place / name).chmod(0)
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        with pytest.raises(DiskError, match=rf"^{name} of bundle cannot be read: Permission denied$") as told:
            members.opened(place)
    finally:
        os.seteuid(before)
    assert told.value.hint == "chmod -R a+rX bundle"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [0, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFDIR, stat.S_IFLNK])
def test_what_is_no_file_or_is_missing_is_bad(kind: int, name: str, tmp_path: Path) -> None:
    path = bundles.write(tmp_path / "bundle", bundles.layout()) / name
    path.unlink()
    if kind == stat.S_IFDIR:
        path.mkdir()
    elif kind == stat.S_IFLNK:
        path.symlink_to(path.with_name("blobs"))
    elif kind:
        os.mknod(path, kind | 0o644)
    with pytest.raises(BadBundle):
        members.opened(path.parent)


def test_a_file_in_the_place_of_a_directory_is_bad(tmp_path: Path) -> None:
    place = bundles.write(tmp_path / "bundle", bundles.layout())
    (place / "blobs").rename(tmp_path / "blobs")
    (place / "blobs").touch()
    with pytest.raises(BadBundle):
        members.opened(place)
