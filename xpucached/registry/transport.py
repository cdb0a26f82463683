"""HTTP and TLS as a registry is talked to: one request a connection, each step with a deadline, nothing followed."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import ipaddress
import math
import socket
import ssl
import stat
import time
import urllib.request
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urljoin, urlsplit

from xpucached import __version__
from xpucached.errors import RegistryError
from xpucached.registry.reference import is_loopback
from xpucached.registry.retrying import Interrupted, NoTls

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType
    from urllib.parse import SplitResult

_CONNECT: Final = 10.0
_REACH: Final = 30.0
"""Seconds for one address of a host, and for all that its name has."""
_ALL: Final = 86400.0
"""Seconds for all that is asked: who answers thousands of questions, each just in time, would take weeks."""
_PIECE: Final = 64 << 10
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE"})
_PORTS: Final = {"http": 80, "https": 443}


def address(text: str, told_by: SplitResult, *, relative: bool = True) -> SplitResult:
    """Read where a registry sends us; ``relative`` says whether it may leave its own host out.

    Raises `RegistryError`, also where somebody who is not on this host sends to a server that only this host reaches.
    """
    none = RegistryError(f"{text[:200]} is no address of a registry")
    try:
        url = urlsplit(urljoin(told_by.geturl(), text) if relative else text)
        url.geturl().encode("ascii")
        (url.hostname or "").encode("idna")
        _ = url.port
    except ValueError:
        raise none from None
    if not url.netloc.isprintable():  # resolvers would read a name as far as a zero byte
        raise none
    if _leads_here(url.hostname or "") and not _leads_here(told_by.hostname or ""):
        raise RegistryError(f"{told_by.hostname} sends to a server of this host itself: {url.netloc[:200]}")
    return url


def same_server(one: SplitResult, other: SplitResult) -> bool:
    """Return whether two addresses are of one server, whether or not they name the usual port, and in whatever case."""
    here, there = ((url.scheme, url.hostname, url.port or _PORTS.get(url.scheme)) for url in (one, other))
    return here == there


def _leads_here(host: str) -> bool:
    """Return whether whoever connects to a host meets this one, however its name or address is written."""
    name = host.strip("[]").casefold().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    with contextlib.suppress(OSError, UnicodeEncodeError):
        # As resolvers read them: 127.1, 0x7f000001 and 2130706433 are one address.
        name = socket.inet_ntoa(socket.inet_aton(name))
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return False
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_unspecified


class _DeadlineSocket:
    """A socket that must give each whole answer, or each piece of it, by a time: drops do not move it."""

    def __init__(self, inner: socket.socket, patience: float, end: float = math.inf) -> None:
        self._inner = inner
        self._patience = patience
        self._end = end
        self._deadline = 0.0
        self.renew()

    def renew(self) -> None:
        """Give the other side its time anew."""
        self._deadline = min(time.monotonic() + self._patience, self._end)

    def _left(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._inner.settimeout(left)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        for at in range(0, len(view), _PIECE):
            self.renew()
            self._left()
            self._inner.sendall(view[at : at + _PIECE])

    def recv_into(self, buffer: memoryview) -> int:
        self._left()
        return self._inner.recv_into(buffer)

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(_Stream(self))

    def close(self) -> None:
        """Leave it open: whoever reads the answer closes it."""

    def end(self) -> None:
        """Close it."""
        with contextlib.suppress(OSError):
            self._inner.close()


class _Stream(io.RawIOBase):
    def __init__(self, timed: _DeadlineSocket) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override] # which is what io hands over
        return self._timed.recv_into(buffer)


class RegistryAnswer:
    """An answer: its status and headers, and its body, piece by piece; `close` it."""

    def __init__(self, response: http.client.HTTPResponse, timed: _DeadlineSocket, url: SplitResult) -> None:
        self._response = response
        self._timed = timed
        self.url = url
        self.status = response.status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def header(self, name: str) -> str:
        """Return a header; empty if it is not there."""
        return self._response.headers.get(name) or ""

    def headers(self, name: str) -> list[str]:
        """Return all headers of one name."""
        return self._response.headers.get_all(name) or []

    def piece(self) -> bytes:
        """Return some of the body; nothing at its end, or where it breaks off.  Raises `Interrupted`."""
        self._timed.renew()
        found = bytearray()
        with _interrupted(self.url):
            # Not `read`: of a chunk that says it has less than no bytes that takes all that comes.
            while len(found) < _PIECE and (part := self._response.read1(_PIECE - len(found))):
                found += part
        return bytes(found)

    def body(self, most: int) -> bytes:
        """Return all of a small body.  Raises `Interrupted`, and `RegistryError` if it is larger."""
        found = bytearray()
        while part := self.piece():
            found += part
            if len(found) > most:
                raise RegistryError(f"{self.url.hostname} answered with more than {most} bytes where few were expected")
        if left := self._response.length:
            raise Interrupted(f"{self.url.hostname} broke off after {len(found)} of {len(found) + left} bytes")
        return bytes(found)

    def close(self) -> None:
        """End the connection."""
        self._response.close()
        self._timed.end()


@contextlib.contextmanager
def _interrupted(url: SplitResult) -> Iterator[None]:
    """Raise what may pass by itself as `Interrupted`, and what will not as `RegistryError`."""
    host = url.hostname or ""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        hint = "name the authority that signed it: --ca-file FILE, or SSL_CERT_FILE"
        raise RegistryError(f"the certificate of {host} is not trusted: {error.verify_message}", hint=hint) from error
    except ssl.SSLError as error:
        raise (NoTls if error.reason in _NO_TLS else Interrupted)(f"{host}: {error.reason or error}") from error
    except TimeoutError as error:
        raise Interrupted(f"{host} does not answer") from error
    except http.client.HTTPException as error:
        raise Interrupted(f"{host} answered no HTTP: {type(error).__name__} {str(error)[:200]}") from error
    except socket.gaierror as error:
        raise Interrupted(f"{host} is not known: {error.strerror}") from error
    except OSError as error:
        raise Interrupted(f"{host}: {error.strerror or error}") from error


class Transport:
    """Sends requests, one at a time."""

    def __init__(self, *, ca_file: Path | None, plain_http: bool, patience: float) -> None:
        """``patience`` are the seconds that the other side may be silent.  Raises `RegistryError` for ``ca_file``."""
        self.plain_http = plain_http
        self._patience = patience
        self._end = time.monotonic() + _ALL
        if ca_file is not None:
            try:
                if not stat.S_ISREG(ca_file.stat().st_mode):  # of a pipe nothing may ever come
                    raise RegistryError(f"{ca_file} is no file", hint="--ca-file FILE")
                self._tls.load_verify_locations(ca_file)
            except (OSError, ssl.SSLError) as error:
                why = error.strerror or error
                raise RegistryError(f"{ca_file} holds no certificates that can be read: {why}") from error

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # Where all is without TLS, the system's authorities need not be read.
        made = ssl.create_default_context()
        # From Python 3.13 on it refuses what `openssl` makes unless it is told more, and all else takes.
        made.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return made

    def ask(
        self, method: str, url: SplitResult, headers: Mapping[str, str], body: bytes | None = None
    ) -> RegistryAnswer:
        """Send one request; redirects are the caller's.  Raises `Interrupted` and `RegistryError`."""
        self._check(url)
        if time.monotonic() >= self._end:
            hint = "what is done already is kept: the same command does the rest"
            raise RegistryError(f"{url.hostname} took longer than {_ALL / 3600:g} hours for all of it", hint=hint)
        with _interrupted(url), contextlib.ExitStack() as stack:
            timed = _DeadlineSocket(self._connected(url), self._patience, self._end)
            stack.callback(timed.end)
            port = url.port or _PORTS[url.scheme]
            connection = http.client.HTTPConnection(url.hostname or "", port)
            connection.default_port = _PORTS[url.scheme]
            connection.sock = timed
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.putrequest(method, path, skip_accept_encoding=True)
            sent = {"User-Agent": f"xpucached/{__version__}", "Connection": "close", "Accept-Encoding": "identity"}
            if body is not None or method in {"POST", "PUT", "PATCH"}:
                sent["Content-Length"] = str(len(body or b""))
            for name, text in {**sent, **headers}.items():
                connection.putheader(name, text)
            try:
                connection.endheaders()
                if body:
                    connection.send(body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # whoever refuses a body may say so before all of it was sent
            timed.renew()
            response = connection.getresponse()
            stack.pop_all()
            return RegistryAnswer(response, timed, url)

    def _check(self, url: SplitResult) -> None:
        if url.scheme == "https" and url.hostname:
            return
        if url.scheme != "http" or not url.hostname:
            raise RegistryError(f"{url.geturl()[:200]} is no address of a registry")
        if not self.plain_http and not is_loopback(url.hostname):
            hint = "registries are asked over TLS; --plain-http for one that has none"
            raise RegistryError(f"{url.hostname} would be asked without TLS", hint=hint)

    def _connected(self, url: SplitResult) -> socket.socket:
        host, port = url.hostname or "", url.port or _PORTS[url.scheme]
        if url.scheme == "http":
            return _reached(host, port)
        proxy = urllib.request.getproxies_environment().get("https", "")
        if not proxy or is_loopback(host) or urllib.request.proxy_bypass(host):
            return self._secured(_reached(host, port), host)
        try:
            way = urlsplit(proxy if "//" in proxy else f"//{proxy}")
            port_there = way.port or 3128
            (way.hostname or "").encode("idna")
        except ValueError:
            raise RegistryError("HTTPS_PROXY is no address", hint="HTTPS_PROXY=http://HOST:PORT") from None
        if way.scheme not in {"", "http"} or not way.hostname:
            raise RegistryError(f"a proxy of this form is not known: {way.scheme}", hint="HTTPS_PROXY=http://HOST:PORT")
        inner = _reached(way.hostname, port_there)
        try:
            who = base64.b64encode(f"{unquote(way.username or '')}:{unquote(way.password or '')}".encode()).decode()
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            _tunnel(inner, shown, {"Proxy-Authorization": f"Basic {who}"} if way.username else {})
        except BaseException:
            inner.close()
            raise
        return self._secured(inner, host)

    def _secured(self, inner: socket.socket, host: str) -> socket.socket:
        inner.settimeout(_CONNECT)  # for all of the handshake
        with inner:  # it is another's as soon as that begins
            return self._tls.wrap_socket(inner, server_hostname=host)


def _reached(host: str, port: int) -> socket.socket:
    """Connect to a host: a stranger's name may have thousands of addresses at which nobody answers."""
    until = time.monotonic() + _REACH
    failed: OSError = TimeoutError()
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left = until - time.monotonic()
        if left <= 0:
            break
        try:
            made = socket.socket(family, kind, protocol)
        except OSError as error:  # as where the kernel has no IPv6
            failed = error
            continue
        try:
            made.settimeout(min(left, _CONNECT))
            made.connect(place)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            failed = error
            made.close()
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failed


def _tunnel(inner: socket.socket, to: str, headers: Mapping[str, str]) -> None:
    """Have a proxy lead to a host and port.  What it says to that has one deadline, and bounds."""
    proxy = http.client.HTTPConnection("")
    proxy.sock = _DeadlineSocket(inner, _CONNECT)
    proxy.putrequest("CONNECT", to, skip_host=True, skip_accept_encoding=True)
    for name, text in {"Host": to, **headers}.items():
        proxy.putheader(name, text)
    proxy.endheaders()
    with proxy.getresponse() as said:
        if said.status != HTTPStatus.OK:
            raise Interrupted(f"the proxy answered {said.status} to the way to {to}: {said.reason[:200]}")
