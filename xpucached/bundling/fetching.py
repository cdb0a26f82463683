"""Fetch: bundles that the configuration names lie in a folder, from which daemons take them; they have no network."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from typing import TYPE_CHECKING, Final

from xpucached.bundle import members
from xpucached.bundle.writing import remove_left
from xpucached.bundling import drivers, registries
from xpucached.bundling.signing import signed_view
from xpucached.bundling.staging import staging
from xpucached.domain.bundles import FetchedBundle, FetchReport, PullBundle, RegistryAccess
from xpucached.errors import BadBundle, DiskError, RequestError, XpucachedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.bundling.progress import Progress
    from xpucached.domain.bundles import FetchBundles

_PATIENCE: Final = 20.0
"""Seconds that a registry may be silent: a host that boots waits for it."""

_OURS: Final = re.compile(
    r"(?:([0-9a-f]{12})-[0-9a-f]{12}|\.([0-9a-f]{12})-[0-9a-f]{12}\.(?:pulling|earlier|partial-.+))"
)
"""What a bundle that was fetched is called, and what is beside while it comes; the first part stands for its place."""


def fetch(order: FetchBundles, progress: Progress) -> FetchReport:
    """Copy what is new; see `FetchBundles`.  What is not named any more goes, what cannot be had now stays."""
    settings = drivers.settings(user=not order.system).bundles
    if not settings.pull:
        raise RequestError("the configuration names no bundle", hint="see bundles.pull in docs/configuration.md")
    folder = settings.folder
    try:
        folder.mkdir(0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"{folder} cannot be made: {error.strerror}") from error
    found = tuple(_fetched(one, folder, progress) for one in settings.pull)
    _tidy(folder, found)
    return FetchReport(folder, found)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _fetched(text: str, folder: Path, progress: Progress) -> FetchedBundle:
    digest = ""
    try:
        where, digest = registries.current(text, RegistryAccess(patience=_PATIENCE))
        place = folder / f"{_name(text)}-{digest[7:19]}"
        if _is_there(place, digest):
            return FetchedBundle(text, digest, place)
        for path in folder.glob(f".{_name(text)}-*.pulling"):
            if path.name != f".{place.name}.pulling":
                # Who is killed each time before all of it came would leave one of each that the tag has named.
                _remove_left(path)
        exact = f"{where.host}/{where.repository}@{digest}"
        with _aside(place):
            registries.pull(PullBundle(exact, place, RegistryAccess(patience=_PATIENCE), signed=True), progress)
    except XpucachedError as error:
        return FetchedBundle(text, digest, error=error.message)
    except OSError as error:
        return FetchedBundle(text, digest, error=str(error))
    return FetchedBundle(text, digest, place, new=True)


def _is_there(place: Path, digest: str) -> bool:
    """Return whether a bundle is there that a key signed which is trusted now."""
    if not place.is_dir():
        return False
    with contextlib.suppress(BadBundle):  # what a power cut spoilt is fetched anew
        bundle = members.opened(place)
        with bundle.layout:
            if bundle.index.digest == digest:
                # Another key may have signed it since: the bundle is the same then.
                return signed_view(bundle).signer is not None
    shutil.rmtree(place)
    return False


@contextlib.contextmanager
def _aside(place: Path) -> Iterator[None]:
    """Have what is at a place out of the way; it is back unless another takes its place."""
    aside = place.with_name(f".{place.name}.earlier")
    if not place.exists():
        yield
        return
    shutil.rmtree(aside, ignore_errors=True)
    place.rename(aside)
    try:
        yield
    finally:
        if place.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(place)


def _tidy(folder: Path, found: tuple[FetchedBundle, ...]) -> None:
    """Remove what was fetched and nothing names any more, and earlier ones of what is here now.

    What is called otherwise somebody else has put there.
    """
    here = {one.path.name for one in found if one.path is not None}
    missing = {_name(one.reference) for one in found if one.path is None}
    for path in folder.iterdir():
        ours = _OURS.fullmatch(path.name)
        if ours is None or path.name in here or (ours[1] or ours[2]) in missing:
            continue
        if path.name.startswith("."):
            _remove_left(path)
            continue
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)


def _remove_left(path: Path) -> None:
    """Remove what lay beside while a bundle came, unless another fetch is at it."""
    name, coming, _ = path.name[1:].partition(".pulling")
    if not coming:
        remove_left(path)
        return
    with contextlib.suppress(XpucachedError, OSError), staging(path.with_name(name)):
        pass  # then it goes
