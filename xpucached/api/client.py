"""Door: the client's call, standard library only, because its start time is `xpucachectl`'s.  Touches the socket."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import socket
import time
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar
from urllib.parse import quote, urlencode

from msgspec import Struct
from msgspec.structs import asdict

from xpucached import codec, errors, messages, sockets
from xpucached.api.endpoints import Request, row
from xpucached.api.looking import ListEvents
from xpucached.api.requests import WaitJob
from xpucached.guarded import GuardedConnection
from xpucached.printing import plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.messages import Json

T = TypeVar("T")

# No answer takes longer than this except a wait, which says how long.
_PATIENCE: Final = 60.0


class Answer(Struct, Generic[T], frozen=True):
    """What came back: the data as it stood on the wire, and what kind of value it is."""

    data: Json
    kind: object

    @property
    def value(self) -> T:
        """The data as a domain value."""
        try:
            return codec.from_json(self.kind, self.data)  # type: ignore[arg-type] # the table's column is no type[T]
        except ValueError as error:
            raise _unreadable(str(error), "xpucachectl and xpucached may be of different versions") from error


def _unreadable(why: str, hint: str = "") -> errors.XpucachedError:
    return errors.XpucachedError(f"the daemon's answer cannot be read: {why}", hint=hint)


def _too_large(why: str) -> errors.TooLarge:
    hint = "ask for less: one by its name, or one user's (--of USER); whose they are may ask for all, without --of"
    return errors.TooLarge(f"the daemon's answer cannot be read: {why}", hint=hint)


_LARGEST: Final = 256 << 20
_LARGEST_OF_OTHERS: Final = 32 << 20
_MOST_OF_OTHERS: Final = 1_000_000
"""Root asks the daemon of a user, whose answer must not cost root more than half a gigabyte."""

_HEAD: Final = 64 << 10
"""So much may come besides an answer itself."""

_CUT_OFF: Final = (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionResetError)
"""How it looks when somebody ends who was asked."""

_LONGEST_LINE: Final = 4 << 20
_DEPTH: Final = 40  # the description of the wire is the deepest


class _Socket(GuardedConnection):
    """A socket that can be given until when all has come, and how much that may be, whatever HTTP says of its length.

    Who sends a byte now and then is not waited for; and a chunk of length -1 is read to its end by the library.
    """

    end: float | None = None
    left: int | None = None

    def recv_into(self, buffer: bytearray, nbytes: int = 0, flags: int = 0) -> int:  # type: ignore[override] # more
        if self.end is not None:
            # Who sends without a pause is never waited for, and is late all the same.
            if (left := self.end - time.monotonic()) <= 0:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            self.settimeout(left)
        size = super().recv_into(buffer, nbytes, flags)
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise OSError(errno.EMSGSIZE, "more came than an answer may have")
        return size


_WAY: Final = 10.0
"""Seconds for the way to a socket that somebody else may have laid."""


def connect(path: str | Path, *, owner: int | None = None, strict: bool = False) -> socket.socket:
    """Connect to a socket of ours; see `sockets.descriptor`.

    Where the owner says what lies at the path (``strict``), the way there may be a link to a file system that never
    answers: it is not waited for either.
    """

    def ask() -> socket.socket:
        return sockets.connect(path, owner=owner, strict=strict)

    if not strict:
        return ask()
    from xpucached import deadlines  # noqa: PLC0415 - only root asks so

    # Not by the path, whose links would be gone after first.
    return deadlines.ask(f"the socket of user {owner}", ask, _WAY)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, owner: int | None, *, strict: bool) -> None:
        super().__init__("localhost", timeout=_PATIENCE)
        self._path = path
        self._owner = owner
        self._strict = strict
        self.stream: _Socket | None = None

    def connect(self) -> None:
        # Kept, because an answer of unknown length takes ``sock`` away with it.
        connected = connect(self._path, owner=self._owner, strict=self._strict)
        self.sock = self.stream = _Socket(fileno=connected.detach())
        self.stream.uid = -1 if self._owner is None else self._owner
        self.sock.settimeout(self.timeout)


class Client:
    """One connection to the daemon.  Raises what the daemon refused with, or `errors.Unavailable`."""

    def __init__(
        self,
        path: Path,
        *,
        hint: str = "",
        source: str = "",
        of: str = "",
        owner: int | None = None,
        strict: bool = False,
        largest: int | None = None,
        most: int | None = None,
        patience: float = _PATIENCE,
        all_in_time: bool = False,
    ) -> None:
        """``of`` is the user whose worker the host's daemon shall ask; ``owner`` the one who must answer.

        With ``strict`` root must not, either.  ``hint`` says what to do if nobody answers there, ``source`` where the
        path came from if it is not the usual.  ``largest`` bounds an answer, in bytes, and ``most`` the values in it;
        without them they depend on whether an ``owner`` is somebody else.  ``patience`` bounds the time without a
        word, in seconds; with ``all_in_time``, and of somebody else always, the time until the whole answer is there.
        """
        other = owner is not None and owner != os.geteuid()
        self._all_in_time = all_in_time or other
        self._path = path
        self._hint = hint
        self._source = source
        self._of = of
        self._largest = largest or (_LARGEST_OF_OTHERS if other else _LARGEST)
        self._most = most or (_MOST_OF_OTHERS if other else None)
        self._patience = patience
        self._connection = _Connection(path, owner, strict=strict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()

    def call(self, request: Request[T]) -> Answer[T]:
        """Ask, and wait for the answer."""
        return self.read(request, self.fetch(request))

    def fetch(self, request: Request[T]) -> bytes:
        """Ask, and wait for the answer; give it unread."""
        patience = self._patience + (request.timeout if isinstance(request, WaitJob) else 0.0)
        response = self._send(request, patience, self._largest + _HEAD)
        try:
            with response:
                text = response.read(self._largest + 1)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unavailable(error) from error
        if len(text) > self._largest:
            self.close()
            raise _too_large(f"it has more than {self._largest} bytes")
        return text

    def read(self, request: Request[T], text: bytes) -> Answer[T]:
        """Read an answer.  Raises what the daemon refused with."""
        return Answer(_unwrap(text, self._largest, self._most), row(type(request)).reply)

    def follow(self, since: int) -> Iterator[str]:
        """Yield events as lines of JSON, for ever; empty lines are the stream's heartbeat and are left out."""
        response = self._send(ListEvents(since=since, follow=True), self._patience, _LONGEST_LINE + _HEAD)
        try:
            if response.status != http.client.OK:
                _unwrap(response.read(self._largest + 1), self._largest, self._most)
            while line := self._line(response):
                if len(line) > _LONGEST_LINE or not line.isascii():
                    self.close()
                    raise errors.Unavailable("what came is no event", hint="another program may listen on that socket")
                if line.strip():
                    yield line.decode("ascii", "replace").rstrip("\n")
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unavailable(error) from error

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        if self._connection.stream is not None:
            self._connection.stream.left = _LONGEST_LINE + _HEAD
            self._connection.stream.end = self._end(self._patience)
        return response.readline(_LONGEST_LINE + 1)

    def _send(self, request: Request[T], patience: float, most: int) -> http.client.HTTPResponse:
        method, target, body = compose(request)
        if self._of:
            target = f"/v1/users/{quote(self._of, safe='')}{target.removeprefix('/v1')}"
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body is not None else {})
        connection = self._connection
        connection.timeout = patience
        if connection.sock is not None:
            connection.sock.settimeout(patience)
        if method != "GET":
            # The daemon closes idle connections, and a change must not be sent twice: so never over an old one.
            connection.close()
        while True:
            fresh = connection.sock is None
            try:
                # Who refuses early may close before we have sent all; the refusal is there to be read all the same.
                with contextlib.suppress(BrokenPipeError):
                    connection.request(method, target, body, headers)
                if connection.stream is not None:
                    connection.stream.end = self._end(patience)
                    connection.stream.left = most
                return connection.getresponse()
            except sockets.UntrustedPeer as error:
                connection.close()
                raise untrusted(error, self._source) from error
            except PermissionError as error:
                connection.close()
                message = f"you may not open {self._path}"
                raise errors.Denied(message, hint="ask the owner of the daemon, or start your own") from error
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if fresh or isinstance(error, TimeoutError):
                    raise self._unavailable(error) from error

    def _end(self, patience: float) -> float | None:
        """Return until when all has to be there that is asked for now; None if there is no such time."""
        return time.monotonic() + patience if self._all_in_time else None

    def _unavailable(self, error: Exception) -> errors.Unavailable:
        self._connection.close()
        if isinstance(error, TimeoutError | BlockingIOError):
            return errors.Unavailable(
                f"the daemon does not answer on {self._path}", hint="it may be stuck: see its log"
            )
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return errors.Unavailable(f"no daemon answers on {self._path}", hint=self._hint)
        if isinstance(error, _CUT_OFF):
            message = f"the daemon on {self._path} ended before it answered: whether it did what was asked is not known"
            return errors.Restarted(message, hint="see how it stands, and ask again: xpucachectl status --wait")
        if isinstance(error, OSError):
            return errors.Unavailable(f"no daemon answers on {self._path}: {error}", hint=self._hint)
        return errors.Unavailable(f"what answers on {self._path} is not xpucached: {type(error).__name__}")


