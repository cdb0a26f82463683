"""Signatures: a DSSE envelope around an in-toto statement, as a Sigstore bundle; and whose keys are trusted here.

ECDSA on P-256 with SHA-256, by cryptography (the extra ``share``).  A statement names the index and every member,
because tools that copy bundles between registries write the index anew.  No network: keys lie in files.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
import tomllib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from xpucached import messages, reading, state_files
from xpucached.bundle import words
from xpucached.bundle.layout import Descriptor, canonical, descriptor, parsed
from xpucached.bundle.revocations import Revocations, key_folders, text
from xpucached.domain.bundles import DOMAIN
from xpucached.errors import BadBundle, MissingExtra, NotFound, RequestError
from xpucached.printing import encodable, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

    from xpucached.bundle.members import Bundle
    from xpucached.bundle.writing import LayoutWriter
    from xpucached.messages import Json

    SigningKey = EllipticCurvePrivateKey

SIGNATURE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = f"https://{DOMAIN}/bundle/v1"
_PAYLOAD: Final = "application/vnd.in-toto+json"
_EMPTY: Final = "application/vnd.oci.empty.v1+json"

_LARGEST: Final = 1 << 20
_MOST_KEYS: Final = 1000


def _library() -> ModuleType:
    try:
        import cryptography.hazmat.primitives.asymmetric.ec as found  # noqa: PLC0415 - an extra
    except ImportError:
        message = "signatures need the library cryptography, which is not installed here"
        raise MissingExtra(message, hint="in a clone: pip install '.[share]'") from None
    return found


class TrustedKey(Struct, frozen=True):
    """A key of the trust store, and what it is good for."""

    name: str  #: of its file, without the ending
    hint: str  #: base64 of the SHA-256 of its DER form
    pem: bytes
    devices: tuple[str, ...] = ()  #: parts of devices' names; empty: all
    not_after: date | None = None


class TrustStore(Struct, frozen=True):
    """Whose signatures count here."""

    keys: tuple[TrustedKey, ...] = ()
    revoked: frozenset[str] = frozenset()  #: digests
    ignored: tuple[str, ...] = ()  #: files that are not used, and why
    doubt: str = ""  #: why it is not known what is revoked: then no key counts


class SignatureVerdict(Struct, frozen=True):
    """Who signed something: the key's name, or why nobody did whom we trust."""

    signer: str | None
    why: str = ""
    hint: str = ""
    digests: tuple[str, ...] = ()  #: of all that was signed together: who revokes one of them revokes it

    @property
    def key(self) -> str:
        """The digest of the key, as it is revoked by; empty if nobody whom we trust signed it."""
        return "" if self.signer is None else key_digest(self.hint)


# -- keys -------------------------------------------------------------------------------------------------------------


def keygen(name: Path, password: bytes | None = None) -> str:
    """Make ``NAME.key`` (of the owner alone) and ``NAME.pub``; give the hint of the key.  Raises OSError."""
    ec = _library()
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - an extra

    key = ec.generate_private_key(ec.SECP256R1())
    how = form.BestAvailableEncryption(password) if password else form.NoEncryption()
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, how)
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    made: list[str] = []
    try:
        for path, content, mode in ((f"{name}.key", secret, 0o600), (f"{name}.pub", public, 0o644)):
            with os.fdopen(os.open(path, flags, mode), "wb") as file:
                made.append(path)
                file.write(content)
    except OSError:
        # A secret without its public half would be taken for that of a key that lies there already.
        for path in made:
            Path(path).unlink(missing_ok=True)
        raise
    return hint_of(key.public_key())


def private_key(given: str, password: bytes | None = None) -> SigningKey:
    """Read a signing key: PEM text, or the path of a file that nobody else can read.  Raises `RequestError`."""
    ec = _library()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - an extra

    text, shared = (os.fsencode(given), False) if "-----BEGIN" in given else _secret(Path(given))
    if _PRIVATE.search(text) is None:
        raise RequestError(f"{'this' if '-----BEGIN' in given else given} is no private key", hint=_MAKE_ONE)
    if shared:  # said only of what is a key: somebody might do as the hint says to any other file
        raise RequestError(f"{given} can be read by others: it is no secret", hint=f"chmod 600 {quoted(given)}")
    try:
        key = form.load_pem_private_key(text, password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RequestError(f"the signing key cannot be used: {error}", hint=_MAKE_ONE) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RequestError("the signing key is not one of the curve P-256", hint="xpucachectl bundle keygen NAME")
    return cast("SigningKey", key)


_MAKE_ONE: Final = "expected PKCS#8 in PEM; make one: xpucachectl bundle keygen NAME"
_PRIVATE: Final = re.compile(rb"^-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----", re.MULTILINE)


def _secret(path: Path) -> tuple[bytes, bool]:
    """Read a file that may be a key, and say whether others can read it, too.  Raises `NotFound` and `RequestError`."""
    try:
        file = state_files.stream(reading.opened(path))
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}", hint="name the file of a signing key") from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"{path} is no file", hint="name the file of a signing key")
        return file.read(_LARGEST), bool(status.st_mode & 0o077)


