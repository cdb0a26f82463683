"""Hear what happens in whole stores, by fanotify: of the host's watcher (``xpucached-watch``) or a thread of ours."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from xpucached import messages, sockets
from xpucached.domain.activity import FileAct, FileEvent
from xpucached.watch.places import identity
from xpucached.watchd.server import PACKET, WatchServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from xpucached.messages import Json

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE: Final = 10.0
"""Seconds to wait for the watcher's answer: it has one thread, and a burst to read may come before us."""

_ACCOUNT: Final = "xpucached-watch"
"""Who may listen there, besides root: what we hand in is an open directory."""

_HIGHEST: Final = 2**31
_LATEST: Final = 1e10  # seconds since the host started

_NEEDED: Final = {2: "CAP_DAC_READ_SEARCH", 21: "CAP_SYS_ADMIN"}


@dataclass(frozen=True, slots=True)
class WatchCoverage:
    """What is told of a directory."""

    names: bool  #: also what is removed and renamed
    loads: bool  #: also what is only read
    why: str  #: why not both, if they were asked for


@dataclass(slots=True)
class _Asked:
    root: Path
    identity: tuple[int, int]
    answer: WatchCoverage | str | None = None


class _Link:
    """A connection to a watcher, with a thread that hears it, and what was asked of it."""

    def __init__(
        self, connection: socket.socket, on_event: Callable[[FileEvent], None], lost: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._on_event = on_event
        self._lost = lost
        self.asked: dict[int, _Asked] = {}
        self.news = threading.Condition()
        self.ended = False
        self._stopping = False
        connection.settimeout(1.0)
        self._thread = threading.Thread(target=self._listen, name="fanotify", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            connection.close()
            raise

    def send(self, message: Mapping[str, object], descriptor: int | None = None) -> None:
        """Ask for something; whether it was done shows what is heard."""
        data = json.dumps(message).encode()
        try:
            socket.send_fds(self._connection, [data], [] if descriptor is None else [descriptor])
        except OSError as error:
            log.debug("the watcher does not take what we ask: %s", error)

    def stop(self) -> None:
        """Hear no more, and wait until the thread has ended."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def _listen(self) -> None:
        try:
            while data := self._received():
                self._take(messages.members(messages.parse(data, largest=PACKET)))
        except (OSError, ValueError) as error:
            log.warning("the watcher says what nobody understands: %s", error)
        with self.news:
            self.ended = True
            self.news.notify_all()
        if not self._stopping:
            self._call(self._lost, "the watcher went away")

    def _received(self) -> bytes:
        while True:
            with contextlib.suppress(TimeoutError):
                return self._connection.recv(PACKET)

    def _call(self, whom: Callable[[T], None], what: T) -> None:
        """Hand something on; the thread must live on, whatever becomes of it."""
        try:
            whom(what)
        except Exception:
            log.exception("what the watcher told could not be taken: %s", what)

    def _take(self, message: Mapping[str, Json]) -> None:
        """Do what a packet says; raises ValueError where it cannot be meant."""
        if "events" in message:
            at = messages.number(message, "at", least=0, most=_LATEST)
            for event in messages.items(message, "events", most=PACKET):
                number, path, act, pid = _event(event)
                asked = self.asked.get(number)
                if asked is not None:
                    self._call(self._on_event, FileEvent(asked.root, path, act, pid, at))
        elif "lost" in message:
            self._call(self._lost, "events were lost: a queue was full, or files or memory ran out")
        else:
            self._answer(message)

    def _answer(self, message: Mapping[str, Json]) -> None:
        key = "watching" if "watching" in message else "refused"
        asked = self.asked.get(messages.whole(message, key, least=0, most=_HIGHEST))
        if asked is None:
            return
        why = messages.text(message, "why", longest=PACKET, default="")
        with self.news:
            if key == "watching":
                asked.answer = WatchCoverage(messages.flag(message, "names"), messages.flag(message, "loads"), why)
            else:
                asked.answer = why or "refused"
            self.news.notify_all()


def _event(value: Json) -> tuple[int, str, FileAct, int]:
    """Read one event; raises ValueError."""
    if not isinstance(value, list):
        raise messages.BadMessage("an event is not a list")
    named = dict(zip(("number", "path", "act", "pid"), value, strict=True))
    return (
        messages.whole(named, "number", least=0, most=_HIGHEST),
        messages.text(named, "path", longest=PACKET),
        FileAct(messages.text(named, "act", longest=1)),
        messages.whole(named, "pid", least=0, most=_HIGHEST),
    )


class Fanotify:
    """Listens at whole stores.  `cover` and `stop` may be called from any thread, one at a time."""

    def __init__(
        self, on_event: Callable[[FileEvent], None], lost: Callable[[str], None], *, place: Path, loads: bool
    ) -> None:
        """``place``: the host's watcher; ``lost`` hears why something may be missed.  Both from other threads."""
        self._on_event = on_event
        self._lost = lost
        self._place = place
        self._loads = loads
        self._link: _Link | None = None
        self._own: tuple[WatchServer, threading.Thread] | None = None
        self._number = 0
        self.reason = "nothing is watched yet"  #: why nothing can be covered; empty if something can

    def cover(self, roots: Iterable[Path]) -> dict[Path, WatchCoverage | str]:
        """Listen at these stores and at no others: tell for each what is heard of it, or why nothing is.

        Never raises for what it meets.
        """
        link = self._linked()
        if link is None:
            return {}
        wanted = {root: which for root in roots if (which := identity(root)) is not None}
        for number, asked in list(link.asked.items()):
            if wanted.get(asked.root) != asked.identity or not isinstance(asked.answer, WatchCoverage):
                # Gone, another directory by now, or refused: then it is asked again.
                link.asked.pop(number, None)
                link.send({"forget": number})
        known = {asked.root for asked in link.asked.values()}
        for root in sorted(wanted.keys() - known):
            self._ask(link, root, wanted[root])
        with link.news:
            link.news.wait_for(lambda: link.ended or all(one.answer for one in link.asked.values()), _PATIENCE)
        if link.ended:
            self.reason = "the watcher went away"
            return {}
        return {one.root: one.answer or "the watcher does not answer" for one in link.asked.values()}

    def stop(self) -> None:
        """Listen no longer, and wait until no thread of ours is left."""
        link, self._link = self._link, None
        own, self._own = self._own, None
        self.reason = "stopped"
        if link is not None:
            link.stop()
        if own is not None:
            own[0].stop()
            own[1].join()

    def _linked(self) -> _Link | None:
        if self._link is not None and not self._link.ended:
            return self._link
        self.stop()
        connection = self._connected()
        if connection is None:
            return None
        try:
            self._link = _Link(connection, self._on_event, self._lost)
        except RuntimeError as error:
            self.stop()
            self.reason = str(error)
            return None
        self.reason = ""
        return self._link

    def _connected(self) -> socket.socket | None:
        try:
            return sockets.connect(self._place, account=_ACCOUNT, kind=socket.SOCK_SEQPACKET)
        except OSError as error:
            lacking = _lacking()
            if not lacking:
                return self._ourselves()
            self.reason = f"no xpucached-watch at {self._place} ({error.strerror or error}), and we lack {lacking}"
            return None

    def _ourselves(self) -> socket.socket | None:
        """Begin a watcher of our own: we have the rights."""
        try:
            server = WatchServer(loads=self._loads)
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            server.take(its)
            thread = threading.Thread(target=server.run, name="watcher", daemon=True)
            thread.start()
        except (OSError, RuntimeError) as error:
            self.reason = str(error)
            return None
        self._own = (server, thread)
        return ours

    def _ask(self, link: _Link, root: Path, identity: tuple[int, int]) -> None:
        self._number += 1
        asked = link.asked[self._number] = _Asked(root, identity)
        try:
            directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            asked.answer = error.strerror or str(error)
            return
        try:
            link.send({"watch": self._number, "loads": self._loads}, directory)
        finally:
            os.close(directory)


def _lacking() -> str:
    """Name the rights that we need for a watcher of our own and do not have."""
    try:
        with open("/proc/self/status", "rb") as stream:  # noqa: PTH123 - one file of the kernel's
            (line,) = (one for one in stream if one.startswith(b"CapEff:"))
    except (OSError, ValueError):
        return "the means to see our rights"
    bits = int(line.split()[1], 16)
    return " and ".join(name for bit, name in _NEEDED.items() if not bits >> bit & 1)
