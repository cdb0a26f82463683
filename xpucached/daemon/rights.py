"""Who may ask a user's daemon for what."""

from __future__ import annotations

import os
import pwd

from xpucached import sockets
from xpucached.api.endpoints import Right


def allowed(uid: int, right: Right) -> bool:
    """Everybody who may open the socket may read; the daemon's own user and root may change."""
    return right is Right.READ or uid in (0, os.getuid())


def owners_only(uid: int, _right: Right) -> bool:
    """Of a worker, whose socket everybody can open: its user and root may do all, others nothing."""
    return uid in (0, os.getuid())


def is_host_daemon(uid: int) -> bool:
    """Return whether somebody is the host's daemon, which may tend a worker."""
    try:
        return uid == pwd.getpwnam(sockets.ACCOUNT).pw_uid
    except KeyError:
        return False
