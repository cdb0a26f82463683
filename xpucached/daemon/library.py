"""What daemons load of Python's library before all else: the same modules as ever, without OpenSSL.

A daemon speaks by sockets of this host and has no use for TLS, and OpenSSL takes 4 MB of its memory.  The modules below
do without where it is not there; hashes are Python's own then, of which SHA-256 takes five times as long.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from xpucached import sparing

if TYPE_CHECKING:
    from types import ModuleType

_HASHES: Final = (
    "_md5",
    "_sha1",
    "_sha3",
    "_blake2",
    *(("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")),
)
"""Python's own, which some distributions leave out: there OpenSSL's are all that there are."""

_LEFT_OUT: Final[dict[str, ModuleType | None]] = {
    "ssl": None,
    **({"_hashlib": None} if sparing.all_there(*_HASHES) else {}),
}

with sparing.instead(_LEFT_OUT):
    import asyncio  # noqa: F401 - loaded here so that it is found without
    import hashlib  # noqa: F401
    import hmac  # noqa: F401
    import http.client  # noqa: F401
