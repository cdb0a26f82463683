"""Door: which of the variables that were answered are taken over.  Looks at the paths in them, and is quick to load.

What is printed by `env` is run by shells, and programs load what lies where it leads: so whatever answers, nothing is
taken over but what is on a list, and no path where somebody else could have put something.
"""

from __future__ import annotations

import os

from xpucached import sockets
from xpucached.kinds.variables import FILES, KNOWN, PLACES

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    from collections.abc import Mapping


def taken(values: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Return what is taken over; which names are on no list; and which lead where others may write."""
    known = {name: text for name, text in values.items() if name in KNOWN}
    open_ = {name for name, text in known.items() if name in PLACES and not _is_ours(name, text)}
    unknown = tuple(sorted(values.keys() - known.keys()))
    return {name: text for name, text in known.items() if name not in open_}, unknown, tuple(sorted(open_))


def _is_ours(name: str, text: str) -> bool:
    """Return whether every path in a variable is root's or the caller's, and nobody else may change what is there."""
    trusted = sockets.Trusted(groups=True)
    places = text.replace(",", ":").split(":") if name in FILES else text.split(":")
    return text == "" or all(_belongs(place, trusted, bare=name in FILES) for place in places)


def _belongs(place: str, trusted: sockets.Trusted, *, bare: bool) -> bool:
    if not place.startswith("/"):
        # Without a name it is the directory that a program happens to be in.
        return bare and place != "" and "/" not in place
    try:
        # Before anything is asked about it: beyond what is ours somebody may keep us waiting.
        try:  # noqa: SIM105 - contextlib takes long to load
            sockets.check_way(f"{place}/-", trusted)
        except NotADirectoryError:
            pass  # a file, to which the way is ours
        for path in {place, os.path.realpath(place)}:
            # The way to what is in it; a file has nothing in it.
            sockets.check_way(path if os.path.isfile(path) else f"{path}/-", trusted)  # noqa: PTH113 - pathlib is slow to load
        found = os.stat(place) if os.path.lexists(place) else None  # noqa: PTH116 - as above
    except (OSError, ValueError, sockets.UntrustedPeer):
        return False
    return found is None or (found.st_uid in trusted and not trusted.others_write(found))
