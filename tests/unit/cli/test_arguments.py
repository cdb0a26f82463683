"""What cannot be meant is refused in our own words: what it is about, what is wrong, and what is expected."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from xpucached import quantities
from xpucached.cli import arguments, capture_env, command_parser, habits, option_values
from xpucached.errors import RequestError
from xpucached.options import OptionParser, mistyped
from xpucached.render import text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PYTHON_S: Final = re.compile(r"\barguments?\b|required|invalid|not allowed|ambiguous|could match|choose from|explicit")
"""Words of Python's reader of command lines."""


def parsers() -> Iterator[tuple[list[str], OptionParser]]:
    """Yield what reads each command, and the words of that."""
    ahead: list[tuple[list[str], OptionParser]] = [([], arguments._parser())]
    while ahead:
        words, parser = ahead.pop()
        yield words, parser
        ahead += [([*words, name], below) for name, below in command_parser.commands(parser).items()]


def wrong(parser: OptionParser) -> Iterator[list[str]]:
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


def test_what_one_command_line_gives_the_next_one_does_not_find() -> None:
    lines = (
        ["model", "add", "x", "--env", "A=1", "--", "true"],
        ["ls", "a*", "--size", ">1MB"],
        ["prewarm", "--", "x"],
    )
    before = [vars(arguments.parse(line)) for line in lines]
    others = (["model", "add", "y", "--env", "B=2", "--", "false"], ["ls", "b*", "--size", "<1k"], ["prewarm", "y"])
    for line in others:
        arguments.parse(line)

    assert [vars(arguments.parse(line)) for line in lines] == before
    assert arguments.parse(["prewarm"]).models == arguments.parse(["ls"]).size == []


def test_each_command_line_that_cannot_be_meant_is_refused_in_our_words() -> None:
    refused = 0
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
    assert said("fleet") == "missing: a command; expected one of diff"
    assert said("completion tcsh") == "SHELL: no 'tcsh'; expected one of bash, zsh, fish"
    assert said("prewarm --all --stale") == "--stale: not together with --all; give one of them"
    assert said("replay --to") == "--to: its value is missing"
    assert said("ls --s x") == "--s: it may mean each of --socket, --system; write it out"
    assert said("ls --limit x") == "--limit: not a count: 'x'; expected 1 or more"
    assert mistyped("something else") == "something else"


@pytest.mark.parametrize(
    "line",
    [
        *(["--of", "", "evict"], ["evict", "--of="], ["evict", "--bundle", ""], ["ls", "--bundle="]),
        *(["bundle", "export", "dest", "--sign", ""], ["bundle", "merge", "a", "b", "--sign="]),
    ],
)
def test_a_name_that_is_empty_is_not_everybody(line: list[str]) -> None:
    """As of a variable that is not set: nobody means all users then, all bundles, or no signature."""
    with pytest.raises(RequestError, match="expected a name"):
        arguments.parse(line)


def test_an_option_that_there_is_not_is_named_whatever_was_taken_for_its_value() -> None:
    def said(line: str) -> tuple[str, str]:
        with pytest.raises(RequestError) as caught:
            arguments.parse(line.split())
        return caught.value.message, caught.value.hint

    assert said("status --chek") == ("no option --chek; did you mean --check?", "xpucachectl status --help")
    assert said("--jsn status") == ("no option --jsn; did you mean --json?", "xpucachectl status --help")
    assert said("trash lst")[0] == "no command 'lst'; did you mean list?"
    assert said("evict --foo=1 -n")[0] == "no option --foo"
    assert said("evict -x")[0] == "no option -x"
    assert said("model add x --pinnd -- sh")[0] == "no option --pinnd; did you mean --pinned?"
    # Its value is no reference, and that is not what is wrong.
    message, hint = said("evict --max-bytes 100KiB")
    assert (message, "policy.max_bytes" in hint) == ("no option --max-bytes", True)
    assert said("evict 100KiB")[0].startswith("REF: not a reference: '100KiB'")
    # The beginning of an option is enough, and a number below zero is none.
    assert arguments.parse(["evict", "--dry"]).dry_run
    assert said("events --since -5")[0].startswith("--since: not a number, and no age: '-5'")
    # Behind the name of a model stands a program, whose options are its own.
    assert said("model add x sh --foo")[0] == "the model's command stands behind --"
    assert said("run sh --foo")[0] == "the program stands behind --"


def test_what_has_commands_of_its_own_lists_where_none_is_given() -> None:
    for name, does in habits.ALONE.items():
        assert arguments.parse([name]).verb == f"{name} {does}"
        assert arguments.parse(["-q", name, "--json", "--of", "list"]).of == "list"
        with pytest.raises(SystemExit):
            arguments.parse([name, "--help"])
    assert arguments.parse(["trash", "--json", "restore", "--all"]).verb == "trash restore"


def test_sizes_are_read_as_they_are_written() -> None:
    for count in (0, 1023, 1024, 100 << 10, 1 << 20, 3 << 30, 5 << 40):
        assert quantities.size(text.size(count)) == count
        assert option_values.bound(f"<={text.size(count).replace(' ', '')}") == (None, count)


def test_the_home_of_nobody_is_a_name_like_any_other(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        assert option_values.path("~/a/../b") == home / "b"
        assert option_values.path("~no-such-user/x") == tmp_path / "~no-such-user" / "x"
        assert capture_env._store("~no-such-user/x", {}, tmp_path) == tmp_path / "~no-such-user" / "x"
    finally:
        monkeypatch.undo()
