"""Door: answers as the daemon itself writes them; the standard library's smallest part only.  Touches the socket.

Most calls of xpucachectl look at something, from prompts, scripts and monitors, and most of their time would go into
loading what decodes and writes the answer.  The daemon has all that loaded.  Whatever is unusual (words that do not
fit into an address, a refusal, nothing found, nobody there) is left to the whole program, which asks again: so nothing
is changed here, but that hooks say that the driver may have changed.
"""

from __future__ import annotations

import os
import time

from xpucached import __version__, printing, sockets
from xpucached.cli import quick_output

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PATHS = {
    "config show": "/v1/config",
    "devices": "/v1/devices",
    "df": "/v1/disk",
    "env": "/v1/env",
    "env {}": "/v1/env?model={}",
    "events": "/v1/events",
    "jobs": "/v1/jobs",
    "jobs {}": "/v1/jobs/{}",
    "ls": "/v1/entries?limit=200",
    "metrics": "/v1/metrics",
    "metrics --openmetrics": "/v1/metrics?format=openmetrics",
    "model history {}": "/v1/models/{}/history",
    "model list": "/v1/models",
    "model show {}": "/v1/models/{}",
    "runs": "/v1/runs",
    "runs {}": "/v1/runs?model={}",
    "show {}": "/v1/entries/{}",
    "status": "/v1/status",
    "stores": "/v1/stores",
    "top --once": "/v1/overview",
    "trash list": "/v1/trash",
    "usage": "/v1/usage",
    "usage --days": "/v1/days",
    "usage --warmth": "/v1/warmth",
    "version": "/v1",
    "why {}": "/v1/models/{}/why",
}
"""What is asked for each command, or with an option that makes it another; braces are a name."""

_OF_HOST = {"status": "/v1/host", "usage": "/v1/overview", "version": "/v1"}
"""The same, of the host's daemon."""

_OPTIONS = frozenset({"--user", "--system", "--json", "-q", "--quiet", "--no-color", "--no-trunc", "--utc"})
_SYNTAXES = frozenset({"--shell", "--systemd", "--docker", "--environment-d"})
_MORE = {"env": _SYNTAXES, "status": frozenset({"--check"})}
"""Further options of single commands."""
_FILTERS = {
    "events": {"--since": "since"},
    "ls": {
        "--arch": "architecture",
        "--defect": "defect",
        "--device": "device",
        "--driver": "driver",
        "--kernel": "kernel",
        "--kind": "kind",
        "--limit": "limit",
        "--model": "model",
        "--state": "state",
        "--store": "store",
    },
    "runs": {"--limit": "limit"},
    "usage": {"--top": "top"},
}
"""Options with a value, and how the daemon calls them."""
_DIGITS = 3
_ENTRIES = "/v1/entries?limit=1000"
"""What is asked for `ls` with --json or -q: as many as a page may have, and the answer is taken if it is all."""
_WIRE = '{"api":1,"data":'
"""How each answer begins on the wire."""
_NONE = ("no entries", f'{_WIRE}{{"entries":[],')
"""How the answer begins where none matches."""
_NAMED = ("&model=", "&store=")
"""Filters of which, where none matches, the whole program sees whether there is such a model or store at all."""
_LEVELS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
"""What monitoring systems call the exit statuses of a check."""

_HOOK = ["--no-wait", "--system", "driver-changed"]
"""What packages, units and timers call, sorted; the one word that changes something, and may be said twice."""

_PATIENCE = 10
_WHOLE = 30
"""Seconds for a whole answer."""
_LONGEST = 4 << 20


