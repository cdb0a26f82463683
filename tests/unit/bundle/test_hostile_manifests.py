"""Manifests that somebody might write: none is taken, whatever it says, and no reader fails."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import bundles
from tests.support.builders import spirv, sycl_target
from tests.support.bundles import TARGET, packed, tar
from xpucached.bundle import archive, layout, members, trust, words
from xpucached.bundle.trust import SignatureVerdict
from xpucached.bundling import signing
from xpucached.bundling.inspecting import check, diff
from xpucached.bundling.merging import merge
from xpucached.bundling.rebuilding import is_held
from xpucached.domain.bundles import BundleContent, BundleFacts, DiffBundles, MergeBundles, RecipeLine
from xpucached.domain.names import KindName
from xpucached.errors import BadBundle, Conflict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from xpucached.bundle.members import MemberManifest

    Change = Callable[[bytes], bytes]

DEEP: Final = b"[" * 100_000 + b"]" * 100_000
ZERO: Final = "sha256:" + "0" * 64


def told(change: Callable[[dict[str, object]], object]) -> Change:
    """Change an object of JSON."""

    def do(content: bytes) -> bytes:
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode()

    return do


def first(name: str, **fields: object) -> Change:
    """Change the first descriptor of a list."""
    return told(lambda value: value[name][0].update(fields))  # type: ignore[index]


def label(**fields: object) -> Change:
    """Change what a member says of itself."""

    def do(value: dict[str, object]) -> None:
        labels = value["config"]["Labels"]  # type: ignore[index]
        labels[words.FACTS] = json.dumps({**json.loads(labels[words.FACTS]), **fields})

    return told(do)


def twice(content: bytes) -> bytes:
    """Let each key of an object stand twice."""
    return content[:-1] + b"," + content[1:]


ANY: Final[dict[str, Change]] = {
    "nothing": lambda _: b"",
    "no JSON": lambda _: b"\xff\xfe{}",
    "no object": lambda _: b"[]",
    "null": lambda _: b"null",
    "depth": lambda _: DEEP,
    "depth inside": lambda _: b'{"manifests":' + DEEP + b"}",
    "keys twice": twice,
    "not a number": lambda _: b'{"manifests":NaN}',
    "digits": lambda _: b'{"manifests":' + b"9" * 100_000 + b"}",
    "half a character": lambda _: b'{"manifests":"\\ud800"}',
    "values": lambda _: b'{"manifests":[' + b"1," * 200_000 + b"1]}",
    "size": lambda content: content + b" " * words.LARGEST_JSON,
}
PARTS: Final = ("index.json", "index", "manifest", "config")
LISTS: Final = {"index.json": "manifests", "index": "manifests", "manifest": "layers"}
DESCRIPTORS: Final[dict[str, dict[str, object]]] = {
    "no digest": {"digest": ""},
    "a digest of another sort": {"digest": "sha512:" + "0" * 128},
    "a digest of capitals": {"digest": ZERO.upper()},
    "a digest that is a way": {"digest": "sha256:../../../../etc/passwd"},
    "a digest and more": {"digest": f"{ZERO}\n"},
    "what is not there": {"digest": ZERO},
    "a negative size": {"size": -1},
    "size zero": {"size": 0},
    "one byte more": {"size": 1 << 19},
    "a huge size": {"size": 1 << 63},
    "a size that is true": {"size": True},
    "a size that is text": {"size": "1"},
    "a size that is none": {"size": None},
    "a fraction": {"size": 1.5},
    "no type": {"mediaType": ""},
    "a type of capitals": {"mediaType": words.MANIFEST.upper()},
    "a type with an escape": {"mediaType": "\x1b[2J"},
    "annotations that are none": {"annotations": [1]},
}
FACTS: Final[dict[str, dict[str, object]]] = {
    "a negative number": {"entries": -1},
    "negative bytes": {"bytes": -1},
    "a huge number": {"entries": (1 << 64) - 1, "bytes": (1 << 64) - 1},
    "a fraction": {"entries": 0.5},
    "truth": {"entries": True},
    "another version": {"schema": 2},
    "version zero": {"schema": 0},
    "another content": {"content": "recipes"},
    "a content of capitals": {"content": "BINARIES"},
    "no kind": {"kind": None},
    "no target": {"target": None},
    "a target that is none": {"target": []},
    "libraries that are none": {"compiler": [["a"]]},
}
SERIES: Final[dict[str, dict[str, Change]]] = {
    **{f"{part}: {name}": {part: change} for part in PARTS for name, change in ANY.items()},
    **{
        f"{part}: {name}": {part: first(key, **fields)}
        for part, key in LISTS.items()
        for name, fields in DESCRIPTORS.items()
    },
    **{f"says: {name}": {"config": label(**fields)} for name, fields in FACTS.items()},
    "says: no JSON": {"config": told(lambda value: value["config"]["Labels"].update({words.FACTS: "{"}))},  # type: ignore[index]
    "says: depth": {"config": told(lambda value: value["config"]["Labels"].update({words.FACTS: DEEP.decode()}))},  # type: ignore[index]
    "says: nothing": {"config": told(lambda value: value["config"].pop("Labels"))},  # type: ignore[attr-defined]
    "index: empty": {"index": told(lambda value: value.update(manifests=[]))},
    "index: member twice": {"index": told(lambda value: value.update(manifests=2 * value["manifests"]))},  # type: ignore[operator]
    "index: 1000 members": {"index": told(lambda value: value.update(manifests=1000 * value["manifests"]))},  # type: ignore[operator]
    "index: another tool's type": {
        "index": first("manifests", mediaType="application/vnd.docker.distribution.manifest.v2+json")
    },
    "index.json: two indices": {"index.json": told(lambda value: value.update(manifests=2 * value["manifests"]))},  # type: ignore[operator]
    "index.json: none": {"index.json": told(lambda value: value.update(manifests=[]))},
    "index.json: a member is the index": {"index.json": first("manifests", mediaType=words.MANIFEST)},
    "manifest: two layers": {"manifest": told(lambda value: value.update(layers=2 * value["layers"]))},  # type: ignore[operator]
    "manifest: no layer": {"manifest": told(lambda value: value.update(layers=[]))},
    "manifest: its layer is its config": {"manifest": told(lambda value: value.update(layers=[value["config"]]))},
    "manifest: its config is its layer": {
        "manifest": told(lambda value: value.update(config={**value["layers"][0], "mediaType": words.CONFIG}))  # type: ignore[index]
    },
    "manifest: says that it is recipes": {"manifest": told(lambda value: value.update(artifactType=words.RECIPES))},
    "packed: nothing": {"packed": lambda _: b""},
    "packed: a manifest": {"packed": lambda _: b"{}"},
}


def read(place: Path) -> None:
    bundle = members.opened(place)
    with bundle.layout:
        check(bundle, lambda *_: None)


def test_what_was_not_changed_is_read(tmp_path: Path) -> None:
    read(bundles.write(tmp_path / "folder", bundles.layout()))
    (tmp_path / "bundle.tar").write_bytes(tar(bundles.layout()))
    read(tmp_path / "bundle.tar")


@pytest.mark.parametrize("name", SERIES)
def test_a_manifest_that_lies_is_refused_with_words(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadBundle) as caught:
        read(bundles.write(tmp_path, bundles.layout(SERIES[name])))
    assert 0 < len(caught.value.message) < 1000


def test_a_manifest_cannot_name_itself(tmp_path: Path) -> None:
    """Whatever lies under a digest is compared with it, so no name can be right that stands in what it names."""
    files = bundles.layout()
    at = next(name for name, content in files.items() if b'"layers"' in content)
    files[at] = json.dumps({**json.loads(files[at]), "config": {"digest": f"sha256:{at[-64:]}"}}).encode()

    with pytest.raises(BadBundle, match="is not what its digest says"):
        read(bundles.write(tmp_path, files))


def test_what_a_few_bytes_say_is_not_held_for_each_of_many_members(tmp_path: Path) -> None:
    files = bundles.layout({"config": label(models=["m" * 1000] * 3000)})
    (manifest,) = (content for content in files.values() if b'"layers"' in content)
    rows = []
    for number in range(words.MOST_MEMBERS):
        content = manifest + b" " * number
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        rows.append({"mediaType": words.MANIFEST, "digest": f"sha256:{digest}", "size": len(content)})
    index = json.dumps({"manifests": rows}).encode()
    digest = hashlib.sha256(index).hexdigest()
    files[f"blobs/sha256/{digest}"] = index
    top = {"mediaType": words.INDEX, "digest": f"sha256:{digest}", "size": len(index)}
    files["index.json"] = json.dumps({"manifests": [top]}).encode()

    with pytest.raises(BadBundle, match="say more than"):
        read(bundles.write(tmp_path, files))


def test_what_signs_a_bundle_is_bounded_together_as_it_is_read_for_each_member(tmp_path: Path) -> None:
    files = bundles.layout()
    roots = json.loads(files["index.json"])["manifests"]
    for number in range(3):
        row: dict[str, object] = {}
        for content in ({}, {"artifactType": trust.SIGNATURE, "layers": [row]}):
            data = json.dumps({**content, "pad": f"{number}" * (words.LARGEST_JSON // 5)}).encode()
            digest = hashlib.sha256(data).hexdigest()
            files[f"blobs/sha256/{digest}"] = data
            row |= {"mediaType": trust.SIGNATURE, "digest": f"sha256:{digest}", "size": len(data)}
        roots.append({**row, "mediaType": words.MANIFEST})
    for count in (3, 4):
        files["index.json"] = json.dumps({"manifests": roots[:count]}).encode()
        bundle = members.opened(bundles.write(tmp_path, files))
        with bundle.layout:
            if count == 3:
                assert len(trust.signatures(bundle)) == 2
            else:
                with pytest.raises(BadBundle, match="what signs"):
                    signing.signed_view(bundle)


def test_an_archive_of_folders_without_end_comes_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST_FILES", 10)
    (tmp_path / "bundle.tar").write_bytes(archive._header("blobs", 0, b"5") * 11)

    with pytest.raises(BadBundle, match="more than 10 members"):
        layout.LayoutReader(tmp_path / "bundle.tar")


# -- what is said of a bundle -----------------------------------------------------------------------------------------


def test_a_bundle_is_signed_by_whom_all_of_it_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who puts an image of his own beside one that was signed does not get its name."""
    files = bundles.layout()
    bundle = members.opened(bundles.write(tmp_path, files))
    other = sycl_target("Intel(R) OpenCL", "another", "OpenCL 3.0", "2")
    with bundle.layout:
        mine = bundle.members[0]
        theirs = type(mine)(
            mine.manifest,
            mine.layer,
            mine.compression,
            type(mine.facts)(
                **{**{name: getattr(mine.facts, name) for name in mine.facts.__struct_fields__}, "target": other}
            ),
        )
        bundle.members = (mine, theirs)
        signers: dict[object, str | None] = {TARGET: "release", other: None}

        def verdict(_: object, member: MemberManifest | None = None) -> SignatureVerdict:
            found = None if member is None else signers[member.facts.target]
            return SignatureVerdict(found, "" if found else "its signature is of another bundle")

        monkeypatch.setattr(signing, "verdict", verdict)
        view = signing.signed_view(bundle)
        assert (view.signer, view.unsigned) == (None, "only a part of it is signed, by release")
        signers[other] = "release"
        assert signing.signed_view(bundle).signer == "release"
        signers.update({TARGET: None, other: None})
        assert signing.signed_view(bundle).unsigned == "its signature is of another bundle"


