"""What a registry has is judged by its signatures before any layer comes, and so is how much it would be."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support import bundles
from tests.unit.registry.test_small_registry import QUICK, push
from xpucached.bundle import members, words
from xpucached.bundling import registries as bundling
from xpucached.domain.bundles import PullBundle
from xpucached.errors import BadBundle, DiskError, Unsigned

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.registries import SmallRegistry


def trusted(home: Path, key: Path) -> None:
    folder = home / ".config/xpucached/trust.d"
    folder.mkdir(parents=True)
    shutil.copy(key, folder)


def layers(bundle: Path) -> list[str]:
    opened = members.opened(bundle)
    with opened.layout:
        return [one.layer.digest for one in opened.members]


def refused(registry: SmallRegistry, its: list[str], tmp_path: Path, why: type[Exception], words_: str) -> None:
    """See that a bundle is refused before its layer is asked for, and leaves nothing."""
    registry.seen.clear()
    order = PullBundle(f"{registry.host}/caches/app:v1", tmp_path / "dest", QUICK, signed=True)
    with pytest.raises(why, match=words_):
        bundling.pull(order, lambda *_: None)
    assert registry.paths("GET", "/manifests/")
    assert [path for one in its for path in registry.paths("GET", one)] == []
    assert not (tmp_path / "dest").exists()


def test_what_no_trusted_key_signed_is_refused_before_a_layer_comes(
    registry: SmallRegistry, bundle: Path, home: Path, tmp_path: Path
) -> None:
    push(registry, bundle)
    refused(registry, layers(bundle), tmp_path, Unsigned, "not fetched: its key is not trusted here")
    assert not (tmp_path / ".dest.pulling").exists()
    trusted(home, bundle.parent / "key.pub")
    order = PullBundle(f"{registry.host}/caches/app:v1", tmp_path / "dest", QUICK, signed=True)
    assert bundling.pull(order, lambda *_: None).view.signer == "key"
    assert [len(registry.paths("GET", one)) for one in layers(bundle)] == [1]


def test_what_is_unsigned_or_signed_in_part_is_refused(registry: SmallRegistry, home: Path, tmp_path: Path) -> None:
    plain = bundles.tar(bundles.good())
    unsigned = bundles.forge(tmp_path / "unsigned", bundles.packed(plain), bundles.facts(plain))
    push(registry, unsigned)
    refused(registry, layers(unsigned), tmp_path, Unsigned, "not fetched: it is not signed")


def test_how_much_is_said_and_how_much_room_there_is_is_seen_before_a_layer_comes(
    registry: SmallRegistry, bundle: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(registry, bundle)
    trusted(home, bundle.parent / "key.pub")
    its = layers(bundle)
    with monkeypatch.context() as here:
        here.setattr(words, "LARGEST_TOLD", 1000)
        refused(registry, its, tmp_path, BadBundle, "says more than 1000 bytes of itself")
    with monkeypatch.context() as here:
        here.setattr(bundling, "_ROOM", 1 << 60)
        refused(registry, its, tmp_path, DiskError, "has less room")
    with monkeypatch.context() as here:
        here.setattr(words, "LARGEST_BUNDLE", 10)
        refused(registry, its, tmp_path, BadBundle, "more than 10")