def hint_of(key: EllipticCurvePublicKey) -> str:
    """Return by what a signature names its key, as cosign does."""
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - an extra

    der = key.public_bytes(form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


def key_digest(hint: str) -> str:
    """Return the digest of a key, as others are written: it is the same SHA-256."""
    return f"sha256:{base64.b64decode(hint).hex()}"


# -- the trust store --------------------------------------------------------------------------------------------------


def trust_store(folders: Iterable[Path]) -> TrustStore:
    """Read the keys in these folders; a file or folder that others can write is not used.

    Where it cannot be known what is revoked, no key counts.
    """
    keys: dict[str, TrustedKey] = {}
    known, ignored = Revocations(), list[str]()
    for folder in key_folders(folders):
        known = known.also(folder)
        if folder.doubt:
            ignored.append(folder.doubt)
            continue
        names = sorted(os.listdir(folder.descriptor))
        for name in [one for one in names if one.endswith(".pub")][:_MOST_KEYS]:
            try:
                for one in _keys(folder.descriptor, name, names):
                    keys.setdefault(one.hint, one)
            except (OSError, ValueError, RecursionError) as error:
                ignored.append(encodable(f"{folder.path / name}: {error}"))
    return TrustStore(tuple(keys.values()), known.digests, tuple(ignored), known.doubt)


def _keys(folder: int, name: str, names: Sequence[str]) -> Iterator[TrustedKey]:
    ec = _library()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - an extra

    beside = f"{name.removesuffix('.pub')}.toml"
    limits = _limits(text(folder, beside)) if beside in names else ((), None)
    begin = "-----BEGIN PUBLIC KEY-----"
    _, *parts = text(folder, name).split(begin)
    if not parts:
        raise ValueError("it holds no public key in PEM")
    for part in parts:
        try:
            key = form.load_pem_public_key((begin + part).encode())
        except UnsupportedAlgorithm as error:
            raise ValueError(error) from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ValueError("a key in it is not of the curve P-256")  # noqa: TRY004 - what is wrong is the file
        pem = key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
        yield TrustedKey(encodable(name.removesuffix(".pub")), hint_of(key), pem, *limits)


def _limits(text: str) -> tuple[tuple[str, ...], date | None]:
    told = tomllib.loads(text)
    devices, until = told.get("devices", []), told.get("not-after")
    if set(told) - {"devices", "not-after"} or not isinstance(devices, list):
        raise ValueError("its .toml has other keys than devices and not-after")
    if not all(isinstance(one, str) for one in devices) or not (until is None or type(until) is date):
        raise ValueError("its .toml is no list of devices and no date")
    return tuple(devices), until


# -- signing ----------------------------------------------------------------------------------------------------------


def _encoded(kind: str, payload: bytes) -> bytes:
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)


