"""Whose signature counts: of the right key, over the right digests, in a form that Sigstore's tools know."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.bundles import TARGET, facts, forge, good, packed, tar
from xpucached.bundle import members, revocations, trust, words
from xpucached.bundle.layout import Descriptor
from xpucached.bundle.writing import LayoutWriter
from xpucached.bundling import signing
from xpucached.bundling.__main__ import carry_out
from xpucached.domain.bundles import ExportBundle, MakeKey, MergeBundles
from xpucached.errors import BadBundle, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("cryptography")

INDEX: Final = f"sha256:{'1' * 64}"
MEMBER: Final = f"sha256:{'2' * 64}"
OTHER: Final = f"sha256:{'3' * 64}"


def signature(place: Path, *digests: str) -> bytes:
    """Sign digests with a new key, whose public half is in the folder of trust."""
    name = place / "trust.d" / "release"
    name.parent.mkdir(exist_ok=True)
    if not name.with_suffix(".key").exists():
        trust.keygen(name)
    key = trust.private_key(str(name.with_suffix(".key")))
    with LayoutWriter(place / f"signed{len(list(place.iterdir()))}") as layout:
        subjects = [Descriptor(words.INDEX, digest, 1) for digest in digests]
        found = trust.sign(layout, subjects, key)
        assert len(found) == len(digests)
        blobs = layout.scratch.with_name("xpucached.layout") / "blobs/sha256"
        return next(text for path in blobs.iterdir() if b"dsseEnvelope" in (text := path.read_bytes()))


def store(place: Path) -> trust.TrustStore:
    return trust.trust_store([place / "trust.d"])


def test_a_trusted_key_counts_for_what_it_signed(tmp_path: Path) -> None:
    made = signature(tmp_path, INDEX, MEMBER)
    trusted = store(tmp_path)

    assert trust.verify([made], [INDEX], trusted).signer == "release"
    # A tool that copies wrote the index anew: the member is signed, too.
    assert trust.verify([made], [OTHER, MEMBER], trusted).signer == "release"
    assert trust.verify([made], [OTHER], trusted).why == "its signature is of another bundle"
    unknown = trust.verify([made], [INDEX], trust.TrustStore())
    assert unknown.why == f"its key is not trusted here: {trust.key_digest(unknown.hint)}"
    assert trust.verify([], [INDEX], trusted).why == "it is not signed"


def test_the_form_is_that_of_sigstore_and_in_toto(tmp_path: Path) -> None:
    """As `cosign verify-blob-attestation --bundle` reads it: the envelope's text, and how a key is named."""
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - an extra

    told = json.loads(signature(tmp_path, INDEX))
    assert told["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
    public = serialization.load_pem_public_key((tmp_path / "trust.d/release.pub").read_bytes())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert told["verificationMaterial"]["publicKey"]["hint"] == base64.b64encode(hashlib.sha256(der).digest()).decode()
    envelope = told["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    (one,) = envelope["signatures"]
    text = b"DSSEv1 28 application/vnd.in-toto+json " + str(len(payload)).encode() + b" " + payload
    public.verify(base64.b64decode(one["sig"]), text, ec.ECDSA(hashes.SHA256()))
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"digest": {"sha256": "1" * 64}, "name": "index"}]


def changed(change: Callable[[dict[str, object]], object]) -> Callable[[bytes], bytes]:
    def do(made: bytes) -> bytes:
        told = json.loads(made)
        change(told)
        return json.dumps(told).encode()

    return do


def envelope(told: dict[str, object]) -> dict[str, object]:
    found = told["dsseEnvelope"]
    assert isinstance(found, dict)
    return found


FORGED: Final[dict[str, Callable[[bytes], bytes]]] = {
    "another payload": changed(
        lambda told: envelope(told).update(
            payload=base64.b64encode(
                base64.b64decode(str(envelope(told)["payload"])).replace(b"1" * 64, b"3" * 64)
            ).decode()
        )
    ),
    "another payload type": changed(lambda told: envelope(told).update(payloadType="text/plain")),
    "no signature": changed(lambda told: envelope(told).update(signatures=[])),
    "two signatures": changed(lambda told: envelope(told).update(signatures=2 * list(envelope(told)["signatures"]))),  # type: ignore[call-overload]
    "no base64": changed(lambda told: envelope(told).update(payload="%%%")),
    "another form": changed(lambda told: told.update(mediaType="application/json")),
    "depth": lambda _: b"[" * 100_000,
    "nothing": lambda _: b"",
    "no object": lambda _: b"1",
    "large": lambda made: made + b" " * (5 << 20),
}


@pytest.mark.parametrize("label", FORGED)
def test_what_was_changed_is_not_signed(label: str, tmp_path: Path) -> None:
    made = FORGED[label](signature(tmp_path, INDEX))

    assert trust.verify([made], [INDEX, OTHER], store(tmp_path)).signer is None


