"""Every example of a command's help can be typed."""

from __future__ import annotations

import shlex

import pytest

from tests.test_docs import verbs
from xpucached.cli import arguments
from xpucached.cli.examples import EXAMPLES


@pytest.mark.parametrize("verb", EXAMPLES)
def test_an_example_can_be_typed(verb: str) -> None:
    for line in EXAMPLES[verb]:
        text = line.partition("  #")[0].removeprefix('eval "$(').removesuffix(')"')
        program, *words = shlex.split(text)
        assert program == "xpucachectl"
        assert arguments.parse(words).verb == verb


def test_commands_show_their_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(EXAMPLES) <= set(verbs(arguments._parser()))
    with pytest.raises(SystemExit):
        arguments.parse(["prewarm", "--help"])
    assert "examples:\n  xpucachectl prewarm llama\n" in capsys.readouterr().out