def answer(argv: Sequence[str]) -> int | None:
    """Do what is asked and give the exit status; None if the whole program has to see to it."""
    if sorted(argv) == _HOOK:
        return _told()
    if "--" in argv:
        return _started(argv[: argv.index("--")], argv[argv.index("--") + 1 :])
    try:
        argv, filters = _filtered(argv)
    except LookupError:
        return None
    # None of the options that are left has a value, so whatever is none is the command or a name.
    given = {word for word in argv if word.startswith("-")}
    words = [word for word in argv if not word.startswith("-")]
    special = sorted(given - _OPTIONS - _MORE.get(words[0] if words else "", frozenset()))
    command, name = " ".join([*words, *special]), ""
    if command not in _PATHS and words:
        command, name = " ".join([*words[:-1], "{}", *special]), words[-1]
    verb = command.partition(" ")[0]
    if command not in _PATHS or {"--user", "--system"} <= given or (name and not _is_plain(name)):
        return None
    for path, owner in _daemons(given):
        try:
            text, status = _written(
                Command(path, owner, command, name.lower() if verb == "show" else name, given, filters)
            )
        except (FileNotFoundError, ConnectionRefusedError):
            continue
        except (LookupError, OSError, ValueError):
            return None
        return quick_output.write(text, given, status)
    return None


def _told() -> int | None:
    """Say to the host's daemon that the driver may have changed; None if it does not say that it heard it."""
    asked = "POST /v1/refresh HTTP/1.1\r\nContent-Length: 0\r\nAccept: application/json\r\n"
    try:
        for path, owner in _daemons({"--system"}):
            _said(path, owner, asked, b"application/json", b" 202 ")
            return 0
    except (LookupError, OSError, ValueError):
        pass  # the whole program says what is wrong
    return None


def _filtered(argv: Sequence[str]) -> tuple[list[str], str]:
    """Return a command line without its filters, and these as they stand in an address.

    Raises `LookupError` for one that cannot stand there as it is.
    """
    verb = next((word for word in argv if not word.startswith("-")), "")
    known, left, filters = _FILTERS.get(verb, {}), list[str](), dict[str, str]()
    words = iter(argv)
    for word in words:
        option, joined, value = word.partition("=")
        if option not in known:
            left.append(word)
            continue
        if not joined:
            value = next(words, "")
        named = known[option]
        # A relative path, or one with dots, is for the whole program.
        path = named == "store" and value.startswith("/") and "/." not in value
        bare = value.replace("/", "") if path else value.removesuffix("*")
        if not _is_plain(bare) or value.startswith("-") or (named == "store" and not path) or named in filters:
            raise LookupError
        if verb == "ls" and named == "limit" and len(value) > _DIGITS and value != "1000":
            raise LookupError  # it may take more than a page
        filters[named] = value
    return left, "".join(f"&{name}={value}" for name, value in filters.items())


def _started(words: Sequence[str], program: Sequence[str]) -> int | None:
    """Become a program that finds what was warmed, if that is what is asked; None if the whole program has to."""
    given = {word for word in words if word.startswith("-")}
    verb, *names = [word for word in words if not word.startswith("-")] or [""]
    plain = len(names) <= 1 and all(map(_is_plain, names)) and given <= {"--user"}
    if (
        verb != "run"
        or not plain
        or not program
        or (os.geteuid() == 0 and not given and not os.environ.get("XPUCACHED_SOCKET"))
    ):
        return None
    for path, owner in _daemons(given):
        try:
            found = _found(Command(path, owner, "env {}" if names else "env", names[0] if names else "", given))
        except (FileNotFoundError, ConnectionRefusedError):
            continue
        except (LookupError, OSError, ValueError):
            return None
        if any(name.endswith("_PERSISTENT") and text == "0" for name, text in found.items()):
            return None  # the whole program says why the cache is off
        from xpucached.cli import launching  # noqa: PLC0415 - only this command has to wait for it

        return launching.become(program, found)
    return None


def _is_plain(name: str) -> bool:
    """Return whether a name can stand in an address as it is."""
    return name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()


