"""Push and pull: a bundle goes into a registry as it is, and comes from there only as what its digests say."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.bundle import members, trust, words
from xpucached.bundle.layout import Descriptor, canonical, descriptor, digest_of, parsed
from xpucached.bundle.writing import LayoutWriter
from xpucached.bundling.inspecting import check
from xpucached.bundling.signing import refuse_revoked, signed_view
from xpucached.bundling.staging import staging
from xpucached.domain.bundles import PullReport, PushReport
from xpucached.errors import (
    AlreadyThere,
    BadBundle,
    DiskError,
    NotFound,
    RequestError,
    Unsigned,
)
from xpucached.processes import scratch
from xpucached.registry import accounts, part, reference
from xpucached.registry.client import Delivery, Registry
from xpucached.registry.login import Login
from xpucached.registry.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from xpucached.bundle.members import Bundle
    from xpucached.bundling.progress import Progress
    from xpucached.domain.bundles import PullBundle, PushBundle, RegistryAccess
    from xpucached.messages import Json
    from xpucached.registry.reference import Reference

_MOST_SIGNATURES: Final = 16
"""Of one manifest; a registry may list what it likes."""
_MOST_LISTED: Final = 64
"""So many of what is listed for one manifest are looked at."""
_LARGEST_SIGNATURE: Final = 64 << 10
_ROOM: Final = 64 << 20
"""Bytes that others keep when a bundle is pulled."""


def _registry(where: Reference, access: RegistryAccess, scopes: tuple[str, ...]) -> Registry:
    transport = Transport(ca_file=access.ca_file, plain_http=access.plain_http, patience=access.patience)
    login = Login(where, transport, lambda: accounts.account(where, os.environ), scopes, access.token_host)
    login.begin()
    return Registry(where, transport, login)


def _blobs(manifest: Mapping[str, Json]) -> list[Descriptor]:
    """Return what a manifest is made of."""
    layers = manifest.get("layers")
    found = [manifest.get("config"), *(layers if isinstance(layers, list) else [])]
    if len(found) > words.MOST_MEMBERS:
        raise BadBundle(f"a manifest names {len(found)} blobs")
    return [descriptor(one) for one in found]


def current(text: str, access: RegistryAccess) -> tuple[Reference, str]:
    """Ask a registry what a reference means now; give it with the digest.  Raises what `pull` does."""
    where = reference.parse(text)
    if where.digest:
        return where, where.digest
    registry = _registry(where, access, (f"repository:{where.repository}:pull",))
    return where, digest_of(registry.manifest(where.ref))


# -- push -------------------------------------------------------------------------------------------------------------


class _Push:
    def __init__(self, order: PushBundle, bundle: Bundle, registry: Registry, progress: Progress) -> None:
        self._bundle = bundle
        self._registry = registry
        self._progress = progress
        self._mount_from = order.mount_from
        self._done: set[str] = set()
        self.deliveries: list[Delivery] = []
        self.bytes = 0

    def manifest(self, of: Descriptor) -> None:
        """Send a manifest, after what it is made of."""
        data = self._bundle.layout.json(of)
        for one in _blobs(parsed(data)):
            if one.digest not in self._done:
                self._done.add(one.digest)
                self._blob(one)
        self._registry.put_manifest(data, of.media_type, of.digest)

    def _blob(self, of: Descriptor) -> None:
        def tell(done: int) -> None:
            self._progress(done >> 10, of.size >> 10, f"sending {of.digest[7:19]}")

        with self._bundle.layout.blob(of) as blob:
            how = self._registry.send(of.digest, of.size, blob, tell, self._mount_from)
        self.deliveries.append(how)
        self.bytes += of.size if how is Delivery.SENT else 0


def _signatures(bundle: Bundle) -> Iterator[tuple[str, Descriptor, frozenset[str]]]:
    """Yield what lies beside a bundle and signs it or a part of it, with the digest of that, and what it names."""
    inside = {bundle.index.digest, *(one.manifest.digest for one in bundle.members)}
    for one in bundle.roots:
        if one.media_type != words.MANIFEST:
            continue
        manifest = parsed(bundle.layout.json(one))
        subject = manifest.get("subject")
        if manifest.get("artifactType") == trust.SIGNATURE and isinstance(subject, dict):
            of = descriptor(subject).digest
            if of in inside:
                _, *layers = _blobs(manifest)
                named = trust.named_by(bundle.layout.json(layers[0])) if len(layers) == 1 else frozenset()
                yield of, Descriptor(one.media_type, one.digest, one.size, trust.SIGNATURE), named


def _named_there(registry: Registry, of: str, progress: Progress) -> set[frozenset[str]]:
    """Return what the signatures of a manifest name that a registry has; nothing where one is damaged there."""
    with contextlib.suppress(BadBundle, NotFound), scratch.directory() as place:
        blobs = Path(place, "blobs/sha256")
        blobs.mkdir(parents=True)
        _Pull(registry, Path(place), progress).signatures(of)
        return {trust.named_by(one.read_bytes()) for one in blobs.iterdir()} - {frozenset()}
    return set()


def _is_there(registry: Registry, tag: str, bundle: Bundle, progress: Progress) -> bool:
    """Return whether a tag names a bundle already, and whose key signed it here has signed it there."""
    ours = set(map(trust.named_by, trust.signatures(bundle))) - {frozenset()}
    with contextlib.suppress(NotFound):
        if digest_of(registry.manifest(tag)) == bundle.index.digest:
            return ours <= _named_there(registry, bundle.index.digest, progress)
    return False


def push(order: PushBundle, progress: Progress) -> PushReport:
    """Copy a bundle into a registry; see `PushBundle`."""
    where = reference.parse(order.reference)
    if where.digest:
        raise RequestError("a bundle is pushed under a tag, not a digest", hint="HOST/REPOSITORY:TAG")
    bundle = members.opened(order.source)
    with bundle.layout:
        refuse_revoked(bundle, outward=True)
        scopes = [f"repository:{where.repository}:pull,push"]
        if order.mount_from:
            scopes.append(f"repository:{reference.parse(f'{where.host}/{order.mount_from}').repository}:pull")
        progress(0, 0, f"asking {where.host}")
        registry = _registry(where, order.access, tuple(scopes))
        if order.if_changed and _is_there(registry, where.tag, bundle, progress):
            return PushReport(where.text, bundle.index.digest, 0, 0, 0, 0, 0)
        todo = _Push(order, bundle, registry, progress)
        for member in bundle.members:
            todo.manifest(member.manifest)
        index = bundle.layout.json(bundle.index)
        registry.put_manifest(index, bundle.index.media_type, bundle.index.digest)
        signatures = list(_signatures(bundle))
        known = {of: _named_there(registry, of, progress) for of in {of for of, _, _ in signatures}}
        lacking: list[tuple[str, dict[str, Json]]] = []
        for of, one, named in signatures:
            # Who signs a bundle again makes another signature, which says the same.
            if named not in known[of]:
                todo.manifest(one)
                lacking.append((of, one.json()))
                known[of] |= {named} - {frozenset()}
        registry.refer(lacking, trust.SIGNATURE)
        # The tag comes last: who finds it finds all of it.
        registry.put_manifest(index, bundle.index.media_type, where.tag)
        count = todo.deliveries.count
        return PushReport(
            where.text,
            bundle.index.digest,
            count(Delivery.SENT),
            count(Delivery.MOUNTED),
            count(Delivery.PRESENT),
            todo.bytes,
            len(signatures),
        )


# -- pull -------------------------------------------------------------------------------------------------------------


class _Pull:
    def __init__(self, registry: Registry, place: Path, progress: Progress) -> None:
        self._registry = registry
        self._place = place
        self._progress = progress
        self.names: set[str] = set()  #: digests of all that belongs to it, without ``sha256:``
        self._told = 0
        self._counted: set[str] = set()
        self.fetched = self.kept = 0

    def keep(self, data: bytes) -> str:
        """Keep a manifest; give its digest."""
        digest = digest_of(data)
        self._count(len(data))
        path = self._path(digest)
        beside = path.with_name(f"{path.name}.new")
        beside.write_bytes(data)
        beside.rename(path)
        return digest

    def manifest(self, of: Descriptor) -> dict[str, Json]:
        """Get a manifest that another one names."""
        data = self._registry.manifest(of.digest)
        if len(data) != of.size:
            raise BadBundle(f"a manifest has {len(data)} bytes, and not the {of.size} that are said of it: {of.digest}")
        self.keep(data)
        return parsed(data)

    def told(self, blobs: Sequence[Descriptor]) -> None:
        """Get what is small: configs and signatures."""
        for one in blobs:
            if one.size > words.LARGEST_JSON:
                raise BadBundle(f"a blob that should be small has {one.size} bytes: {one.digest}")
            if one.digest not in self._counted:
                # One signature may stand beside each member.
                self._counted.add(one.digest)
                self._count(one.size)
            self._blob(one)

    def layers(self, bundle: Bundle) -> None:
        """Get the layers.  Raises `DiskError` before any comes if there is no room for all."""
        layers = [one.layer for one in bundle.members]
        for one in layers:
            if one.size > words.LARGEST_BLOB:
                raise BadBundle(f"a layer of the bundle has {one.size} bytes")
        found = os.statvfs(self._place)
        need = sum(map(self._to_come, layers))
        if found.f_bavail * found.f_frsize < need + _ROOM:
            raise DiskError(f"{self._place} has less room than the {need} bytes of the bundle, and some to spare")
        for one in layers:
            self._blob(one)

    def _to_come(self, layer: Descriptor) -> int:
        """Return how many bytes of a layer are not there yet; what came of it lies beside."""
        path = self._file(layer.digest)
        came = next((one.stat().st_size for one in (path, part.beside(path)) if one.exists()), 0)
        return layer.size - came if came <= layer.size else layer.size

    def _count(self, size: int) -> None:
        """Bound what is taken before anybody's signature counts."""
        self._told += size
        if self._told > words.LARGEST_TOLD:
            raise BadBundle(f"the bundle says more than {words.LARGEST_TOLD} bytes of itself")

    def _blob(self, one: Descriptor) -> None:
        if one.digest[7:] in self.names:
            return
        path = self._path(one.digest)
        if self._is_there(path, one):
            self.kept += one.size
            return

        def tell(done: int) -> None:
            self._progress(done >> 10, one.size >> 10, f"fetching {one.digest[7:19]}")

        came = self._registry.fetch(one.digest, one.size, path, tell)
        self.fetched += came
        self.kept += max(0, one.size - came)

    def _path(self, digest: str) -> Path:
        self.names.add(digest[7:])
        return self._file(digest)

    def _file(self, digest: str) -> Path:
        return self._place / "blobs/sha256" / digest[7:]

    def _is_there(self, path: Path, of: Descriptor) -> bool:
        """Return whether an earlier one got it, whole."""
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return False
        if f"sha256:{found}" == of.digest:
            return True
        path.unlink()
        return False

    def signatures(self, of: str) -> list[Descriptor]:
        """Get what signs a manifest: of what is listed last, and first one each of those that say the same."""
        before = set(self.names)
        found: dict[str, tuple[Descriptor, list[Descriptor], frozenset[str]]] = {}
        for listed in reversed(self._registry.referrers(of, trust.SIGNATURE)[-_MOST_LISTED:]):
            one = descriptor(listed)
            # Tools that copy may drop the type from the list: then the manifest says it.
            if one.media_type != words.MANIFEST or one.artifact_type not in {"", trust.SIGNATURE}:
                continue
            if one.size > _LARGEST_SIGNATURE or one.digest in found:
                continue
            try:
                manifest = self.manifest(one)
            except NotFound:
                continue  # what is deleted there stays in a list
            subject = manifest.get("subject")
            if manifest.get("artifactType") != trust.SIGNATURE or not isinstance(subject, dict):
                continue
            if descriptor(subject).digest == of:
                blobs = _blobs(manifest)
                self.told(blobs)
                named = trust.named_by(self._file(blobs[-1].digest).read_bytes())
                signature = Descriptor(words.MANIFEST, one.digest, one.size, trust.SIGNATURE)
                found[one.digest] = signature, blobs, named
        seen = Counter[frozenset[str]]()
        ranked: list[tuple[int, str]] = []
        for digest, (_, _, named) in found.items():
            ranked.append((seen[named], digest))
            seen[named] += 1
        taken = [found[digest] for _, digest in sorted(ranked, key=itemgetter(0))[:_MOST_SIGNATURES]]
        inside = (each.digest[7:] for one, blobs, _ in taken for each in (one, *blobs))
        self.names = before.union(inside)
        return [one for one, _, _ in taken]


