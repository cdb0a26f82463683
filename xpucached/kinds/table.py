"""The table of all kinds, and what is asked of entries of any of them.

To add one: ``docs/kinds.md``, "Adding a kind".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.domain.defects import CHANGED
from xpucached.domain.host import Problem
from xpucached.domain.plans import NoRecipe
from xpucached.kinds import model_caches, sycl
from xpucached.kinds.neo import kind as neo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from xpucached.domain.defects import Defect
    from xpucached.domain.host import Host
    from xpucached.domain.names import EntryKey, KindName
    from xpucached.domain.plans import Recipe
    from xpucached.domain.recipes import RecordedRecipe
    from xpucached.domain.stores import Entry, EntryId
    from xpucached.domain.targets import Target
    from xpucached.domain.trash import Repair, TrashLabel
    from xpucached.kinds.interface import Kind, Rebuilder, Trash

KINDS: Final[dict[KindName, Kind]] = {kind.name: kind for kind in (sycl.KIND, neo.KIND)}
"""Every kind there is."""

_NEWER: Final = "install a newer driver: what programs have it compile themselves, as oneDNN does, cannot be kept warm"

MODELS: Final = sycl.NAME
"""The kind of a model's own store, which its runs are proven by."""


def trash_of(kind: KindName) -> Trash | None:
    """Return what looks after the trash of a kind, or of the directories of models; None if it has none."""
    return model_caches.TRASH if kind == model_caches.KIND else KINDS[kind].trash


def variables(root: Callable[[KindName], Path]) -> Mapping[str, str]:
    """Return what makes a program cache in these stores, one of each kind, and leave eviction to us."""
    given = ({**kind.discovery.enable(root(name)), **kind.discovery.EVERYWHERE} for name, kind in KINDS.items())
    return {variable: text for one in given for variable, text in one.items()}


def libraries() -> tuple[str, ...]:
    """Return how the names of libraries begin by which a process shows that it may use a store of any kind."""
    return tuple(sorted({name for kind in KINDS.values() for name in kind.discovery.LIBRARIES}))


def defects() -> tuple[Defect, ...]:
    """Return all that can be wrong with entries of any kind."""
    return tuple(dict.fromkeys((CHANGED, *(one for kind in KINDS.values() for one in kind.defects))))


def targets(host: Host) -> tuple[Target, ...]:
    """Return what entries of all kinds would be valid for on this host now; see `Scanner.targets`."""
    return tuple(dict.fromkeys(one for kind in KINDS.values() for one in kind.scanner.targets(host)))


def with_targets(host: Host) -> Host:
    """Return a host, and each of its devices, what entries of all kinds would be valid for there now.

    And it says which kind's entries nobody keeps.
    """
    devices = tuple(replace(one, environments=targets(replace(host, devices=(one,)))) for one in host.devices)
    why_not_kept = (
        why for kind in KINDS.values() if kind.recorder is not None and (why := kind.recorder.why_not_kept(host))
    )
    kept = (Problem("no-driver-cache", f"{why}: at each start it is compiled again", _NEWER) for why in why_not_kept)
    problems = dict.fromkeys((*host.problems, *kept))
    return replace(host, devices=devices, environments=targets(host), problems=tuple(problems))


def lineages(
    recorded: Mapping[tuple[KindName, EntryKey], str] | None = None,
) -> Mapping[KindName, Callable[[EntryKey], str | None]]:
    """Return for each kind whose entries can be compiled again what stays of their keys when the driver changes.

    What was recorded of an entry says it; of others the key itself may.
    """
    told = recorded or {}

    def of(name: KindName, rebuilder: Rebuilder) -> Callable[[EntryKey], str | None]:
        return lambda key: told.get((name, key)) or rebuilder.lineage_key(key)

    return {name: of(name, kind.rebuilder) for name, kind in KINDS.items() if kind.rebuilder is not None}


def rebuilder(entry: Entry) -> Rebuilder:
    """Return what compiles entries of this kind again: of a kind that has it."""
    found = KINDS[entry.id.store.kind].rebuilder
    if found is None:
        raise ValueError(f"{entry.id.store.kind}: {NoRecipe.KIND.words}")
    return found


def recipe(entry: Entry, recorded: RecordedRecipe | None = None) -> Recipe | NoRecipe:
    """Read what an entry was compiled from, or say why it cannot be compiled again; see `Rebuilder.recipe`."""
    found = KINDS[entry.id.store.kind].rebuilder
    return NoRecipe.KIND if found is None else found.recipe(entry, recorded)


def remove(
    entries: Sequence[Entry],
    notes: Mapping[EntryId, TrashLabel] | None = None,
    failed: Callable[[Path, OSError], None] | None = None,
) -> Mapping[EntryId, bool]:
    """Take entries of any kinds out; see `Remover.remove`."""
    results: dict[EntryId, bool] = {}
    for name in {entry.id.store.kind for entry in entries}:
        some = [entry for entry in entries if entry.id.store.kind == name]
        results.update(KINDS[name].remover.remove(some, notes, failed))
    return results


def built_from(entry: EntryId) -> tuple[str, str] | None:
    """Return what an entry of any kind was compiled from, and how; see `Scanner.built_from`."""
    kind = KINDS.get(entry.store.kind)
    told = None if kind is None else kind.scanner.built_from(entry.key)
    return None if told is None else (f"{entry.store.kind} {told[0]}", f"{entry.store.kind} {told[1]}")


def sweep(entries: Iterable[EntryId]) -> None:
    """Finish what a dead daemon of ours began with entries of any kinds; see `Remover.sweep`."""
    for entry in entries:
        if entry.store.kind in KINDS:
            KINDS[entry.store.kind].remover.sweep(entry)


def mend(repairs: Sequence[Repair], failed: Callable[[Path, OSError], None] | None = None) -> Mapping[EntryId, bool]:
    """Mend entries of any kinds in their places; see `Doctor.mend`."""
    results: dict[EntryId, bool] = {}
    for name in {repair.entry.id.store.kind for repair in repairs}:
        some = [repair for repair in repairs if repair.entry.id.store.kind == name]
        doctor = KINDS[name].doctor
        results.update(doctor.mend(some, failed) if doctor is not None else {one.entry.id: False for one in some})
    return results
