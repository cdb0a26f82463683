"""A bundle that is revoked here is neither taken in nor given out, though it was made or pulled earlier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import bundles
from xpucached.bundle import members, trust
from xpucached.bundle.writing import LayoutWriter
from xpucached.bundling.__main__ import carry_out
from xpucached.bundling.signing import refuse_revoked
from xpucached.domain.bundles import BundleOrder, ImportBundle, MergeBundles, PushBundle, ReplayBundle
from xpucached.errors import Conflict, Revoked

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("cryptography")

NOWHERE = "127.0.0.1:1/made:v1"
"""Nobody is asked there."""


@pytest.fixture
def keys(home: Path) -> Path:
    place = home / ".config/xpucached/trust.d"
    place.mkdir(parents=True)
    return place


def made(tmp_path: Path) -> tuple[Path, str]:
    """Return a bundle that a key has signed, and that key's digest."""
    digest = trust.key_digest(trust.keygen(tmp_path / "key"))
    return bundles.signed(tmp_path / "bundle", str(tmp_path / "key.key")), digest


def orders(bundle: Path, tmp_path: Path) -> tuple[BundleOrder, ...]:
    return (
        PushBundle(bundle, NOWHERE),
        MergeBundles((bundle,), tmp_path / "merged"),
        ImportBundle(bundle, tmp_path / "store"),
        ReplayBundle(bundle, tmp_path / "store"),
        ReplayBundle(bundle, tmp_path / "store", cluster="tcp://127.0.0.1:1"),
    )


@pytest.mark.parametrize("which", ["index", "member", "key"])
def test_whatever_of_it_is_revoked_nothing_is_done_with_it(which: str, keys: Path, tmp_path: Path) -> None:
    bundle, key = made(tmp_path)
    opened = members.opened(bundle)
    with opened.layout:
        digest = {"index": opened.index.digest, "member": opened.members[0].manifest.digest, "key": key}[which]
    (keys / "revoked").write_text(f"sha256:{'0' * 64}\n{digest}  # stolen\n")

    for order in orders(bundle, tmp_path):
        with pytest.raises(Revoked, match=digest) as caught:
            carry_out(order, lambda *_: None)
        assert str(keys) in caught.value.hint
    assert not {"merged", "store"} & {path.name for path in tmp_path.iterdir()}


def test_what_another_signed_with_it_revokes_it_only_if_nobody_else_signed(keys: Path, tmp_path: Path) -> None:
    bundle, key = made(tmp_path)
    other = trust.keygen(tmp_path / "other")
    (keys / "revoked").write_text(f"{key}\n")
    layout = LayoutWriter(tmp_path / "twice")
    opened = members.opened(bundle)
    with layout, opened.layout:
        for path in (bundle / "blobs/sha256").iterdir():
            layout.take(path, f"blobs/sha256/{path.name}")
        made_ = [one.manifest for one in opened.members]
        subjects = [opened.index, *made_]
        both = [
            trust.sign(layout, subjects, trust.private_key(str(tmp_path / f"{one}.key"))) for one in ("key", "other")
        ]
        members.put_index(layout, made_, [*both[0], *both[1]])
        layout.finish()
    twice = members.opened(tmp_path / "twice")
    with twice.layout:
        assert len(trust.signatures(twice)) == 2
        refuse_revoked(twice, outward=True)
        (keys / "revoked").write_text(f"{key}\n{trust.key_digest(other)}\n")
        with pytest.raises(Revoked):
            refuse_revoked(twice)


def test_where_nobody_knows_what_is_revoked_nothing_goes_out(keys: Path, tmp_path: Path) -> None:
    bundle, _ = made(tmp_path)
    (keys / "revoked").write_text("release\n")
    for order in orders(bundle, tmp_path)[:2]:
        with pytest.raises(Conflict, match="line 1 is no digest"):
            carry_out(order, lambda *_: None)
    opened = members.opened(bundle)
    with opened.layout:
        refuse_revoked(opened)


def test_a_signature_that_cannot_be_read_names_nothing(tmp_path: Path) -> None:
    bundle, key = made(tmp_path)
    opened = members.opened(bundle)
    with opened.layout:
        (signature,) = trust.signatures(opened)
        assert trust.named_by(signature) == {key, opened.index.digest, opened.members[0].manifest.digest}
    assert trust.named_by(signature[:-1]) == trust.named_by(b"{}") == frozenset()
