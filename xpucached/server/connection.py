"""Door: one client's connection.  Knows who it is, and bounds what it may cost.  Touches its socket.

uvicorn's protocol parses and frames; this adds peer credentials, time limits and a share of the places per user.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final, cast

import h11
from msgspec import Struct

from xpucached import codec, sockets, sparing
from xpucached.api.endpoints import VERSION
from xpucached.errors import Denied

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import ASGIApp

# uvicorn without its command line, which its package loads, and without what its configuration has for TLS and logs.
_UVICORN: Final = sparing.package("uvicorn")
_TLS: Final = sparing.DeferredModule("ssl", PROTOCOL_TLS_SERVER=17, CERT_NONE=0)
_LOGS: Final = {
    "configparser": sparing.DeferredModule("configparser", RawConfigParser=object),  # stands in an annotation
    "logging.config": sparing.DeferredModule("logging.config"),
}
with sparing.instead({"uvicorn": _UVICORN, "ssl": _TLS, **_LOGS}):
    from uvicorn.config import Config

    vars(_UVICORN).update(Config=Config)
    from uvicorn.lifespan.off import LifespanOff  # noqa: F401 - what the configuration would load by its name
    from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
    from uvicorn.server import ServerState

log = logging.getLogger(__name__)


class ConnectionLimits(Struct, frozen=True):
    """What one client may cost.  Times are seconds, sizes bytes."""

    head: int = 16 * 1024
    body: int = 1024 * 1024
    head_time: float = 10.0
    body_time: float = 10.0
    idle_time: float = 30.0
    write_time: float = 30.0  #: a reader who stops for so long is cut off, and what waited for him is freed
    unread: int = 4 << 20  #: so much may wait for one user's readers before one more who does not read is cut off
    unread_of_all: int = 32 << 20  #: the same for all together, before who lets most wait is cut off
    per_user: int = 64
    total: int = 512
    heartbeat: float = 15.0
    backlog: int = 256  #: events that may wait for one slow reader
    pieces: int = 512  #: so many reads may bring one request: who sends byte by byte costs us time for each
    stop_time: float = 5.0


class Peer(Struct, frozen=True):
    """Who connected, as the kernel says."""

    pid: int
    uid: int
    gid: int


def refusal_bytes(code: str, message: str, hint: str = "") -> bytes:
    """Write a refusal as it stands on the wire."""
    return codec.dumps({"api": VERSION, "error": {"code": code, "message": message, "hint": hint}})


def _last_words(status: str, code: str, message: str, hint: str = "") -> bytes:
    body = refusal_bytes(code, message, hint)
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    )
    return f"{head}\r\n".encode("ascii") + body


_FULL: Final = _last_words("503 Service Unavailable", "busy", "too many connections")
FOREIGN: Final = Denied("this is another user's daemon")

_CHUNKED: Final = "say in Content-Length how long the body is: a body in chunks is not taken"

_HTTP_LOG: Final = log.getChild("http")
# What hostile clients send is no news for the journal: it would be theirs to fill.
_HTTP_LOG.setLevel(logging.ERROR)


class _HttpParser(h11.Connection):
    """h11, which takes no body in chunks: one of a byte costs us ten thousand times what it costs who sends it.

    Whoever calls us can say how long the body is.
    """

    chunked = False

    def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        try:
            event = super().next_event()
        except ValueError as error:
            # Of a length with more digits than Python reads h11 says something else since 0.15 only.
            raise h11.RemoteProtocolError(str(error)) from error
        if isinstance(event, h11.Request) and any(name == b"transfer-encoding" for name, _ in event.headers):
            self.chunked = True
            raise h11.RemoteProtocolError(_CHUNKED)
        return event


class _Tasks(set["asyncio.Task[None]"]):
    """The requests of one connection that are not done yet; its server's are all of them."""

    def __init__(self, of_all: set[asyncio.Task[None]], on_end: Callable[[], None]) -> None:
        super().__init__()
        self._of_all = of_all
        self._on_end = on_end

    def add(self, task: asyncio.Task[None], /) -> None:
        super().add(task)
        self._of_all.add(task)

    def discard(self, task: object, /) -> None:
        super().discard(task)
        self._of_all.discard(task)
        self._on_end()


class ConnectionPool(ServerState):
    """All connections of a server, and who holds them."""

    def __init__(
        self, limits: ConnectionLimits, admits: Callable[[int], bool] = lambda _uid: True, foreign: Denied = FOREIGN
    ) -> None:
        super().__init__()
        self.limits = limits
        self.admits = admits
        self.foreign = _last_words("403 Forbidden", foreign.code, foreign.message, foreign.hint)
        self.held: Counter[int] = Counter()
        self.idle: dict[Connection, None] = {}  # those that wait for their client, oldest first

    def make_room(self, uid: int) -> bool:
        """Find a place for one more connection of this user, if need be by closing an idle one."""
        if self.held[uid] >= self.limits.per_user:
            return self._drop_idle(uid)
        if self.held.total() >= self.limits.total:
            # Whoever holds most gives way, so nobody can shut the others out, nor can some together.
            ranked = self.held.most_common()
            return any(self._drop_idle(greedy) for greedy, _ in ranked) or self._drop_reading(uid, *ranked[0])
        return True

    def _drop_idle(self, uid: int) -> bool:
        for connection in self.idle:
            if connection.peer.uid == uid:
                connection.drop()
                return True
        return False

    def _drop_reading(self, uid: int, greedy: int, held: int) -> bool:
        """End one that waits for an answer which changes nothing, of who holds more than another would then."""
        theirs = (one for one in self.connections if isinstance(one, Connection) and one.peer.uid == greedy)
        reading = next((one for one in theirs if one.reads), None) if held > self.held[uid] + 1 else None
        if reading is not None:
            reading.drop()
        return reading is not None


