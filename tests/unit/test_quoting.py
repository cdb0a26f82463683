"""What is shown to be copied into a shell is the same word there, and lets no control character through."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

import xpucached
from tests.support import api_stub
from xpucached.domain.models import RemovedModel
from xpucached.domain.names import ModelName
from xpucached.printing import command, plain
from xpucached.render import caches, models
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN: Final = ("", "a", "a b", "it's", "~", "$(id)", "-rf", "a b\\", "\\\\ '", "\\'\";echo out;#")
WORDS: Final = (
    *PLAIN,
    *("a  b", " a", "a ", "a\nb", "a\tb\\n", "it's\n", "\x1b[2Jx", "\u202eabc", "\u3000", "\x7f0", "\u00e9\n", "$'\n"),
    os.fsdecode(b"\xff0 1"),
)


@pytest.mark.flow
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_word_that_is_copied_is_the_same_word(shell: str) -> None:
    shown = command(WORDS)
    assert plain(shown) == shown
    assert shown.isprintable()
    try:
        done = subprocess.run([shell, "-c", f"printf '%s\\0' {shown}"], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip(f"there is no {shell}")
    assert done.stdout.split(b"\0")[:-1] == [*map(os.fsencode, WORDS)]


@pytest.mark.flow
def test_in_fish_a_word_is_the_same_word_or_nothing_is_run(tmp_path: Path) -> None:
    fish, variables = shutil.which("fish"), {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    if fish is None:
        pytest.skip("there is no fish")
    start = [fish, "-c"]

    def run(words: Iterable[str]) -> bytes:
        line = f"printf '%s\\0' {command(words)}"
        return subprocess.run([*start, line], capture_output=True, check=False, env=variables).stdout

    assert run(PLAIN).split(b"\0")[:-1] == [*map(os.fsencode, PLAIN)]
    assert run(["a", "\n;echo out;#"]) == b""


def test_a_model_s_command_and_what_may_be_removed_are_shown_so() -> None:
    style = TextStyle(api_stub.NOW, 80)
    status = replace(api_stub.make_model(), command=("/bin/echo", *WORDS), directory=Path("/srv/a  b"))
    shown = models.model(status, style).splitlines()
    assert f"command     {command(('/bin/echo', *WORDS))}" in shown
    assert "directory   /srv/a  b" in shown

    cache = replace(api_stub.make_cache("net", "--cache"), path=Path("/srv/a  b\n"), stays="--cache names it")
    removed = caches.removed(RemovedModel(ModelName("net"), caches=(cache,)), style)
    assert removed.endswith(r"rm -r $'/srv/a\x20\x20b\x0a'")


def test_no_module_quotes_in_another_way() -> None:
    sources = Path(xpucached.__file__).parent.rglob("*.py")
    assert not [path for path in sources if re.search(r"shlex\.(quote|join)", path.read_text(encoding="utf-8"))]


@pytest.mark.flow
def test_a_shell_that_does_not_know_these_quotes_runs_nothing_of_what_is_in_them(tmp_path: Path) -> None:
    line = ": " + command(["\n';>ran;#"])
    subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, check=False)
    assert not (tmp_path / "ran").exists()
