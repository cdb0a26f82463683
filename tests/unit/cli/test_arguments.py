"""What cannot be meant is refused in our own words: what it is about, what is wrong, and what is expected."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Final

import pytest

from xpucached.cli import arguments, option_values
from xpucached.errors import RequestError, mistyped

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON_S: Final = re.compile(r"\barguments?\b|required|invalid|not allowed|ambiguous|could match|choose from|explicit")
"""Words of Python's reader of command lines."""


def parsers() -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    """Yield what reads each command, and the words of that."""
    ahead: list[tuple[list[str], argparse.ArgumentParser]] = [([], arguments._parser())]
    while ahead:
        words, parser = ahead.pop()
        yield words, parser
        ahead += [([*words, name], below) for name, below in arguments._commands(parser).items()]


def wrong(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    """Yield words that this one cannot take, whatever else it needs."""
    yield ["--colour-of-the-sky"]
    for one in parser._actions:
        if not one.option_strings or one.dest == "help":
            continue
        name = max(one.option_strings, key=len)
        if one.nargs == 0:
            yield [f"{name}=1"]
        else:
            yield [name]
        if one.choices is not None or one.type not in {None, option_values.path}:
            yield [f"{name}=\0zzz"]
    if parser._mutually_exclusive_groups:
        for group in parser._mutually_exclusive_groups:
            some = [max(one.option_strings, key=len) for one in group._group_actions if one.option_strings]
            flags = [name for name in some if parser._option_string_actions[name].nargs == 0]
            if len(flags) > 1:
                yield flags


def test_each_command_line_that_cannot_be_meant_is_refused_in_our_words(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    # To make it for each of hundreds of lines takes most of the time.
    made = arguments._parser()
    monkeypatch.setattr(arguments, "_parser", lambda: made)
    for words, parser in parsers():
        for more in wrong(parser):
            with pytest.raises(RequestError) as caught:
                arguments.parse([*words, *more])
            said = caught.value
            assert said.message, (words, more)
            assert said.hint, (words, more)
            assert PYTHON_S.search(said.message.partition("expected one of")[0]) is None, (words, more, said.message)
            assert "<" not in said.message.partition("expected one of")[2], (words, more, said.message)
            refused += 1
    assert refused > 100


def test_what_is_missing_and_what_there_is_instead_is_said() -> None:
    def said(line: str) -> str:
        with pytest.raises(RequestError) as caught:
            arguments.parse(line.split())
        return caught.value.message

    assert said("model add") == "missing: NAME"
    assert said("model") == "missing: a command; expected one of add, list, show, history, remove"
    assert said("completion tcsh") == "SHELL: no 'tcsh'; expected one of bash, zsh, fish"
    assert said("prewarm --all --stale") == "--stale: not together with --all; give one of them"
    assert said("replay --to") == "--to: its value is missing"
    assert said("ls --s x") == "--s: it may mean each of --socket, --system; write it out"
    assert said("ls --limit x") == "--limit: not a count: 'x'; expected 1 or more"
    assert mistyped("something else") == "something else"
