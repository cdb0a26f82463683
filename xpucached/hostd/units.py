"""Start and stop users' workers through systemd, and learn what became of them.  Touches processes.

A rule of polkit lets the host's daemon do exactly this: start and stop units of one template, whose only parameter is a
number.  What they run is in the unit file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass
from typing import Final

from xpucached import sockets
from xpucached.errors import SettingsError, Unavailable
from xpucached.processes import child

log = logging.getLogger(__name__)

_PATIENCE: Final = 20.0


_FORBIDDEN: Final = (
    "polkit.service",
    "authentication required",
    "Access denied",
    "Permission denied",
    "Not authorized",
)
"""How systemctl says that polkit does not allow something, or is not there to be asked."""


class Forbidden(Unavailable):
    """systemd does not let the host's daemon start workers."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """What systemd says of a worker."""

    active: bool
    failed: bool
    running: bool = False  #: it is neither starting nor ending
    deaf: bool = False  #: it runs, and its socket was stopped, which systemd does not open again beside it
    asked: bool = False  #: its account is asked about: nobody is there yet who would answer
    starting: bool = False  #: also: it ended, and is started again
    coming: bool = False  #: it is starting, and its process is there: systemd ends a start that takes too long
    ending: bool = False
    refused: bool = False  #: it ended because its user's configuration is refused
    denied: bool = False  #: it was not started, for PAM lets nothing be run for its account

    @property
    def came(self) -> bool:
        """Whether systemd has begun to start it: no condition of its unit, and no mask, keeps it from that."""
        return self.asked or self.starting or self.ending


def unit(uid: int) -> str:
    """Return the name of a user's worker.  Nobody else's unit can come of it, and never root's."""
    if uid <= 0:
        message = f"no worker is for user {uid}"
        raise ValueError(message)
    return f"xpucached-worker@{uid:d}.service"


async def start(uid: int) -> None:
    """Ask systemd to start a worker.  Raises `Unavailable` if it does not want to."""
    # Not waited for: a unit that hangs must not hold us.
    try:
        await _systemctl("--no-block", "start", unit(uid))
    except Unavailable as error:
        if any(words in error.message for words in _FORBIDDEN):
            raise await _forbidden() from error
        raise


async def _forbidden() -> Forbidden:
    """Say why systemd does not let us start workers: it asks polkit."""
    why, hint = "polkit refuses it", "is the polkit rule installed? see docs/operations.md"
    with contextlib.suppress(Unavailable):
        text = await _systemctl("show", "--property=LoadState", "polkit.service")
        match text.strip().partition("=")[2]:
            case "not-found":
                why, hint = "polkit is not installed", "install polkitd (polkit), then: systemctl restart xpucached"
            case "masked":
                why, hint = "polkit is masked", "systemctl unmask polkit, then: systemctl restart xpucached"
    return Forbidden(f"no worker can be started, for systemd does not let the host's daemon: {why}", hint=hint)


async def stop(uid: int) -> None:
    """Ask systemd to stop a worker."""
    await _systemctl("--no-block", "stop", unit(uid))


async def unit_state(uid: int) -> UnitState:
    """Return what became of a worker."""
    wanted = (f"--property={name}" for name in ("ActiveState", "SubState", "Job", "ExecMainStatus"))
    text = await _systemctl("show", *wanted, unit(uid))
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    state = said.get("ActiveState", "")
    asked = state == "activating" and said.get("SubState") == "condition"
    return UnitState(
        # One that was asked for may not have begun yet: then there is a job, and nothing else.
        active=state in {"active", "activating", "reloading", "deactivating"} or said.get("Job", "0") not in {"", "0"},
        failed=state == "failed",
        running=state == "active",
        deaf=state == "active" and not await asyncio.to_thread(os.path.exists, sockets.worker_path(uid)),
        asked=asked,
        starting=state == "activating" and not asked,
        coming=state == "activating" and said.get("SubState", "").startswith("start"),
        ending=state == "deactivating",
        refused=state == "failed" and said.get("ExecMainStatus") == str(SettingsError.exit),
        # systemd itself forgets a unit that it did not start.
        denied=state == "inactive" and await asyncio.to_thread(os.path.exists, sockets.denial_path(uid)),
    )


async def _systemctl(*words: str) -> str:
    command = ("systemctl", "--no-ask-password", *words)
    variables = {"PATH": child.search_path(os.environ), "LC_ALL": "C"}
    try:
        done = await asyncio.to_thread(child.run, command, variables=variables, seconds=_PATIENCE)
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error  # a host, or our unit, without room for a thread
        raise Unavailable(f"systemctl cannot be started: {why}") from error
    if done.status is None:
        raise Unavailable(f"systemd did not answer in {_PATIENCE:.0f} s", hint="see: systemctl status")
    if done.status:
        complaint = " ".join(done.complaint.decode("utf-8", "replace").split())[:500]
        hint = "is the polkit rule installed? see docs/operations.md"
        raise Unavailable(f"systemctl {' '.join(words)}: {complaint}", hint=hint)
    return done.output.decode("utf-8", "replace")
