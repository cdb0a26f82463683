"""Command lines that cannot be meant, refused in our own words: what it is about, what is wrong, what is expected."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from xpucached.errors import RequestError, guess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class _Writable(Protocol):
        def write(self, text: str, /) -> object: ...


_MISTYPED: Final = (
    (r"the following arguments are required: (.*)", r"missing: \1"),
    (r"one of the arguments (.*) is required", r"missing: one of \1"),
    (r"argument (.*?): not allowed with argument (.*)", r"\1: not together with \2; give one of them"),
    (r"argument (.*?): expected one argument", r"\1: its value is missing"),
    (r"argument (.*?): expected at least one argument", r"\1: its values are missing"),
    (r"argument (.*?): ignored explicit argument ('.*')", r"\1: it takes no value, and was given \2"),
    (r"argument (.*?): invalid choice: ('.*') \(choose from (.*)\)", r"\1: no \2; expected one of \3"),
    (r"argument (.*?): invalid \w+ value: ('.*')", r"\1: not understood: \2"),
    (r"ambiguous option: (\S+) could match (.*)", r"\1: it may mean each of \2; write it out"),
    (r"argument (.*?): (.*)", r"\1: \2"),
)
"""What Python's reader of command lines says, and how we say it."""


def mistyped(said: str) -> str:
    """Return in our words what Python's reader of command lines says of one that it does not take."""
    for pattern, ours in _MISTYPED:
        if (match := re.fullmatch(pattern, said, re.DOTALL)) is not None:
            text = match.expand(ours)
            return re.sub(r"'([\w.-]+)'(?=, '|$)", r"\1", text) if "expected one of" in text else text
    return said


class OptionParser(argparse.ArgumentParser):
    """Reads a command line, and says of its help and version if they cannot be written.

    Raises `RequestError` for what cannot be meant.
    """

    def _print_message(self, message: str, file: _Writable | None = None) -> None:
        # The original keeps to itself that nothing could be written.
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """Raise what Python's reader says as a refusal of ours."""
        raise RequestError(mistyped(message), hint=f"{self.prog} --help")

    def unknown_option(self, words: Sequence[str]) -> str | None:
        """Return the first of these words that is an option, and none of ours; as it was typed, without its value."""
        known = self._option_string_actions
        for word in words:
            name = word.partition("=")[0]
            long = word.startswith("--")
            # As Python reads them: the beginning of a long one is enough, short ones may stand together, and a number
            # below zero is a value.
            if re.match(r"-(?!\d|$)", word) and not any(one.startswith(name if long else name[:2]) for one in known):
                return name
        return None

    def no_option(self, name: str) -> RequestError:
        """Return the refusal of an option that there is not."""
        near = guess(name.lstrip("-"), [one.lstrip("-") for one in self._option_string_actions if one.startswith("--")])
        near = near.replace("did you mean ", "did you mean --")
        return RequestError(f"no option {name}{f'; {near}' if near else ''}", hint=f"{self.prog} --help")

    def understood(self, words: Sequence[str] | None = None) -> argparse.Namespace:
        """Read all of a command line that has no commands in it."""
        options, extra = self.parse_known_args(words)
        if extra:
            name = self.unknown_option(extra)
            raise (
                self.no_option(name)
                if name
                else RequestError(f"not understood: {' '.join(extra)}", hint=f"{self.prog} --help")
            )
        return options
