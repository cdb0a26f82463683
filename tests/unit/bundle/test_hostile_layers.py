"""Layers that somebody might make of a bundle: none is taken, and nothing is written."""

from __future__ import annotations

import hashlib
import struct
import tarfile
import tracemalloc
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.builders import framed, spirv, string_hash
from tests.support.bundles import HOW, OPTIONS, bomb, facts, forge, good, made, packed, tar
from xpucached.binaries import formats
from xpucached.bundle import members, packing, words
from xpucached.bundling.inspecting import check
from xpucached.domain.bundles import BundleContent, BundleFacts, Compression, RecipeLine
from xpucached.domain.names import KindName
from xpucached.errors import BadBundle
from xpucached.kinds.sycl import entry_format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

GOOD: Final = good()
(BIN, PROGRAM), (SRC, SOURCE) = sorted(GOOD.items())
LEAF: Final = BIN.rpartition("/")[0]
PLAIN: Final = tar(GOOD)
FILE, FOLDER = tarfile.REGTYPE, tarfile.DIRTYPE


def one(name: str, kind: bytes = FILE, **fields: object) -> bytes:
    return made((name, kind, PROGRAM if kind == FILE else b"", fields))


def head(name: str = BIN, size: str = f"{len(PROGRAM):011o}\0", kind: bytes = b"0", content: bytes = PROGRAM) -> bytes:
    """Write a member by hand."""
    block = bytearray(512)
    folder, _, last = name.rpartition("/")
    block[:100] = last.encode().ljust(100, b"\0")
    block[345:500] = folder.encode().ljust(155, b"\0")
    block[100:124] = b"0000644\0" + b"0000000\0" * 2
    block[124:148] = size.encode().ljust(12, b"\0") + b"00000000000\0"
    block[156:157], block[257:265], block[148:156] = kind, b"ustar\x0000", b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + content + bytes(-len(content) % 512)


NAMES: Final = {
    "absolute": "/etc/cron.d/x",
    "dotdot": "sycl/../../../../tmp/pwned",
    "dotdot at the end": f"{LEAF}/..",
    "dot": f"./{BIN}",
    "double slash": BIN.replace("/", "//", 1),
    "backslash": "sycl\\..\\x",
    "newline": f"{BIN}\n",
    "digits of another script": BIN.replace("1", "\u0661", 1),
    "escape": "sycl/\x1b[2Jx",
    "another file": f"{LEAF}/sitecustomize.py",
    "a lock": f"{LEAF}/0.lock",
    "a birth time": f"{LEAF}/0_access_time.txt",
    "the mark of an eviction": "sycl/sycl_eviction_in_progress",
    "the size file's lock": "sycl/cache_size.txt.lock",
    "our staging": "sycl/.xpucached/x",
    "a higher slot": f"{LEAF}/1.bin",
    "a leading zero": f"sycl/0{BIN[5:]}",
    "21 digits": "sycl/" + "1" * 21 + "/1/1/1/0.bin",
    "compiled from source": "sycl/ext_kernel_compiler/k/ir.bin",
    "case twin": BIN.replace("sycl", "SYCL").replace("bin", "BIN"),
    "another kind's": "neo/1/2/1234567812345678.cl_cache",
}
TYPES: Final = {
    "symbolic link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "character device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
    "contiguous file": tarfile.CONTTYPE,
}


def replaced(**files: bytes) -> bytes:
    return tar({BIN: files.get("program", PROGRAM), SRC: files.get("source", SOURCE)})


def elsewhere() -> bytes:
    """Make an entry of another environment, in its right place."""
    identity = b"Intel(R) OpenCL/other/OpenCL 3.0/1"
    path = "/".join(str(string_hash(each)) for each in (identity, spirv("_ZTS1a"), b"", OPTIONS))
    source = framed(identity, OPTIONS, b"", spirv("_ZTS1a"))
    return tar({f"sycl/{path}/0.bin": PROGRAM, f"sycl/{path}/0.src": source})


