"""Inspect, verify and compare bundles; nothing is written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.bundle import members
from xpucached.bundling.signing import signed_view
from xpucached.domain.bundles import BundleContent, DiffReport, InspectReport, MemberChange
from xpucached.domain.stores import Store
from xpucached.errors import BadBundle, WrongHost
from xpucached.kinds.table import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.bundle.members import Bundle, MemberManifest
    from xpucached.bundling.progress import Progress
    from xpucached.domain.bundles import DiffBundles, InspectBundle, RecipeLine
    from xpucached.domain.plans import Recipe
    from xpucached.domain.targets import Target

_NOWHERE: Final = Path("/")


def inspect(order: InspectBundle, progress: Progress) -> InspectReport:
    """Say what is in a bundle; see `InspectBundle`."""
    bundle = members.opened(order.source)
    with bundle.layout:
        if order.deep:
            check(bundle, progress)
        return InspectReport(replace(signed_view(bundle), checked=order.deep))


def recipes_in(bundle: Bundle) -> MemberManifest | None:
    """Return the part of a bundle that is recipes; None if it has none."""
    return next((one for one in bundle.members if one.facts.content is BundleContent.RECIPES), None)


def checked_recipes(bundle: Bundle, progress: Progress) -> MemberManifest:
    """Read all of a bundle whose recipes shall be compiled, and give these.  Raises `WrongHost` and `BadBundle`."""
    recipes = recipes_in(bundle)
    if recipes is None:
        raise WrongHost("the bundle has no recipes", hint="see: xpucachectl bundle inspect")
    check(bundle, progress)
    return recipes


def check(bundle: Bundle, progress: Progress) -> None:
    """Read all of a bundle.  Raises `BadBundle` if anything is not what it should be."""
    for member in bundle.members:
        check_member(bundle, member, progress)


def check_member(bundle: Bundle, member: MemberManifest, progress: Progress) -> None:
    """Read all of a member; as for `check`."""
    for done, _ in enumerate(checked(bundle, member), start=1):
        progress(done, member.facts.entries, f"reading {member.facts.content}")


def checked(bundle: Bundle, member: MemberManifest) -> Iterator[object]:
    """Yield something for each entry of a member that is in order, of recipes their lines.

    Raises `BadBundle` at the first that is not.
    """
    if member.facts.content is BundleContent.RECIPES:
        for lines, given in bundle.recipes(member):
            for line in lines:
                recipe_of(line, given)
                yield line
    else:
        yield from programs(bundle, member)


def programs(
    bundle: Bundle, member: MemberManifest, root: Path | None = None
) -> Iterator[tuple[Target, Recipe, bytes, str]]:
    """Yield the programs of an image: its target, its recipe for a store at ``root``, its bytes, and its directory.

    Raises `BadBundle` for what is not whole; what was yielded counts only when all was.
    """
    kind, target = KINDS.get(member.facts.kind) if member.facts.kind else None, member.facts.target
    if kind is None or kind.portable is None or target is None or target.kind != kind.name:
        raise BadBundle(f"the bundle has programs of a kind that is not known: {member.facts.kind}")
    if member.facts.format != kind.portable.FORMAT:
        raise BadBundle(f"programs of {kind.name} are laid out in another way: {member.facts.format!r}")
    store = Store(kind.name, root or _NOWHERE)
    for leaf, files in bundle.leaves(member, kind.portable.is_file):
        try:
            recipe, binary = kind.portable.unpack(store, target, files)
        except ValueError as error:
            raise BadBundle(f"{leaf} in the bundle: {error}") from None
        yield target, recipe, binary, leaf


def recipe_of(line: RecipeLine, given: bytes, root: Path | None = None) -> Recipe:
    """Return a recipe of a bundle, for a store at ``root``.  Raises `BadBundle`."""
    kind = KINDS.get(line.kind)
    if kind is None or kind.portable is None:
        raise BadBundle(f"the bundle has recipes of a kind that is not known: {line.kind}")
    try:
        return kind.portable.recipe(Store(kind.name, root or _NOWHERE), line, given)
    except ValueError as error:
        raise BadBundle(f"recipe {line.at} in the bundle: {error}") from None


# -- comparing --------------------------------------------------------------------------------------------------------


def diff(order: DiffBundles, progress: Progress) -> DiffReport:
    """Compare two bundles; see `DiffBundles`."""
    first, second = (members.opened(one) for one in order.sources)
    with first.layout, second.layout:
        ours, theirs = ({_which(one): one for one in each.members} for each in (first, second))
        changes: list[MemberChange] = []
        for number, key in enumerate(sorted({*ours, *theirs}, key=str)):
            progress(number, len({*ours, *theirs}), "comparing")
            one, other = ours.get(key), theirs.get(key)
            if one is None or other is None:
                there = one or other
                if there is not None:
                    words = f"{there.facts.entries} entries"
                    changes.append(MemberChange(*key, "added" if one is None else "removed", words))
            elif (change := _changed(first, one, second, other)) is not None:
                changes.append(change)
        return DiffReport(tuple(changes))


def _which(member: MemberManifest) -> tuple[BundleContent, Target | None]:
    return (member.facts.content, member.facts.target)


def _changed(first: Bundle, one: MemberManifest, second: Bundle, other: MemberManifest) -> MemberChange | None:
    """Read both, whatever they say of themselves, and say in what they differ; None if in nothing."""
    ours, theirs = _digests(first, one), _digests(second, other)
    both = ours.keys() & theirs.keys()
    added, removed = len(theirs.keys() - both), len(ours.keys() - both)
    changed = sum(ours[name] != theirs[name] for name in both)
    words = [f"{added} added, {removed} removed, {changed} with other bytes"] if added or removed or changed else []
    words += [said for name, said in _OTHERWISE.items() if getattr(one.facts, name) != getattr(other.facts, name)]
    if not words:
        return None
    return MemberChange(one.facts.content, one.facts.target, "changed", "; ".join(words), added, removed, changed)


_OTHERWISE: Final = {
    "compiler": "compiled by other libraries",
    "isa": "compiled for other instructions",
    "switches": "compiled while other variables were set",
}
"""In what programs of one target may differ that have the same bytes."""


def _digests(bundle: Bundle, member: MemberManifest) -> dict[str, str]:
    """Return a digest for each entry or recipe."""
    found: dict[str, str] = {}
    if member.facts.content is BundleContent.RECIPES:
        for lines, _ in bundle.recipes(member):
            for line in lines:
                name = f"{line.kind} {line.family} {line.at}"
                found[name] = hashlib.sha256(members.line(line)).hexdigest()
        return found
    for _, recipe, binary, leaf in programs(bundle, member):
        found[leaf] = "".join(hashlib.sha256(part).hexdigest() for part in (binary, recipe.input, recipe.options))
    return found
