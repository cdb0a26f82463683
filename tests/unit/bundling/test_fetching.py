"""Two who fetch at the same time: neither takes away what the other one collects."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpucached.bundle.writing import LayoutWriter
from xpucached.bundling import fetching, registries
from xpucached.errors import AlreadyThere, Conflict


def test_who_comes_second_leaves_what_the_first_one_collects(tmp_path: Path) -> None:
    with registries.staging(tmp_path / "bundle") as place:
        with pytest.raises(Conflict), registries.staging(tmp_path / "bundle"):
            pass
        assert place.is_dir()


@pytest.mark.parametrize("names", [("file",), ("lock", "file"), ("oci-layout", "index.json")])
def test_another_directory_of_ours_that_somebody_gave_such_a_name_is_not_pulled_into(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    """As whoever may write where the bundle shall be can: the members of a group, or whose home it is."""
    mine = tmp_path / ".bundle.pulling"
    mine.mkdir()
    for name in names:
        (mine / name).touch()
    with pytest.raises(Conflict, match="something else"), registries.staging(tmp_path / "bundle"):
        pass
    assert {path.name for path in mine.iterdir()} == {*names}


def test_nothing_is_pulled_to_where_all_directories_begin() -> None:
    with pytest.raises(AlreadyThere), registries.staging(Path("/")):
        pass


def test_what_another_fetch_collects_stays_and_what_a_killed_one_left_goes(tmp_path: Path) -> None:
    folder = tmp_path / "bundles"
    folder.mkdir()
    name, left = f"{'a' * 12}-{'b' * 12}", f"{'c' * 12}-{'d' * 12}"
    with registries.staging(folder / left) as place:
        (place / "blobs/sha256" / ("0" * 64)).touch()
    (folder / f".{left}.partial-1").mkdir()
    with registries.staging(folder / name) as pulling, LayoutWriter(folder / name) as making:
        fetching._tidy(folder, ())

        assert pulling.is_dir()
        making.put_file("index.json", b"{}")
        assert sorted(folder.iterdir()) == sorted([pulling, making.scratch.parent.resolve()])
