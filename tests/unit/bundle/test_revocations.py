"""What is revoked is read without a library, and where it cannot be read that is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from xpucached.bundle.revocations import Revocations, revocations

if TYPE_CHECKING:
    from pathlib import Path

ONE: Final = f"sha256:{'1' * 64}"
TWO: Final = f"sha256:{'2' * 64}"


def test_all_folders_together_say_what_is_revoked(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert revocations((first, second)) == Revocations()
    for folder, text in ((first, f"# why\n{ONE.upper()} # stolen\n\n"), (second, TWO)):
        folder.mkdir()
        assert revocations((first, second)).doubt == ""
        (folder / "revoked").write_text(text)
    assert revocations((first, second)) == Revocations(frozenset({ONE, TWO}))


@pytest.mark.parametrize("wrong", ["line", "mode", "folder", "taken away", "link", "directory", "file"])
def test_what_cannot_be_read_is_unknown_and_the_rest_counts(tmp_path: Path, wrong: str) -> None:
    folder, good = tmp_path / "trust.d", tmp_path / "good"
    for one in (folder, good):
        one.mkdir()
        (one / "revoked").write_text(ONE if one is good else TWO)
    match wrong:
        case "line":
            (folder / "revoked").write_text(f"{TWO}\nrelease\n")
        case "mode":
            (folder / "revoked").chmod(0o666)
        case "folder" | "taken away":
            folder.chmod(0o777)
            if wrong == "taken away":  # by one of those who may
                (folder / "revoked").unlink()
        case "link":
            (folder / "revoked").unlink()
            (folder / "revoked").symlink_to(tmp_path / "nowhere")
        case "directory":
            (folder / "revoked").unlink()
            (folder / "revoked").mkdir()
        case _:
            (folder / "revoked").unlink()
            folder.rmdir()
            folder.touch()
    found = revocations((folder, good))
    assert found.digests == {ONE}
    assert found.doubt.startswith(f"what is revoked in {folder}")