def test_no_flipped_bit_makes_a_signature_count_for_something_else(tmp_path: Path) -> None:
    made = signature(tmp_path, INDEX)
    trusted = store(tmp_path)
    for place in range(0, 8 * len(made), 13):
        flipped = bytearray(made)
        flipped[place // 8] ^= 1 << place % 8
        assert trust.verify([bytes(flipped)], [OTHER], trusted).signer is None


def test_a_key_counts_as_far_as_it_is_limited(tmp_path: Path) -> None:
    made = signature(tmp_path, INDEX)
    folder = tmp_path / "trust.d"
    limits = folder / "release.toml"
    limits.write_text('devices = ["bmg-g21"]\n')
    assert trust.verify([made], [INDEX], store(tmp_path), "Intel BMG-G21").signer == "release"
    assert "other devices" in trust.verify([made], [INDEX], store(tmp_path), "Intel Arc A770").why
    assert "other devices" in trust.verify([made], [INDEX], store(tmp_path)).why
    today = datetime.now(UTC).date()
    limits.write_text(f"not-after = {today}\n")
    assert trust.verify([made], [INDEX], store(tmp_path)).signer == "release"
    limits.write_text(f"not-after = {today - timedelta(days=1)}\n")
    assert "counts until" in trust.verify([made], [INDEX], store(tmp_path)).why
    limits.write_text("device = 1\n")
    assert store(tmp_path).keys == ()
    limits.unlink()
    (folder / "revoked").write_text(f"{INDEX}\n")
    assert trust.verify([made], [INDEX], store(tmp_path)).why == "it is revoked here"


def test_keys_that_others_could_have_put_there_are_not_used(tmp_path: Path) -> None:
    signature(tmp_path, INDEX)
    folder = tmp_path / "trust.d"
    assert len(store(tmp_path).keys) == 1
    (folder / "release.pub").chmod(0o666)
    assert store(tmp_path).keys == ()
    assert "others can write it" in store(tmp_path).ignored[0]
    (folder / "release.pub").chmod(0o644)
    folder.chmod(0o777)
    assert (store(tmp_path).keys, bool(store(tmp_path).doubt)) == ((), True)
    folder.chmod(0o755)
    os.mkfifo(folder / "pipe.pub")
    (folder / "text.pub").write_text("no key")
    assert len(store(tmp_path).keys) == 1


def test_where_it_is_not_known_what_is_revoked_no_key_counts(tmp_path: Path) -> None:
    made = signature(tmp_path, INDEX)
    folder = tmp_path / "trust.d"
    revoked = folder / "revoked"
    revoked.write_text(f"# stolen\n\n  {MEMBER.upper().replace('SHA', 'sha')}  # of May\n")
    assert store(tmp_path).revoked == {MEMBER}
    assert trust.verify([made], [INDEX], store(tmp_path)).signer == "release"
    for text in ("1" * 64, f"{INDEX[:-1]}\n", "release\n", "\0"):
        revoked.write_text(text)
        assert "what is revoked" in trust.verify([made], [INDEX], store(tmp_path)).why, text
    revoked.write_bytes(b"\xff")
    assert trust.verify([made], [INDEX], store(tmp_path)).signer is None
    revoked.write_text(f"{MEMBER}\n")
    revoked.chmod(0o666)
    assert "others can write it" in trust.verify([made], [INDEX], store(tmp_path)).why
    # Another folder's keys do not count either: what it revokes may be of theirs.
    beside = trust.trust_store([folder, tmp_path / "none"])
    assert beside.doubt
    revoked.unlink()
    revoked.symlink_to(tmp_path / "gone")
    assert trust.verify([made], [INDEX], store(tmp_path)).signer is None


def test_a_key_is_named_in_unicode_whatever_its_file_is_called(tmp_path: Path) -> None:
    made = signature(tmp_path, INDEX)
    latin = tmp_path / os.fsdecode(b"trust.d/\xfc.pub")
    (tmp_path / "trust.d/release.pub").rename(latin)
    assert trust.verify([made], [INDEX], store(tmp_path)).signer == "\\udcfc"
    latin.write_text("none")
    assert store(tmp_path).ignored[0].encode()


def test_limits_that_cannot_be_read_are_no_limits_that_are_missing(tmp_path: Path) -> None:
    signature(tmp_path, INDEX)
    (tmp_path / "trust.d/release.toml").symlink_to(tmp_path / "gone")
    assert store(tmp_path).keys == ()


def test_a_key_that_the_library_does_not_know_is_passed_over_and_signs_nothing(tmp_path: Path) -> None:
    made = signature(tmp_path, INDEX)
    # An algorithm that nobody has: 1.2.3.4.
    unknown = base64.b64encode(bytes.fromhex("300d300506032a0304030400010203")).decode()
    (tmp_path / "trust.d/a.pub").write_text(f"-----BEGIN PUBLIC KEY-----\n{unknown}\n-----END PUBLIC KEY-----\n")
    (tmp_path / "trust.d/b.pub").write_bytes((tmp_path / "trust.d/release.pub").read_bytes())
    (tmp_path / "trust.d/b.toml").write_text(f"devices = {'[' * 10_000}{']' * 10_000}\n")
    assert trust.verify([made], [INDEX], store(tmp_path)).signer == "release"
    assert [text.partition(".pub:")[0][-1] for text in store(tmp_path).ignored] == ["a", "b"]
    secret = base64.b64encode(bytes.fromhex("3010020100300506032a0304040400010203")).decode()
    with pytest.raises(RequestError, match="cannot be used"):
        trust.private_key(f"-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n")


def test_a_password_need_not_be_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, signing.PASSWORD.encode(), b"w\xf6rd")
    carry_out(MakeKey(tmp_path / "a"), lambda *_: None)
    assert signing.signing_key(str(tmp_path / "a.key")) is not None
    with pytest.raises(RequestError, match="cannot be used"):
        trust.private_key((tmp_path / "a.key").read_text() + "\udcff", b"word")


