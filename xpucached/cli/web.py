"""Door: `xpucachectl web`: the page from this command, on the loopback address only, for who has its token.  Listens.

Whoever is on this host reaches the port, and so does every page in the browser: the token is the lock, and what did not
come from our own page is refused.  Only what looks is answered, and nothing listens after the command.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import re
import secrets
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote

from xpucached import codec
from xpucached.api import host_requests, looking
from xpucached.api.endpoints import VERSION
from xpucached.cli import connect
from xpucached.cli.report import part
from xpucached.errors import XpucachedError
from xpucached.printing import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xpucached.api.client import Client
    from xpucached.api.endpoints import Request
    from xpucached.cli.output import Output

    Overviews = Callable[[str], bytes]
    """Give the overview of a user, or where none is named that of who was asked."""

_SHELL: Final = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    '<title>xpucached</title><link rel="stylesheet" href="page.css"><link rel="icon" href="data:,"></head>\n'
    '<body><main id="root"></main><script type="module" src="start.js"></script></body></html>\n'
)
_START: Final = "import { main, bearer } from './page.js';\nmain(bearer, 5000);\n"

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PATIENCE: Final = 10.0
"""Seconds that a client may take for its request."""
_LARGEST: Final = 4 << 20
"""Bytes of a user's overview.  What a user runs may answer anything, slowly, and without end."""
_STRANGERS: Final = 64
"""Connections of which nobody knows yet that they have the token: of more the oldest is ended."""
_LONGEST: Final = 32 << 10
"""Bytes of a request, which every stranger may send."""
_PATH: Final = re.compile(r"/v1/(?:users/(?P<user>[\w.~%-]{1,200})/)?overview", re.ASCII)


class PageServer(ThreadingHTTPServer):
    """Serves the page and the overview, on a port of the loopback address that the kernel chooses."""

    daemon_threads = True
    request_queue_size = _STRANGERS

    def __init__(self, overview: Overviews, *, users: bool = False) -> None:
        """``users`` says whether each user's page is served, too."""
        self._changing = threading.Lock()
        self.strangers: dict[socket.socket, float] = {}
        """Who has not shown the token, the oldest first, and until when."""
        super().__init__(("127.0.0.1", 0), _PageHandler)
        self.users = users
        self.token = secrets.token_urlsafe(32)
        self.overview = overview
        self.files = {
            "/": (_SHELL.encode(), "text/html"),
            "/page.css": (part("page.css").encode(), "text/css"),
            "/page.js": (part("page.js").encode(), "text/javascript"),
            "/start.js": (_START.encode(), "text/javascript"),
        }

    @property
    def origin(self) -> str:
        """What the address of our pages begins with."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def address(self) -> str:
        """Where the page is.  What stands behind the # is never sent, nor written down by anybody."""
        return f"{self.origin}/#{self.token}"

    def process_request(self, request: object, client_address: object) -> None:
        """Answer in a thread, and end the oldest of too many strangers.

        Whoever is on this host can connect, and say nothing: neither the page nor the command's end waits for them.
        """
        one = cast("socket.socket", request)
        with self._changing:
            self.strangers[one] = time.monotonic() + _PATIENCE
            late = list(self.strangers)[:-_STRANGERS]
        self._end(late)
        super().process_request(one, cast("tuple[str, int]", client_address))

    def service_actions(self) -> None:
        """End strangers who take too long for a request, whatever comes one byte at a time."""
        now = time.monotonic()
        with self._changing:
            late = [one for one, until in self.strangers.items() if until < now]
        self._end(late)

    def _end(self, strangers: Iterable[socket.socket]) -> None:
        """Have the threads of these connections end; they close them."""
        for one in strangers:
            self.know(one)
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def know(self, one: socket.socket) -> None:
        """Count a connection no more among those of strangers."""
        with self._changing:
            self.strangers.pop(one, None)

    def shutdown_request(self, request: object) -> None:
        """Close a connection."""
        self.know(cast("socket.socket", request))
        super().shutdown_request(cast("socket.socket", request))

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up."""


class _BoundedHead(io.BufferedReader):
    """What a client says; behind so much of it nothing more comes."""

    left = _LONGEST

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line, or what is left."""
        line = super().readline(self.left if size is None or size < 0 else min(size, self.left))
        self.left -= len(line)
        return line


class _PageHandler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "xpucachectl", ""
    timeout = _PATIENCE

    def setup(self) -> None:
        """Read no more than a head's worth: nobody is known yet."""
        super().setup()
        self.rfile = _BoundedHead(cast("io.BufferedReader", self.rfile).detach())

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - as it is called
        """Write no log: it would hold addresses and what was tried."""

    def do_GET(self) -> None:
        """Answer, if it comes from our own page, and for data from who has the token."""
        server, heads = self.server, self.headers
        ours = heads.get("Host") == server.origin.removeprefix("http://")
        ours = ours and heads.get("Origin") in {None, server.origin}
        if not ours or heads.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
            return self._answer(403, b"other hosts, origins and sites are refused\n")
        if self.path in server.files:
            return self._answer(200, *server.files[self.path])
        given = heads.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, f"Bearer {server.token}".encode()):
            return self._answer(401, b"a token is needed: open the address that xpucachectl web printed\n")
        server.know(self.connection)
        asked = _PATH.fullmatch(self.path)
        if asked is None or (asked["user"] and not server.users):
            return self._answer(404, b"there is nothing here\n")
        try:
            return self._answer(200, server.overview(unquote(asked["user"] or "")), "application/json")
        except XpucachedError as error:
            return self._answer(503, plain(error.message).encode("ascii", "backslashreplace"))

    def _answer(self, status: int, body: bytes, media: str = "text/plain") -> None:
        self.send_response(status)
        heads = {**_HEADERS, "Content-Type": f"{media}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in heads.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def web(output: Output) -> int:
    """Serve the page until Ctrl-C, or until so many seconds are over; gives the exit status."""
    return _serve(output, lambda _user: _asked(connect.reach(output.options)[0], looking.GetOverview()))


def of_host(output: Output) -> int:
    """Serve the page of the host and those of its users, as `web` does."""

    def overview(user: str) -> bytes:
        if user:
            return _asked(connect.of_user(user, largest=_LARGEST), looking.GetOverview())
        return _asked(connect.reach(output.options)[0], host_requests.GetHostOverview())

    return _serve(output, overview, users=True)


def _asked(client: Client, request: Request[object]) -> bytes:
    # A connection each, so that a daemon that was started again is found, and one that is slow holds up its page only.
    with client:
        return codec.dumps({"api": VERSION, "data": client.call(request).data})


def _serve(output: Output, overview: Overviews, *, users: bool = False) -> int:
    overview("")  # who cannot be asked is told of before anybody opens a page
    server = PageServer(overview, users=users)
    serving = threading.Thread(target=server.serve_forever, name="web", daemon=True)
    serving.start()
    try:
        if output.json:
            output.dump({"address": server.address})
        else:
            print(server.address)
        sys.stdout.flush()
        serving.join(output.options.for_)
    finally:
        server.shutdown()
        server.server_close()
    return 0
