"""The members of a bundle: what their manifests say, and the files in their layers."""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from xpucached import messages
from xpucached.bundle import archive, packing, words
from xpucached.bundle.layout import Descriptor, LayoutReader, canonical, descriptor, digest_of, parsed
from xpucached.domain.bundles import (
    PREFIX,
    SCHEMA,
    BundleContent,
    BundleFacts,
    BundleMember,
    BundleView,
    Compression,
    RecipeLine,
)
from xpucached.errors import BadBundle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from xpucached.bundle.writing import LayoutWriter
    from xpucached.messages import Json

_INPUT: Final = re.compile(rf"{words.INPUTS}/[0-9a-f]{{64}}\Z", re.ASCII)
LONGEST_LINE: Final = 256 << 10
_MOST_FACTS: Final = 16
_RECIPE: Final = msgspec.json.Decoder(RecipeLine)
_FACTS: Final = msgspec.json.Decoder(BundleFacts)
_IMAGE_LAYERS: Final = {f"{words.LAYER}+{how}": how for how in Compression}
_RECIPE_LAYERS: Final = {f"{words.RECIPES_LAYER}+{how}": how for how in Compression}


class MemberManifest(Struct, frozen=True):
    """A member of a bundle: its manifest, its layer, and what it says of itself."""

    manifest: Descriptor
    layer: Descriptor
    compression: Compression
    facts: BundleFacts

    @property
    def view(self) -> BundleMember:
        """What people are shown of it."""
        return BundleMember(self.manifest.digest, self.layer.size, self.compression, self.facts)


# -- writing ----------------------------------------------------------------------------------------------------------


def put_image(layout: LayoutWriter, layer: Descriptor, facts: BundleFacts) -> Descriptor:
    """Write what makes a layer an ordinary image, which anything can mount."""
    config = layout.put(
        canonical(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Labels": {words.FACTS: canonical(_json(facts)).decode()}},
                "rootfs": {"type": "layers", "diff_ids": [facts.diff_id]},
            }
        ),
        words.CONFIG,
    )
    notes = {words.CONTENT: facts.content.value}
    if facts.target is not None:
        notes |= {f"{PREFIX}.device": facts.target.device, f"{PREFIX}.driver": facts.target.toolchain}
    manifest: dict[str, Json] = {
        "schemaVersion": 2,
        "mediaType": words.MANIFEST,
        "config": config.json(),
        "layers": [layer.json()],
        "annotations": dict(notes),
    }
    short = {words.CONTENT: facts.content.value}
    return layout.put(canonical(manifest), words.MANIFEST, annotations=short, platform=True)


def put_recipes(layout: LayoutWriter, layer: Descriptor, facts: BundleFacts) -> Descriptor:
    """Write the manifest of recipes."""
    config = layout.put(canonical(_json(facts)), words.RECIPES_CONFIG)
    notes = {words.CONTENT: facts.content.value}
    manifest: dict[str, Json] = {
        "schemaVersion": 2,
        "mediaType": words.MANIFEST,
        "artifactType": words.RECIPES,
        "config": config.json(),
        "layers": [layer.json()],
        "annotations": dict(notes),
    }
    return layout.put(canonical(manifest), words.MANIFEST, words.RECIPES, notes)


def put_index(layout: LayoutWriter, members: Sequence[Descriptor], more: Sequence[Descriptor] = ()) -> Descriptor:
    """Write the bundle's index, and the layout's list, in which more may stand."""
    index: dict[str, Json] = {
        "schemaVersion": 2,
        "mediaType": words.INDEX,
        "manifests": [one.json() for one in members],
    }
    top = layout.put(canonical(index), words.INDEX, annotations={words.REF_NAME: "bundle"})
    listed: dict[str, Json] = {
        "schemaVersion": 2,
        "mediaType": words.INDEX,
        "manifests": [one.json() for one in (top, *more)],
    }
    layout.put_file("index.json", canonical(listed))
    return top


def _json(facts: BundleFacts) -> Json:
    told: Json = msgspec.to_builtins(facts)
    return told


def line(of: RecipeLine) -> bytes:
    """Write one recipe as a line."""
    made: dict[str, Json] = {
        "kind": of.kind,
        "family": of.family,
        "at": of.at,
        "input": of.input,
        "size": of.size,
        "options": base64.b64encode(of.options).decode(),
    }
    if of.facts:
        made["facts"] = dict(of.facts)
    return canonical(made) + b"\n"


# -- reading ----------------------------------------------------------------------------------------------------------