def _daemons(given: set[str]) -> Iterator[tuple[str, int | None]]:
    """Yield the sockets where one may answer, and who must; the next one is for where nobody listens at the first."""
    named = os.environ.get("XPUCACHED_SOCKET")
    scoped = not given.isdisjoint({"--user", "--system"})
    if named and not scoped:
        yield named, None
    elif "--system" in given or (not scoped and os.geteuid() == 0):
        yield sockets.ADMIN if os.access(sockets.ADMIN, os.R_OK | os.W_OK) else sockets.PUBLIC, None
    else:
        try:
            yield sockets.socket_path(user=True, environ=os.environ), None
        except sockets.NoRuntimeDirectory:
            if scoped:
                return
        if not scoped:
            # One that sleeps is woken by the whole program.
            yield sockets.worker_path(os.getuid()), os.getuid()


class Command:
    """One command, and the daemon that is to answer it."""

    def __init__(
        self, path: str, owner: int | None, command: str, name: str, given: set[str], filters: str = ""
    ) -> None:
        self.path = path
        self.owner = owner
        self.command = command
        self.verb = command.partition(" ")[0]
        self.name = name
        self.given = given
        self.quiet = not given.isdisjoint({"-q", "--quiet"})
        paths = _OF_HOST if path in {sockets.PUBLIC, sockets.ADMIN} else _PATHS
        self.filters = filters
        self.is_part = self.verb == "ls" and "&limit=" in filters
        many = self.verb == "ls" and (self.quiet or "--json" in given)
        self.target = (_ENTRIES if many else paths[command]).replace("{}", name)
        if self.is_part:
            self.target = self.target.partition("?")[0]
        if filters:
            self.target += filters if "?" in self.target else f"?{filters[1:]}"

    def text(self, form: str, target: str = "") -> str:
        """Return the daemon's text in one of its forms.  Raises `LookupError` if there is none."""
        target = target or self.target
        media = b"application/openmetrics-text" if target.endswith("openmetrics") else b"text/plain"
        return self._ask(target, f"Accept: text/plain\r\nXpucached-Look: {form}\r\n", media)

    def json(self) -> str:
        """Return what stands on the wire.  Raises `LookupError` if that is not all."""
        text = self._ask(self.target, "Accept: application/json\r\n", b"application/json")
        more = self.verb == "ls" and not self.is_part and not text.endswith(',"next":null}}')
        if more:
            raise LookupError
        return f"{self.matching(_bare(text))}\n"

    def matching(self, text: str) -> str:
        """Return an answer as it is where none matches filters.  Raises `LookupError` if their names may be none."""
        if self.verb != "ls" or (text and not text.startswith(_NONE)):
            return text
        if any(name in self.filters for name in _NAMED):
            raise LookupError
        narrowed = self.filters.count("&") > self.is_part
        return text.replace("no entries\n", "no entries match\n") if narrowed else text

    def _ask(self, target: str, head: str, media: bytes) -> str:
        return _said(self.path, self.owner, f"GET {target} HTTP/1.1\r\n{head}", media)


def _said(path: str, owner: int | None, head: str, media: bytes, status: bytes = b" 200 ") -> str:
    """Return what a daemon answers, whole.  Raises `LookupError` for an answer of another kind."""
    head = f"{head}Host: localhost\r\nConnection: close\r\n\r\n"
    received, until = bytearray(), time.monotonic() + _WHOLE
    connection = sockets.descriptor(path, owner=owner, timeout=_PATIENCE)
    try:
        if os.write(connection, head.encode("ascii")) < len(head):
            raise LookupError
        while part := os.read(connection, 1 << 16):
            received += part
            if len(received) > _LONGEST or time.monotonic() > until:
                raise LookupError
    finally:
        os.close(connection)
    said, _, body = bytes(received).partition(b"\r\n\r\n")
    first, *rest = said.lower().split(b"\r\n")
    fits = any(line.startswith(b"content-type: " + media) for line in rest)
    length = next((line.partition(b":")[2].strip() for line in rest if line.startswith(b"content-length:")), b"")
    if status not in first + b" " or not fits or length != str(len(body)).encode("ascii"):
        raise LookupError
    return body.decode("utf-8", "replace")


