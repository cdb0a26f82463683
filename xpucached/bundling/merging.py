"""Merge: shards of a farm, or bundles of several hosts, become one; what two hold differently is refused."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from msgspec import Struct

from xpucached.bundle import members, packing, words
from xpucached.bundle.writing import LayoutWriter
from xpucached.bundling.inspecting import check
from xpucached.bundling.signing import refuse_revoked, sign_all, signed_view, signing_key
from xpucached.domain.bundles import BundleContent, BundleFacts, Compression, ExportReport
from xpucached.errors import Conflict, RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from xpucached.bundle.layout import Descriptor
    from xpucached.bundle.members import Bundle, MemberManifest
    from xpucached.bundling.progress import Progress
    from xpucached.domain.bundles import MergeBundles, RecipeLine
    from xpucached.domain.targets import Target


class _Leaf(Struct, frozen=True):
    """Where the files of a directory lie meanwhile."""

    digest: str
    source: Path


def merge(order: MergeBundles, progress: Progress) -> ExportReport:
    """Make one bundle of several; see `MergeBundles`."""
    if not order.sources:
        raise RequestError("there is nothing to merge", hint="xpucachectl bundle merge BUNDLE... DEST")
    key = signing_key(order.sign)
    how = order.compression or packing.usual()
    opened: list[Bundle] = []
    try:
        for source in order.sources:
            opened.append(members.opened(source))
            refuse_revoked(opened[-1], outward=True)
            check(opened[-1], progress)
        with LayoutWriter(order.dest) as layout:
            made = [_image(layout, how, some) for _, some in sorted(_images(opened).items())]
            recipes, count = _recipes(layout, how, opened)
            made += [] if recipes is None else [recipes]
            sign_all(layout, made, key)
            layout.finish()
    finally:
        for one in opened:
            one.layout.close()
    final = members.opened(order.dest)
    with final.layout:
        return ExportReport(signed_view(final), recipes=count)


def _images(opened: list[Bundle]) -> dict[Target, list[tuple[Bundle, MemberManifest]]]:
    found: dict[Target, list[tuple[Bundle, MemberManifest]]] = {}
    for bundle in opened:
        for one in bundle.members:
            if one.facts.target is not None:
                found.setdefault(one.facts.target, []).append((bundle, one))
    return found


def _image(layout: LayoutWriter, how: Compression, some: list[tuple[Bundle, MemberManifest]]) -> Descriptor:
    first = some[0][1].facts
    for bundle, one in some[1:]:
        same = (one.facts.compiler, one.facts.isa, one.facts.switches, one.facts.format)
        if same != (first.compiler, first.isa, first.switches, first.format):
            raise Conflict(
                f"{some[0][0].layout.path} and {bundle.layout.path} have programs for one target by other compilers",
                hint="see: xpucachectl bundle diff A B",
            )
    leaves: dict[str, _Leaf] = {}
    where: dict[str, Path] = {}
    for bundle, one in some:
        for leaf, files in bundle.leaves(one, lambda _: True):
            digest = hashlib.sha256(
                b"".join(hashlib.sha256(files[name]).digest() for name in sorted(files))
            ).hexdigest()
            if leaf in leaves and leaves[leaf].digest != digest:
                raise Conflict(f"{where[leaf]} and {bundle.layout.path} hold different programs under one name: {leaf}")
            if leaf not in leaves:
                place = layout.scratch / digest
                if not place.exists():
                    place.mkdir()
                    for name, content in files.items():
                        (place / name.rpartition("/")[2]).write_bytes(content)
                leaves[leaf], where[leaf] = _Leaf(digest, place), bundle.layout.path
    layer = layout.layer(how, words.LAYER)
    for leaf in sorted(leaves):
        for path in sorted(leaves[leaf].source.iterdir()):
            layer.add(f"{first.kind}/{leaf}/{path.name}", path.read_bytes())
    descriptor, diff_id = layer.finish()
    models = tuple(sorted({name for _, one in some for name in one.facts.models}))
    facts = BundleFacts(
        BundleContent.BINARIES,
        len(leaves),
        layer.bytes,
        diff_id,
        made_by=first.made_by,
        kind=first.kind,
        format=first.format,
        target=first.target,
        compiler=first.compiler,
        isa=first.isa,
        switches=first.switches,
        models=models,
    )
    return members.put_image(layout, descriptor, facts)


def _recipes(layout: LayoutWriter, how: Compression, opened: list[Bundle]) -> tuple[Descriptor | None, int]:
    lines: dict[tuple[str, str, str], RecipeLine] = {}
    made_by = ""
    for bundle in opened:
        for one in bundle.members:
            if one.facts.content is not BundleContent.RECIPES:
                continue
            made_by = made_by or one.facts.made_by
            for some, given in bundle.recipes(one):
                (layout.scratch / some[0].input).write_bytes(given)
                for each in some:
                    if lines.setdefault((each.kind, each.family, each.at), each) != each:
                        words_ = (
                            f"{bundle.layout.path} and another one hold different recipes under one name: {each.at}"
                        )
                        raise Conflict(words_, hint="see: xpucachectl bundle diff A B")
    if not lines:
        return None, 0
    layer = layout.layer(how, words.RECIPES_LAYER)
    layer.add(words.LINES, b"".join(members.line(lines[key]) for key in sorted(lines)))
    for name in sorted({one.input for one in lines.values()}):
        layer.add(f"{words.INPUTS}/{name}", (layout.scratch / name).read_bytes())
    descriptor, diff_id = layer.finish()
    facts = BundleFacts(BundleContent.RECIPES, len(lines), layer.bytes, diff_id, made_by=made_by)
    return members.put_recipes(layout, descriptor, facts), len(lines)