class Bundle:
    """A bundle in a layout, with all of its manifests read."""

    def __init__(self, layout: LayoutReader) -> None:
        """Read the manifests.  Raises `BadBundle`."""
        self.layout = layout
        self.roots = tuple(_listed(layout.top()))
        indices = [one for one in self.roots if one.media_type == words.INDEX]
        if len(indices) != 1:
            raise BadBundle(f"{layout.path} holds {len(indices)} indices; a bundle has one")
        self.index = indices[0]
        listed = _listed(parsed(layout.json(self.index)))
        # Whatever were passed over would have been read by nobody, and yet be called whole.
        if not 0 < len(listed) <= words.MOST_MEMBERS:
            raise BadBundle(f"{layout.path} has {len(listed)} members; a bundle has 1 to {words.MOST_MEMBERS}")
        strange = next((one.media_type for one in listed if one.media_type != words.MANIFEST), None)
        if strange is not None:
            raise BadBundle(f"a member of the bundle is of a type that is not known: {strange[:80]!r}")
        self._told = 0
        self.members = tuple(map(self._member, listed))
        if len({(one.facts.content, one.facts.target) for one in self.members}) != len(self.members):
            raise BadBundle(f"{layout.path} has recipes, or programs for one target, twice")

        size = sum(one.layer.size for one in self.members)
        if size > words.LARGEST_BUNDLE:
            raise BadBundle(f"{layout.path} has layers of {size} bytes, more than {words.LARGEST_BUNDLE}")

    @property
    def view(self) -> BundleView:
        """What people are shown of it."""
        return BundleView(self.layout.path, self.index.digest, tuple(one.view for one in self.members))

    def _member(self, of: Descriptor) -> MemberManifest:
        manifest = parsed(self.layout.json(of))
        layers = _listed(manifest, "layers")
        if len(layers) != 1:
            raise BadBundle(f"a member of the bundle has {len(layers)} layers; each has one")
        config = descriptor(manifest.get("config"))
        told = self.layout.json(config)
        recipes = manifest.get("artifactType") == words.RECIPES
        known = _RECIPE_LAYERS if recipes else _IMAGE_LAYERS
        how = known.get(layers[0].media_type)
        if how is None or config.media_type != (words.RECIPES_CONFIG if recipes else words.CONFIG):
            raise BadBundle(f"a member of the bundle is of a type that is not known: {layers[0].media_type[:80]!r}")
        # A few bytes may be named by all members, and be held for each.
        self._told += len(told)
        if self._told > words.LARGEST_JSON:
            raise BadBundle(f"the members of the bundle say more than {words.LARGEST_JSON} bytes of themselves")
        facts = _facts(told if recipes else _label(told))
        if recipes != (facts.content is BundleContent.RECIPES):
            raise BadBundle("a member of the bundle says that it is something else")
        return MemberManifest(of, layers[0], how, facts)

    # -- what is in the layers ----------------------------------------------------------------------------------------

    def leaves(self, member: MemberManifest, is_file: Callable[[str], bool]) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Yield the directories of an image that hold files, each with its files, below the kind's folder.

        ``is_file`` says which names there may be.  What was yielded counts only when all was: raises `BadBundle`.
        """
        top = f"{member.facts.kind}/"

        def named(name: str) -> bool:
            return name.startswith(top) and is_file(name[len(top) :])

        def above(name: str) -> bool:
            return name + "/" == top or (name.startswith(top) and _is_plain(name))

        waiting: dict[str, bytes] = {}
        where, count, size = "", 0, 0
        for name, content in self._files(member, named, above):
            leaf = name[len(top) :].rpartition("/")[0]
            if leaf != where and waiting:
                yield where, waiting
                waiting, count = {}, count + 1
            where = leaf
            waiting[name[len(top) :]] = content
            size += len(content)
        if waiting:
            yield where, waiting
            count += 1
        _compare(member, count, size)

    def recipes(self, member: MemberManifest) -> Iterator[tuple[tuple[RecipeLine, ...], bytes]]:
        """Yield each input, and the recipes that are compiled from it; as for `leaves`."""
        lines: dict[str, list[RecipeLine]] | None = None
        count, size = 0, 0
        for name, content in self._files(member, _is_recipe, lambda one: one == words.INPUTS):
            size += len(content)
            if lines is None:
                if name != words.LINES:
                    raise BadBundle("recipes without a list")
                lines = _lines(content, member.facts.entries)
                count = sum(map(len, lines.values()))
                continue
            digest = name.rpartition("/")[2]
            its = lines.pop(digest, None)
            if its is None:
                raise BadBundle(f"an input belongs to no recipe: {digest}")
            if digest_of(content) != f"sha256:{digest}" or any(one.size != len(content) for one in its):
                raise BadBundle(f"an input is not what its name says: {digest}")
            yield tuple(its), content
        if lines:
            raise BadBundle(f"recipes without what they are compiled from: {next(iter(lines))}")
        _compare(member, count, size)

    def _files(
        self, member: MemberManifest, is_file: Callable[[str], bool], is_folder: Callable[[str], bool]
    ) -> Iterator[tuple[str, bytes]]:
        most = words.most_unpacked(member.layer.size)
        with self.layout.blob(member.layer) as blob:
            plain = packing.reader(blob, member.compression, most)
            yield from archive.files(plain, is_file, is_folder)
            if plain.digest() != member.facts.diff_id:
                raise BadBundle("a layer holds something else than its member says")


def _is_recipe(name: str) -> bool:
    return name == words.LINES or _INPUT.match(name) is not None


def _is_plain(name: str) -> bool:
    """Return whether a folder's name has nothing in it that names of files here have not."""
    return re.fullmatch(r"[A-Za-z0-9_./-]{1,200}", name, re.ASCII) is not None and ".." not in name and "//" not in name


