"""Tells daemons what happens in the directories of theirs, from the kernel's fanotify: who closed which file.

The one part that needs rights (CAP_SYS_ADMIN for a mark on a whole file system, CAP_DAC_READ_SEARCH to see which
directory an event means), so it is small, a process of its own where that counts (``python -m xpucached.lookout``),
and knows nothing else of this program.  It opens no file and follows no path (where the kernel gives no names, it hands
out the closed file itself, and we ask where that is): a daemon hands in its directory, open, on a socket; who the
daemon is says the kernel; the directory must be that user's.  What goes back are names below it that look like those of
a SYCL cache, and the numbers of processes.

Messages are JSON, one a packet.  From the daemon: ``{"watch": N, "opens": bool}`` with the directory, and
``{"forget": N}``.  To it: ``{"watching": N, "names": bool, "opens": bool}``, ``{"refused": N, "why": text}``,
``{"events": [[N, path, act, pid], …], "at": seconds}`` and ``{"lost": true}``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import selectors
import socket
import stat
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.lookout import kernel
from xpucached.lookout.kernel import CLOSE_NOWRITE, CLOSE_WRITE, DELETE, MOVED_FROM, MOVED_TO, ONDIR, OVERFLOW, Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xpucached.lookout.kernel import Happening

log = logging.getLogger(__name__)

SOCKET: Final = "/run/xpucached-watch/watch.sock"
"""Where daemons find it."""

WRITTEN: Final = "w"  #: a file was closed after writing
READ: Final = "r"  #: a file was closed after reading
GONE: Final = "g"  #: a file or a directory was removed or moved away
COME: Final = "c"  #: one was moved here

PACKET: Final = 1 << 16
"""No packet is longer."""

_CHANGES: Final = CLOSE_WRITE | DELETE | MOVED_FROM | MOVED_TO | ONDIR
_ACTS: Final = ((CLOSE_WRITE, WRITTEN), (CLOSE_NOWRITE, READ), (DELETE | MOVED_FROM, GONE), (MOVED_TO, COME))

# Nothing else is looked up or told: the names of other people's files are theirs.
_FILE: Final = re.compile(rb"(?:[0-9]{1,10}|ir)\.(?:src|bin)")
_PART: Final = r"[A-Za-z0-9_=+-]{1,64}"
_DIRECTORY: Final = re.compile(_PART.encode())
_BELOW: Final = re.compile(rf"(?:{_PART}(?:/{_PART}){{0,3}})?")
_DEEPEST: Final = 4

_TOGETHER: Final = 200  # events in one packet
_MOST_CLIENTS: Final = 16  # of one user
_MOST_ROOTS: Final = 256  # of one client
_MOST_PLACES: Final = 1 << 16  # directories that are remembered
_ROUNDS: Final = 16  # reads of one queue before the others have their turn


@dataclass(eq=False, slots=True)
class _Root:
    """A directory that a client wants to hear of."""

    client: _Client
    number: int
    descriptor: int
    system: int
    device: int
    names: bool = True
    opens: bool = False


@dataclass(eq=False, slots=True)
class _Client:
    """Somebody who listens."""

    connection: socket.socket
    uid: int
    roots: dict[int, _Root] = field(default_factory=dict)
    events: list[tuple[int, str, str, int]] = field(default_factory=list)
    lost: bool = False


class Lookout:
    """Serves any number of clients, in the thread that calls `run`."""

    def __init__(self, *, opens: bool, turn: Callable[[], object] = lambda: None) -> None:
        """``opens``: whether clients may ask for what is only read, which costs all work on that file system.

        ``turn`` is called at least every few seconds.
        """
        self._opens = opens
        self._turn = turn
        self._selector = selectors.DefaultSelector()
        self._groups: dict[tuple[bool, bool], Group] = {}
        self._clients: set[_Client] = set()
        self._marks: Counter[tuple[bool, bool, int]] = Counter()
        self._places: dict[tuple[int, bytes], tuple[tuple[_Root, str], ...]] = {}
        self._stopping = False
        self._bell, self._ring = socket.socketpair()
        self._selector.register(self._bell, selectors.EVENT_READ, self._answer)

    # -- from any thread ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let `run` end."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._ring.send(b"!")

    # -- before or in `run` -------------------------------------------------------------------------------------------

    def listen(self, door: socket.socket) -> None:
        """Take in whoever connects."""
        door.setblocking(False)  # noqa: FBT003 - the library's
        self._selector.register(door, selectors.EVENT_READ, lambda: self._accept(door))

    def take(self, connection: socket.socket) -> None:
        """Take in a client; who it is says the kernel."""
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        if sum(one.uid == uid for one in self._clients) >= _MOST_CLIENTS:
            log.warning("a user has too many connections: %d", uid)
            connection.close()
            return
        connection.setblocking(False)  # noqa: FBT003 - the library's
        client = _Client(connection, uid)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(client))

    def run(self) -> None:
        """Work until `stop`; then everything is closed."""
        try:
            while not self._stopping:
                for key, _ in self._selector.select(5.0):
                    key.data()
                self._turn()
        finally:
            self._close()

    def _close(self) -> None:
        for client in tuple(self._clients):
            self._drop(client)
        for group in self._groups.values():
            group.close()
        self._groups.clear()
        self._selector.close()
        self._bell.close()
        self._ring.close()

    def _answer(self) -> None:
        self._bell.recv(64)

    # -- clients ------------------------------------------------------------------------------------------------------

    def _accept(self, door: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.take(door.accept()[0])

    def _hear(self, client: _Client) -> None:
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(client.connection, PACKET, 1)
            if not data:
                self._drop(client)
                return
            message = json.loads(data)
            if "forget" in message:
                self._forget(client, int(message["forget"]))
            else:
                number = int(message["watch"])
                self._watch(client, number, descriptors.pop(), opens=bool(message.get("opens")))
        except BlockingIOError:
            pass
        except (OSError, ValueError, TypeError, LookupError) as error:
            log.warning("a client is sent away: uid %d: %s", client.uid, error)
            self._drop(client)
        finally:
            for one in descriptors:
                os.close(one)

    def _drop(self, client: _Client) -> None:
        if client not in self._clients:
            return
        self._clients.discard(client)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.connection)
        for number in tuple(client.roots):
            self._forget(client, number)
        client.connection.close()

    def _say(self, client: _Client, message: dict[str, object]) -> None:
        """Send a packet; who does not read misses it, and is told so when he reads again."""
        try:
            if client.lost:
                client.connection.send(b'{"lost": true}')
                client.lost = False
            client.connection.send(json.dumps(message).encode())
        except BlockingIOError:
            client.lost = True
            # A socket that can take more wakes us, and then we say it.
            self._await(client, selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError:
            self._drop(client)

    def _await(self, client: _Client, events: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.modify(client.connection, events, lambda: self._hear_or_say(client))

    def _hear_or_say(self, client: _Client) -> None:
        if client.lost:
            try:
                client.connection.send(b'{"lost": true}')
            except BlockingIOError:
                pass
            except OSError:
                self._drop(client)
                return
            else:
                client.lost = False
                self._await(client, selectors.EVENT_READ)
        self._hear(client)

    # -- directories --------------------------------------------------------------------------------------------------

    def _watch(self, client: _Client, number: int, descriptor: int, *, opens: bool) -> None:
        self._forget(client, number)
        try:
            root = self._judged(client, number, descriptor)
            reason = self._marked(root, opens=opens and self._opens)
            if opens and not self._opens:
                reason = reason or "what is only read is not told: xpucached-watch was started without --opens"
        except OSError as error:
            os.close(descriptor)
            self._say(client, {"refused": number, "why": error.strerror or str(error)})
            return
        client.roots[number] = root
        self._places.clear()
        self._say(client, {"watching": number, "names": root.names, "opens": root.opens, "why": reason})

    def _judged(self, client: _Client, number: int, descriptor: int) -> _Root:
        """See that a directory is one, and the client's own."""
        status = os.fstat(descriptor)
        if not stat.S_ISDIR(status.st_mode) or fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_PATH:
            raise OSError(errno.ENOTDIR, "not an open directory")
        if client.uid not in (0, status.st_uid):
            raise OSError(errno.EPERM, "the directory belongs to somebody else")
        if len(client.roots) >= _MOST_ROOTS:
            raise OSError(errno.ENOSPC, f"more than {_MOST_ROOTS} directories")
        return _Root(client, number, descriptor, os.fstatvfs(descriptor).f_fsid, status.st_dev)

    def _marked(self, root: _Root, *, opens: bool) -> str:
        """Mark the file system of a directory; say why names are not to be had there, if so."""
        reason = ""
        try:
            os.close(kernel.open_handle(root.descriptor, kernel.handle_of(root.descriptor)))
            self._mark(root, opens=False)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOSYS):
                raise
            # No handles (overlayfs), no number of its own (some subvolumes of btrfs, FUSE).
            reason = f"no names on this file system: {error.strerror}"
            root.names = False
            self._mark(root, opens=False)
        if opens:
            try:
                self._mark(root, opens=True)
                root.opens = True
            except OSError as error:
                reason = f"what is only read cannot be seen on this file system: {error.strerror}"
        return reason

    def _mark(self, root: _Root, *, opens: bool) -> None:
        key = (root.names, opens)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(names=root.names)
            self._selector.register(group, selectors.EVENT_READ, lambda: self._look(group))
        group.mark(root.descriptor, _mask(names=root.names, opens=opens))
        self._marks[root.names, opens, root.device] += 1

    def _forget(self, client: _Client, number: int) -> None:
        root = client.roots.pop(number, None)
        if root is None:
            return
        for opens in (False, True) if root.opens else (False,):
            key = (root.names, opens, root.device)
            self._marks[key] -= 1
            if self._marks[key] <= 0:
                del self._marks[key]
                with contextlib.suppress(OSError):
                    self._groups[key[:2]].unmark(root.descriptor, _mask(names=root.names, opens=opens))
        os.close(root.descriptor)
        self._places.clear()

    # -- events -------------------------------------------------------------------------------------------------------

    def _look(self, group: Group) -> None:
        for _ in range(_ROUNDS):
            try:
                came = group.read()
            except OSError as error:
                # The one event whose file could not be opened is lost, and nobody knows which it was.
                log.debug("an event could not be read: %s", error)
                self._lose(group)
                continue
            if not came:
                break
            for one in came:
                if one.mask & OVERFLOW:
                    self._lose(group)
                elif one.descriptor >= 0:
                    self._by_descriptor(one)
                else:
                    self._by_name(one)
            self._tell()

    def _lose(self, group: Group) -> None:
        log.warning("the kernel's queue was full, and events were lost")
        for client in tuple(self._clients):
            if any(root.names == group.names for root in client.roots.values()):
                self._say(client, {"lost": True})

    def _by_name(self, one: Happening) -> None:
        ondir = one.mask & ONDIR
        if not (_DIRECTORY if ondir else _FILE).fullmatch(one.name):
            return
        for root, below in self._places_of(one):
            if ondir and one.mask & (MOVED_FROM | MOVED_TO):
                # What was below it is somewhere else now.
                self._places.clear()
            if ondir and below.count("/") >= _DEEPEST - 1:
                continue
            self._note(root, f"{below}/{one.name.decode()}".lstrip("/"), one)

    def _places_of(self, one: Happening) -> tuple[tuple[_Root, str], ...]:
        """Tell below which directories of clients the directory of an event lies, and where there."""
        key = (one.system, one.directory)
        known = self._places.get(key)
        if known is None:
            roots = [root for client in self._clients for root in client.roots.values() if root.names]
            known = tuple(_below(one.directory, [root for root in roots if root.system == one.system]))
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            self._places[key] = known
        return known

    def _by_descriptor(self, one: Happening) -> None:
        try:
            path = os.fspath(Path(f"/proc/self/fd/{one.descriptor}").readlink())
            if not _FILE.fullmatch(os.fsencode(Path(path).name)):
                return
            status = os.fstat(one.descriptor)
            roots = [root for client in self._clients for root in client.roots.values() if not root.names]
            parts = path.split("/")
            for root in roots:
                # Most are as deep as can be.
                for depth in range(_DEEPEST + 1, 1, -1):
                    below = "/".join(parts[-depth:])
                    if _BELOW.fullmatch("/".join(parts[-depth:-1])) and _is(root.descriptor, below, status):
                        self._note(root, below, one)
                        break
        except OSError as error:
            log.debug("an event leads nowhere: %s", error)
        finally:
            os.close(one.descriptor)

    def _note(self, root: _Root, path: str, one: Happening) -> None:
        for bits, act in _ACTS:
            if one.mask & bits and (act != READ or root.opens):
                root.client.events.append((root.number, path, act, one.pid))

    def _tell(self) -> None:
        # Sleep counts as well: the start of a process is told by this clock.
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        for client in tuple(self._clients):
            events, client.events = client.events, []
            for start in range(0, len(events), _TOGETHER):
                self._say(client, {"events": events[start : start + _TOGETHER], "at": now})


def _mask(*, names: bool, opens: bool) -> int:
    if opens:
        return CLOSE_NOWRITE
    return _CHANGES if names else CLOSE_WRITE


def _is(directory: int, path: str, status: os.stat_result) -> bool:
    try:
        found = os.stat(path, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino)


def _place(descriptor: int) -> str:
    return os.fspath(Path(f"/proc/self/fd/{descriptor}").readlink())


def _below(handle: bytes, roots: Iterable[_Root]) -> Iterable[tuple[_Root, str]]:
    """Tell below which directories the one of a handle lies, and where there."""
    for root in roots:
        try:
            descriptor = kernel.open_handle(root.descriptor, handle)
        except OSError:
            continue
        try:
            # Both by the way of one mount, so the two begin alike, wherever that is mounted.
            place = _place(descriptor)
            top = _place(root.descriptor).rstrip("/")
        except OSError:
            continue
        finally:
            os.close(descriptor)
        if place == (top or "/"):
            yield root, ""
        elif place.startswith(top + "/") and _BELOW.fullmatch(place[len(top) + 1 :]):
            yield root, place[len(top) + 1 :]
