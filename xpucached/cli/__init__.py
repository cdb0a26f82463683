"""Door: xpucachectl.  Parse, call, render.

`quick` prints what the daemon wrote, for whatever only looks, without loading anything else; `program` is all of it:
`arguments` says what may be typed, `commands` does it, `progress` sees jobs through, `capture_env` looks at the
caller's environment for new models, `setup` needs no daemon at all, `inspecting` hardly any, `output` prints.  rich
comes in only while somebody watches a job.
"""

from __future__ import annotations

import sys

from xpucached import __version__

TYPE_CHECKING = False  # typing takes longer to load than `--version` does
if TYPE_CHECKING:
    from collections.abc import Sequence


# As a shell reports a program that a signal ended: 128 and the signal's number.
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; gives the exit status."""
    try:
        return _answered(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _answered(argv: Sequence[str]) -> int:
    if None in {sys.stdin, sys.stdout, sys.stderr}:
        _open_what_was_closed()
    if [*argv] == ["--version"]:
        try:
            print(f"xpucachectl {__version__}", flush=True)
        except OSError:
            pass  # the whole program says what is wrong
        else:
            return 0
    from xpucached.cli import quick  # noqa: PLC0415 - see above

    status = quick.answer(argv)
    if status is not None:
        return status
    from xpucached.cli import program  # noqa: PLC0415 - see above

    return program.main(argv)


def _open_what_was_closed() -> None:
    """Have all three streams, so that no file that is opened later takes the number of one."""
    import os  # noqa: PLC0415 - hardly anybody has to wait for it

    # What is written to stdout does not arrive, and has to be told; of stderr nobody would hear that.
    for name, how in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, how), mode, encoding="utf-8"))