def compose(request: Request[T]) -> tuple[str, str, bytes | None]:
    """Return method, target and body of a request.  Fields that are unset are left out.

    Raises `errors.RequestError` for what no address and no JSON can say.
    """
    goes = row(type(request))
    values = asdict(request)
    target = goes.path
    for name in goes.placeholders:
        text = str(values.pop(name))
        if text.strip("./") == "":
            raise errors.RequestError(f"{name}: there can be none that is called {text!r}")
        target = target.replace(f"{{{name}}}", quote(text, safe="", errors="surrogateescape"))
    if goes.method == "POST":
        written = {name: codec.to_json(value) for name, value in values.items()}
        for name, value in written.items():
            _see_text(name, value)
        return goes.method, target, codec.dumps(written)
    pairs = [(name, _text(codec.to_json(value))) for name, value in values.items() if value is not None]
    query = urlencode(pairs, errors="surrogateescape")
    return goes.method, f"{target}?{query}" if query else target, None


def _see_text(place: str, value: Json) -> None:
    """Raise `errors.RequestError` for bytes that are no UTF-8: a shell hands them on, and JSON cannot say them."""
    if isinstance(value, dict):
        for name, one in value.items():
            _see_text(f"{place}.{name}", name)
            _see_text(f"{place}.{name}", one)
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            _see_text(f"{place}.{number}", one)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            message = f"{place}: this is not UTF-8 text: {value!r}"
            raise errors.RequestError(message) from error