def sign(layout: LayoutWriter, subjects: Sequence[Descriptor], key: SigningKey) -> list[Descriptor]:
    """Write a signature over all of these, and a manifest for each that refers to it; give the manifests."""
    ec = _library()
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - an extra

    statement: dict[str, Json] = {
        "_type": STATEMENT,
        "predicateType": PREDICATE,
        "predicate": {},
        "subject": [
            {"name": one.annotations.get(words.CONTENT, "index"), "digest": {"sha256": one.digest[7:]}}
            for one in subjects
        ],
    }
    payload = canonical(statement)
    signature = key.sign(_encoded(_PAYLOAD, payload), ec.ECDSA(hashes.SHA256()))
    made: dict[str, Json] = {
        "mediaType": SIGNATURE,
        "verificationMaterial": {"publicKey": {"hint": hint_of(key.public_key())}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    blob = layout.put(canonical(made), SIGNATURE)
    empty = layout.put(b"{}", _EMPTY)
    found: list[Descriptor] = []
    for one in subjects:
        manifest: dict[str, Json] = {
            "schemaVersion": 2,
            "mediaType": words.MANIFEST,
            "artifactType": SIGNATURE,
            "subject": {"mediaType": one.media_type, "digest": one.digest, "size": one.size},
            "config": empty.json(),
            "layers": [blob.json()],
            "annotations": {
                "dev.sigstore.bundle.content": "dsse-envelope",
                "dev.sigstore.bundle.predicateType": PREDICATE,
            },
        }
        found.append(layout.put(canonical(manifest), words.MANIFEST, SIGNATURE))
    return found


# -- checking ---------------------------------------------------------------------------------------------------------


def signatures(bundle: Bundle) -> list[bytes]:
    """Return all signatures that lie beside a bundle, each once.  Raises `BadBundle` for blobs that are damaged."""
    found: dict[str, bytes] = {}
    told = 0
    for one in bundle.roots:
        if one.media_type != words.MANIFEST or len(found) >= words.MOST_MEMBERS:
            continue
        told = _counted(bundle, told + one.size)
        manifest = parsed(bundle.layout.json(one))
        layers = manifest.get("layers")
        if manifest.get("artifactType") != SIGNATURE or not isinstance(layers, list) or len(layers) != 1:
            continue
        layer = descriptor(layers[0])
        if layer.media_type == SIGNATURE and layer.digest not in found:
            told = _counted(bundle, told + layer.size)
            found[layer.digest] = bundle.layout.json(layer)
    return list(found.values())


def _counted(bundle: Bundle, told: int) -> int:
    # All of it is read for each member.
    if told > words.LARGEST_JSON:
        raise BadBundle(f"what signs {bundle.layout.path} has more than {words.LARGEST_JSON} bytes")
    return told


def verify(
    found: Sequence[bytes], subjects: Sequence[str], store: TrustStore, device: str | None = None
) -> SignatureVerdict:
    """Say whether a trusted key has signed one of the subjects: digests, of which all are of the same bundle."""
    if not found:
        return SignatureVerdict(None, "it is not signed")
    if store.doubt:
        return SignatureVerdict(None, store.doubt)
    verdicts = [_verify(one, subjects, store, device) for one in found]
    return next((one for one in verdicts if one.signer is not None), verdicts[0])


def _verify(signature: bytes, subjects: Sequence[str], store: TrustStore, device: str | None) -> SignatureVerdict:
    ec = _library()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - an extra

    try:
        envelope, hint = _opened(signature)
        key = next((one for one in store.keys if one.hint == hint), None)
        if key is None:
            return SignatureVerdict(None, f"its key is not trusted here: {key_digest(hint)}{_unused(store)}", hint)
        payload = base64.b64decode(messages.text(envelope, "payload", longest=_LARGEST), validate=True)
        (one,) = messages.items(envelope, "signatures", most=1)
        signed = base64.b64decode(messages.text(messages.members(one), "sig", longest=1000), validate=True)
        public = serialization.load_pem_public_key(key.pem)
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return SignatureVerdict(None, "its key is of another kind", hint)
        public.verify(signed, _encoded(_PAYLOAD, payload), ec.ECDSA(hashes.SHA256()))
        return _about(payload, subjects, store, key, device)
    except InvalidSignature:
        return SignatureVerdict(None, "its signature is not of that key, or of something else")
    except (messages.BadMessage, BadBundle, binascii.Error, ValueError) as error:
        return SignatureVerdict(None, f"its signature cannot be read: {error}")


def _unused(store: TrustStore) -> str:
    """Say which file of a key is not used, and why: it may be the one that is missed."""
    if not store.ignored:
        return ""
    more = f" (and {len(store.ignored) - 1} more)" if len(store.ignored) > 1 else ""
    return f"; not used{more}: {store.ignored[0]}"


def _opened(signature: bytes) -> tuple[Mapping[str, Json], str]:
    whole = parsed(signature)
    material = messages.members(whole.get("verificationMaterial"))
    hint = messages.text(messages.members(material.get("publicKey")), "hint", longest=100)
    envelope = messages.members(whole.get("dsseEnvelope"))
    if whole.get("mediaType") != SIGNATURE or envelope.get("payloadType") != _PAYLOAD:
        raise BadBundle("it is of another form")
    return envelope, hint


def named_by(signature: bytes) -> frozenset[str]:
    """Return the digests that a signature names: of its key, and of what it is of; whoever made it."""
    try:
        envelope, hint = _opened(signature)
        payload = base64.b64decode(messages.text(envelope, "payload", longest=_LARGEST), validate=True)
        return frozenset({key_digest(hint), *_subjects(parsed(payload))})
    except (messages.BadMessage, BadBundle, binascii.Error, ValueError):
        return frozenset()


def _subjects(said: Mapping[str, Json]) -> set[str]:
    named: set[str] = set()
    for one in messages.items(said, "subject", most=2 * words.MOST_MEMBERS):
        digest = messages.text(messages.members(messages.members(one).get("digest")), "sha256", longest=64)
        named.add(f"sha256:{digest}")
    return named


def _about(
    payload: bytes, subjects: Sequence[str], store: TrustStore, key: TrustedKey, device: str | None
) -> SignatureVerdict:
    """Judge what was signed, once it is known that it was."""
    said = parsed(payload)
    if said.get("_type") != STATEMENT or said.get("predicateType") != PREDICATE:
        return SignatureVerdict(None, "what was signed is no statement about a bundle", key.hint)
    named = _subjects(said)
    if not named.intersection(subjects):
        return SignatureVerdict(None, "its signature is of another bundle", key.hint)
    if key_digest(key.hint) in store.revoked:
        return SignatureVerdict(None, f"its key {key.name} is revoked here", key.hint)
    if store.revoked.intersection(named) or store.revoked.intersection(subjects):
        return SignatureVerdict(None, "it is revoked here", key.hint)
    if key.not_after is not None and datetime.now(UTC).date() > key.not_after:
        return SignatureVerdict(None, f"its key {key.name} counts until {key.not_after} only", key.hint)
    if key.devices and (device is None or not any(one.casefold() in device.casefold() for one in key.devices)):
        return SignatureVerdict(None, f"its key {key.name} counts for other devices", key.hint)
    return SignatureVerdict(key.name, hint=key.hint, digests=tuple(sorted(named.union(subjects))))
