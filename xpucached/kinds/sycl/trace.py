"""What the runtime tells of the entries that a program uses: ``SYCL_CACHE_TRACE``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.domain.names import EntryKey
from xpucached.domain.recipes import Recording
from xpucached.domain.stores import Store
from xpucached.kinds.sycl.entry_format import IR, IR_KEY, NUMBER, RTC

if TYPE_CHECKING:
    from xpucached.domain.host import Host
    from xpucached.domain.recipes import RecordedRecipe
    from xpucached.domain.stores import EntryId
    from xpucached.domain.targets import Target

MARKS: Final = (b"ersistent Cache]: ", b"*** Code caching: ")

# "binary" without "device" is a program that was compiled from source, and kept by the device's name.
_HIT: Final = ("using cached device binary: ", "using cached device code IR: ", "using cached binary: ")
_STORED: Final = ("binary has been cached: ", "storing device code IR: ")
_NOT_KEPT: Final = ("quire lock file: ", "cache lock not owned ", "exception encountered making persistent cache: ")
"""What a runtime says when it compiled a program and could not keep it."""
_PLACE: Final = re.compile(r"/([\w+=/-]+)")
_OFF: Final = ("disabled", "Disable persistent cache")
LEVELS: Final = 5
"""Names of a key, at most; a trace may say anything."""

_MARK: Final = re.compile(r"(?:Code caching|Persistent Cache)\]?: ")


def variables(store: Store) -> Mapping[str, str]:  # noqa: ARG001 - it tells of every store
    """Return the variables that make the runtime tell; see `Recorder.variables`."""
    # From 2025.1 on a mask: 1 is what is compiled ahead and at first use, 4 is what is compiled from source at run
    # time.  Before that whatever is set means the first, and the second is not cached.
    return {"SYCL_CACHE_TRACE": "5"}


def _keys(root: str, text: str) -> list[EntryKey]:
    """Turn the paths of a trace line into keys; the runtime ends each of several by a semicolon."""
    keys: list[EntryKey] = []
    for part in text.strip().split(";" + root):
        path = part.strip().rstrip(";").strip()
        path = path.removeprefix(root).strip("/").removesuffix(".bin")
        pieces = path.split("/")
        if pieces[0] == RTC and len(pieces) == 2 and IR_KEY.match(pieces[1]):  # noqa: PLR2004 - the IR's directory
            pieces.append(IR)
        known = (NUMBER.match(piece) or piece in (RTC, IR) or IR_KEY.match(piece) for piece in pieces)
        if len(pieces) <= LEVELS and all(known):
            keys.append(EntryKey("/".join(pieces)))
    return keys


def _place(root: str, text: str) -> EntryKey | None:
    """Return where a program was to be kept, as such a line says; None if it speaks of something else."""
    place = _PLACE.match(text, text.find(root) + len(root))
    pieces = place[1].split("/") if place is not None else []
    # A leaf that cannot be made has no slot yet.
    pieces += ["0"] if len(pieces) == LEVELS - 1 and pieces[0] != RTC else []
    keys = _keys("", "/".join(pieces)) if len(pieces) == LEVELS or pieces[:1] == [RTC] else []
    return keys[0] if keys else None


def why_untold(directory: Path) -> str:  # noqa: ARG001
    """Return nothing: no file keeps the runtime from telling; see `Recorder.why_untold`."""
    return ""


COMMON: Final = ""
"""Its entries need no recipes."""


def why_not_kept(host: Host) -> str:  # noqa: ARG001
    """Return nothing: each runtime keeps what it compiles; see `Recorder.why_not_kept`."""
    return ""


def collect(store: Store, before: frozenset[EntryKey], host: Host) -> Recording:  # noqa: ARG001 - it leaves no files
    """Tell nothing more; see `Recorder.collect`."""
    return Recording()


def predict(entry: EntryId, told: RecordedRecipe, target: Target) -> EntryKey | None:  # noqa: ARG001
    """Return nothing: its entries say themselves what they are for; see `Recorder.predict`."""
    return None


def derive(entry: EntryId, alike: Sequence[RecordedRecipe]) -> RecordedRecipe | None:  # noqa: ARG001
    """Return nothing: its entries say themselves how they are compiled; see `Recorder.derive`."""
    return None


def forget(store: Store, *, begins: bool = False) -> None:
    """Take nothing away; see `Recorder.forget`."""


def read(store: Store, lines: Iterable[str], *, not_kept: bool = True) -> Recording:
    """Read ``SYCL_CACHE_TRACE`` lines; see `Recorder.read`.

    Old runtimes also claim a hit after a failed read, and all of them claim a store after a failed write: what a trace
    names must be looked for on disk before it is believed.  What could not be kept was compiled all the same, and
    counts as created unless ``not_kept`` says otherwise.
    """
    prefix = os.fspath(store.root)
    created: set[EntryKey] = set()
    used: set[EntryKey] = set()
    for line in lines:
        mark = _MARK.search(line)
        if mark is None:
            continue
        event = line[mark.end() :]
        for texts, keys in ((_HIT, used), (_STORED, created)):
            for text in texts:
                at = event.find(text)
                if at >= 0 and prefix in event:
                    keys.update(_keys(prefix, event[at + len(text) :]))
        if not_kept and prefix in event and any(text in event for text in _NOT_KEPT):
            place = _place(prefix, event)
            created.update([place] if place is not None else [])
    return Recording(frozenset(created), frozenset(used - created))


def unkept(stores: Sequence[Store], lines: Iterable[str]) -> str:
    """Say what is compiled with the cache off, or kept elsewhere; see `Recorder.unkept`."""
    ours = tuple(f"{os.fspath(store.root)}/" for store in stores)
    for line in lines:
        mark = _MARK.search(line)
        event = line[mark.end() :] if mark is not None else ""
        if event.startswith(_OFF):
            return "a program of it compiles with the cache off"
        place = next((event[at + len(text) :].strip() for text in _STORED if (at := event.find(text)) >= 0), "")
        if place.startswith("/") and not place.startswith(ours):
            return f"a program of it compiled, and keeps that elsewhere: {place}"
    return ""