def _text(value: Json) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _unwrap(text: bytes, largest: int, most: int | None) -> Json:
    try:
        envelope = messages.parse(text, largest=largest, most=most, depth=_DEPTH, escaped_bytes=True)
    except messages.TooMuch as much:
        raise _too_large(str(much)) from much
    except messages.BadMessage:
        envelope = None
    if isinstance(envelope, dict):
        if "data" in envelope:
            data: Json = envelope["data"]
            return data
        error = envelope.get("error")
        if isinstance(error, dict):
            raise refusal(str(error.get("code", "")), str(error.get("message", "")), str(error.get("hint", "")))
    message = "the answer is not xpucached's"
    raise errors.Unavailable(message, hint="another program may listen on that socket")


def untrusted(error: sockets.UntrustedPeer, source: str) -> errors.Untrusted:
    """Return the refusal of a socket; ``source`` says where its path came from if it is not the usual."""
    return errors.Untrusted(str(error), hint="; ".join(part for part in (source, error.hint) if part))


def refusal(code: str, message: str, hint: str) -> errors.XpucachedError:
    """Turn a refusal on the wire back into the error that it was; whoever sent it chose its texts."""
    message, hint = plain(message), plain(hint)
    kinds = [errors.XpucachedError]
    for kind in kinds:
        if kind.code == code:
            return kind(message, hint=hint)
        kinds.extend(kind.__subclasses__())
    return errors.XpucachedError(message, hint=hint)
