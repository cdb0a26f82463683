"""Door: commands that are given several names: they are done for each, and the worst exit status counts."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import TYPE_CHECKING, Final

from xpucached import codec, messages
from xpucached.api.endpoints import VERSION
from xpucached.errors import XpucachedError
from xpucached.printing import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpucached.cli.output import Output
    from xpucached.messages import Json

NAMED: Final[Mapping[str, str]] = {
    "show": "ref",
    "why": "model",
    "model show": "name",
    "model history": "name",
    "model remove": "name",
}
"""Commands whose names are as many as one likes, and the option that holds them."""


def run(output: Output, command: Callable[[Output], int]) -> int:
    """Do a command for each of its names; gives the worst exit status.  With `--json` the answers are one list."""
    option = NAMED.get(output.options.verb)
    names = getattr(output.options, option) if option is not None else None
    if option is None or not isinstance(names, list):
        return command(output)
    names = list(dict.fromkeys(names))
    if len(names) == 1:
        setattr(output.options, option, names[0])
        return command(output)
    worst, found, parted = 0, list["Json"](), False
    for name in names:
        setattr(output.options, option, name)
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said) if output.json else contextlib.nullcontext():
                if parted and not (output.json or output.quiet) and output.options.verb != "model remove":
                    print()
                worst = max(worst, command(output))
                parted = True
        except XpucachedError as error:
            # The others are done all the same.
            print(f"xpucachectl: {plain(error.message)}", file=sys.stderr)
            worst = max(worst, error.exit)
        if output.json and (text := said.getvalue()):
            data = messages.parse(text.encode("ascii"), largest=len(text), escaped_bytes=True)
            found.append(data["data"] if isinstance(data, dict) else None)
    if output.json:
        print(codec.dumps({"api": VERSION, "data": found}).decode("ascii"))
    return worst
