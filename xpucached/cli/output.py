"""Door: one command line at work: whom it asks, and in which form the answer is printed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from xpucached import answers, codec
from xpucached.api.endpoints import VERSION
from xpucached.cli import hints, local_times

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from xpucached.api.client import Answer, Client
    from xpucached.api.endpoints import Request
    from xpucached.messages import Json
    from xpucached.render.text import TextStyle

T = TypeVar("T")


class Output(Struct, frozen=True):
    """One command line at work."""

    options: Namespace
    client: Client
    style: TextStyle
    json: bool
    quiet: bool

    def show(self, request: Request[T]) -> int:
        """Ask, and print the answer as such answers are printed."""
        look = answers.of(type(request))
        return self.ask(request, look.write, look.names)

    def ask(
        self, request: Request[T], write: Callable[[T, TextStyle], str], names: Callable[[T], str] | None = None
    ) -> int:
        """Ask, and print the answer in the form that was wished for."""
        self.tell(self.client.call(request), write, names)
        return 0

    def tell(
        self, answer: Answer[T], write: Callable[[T, TextStyle], str], names: Callable[[T], str] | None = None
    ) -> None:
        """Print an answer in the form that was wished for."""
        if self.json:
            self.dump(answer.data)
        elif self.quiet and names is not None:
            say(names(answer.value))
        else:
            self.say(write(answer.value, self.style))

    def say(self, text: str) -> None:
        """Print a text, whose commands are those that this person has to type."""
        aimed = hints.aimed(text, hints.flags(self.options), os.environ)
        say(aimed if self.options.utc or " UTC" not in aimed else local_times.local(aimed))

    def dump(self, data: Json) -> None:
        """Print data as it stood on the wire."""
        print(codec.dumps({"api": VERSION, "data": data}).decode("ascii"))


def say(text: str) -> None:
    """Print a text, unless there is none."""
    if text:
        print(text)
