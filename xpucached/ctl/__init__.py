"""Door: xpucachectl.  Parse, call, render.

`quick` answers the command that is typed most without loading anything else; `program` is all of it: `arguments` says
what may be typed, `commands` does it, `waiting` sees jobs through, `capture` looks at the caller's environment for new
models, `setting_up` needs no daemon at all, `desk` prints.  rich comes in only while somebody watches a job.
"""

from __future__ import annotations

import sys

from xpucached.ctl import quick

TYPE_CHECKING = False  # typing takes longer to load than `quick` takes to answer
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; gives the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    status = quick.status(argv)
    if status is not None:
        return status
    from xpucached.ctl import program  # noqa: PLC0415 - see above

    return program.main(argv)
