"""Import: programs that a trusted key signed and that fit exactly are published; others are compiled from recipes."""

from __future__ import annotations

import os
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from xpucached.bundle import members
from xpucached.bundling import drivers
from xpucached.bundling.inspecting import check, checked_recipes, programs, recipes_in
from xpucached.bundling.rebuilding import Recompiler, Shard, is_held, wanted
from xpucached.bundling.signing import signed_view, verdict
from xpucached.domain.bundles import (
    Binaries,
    BundleContent,
    BundleReplayReport,
    ImportReport,
    MadeEntry,
    MemberTaken,
)
from xpucached.domain.stores import program_digest
from xpucached.errors import DiskError, RequestError, Unsigned, WrongHost
from xpucached.kinds import driver_cache, table
from xpucached.kinds.table import KINDS
from xpucached.planning.imports import Taking, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from xpucached.bundle.members import Bundle, MemberManifest
    from xpucached.bundle.trust import SignatureVerdict
    from xpucached.bundling.drivers import UsedDriver
    from xpucached.bundling.progress import Progress
    from xpucached.domain.bundles import CompilerLibrary, ImportBundle, ReplayBundle
    from xpucached.domain.names import KindName
    from xpucached.domain.plans import Recipe
    from xpucached.domain.targets import Target
    from xpucached.kinds.interface import Rebuilder
    from xpucached.planning.imports import Taken

_ROOM: Final = 2
"""So many times the bytes of a bundle must be free."""
_PUBLISHERS: Final = 4

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


class _Import:
    def __init__(self, order: ImportBundle, bundle: Bundle, used: UsedDriver) -> None:
        self._order = order
        self._bundle = bundle
        self._used = used
        self.stores = _stores(order.into)
        self.taken: list[tuple[MemberManifest, Taken]] = []
        self.published: list[MadeEntry] = []
        self.present = 0
        self.skipped: Counter[str] = Counter()
        self._signers: dict[str, str] = {}

    def _signed(self, member: MemberManifest) -> SignatureVerdict:
        return verdict(self._bundle, member)

    def judge_all(self, progress: Progress) -> None:
        """Read all of the bundle, and say what becomes of each image.  Raises `BadBundle` and `Unsigned`."""
        targets = self._used.driver.environments
        allowed = self._order.binaries is not Binaries.NEVER
        images = [one for one in self._bundle.members if one.facts.content is BundleContent.BINARIES]
        # To read what compiles here takes seconds, and says nothing of programs for other targets.
        if allowed and any(one.facts.target in targets for one in images):
            with self._used.compiler_meanwhile() as compiler:
                check(self._bundle, progress)
                self._decide(images, compiler(), allowed=allowed)
        else:
            check(self._bundle, progress)
            self._decide(images, (), allowed=allowed)

    def _decide(
        self, images: Sequence[MemberManifest], compiler: tuple[CompilerLibrary, ...], *, allowed: bool
    ) -> None:
        targets = self._used.driver.environments
        isa = {one: self._used.isa(one) for one in targets}
        for one in images:
            signed = self._signed(one)
            self._signers[one.manifest.digest] = signed.signer or ""
            taken = judge(one.facts, signed.signer, signed.why, targets, compiler, isa, allowed=allowed)
            self.taken.append((one, taken))
        ours = [each for _, each in self.taken if each.taking is not Taking.LEAVE]
        if self._order.binaries is Binaries.REQUIRE and not any(one.taking is Taking.PUBLISH for one in ours):
            why = next((one.why for _, one in self.taken), "it holds none")
            raise Unsigned(f"no compiled programs can be taken in: {why}", hint="leave out --binaries=require")

    def room(self) -> None:
        """See that there is room for all of it.  Raises `DiskError`."""
        need = _ROOM * sum(one.facts.bytes for one, taken in self.taken if taken.taking is Taking.PUBLISH)
        for root in set(self.stores.values()):
            there = next(one for one in (root, *root.parents) if one.exists())
            found = os.statvfs(there)
            if found.f_bavail * found.f_frsize < need:
                raise DiskError(f"{there} has less room than the {need} bytes that this takes")

    def publish(self, progress: Progress) -> None:
        """Put programs into their stores, and count those that are there already: these stay."""
        for member, taken in self.taken:
            if taken.taking is not Taking.PUBLISH or member.facts.kind is None:
                continue
            root, rebuilder = self.stores[member.facts.kind], KINDS[member.facts.kind].rebuilder
            if rebuilder is None:
                continue
            signer = self._signers.get(member.manifest.digest, "")

            def one(
                of: tuple[Target, Recipe, bytes, str],
                root: Path = root,
                rebuilder: Rebuilder = rebuilder,
                signer: str = signer,
            ) -> MadeEntry | None:
                target, recipe, binary, leaf = of
                key = None if is_held(root / leaf) else rebuilder.publish(recipe, target, binary, root)
                if key is None:
                    return None
                digest = program_digest(binary).hexdigest()
                return MadeEntry(target.kind, root, key, digest, target.family, signer=signer)

            for number, made in enumerate(_at_once(one, programs(self._bundle, member, root)), start=1):
                progress(number, member.facts.entries, "publishing")
                if made is None:
                    self.present += 1
                else:
                    self.published.append(made)


