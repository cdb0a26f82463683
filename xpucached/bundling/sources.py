"""Which entries go into a bundle: of the catalog, as ``ls`` selects them, or of a store that nobody looks after."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from xpucached import mounts, sockets
from xpucached.bundle.revocations import revocations
from xpucached.bundling.drivers import CATALOG
from xpucached.bundling.signing import doubtful, of_keys
from xpucached.domain.names import KindName, ModelName
from xpucached.domain.queries import EntryQuery
from xpucached.domain.stores import EntryState, FoundStore, Store, StoreOrigin
from xpucached.domain.targets import Origin
from xpucached.errors import Denied, NotFound, RequestError
from xpucached.kinds import table
from xpucached.kinds.table import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xpucached.bundle.revocations import Revocations
    from xpucached.domain.bundles import ExportBundle
    from xpucached.domain.plans import NoRecipe, Recipe
    from xpucached.domain.stores import Entry, EntryId
    from xpucached.domain.targets import Target
    from xpucached.kinds.portability import Packed
    from xpucached.settings import Settings


class Selected(Struct, frozen=True):
    """The entries that were asked for, and where their recipes are."""

    entries: tuple[Entry, ...]
    recipe: Callable[[Entry], Recipe | NoRecipe]
    models: Mapping[Entry, tuple[str, ...]]
    revoked: int = 0  #: of what was asked for; they are not among the entries
    walk: Mapping[Target, tuple[int, Iterator[Packed]]] | None = None
    """Instead of entries: the targets that were asked for, how many there are about, and they."""
    left_out: frozenset[EntryId] = frozenset()  #: of those, what came with what is revoked


@contextlib.contextmanager
def selected(order: ExportBundle, settings: Settings) -> Iterator[Selected]:
    """Find what was asked for.  Raises `NotFound` and others."""
    if order.kind is not None and order.kind not in KINDS:
        raise RequestError(f"no kind {order.kind!r}", hint=f"there is: {', '.join(KINDS)}")
    # No daemon need have looked since somebody revoked something.
    known = of_keys(revocations, *settings.key_folders)
    if known.doubt:
        raise doubtful(known)
    if order.store is not None and order.model is None:
        yield _of_store(order, _store(order.store, order.kind), _revoked(known, settings))
        return
    # A store that is named needs none of it, and to load a database takes longer than to read a store.
    from xpucached.catalog import Catalog  # noqa: PLC0415 - see above
    from xpucached.catalog.builds import revoked_entries  # noqa: PLC0415 - see above
    from xpucached.catalog.entries import entry_page  # noqa: PLC0415 - see above
    from xpucached.catalog.recipes import RecipeStore  # noqa: PLC0415 - see above

    path = settings.paths.state / CATALOG
    if not _is_there(path):
        hint = "name a store: --store DIR"
        raise NotFound(f"{path}: there is no catalog, because no daemon of this user ran yet", hint=hint)
    catalog = Catalog.open(path, guest=True)
    try:
        recipes = RecipeStore(catalog, settings.paths.state / "recipes")
        query = EntryQuery(
            kind=None if order.kind is None else KindName(order.kind),
            store=order.store,
            driver=order.driver,
            device=order.device,
            model=None if order.model is None else ModelName(order.model),
            state=EntryState.OK,
            # What came from elsewhere is never given out as made here, nor what nobody saw being made.
            origin=Origin.REBUILT if order.made_here else None,
        )
        page = catalog.read(entry_page, query, present=(), now=datetime.now(UTC))
        revoked = {one.entry.id for one, _ in catalog.read(revoked_entries, known.digests)}
        found = [one for one in page.entries if one.entry.id not in revoked]

        def recipe(entry: Entry) -> Recipe | NoRecipe:
            return table.recipe(entry, recipes.recorded(entry.id.store.kind, entry.id.key))

        models = {one.entry: tuple(one.models) for one in found}
        yield Selected(tuple(models), recipe, models, len(page.entries) - len(found))
    finally:
        catalog.close()


def _is_there(catalog: Path) -> bool:
    """Return whether there is a catalog.  Raises `Denied` to root for one that is another user's, whose HOME it has."""
    if os.geteuid() == 0:
        try:
            os.close(sockets.enter(os.fspath(catalog), sockets.Trusted())[0])
        except sockets.UntrustedPeer as error:
            message = f"{catalog} may be another user's: {error.place} is not root's alone"
            raise Denied(message, hint="run it as that user, or name a store: --store DIR") from error
        except OSError:
            return False
    return catalog.exists()


def _revoked(known: Revocations, settings: Settings) -> frozenset[EntryId]:
    """Return what the catalog, if there is one, knows to have come with what is revoked."""
    path = settings.paths.state / CATALOG
    if not known.digests or not _is_there(path):
        return frozenset()
    from xpucached.catalog import Catalog  # noqa: PLC0415 - as in `selected`
    from xpucached.catalog.builds import revoked_entries  # noqa: PLC0415 - as in `selected`

    with contextlib.closing(Catalog.open(path, guest=True)) as catalog:
        return frozenset(one.entry.id for one, _ in catalog.read(revoked_entries, known.digests))


def _of_store(order: ExportBundle, store: Store, revoked: frozenset[EntryId]) -> Selected:
    """Find what was asked for in a store, but for what is revoked."""
    portable = KINDS[store.kind].portable
    walk = None if portable is None or order.recipes_only else portable.walk(store)
    if walk is None:
        found = [one for one in _scanned(store) if _wanted(one, order)]
        entries = tuple(one for one in found if one.id not in revoked)
        return Selected(entries, table.recipe, {}, len(found) - len(entries))
    asked = {
        target: (count, (one for one in some if one.entry.state is EntryState.OK))
        for target, (count, some) in walk.items()
        if _matches(target, order)
    }
    return Selected((), table.recipe, {}, walk=asked, left_out=revoked)


def _store(root: Path, kind: str | None) -> Store:
    """Return a store that is named."""
    root = Path(mounts.real(root))
    try:
        os.scandir(root).close()
    except PermissionError as error:
        raise Denied(f"{root} may not be read by user {os.geteuid()}", hint="run it as the user whose it is") from error
    except OSError as error:
        raise NotFound(f"{root} cannot be read: {error.strerror}", hint="name a cache directory") from error
    known = [name for name, one in KINDS.items() if kind in {None, name} and one.discovery.recognise(root)]
    if len(known) != 1:
        what = "is no store of a kind that is known" if not known else "looks like a store of several kinds"
        raise NotFound(f"{root} {what}", hint=f"name a cache directory, and its --kind: {', '.join(KINDS)}")
    return Store(known[0], root)


def _scanned(store: Store) -> Iterator[Entry]:
    """Look at a store as the daemon does; nothing of it is written."""
    found = FoundStore(store, StoreOrigin.CONFIGURED, "named")
    for part in KINDS[store.kind].scanner.parts(found, datetime.now(UTC), (), None, inside=False):
        yield from part.entries


def _wanted(entry: Entry, order: ExportBundle) -> bool:
    return entry.state is EntryState.OK and _matches(entry.environment, order)


def _matches(target: Target | None, order: ExportBundle) -> bool:
    if order.driver is not None:
        if target is None:
            return False
        start = order.driver.removesuffix("*")
        if not (target.toolchain.startswith(start) if order.driver.endswith("*") else target.toolchain == start):
            return False
    return order.device is None or (target is not None and order.device.casefold() in target.device.casefold())
