"""Door: the files that `xpucachectl setup` puts in place, the record of them, and the host's tools.  Touches them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import sockets
from xpucached.errors import Conflict, Denied
from xpucached.processes import child

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST: Final = 1 << 20


def digest(content: bytes) -> str:
    """Return what tells one content from another."""
    return hashlib.sha256(content).hexdigest()


def read(path: Path) -> bytes | None:
    """Read a regular file; None for none, for what cannot be read, and what cannot be ours: a link, something large.

    Whatever is believed, written or removed is read first.  Raises `Denied` where others could have put it there: they
    would decide what our record says, and so what is removed.
    """
    try:
        # The directory of polkit's rules is its account's, which may let anybody do anything as it is.
        sockets.check_way(str(path), sockets.Trusted(account="polkitd", groups=True))
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except sockets.UntrustedPeer as error:
        why = f"{error.place} belongs to somebody else, or others may write to it"
        raise Denied(why, hint="see HOME, XDG_DATA_HOME and XDG_CONFIG_HOME; or set up as that user") from error
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        try:
            content = stream.read(_LONGEST + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        except OSError:
            return None
    return content if content is not None and len(content) <= _LONGEST else None


def is_there(path: Path) -> os.stat_result | None:
    """Return what is at a path; None if nothing is.  Raises OSError if that cannot be told now."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_ours(content: bytes, noted_: str | None) -> bool:
    """Return whether a file is what the record says that we put there."""
    return digest(content) in (noted_ or "").split()


def either(earlier: Mapping[str, str], coming: Mapping[str, str]) -> Mapping[str, str]:
    """Return a record for the time in which files are written: each is ours as it was, and as it will be."""
    both = {path: dict.fromkeys(f"{coming[path]} {earlier.get(path, '')}".split()) for path in coming}
    return {**earlier, **{path: " ".join(some) for path, some in both.items()}}


def noted(record: Path) -> Mapping[str, str]:
    """Read what we put somewhere, with its digests: several of a file that was being written when somebody died.

    Raises `Conflict` if that cannot be read.
    """
    try:
        content = read(record)
        if content is None and is_there(record) is None:
            return {}
        files = json.loads(content or b"")["files"]
        return {str(path): str(one) for path, one in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Conflict(
            f"{record} cannot be read, so nobody knows what was set up", hint=f"move it away: {record}"
        ) from error


def spelled(files: Mapping[str, str]) -> bytes:
    """Write the same as a record."""
    return (json.dumps({"version": 1, "files": files}, indent=1, sort_keys=True) + "\n").encode("utf-8")


def write(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all or nothing; one that is a program can be run."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, 0o755 if content.startswith(b"#!") else 0o644)
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


_PATIENCE: Final = 60.0
"""Seconds for one tool of the host's: systemd may be busy."""


def run(command: str) -> str:
    """Run a tool of the host's, and give what went wrong."""
    try:
        done = child.run(command.split(), variables=child.environment(_talk()), seconds=_PATIENCE)
    except OSError as error:
        return error.strerror or str(error)
    return "" if done.status == 0 else done.complaint.decode("utf-8", "replace").strip() or f"it {done.words}"


def _talk() -> Mapping[str, str]:
    """Return the variables by which systemd's tools find the user's manager, and the host's tools."""
    talk = {name: os.environ[name] for name in ("DBUS_SESSION_BUS_ADDRESS",) if name in os.environ}
    return {**talk, "PATH": child.search_path(os.environ)}