def pull(order: PullBundle, progress: Progress) -> PullReport:
    """Copy a bundle from a registry; see `PullBundle`."""
    where = reference.parse(order.reference)
    with staging(order.dest) as place:
        if os.path.lexists(order.dest):
            raise AlreadyThere(f"{order.dest} is there already", hint="remove it first, or name another place")
        progress(0, 0, f"asking {where.host}")
        registry = _registry(where, order.access, (f"repository:{where.repository}:pull",))
        todo = _Pull(registry, place, progress)
        # The tag is asked for once: it may be moved meanwhile.
        data = registry.manifest(where.ref)
        top = Descriptor(words.INDEX, todo.keep(data), len(data), annotations={words.REF_NAME: "bundle"})
        listed = parsed(data).get("manifests")
        if not isinstance(listed, list) or not 0 < len(listed) <= words.MOST_MEMBERS:
            raise BadBundle(f"{where.text} is no bundle: it lists no members")
        inside = [descriptor(one) for one in listed]
        for one in inside:
            todo.told(_blobs(todo.manifest(one))[:1])
        signatures = [each for one in (top, *inside) for each in todo.signatures(one.digest)][: words.MOST_MEMBERS]
        everything: dict[str, Json] = {
            "schemaVersion": 2,
            "mediaType": words.INDEX,
            "manifests": [one.json() for one in (top, *signatures)],
        }
        own = {"oci-layout": canonical({"imageLayoutVersion": "1.0.0"}), "index.json": canonical(everything)}
        for name, content in own.items():
            (place / name).write_bytes(content)
        bundle = members.opened(place)
        with bundle.layout:
            # Who signed it says what it is worth before the rest comes, and who signed nothing sends none.
            view = signed_view(bundle)
            if order.signed and view.signer is None:
                raise Unsigned(f"{where.text} is not fetched: {view.unsigned}", hint="see docs/bundles.md: Signing")
            todo.layers(bundle)
            # All of it is read before it has its name.
            check(bundle, progress)
        with LayoutWriter(order.dest) as layout:
            for digest in sorted(todo.names):
                layout.take(place / "blobs/sha256" / digest, f"blobs/sha256/{digest}")
            layout.put_file("index.json", own["index.json"])
            layout.finish()
    final = members.opened(order.dest)
    with final.layout:
        view = replace(signed_view(final), checked=True)
        return PullReport(view, where.text, todo.fetched, todo.kept, len(signatures))
