"""What the host's daemon says of workers that do not do what they should, and to whom it does not look after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.host import Problem
from xpucached.domain.users import UserStatus, WorkerState
from xpucached.errors import Busy, Conflict, Denied, NotFound, Unavailable, XpucachedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

_NAMED: Final = 3


def stranger() -> Denied:
    """Return what is told to those whom the host's daemon does not look after."""
    hint = "a new account is known within a minute; or start a daemon of your own: systemctl --user start xpucached"
    return Denied("the host's daemon does not look after you", hint=hint)


def unknown(name: object) -> NotFound:
    """Return what is told to who names a user whom the host's daemon does not know."""
    hint = "an administrator can add a user: include in [workers] of /etc/xpucached/xpucached.toml"
    return NotFound(f"the host's daemon knows no user {name}", hint=hint)


def not_looked_after(name: object) -> Denied:
    """Return what is told to who names a user whom the host's daemon does not look after."""
    hint = "an administrator can add him: include in [workers] of /etc/xpucached/xpucached.toml"
    return Denied(f"the host's daemon does not look after user {name}", hint=hint)


def silence(said: UserStatus) -> XpucachedError:
    """Return why a user's worker does not answer."""
    if said.state is WorkerState.ASIDE:
        hint = f"that one answers its user: sudo -u '#{said.uid}' xpucachectl --user status"
        return Conflict(f"{said.user} runs a daemon of their own, and so has no worker", hint=hint)
    hint = f"see: journalctl -u xpucached-worker@{said.uid}"
    if said.state is WorkerState.DENIED:
        return Conflict(f"{said.user} has no worker: {said.sentence}", hint=hint)
    if said.state is WorkerState.STARTING:
        return Busy(f"the worker of {said.user} is starting, which takes long", hint=f"ask again in a while; {hint}")
    return Unavailable(f"the worker of {said.user} does not answer: {said.sentence}", hint=hint)


def files_silent(error: Exception) -> Problem:
    """Say that nobody knows whether the driver is another one, and why."""
    why = "a file system on which the driver is looked for does not answer"
    if not isinstance(error, TimeoutError):
        why = f"the driver's files cannot be looked at ({str(error)[:200] or type(error).__name__})"
    return Problem(
        "driver-files-silent",
        f"{why}: whether the driver changed is unknown",
        "see what LD_LIBRARY_PATH, OCL_ICD_FILENAMES and the like name in [driver], and: findmnt",
    )


def names_silent(why: str) -> Problem:
    """Say that the host's user database tells of nobody, and why."""
    return Problem(
        "names-silent",
        f"the host's user database {why}; who is looked after stays as it was",
        "see: getent passwd; systemctl status sssd; journalctl -u xpucached",
    )


def names_missing(names: Sequence[str]) -> tuple[Problem, ...]:
    """Say of whom the host's user database does not tell any more, if of anybody: whether they are gone is unknown."""
    some = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} others" if names[_NAMED:] else "")
    message = f"the host's user database does not tell of {some} now; who is looked after stays as it was"
    hint = (
        "see: getent passwd; systemctl status sssd. Who is gone for good: take them out of [workers], or exclude them"
    )
    return (Problem("names-silent", message, hint),) if names else ()


def unwritten(file: Path, why: str) -> Problem:
    """Say that what is known of the users is lost when the host's daemon ends."""
    return Problem(
        "state-not-kept",
        f"what is known of the users cannot be written to {file}: {why}; workers on a disk that is full do not start",
        f"see: df {file.parent}; systemctl restart xpucached when there is room",
    )


def failure(one: UserStatus, since: datetime | None) -> Problem:
    """Say whose worker does not do what it should, since when, and what to do."""
    when = f" since {since:%Y-%m-%d %H:%M} UTC" if since is not None else ""
    unit = f"xpucached-worker@{one.uid}.service"
    return Problem(
        "worker-failing",
        f"the worker of {one.user} fails{when}: {one.sentence or 'it does not answer'}",
        f"nobody else is concerned; see: journalctl -u {unit}; one that hangs is ended by: systemctl stop {unit}",
        one.user,
    )