def specialised() -> bytes:
    """Make an entry with specialization constants, in its right place."""
    identity = SOURCE[8 : 8 + int.from_bytes(SOURCE[:8], "little")]
    path = "/".join(str(string_hash(each)) for each in (identity, spirv("_ZTS1a"), b"\1", OPTIONS))
    source = framed(identity, OPTIONS, b"\1", spirv("_ZTS1a"))
    return tar({f"sycl/{path}/0.bin": PROGRAM, f"sycl/{path}/0.src": source})


LAYERS: Final[Mapping[str, bytes]] = {
    **{f"name: {label}": one(name) for label, name in NAMES.items()},
    **{
        f"type: {label}": one(BIN, kind, linkname="../../../../etc/passwd", devmajor=1, devminor=1)
        for label, kind in TYPES.items()
    },
    "type: folder that is a link": made(
        ("sycl", tarfile.SYMTYPE, b"", {"linkname": "/tmp"}), (BIN, FILE, PROGRAM, {}), (SRC, FILE, SOURCE, {})
    ),
    "type: file and folder mixed up": made((BIN, FOLDER, b"", {}), (SRC, FILE, SOURCE, {})),
    "pax: long name": made((f"{LEAF}/" + "../" * 60 + "x", FILE, PROGRAM, {}), form=tarfile.PAX_FORMAT),
    "pax: size": made((BIN, FILE, PROGRAM, {"pax_headers": {"size": "99999999999"}}), form=tarfile.PAX_FORMAT),
    "pax: path": made((BIN, FILE, PROGRAM, {"pax_headers": {"path": "/etc/x"}}), form=tarfile.PAX_FORMAT),
    "gnu: long name": made((f"{LEAF}/" + "a" * 300, FILE, PROGRAM, {}), form=tarfile.GNU_FORMAT),
    "gnu: size in base 256": PLAIN[:3072] + b"\x80" + bytes(10) + b"\x05" + PLAIN[3084:],
    "gnu: sparse": head(kind=b"S") + bytes(1024),
    "solaris: attributes": head(kind=b"X") + bytes(1024),
    "gnu: volume label": head(kind=b"V", content=b"", size="0") + bytes(1024),
    "size: negative": head(size="-0000000001") + bytes(1024),
    "size: 8 GiB": head(size="77777777777", content=b"") + bytes(1024),
    "size: not octal": head(size="0x10") + bytes(1024),
    "cut: in a file": PLAIN[: PLAIN.index(PROGRAM) + 100],
    "cut: behind the end": PLAIN[:-300],
    "cut: no end": PLAIN[:512],
    "cut: nothing": b"",
    "more: text behind the end": PLAIN + b"x" * 512,
    "more: an archive behind the end": PLAIN + PLAIN,
    "more: a megabyte of zeros behind the end": PLAIN + bytes(1 << 20),
    "checksum": PLAIN[:100] + b"0000777\0" + PLAIN[108:],
    "twice": made((BIN, FILE, PROGRAM, {}), (BIN, FILE, PROGRAM, {}), (SRC, FILE, SOURCE, {})),
    "not in order": made((SRC, FILE, SOURCE, {}), (BIN, FILE, PROGRAM, {})),
    "half an entry": made((BIN, FILE, PROGRAM, {})),
    "hidden between members": head()[: 512 + len(PROGRAM)] + b"evil" * 40 + bytes(1024),
    "in another place": tar({name.replace(BIN[5:10], "12345", 1): content for name, content in GOOD.items()}),
    "for another environment": elsewhere(),
    "specialization constants": specialised(),
    "program: two in a frame": replaced(program=struct.pack("<Q", 2) + PROGRAM[8:]),
    "program: too long a frame": replaced(program=struct.pack("<QQ", 1, len(PROGRAM)) + PROGRAM[16:]),
    "program: nothing": replaced(program=b""),
    "program: cut short": replaced(program=struct.pack("<QQ", 1, 100) + PROGRAM[16:116]),
    "source: absurd length": replaced(source=struct.pack("<Q", 1 << 62) + SOURCE[8:]),
    "source: more behind": replaced(source=SOURCE + b"x"),
    "source: nothing": replaced(source=b""),
    "20,000 empty members": b"".join(
        head(name=f"sycl/{number + 10**9}/1/1/1/0.bin", size="0", content=b"") for number in range(20_000)
    ),
}

