"""Observe: the label of an entry in the trash, which says what the entry was and where; anybody may have forged it.

Every kind with a trash keeps the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from xpucached.domain.defects import RepairAction
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import Entry
from xpucached.domain.trash import TrashLabel
from xpucached.printing import encodable


@dataclass(frozen=True, slots=True)
class Label:
    """What stands in ``about.json``."""

    key: EntryKey
    at: datetime
    reason: EvictReason
    detail: str
    quarantined: bool
    device: str
    driver: str
    mode: int  #: of the leaf
    files: Mapping[str, tuple[int, int]]  #: suffix to size and modification time

    @property
    def slot(self) -> str:
        """The slot's name."""
        return self.key.rpartition("/")[2]

    @property
    def leaf(self) -> str:
        """The leaf's path."""
        return self.key.rpartition("/")[0]

    def dumps(self) -> bytes:
        """Write it."""
        values = {
            "key": self.key,
            "at": self.at.isoformat(),
            "reason": self.reason.value,
            "detail": self.detail[:2000],
            "quarantined": self.quarantined,
            "device": self.device[:2000],
            "driver": self.driver[:2000],
            "mode": self.mode,
            "files": {suffix: list(facts) for suffix, facts in self.files.items()},
        }
        return json.dumps(values).encode("ascii")


_FOR_DAMAGE: Final = frozenset({EvictReason.DEFECTIVE, EvictReason.ASKED})
_OF_PLACE: Final = frozenset({RepairAction.TRASH, RepairAction.UNLOCK, RepairAction.CLOSE_GAP})
"""What is mended so is whole.  What needs another repair is damaged itself, and is not given back."""


def label_of(entry: Entry, note: TrashLabel, mode: int, files: Mapping[str, tuple[int, int]]) -> Label:
    """Make the label of an entry."""
    environment, defect = entry.environment, entry.defect
    return Label(
        entry.id.key,
        note.at,
        note.reason,
        note.detail if defect is None or not entry.detail else f"{note.detail} ({entry.detail})",
        defect is not None and not _OF_PLACE.issuperset(defect.repairs) and note.reason in _FOR_DAMAGE,
        environment.device if environment else "",
        environment.toolchain if environment else "",
        mode,
        files,
    )


_EARLIER: Final = {"flawed": EvictReason.DEFECTIVE.value}
"""What labels of earlier versions say for a reason."""

BLANK: Final = Label(
    EntryKey(""),
    datetime.fromtimestamp(0, UTC),
    EvictReason.ASKED,
    "",
    quarantined=True,
    device="",
    driver="",
    mode=0,
    files={},
)
"""Stands for the label that a killed daemon had not written yet."""


def _text(values: Mapping[str, object], name: str) -> str:
    value = values[name]
    if not isinstance(value, str):
        raise TypeError(name)
    # Half a character would make a whole answer unreadable.
    return encodable(value)


def loads(content: bytes, is_place: Callable[[list[str]], bool], suffixes: Collection[str]) -> Label:
    """Read a label.  The store's owner could write anything there: raises ValueError for what is not ours.

    ``is_place`` tells of a key's names whether a runtime keeps an entry there, ``suffixes`` are those of its files.
    """
    try:
        values = json.loads(content)
        key = _text(values, "key")
        path = key.split("/")
        if not is_place(path):
            raise ValueError(key)
        found: dict[str, tuple[int, int]] = {}
        for suffix, (size, modified) in values["files"].items():
            if suffix not in suffixes or not isinstance(size, int) or not isinstance(modified, int):
                raise ValueError(suffix)
            found[suffix] = (size, modified)
        at = datetime.fromisoformat(_text(values, "at")).astimezone(UTC)
        reason = _text(values, "reason")
        return Label(
            EntryKey(key),
            at,
            EvictReason(_EARLIER.get(reason, reason)),
            _text(values, "detail")[:2000],
            bool(values["quarantined"]),
            _text(values, "device")[:2000],
            _text(values, "driver")[:2000],
            int(values["mode"]) & 0o777,
            found,
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        message = f"not a label of ours: {error}"
        raise ValueError(message) from error
