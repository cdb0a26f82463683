"""Observe: the digest of a program that is too large to be looked into, read bit by bit, and not at each look."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from xpucached.domain.stores import program_digest
from xpucached.kinds import fs

if TYPE_CHECKING:
    from xpucached.domain.names import EntryKey
    from xpucached.kinds.sycl.entry_format import Frame
    from xpucached.kinds.sycl.scan_state import ScanState

_LARGEST: Final = 1 << 30
"""Bytes; no compiler writes so much, and who forges it costs us a second."""

_STEP: Final = 1 << 20


def large_digest(look: ScanState, key: EntryKey, descriptor: int, status: os.stat_result, frame: Frame) -> str | None:
    """Return the digest of a program of more than we take into memory; None unless it is to be read again in any case.

    A look at what is new does not wait for it: it is read by `verify`, and by the scrub.
    """
    row = look.known.get(key)
    if row is None or row.stamp is not None or not 0 < frame.length <= _LARGEST:
        return None
    # Whoever links one file into many places has it read once.
    file = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, frame.offset)
    if file not in look.digests:
        found = program_digest()
        offset, end = frame.offset, frame.offset + frame.length
        while offset < end:
            part = fs.read(descriptor, min(_STEP, end - offset), offset)
            if not part:
                return None
            found.update(part)
            offset += len(part)
        look.digests[file] = found.hexdigest()
    return look.digests[file]
