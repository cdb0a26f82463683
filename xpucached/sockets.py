"""Where the daemons' sockets are, and the one way to connect to them.

Quick to load, because the client's start time depends on it: nothing but ``os``, ``sys``, and of `socket` only what it
is made of, because its lists of constants take as long to load as Python itself.
"""

from __future__ import annotations

import _socket
import os
import sys

from xpucached.printing import quoted

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


PUBLIC = "/run/xpucached/xpucached.sock"
"""Where the host's daemon answers everybody."""

ADMIN = "/run/xpucached/admin.sock"
"""Where it answers administrators: its mode says who they are."""

WATCH = "/run/xpucached-watch/watch.sock"
"""Where the host's watcher answers daemons."""

ACCOUNT = "xpucached"
"""The account of the host's daemon."""


_PEOPLE, _USERS = 1000, 100


def is_of_people(group: int) -> bool:
    """Return whether a group is one of people: by its number, or as ``users``, in which many systems have everybody."""
    return group >= _PEOPLE or group == _USERS


class UntrustedPeer(OSError):
    """What is at a socket's path may be somebody else's."""

    def __init__(self, message: str, hint: str, place: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.place = place
        """The directory or link that is not to be believed."""


class NoRuntimeDirectory(LookupError):
    """This user has no directory for sockets."""

    def __init__(self) -> None:
        uid = os.getuid()
        super().__init__(
            f"there is no directory for the socket of user {uid}: XDG_RUNTIME_DIR is not set, and /run/user/{uid} is "
            "not there or not this user's alone"
        )
        self.hint = (
            "log in by ssh, a console or machinectl shell, or let root run: loginctl enable-linger USER; or, for the "
            # Several hosts may have one home, and a socket there answers on its own host only.
            "daemon and for xpucachectl alike: export XPUCACHED_SOCKET=$HOME/.xpucached-$(uname -n).sock"
        )


def worker_path(uid: int) -> str:
    """Return where a user's worker answers."""
    return f"/run/xpucached-worker/{uid}/xpucached.sock"


def denial_path(uid: int) -> str:
    """Return the file, root's, that is there while a user's worker is not to start: it says why."""
    return f"/run/xpucached-worker/{uid}/denied"


def own_path(uid: int) -> str:
    """Return where a daemon of a user's own answers, as others find it."""
    return f"/run/user/{uid}/xpucached/xpucached.sock"


def runtime_directory(environ: Mapping[str, str]) -> str:
    """Return the directory for this user's sockets.

    Raises `NoRuntimeDirectory`: below /tmp anybody could have made it first.
    """
    named = environ.get("XDG_RUNTIME_DIR", "")
    if named.startswith("/"):
        return named.rstrip("/") or "/"
    usual = f"/run/user/{os.getuid()}"
    try:
        found = os.lstat(usual)
    except OSError:
        raise NoRuntimeDirectory from None
    if found.st_mode & _TYPE != _FOLDER or found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
        raise NoRuntimeDirectory
    return usual


def socket_path(*, user: bool, environ: Mapping[str, str]) -> str:
    """Return where the daemon's socket is, the host's or this user's.  Daemon and client must agree, so both ask here.

    Raises `NoRuntimeDirectory`.
    """
    return f"{runtime_directory(environ)}/xpucached/xpucached.sock" if user else PUBLIC


# -- connecting -----------------------------------------------------------------------------------------------------

# `stat` has these as well, and takes its time to load.
_TYPE, _FOLDER, _LINK = 0o170000, 0o040000, 0o120000
_STICKY, _OTHERS_WRITE, _EVERYBODY_WRITES = 0o1000, 0o022, 0o002
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as many as the kernel follows
_UCRED = 12
_PASS_RIGHTS = 83  # SO_PASSRIGHTS, which the module does not name
_ELOOP, _ENOTDIR, _ENOENT, _EMFILE, _EOPNOTSUPP = 40, 20, 2, 24, 95


class Trusted:
    """The users whose directories may be on the way to a socket: root, the caller, and whom the caller names."""

    def __init__(
        self, owner: int | None = None, account: str = "", *, groups: bool = False, wary: bool = False
    ) -> None:
        """With ``groups``, a group of the system may write there, and to directories of the caller's any but root's.

        Where somebody else says where the way goes on (``wary``), no program that he has mounted is asked there.
        """
        self._users = {0, os.geteuid()} | ({owner} if owner is not None else set())
        self._account = account
        self._groups = groups
        self.wary = wary

    def others_write(self, found: os.stat_result) -> bool:
        """Return whether somebody else may write to a directory."""
        harmless = self._groups and (not is_of_people(found.st_gid) or found.st_uid == os.geteuid() != 0)
        return bool(found.st_mode & (_EVERYBODY_WRITES if harmless else _OTHERS_WRITE))

    def __contains__(self, uid: int) -> bool:
        """Return whether a user is one of them."""
        if uid not in self._users and self._account:
            # Looked up only where it matters: to ask who has which number may take long.
            import pwd  # noqa: PLC0415 - see above

            name, self._account = self._account, ""
            try:
                self._users.add(pwd.getpwnam(name).pw_uid)
            except KeyError:
                return False
        return uid in self._users


def connect(
    path: str | os.PathLike[str],
    *,
    owner: int | None = None,
    account: str = "",
    kind: int = _socket.SOCK_STREAM,
    timeout: int = 10,
    strict: bool = False,
) -> socket.socket:
    """Connect to a socket of ours; see `descriptor`.  Over a stream nobody hands us anything but bytes."""
    import socket  # noqa: PLC0415 - see above

    from xpucached import guarded  # noqa: PLC0415 - as socket

    if owner is not None and guarded.owes(owner):
        raise OSError(_EMFILE, f"too much that user {owner} sent cannot be closed")
    number = descriptor(path, owner=owner, account=account, kind=kind, timeout=timeout, strict=strict)
    if kind != socket.SOCK_STREAM:
        return socket.socket(fileno=number)
    one = guarded.GuardedConnection(fileno=number)
    one.uid = -1 if owner is None else owner
    return one


def descriptor(
    path: str | os.PathLike[str],
    *,
    owner: int | None = None,
    account: str = "",
    kind: int = _socket.SOCK_STREAM,
    timeout: int = 10,
    strict: bool = False,
) -> int:
    """Connect to a socket of ours; nothing else in this program connects to a path and believes who answers.

    ``owner`` is the one user who must listen there, or root, as which systemd listens for a worker, unless that is
    ``strict``: where the owner says what lies at the path, root is not sent to other services of root's.  Without one
    it is root, the caller, or the ``account``.  The way there must be theirs, see `enter`.  ``timeout`` is in seconds,
    for a listener whose queue is full and for each read and write.  Raises `UntrustedPeer`, or what the kernel says.
    """
    path = os.fspath(path)
    if path in {PUBLIC, ADMIN}:
        # systemd listens for it as root; one that was started by hand listens itself.
        account = ACCOUNT
    trusted = Trusted(owner, account, wary=strict)
    folder, name = enter(path, trusted)
    one = _socket.socket(_socket.AF_UNIX, kind | _socket.SOCK_CLOEXEC)
    try:
        refuse_descriptors(one)
        # A socket with a timeout of Python's would not wait at all where the listener's queue is full.
        for side in (_socket.SO_SNDTIMEO, _socket.SO_RCVTIMEO):
            one.setsockopt(_socket.SOL_SOCKET, side, timeout.to_bytes(8, sys.byteorder) + bytes(8))
        # By the descriptor, not by the path: what was looked at is what is connected to.
        end = os.open(name, _STEP, dir_fd=folder)
        try:
            _look(end, path, trusted)
            here = f"/proc/self/fd/{end}"
            one.connect(here if os.path.exists(here) else path)  # noqa: PTH110 - pathlib takes long to load
        finally:
            os.close(end)
        _, uid, _ = peer(one)
        if uid not in (trusted if owner is None else {owner} if strict else {owner, 0}):
            wanted = f"user {owner}" if strict else f"root and user {owner}" if owner is not None else "root and you"
            message = f"user {uid} listens on {path}, where only {wanted} may"
            hint = f"to ask a daemon of user {uid}, ask as that user: sudo -u '#{uid}' xpucachectl"
            raise UntrustedPeer(message, hint)  # noqa: TRY301 - what is open is closed below
    except BaseException:
        one.close()
        raise
    finally:
        os.close(folder)
    return one.detach()


def refuse_descriptors(one: _socket.socket) -> None:
    """Let nobody send descriptors to a socket, nor to those that it accepts: to close one may take for ever.

    Linux can do that since 6.16; before, `guarded` alone sees to it.
    """
    try:  # noqa: SIM105 - contextlib takes long to load
        one.setsockopt(_socket.SOL_SOCKET, _PASS_RIGHTS, 0)
    except OSError:
        pass


def peer(one: _socket.socket) -> tuple[int, int, int]:
    """Return the process, user and group at the other end of a unix socket, as the kernel says.

    A user's number may be up to 2**32 - 2: read with a sign, half of all users would be nobody.
    """
    said = one.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _UCRED)
    pid, uid, gid = (int.from_bytes(said[at : at + 4], sys.byteorder) for at in range(0, _UCRED, 4))
    return pid, uid, gid


