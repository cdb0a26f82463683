"""What the program for bundles says besides its answer, and what is no place for a secret."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import bundles as made
from xpucached import codec
from xpucached.cli import bundles
from xpucached.domain.bundles import InspectBundle, InspectReport
from xpucached.errors import RequestError, XpucachedError
from xpucached.processes import child

if TYPE_CHECKING:
    from collections.abc import Sequence

LOUD = """
import os, sys
os.write(2, b"x" * (1 << 20) + b"\\none \\x1b]0;title\\x07\\x1b[2J\\xff\\rtwo\\n")
sys.exit(3)
"""


@pytest.mark.flow
def test_no_control_character_of_the_program_reaches_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child, "module", lambda _: (sys.executable, "-c", LOUD))
    with pytest.raises(XpucachedError, match="without an answer"):
        bundles.asked(InspectBundle(Path("/none")), quiet=True)
    said = capfd.readouterr().err
    assert r"one \x1b]0;title\x07\x1b[2J" in said
    assert "two" in said
    assert all(one.isprintable() or one == "\n" for one in said)
    assert len(said) < 100_000


@pytest.mark.flow
def test_a_bundle_may_lie_at_a_path_that_is_no_utf_8(tmp_path: Path) -> None:
    plain = made.tar(made.good())
    place = made.forge(tmp_path / os.fsdecode(b"\xff"), made.packed(plain), made.facts(plain))
    report = codec.convert(bundles.asked(InspectBundle(place), quiet=True), InspectReport)
    assert isinstance(report, InspectReport)
    assert report.view.path == place


@pytest.mark.parametrize("words", [("-----BEGIN PRIVATE KEY-----\nx",), ("x -----BEGIN EC PRIVATE KEY-----",)])
def test_a_key_is_not_taken_from_a_command_line(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XPUCACHED_SIGNING_KEY", raising=False)
    for text in words:
        with pytest.raises(RequestError, match="everybody on this host"):
            bundles._key(text)
        monkeypatch.setenv("XPUCACHED_SIGNING_KEY", text)
        assert bundles._key(None) == text


@pytest.mark.parametrize(
    "text", ["", "1", "1/1", "-1/2", "1/x", "\u0663/9", f"{'9' * 5000}/9", f"1/{'9' * 5000}", "0/99999999"]
)
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="no part"):
        bundles._shard(text)
    assert bundles._shard("3/4") == (3, 4)