def test_a_folder_that_is_changed_for_another_one_is_read_as_it_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature(tmp_path, INDEX)
    folder = tmp_path / "trust.d"
    look = revocations.open_to_others

    def change(found: os.stat_result) -> str:
        if not folder.is_symlink():
            folder.rename(tmp_path / "before")
            (tmp_path / "another").mkdir(exist_ok=True)
            folder.symlink_to(tmp_path / "another")
        return look(found)

    monkeypatch.setattr(revocations, "open_to_others", change)
    assert len(store(tmp_path).keys) == 1


def test_a_secret_without_its_public_half_is_not_left_behind(tmp_path: Path) -> None:
    (tmp_path / "a.pub").write_text("another key's")
    with pytest.raises(FileExistsError):
        trust.keygen(tmp_path / "a")
    assert not (tmp_path / "a.key").exists()
    assert (tmp_path / "a.pub").read_text() == "another key's"


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    trust.keygen(tmp_path / "a", b"word")
    assert (tmp_path / "a.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(RequestError, match="cannot be used"):
        trust.private_key(str(tmp_path / "a.key"))
    trust.private_key(str(tmp_path / "a.key"), b"word")
    trust.private_key((tmp_path / "a.key").read_text(), b"word")
    (tmp_path / "a.key").chmod(0o644)
    with pytest.raises(RequestError, match="can be read by others"):
        trust.private_key(str(tmp_path / "a.key"), b"word")
    with pytest.raises(FileExistsError):
        trust.keygen(tmp_path / "a")


def test_a_file_that_is_no_key_is_not_to_be_changed(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (tmp_path / "users").chmod(0o644)
    (tmp_path / "a.pub").write_text("-----BEGIN PUBLIC KEY-----\n")
    for name in ("users", "a.pub"):
        # Before anything is looked at, read or written for it.
        for order in (
            ExportBundle(tmp_path / "made", tmp_path / "no store", sign=str(tmp_path / name)),
            MergeBundles((tmp_path / "no bundle",), tmp_path / "made", sign=str(tmp_path / name)),
        ):
            with pytest.raises(RequestError, match=f"{name} is no private key") as refused:
                carry_out(order, lambda *_: None)
            assert "chmod" not in refused.value.hint
    assert not (tmp_path / "made").exists()


def test_a_signature_that_names_itself_is_none(tmp_path: Path) -> None:
    """Of manifests beside a bundle only signatures are read, and only where their digests are right."""
    plain = tar(good())
    bundle = members.opened(forge(tmp_path / "bundle", packed(plain), facts(plain)))
    with bundle.layout:
        assert trust.signatures(bundle) == []
        itself = Descriptor(words.MANIFEST, bundle.index.digest, bundle.index.size)
        bundle.roots = (*bundle.roots, itself)
        assert trust.signatures(bundle) == []
        bundle.roots = (Descriptor(words.MANIFEST, OTHER, 10),)
        with pytest.raises(BadBundle, match="is missing"):
            trust.signatures(bundle)
    assert TARGET.kind == "sycl"


def test_a_key_that_is_revoked_counts_no_more_though_it_lies_there(tmp_path: Path) -> None:
    made = signature(tmp_path, INDEX, MEMBER)
    before = trust.verify([made], [INDEX], store(tmp_path))
    assert (before.signer, before.digests) == ("release", (INDEX, MEMBER))
    (tmp_path / "trust.d/revoked").write_text(f"{OTHER}\n{before.key}  # it was stolen\n")
    after = trust.verify([made], [INDEX], store(tmp_path))
    assert (after.signer, after.why, after.key) == (None, "its key release is revoked here", "")
    # It is what openssl and sha256sum say of it.
    pem = (tmp_path / "trust.d/release.pub").read_text().splitlines()[1:-1]
    assert before.key == f"sha256:{hashlib.sha256(base64.b64decode(''.join(pem))).hexdigest()}"