def _compare(member: MemberManifest, count: int, size: int) -> None:
    if (count, size) != (member.facts.entries, member.facts.bytes):
        said = f"{member.facts.entries} entries of {member.facts.bytes} bytes"
        raise BadBundle(f"a member of the bundle says that it has {said}, and has {count} of {size}")


def _listed(of: dict[str, Json], name: str = "manifests") -> list[Descriptor]:
    try:
        found = messages.items(of, name, most=2 * words.MOST_MEMBERS)
    except messages.BadMessage as error:
        raise BadBundle(f"a manifest of the bundle cannot be read: {error}") from None
    return [descriptor(one) for one in found]


def _label(config: bytes) -> bytes:
    try:
        labels = messages.members(messages.members(parsed(config).get("config") or {}).get("Labels") or {})
    except messages.BadMessage as error:
        raise BadBundle(f"the config of an image cannot be read: {error}") from None
    text = labels.get(words.FACTS)
    if not isinstance(text, str):
        raise BadBundle("an image of the bundle does not say what it holds")
    return text.encode()


def _facts(told: bytes) -> BundleFacts:
    parsed(told)  # within bounds, before anything follows it
    try:
        facts = _FACTS.decode(told)
    except msgspec.MsgspecError as error:
        raise BadBundle(f"a member of the bundle says of itself what cannot be: {error}") from None
    if facts.schema != SCHEMA:
        raise BadBundle(f"the bundle was made by another version: schema {facts.schema}, known is {SCHEMA}")
    for_ = (facts.kind is not None, facts.target is not None)
    if for_ != ((facts.content is BundleContent.BINARIES,) * 2):
        raise BadBundle("an image of the bundle does not say what its programs are for")
    if not (0 <= facts.entries <= words.MOST_FILES and 0 <= facts.bytes <= words.LARGEST_LAYER):
        raise BadBundle(f"a member of the bundle says that it has {facts.entries} entries of {facts.bytes} bytes")
    return facts


def _lines(content: bytes, said: int) -> dict[str, list[RecipeLine]]:
    """Read the list of recipes, of which it is said how many there are; give them by what they are compiled from."""
    # Before it is taken apart: of tiny lines, what they are taken apart into is twenty times as large.
    if (count := content.count(b"\n")) != said:
        raise BadBundle(f"a member of the bundle says that it has {said} recipes, and has {count}")
    found: dict[str, list[RecipeLine]] = {}
    last: tuple[str, str, str] | None = None
    for text in io.BytesIO(content):
        if len(text) > LONGEST_LINE:
            raise BadBundle(f"a recipe cannot be read: it has {len(text)} bytes")
        try:
            one = _RECIPE.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadBundle(f"a recipe cannot be read: {error}") from None
        # Each is held until its input comes, and takes ten times its bytes.
        if len(one.facts) > _MOST_FACTS:
            raise BadBundle(f"a recipe has {len(one.facts)} facts, more than any")
        # So it holds nothing else, and nothing twice.
        if line(one) != text:
            raise BadBundle("a recipe is not written as recipes are")
        if last is not None and (one.kind, one.family, one.at) <= last:
            raise BadBundle("recipes are not in order, or one stands there twice")
        last = (one.kind, one.family, one.at)
        found.setdefault(one.input, []).append(one)
    return found


def opened(path: Path) -> Bundle:
    """Open a bundle; whoever does closes its layout.  Raises `NotFound`, `BadBundle` and `DiskError`."""
    try:
        layout = LayoutReader(path)
    except BadBundle as error:
        words = error.message if str(path) in error.message else f"{path} is no bundle, or not whole: {error.message}"
        raise BadBundle(words, hint="expected a folder or a tar file that xpucachectl bundle export made") from error
    try:
        return Bundle(layout)
    except BadBundle as error:
        layout.close()
        raise BadBundle(f"{path}: {error.message}", hint=error.hint) from error
    except BaseException:
        layout.close()
        raise
