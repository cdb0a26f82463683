"""What a push leaves for `status`: a push is done by a unit with a network, and no daemon has one."""

from __future__ import annotations

import contextlib
import os
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from xpucached import codec, messages
from xpucached.domain.pushes import PushOutcome

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "push.json"
_SET_UP: Final = ("push.key", "push.env")
"""Files without which the unit does nothing."""
_LARGEST: Final = 16 << 10
_LONGEST: Final = 1000


def note(state: Path, reference: str = "", digest: str = "", error: str = "") -> None:
    """Remember what became of a push; not where there is no such folder: no daemon of this user ran yet."""
    outcome = PushOutcome(datetime.now(UTC), reference[:_LONGEST], digest, error[:_LONGEST])
    beside = state / f".{NAME}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError), os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
        file.write(codec.dumps(codec.to_json(outcome)))
        file.flush()
        beside.rename(state / NAME)


def last(state: Path) -> PushOutcome | None:
    """Return what became of the last push; None if nobody knows."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(state / NAME, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                return None
            return msgspec.convert(messages.parse(file.read(_LARGEST), largest=_LARGEST), PushOutcome)
    except (OSError, messages.BadMessage, msgspec.ValidationError):
        return None


def set_up(config: Path) -> datetime | None:
    """Return since when pushes are set up beside a configuration; None if they are not."""
    try:
        times = [(config / name).stat().st_mtime for name in _SET_UP]
    except OSError:
        return None
    return datetime.fromtimestamp(max(times), UTC)
