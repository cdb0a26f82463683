"""In which width, and whether in colours, an answer is written is decided in one place for all commands."""

from __future__ import annotations

import sys

import pytest

from tests import REPOSITORY
from xpucached.cli import arguments, terminal


@pytest.mark.parametrize(
    ("words", "variables", "is_terminal", "colour", "width"),
    [
        ((), {}, True, True, 72),
        ((), {"TERM": "dumb"}, True, False, 72),
        ((), {"NO_COLOR": ""}, True, False, 72),
        (("--no-color",), {}, True, False, 72),
        (("--no-trunc",), {}, True, True, None),
        ((), {}, False, False, None),
    ],
)
@pytest.mark.parametrize("verb", [("ls",), ("inspect", "x"), ("bundle", "inspect", "x"), ("fingerprint",)])
def test_an_answer_is_written_for_where_it_goes(
    monkeypatch: pytest.MonkeyPatch,
    verb: tuple[str, ...],
    words: tuple[str, ...],
    variables: dict[str, str],
    *,
    is_terminal: bool,
    colour: bool,
    width: int | None,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm", "COLUMNS": "72"} | variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    style = terminal.style(arguments.parse([*words, *verb]))
    assert (style.colour, style.width) == (colour, width)


def test_no_command_decides_it_for_itself() -> None:
    found = {path.name for path in (REPOSITORY / "xpucached" / "cli").glob("*.py") if "NO_COLOR" in path.read_text()}
    # What answers most of the time loads nothing else.
    assert found == {"terminal.py", "quick_output.py"}
