"""``server.py PORT DIRECTORY LIBSYCL NAME…``: a server that builds kernels when it is asked, as an application does.

``POST /build`` builds them, ``POST /fail`` is answered with 500, ``POST /end`` with nothing, and anything else is well.
It ends by SIGTERM alone.
"""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_GET(self) -> None:
        """Say that it is there."""
        self._answer(200)

    def do_POST(self) -> None:
        """Do what is asked, and say what was."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        print("asked", self.path, body.decode(), self.headers.get("Content-Type"), flush=True)
        if self.path == "/build":
            sys.path.insert(0, str(Path(__file__).parent))
            import kernels  # type: ignore[import-not-found] # noqa: PLC0415 - it lies beside us

            kernels.build(sys.argv[2], sys.argv[3], sys.argv[4:])
        elif self.path == "/end":
            os._exit(3)
        self._answer(500 if self.path == "/fail" else 200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


if __name__ == "__main__":
    HTTPServer.allow_reuse_address = True
    server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print("listening on", server.server_port, flush=True)
    server.serve_forever()
