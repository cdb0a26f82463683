"""Build options of recipes that anybody may have made: which of them do nothing but choose how code is generated.

Compilers take more than their manuals list: ``-Xfinalizer`` and ``-igc_opts`` hand on whatever follows to parts that
have options to write files, and what is made for text takes ``-I`` and ``-include``.  So the list is of those that are
known, after the specifications of OpenCL C and Level Zero and the table of Intel's compiler (``options.td``), in which
none that begins with ``-cl-`` or ``-ze-`` names a file.
"""

from __future__ import annotations

import re
from typing import Final

_KNOWN: Final = re.compile(
    rb"-(?:cl|ze)-[A-Za-z0-9-]+(?:=[A-Za-z0-9.,:+_-]*)?"
    rb"|-D[A-Za-z0-9_]+(?:=[A-Za-z0-9.,:+_()*-]*)?"
    rb"|-w|-Werror|-g|-gline-tables-only|-O[0-3]"
    rb"|-vc-codegen|-disable-finalizer-msg|-doubleGRF|-optimize"
    rb"|-create-library|-enable-link-options|-library-compilation"
)
_TAKES_A_VALUE: Final = re.compile(rb"-(?:(?:cl|ze)-[A-Za-z0-9-]+|D)")
_VALUE: Final = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_=.,:+]*")
_LONGEST: Final = 40


def unknown(options: bytes) -> str:
    """Return the first build option that is not one of those known to choose nothing but code; "" if all are."""
    before = b""
    for one in options.split():
        value = _TAKES_A_VALUE.fullmatch(before) is not None and _VALUE.fullmatch(one) is not None
        if not value and one != b"-D" and _KNOWN.fullmatch(one) is None:
            return ascii(one[:_LONGEST].decode("latin-1"))[1:-1]
        before = b"" if value else one
    return ""
