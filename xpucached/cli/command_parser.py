"""Door: how commands and their options are read, and refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn, cast

from xpucached.cli import habits
from xpucached.cli import option_values as values
from xpucached.errors import RequestError, guess
from xpucached.options import OptionParser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CommandParser(OptionParser):
    """Reads a command: its options, and where it has commands of its own, which of them."""

    def error(self, message: str) -> NoReturn:
        """Raise what Python's reader says as a refusal of ours, with the command that may have been meant."""
        typed = re.match(r"argument COMMAND: invalid choice: '(.*?)'", message)
        if typed is not None:
            if self.prog == "xpucachectl" and typed[1] in habits.HINTS:
                raise RequestError(f"no command {typed[1]!r}", hint=habits.HINTS[typed[1]])
            known = commands(self)
            deeper = [name for name, below in known.items() if typed[1] in commands(below)]
            near = f"did you mean {deeper[0]} {typed[1]}?" if len(deeper) == 1 else guess(typed[1], known)
            message = f"no command {typed[1]!r}{f'; {near}' if near else ''}"
        elif message.endswith("required: COMMAND"):
            message = f"missing: a command; expected one of {', '.join(commands(self))}"
        super().error(message)

    def no_option(self, name: str) -> RequestError:
        """Return the refusal of an option that there is not, and what it is called here."""
        if name in values.RENAMED:
            message = f"no option {name}; it is called {values.RENAMED[name]} now"
            return RequestError(message, hint=f"{self.prog} --help")
        known = habits.OPTIONS.get((self.prog.removeprefix("xpucachectl "), name))
        return RequestError(f"no option {name}", hint=known) if known else super().no_option(name)


def commands(parser: OptionParser) -> Mapping[str, CommandParser]:
    """Return the commands that a parser knows, and what parses each."""
    found = (one.choices for one in parser._actions if one.dest == "verb_")  # noqa: SLF001 - there is no other way to ask
    return cast("Mapping[str, CommandParser]", next(found, None) or {})


def reader_of(parser: CommandParser, argv: Sequence[str]) -> CommandParser:
    """Return what reads the options of the command that a command line names."""
    for word in argv:
        parser = commands(parser).get(word, parser)
    return parser
