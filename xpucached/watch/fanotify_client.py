"""A watchdog emitter on fanotify: it asks the host's watcher (``xpucached-watch``), or one in a thread of our own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers.api import BaseObserver, EventEmitter

from xpucached import messages, sockets
from xpucached.domain.activity import FileAct, FileEvent
from xpucached.watchd.server import PACKET, WatchServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from watchdog.observers.api import EventQueue, ObservedWatch

    from xpucached.messages import Json

log = logging.getLogger(__name__)

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


@dataclass(unsafe_hash=True)
class _Touched(FileSystemEvent):
    """Something in a store was touched."""

    file_event: FileEvent | None = None


@dataclass(unsafe_hash=True)
class _Lost(FileSystemEvent):
    """Something was lost; with ``ended`` nothing more will come."""

    why: str = ""
    ended: bool = False


@dataclass(slots=True)
class _Asked:
    root: Path
    identity: tuple[int, int]
    answer: WatchCoverage | str | None = None


class _Link:
    """A connection to a watcher, and what was asked of it.  Used from two threads."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.asked: dict[int, _Asked] = {}
        self.news = threading.Condition()
        self.ended = False
        connection.settimeout(1.0)


class _Emitter(EventEmitter):
    """Turns the watcher's packets into events."""

    def __init__(
        self,
        event_queue: EventQueue,
        watch: ObservedWatch,
        *,
        link: _Link,
        timeout: float = 1.0,
        event_filter: list[type[FileSystemEvent]] | None = None,
    ) -> None:
        super().__init__(event_queue, watch, timeout=timeout, event_filter=event_filter)
        self._link = link

    def queue_events(self, timeout: float) -> None:  # noqa: ARG002 - the connection has its own, the same
        """Take the next packet."""
        try:
            data = self._link.connection.recv(PACKET)
            if data:
                self._take(messages.members(messages.parse(data, largest=PACKET)))
            else:
                self._end()
        except TimeoutError:
            return
        except (OSError, ValueError) as error:
            log.warning("the watcher says what nobody understands: %s", error)
            self._end()

    def _take(self, message: Mapping[str, Json]) -> None:
        """Do what a packet says; raises ValueError where it cannot be meant."""
        if "events" in message:
            at = messages.number(message, "at", least=0, most=_LATEST)
            for event in messages.items(message, "events", most=PACKET):
                number, path, act, pid = _event(event)
                asked = self._link.asked.get(number)
                if asked is not None:
                    file_event = FileEvent(asked.root, path, act, pid, at)
                    self.queue_event(_Touched(f"{asked.root}/{path}", file_event=file_event))
        elif "lost" in message:
            self.queue_event(_Lost("", why="the kernel's queue of events was full, and some were lost"))
        else:
            self._answer(message)

    def _answer(self, message: Mapping[str, Json]) -> None:
        key = "watching" if "watching" in message else "refused"
        asked = self._link.asked.get(messages.whole(message, key, least=0, most=_HIGHEST))
        if asked is None:
            return
        why = messages.text(message, "why", longest=PACKET, default="")
        with self._link.news:
            if key == "watching":
                asked.answer = WatchCoverage(messages.flag(message, "names"), messages.flag(message, "loads"), why)
            else:
                asked.answer = why or "refused"
            self._link.news.notify_all()

    def _end(self) -> None:
        ours = not self.should_keep_running()
        with self._link.news:
            self._link.ended = True
            self._link.news.notify_all()
        if not ours:
            self.queue_event(_Lost("", why="the watcher went away", ended=True))
        self.stop()


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


class _EventHandler(FileSystemEventHandler):
    """Passes on what the emitter queued.  Called from watchdog's thread."""

    def __init__(self, heard: Callable[[FileEvent], None], lost: Callable[[str], None]) -> None:
        self._heard = heard
        self._lost = lost

    def dispatch(self, event: FileSystemEvent) -> None:
        """Pass it on; watchdog's thread must live on, whatever becomes of it."""
        try:
            if isinstance(event, _Touched) and event.file_event is not None:
                self._heard(event.file_event)
            elif isinstance(event, _Lost):
                self._lost(event.why)
        except Exception:
            log.exception("a touch could not be taken: %s", event)


class Fanotify:
    """Listens at whole stores.  `cover` and `stop` may be called from any thread, one at a time."""

    def __init__(
        self, heard: Callable[[FileEvent], None], lost: Callable[[str], None], *, place: Path, loads: bool
    ) -> None:
        """``place``: the host's watcher; ``lost`` hears why something may be missed.  Both from other threads."""
        self._ear = _EventHandler(heard, lost)
        self._place = place
        self._loads = loads
        self._link: _Link | None = None
        self._observer: BaseObserver | None = None
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
        wanted = {root: identity for root in roots if (identity := _identity(root)) is not None}
        for number, asked in list(link.asked.items()):
            if wanted.get(asked.root) != asked.identity or not isinstance(asked.answer, WatchCoverage):
                # Gone, another directory by now, or refused: then it is asked again.
                link.asked.pop(number, None)
                self._send(link, {"forget": number})
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
        observer, self._observer = self._observer, None
        own, self._own = self._own, None
        self.reason = "stopped"
        if observer is not None:
            for emitter in tuple(observer.emitters):
                emitter.stop()
            observer.stop()
        if link is not None:
            # This also wakes the emitter.
            with contextlib.suppress(OSError):
                link.connection.shutdown(socket.SHUT_RDWR)
        if observer is not None and observer.is_alive():
            observer.join()
        if link is not None:
            link.connection.close()
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
        link = self._link = _Link(connection)

        class Emitter(_Emitter):
            """The emitter of this connection: not every version of watchdog hands further arguments on."""

            def __init__(
                self,
                event_queue: EventQueue,
                watch: ObservedWatch,
                *,
                timeout: float = 1.0,
                event_filter: list[type[FileSystemEvent]] | None = None,
            ) -> None:
                super().__init__(event_queue, watch, link=link, timeout=timeout, event_filter=event_filter)

        observer = self._observer = BaseObserver(Emitter)
        try:
            observer.schedule(self._ear, "/", recursive=True)
            observer.start()
        except (OSError, RuntimeError) as error:
            self.stop()
            self.reason = str(error)
            return None
        self.reason = ""
        return link

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
            self._send(link, {"watch": self._number, "loads": self._loads}, directory)
        finally:
            os.close(directory)

    def _send(self, link: _Link, message: Mapping[str, object], descriptor: int | None = None) -> None:
        data = json.dumps(message).encode()
        try:
            socket.send_fds(link.connection, [data], [] if descriptor is None else [descriptor])
        except OSError as error:
            log.debug("the watcher does not take what we ask: %s", error)


def _identity(root: Path) -> tuple[int, int] | None:
    try:
        status = root.stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino)


def _lacking() -> str:
    """Name the rights that we need for a watcher of our own and do not have."""
    try:
        with open("/proc/self/status", "rb") as stream:  # noqa: PTH123 - one file of the kernel's
            (line,) = (one for one in stream if one.startswith(b"CapEff:"))
    except (OSError, ValueError):
        return "the means to see our rights"
    bits = int(line.split()[1], 16)
    return " and ".join(name for bit, name in _NEEDED.items() if not bits >> bit & 1)
