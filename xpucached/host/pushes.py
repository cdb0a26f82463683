"""What a push leaves for `status`: a push is done by a unit with a network, and no daemon has one."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

import msgspec

from xpucached import codec, deadlines, messages, quantities, state_files
from xpucached.domain.pushes import PushOutcome
from xpucached.printing import encodable

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "push.json"
_LARGEST: Final = 32 << 10
_LONGEST: Final = 1000


def note(state: Path, reference: str = "", digest: str = "", error: str = "") -> None:
    """Remember what became of a push; not where there is no such folder: no daemon of this user ran yet."""
    outcome = PushOutcome(datetime.now(UTC), encodable(reference)[:_LONGEST], digest, encodable(error)[:_LONGEST])
    with contextlib.suppress(OSError):
        state_files.write(state / NAME, codec.dumps(codec.to_json(outcome)))


def last(state: Path) -> PushOutcome | None:
    """Return what became of the last push; None if nobody knows."""
    try:
        kept = messages.parse(state_files.read(state / NAME, _LARGEST), largest=_LARGEST)
        return cast("PushOutcome", codec.convert(kept, PushOutcome))
    except (OSError, messages.BadMessage, msgspec.ValidationError):
        return None


def key(configuration: Path) -> Path:
    """Return where the key is that signs what is pushed: beside the file of the configuration."""
    return configuration.with_name("push.key")


def set_up(push: str, configuration: Path) -> datetime | None:
    """Return since when pushes are set up, by what the configuration says of them; None if they are not."""
    if push == "off":
        return None
    times = [0]
    for path in (configuration, key(configuration)):
        with contextlib.suppress(OSError):
            times.append(deadlines.ask(path, path.stat).st_mtime_ns)
    return quantities.moment(max(times))
