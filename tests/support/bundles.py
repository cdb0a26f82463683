"""Bundles that somebody might make: around whatever layer, with digests that are right."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from tests.support.builders import framed, native, spirv, string_hash, sycl_target
from xpucached.bundle import members, packing, words
from xpucached.bundle.layout import Descriptor, canonical
from xpucached.bundle.writing import LayoutWriter
from xpucached.domain.bundles import BundleContent, BundleFacts, Compression
from xpucached.domain.names import KindName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from xpucached.domain.targets import Target

TARGET: Final = sycl_target("Intel(R) OpenCL", "CPU", "OpenCL 3.0", "2")
OPTIONS: Final = b"-cl-std=CL3.0"
HOW: Final = packing.usual()


def leaf(kernel: str = "_ZTS1a", target: Target = TARGET) -> tuple[str, bytes, bytes]:
    """Make an entry as a runtime would: its directory, its program, its source."""
    version = dict(target.facts)["version"]
    identity = f"{target.family}/{target.device}/{version}/{target.toolchain}".encode()
    image = spirv(kernel)
    source = framed(identity, OPTIONS, b"", image)
    path = "/".join(str(string_hash(one)) for one in (identity, image, b"", OPTIONS))
    program = native(300)
    return path, struct.pack("<QQ", 1, len(program)) + program, source


def good() -> dict[str, bytes]:
    """Return what is in the layer of one entry."""
    path, program, source = leaf()
    return {f"sycl/{path}/0.bin": program, f"sycl/{path}/0.src": source}


def tar(files: Mapping[str, bytes]) -> bytes:
    """Write an archive as the writer does."""
    from xpucached.bundle.archive import ArchiveWriter  # noqa: PLC0415 - what others use is the bytes

    out = io.BytesIO()
    writer = ArchiveWriter(out.write)
    for name, content in sorted(files.items()):
        writer.add(name, content)
    writer.finish()
    return out.getvalue()


def made(*members_: tuple[str, bytes, bytes, Mapping[str, object]], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """Write an archive as others do: names, types, contents, and what else stands in the heads."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, kind, content, fields in members_:
            head = tarfile.TarInfo(name)
            head.type, head.size = kind, len(content)
            for key, value in fields.items():
                setattr(head, key, value)
            archive.addfile(head, io.BytesIO(content))
    return out.getvalue()


def packed(plain: bytes, how: Compression = HOW) -> bytes:
    """Compress a layer as the writer does."""
    one = packing.compressor(how)
    return one.compress(plain) + one.flush()


def facts(plain: bytes, **more: object) -> BundleFacts:
    """Say of a layer of one entry what is right."""
    content = good()
    told: dict[str, object] = {
        "content": BundleContent.BINARIES,
        "entries": 1,
        "bytes": sum(map(len, content.values())),
        "diff_id": f"sha256:{hashlib.sha256(plain).hexdigest()}",
        "kind": KindName("sycl"),
        "format": "dirs-v1",
        "target": TARGET,
        **more,
    }
    return BundleFacts(**told)  # type: ignore[arg-type]


def forge(place: Path, layer: bytes, told: BundleFacts, how: Compression = HOW) -> Path:
    """Make a bundle around a layer, whatever that is; all digests are right."""
    with LayoutWriter(place) as layout:
        digest = hashlib.sha256(layer).hexdigest()
        layout.put_file(f"blobs/sha256/{digest}", layer)
        recipes = told.content is BundleContent.RECIPES
        media = f"{words.RECIPES_LAYER if recipes else words.LAYER}+{how}"
        described = Descriptor(media, f"sha256:{digest}", len(layer))
        put = members.put_recipes if recipes else members.put_image
        members.put_index(layout, [put(layout, described, told)])
        layout.finish()
    return place


def layout(changes: Mapping[str, Callable[[bytes], bytes]] | None = None) -> dict[str, bytes]:
    """Return the files of a bundle of one entry, of which some parts are changed; all digests are right.

    Parts are ``layer`` (the archive), ``packed``, ``config``, ``manifest``, ``index`` and ``index.json``.
    """
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    changes = changes or {}

    def part(name: str, content: bytes) -> bytes:
        return changes.get(name, bytes)(content)

    def put(name: str, content: bytes, media: str) -> Descriptor:
        content = part(name, content)
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        return Descriptor(media, f"sha256:{digest}", len(content))

    plain = part("layer", tar(good()))
    layer = put("packed", packed(plain, Compression.GZIP), f"{words.LAYER}+{Compression.GZIP}")
    told = msgspec.to_builtins(facts(plain))
    labels = {"config": {"Labels": {words.FACTS: canonical(told).decode()}}}
    config = put("config", canonical(labels), words.CONFIG)  # type: ignore[arg-type] # of JSON all the same
    manifest = put("manifest", canonical({"config": config.json(), "layers": [layer.json()]}), words.MANIFEST)
    index = put("index", canonical({"manifests": [manifest.json()]}), words.INDEX)
    files["index.json"] = part("index.json", canonical({"manifests": [index.json()]}))
    return files


def write(place: Path, files: Mapping[str, bytes]) -> Path:
    """Write the files of a bundle into a folder."""
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return place


def content(root: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def bomb(begin: bytes, size: int) -> bytes:
    """Compress some bytes, and then so many zeros, as gzip."""
    one = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    return one.compress(begin) + b"".join(one.compress(piece) for _ in range(size >> 20)) + one.flush()


def signed(place: Path, key: str) -> Path:
    """Make a bundle of one entry that a key has signed."""
    from xpucached.bundle import trust  # noqa: PLC0415 - needs an extra
    from xpucached.bundling.signing import sign_all  # noqa: PLC0415 - as above

    plain = tar(good())
    layer = packed(plain)
    with LayoutWriter(place) as layout_:
        digest = hashlib.sha256(layer).hexdigest()
        layout_.put_file(f"blobs/sha256/{digest}", layer)
        described = Descriptor(f"{words.LAYER}+{HOW}", f"sha256:{digest}", len(layer))
        member = members.put_image(layout_, described, facts(plain))
        sign_all(layout_, [member], trust.private_key(key))
        layout_.finish()
    return place
