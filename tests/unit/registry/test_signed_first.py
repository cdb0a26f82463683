"""What a registry has is judged by its signatures before any layer comes, and so is how much it would be."""

from __future__ import annotations

import functools
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support import bundles
from tests.unit.registry.test_small_registry import QUICK, push
from xpucached.bundle import members, words
from xpucached.bundle.trust import keygen, signatures
from xpucached.bundling import fetching
from xpucached.bundling import registries as bundling
from xpucached.bundling.merging import merge
from xpucached.domain.bundles import MergeBundles, PullBundle, RegistryAccess
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


@pytest.mark.parametrize("api", [True, False], ids=["api", "tag"])
def test_what_another_key_signed_anew_goes_out_and_comes_although_the_bundle_is_the_same(
    registry: SmallRegistry, bundle: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, api: bool
) -> None:
    """A key was withdrawn: hosts that trust the next one alone take nothing of what the first one signed."""
    registry.api = api
    trusted(home, bundle.parent / "key.pub")
    push(registry, bundle)
    folder, text = tmp_path / "folder", f"{registry.host}/caches/app:v1"
    folder.mkdir()
    # What is fetched goes over TLS.
    monkeypatch.setattr(fetching, "RegistryAccess", functools.partial(RegistryAccess, plain_http=True))

    def fetched() -> tuple[str, bool, int]:
        told = fetching._fetched(text, folder, lambda *_: None)
        (place,) = folder.iterdir()
        opened = members.opened(place)
        with opened.layout:
            assert told.path in {place, None}
            return told.error, told.new, len(signatures(opened))

    assert [fetched(), fetched()] == [("", True, 1), ("", False, 1)]
    (home / ".config/xpucached/trust.d/key.pub").unlink()
    keygen(tmp_path / "next")
    shutil.copy(tmp_path / "next.pub", home / ".config/xpucached/trust.d")
    error, new, count = fetched()
    # It stays: whoever trusts the first key again has it.
    assert ("is not trusted here" in error, new, count) == (True, False, 1)

    anew = bundles.signed(tmp_path / "anew", str(tmp_path / "next.key"))
    first, again = push(registry, anew, if_changed=True), push(registry, anew, if_changed=True)
    assert (first.signatures, again.signatures) == (2, 0)
    assert push(registry, bundle, if_changed=True).signatures == 0
    assert [fetched(), fetched()] == [("", True, 2), ("", False, 2)]


@pytest.mark.parametrize("api", [True, False], ids=["api", "tag"])
def test_signatures_that_say_the_same_do_not_pile_up_and_hide_no_other(
    registry: SmallRegistry, bundle: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, api: bool
) -> None:
    """A bundle that is built each night is the same, and signed anew each time."""
    registry.api = api
    keygen(tmp_path / "next")

    def again(key: Path, number: int) -> None:
        push(registry, bundles.signed(tmp_path / f"{number}", str(key)))

    def signs() -> int:
        return len(
            {name for name, (data, _) in registry.manifests.items() if b"dsse-envelope" in data and "-" not in name}
        )

    for number in range(3):
        again(bundle.parent / "key.key", number)
    assert signs() == 2
    # As they lie there from before.
    with monkeypatch.context() as earlier:
        earlier.setattr(bundling, "_named_there", lambda *_: set())
        for number in range(3, 20):
            again(bundle.parent / "key.key", number)
    assert signs() == 2 * 18
    again(tmp_path / "next.key", 20)
    trusted(home, tmp_path / "next.pub")
    order = PullBundle(f"{registry.host}/caches/app:v1", tmp_path / "dest", QUICK, signed=True)
    told = bundling.pull(order, lambda *_: None)
    assert (told.view.signer, told.signatures) == ("next", 2 * 16)
    opened = members.opened(tmp_path / "dest")
    with opened.layout:
        assert len(signatures(opened)) == 16


