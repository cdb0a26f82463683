"""Tells daemons what happens in the directories of theirs, from the kernel's fanotify: who closed which file.

The one part that needs privileges (CAP_SYS_ADMIN for a mark on a whole file system, CAP_DAC_READ_SEARCH to see which
directory an event means), so it is small, a process of its own where that counts (``python -m xpucached.watchd``),
and knows nothing else of this program but how to read a message, who is at a socket, and how to write a log.  It opens
no file and follows no path (where the kernel gives no names, it hands out the closed file itself, and we ask where that
is): a daemon hands in its directory, open, on a socket; the kernel says who the daemon is (SO_PEERCRED); the directory
must be that user's, and so must all below it be of which something is told (`places`).  What goes back are names that
look like those of a SYCL cache, and the numbers of processes.

Messages are JSON, one a packet.  From the daemon: ``{"watch": N, "loads": bool}`` with the directory, and
``{"forget": N}``.  To it: ``{"watching": N, "names": bool, "loads": bool, "why": text}`` (why less is seen than was
asked for, or nothing), ``{"refused": N, "why": text}``,
``{"events": [[N, path, act, pid], …], "at": seconds}`` and ``{"lost": true}``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import time
from typing import TYPE_CHECKING, Final

from xpucached import logs, messages, shortage, sockets
from xpucached.watchd import ownership
from xpucached.watchd.acceptor import REST, Acceptor
from xpucached.watchd.clients import WatchClient, WatchClients
from xpucached.watchd.holder_threads import HolderThreads, WatchRequest
from xpucached.watchd.kernel import CLOSE_NOWRITE, CLOSE_WRITE, DELETE, MOVED_FROM, MOVED_TO, ONDIR, OVERFLOW, Group
from xpucached.watchd.marks import Marks
from xpucached.watchd.ownership import Root
from xpucached.watchd.uids import QuotaHolder, QuotaHolders

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.watchd.kernel import KernelEvent

log = logging.getLogger(__name__)

WRITTEN: Final = "w"  #: a file was closed after writing
READ: Final = "r"  #: a file was closed after reading
GONE: Final = "g"  #: a file or a directory was removed or moved away
COME: Final = "c"  #: one was moved here

PACKET: Final = 1 << 16
"""No packet is longer."""

_ACTS: Final = ((CLOSE_WRITE, WRITTEN), (CLOSE_NOWRITE, READ), (DELETE | MOVED_FROM, GONE), (MOVED_TO, COME))

_TOGETHER: Final = 200  # events in one packet
_MOST_RECEIVED: Final = 253  # descriptors that come with one message; more the kernel lets nobody send
_MOST_EVENTS: Final = 1 << 14  # that are kept for one client until they are told
_ROUNDS: Final = 64  # reads of one queue before the others have their turn …
_LONGEST_TURN: Final = 1.0  # … and seconds: a turn is bounded in time, as clients control how expensive an event is
_HIGHEST: Final = 2**31  # number of a directory
_LONGEST: Final = 4096  # bytes of what a client says
_LOSSES: Final = 5.0  # seconds without another word to clients that events were lost


class WatchServer:
    """Serves any number of clients, in the thread that calls `run`."""

    def __init__(
        self, *, loads: bool, turn: Callable[[], object] = lambda: None, holders: QuotaHolders | None = None
    ) -> None:
        """``loads``: whether clients may ask for what is only read, which costs all work on that file system.

        ``turn`` is called at least every few seconds.
        """
        self._loads = loads
        self._turn = turn
        self._holders = holders or QuotaHolders()
        self._selector = selectors.DefaultSelector()
        self._marks = Marks(self._listen_to_kernel)
        self._places = ownership.Places(lambda root: setattr(self._owners[root], "lost", True))
        self._owners: dict[Root, WatchClient] = {}
        self._losses = logs.Allowance(1, _LOSSES)
        self._lost: set[bool] = set()
        self._stopping = False
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)  # noqa: FBT003 - the library's
        self._ring.setblocking(False)  # noqa: FBT003 - the library's
        self._threads: HolderThreads[WatchClient] = HolderThreads(self._wake)
        self._clients = WatchClients(self._threads)
        self._acceptor = Acceptor(self._selector, self.take, self._clients.full)
        self._selector.register(self._bell, selectors.EVENT_READ, self._answer)

    # -- from any thread ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let `run` end."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        # One that is full wakes as well.
        with contextlib.suppress(OSError):
            self._ring.send(b"!")

    # -- before or in `run` -------------------------------------------------------------------------------------------

    def listen(self, listener: socket.socket) -> None:
        """Take in whoever connects."""
        listener.setblocking(False)  # noqa: FBT003 - the library's
        self._acceptor.open(listener)

    def take(self, connection: socket.socket) -> None:
        """Take in a client; the kernel says who it is (SO_PEERCRED)."""
        _, uid, _ = sockets.peer(connection)
        holder = self._holders.holder(uid)
        if not self._clients.admits(holder):
            self._clients.complain(uid, "there are too many connections")
            self._hang_up(holder, connection)
            return
        connection.setblocking(False)  # noqa: FBT003 - the library's
        client = WatchClient(connection, uid, holder)
        self._clients.add(client)
        self._listen_to(client)

    def _listen_to(self, client: WatchClient) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.lost else 0)
        self._selector.register(client.connection, events, lambda: self._hear_or_say(client))

    def run(self) -> None:
        """Work until `stop`; then everything is closed."""
        try:
            while not self._stopping:
                for key, _ in self._selector.select(REST if self._acceptor.resting else 5.0):
                    try:
                        key.data()
                    except Exception:
                        # Whatever one of them makes us stumble over, the others are still told.
                        log.exception("something went wrong inside xpucached-watch")
                self._give_up()
                self._resume()
                self._tell_losses()
                self._turn()
        finally:
            self._close()

    def _close(self) -> None:
        for client in tuple(self._clients):
            self._drop(client)
        self._marks.close()
        self._selector.close()
        self._threads.finish()
        self._bell.close()
        self._ring.close()

    def _answer(self) -> None:
        self._bell.recv(4096)
        for asked in self._threads.done():
            self._settle(asked)

    def _give_up(self) -> None:
        """Refuse what lies on file systems that do not answer."""
        for asked in self._threads.overdue():
            if asked.client.asked.get(asked.number) is asked:
                del asked.client.asked[asked.number]
                self._say(asked.client, {"refused": asked.number, "why": "its file system does not answer"})

    def _resume(self) -> None:
        """Go on with whom there was no room for."""
        for client in [one for one in self._clients if one.paused and not self._clients.crowded(one.holder)]:
            client.paused = False
            self._listen_to(client)
        self._acceptor.resume()

    # -- clients ------------------------------------------------------------------------------------------------------

    def _hang_up(self, holder: QuotaHolder, connection: socket.socket) -> None:
        """End a connection; descriptors that nobody received are closed with it."""
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        self._threads.close(holder, connection.detach())

    def _receive(self, client: WatchClient) -> None:
        if self._clients.crowded(client.holder):
            client.paused = True
            self._selector.unregister(client.connection)
            return
        received: list[int] = []
        try:
            # With less room the kernel closes what is too much, in this thread.
            data, received, flags, _ = socket.recv_fds(
                client.connection, _LONGEST, _MOST_RECEIVED, socket.MSG_CMSG_CLOEXEC
            )
            if not data:
                self._drop(client)
                return
            self._take_up(client, data, received, cut=bool(flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)))
        except BlockingIOError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this client and nobody else
            self._clients.complain(client.uid, str(error))
            self._drop(client)
        finally:
            self._threads.close(client.holder, *received)

    def _take_up(self, client: WatchClient, data: bytes, descriptors: list[int], *, cut: bool) -> None:
        """Do what a packet says; raises `messages.BadMessage`."""
        if cut or len(descriptors) > 1:
            raise messages.BadMessage("it has more bytes or descriptors than any that we take")
        message = messages.members(messages.parse(data, largest=_LONGEST), known=("watch", "forget", "loads"))
        if "forget" in message:
            self._forget(client, messages.whole(message, "forget", least=0, most=_HIGHEST))
            return
        number = messages.whole(message, "watch", least=0, most=_HIGHEST)
        loads = messages.flag(message, "loads", default=False)
        if not descriptors:
            raise messages.BadMessage("a directory is missing")
        self._watch(WatchRequest(client, client.uid, client.holder, number, descriptors.pop(), loads))

    def _drop(self, client: WatchClient) -> None:
        if client not in self._clients:
            return
        self._clients.discard(client)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.connection)
        for number in (*client.roots, *client.asked):
            self._forget(client, number)
        self._hang_up(client.holder, client.connection)

    def _say(self, client: WatchClient, message: dict[str, object] | None = None) -> None:
        """Send a packet; who does not read misses it, and is told so when he reads again."""
        try:
            if client.lost:
                client.connection.send(b'{"lost": true}')
                client.lost = False
            if message is not None:
                client.connection.send(json.dumps(message).encode())
        except BlockingIOError:
            client.lost = True
            # A socket that can take more wakes us, and then we say it.
            self._await(client, selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError:
            self._drop(client)

    def _await(self, client: WatchClient, events: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.modify(client.connection, events, lambda: self._hear_or_say(client))

    def _hear_or_say(self, client: WatchClient) -> None:
        self._say(client)
        if not client.lost:
            # Also where it was said in passing, with what came meanwhile: a socket with room would wake us for ever.
            self._await(client, selectors.EVENT_READ)
        if client in self._clients:
            self._receive(client)

    # -- directories --------------------------------------------------------------------------------------------------

    def _watch(self, asked: WatchRequest[WatchClient]) -> None:
        """Have a directory looked at."""
        client = asked.client
        self._forget(client, asked.number)
        self._give_up()
        if client not in self._clients:
            # It went as it was told what was given up.
            self._threads.close(asked.holder, asked.descriptor)
            return
        if why := self._clients.full_of(client) or self._threads.look(asked):
            self._refuse(asked, why)
        else:
            client.asked[asked.number] = asked

    def _refuse(self, asked: WatchRequest[WatchClient], why: str) -> None:
        self._threads.close(asked.holder, asked.descriptor)
        self._say(asked.client, {"refused": asked.number, "why": why})

    def _settle(self, asked: WatchRequest[WatchClient]) -> None:
        """Go on with a directory that was looked at."""
        client, found = asked.client, asked.found
        if client.asked.get(asked.number) is not asked:
            # It was forgotten meanwhile.
            self._threads.close(asked.holder, asked.descriptor)
            return
        del client.asked[asked.number]
        if not isinstance(found, Root):
            self._refuse(asked, (found.strerror if found else None) or str(found))
            return
        if why := self._clients.refusal(client, found):
            self._refuse(asked, why)
            return
        try:
            reason = self._marks.add(found, loads=asked.loads and self._loads)
        except OSError as error:
            self._refuse(asked, error.strerror or str(error))
            return
        if asked.loads and not self._loads:
            reason = reason or "what is only read is not told: xpucached-watch was started without --loads"
        client.roots[asked.number] = found
        self._owners[found] = client
        self._places.add(found)
        self._say(client, {"watching": asked.number, "names": found.names, "loads": found.loads, "why": reason})

    def _forget(self, client: WatchClient, number: int) -> None:
        # One that is being looked at is closed when that has ended.
        client.asked.pop(number, None)
        root = client.roots.pop(number, None)
        if root is None:
            return
        del self._owners[root]
        self._marks.remove(root)
        self._places.remove(root)
        self._threads.close(client.holder, root.descriptor)

    # -- events -------------------------------------------------------------------------------------------------------

    def _listen_to_kernel(self, group: Group) -> None:
        self._selector.register(group, selectors.EVENT_READ, lambda: self._look(group.rested()))

    def _look(self, group: Group) -> None:
        end = time.monotonic() + _LONGEST_TURN
        for _ in range(_ROUNDS):
            if time.monotonic() > end:
                break
            self._turn()
            try:
                came = group.read()
            except OSError as error:
                if shortage.is_ours(error):
                    self._lose(group, error.strerror or str(error))
                else:
                    # One file could not be opened for us.  Anybody can have such files, so it is a loss to nobody else.
                    log.debug("the file of an event could not be opened: %s", error)
                continue
            if not came:
                break
            # What is whose is asked anew for what came now.
            self._places.renew()
            for one in came:
                if one.mask & OVERFLOW:
                    self._lose(group, "the kernel's queue was full")
                elif one.descriptor >= 0:
                    self._by_descriptor(one)
                else:
                    self._by_name(one)
            self._tell()

    def _lose(self, group: Group, why: str) -> None:
        log.warning("events were lost: %s", why)
        self._lost.add(group.names)
        self._tell_losses()

    def _tell_losses(self) -> None:
        """Tell clients that events were lost, at once if that is the first time in a while; nothing is left untold."""
        for names in tuple(self._lost):
            if self._losses.spend(names) is None:
                continue
            self._lost.discard(names)
            for client in tuple(self._clients):
                if any(root.names == names for root in client.roots.values()):
                    self._say(client, {"lost": True})

    def _by_name(self, one: KernelEvent) -> None:
        ondir = one.mask & ONDIR
        if not (ownership.DIRECTORY if ondir else ownership.FILE).fullmatch(one.name):
            return
        for root, below in self._places.of(one.system, one.directory):
            if ondir and one.mask & (MOVED_FROM | MOVED_TO):
                # What was below it is somewhere else now.
                self._places.forget()
            if ondir and below.count("/") >= ownership.DEEPEST - 1:
                continue
            self._note(root, f"{below}/{one.name.decode()}".lstrip("/"), one)

    def _by_descriptor(self, one: KernelEvent) -> None:
        try:
            for root, path in self._places.of_file(one.descriptor):
                self._note(root, path, one)
        finally:
            # Those that came with it have yet to be closed.
            with contextlib.suppress(OSError):
                os.close(one.descriptor)

    def _note(self, root: Root, path: str, one: KernelEvent) -> None:
        for bits, act in _ACTS:
            if one.mask & bits and (act != READ or root.loads):
                client = self._owners[root]
                if len(client.events) < _MOST_EVENTS:
                    client.events.append((root.number, path, act, one.pid))
                else:
                    client.lost = True

    def _tell(self) -> None:
        # Sleep counts as well: the start of a process is told by this clock.
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        for client in tuple(self._clients):
            events, client.events = client.events, []
            for start in range(0, len(events), _TOGETHER):
                self._say(client, {"events": events[start : start + _TOGETHER], "at": now})
            if client.lost:
                self._say(client)
