"""``xpucached-watch``: the watcher as a process of its own, for all daemons of a host."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import logs, sockets
from xpucached.errors import DiskError, RequestError
from xpucached.options import OptionParser
from xpucached.printing import lines
from xpucached.streams import arriving
from xpucached.watchd import kernel
from xpucached.watchd.server import WatchServer

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_RIGHTS: Final = 77  # as sysexits.h has it
_DESCRIPTORS: Final = 1 << 14  # each directory that is watched costs one

_CANNOT: Final = 71  # the same: the system does not let us

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal says stop; return the exit status."""
    logs.begin("INFO")
    try:
        with arriving():
            options = _parser().understood(arguments)
    except (DiskError, RequestError) as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        print(f"xpucached-watch: {lines(error.message)}{hint}", file=sys.stderr)  # noqa: T201 - no log is needed for it
        return error.exit
    try:
        _may()
    except OSError as error:
        log.error("xpucached-watch: %s", error.strerror)  # noqa: TRY400 - it is expected, and the message says all
        log.error("it needs CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH; see systemd/xpucached-watch.service")  # noqa: TRY400
        return _NO_RIGHTS
    try:
        listener = _door(options.socket)
    except OSError as error:
        log.error("xpucached-watch: %s: %s", options.socket, error.strerror or error)  # noqa: TRY400 - the same
        return _CANNOT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    watch_server = WatchServer(loads=options.loads, turn=_Watchdog().beat)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: watch_server.stop())
    watch_server.listen(listener)
    _notify("READY=1")
    try:
        watch_server.run()
    finally:
        _notify("STOPPING=1")
        listener.close()
        with contextlib.suppress(OSError):
            options.socket.unlink()
    return 0


def _parser() -> OptionParser:
    options = OptionParser(
        prog="xpucached-watch", description="Tells xpucached daemons what happens in the caches of their users."
    )
    options.add_argument(
        "--socket", type=Path, default=Path(sockets.WATCH), metavar="PATH", help=f"default: {sockets.WATCH}"
    )
    options.add_argument(
        "--loads",
        action="store_true",
        help="also tell what is only read; costs other work on these file systems up to a quarter",
    )
    return options


def _may() -> None:
    """Try what will be needed, on the directory that we are in.  Raises OSError."""
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with kernel.Group(names=False) as group:
            group.mark(here, kernel.CLOSE_WRITE)
        try:
            os.close(kernel.open_below(here, b"."))
        except OSError as error:
            # Without it nothing would be told, and nobody would know.
            why = "no openat2: the kernel is older than 5.6, or the unit has RestrictSUIDSGID="
            raise OSError(error.errno, why) from error
        try:
            os.close(kernel.open_handle(here, kernel.handle_of(here)))
        except PermissionError:
            raise
        except OSError:
            # A file system without handles, which says nothing about our rights.
            return
    finally:
        os.close(here)


def _door(path: Path) -> socket.socket:
    """Listen at a path, in a directory that is there already: its owner decides who may come in."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        old = os.umask(0o111)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(old)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener


def _notify(text: str, patience: float = 1.0) -> None:
    """Tell systemd something, if it started us; nobody waits longer than so many seconds until it reads."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
            speaker.settimeout(patience)
            speaker.connect("\0" + address[1:] if address.startswith("@") else address)
            speaker.sendall(text.encode())


class _Watchdog:
    """Tells systemd that we are alive: a directory on a file system that never answers must not deafen us for good."""

    def __init__(self) -> None:
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        self._every = int(microseconds) / 3e6 if microseconds.isdigit() else None
        self._last = 0.0

    def beat(self) -> None:
        """Tell it, if it is time."""
        if self._every is not None and time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            _notify("WATCHDOG=1", 0.0)


if __name__ == "__main__":
    sys.exit(main())
