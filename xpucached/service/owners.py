"""Whose store it is: a daemon that runs as root leaves the stores of other users to their workers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from xpucached import deadlines
from xpucached.domain.host import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from xpucached.domain.host import Process
    from xpucached.domain.stores import Entry, FoundStore, Store
    from xpucached.kinds.interface import Kind

STORES: Final = 500
"""Stores that are looked at because programs name them, or named them once."""

_NAMED: Final = 200
"""Those that live programs name: each may name as many as it likes."""


def named_by(kind: Kind, processes: Iterable[Process]) -> tuple[Sequence[tuple[Path, str]], bool]:
    """Return the stores that programs name, each once, and how we know; of more than we look at, the first ones.

    Also tell whether these are all.
    """
    asked: set[object] = set()
    found: dict[Path, str] = {}
    for one in processes:
        question = (one.pid == 0, frozenset(one.variables.items()), one.libraries, one.directory)
        place = kind.discovery.locate(one) if question not in asked else None
        asked.add(question)
        if place is not None:
            found.setdefault(*place)
        if len(found) > _NAMED:
            found.popitem()
            return tuple(found.items()), False
    return tuple(found.items()), True


def too_many() -> Problem:
    """Say that programs name more stores than are looked at."""
    return Problem(
        "too-many-stores",
        f"programs name more stores than are looked at ({_NAMED}, with earlier ones {STORES}): the others are not",
        "see which: xpucachectl stores; name those that matter in stores.paths, or set stores.found = false",
    )


def answers(root: Path) -> bool:
    """Return whether the file system of a store answers, whatever it answers."""
    return not isinstance(_refusal(root), TimeoutError)


def answering(entries: Iterable[Entry]) -> list[Entry]:
    """Return those of these entries whose stores' file systems answer."""
    some = list(entries)
    there = {root for root in {one.id.store.root for one in some} if answers(root)}
    return [one for one in some if one.id.store.root in there]


def readable(root: Path) -> bool:
    """Return whether it can be told now what is in a store, or that there is none."""
    return isinstance(_refusal(root), FileNotFoundError | None)


def there(root: Path) -> bool:
    """Return whether there is a store now, and it can be read."""
    return _refusal(root) is None


def unreadable(root: Path) -> str:
    """Return why a store cannot be read just now; empty if it can, or if there is none."""
    error = _refusal(root)
    if error is None or isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
        return ""
    if isinstance(error, TimeoutError):
        return "its file system does not answer"
    return error.strerror or f"{error}"


def _refusal(root: Path) -> OSError | ValueError | None:
    def look() -> None:
        # Whether there is such a directory may be remembered by the kernel; what is in it is asked for.
        with os.scandir(root) as entries:
            next(entries, None)

    try:
        deadlines.ask(root, look)
    except (OSError, ValueError) as error:
        return error
    return None


def foreign(store: Store) -> int | None:
    """Return the uid of a store's owner if we are root and the store is not root's; opens nothing.

    `kinds` refuses such a store once more when it has opened its root, so a root that changes hands in between is left
    alone, too.
    """
    if os.geteuid() != 0:
        return None
    try:
        owner = deadlines.ask(store.root, lambda: store.root.stat().st_uid)
    except (OSError, ValueError):
        return None
    return owner or None


def foreign_store(found: FoundStore, uid: int) -> Problem:
    """Say that a store is another user's, and which worker looks after it."""
    return Problem(
        "foreign-store",
        f"{found.store.root} ({found.via}) belongs to user {uid}: a daemon that runs as root does not work there",
        f"take it out here; that user's own worker looks after it: xpucachectl --of {uid} stores "
        "(if the host's service is not enabled: systemctl enable --now xpucached.service)",
        str(found.store.root),
    )
