"""Door: ``status`` as the daemon itself writes it; the standard library's smallest part only.  Touches the socket.

Most calls of xpucachectl are this one, from prompts, scripts and monitors, and most of its time would go into loading
what decodes and writes the answer.  The daemon has all that loaded.
"""

from __future__ import annotations

import os
import sys

from xpucached import printing, sockets

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    from collections.abc import Sequence

_WORDS = frozenset({"status", "--user", "--system"})
_PATIENCE = 10
_LONGEST = 4 << 20


def status(argv: Sequence[str]) -> int | None:
    """Do ``status``; None if something else was asked for or nobody answers: then the whole program sees to it."""
    if "status" not in argv or len(argv) > 2 or not _WORDS.issuperset(argv):  # noqa: PLR2004 - the verb and a scope
        return None
    terminal = sys.stdout.isatty()
    colour = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    style = "colour" if colour else "plain"
    if terminal:
        try:
            columns = int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(sys.stdout.fileno()).columns
        except (OSError, ValueError, AttributeError):
            return None
        style += f", {columns}"
    try:
        text = _ask(_path(argv), style)
    except (LookupError, OSError, ValueError):
        return None
    if text is None:
        return None
    try:
        sys.stdout.write(printing.lines(text))
        sys.stdout.flush()
    except UnicodeEncodeError:
        return None
    except BrokenPipeError:
        # Whoever read us has had enough.  Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def _path(argv: Sequence[str]) -> str:
    scoped = "--user" in argv or "--system" in argv
    named = os.environ.get("XPUCACHED_SOCKET")
    if named and not scoped:
        return named
    return sockets.socket_path(user="--system" not in argv if scoped else os.geteuid() != 0, environ=os.environ)


def _ask(path: str, style: str) -> str | None:
    head = f"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\nXpucached-Look: {style}\r\n"
    answer = bytearray()
    with sockets.connect(path, timeout=_PATIENCE) as connection:
        connection.settimeout(_PATIENCE)
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode("ascii"))
        while part := connection.recv(1 << 16):
            answer += part
            if len(answer) > _LONGEST:
                return None
    said, _, body = bytes(answer).partition(b"\r\n\r\n")
    first, *rest = said.lower().split(b"\r\n")
    plain = any(line.startswith(b"content-type: text/plain") for line in rest)
    length = next((line.partition(b":")[2].strip() for line in rest if line.startswith(b"content-length:")), b"")
    if b" 200 " not in first + b" " or not plain or length != str(len(body)).encode("ascii"):
        return None
    return body.decode("utf-8", "replace")
