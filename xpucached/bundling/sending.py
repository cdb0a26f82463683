"""Send: what this host compiled from recipes goes to where the configuration says, and how it ended is remembered.

A timer does it, and `status` tells of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.bundling import drivers, exporting, registries
from xpucached.domain.bundles import ExportBundle, PushBundle, PushReport
from xpucached.errors import Conflict, DiskError, NotFound, RequestError, XpucachedError
from xpucached.host import pushes
from xpucached.printing import quoted
from xpucached.registry import reference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.bundling.progress import Progress
    from xpucached.settings import Settings

_FOLDER: Final = "push"
_BUNDLE: Final = "made"


def send(progress: Progress) -> PushReport:
    """Export what was compiled here, sign it, and push it; see `SendBundle`.  Nothing is sent that is there already."""
    settings = drivers.settings()
    if settings.bundles.push == "off":
        raise RequestError("the configuration names no place to push to", hint="set bundles.push (docs/bundles.md)")
    where = settings.bundles.push
    try:
        where = _filled_in(where)
        report = _sent(where, settings, progress)
    except (XpucachedError, OSError) as error:
        pushes.note(settings.paths.state, where, error=getattr(error, "message", str(error)))
        raise
    pushes.note(settings.paths.state, report.reference if report.digest else "", report.digest)
    return report


def _filled_in(text: str) -> str:
    """Return the place of this user and host.  Raises `RequestError`."""
    if "{user}" in text:
        try:
            name = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            raise RequestError(f"{text}: nobody knows user {os.geteuid()}", hint="write a name for {user}") from None
        text = text.replace("{user}", name)
    return reference.parse(text.replace("{host}", os.uname().nodename.casefold())).text


def _sent(where: str, settings: Settings, progress: Progress) -> PushReport:
    key = pushes.key(settings.file)
    if not key.exists():
        hint = f"make one: xpucachectl bundle keygen {quoted(os.fspath(key.with_suffix('')))}"
        raise NotFound(f"{key}: there is no key to sign with", hint=hint)
    with _folder(settings.paths.cache / _FOLDER) as folder:
        made = folder / _BUNDLE
        try:
            exported = exporting.export(ExportBundle(made, made_here=True, sign=os.fspath(key)), progress)
        except exporting.Nothing as nothing:
            return PushReport(where, "", 0, 0, 0, 0, 0, nothing.skipped)
        return replace(registries.push(PushBundle(made, where, if_changed=True), progress), skipped=exported.skipped)


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """Give a folder for one of us at a time; what a killed one left there goes.  Raises `Conflict` and `DiskError`."""
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise DiskError(f"{path} cannot be made: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict("another one pushes just now", hint="see: xpucachectl status") from None
        try:
            shutil.rmtree(path / _BUNDLE, ignore_errors=True)
            yield path
        finally:
            shutil.rmtree(path / _BUNDLE, ignore_errors=True)
    finally:
        os.close(lock)