assert len(LAYERS) >= 60


def refused(place: Path, layer: bytes, plain: bytes, how: Compression = HOW) -> str:
    """Read a bundle around a layer to its end; give why it is refused."""
    place /= "there"
    place.mkdir()
    bundle = members.opened(forge(place / "bundle", layer, facts(plain), how))
    with bundle.layout, pytest.raises(BadBundle) as caught:
        check(bundle, lambda *_: None)
    assert [path.name for path in place.iterdir()] == ["bundle"]
    return caught.value.message


def test_a_good_one_is_taken(tmp_path: Path) -> None:
    bundle = members.opened(forge(tmp_path / "bundle", packed(PLAIN), facts(PLAIN)))

    with bundle.layout:
        check(bundle, lambda *_: None)


@pytest.mark.parametrize("label", LAYERS)
def test_a_layer_that_the_writer_would_not_have_made_is_refused(label: str, tmp_path: Path) -> None:
    assert refused(tmp_path, packed(LAYERS[label]), LAYERS[label])


def test_a_layer_is_compressed_once_and_wholly(tmp_path: Path) -> None:
    whole = packed(PLAIN, Compression.GZIP)
    damaged = bytes([*whole[:-6], whole[-6] ^ 1, *whole[-5:]])
    wrong = {
        "more": whole + b"x",
        "twice": whole + whole,
        "cut": whole[:-4],
        "checksum": damaged,
        "empty": b"",
        "noise": hashlib.shake_128(b"noise").digest(4096),
        "plain": PLAIN,
    }
    for label, layer in wrong.items():
        (tmp_path / label).mkdir()
        assert refused(tmp_path / label, layer, PLAIN, Compression.GZIP), label


@pytest.mark.skipif(packing.zstd() is None, reason="zstd is not installed: pip install 'xpucached[share]'")
def test_a_zstd_layer_is_one_frame_of_a_small_window(tmp_path: Path) -> None:
    zstd = packing.zstd()
    assert zstd is not None
    parameter = zstd.CompressionParameter
    whole = packed(PLAIN, Compression.ZSTD)
    skipped = struct.pack("<II", 0x184D2A50, 100) + bytes(100)
    wide = zstd.ZstdCompressor(options={parameter.window_log: 27, parameter.enable_long_distance_matching: 1})
    wrong = {
        "window": wide.compress(PLAIN) + wide.flush(),
        "hidden before": skipped + whole,
        "hidden behind": whole + skipped,
        "two frames": whole + zstd.compress(b"more"),
        "cut": whole[:-20],
        "checksum": whole[:-1] + bytes([whole[-1] ^ 1]),
        "gzip": packed(PLAIN, Compression.GZIP),
        "empty": b"",
    }
    for label, layer in wrong.items():
        (tmp_path / label).mkdir()
        assert refused(tmp_path / label, layer, PLAIN, Compression.ZSTD), label


def test_a_bomb_ends_at_the_limit(tmp_path: Path) -> None:
    layer = bomb(head(size=f"{60 << 20:o}", content=b""), 60 << 20)
    assert len(layer) < 100_000

    assert "bytes that it may have" in refused(tmp_path, layer, PLAIN, Compression.GZIP)


@pytest.mark.parametrize("text", [b"a\r" * (1 << 17), b"{}\n" * (1 << 17)], ids=["no lines", "more than it says"])
def test_a_list_of_tiny_recipes_is_not_taken_apart(text: bytes, tmp_path: Path) -> None:
    """What it is taken apart into is twenty times as large, and a list may have 64 MiB."""
    plain = tar({words.LINES: text})
    told = BundleFacts(BundleContent.RECIPES, 1, len(text), f"sha256:{hashlib.sha256(plain).hexdigest()}")
    bundle = members.opened(forge(tmp_path / "bundle", packed(plain), told))

    tracemalloc.start()
    try:
        with bundle.layout, pytest.raises(BadBundle, match="says that it has 1 recipes, and has"):
            check(bundle, lambda *_: None)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * len(text)


