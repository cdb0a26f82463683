"""Record: what the host's daemon knows of its users, from one life to the next, and the line for those who log in.

Touches its own state directory, and its directory in /run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from xpucached import codec, messages, state_files
from xpucached.domain.users import UNTENDED, SavedState
from xpucached.hostd.sentences import unwritten

if TYPE_CHECKING:
    from pathlib import Path

    from xpucached.domain.host import Problem

log = logging.getLogger(__name__)

_LARGEST: Final = 64 << 20

# How many models are cold, and whose, is nobody else's.
_COLD: Final = "xpucached: not all kernel caches on this host are warm; for yours, see: xpucachectl status\n"


class StateFile:
    """The file with what is known.  Its methods block."""

    def __init__(self, state: Path, runtime: Path) -> None:
        """``runtime`` is a directory of ours that a reboot empties."""
        self._file = state / "users.json"
        self._runtime = runtime
        # In a directory of root's, and made by root: what who logs in is shown is a file that we fill, never a link,
        # or a pipe, of ours.
        self._motd = runtime.parent / "motd.d/60-xpucached"
        self._writing = threading.Lock()
        self.problems: tuple[Problem, ...] = ()
        """Why the last writing failed."""

    def recall(self) -> SavedState:
        """Return what was kept; nothing if it cannot be read."""
        try:
            kept = messages.parse(state_files.read(self._file, _LARGEST), largest=_LARGEST, escaped_bytes=True)
            return codec.from_json(SavedState, kept)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("what was known of the users is lost, and asked for again: %s", error)
        return SavedState()

    def keep(self, known: SavedState, *, last: bool = False) -> None:
        """Write what is known, and the line for those who log in: none at the end, for then nobody knows any more."""
        with self._writing:
            self._keep(known)
            self._show(cold=not last and any(one.cold for one in known.users if one.state not in UNTENDED))

    def fail(self, error: Exception) -> None:
        """Note why what is known was not written."""
        log.warning("what is known of the users cannot be kept: %s", error)
        self.problems = (unwritten(self._file, getattr(error, "strerror", None) or str(error)),)

    def _keep(self, known: SavedState) -> None:
        try:
            # Whose models are called what is for nobody else.
            state_files.write(self._file, codec.dumps(codec.to_json(known)))
        except OSError as error:
            self.fail(error)
        else:
            self.problems = ()

    def _show(self, *, cold: bool) -> None:
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(self._motd, flags), "w", encoding="utf-8") as shown:
                shown.write(_COLD if cold else "")

    @property
    def _began(self) -> Path:
        # The kernel's own number for the boot is in a part of /proc that we do not see.
        return self._runtime / "began"

    def first_since_boot(self) -> bool:
        """Return whether we are the first of us since the host started: nothing in /run outlives that."""
        return not os.path.lexists(self._began)

    def note_boot(self) -> None:
        """Note that what is kept is from after the start of the host."""
        with contextlib.suppress(OSError):
            self._began.touch()
