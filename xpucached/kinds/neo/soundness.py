"""Whether an entry holds together so that the driver loads it.  Pure."""

from __future__ import annotations

from xpucached.binaries import zebin
from xpucached.kinds import images


def damage(data: bytes) -> str | None:
    """Return what is wrong with an entry so that the driver refuses it, or crashes; None if nothing can be seen to be.

    Flipped bits in code, symbols or SPIR-V cannot be seen here, and what follows the tables is not looked at.
    """
    if not zebin.judged(data):
        return None
    wrong = images.damage(data, intel=True)
    if wrong is None:
        try:
            zebin.read(data)
        except zebin.NotesError as error:
            wrong = str(error)
    return wrong
