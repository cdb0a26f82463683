"""Export: entries become images, one for each target, and all their recipes one more member."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from xpucached import __version__
from xpucached.bundle import members, packing, words
from xpucached.bundle.writing import LayoutWriter
from xpucached.bundling import drivers, sources
from xpucached.bundling.signing import sign_all, signed_view, signing_key
from xpucached.domain.bundles import BundleContent, BundleFacts, ExportReport, RecipeLine
from xpucached.domain.plans import NoRecipe
from xpucached.domain.stores import program_digest
from xpucached.errors import Conflict, DiskError, NotFound, RequestError
from xpucached.kinds import build_options
from xpucached.kinds.portability import Packed
from xpucached.kinds.table import KINDS
from xpucached.printing import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from xpucached.bundle.layout import Descriptor
    from xpucached.bundling.drivers import UsedDriver
    from xpucached.bundling.progress import Progress
    from xpucached.bundling.sources import Selected
    from xpucached.domain.bundles import CompilerLibrary, Compression, ExportBundle
    from xpucached.domain.names import EntryKey, KindName
    from xpucached.domain.plans import Recipe
    from xpucached.domain.stores import Entry
    from xpucached.domain.targets import Target
    from xpucached.kinds.portability import Portable
    from xpucached.settings import Settings

_NOWHERE: Final = "its place cannot be checked elsewhere"
_TWICE: Final = "another slot of the same program travels"
_ELSEWHERE: Final = "it is for another driver than the installed one"
_REVOKED: Final = "what it came with is revoked here"
_GONE: Final = "it is there no more"
_UNREAD: Final = "it cannot be read"
_REPLACED: Final = "another program lies where it was compiled"
_OWN_OPTIONS: Final = "its build options may say something of this host"


class Nothing(NotFound):
    """There is nothing to export, but for what is left out."""

    def __init__(self, message: str, *, hint: str = "", skipped: Mapping[str, int] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.skipped = dict(skipped or {})


class _Export:
    def __init__(self, order: ExportBundle, layout: LayoutWriter, chosen: Selected, progress: Progress) -> None:
        self._order = order
        self._layout = layout
        self._chosen = chosen
        self._progress = progress
        self._how: Compression = order.compression or packing.usual()
        self.skipped: Counter[str] = Counter({_REVOKED: chosen.revoked} if chosen.revoked else {})
        self.recipe_count = 0
        self.targets: set[Target | None] = set()  #: of the entries that were asked for
        self._lines: dict[tuple[KindName, str, str], RecipeLine] = {}  #: recipes that travel
        self._rest: list[Entry] = []  #: entries of whose recipes nothing is known yet
        self._inputs: dict[str, tuple[int, int]] = {}  #: where in the file of inputs each lies, by digest
        self._file = (layout.scratch / "inputs").open("x+b")

    def close(self) -> None:
        """Close what is open."""
        self._file.close()

    def images(self, used: UsedDriver) -> list[Descriptor]:
        """Write an image for each target."""
        with used.compiler_meanwhile() as compiler:
            made = (self._image(target, *some, used, compiler) for target, some in sorted(self._placed(used).items()))
            return [one for one in made if one is not None]

    def _placed(self, used: UsedDriver) -> Mapping[Target, tuple[int, Iterator[Packed]]]:
        """Return for each target how many entries there are, and they by where they travel."""
        if self._chosen.walk is not None:
            return self._chosen.walk
        by_target: defaultdict[Target, dict[EntryKey, Entry]] = defaultdict(dict)
        for entry in sorted(self._chosen.entries, key=lambda one: (one.id.key, one.id)):
            portable, target = KINDS[entry.id.store.kind].portable, entry.environment
            if portable is None or not portable.FORMAT:
                self._leave(entry)
                continue
            place = portable.place(entry.id.key)
            if place is None or target is None:
                self._leave(entry, _NOWHERE)
            elif self._order.made_here and target not in used.driver.environments:
                self._leave(entry, _ELSEWHERE)
            elif place in by_target[target]:
                self._leave(entry, _TWICE)
            else:
                by_target[target][place] = entry
        return {
            target: (len(some), map(Packed, [some[place] for place in sorted(some)]))
            for target, some in by_target.items()
        }

    def _leave(self, entry: Entry, why: str = "") -> None:
        """Leave a program; its recipe may travel."""
        if why:
            self.skipped[why] += 1
        self.targets.add(entry.environment)
        self._rest.append(entry)

    def _image(
        self,
        target: Target,
        total: int,
        some: Iterable[Packed],
        used: UsedDriver,
        compiler: Callable[[], tuple[CompilerLibrary, ...]],
    ) -> Descriptor | None:
        portable = KINDS[target.kind].portable
        if portable is None:
            return None
        layer = self._layout.layer(self._how, words.LAYER)
        count = 0
        names: set[str] = set()
        last: EntryKey | None = None
        for number, (entry, content) in enumerate(some):
            self._progress(number, total, f"programs for {target.device}")
            if entry.id in self._chosen.left_out:
                self.skipped[_REVOKED] += 1
                continue
            place = portable.place(entry.id.key)
            if place is None or entry.environment is None:
                self._leave(entry, _NOWHERE)
                continue
            if place == last:
                self._leave(entry, _TWICE)
                continue
            last = place
            try:
                files, recipe = content or portable.pack(entry)
            except ValueError as error:
                self._leave(entry, str(error).partition(":")[0])
                continue
            except OSError as error:
                self._leave(entry, _GONE if isinstance(error, FileNotFoundError) else _UNREAD)
                continue
            if self._order.made_here and (odd := _not_ours(entry, portable, target, files, recipe)):
                self._leave(entry, odd)
                continue
            for name, data in sorted(files.items()):
                layer.add(f"{target.kind}/{name}", data)
            count += 1
            self.targets.add(target)
            try:
                line = self._written(entry, portable, recipe, target)
                self._lines.setdefault((line.kind, line.family, line.at), line)
            except ValueError:
                self._leave(entry)  # then it is asked for its recipe, and said why there is none
            names.update(self._chosen.models.get(entry, ()))
        if not count:
            layer.discard()
            return None
        descriptor, diff_id = layer.finish()
        known = target in used.driver.environments
        facts = BundleFacts(
            BundleContent.BINARIES,
            count,
            layer.bytes,
            diff_id,
            made_by=__version__,
            kind=target.kind,
            format=portable.FORMAT,
            target=target,
            # Which libraries an earlier driver had, nobody knows any more.
            compiler=compiler() if known else (),
            isa=used.isa(target) if known else "",
            switches=used.switches if known else {},
            models=tuple(sorted(names)) if self._order.with_names else (),
        )
        return members.put_image(self._layout, descriptor, facts)

    def recipes(self) -> Descriptor | None:
        """Write all recipes, each once."""
        rest = self._chosen.entries if self._order.recipes_only else self._rest
        for number, entry in enumerate(rest):
            self._progress(number, len(rest), "recipes")
            line = self._line(entry)
            if line is not None:
                self._lines.setdefault((line.kind, line.family, line.at), line)
        lines = self._lines
        if not lines:
            return None
        layer = self._layout.layer(self._how, words.RECIPES_LAYER)
        layer.add(words.LINES, b"".join(members.line(lines[key]) for key in sorted(lines)))
        for name in sorted({one.input for one in lines.values()}):
            at, size = self._inputs[name]
            self._file.seek(at)
            layer.add(f"{words.INPUTS}/{name}", self._file.read(size))
        descriptor, diff_id = layer.finish()
        self.recipe_count = len(lines)
        facts = BundleFacts(BundleContent.RECIPES, len(lines), layer.bytes, diff_id, made_by=__version__)
        return members.put_recipes(self._layout, descriptor, facts)

    def _line(self, entry: Entry) -> RecipeLine | None:
        kind, target = entry.id.store.kind, entry.environment
        portable = KINDS[kind].portable
        if portable is None or target is None:
            return None
        found = self._chosen.recipe(entry)
        if isinstance(found, NoRecipe):
            self.skipped[f"no recipe: {found.words}"] += 1
            return None
        try:
            return self._written(entry, portable, found, target)
        except ValueError as error:
            self.skipped[f"no recipe: {error}"] += 1
            return None

    def _written(self, entry: Entry, portable: Portable, recipe: Recipe, target: Target) -> RecipeLine:
        """Write what a recipe compiles, once, and return its line.  Raises ValueError for what does not travel."""
        facts, lineage = portable.facts(recipe), portable.lineage(recipe)
        digest, size = hashlib.sha256(recipe.input).hexdigest(), len(recipe.input)
        line = RecipeLine(entry.id.store.kind, target.family, lineage, digest, size, recipe.options, facts)
        # Who reads the bundle would refuse all of it for one.
        portable.recipe(entry.id.store, line, recipe.input)
        if len(members.line(line)) > members.LONGEST_LINE:
            raise ValueError("its build options are too long")
        if digest not in self._inputs:
            self._inputs[digest] = (self._file.seek(0, os.SEEK_END), size)
            self._file.write(recipe.input)
        return line


def _not_ours(entry: Entry, portable: Portable, target: Target, files: Mapping[str, bytes], recipe: Recipe) -> str:
    """Say why what was read is not given out as made here, as the catalog says of an entry; empty if it is."""
    if build_options.unknown(recipe.options):
        return _OWN_OPTIONS
    _, binary = portable.unpack(entry.id.store, target, files)
    return "" if program_digest(binary).hexdigest() == entry.digest else _REPLACED


def export(order: ExportBundle, progress: Progress) -> ExportReport:
    """Write a bundle; see `ExportBundle`."""
    if order.made_here and (order.recipes_only or order.store is not None or order.driver_root is not None):
        hint = "leave out --recipes-only, --store and --driver-root"
        raise RequestError("what was made here are programs that the catalog knows", hint=hint)
    key = signing_key(order.sign)
    settings = drivers.settings()
    with contextlib.ExitStack() as stack:
        layout = stack.enter_context(LayoutWriter(order.dest))
        asking = None if order.recipes_only else stack.enter_context(_meanwhile(order, settings))
        chosen = stack.enter_context(sources.selected(order, settings))
        if not chosen.entries and not chosen.revoked and chosen.walk is None:
            raise _nothing(order)
        export_ = stack.enter_context(contextlib.closing(_Export(order, layout, chosen, progress)))
        made: list[Descriptor] = []
        notes: list[str] = []
        if asking is not None:
            progress(0, 0, "asking the driver who it is")
            used = asking()
            _check_switches(used.switches, order)
            made += export_.images(used)
            if chosen.walk is not None and not export_.targets and not export_.skipped:
                raise _nothing(order)
            foreign = export_.targets - set(used.driver.environments)
            if foreign - {None} and not order.made_here:
                notes.append(_unknown(foreign, order.model))
        recipes = None if order.made_here else export_.recipes()
        if recipes is not None:
            made.append(recipes)
        if not made:
            message = f"nothing can travel: {_words(export_.skipped)}"
            raise DiskError(message) if _UNREAD in export_.skipped else Nothing(message, skipped=export_.skipped)
        sign_all(layout, made, key)
        layout.finish()
    made_bundle = members.opened(order.dest)
    with made_bundle.layout:
        view = signed_view(made_bundle)
    return ExportReport(view, dict(export_.skipped), export_.recipe_count, tuple(notes))


def _nothing(order: ExportBundle) -> Nothing:
    origin = " --origin rebuilt" if order.made_here else ""
    return Nothing("no entry matches: there is nothing to export", hint=f"see: xpucachectl ls{origin}")


@contextlib.contextmanager
def _meanwhile(order: ExportBundle, settings: Settings) -> Iterator[Callable[[], UsedDriver]]:
    """Ask the driver while entries are looked for; give what waits for its answer."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        led = drivers.used(order.driver_root, order.pretended, settings.driver.probe_timeout)
        yield pool.submit(stack.enter_context, led).result


def _check_switches(switches: Mapping[str, str], order: ExportBundle) -> None:
    if switches and not order.allow_switches:
        raise Conflict(
            f"variables are set that change what is compiled: {', '.join(switches)}",
            hint="unset them, or say that they shall be so: --allow-switches",
        )


def _unknown(foreign: Iterable[Target | None], model: str | None) -> str:
    some = sorted({one.toolchain for one in foreign if one is not None})
    own = f'; with the variables of the model: eval "$(xpucachectl env {quoted(model)})"' if model else ""
    return (
        f"of the driver {', '.join(some)} it is not known here by which libraries it compiles: its programs are"
        " taken in nowhere, but rebuilt from their recipes (--driver-root DIR names a driver that is not installed"
        f"{own})"
    )


def _words(skipped: Mapping[str, int]) -> str:
    return "; ".join(f"{count} entries: {why}" for why, count in sorted(skipped.items())) or "no entry matches"
