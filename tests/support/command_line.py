"""`xpucachectl` in the test's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached import cli

if TYPE_CHECKING:
    import pytest


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command line; gives its exit status, and what it printed to stdout and to stderr."""
    status = cli.main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err
