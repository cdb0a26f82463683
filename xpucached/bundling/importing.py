"""Import: programs that a trusted key signed and that fit exactly are published; others are compiled from recipes."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from xpucached import mounts
from xpucached.bundle import members
from xpucached.bundle.trust import SignatureVerdict
from xpucached.bundling import drivers
from xpucached.bundling.inspecting import checked, checked_recipes, programs, recipes_in
from xpucached.bundling.rebuilding import Recompiler, Shard, TakenPlaces, wanted
from xpucached.bundling.signing import refuse_revoked, signed_view, verdict
from xpucached.domain.bundles import (
    Binaries,
    BundleContent,
    BundleReplayReport,
    BundleSource,
    ImportReport,
    MadeEntry,
    MemberTaken,
    RecipeLine,
)
from xpucached.domain.imports import EntriesCame
from xpucached.domain.stores import program_digest
from xpucached.errors import DiskError, HostError, RequestError, Unsigned, WrongHost
from xpucached.kinds import driver_cache, table
from xpucached.kinds.table import KINDS
from xpucached.planning.imports import Taking, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xpucached.bundle.members import Bundle, MemberManifest
    from xpucached.bundling.drivers import UsedDriver
    from xpucached.bundling.progress import Came, Progress
    from xpucached.domain.bundles import ImportBundle, ReplayBundle
    from xpucached.domain.names import KindName
    from xpucached.domain.targets import Target
    from xpucached.kinds.batches import Batch
    from xpucached.planning.imports import Taken

_TOLD: Final = 1000
"""So many entries are told of together, before they are put into their stores."""

_ROOM: Final = 2
"""So many times the bytes of what is written must be free."""


class _Staged(NamedTuple):
    """Programs of an image that lie beside a store."""

    batch: Batch
    made: list[MadeEntry]  #: what each is when it is in its place, but for its key
    places: list[tuple[Target, str]]  #: of what each is the program


class _Import(contextlib.ExitStack):
    """What was not published when it ends goes."""

    def __init__(self, order: ImportBundle, bundle: Bundle, used: UsedDriver, came: Came = lambda *_: None) -> None:
        super().__init__()
        self._came = came
        self._order = order
        self._bundle = bundle
        self._used = used
        self.stores = _stores(order.into)
        self.taken: list[tuple[MemberManifest, Taken]] = []
        self.published: list[MadeEntry] = []
        self.sources: dict[tuple[str, str], BundleSource] = {}
        self.present = 0
        self.skipped: Counter[str] = Counter()
        self._staged: dict[str, _Staged] = {}
        self._lines: list[RecipeLine] = []
        self._there: set[tuple[Target, str]] = set()  #: targets and lineages of programs that are in their stores
        self._left = math.inf if order.seconds is None else order.seconds
        """Seconds of writing after which no further program is begun; to read them all takes the same each time."""
        self.later = 0
        """Programs that were not begun, as the time was up."""
        self.checked = True  #: all of it was read

    def judge_all(self, progress: Progress) -> None:
        """Read all of the bundle, and say what becomes of each image.  Raises `BadBundle`, `Unsigned` and `DiskError`.

        Unattended, what no trusted key has signed is not read.  What may be published is written beside its store
        meanwhile: no program looks there.
        """
        targets = self._used.driver.environments
        allowed = self._order.binaries is not Binaries.NEVER
        images = [one for one in self._bundle.members if one.facts.content is BundleContent.BINARIES]
        signed = {one.manifest.digest: verdict(self._bundle, one) for one in self._bundle.members}
        fitting = [one for one in images if allowed and one.facts.target in targets]
        may = [] if self._order.dry_run else [one for one in fitting if signed[one.manifest.digest].signer is not None]
        isa = {one: self._used.isa(one) for one in targets}
        # To read what compiles here takes seconds, and says nothing of programs for other targets.
        with self._used.compiler_meanwhile() if fitting else contextlib.nullcontext(tuple) as compiler:

            def judged(one: MemberManifest) -> Taken:
                by = signed[one.manifest.digest]
                return judge(one.facts, by.signer, by.why, targets, compiler(), isa, allowed=allowed)

            if self._order.seconds is not None or self._lacks_room(may):
                # What is not taken in as it is needs none, nor any of the time.
                may = [one for one in may if judged(one).taking is Taking.PUBLISH]
                if self._lacks_room(may):
                    self._check_room(may, progress)
            for one in self._bundle.members:
                if one in may:
                    self.stage(one, signed[one.manifest.digest], progress)
                elif self._order.unattended and signed[one.manifest.digest].signer is None:
                    # Nothing of it is taken, and whoever made it may have made it to take hours.
                    self.checked = False
                else:
                    self._check(one, progress)
            self.taken += [(one, judged(one)) for one in images]
        ours = [each for _, each in self.taken if each.taking is not Taking.LEAVE]
        if self._order.binaries is Binaries.REQUIRE and not any(one.taking is Taking.PUBLISH for one in ours):
            why = next((one.why for _, one in self.taken), "it holds none")
            hint = "who trusts that key puts it into ~/.config/xpucached/trust.d; or leave out --binaries=require"
            raise Unsigned(f"no compiled programs can be taken in: {why}", hint=hint)

    def _check(self, member: MemberManifest, progress: Progress) -> None:
        """Read all of a member, and remember its recipes.  Raises `BadBundle`."""
        for done, one in enumerate(checked(self._bundle, member), start=1):
            progress(done, member.facts.entries, f"reading {member.facts.content}")
            if isinstance(one, RecipeLine):
                self._lines.append(one)

    def is_complete(self) -> bool:
        """Return whether the program of each recipe is in its store, for every target here."""
        targets = [one for one in self._used.driver.environments if one.kind in self.stores]
        return all(
            (one, line.at) in self._there
            for line in self._lines
            for one in targets
            if (one.kind, one.family) == (line.kind, line.family)
        )

    def _lacks_room(self, members_: Sequence[MemberManifest]) -> str:
        """Say where there is no room for all that may be published; empty if there is."""
        return _lacks_room(self.stores.values(), sum(one.facts.bytes for one in members_))

    def _check_room(self, images: Iterable[MemberManifest], progress: Progress) -> None:
        """Raise `DiskError` if there is no room for what lacks of images: what is there already needs none."""
        need = dict.fromkeys(self.stores.values(), 0)
        for member in images:
            kind = KINDS.get(member.facts.kind) if member.facts.kind else None
            if kind is None or kind.portable is None:
                continue
            root = self.stores[kind.name]
            taken = TakenPlaces(root)
            for number, (_, recipe, binary, leaf) in enumerate(programs(self._bundle, member, root), start=1):
                progress(number, member.facts.entries, f"reading {member.facts.content}")
                need[root] += 0 if taken.has(leaf) else len(recipe.input) + len(binary)
        for root, size in need.items():
            if lacking := _lacks_room([root], size):
                raise DiskError(lacking)

    def stage(self, member: MemberManifest, signed: SignatureVerdict, progress: Progress) -> None:
        """Read the programs of an image, and write those beside their store that are not there: what is there stays."""
        kind = KINDS.get(member.facts.kind) if member.facts.kind else None
        if kind is None or kind.portable is None:
            self._check(member, progress)
            return
        root = self.stores[kind.name]
        _make(root)
        self.source(signed)
        staged = _Staged(self.enter_context(kind.portable.batch(root)), [], [])
        self._staged[member.manifest.digest] = staged
        taken = TakenPlaces(root)
        for number, (target, recipe, binary, leaf) in enumerate(programs(self._bundle, member, root), start=1):
            progress(number, member.facts.entries, f"reading {member.facts.content}")
            place = (target, kind.portable.lineage(recipe))
            if taken.has(leaf):
                self.present += 1
                self._there.add(place)
                continue
            if self._left <= 0 and any(one.made for one in self._staged.values()):
                self.later += 1
                continue
            staged.places.append(place)
            began = time.monotonic()
            staged.batch.add(recipe, target, binary)
            self._left -= time.monotonic() - began
            digest = program_digest(binary).hexdigest()
            by = signed.signer or "", signed.key
            staged.made.append(MadeEntry(kind.name, root, recipe.entry.key, digest, target.family, 0.0, 0, *by))

    def source(self, signed: SignatureVerdict, *unsigned: str) -> None:
        """Remember of whom something was taken; what nobody signed is revoked by its own digests."""
        by = signed.signer or "", signed.key
        self.sources[by] = _source(self.sources.get(by, BundleSource(*by)), signed, *unsigned)

    def tell(self, *made: MadeEntry, coming: bool = False) -> None:
        """Tell of entries that come, or of one that came: the next may be refused, and this one is in its store."""
        for first in range(0, len(made), _TOLD):
            source = self.sources[made[first].signer, made[first].signing_key]
            self._came(EntriesCame(self._bundle.index.digest, source, made[first : first + _TOLD], coming))

    def publish(self, progress: Progress) -> None:
        """Put programs into their stores, once the disk has them; what has come there meanwhile stays."""
        for member, taken in self.taken:
            staged = self._staged.get(member.manifest.digest)
            if taken.taking is not Taking.PUBLISH or staged is None:
                continue
            progress(0, 0, "waiting for the disk")
            self.tell(*staged.made, coming=True)
            for number, (one, key) in enumerate(zip(staged.made, staged.batch.publish(), strict=True), start=1):
                progress(number, len(staged.made), "publishing")
                if key is None:
                    self.present += 1
                else:
                    self.published.append(replace(one, key=key))
                    self.tell(self.published[-1])
            self._there.update(staged.places)


def _lacks_room(roots: Iterable[Path], size: int) -> str:
    """Say where there is no room to write so many bytes; empty if there is."""
    for root in set(roots):
        there = next(one for one in (root, *root.parents) if one.exists())
        found = os.statvfs(there)
        if found.f_bavail * found.f_frsize < _ROOM * size:
            return f"{there} has less room than the {_ROOM * size} bytes that this takes"
    return ""


def _source(known: BundleSource, signed: SignatureVerdict, *unsigned: str) -> BundleSource:
    """Return of whom something was taken, with what takes it out again; what nobody signed is revoked by its own."""
    return replace(known, digests=tuple(sorted({*known.digests, *(signed.digests or unsigned)})))


def _stores(into: Path | None) -> Mapping[KindName, Path]:
    """Return where entries of each kind go."""
    if into is not None:
        return {table.MODELS: Path(mounts.real(into))}
    settings = drivers.settings()
    return {name: Path(mounts.real(settings.managed(name))) for name in KINDS}


def _make(root: Path) -> None:
    try:
        root.mkdir(0o755, parents=True, exist_ok=True)
        owner = root.stat().st_uid
    except OSError as error:
        raise DiskError(f"{root} cannot be made: {error.strerror}") from error
    if owner != os.geteuid():
        raise RequestError(f"{root} belongs to somebody else", hint="name a directory of your own: --into DIR")


def take_in(order: ImportBundle, progress: Progress, came: Came = lambda *_: None) -> ImportReport:
    """Take a bundle in; see `ImportBundle`."""
    bundle = members.opened(order.source)
    with bundle.layout:
        if not order.unattended:  # which takes nothing without a signature that counts
            refuse_revoked(bundle)
        progress(0, 0, "asking the driver who it is")
        settings = drivers.settings()
        with drivers.used(timeout=settings.driver.probe_timeout) as used, contextlib.ExitStack() as stack:
            todo = stack.enter_context(_Import(order, bundle, used, came))
            recipes = recipes_in(bundle)
            if not used.driver.environments:
                raise HostError("no driver of this host offers a device", hint="see: xpucachectl devices")
            # All of it is judged before anything is used.
            todo.judge_all(progress)
            images = tuple(
                MemberTaken(one.facts.target, taken.taking, taken.why, one.facts.entries) for one, taken in todo.taken
            )
            view = replace(signed_view(bundle), checked=todo.checked)
            if order.dry_run:
                return ImportReport(view, images, dry_run=True)
            for root in todo.stores.values():
                _make(root)
            todo.publish(progress)
            until = None if order.seconds is None else time.monotonic() + order.seconds
            signed = SignatureVerdict(None) if recipes is None else verdict(bundle, recipes)
            compiled = Recompiler(
                used,
                todo.stores,
                settings.driver.compile_timeout,
                progress,
                0 if recipes is None else recipes.facts.entries,
                trusted=signed.signer is not None,
                until=until,
                came=lambda one, coming: todo.tell(_compiled(one, signed), coming=coming),
            )
            # What was not published yet would be compiled.
            if recipes is not None and not todo.later:
                if order.unattended and signed.signer is None:
                    todo.skipped["recipes that no trusted key has signed"] += recipes.facts.entries
                elif not todo.is_complete():
                    todo.source(signed, bundle.index.digest, recipes.manifest.digest)
                    compiled.run(wanted(bundle, recipes, used, todo.stores, Shard()), order.first)
    nothing = not (todo.published or todo.present or compiled.made or compiled.present or compiled.failures)
    if nothing and not todo.skipped and not order.first:
        raise WrongHost("nothing in the bundle is for a device of this host", hint="see: xpucachectl bundle inspect")
    # What was published a moment ago is there, of course, when its recipe's turn comes.
    present = todo.present + max(0, compiled.present - len(todo.published) - todo.present)
    return ImportReport(
        view,
        images,
        published=len(todo.published),
        rebuilt=len(compiled.made),
        present=present,
        failures=tuple(compiled.failures),
        skipped=dict(todo.skipped),
        made=(
            *todo.published,
            *(_compiled(one, signed) for one in compiled.made),
        ),
        sources=tuple(todo.sources.values()),
        next=order.first if todo.later else compiled.next,
    )


def _compiled(made: MadeEntry, recipes: SignatureVerdict) -> MadeEntry:
    """Return an entry with whose recipe it was."""
    return replace(made, signer=recipes.signer or "", signing_key=recipes.key)


def replay(order: ReplayBundle, progress: Progress, came: Came = lambda *_: None) -> BundleReplayReport:
    """Compile the recipes of a bundle; see `ReplayBundle`."""
    return replayed(order, progress, came)[0]


def replayed(
    order: ReplayBundle, progress: Progress, came: Came = lambda *_: None
) -> tuple[BundleReplayReport, tuple[Path, ...]]:
    """Compile the recipes of a bundle; give the report, and where what was made, or was there, lies."""
    bundle = members.opened(order.source)
    with bundle.layout:
        refuse_revoked(bundle)
        recipes = checked_recipes(bundle, progress)
        settings = drivers.settings()
        progress(0, 0, "asking the driver who it is")
        with drivers.used(order.driver_root, order.device, settings.driver.probe_timeout) as used:
            stores = {table.MODELS: Path(mounts.real(order.into))}
            if order.driver_cache is not None:
                stores[driver_cache.KIND] = Path(mounts.real(order.driver_cache))
            for root in stores.values():
                _make(root)
            shard, signed = Shard(*order.shard), verdict(bundle, recipes)
            digest = bundle.index.digest
            source = _source(BundleSource(signed.signer or "", signed.key), signed, digest, recipes.manifest.digest)
            compiled = Recompiler(
                used,
                stores,
                settings.driver.compile_timeout,
                progress,
                recipes.facts.entries,
                order.driver_cache,
                order.threads,
                trusted=signed.signer is not None,
                came=lambda one, coming: came(EntriesCame(digest, source, (_compiled(one, signed),), coming)),
            )
            compiled.run(wanted(bundle, recipes, used, stores, shard))
            targets = tuple(one for one in used.driver.environments if one.kind in stores)
    nothing = not (compiled.made or compiled.present or compiled.failures)
    if nothing and shard.count == 1:
        raise WrongHost(
            "no recipe of the bundle is for a device of this driver", hint="see: xpucachectl bundle inspect"
        )
    report = BundleReplayReport(
        targets,
        order.into,
        len(compiled.made),
        compiled.present,
        tuple(compiled.failures),
        order.keep_going,
    )
    return report, (*(one.store / one.key.rpartition("/")[0] for one in compiled.made), *compiled.found)