def _written(wanted: Command) -> tuple[str, int]:
    """Return what is to be printed, and the exit status.  Raises LookupError if the daemon cannot give that form."""
    if "--json" in wanted.given:
        return _json(wanted), 0
    if wanted.verb == "env":
        return printing.lines(_variables(wanted)), 0
    if "--check" in wanted.given:
        line = printing.lines(wanted.text("check"))
        head, level, _ = line.split(" ", 2)
        if head != "XPUCACHED":
            raise LookupError
        return line, _LEVELS.index(level)
    if wanted.verb == "version":
        return f"xpucachectl {__version__}\nxpucached {printing.safe(wanted.text('names').rstrip())}\n", 0
    if wanted.quiet:
        whole = wanted.verb == "ls" and not wanted.is_part
        return printing.lines(wanted.matching(wanted.text("all names" if whole else "names"))), 0
    style = quick_output.style(wanted.given)
    text = wanted.matching(wanted.text(f"part {style}" if wanted.is_part else style))
    if wanted.command == "config show" and (remarks := wanted.text(f"settings {style}", "/v1/status")):
        text += f"\n{remarks}"
    if wanted.command == "model show {}" and (usual := wanted.text(f"usual {style}", f"{wanted.target}/history")):
        text += f"\n{usual}"
    if wanted.verb == "why" and "no-device" in text:
        # The whole program looks at what the model's environment brings.
        raise LookupError
    return printing.lines(text), 0


def _json(wanted: Command) -> str:
    """Return what --json prints: what stands on the wire, or what the client makes of it."""
    if "--check" in wanted.given:
        raise LookupError
    if wanted.verb == "config":
        return f"{_WIRE}{_bare(wanted.text('typed').rstrip())}}}\n"
    if wanted.verb not in {"env", "version"}:
        return wanted.json()
    hello = wanted.verb == "version"
    values = {"client": __version__, "daemon": wanted.text("names").rstrip("\n")} if hello else _found(wanted)
    if any(sign in text for pair in values.items() for text in pair for sign in '"\\'):
        raise LookupError  # only the whole program knows how it is written
    written = ",".join(f'"{name}":"{text}"' for name, text in sorted(values.items()))
    return _bare(f"{_WIRE}{{{written}}}}}") + "\n"


def _bare(text: str) -> str:
    """Return a line of JSON.  Raises `LookupError` if anything in it may not reach a terminal as it is."""
    if not (text.isascii() and text.isprintable()):
        raise LookupError
    return text


def _found(wanted: Command) -> dict[str, str]:
    """Return the variables that are answered.  Raises `LookupError` if some of them are not to be taken over."""
    from xpucached.cli import belonging  # noqa: PLC0415 - only what needs variables has to wait for it

    values, unknown, open_ = belonging.taken(
        dict(line.split("=", 1) for line in wanted.text("lines").split("\n") if line)
    )
    if unknown or open_:
        raise LookupError
    return values


def _variables(wanted: Command) -> str:
    """Return the variables of a cache as `env` writes them: whatever answers, shells run nothing else."""
    from xpucached.render.variables import Syntax, variables  # noqa: PLC0415 - only this command has to wait for it

    syntaxes = [one for one in Syntax if f"--{one}" in wanted.given] or [Syntax.SHELL]
    if len(syntaxes) > 1:
        raise LookupError
    found = _found(wanted)
    written = variables(found, syntaxes[0], found)
    why = f"/v1/models/{wanted.name}/why" if wanted.name else "/v1/status"
    remarks = [] if wanted.quiet else wanted.text("remarks", why).split("\n")
    # All syntaxes treat a line starting with # as a comment.
    lines = [*(f"# {printing.safe(line)}" for line in remarks if line), *([written] if written else [])]
    return "".join(f"{line}\n" for line in lines)
