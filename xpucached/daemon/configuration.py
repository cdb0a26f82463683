"""Loads the settings for the command line, and limits what may be logged when they are refused."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from xpucached import settings, sockets
from xpucached.errors import SettingsError
from xpucached.settings import loading
from xpucached.settings.sections import Paths


def load(options: argparse.Namespace) -> settings.Settings:
    """Read the settings that the options ask for; whoever only checks them may have a worker alone, and no socket."""
    as_worker = options.worker or options.check
    found = loading.load(options.config, user=options.user, environ=os.environ, worker=as_worker)
    if options.user and os.geteuid() == 0:
        _check_homes(found.paths, os.environ)
    return found


def _check_homes(paths: Paths, environ: Mapping[str, str]) -> None:
    """Refuse to root what it would keep in the home of somebody else, whose variables it may have.

    Its owner could exchange it between two steps, and the models that the catalog there registers would run as root.
    """
    for variable in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        home = environ.get(variable, "")
        # What root keeps elsewhere it has said itself.
        if not (home.startswith("/") and any(place.is_relative_to(home) for place in (paths.state, paths.cache))):
            continue
        try:
            sockets.check_way(f"{home}/-", sockets.Trusted(groups=True))
        except OSError as error:
            foreign = error.place if isinstance(error, sockets.UntrustedPeer) else ""
            why = f"{foreign} is not root's alone" if foreign else error.strerror or str(error)
            raise SettingsError(
                f"{variable}: {home} may be another user's: {why}",
                hint="run it as that user, or with root's own HOME (sudo -H); or set paths.state and paths.cache",
            ) from error


def loggable(error: SettingsError, *, worker: bool) -> SettingsError:
    """Return what may be logged of a refused configuration: the system's log is no place for a value that is quoted."""
    if not worker:
        return error
    return SettingsError("the configuration is refused", hint="its user is told why by: xpucached --user --check")


def first(options: argparse.Namespace) -> settings.Settings:
    """Read the settings at the start.  Raises `SettingsError`."""
    try:
        return load(options)
    except SettingsError as error:
        raise loggable(error, worker=options.worker) from error
