"""Every example of a command's help can be typed."""

from __future__ import annotations

import shlex

import pytest

from tests import REPOSITORY
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


def test_what_stands_beside_other_programs_verbs_can_be_typed() -> None:
    page = (REPOSITORY / "docs" / "compared.md").read_text(encoding="utf-8")
    ours = [row.split("|")[2].strip().strip("`") for row in page.splitlines() if row.startswith("| ")][2:]
    assert len(ours) > 10
    for line in ours:
        words = line.replace("REF", "3f2a").replace("CMD", "true").split()
        assert arguments.parse(words if words[0] != "--json" else ["status", *words]).verb, line


def test_commands_show_their_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(EXAMPLES) <= set(verbs(arguments._parser()))
    with pytest.raises(SystemExit):
        arguments.parse(["prewarm", "--help"])
    assert "examples:\n  xpucachectl prewarm llama\n" in capsys.readouterr().out