def test_a_list_of_signatures_that_has_grown_too_long_is_read_from_its_end(
    registry: SmallRegistry, bundle: Path, home: Path, tmp_path: Path
) -> None:
    registry.api = False
    push(registry, bundle)
    for name, (data, media) in [*registry.manifests.items()]:
        if name.startswith("sha256-"):
            listed = json.loads(data)
            listed["manifests"] *= 1200
            registry.manifests[name] = json.dumps(listed).encode(), media
    trusted(home, bundle.parent / "key.pub")
    keygen(tmp_path / "next")
    push(registry, bundles.signed(tmp_path / "anew", str(tmp_path / "next.key")))
    order = PullBundle(f"{registry.host}/caches/app:v1", tmp_path / "dest", QUICK, signed=True)
    told = bundling.pull(order, lambda *_: None)
    assert (told.view.signer, told.signatures) == ("key", 2 * 2)


def test_a_signature_that_was_deleted_there_and_is_still_listed_hides_no_other(
    registry: SmallRegistry, bundle: Path, home: Path, tmp_path: Path
) -> None:
    registry.api = False
    push(registry, bundle)
    gone = {name for name, (data, _) in registry.manifests.items() if b"dsse-envelope" in data}
    keygen(tmp_path / "next")
    push(registry, bundles.signed(tmp_path / "anew", str(tmp_path / "next.key")))
    registry.manifests = {name: said for name, said in registry.manifests.items() if name not in gone}
    trusted(home, tmp_path / "next.pub")
    order = PullBundle(f"{registry.host}/caches/app:v1", tmp_path / "dest", QUICK, signed=True)
    told = bundling.pull(order, lambda *_: None)
    assert (told.view.signer, told.signatures) == ("next", 2)


def test_a_fetch_that_never_comes_to_its_end_leaves_no_more_each_time(
    registry: SmallRegistry, bundle: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag names another bundle each night, and the unit that fetches it ends before all of it came."""
    trusted(home, bundle.parent / "key.pub")
    monkeypatch.setattr(fetching, "RegistryAccess", functools.partial(RegistryAccess, plain_http=True))
    folder, text = tmp_path / "folder", f"{registry.host}/caches/app:v1"
    (folder / "0123456789ab-by-hand").mkdir(parents=True)

    def ended(_: int, __: int, words_: str) -> None:
        if words_.startswith("fetching"):
            raise KeyboardInterrupt

    plain, left = bundles.tar(bundles.good()), set[str]()
    for night in "abb":
        if not (tmp_path / night).exists():
            twin = bundles.forge(tmp_path / f"{night}1", bundles.packed(plain), bundles.facts(plain, made_by=night))
            merge(MergeBundles((twin,), tmp_path / night, sign=str(bundle.parent / "key.key")), lambda *_: None)
        push(registry, tmp_path / night)
        with pytest.raises(KeyboardInterrupt):
            fetching._fetched(text, folder, ended)
        (name,) = {path.name for path in folder.iterdir()} - {"0123456789ab-by-hand"}
        assert name.endswith(".pulling")
        left.add(name)
    assert len(left) == 2
    assert fetching._fetched(text, folder, lambda *_: None).new


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
        # What signs all of it lies beside each part, and comes once.
        said = sum(one.stat().st_size for one in (bundle / "blobs/sha256").iterdir() if f"sha256:{one.name}" not in its)
        here.setattr(words, "LARGEST_TOLD", said)
        bundling.pull(PullBundle(f"{registry.host}/caches/app:v1", tmp_path / "all", QUICK), lambda *_: None)
        here.setattr(words, "LARGEST_TOLD", said - 1)
        refused(registry, its, tmp_path, BadBundle, "of itself")
    with monkeypatch.context() as here:
        here.setattr(bundling, "_ROOM", 1 << 60)
        refused(registry, its, tmp_path, DiskError, "has less room")
    with monkeypatch.context() as here:
        here.setattr(words, "LARGEST_BUNDLE", 10)
        refused(registry, its, tmp_path, BadBundle, "more than 10")
