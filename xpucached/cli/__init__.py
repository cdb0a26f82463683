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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; gives the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if sys.stdout is None:
        import os  # noqa: PLC0415 - hardly anybody has to wait for it

        # It was closed: whatever is printed is not written, and no file that is opened takes its number.
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
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