def enter(path: str, trusted: Trusted) -> tuple[int, str]:
    """Go to the directory of a socket step by step; gives its descriptor, and the socket's name in it.

    Each directory on the way, and each link, must belong to one of ``trusted``, and nobody else may write to it.  One
    above the socket's own may be like /tmp: there nobody can move what is not his, and what is next on the way is not
    his.  Raises `UntrustedPeer`, or what the kernel says.
    """
    names = [name for name in reversed(_whole(path).split("/")) if name not in {"", "."}]
    here, walked, name, links, open_to_all = os.open("/", _STEP), "/", "", 0, False
    try:
        _see(os.fstat(here), walked, trusted)
        while names:
            name = names.pop()
            try:
                step = os.open(name, _STEP, dir_fd=here)
            except FileNotFoundError:
                if names:
                    raise
                break
            try:
                place = f"{walked.rstrip('/')}/{name}"
                found = _look(step, place, trusted)
                if found.st_mode & _TYPE == _LINK:
                    _belongs(found, place, trusted)
                    links += 1
                    if links > _MOST_LINKS:
                        raise OSError(_ELOOP, os.strerror(_ELOOP), path)
                    target = os.readlink("", dir_fd=step)
                    names += [one for one in reversed(target.split("/")) if one not in {"", "."}]
                    if target.startswith("/"):
                        os.close(here)
                        here, walked, open_to_all = os.open("/", _STEP), "/", False
                    continue
                if not names:
                    break
                if found.st_mode & _TYPE != _FOLDER:
                    raise NotADirectoryError(_ENOTDIR, os.strerror(_ENOTDIR), place)
                open_to_all = _see(found, place, trusted)
                here, step, walked = step, here, place
            finally:
                os.close(step)
        else:
            raise FileNotFoundError(_ENOENT, os.strerror(_ENOENT), path)  # noqa: TRY301 - as above
        if open_to_all:
            message = f"everybody may write to {walked}, where the socket is"
            raise UntrustedPeer(message, "use a directory of your own", walked)  # noqa: TRY301 - what is open is closed below
    except BaseException:
        os.close(here)
        raise
    return here, name


