"""Door: `xpucachectl completion`: what makes a shell complete the commands, as the build of the package wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.errors import NotFound

if TYPE_CHECKING:
    from argparse import Namespace

_PLACE: Final = Path(__file__).resolve().parents[1] / "data" / "manual" / "completions"
_FILES: Final = {"bash": ("xpucachectl", "xpucached"), "zsh": ("_xpucachectl",), "fish": ("xpucachectl.fish",)}
"""A shell that loads a file for each command loads those of zsh one by one."""


def run(options: Namespace) -> int:
    """Print it; gives the exit status.  Raises `NotFound` if this build has none."""
    shell: str = options.shell
    try:
        texts = [(_PLACE / shell / name).read_text(encoding="utf-8") for name in _FILES[shell]]
    except FileNotFoundError as error:
        hint = "a package of a distribution has put them where shells look; in a source tree: make man"
        raise NotFound(f"this installation has no completions for {shell}", hint=hint) from error
    if options.json:
        from xpucached import codec  # noqa: PLC0415 - seldom needed
        from xpucached.api.endpoints import VERSION  # noqa: PLC0415 - as above

        print(codec.dumps({"api": VERSION, "data": {"shell": shell, "text": "\n".join(texts)}}).decode("ascii"))
    else:
        print("\n".join(texts))
    return 0