def _at_once(work: Callable[[_Given], _Made], items: Iterator[_Given]) -> Iterator[_Made]:
    """Do something with each, several at a time, and give what came of it in order; few are held at once.

    Most of it is to wait until a disk has it.
    """
    with ThreadPoolExecutor(_PUBLISHERS) as pool:
        waiting: deque[Future[_Made]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= 2 * _PUBLISHERS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:
                one.cancel()


def _stores(into: Path | None) -> Mapping[KindName, Path]:
    """Return where entries of each kind go."""
    if into is not None:
        return {table.MODELS: Path(os.path.realpath(into))}
    settings = drivers.settings()
    return {name: Path(os.path.realpath(settings.managed(name))) for name in KINDS}


def _make(root: Path) -> None:
    try:
        root.mkdir(0o755, parents=True, exist_ok=True)
        owner = root.stat().st_uid
    except OSError as error:
        raise DiskError(f"{root} cannot be made: {error.strerror}") from error
    if owner != os.geteuid():
        raise RequestError(f"{root} belongs to somebody else", hint="name a directory of your own: --into DIR")


def take_in(order: ImportBundle, progress: Progress) -> ImportReport:
    """Take a bundle in; see `ImportBundle`."""
    bundle = members.opened(order.source)
    with bundle.layout:
        progress(0, 0, "asking the driver who it is")
        settings = drivers.settings()
        with drivers.used(timeout=settings.driver.probe_timeout) as used:
            todo = _Import(order, bundle, used)
            recipes = recipes_in(bundle)
            if not used.driver.environments:
                raise WrongHost("no driver of this host offers a device", hint="see: xpucachectl devices")
            # All of it is judged before anything is used.
            todo.judge_all(progress)
            images = tuple(
                MemberTaken(one.facts.target, taken.taking, taken.why, one.facts.entries) for one, taken in todo.taken
            )
            view = replace(signed_view(bundle), checked=True)
            if order.dry_run:
                return ImportReport(view, images, dry_run=True)
            todo.room()
            for root in todo.stores.values():
                _make(root)
            todo.publish(progress)
            signer = None if recipes is None else verdict(bundle, recipes).signer
            compiled = Recompiler(
                used,
                todo.stores,
                settings.driver.compile_timeout,
                progress,
                0 if recipes is None else recipes.facts.entries,
                trusted=signer is not None,
            )
            if recipes is not None:
                if order.unattended and signer is None:
                    todo.skipped["recipes that no trusted key has signed"] += recipes.facts.entries
                else:
                    compiled.run(wanted(bundle, recipes, used, todo.stores, Shard()))
    nothing = not (todo.published or todo.present or compiled.made or compiled.present or compiled.failures)
    if nothing and not todo.skipped:
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
        made=(*todo.published, *(replace(one, signer=signer or "") for one in compiled.made)),
    )


def replay(order: ReplayBundle, progress: Progress) -> BundleReplayReport:
    """Compile the recipes of a bundle; see `ReplayBundle`."""
    return replayed(order, progress)[0]


def replayed(order: ReplayBundle, progress: Progress) -> tuple[BundleReplayReport, tuple[Path, ...]]:
    """Compile the recipes of a bundle; give the report, and where what was made, or was there, lies."""
    bundle = members.opened(order.source)
    with bundle.layout:
        recipes = checked_recipes(bundle, progress)
        settings = drivers.settings()
        progress(0, 0, "asking the driver who it is")
        with drivers.used(order.driver_root, order.device, settings.driver.probe_timeout) as used:
            stores = {table.MODELS: Path(os.path.realpath(order.into))}
            if order.driver_cache is not None:
                stores[driver_cache.KIND] = Path(os.path.realpath(order.driver_cache))
            for root in stores.values():
                _make(root)
            shard = Shard(*order.shard)
            compiled = Recompiler(
                used,
                stores,
                settings.driver.compile_timeout,
                progress,
                recipes.facts.entries,
                order.driver_cache,
                order.threads,
                trusted=verdict(bundle, recipes).signer is not None,
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
