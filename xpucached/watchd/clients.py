"""Who listens, and what room there is for them: descriptors are what a client can take from the others."""

from __future__ import annotations

import logging
import resource
import socket
from dataclasses import dataclass, field
from typing import Final

from xpucached import logs
from xpucached.watchd.holder_threads import HolderThreads, WatchRequest
from xpucached.watchd.ownership import Root
from xpucached.watchd.uids import QuotaHolder

log = logging.getLogger(__name__)

_QUIET: Final = 60.0  # seconds without another word in the log about the same user
_MOST_CLIENTS: Final = 16  # of one holder
_MOST_ROOTS: Final = 128  # of one holder
_MOST_OF_ROOT: Final = 1024
_MOST_SAME: Final = 4  # times that one directory is watched for one holder
_MOST_MOUNTS: Final = 16  # of one file system, for one holder: an event is looked up at each
_MOST_WAITING: Final = 256  # descriptors of one holder that are not closed yet, before no more are received
_MOST_REFUSED: Final = 1024  # the same, before nobody is let in who may be the same holder
_RESERVE: Final = 640  # descriptors that are kept for the kernel's events, for ourselves, and for one message
_RESERVE_AT_LEAST: Final = 384  # the same, if clients pass what they should not


@dataclass(eq=False, slots=True)
class WatchClient:
    """Somebody who listens."""

    connection: socket.socket
    uid: int
    holder: QuotaHolder
    roots: dict[int, Root] = field(default_factory=dict)
    asked: dict[int, WatchRequest[WatchClient]] = field(default_factory=dict)
    events: list[tuple[int, str, str, int]] = field(default_factory=list)
    lost: bool = False
    paused: bool = False


class WatchClients(set[WatchClient]):
    """All who listen."""

    def __init__(self, threads: HolderThreads[WatchClient]) -> None:
        super().__init__()
        self._threads = threads
        self._complaints = logs.Allowance(1, _QUIET)

    def of(self, holder: QuotaHolder) -> list[WatchClient]:
        """Return the clients of one holder."""
        return [client for client in self if client.holder == holder]

    def admits(self, holder: QuotaHolder) -> bool:
        """Return whether one more of somebody's may come."""
        return len(self.of(holder)) < _MOST_CLIENTS and self.have_room(holder)

    def full_of(self, client: WatchClient) -> str:
        """Return why no further directory can be watched for a client; empty if one can."""
        most = _MOST_OF_ROOT if client.uid == 0 else _MOST_ROOTS
        held = sum(len(one.roots) + len(one.asked) for one in self.of(client.holder))
        if held >= most or not self.have_room(client.holder):
            return f"a user may have {most} directories watched, and there is room for no more"
        return ""

    def refusal(self, client: WatchClient, found: Root) -> str:
        """Return why this directory is not watched for a client; empty if it is."""
        theirs = [root for one in self.of(client.holder) for root in one.roots.values()]
        if sum(root.which == found.which for root in theirs) >= _MOST_SAME:
            return f"it is watched for this user {_MOST_SAME} times already"
        mounts = {root.mount for root in theirs if root.system == found.system}
        if found.mount not in mounts and len(mounts) >= _MOST_MOUNTS and client.uid:
            return f"directories of this file system are watched at {_MOST_MOUNTS} mounts for this user"
        return ""

    def _free(self, reserve: int) -> int:
        """Return how many descriptors there may be besides those that are kept."""
        used = len(self) + sum(len(client.roots) for client in self) + self._threads.held()
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - reserve - used

    def have_room(self, holder: QuotaHolder) -> bool:
        """Tell whether there are descriptors for one more of anything; half of all are kept for who has an account."""
        if self._free(_RESERVE) <= 0:
            return False
        unknown = [client for client in self if not client.holder.known]
        held = len(unknown) + sum(len(client.roots) for client in unknown) + self._threads.held(known=False)
        return holder.known or held < (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVE) // 2

    def crowded(self, holder: QuotaHolder) -> bool:
        """Return whether no more can be received from somebody, until what was is closed."""
        return self._threads.of(holder) >= _MOST_WAITING or self._free(_RESERVE_AT_LEAST) <= 0

    def full(self) -> bool:
        """Return whether nobody can be let in: only who was, says who it is, and can be sent away only by closing."""
        return self._threads.longest() >= _MOST_REFUSED or self._free(_RESERVE_AT_LEAST) <= 0

    def complain(self, uid: int, why: str) -> None:
        """Log what a user does, not more often than somebody can read: the journal is everybody's."""
        if self._complaints.spend(uid) is not None:
            log.warning("a client is sent away: uid %d: %s", uid, why)