def _look(step: int, place: str, trusted: Trusted) -> os.stat_result:
    """Return what a step on the way is; asks no program that somebody else has mounted: who waits there cannot end."""
    if trusted.wary:
        with open(f"/proc/self/fdinfo/{step}", "rb") as told:  # noqa: PTH123 - as above
            number = next((line.split()[1] for line in told if line.startswith(b"mnt_id:")), b"")
        with open("/proc/self/mountinfo", "rb") as mounts:  # noqa: PTH123 - as above
            lines = (line.partition(b" - ") for line in mounts)
            kind = next((tail for head, _, tail in lines if head.split(b" ", 1)[0] == number), b"")
        # What was taken off meanwhile was somebody's, too.
        if not kind or kind.startswith(b"fuse"):
            raise OSError(_EOPNOTSUPP, "a file system in user space is on the way, which may never answer", place)
    return os.fstat(step)


def is_there(path: str) -> bool:
    """Return whether something is at a path to which the way is root's or ours; no other way is gone to its end.

    The variables that say where may be those of whoever became root, and lead into that user's directories.
    """
    try:
        folder, name = enter(path, Trusted())
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(folder)
    except OSError:
        return False
    return True


def check_way(path: str, trusted: Trusted) -> None:
    """See that nobody else can have put anything at a path, nor can before we do; it need not be there yet.

    Raises `UntrustedPeer`, or what the kernel says.
    """
    folder = os.path.dirname(_whole(path))  # noqa: PTH120 - as above
    try:
        # First of all: it goes no further than the way is ours, and beyond somebody may keep us waiting.
        os.close(enter(f"{folder}/.xpucached-", trusted)[0])
    except FileNotFoundError:
        pass
    else:
        return
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)  # noqa: PTH120 - as above
    # Any name that is not there will do: what is at the path itself is not followed.
    os.close(enter(f"{folder}/.xpucached-", trusted)[0])


def _whole(path: str) -> str:
    """Return a path from the root on.  Where we are is asked only if it matters: that directory may be gone."""
    return path if path.startswith("/") else os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - as above


def _see(found: os.stat_result, place: str, trusted: Trusted) -> bool:
    """See that a directory is safe to go through; whether others can nevertheless make something in it."""
    _belongs(found, place, trusted)
    others = trusted.others_write(found)
    if others and not found.st_mode & _STICKY:
        hint = f"chmod go-w {quoted(place)}"
        raise UntrustedPeer(f"others may write to {place}, on the way to the socket", hint, place)
    return others


def _belongs(found: os.stat_result, place: str, trusted: Trusted) -> None:
    if found.st_uid not in trusted:
        raise UntrustedPeer(
            f"{place}, on the way to the socket, belongs to user {found.st_uid}: what answers there is not believed",
            "the directories of a socket must be root's or yours, and writable by nobody else",
            place,
        )
