"""The unix sockets that a daemon listens on: made, cleared away, or taken over from systemd."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from typing import TYPE_CHECKING, Final

from xpucached import guarded, sockets
from xpucached.errors import RunningError, SettingsError

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path


# The kernel's sun_path has 108 bytes, and one is the null at the end.
_LONGEST: Final = 107
BACKLOG: Final = 256
"""A burst of clients must not meet a full queue: for them that looks like a daemon that is not there."""
_FIRST_DESCRIPTOR: Final = 3
_EVERYBODY: Final = 0o006


def bind(path: Path, mode: int) -> guarded.GuardedListener:
    """Make a listening socket at ``path`` that is never open to more than ``mode`` says.

    Makes the directory if only that is missing.  Raises `RunningError` if a daemon answers there, `SettingsError` if
    the path cannot or must not be used.
    """
    size = len(os.fsencode(path))
    if size > _LONGEST:
        message = f"the socket's path has {size} bytes, more than the {_LONGEST} that a unix socket may have: {path}"
        raise SettingsError(message, hint="use a shorter path")
    _check_directory(path.parent, mode)
    clear(path)
    listener = guarded.GuardedListener(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        # Linux gives the new file the descriptor's mode (less the umask); nobody can connect before we listen.
        os.fchmod(listener.fileno(), mode)
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {path}: {error.strerror}"
        raise SettingsError(message) from error
    listener.ours, listener.public = True, bool(mode & _EVERYBODY)
    return listener


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells the file of a socket that was just made from another one at its path; None if it is gone."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        return found.st_dev, found.st_ino
    return None


def remove(path: Path, made: tuple[int, int] | None) -> None:
    """Remove the socket that we made, at our end.

    It is not asked whether anybody answers there: a child that is being started holds what we had open, for a moment.
    """
    if made is not None and identity(path) == made:
        with contextlib.suppress(OSError):
            path.unlink()


def _check_directory(directory: Path, mode: int) -> None:
    try:
        # Who may connect must be able to get through; nobody else needs to.
        directory.mkdir(mode=0o755 if mode & 0o077 else 0o700, exist_ok=True)
        # Where a client would not believe us, we do not answer.
        folder, _ = sockets.enter(str(directory / "socket"), sockets.Trusted())
    except sockets.UntrustedPeer as error:
        raise SettingsError(str(error), hint=f"{error.hint}; or choose another place: paths.socket") from error
    except OSError as error:
        message = f"cannot use {directory} for the socket: {error.strerror}"
        raise SettingsError(message) from error
    os.close(folder)


def clear(path: Path) -> None:
    """Remove the socket that a dead daemon left.  Nothing there is fine.

    Raises `RunningError` if somebody answers, `SettingsError` if it is not ours to remove.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            message = f"{path} exists and is not a socket"
            raise SettingsError(message, hint="move it away, or choose another socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            status = probe.connect_ex(str(path))
        # EAGAIN is a full queue: somebody listens, and has much to do.
        if status in {0, errno.EAGAIN, errno.EINPROGRESS}:
            message = f"a daemon already answers on {path}"
            raise RunningError(message, hint="xpucachectl status asks it; stop it before you start another")
        if status == errno.ECONNREFUSED:
            path.unlink()
        elif status != errno.ENOENT:
            message = f"cannot tell who owns {path}: {os.strerror(status)}"
            raise SettingsError(message)
    except FileNotFoundError:
        return
    except OSError as error:
        message = f"cannot replace {path}: {error.strerror}"
        raise SettingsError(message) from error


def activated(environ: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """Take the sockets that systemd opened for us; see `activated_by_name`."""
    return [one for _, one in activated_by_name(environ)]


def activated_by_name(environ: MutableMapping[str, str] = os.environ) -> list[tuple[str, socket.socket]]:
    """Take the sockets that systemd opened for us, with their names; none if it did not start us that way.

    Removes the variables, so that no child believes they are meant for it.  Raises `SettingsError` for a socket that
    is not a listening unix stream socket.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    taken: list[socket.socket] = []
    for number in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)):
        try:
            os.set_inheritable(number, False)  # noqa: FBT003 - the standard library's signature
            one = guarded.GuardedListener(fileno=number)
        except OSError as error:
            message = f"descriptor {number} from systemd is not a socket: {error.strerror}"
            raise SettingsError(message) from error
        taken.append(one)
        listening = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if one.family != socket.AF_UNIX or one.type != socket.SOCK_STREAM or not listening:
            for other in taken:
                other.close()
            message = f"descriptor {number} from systemd is not a listening unix stream socket"
            raise SettingsError(message, hint="use ListenStream= with an absolute path in the socket unit")
        one.setblocking(False)  # noqa: FBT003 - the standard library's signature
        with contextlib.suppress(OSError, ValueError):
            one.public = bool(os.stat(one.getsockname()).st_mode & _EVERYBODY)  # noqa: PTH116 - text or bytes
    names += [""] * (len(taken) - len(names))
    return list(zip(names, taken, strict=False))
