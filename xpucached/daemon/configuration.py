"""Loads the settings for the command line, and limits what may be logged when they are refused."""

from __future__ import annotations

import argparse
import os

from xpucached import settings
from xpucached.errors import SettingsError
from xpucached.settings import loading


def load(options: argparse.Namespace) -> settings.Settings:
    """Read the settings that the options ask for; whoever only checks them may have a worker alone, and no socket."""
    as_worker = options.worker or options.check
    return loading.load(options.config, user=options.user, environ=os.environ, worker=as_worker)


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