def recipes(place: Path, options: bytes) -> Path:
    """Make a bundle of one recipe that has always the same name."""
    given = spirv("_ZTS1a")
    digest = hashlib.sha256(given).hexdigest()
    one = RecipeLine(KindName("neo"), "family", "0" * 32, digest, len(given), options, {"constants": "", "values": ""})
    plain = tar({words.LINES: members.line(one), f"{words.INPUTS}/{digest}": given})
    size = len(members.line(one)) + len(given)
    diff = f"sha256:{hashlib.sha256(plain).hexdigest()}"
    return bundles.forge(place, packed(plain), BundleFacts(BundleContent.RECIPES, 1, size, diff))


def test_recipes_that_two_bundles_hold_differently_are_not_merged(tmp_path: Path) -> None:
    """Whoever has a name of another's recipe would have his own signed in its place."""
    one, same, other = (recipes(tmp_path / name, text) for name, text in (("a", b"-a"), ("b", b"-a"), ("c", b"-c")))
    report = merge(MergeBundles((one, same), tmp_path / "ab"), lambda *_: None)
    assert report.recipes == 1
    # Who signed it, or why nobody did, is said of what was merged, too.
    assert (report.view.signer, report.view.unsigned) == (None, "it is not signed")
    with pytest.raises(Conflict, match="different recipes under one name"):
        merge(MergeBundles((one, other), tmp_path / "ac"), lambda *_: None)
    assert not (tmp_path / "ac").exists()


def test_bundles_are_compared_by_what_is_in_them_whatever_they_say(tmp_path: Path) -> None:
    one = bundles.write(tmp_path / "one", bundles.layout())
    liar = bundles.write(tmp_path / "liar", bundles.layout({"packed": lambda _: packed(tar(bundles.good()))[:-9]}))
    with pytest.raises(BadBundle):
        diff(DiffBundles((one, liar)), lambda *_: None)
    # Why two are not merged, it says.
    plain = tar(bundles.good())
    same = [bundles.forge(tmp_path / isa, packed(plain), bundles.facts(plain, isa=isa)) for isa in ("avx2", "avx512")]
    with pytest.raises(Conflict, match="other compilers"):
        merge(MergeBundles((same[0], same[1]), tmp_path / "both"), lambda *_: None)
    (change,) = diff(DiffBundles((same[0], same[1])), lambda *_: None).changes
    assert (change.detail, change.changed) == ("compiled for other instructions", 0)


def test_an_empty_directory_is_no_entry(tmp_path: Path) -> None:
    """What was evicted may leave one, and then it would be called there already."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/0.bin").touch()
    (tmp_path / "file").touch()
    assert [name for name in ("none", "empty", "full", "file") if is_held(tmp_path / name)] == ["full", "file"]