def configuration(application: ASGIApp, limits: ConnectionLimits) -> Config:
    """Return what uvicorn is to know of those who connect."""
    config = Config(
        application,
        http=Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=limits.idle_time,  # type: ignore[arg-type] # handed to call_later, which takes both
        h11_max_incomplete_event_size=limits.head,
    )
    config.load()
    return config


class Connection(H11Protocol):
    """uvicorn's connection, with a known peer and bounded in time."""

    def __init__(
        self,
        config: Config,
        server_state: ConnectionPool,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.places = server_state
        self.limits = server_state.limits
        self.conn: _HttpParser = _HttpParser(h11.SERVER, self.limits.head)
        self.logger = _HTTP_LOG
        self._pieces = 0
        self.peer = Peer(0, -1, -1)
        self._placed = False
        self._gone = False
        self.tasks: _Tasks = _Tasks(server_state.tasks, self._see_end)
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's annotation hides that it begins as None
        return cycle is not None and not cycle.response_complete

    @property
    def reads(self) -> bool:
        """Whether it waits for an answer, and what is asked can be asked again."""
        return self.busy and self._placed and not self._gone and self.scope["method"] in {"GET", "HEAD"}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn's own
        """Learn who it is, and whether there is a place for him."""
        super().connection_made(transport)
        # So whatever waits for its reader has a timer; where uvicorn or asyncio close, that waits for him, too.
        transport.set_write_buffer_limits(high=0)
        peer = cast("socket.socket", transport.get_extra_info("socket"))
        # Who comes by a port is nobody that we know, and all of them are one.
        if peer.family == socket.AF_UNIX:
            self.peer = Peer(*sockets.peer(peer))
        refused = b""
        if not self.places.admits(self.peer.uid):
            refused = self.places.foreign
        elif not self.places.make_room(self.peer.uid):
            log.debug("no place for another connection: uid %d", self.peer.uid)
            refused = _FULL
        if refused:
            transport.write(refused)
            transport.close()
            return
        self._placed = True
        self.places.held[self.peer.uid] += 1
        self.app_state = {**self.app_state, "peer": self.peer, "abort": self.abort}
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back, if nothing goes on for it."""
        self._leave()
        self._stop_timer("_head_timer")
        self._stop_timer("_write_timer")
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take what came, unless we already said goodbye."""
        if not self._placed or self._gone:
            return
        self._pieces += 1
        if self._pieces > self.limits.pieces:
            self.send_400_response("too many pieces")
            return
        super().data_received(data)
        self._settle()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._pieces = 0
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        """Start to lose patience with a client who does not read."""
        super().pause_writing()
        if self._make_room_for_unread():
            self.abort()
            return
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write_time, self.abort)

    def _make_room_for_unread(self) -> bool:
        """Return whether too much waits for this user's other readers; of all, who lets most wait is cut off."""
        waiting = {
            one: one.transport.get_write_buffer_size()
            for one in self.connections
            if isinstance(one, Connection) and one is not self
        }
        held: Counter[int] = Counter()
        for one, size in waiting.items():
            held[one.peer.uid] += size
        if held[self.peer.uid] > self.limits.unread:
            return True
        left = held.total()
        for one in sorted(waiting, key=lambda one: (held[one.peer.uid], waiting[one]), reverse=True):
            if left <= self.limits.unread_of_all:
                break
            left -= waiting[one]
            one.abort()
        return False

    def resume_writing(self) -> None:
        """Regain it."""
        super().resume_writing()
        self._stop_timer("_write_timer")

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in our own form."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE} and not self.busy:
            malformed = "the request is not HTTP/1.1, or its head is too large"
            status, why = ("411 Length Required", _CHUNKED) if self.conn.chunked else ("400 Bad Request", malformed)
            self._close_with(_last_words(status, "bad-request", why))
        else:
            # In the middle of an answer there is nothing left to say.
            log.debug("dropped a connection: %s", msg)
            self.abort()
        self._leave()

    def abort(self) -> None:
        """End at once, and free what waits for the reader.  A transport that is gone refuses to be ended again."""
        if not self.ended.done():
            self.transport.abort()

    def drop(self) -> None:
        """Close at once; used for those who wait for nothing, or let us wait."""
        self._leave()
        self.abort()

    def _leave(self) -> None:
        """Give the place back as soon as nothing is done for this connection: a change goes on when its client left."""
        self._gone = True
        self.places.idle.pop(self, None)
        self._see_end()

    def _see_end(self) -> None:
        if self._gone and not self.tasks:
            self._release()

    def _release(self) -> None:
        if self._placed:
            self._placed = False
            self.places.held[self.peer.uid] -= 1
            if not self.places.held[self.peer.uid]:
                del self.places.held[self.peer.uid]

    def _settle(self) -> None:
        """Set the timers that fit what we wait for."""
        if self._gone:
            return
        self.places.idle.pop(self, None)
        if not self.busy or self.cycle.more_body:
            self.places.idle[self] = None
        waiting = self.timeout_keep_alive_task is not None
        if self.busy or waiting or self.transport.is_closing():
            self._stop_timer("_head_timer")
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_time, self._head_late)

    def _head_late(self) -> None:
        if not self.transport.is_closing():
            self._close_with(_last_words("408 Request Timeout", "bad-request", "the request did not arrive in time"))
            self._leave()

    def _close_with(self, words: bytes) -> None:
        """Close with a last answer; who has not read what came before gets none, and keeps nothing of ours open."""
        self.transport.write(words)
        if self.transport.get_write_buffer_size():
            self.abort()
        else:
            self.transport.close()

    def _stop_timer(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)
