"""Door: xpucachectl.  Parse, call, render.

`fast_status` answers the command that is typed most without loading anything else; `program` is all of it:
`arguments` says what may be typed, `commands` does it, `progress` sees jobs through, `capture_env` looks at the
caller's environment for new models, `setup` needs no daemon at all, `output` prints.  rich comes in only while
somebody watches a job.
"""

from __future__ import annotations

import sys

from xpucached import __version__
from xpucached.cli import fast_status

TYPE_CHECKING = False  # typing takes longer to load than `fast_status` takes to answer
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; gives the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if [*argv] == ["--version"]:
        print(f"xpucachectl {__version__}")
        return 0
    status = fast_status.status(argv)
    if status is not None:
        return status
    from xpucached.cli import program  # noqa: PLC0415 - see above

    return program.main(argv)