@pytest.mark.parametrize("text", [b'{"kind":"\xff"}\n', b'{"facts":{"\xff":""}}\n'])
def test_a_list_of_recipes_that_is_no_utf_8_is_refused(text: bytes, tmp_path: Path) -> None:
    plain = tar({words.LINES: text})
    told = BundleFacts(BundleContent.RECIPES, 1, len(text), f"sha256:{hashlib.sha256(plain).hexdigest()}")
    bundle = members.opened(forge(tmp_path / "bundle", packed(plain), told))
    with bundle.layout, pytest.raises(BadBundle, match="a recipe cannot be read"):
        check(bundle, lambda *_: None)


def test_a_recipe_of_facts_without_end_is_not_held(tmp_path: Path) -> None:
    line = RecipeLine(KindName("sycl"), "", "1", "", 1, b"", {f"{number:06}": "" for number in range(17)})
    text = members.line(line)
    plain = tar({words.LINES: text})
    told = BundleFacts(BundleContent.RECIPES, 1, len(text), f"sha256:{hashlib.sha256(plain).hexdigest()}")
    bundle = members.opened(forge(tmp_path / "bundle", packed(plain), told))
    with bundle.layout, pytest.raises(BadBundle, match="17 facts"):
        check(bundle, lambda *_: None)


def test_a_module_that_many_recipes_name_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of some megabytes can have a quarter of a million of them for 64 MiB."""
    module = spirv("_ZTS1a", size=1 << 16)
    digest = hashlib.sha256(module).hexdigest()
    numbers = [(b"-DX=%d" % number, string_hash(b"-DX=%d" % number)) for number in range(100)]
    above = f"{string_hash(module)}/{string_hash(b'')}"
    lines = [
        RecipeLine(KindName("sycl"), "", f"{above}/{number}", digest, len(module), options)
        for options, number in sorted(numbers, key=lambda one: str(one[1]))
    ]
    text = b"".join(map(members.line, lines))
    plain = tar({words.LINES: text, f"{words.INPUTS}/{digest}": module})
    said = (len(lines), len(text) + len(module), f"sha256:{hashlib.sha256(plain).hexdigest()}")
    bundle = members.opened(forge(tmp_path / "bundle", packed(plain), BundleFacts(BundleContent.RECIPES, *said)))
    looked: list[int] = []

    def spied(real: Callable[[bytes], int]) -> Callable[[bytes], int]:
        def look(data: bytes) -> int:
            looked.append(len(data))
            return real(data)

        return look

    monkeypatch.setattr(formats, "modules", spied(formats.modules))
    monkeypatch.setattr(entry_format, "string_hash", spied(entry_format.string_hash))
    with bundle.layout:
        check(bundle, lambda *_: None)

    assert looked.count(len(module)) == 2


FACTS: Final[Mapping[str, Callable[[], Mapping[str, object]]]] = {
    "fewer entries": lambda: {"entries": 0},
    "more entries": lambda: {"entries": 2},
    "other bytes": lambda: {"bytes": 1},
    "another content": lambda: {"diff_id": "sha256:" + "0" * 64},
    "another layout of files": lambda: {"format": "dirs-v2"},
    "another kind": lambda: {"kind": "neo"},
    "no kind that there is": lambda: {"kind": "triton"},
}


@pytest.mark.parametrize("label", FACTS)
def test_a_member_that_says_something_else_of_itself_is_refused(label: str, tmp_path: Path) -> None:
    bundle = members.opened(forge(tmp_path / "bundle", packed(PLAIN), facts(PLAIN, **FACTS[label]())))

    with bundle.layout, pytest.raises(BadBundle):
        check(bundle, lambda *_: None)
