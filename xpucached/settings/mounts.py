"""Door: what kind of file system a path lies on.  Reads the kernel's list of mounts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_NETWORK: Final = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs"),
        *("fuse.ceph", "fuse.ceph-fuse", "fuse.cephfs", "fuse.cvmfs2", "fuse.davfs", "fuse.glusterfs", "fuse.juicefs"),
        *("fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    }
)
"""As the kernel names them: what several hosts can have mounted at once."""

_MOUNTS: Final = Path("/proc/self/mountinfo")


def network(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the kind of network file system on which a path lies, or would lie if it were made; empty if on none."""
    kind = _kind(path, mounts)
    return kind if kind in _NETWORK else ""


def _kind(path: Path, mounts: Path) -> str:
    try:
        text = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    # A directory that is not there yet will be made where the nearest one above it lies.
    there = os.path.realpath(path)
    while not os.path.exists(there) and there != "/":  # noqa: PTH110 - Path.exists raises where nobody may look
        there = os.path.dirname(there)  # noqa: PTH120 - text, as the kernel's list is
    best, kind = "", ""
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if len(fields) < 5 or not tail:  # noqa: PLR2004 - the fifth is the place
            continue
        place = fields[4]
        if "\\" in place:
            place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place)
        # The last of several that are mounted in one place hides the others.
        if len(place) >= len(best) and (there == place or there.startswith(f"{place.rstrip('/')}/")):
            best, kind = place, tail.split(" ")[0]
    return kind
