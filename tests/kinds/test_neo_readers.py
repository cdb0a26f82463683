"""What the GPU driver writes: names, compiled programs, totals, counters, traces from which names are made again."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.kinds import fakes
from tests.support.builders import native
from xpucached.binaries import zebin
from xpucached.domain.stores import Lookups
from xpucached.kinds import images
from xpucached.kinds.neo import layout, lookup_key, soundness, totals, trace

if TYPE_CHECKING:
    from pathlib import Path

RECORDED = fakes.NEO / "recorded"
"""What driver 26.27 wrote for a simulated bmg-g21, with the traces of a run."""

IP = 0x05004000


def entry(name: str) -> bytes:
    return next(fakes.NEO.rglob(name)).read_bytes()


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("0/1/01cdef0123456789.cl_cache", layout.EntryPlace("01cdef0123456789", ".cl_cache", flat=False)),
        ("01cdef0123456789.l0_cache", layout.EntryPlace("01cdef0123456789", ".l0_cache", flat=True)),
        (
            "1/0/01cdef0123456789.ocloc_cache",
            layout.EntryPlace("01cdef0123456789", ".ocloc_cache", flat=False, misplaced=True),
        ),
    ],
)
def test_an_entry_is_known_by_its_path(path: str, found: layout.EntryPlace) -> None:
    assert layout.place(path) == found
    assert layout.key(path) == path


@pytest.mark.parametrize(
    "path",
    [
        *("", "config.file", "stats", "0/1/stats", "cl_cache.AbC123", "01cdef0123456789.trace"),
        *("01CDEF0123456789.cl_cache", "1cdef0123456789.cl_cache", "01cdef0123456789.cl_cache\n", "0123.blob"),
        *("0/01cdef0123456789.cl_cache", "0/1/2/01cdef0123456789.cl_cache", "/01cdef0123456789.cl_cache"),
        *("x/y/01cdef0123456789.cl_cache", "../0/01cdef0123456789.cl_cache", "12345678901234567890.cl_cache"),
    ],
)
def test_what_is_no_entry_has_no_place(path: str) -> None:
    assert layout.place(path) is None
    assert layout.key(path) is None


def test_the_driver_counts_whatever_has_its_words_in_its_path() -> None:
    assert layout.counted("0/1/01cdef0123456789.cl_cache")
    assert layout.counted(".trash.l0_cache/1/x")
    assert not layout.counted("config.file")
    assert not layout.counted("cl_cache.AbC123")
    assert not layout.counted("1/2/3/x.cl_cache")


# -- compiled programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "ip"), [("acm-g10", "12.55.8"), ("bmg-g21", "20.1.0")])
def test_an_entry_says_what_gpu_and_program_it_is_for(device: str, ip: str) -> None:
    found = [path.read_bytes() for path in sorted((fakes.NEO / device).rglob("*_cache"))]
    assert len(found) == 2
    for data in found:
        read = zebin.read(data)
        assert read.ip is not None
        assert (zebin.ip_text(read.ip), read.version) == (ip, "1.73")
        assert (read.input, read.input_size) == (zebin.read(found[0]).input, 1756)
        assert [one.name for one in images.kernels(data)] == ["fixture_add", "fixture_scale"]
        assert soundness.damage(data) is None


def test_options_and_what_it_was_compiled_from_are_read() -> None:
    read = zebin.read(entry("25297eb0a9ff01c5.cl_cache"))
    assert read.options == "-cl-fast-relaxed-math -DX=1"
    given = (RECORDED / "fda88f9b82d687e4.input").read_bytes()
    read = zebin.read(entry("fda88f9b82d687e4.l0_cache"))
    assert (read.input, read.input_size) == (hashlib.sha256(given).hexdigest(), len(given))


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 200, -1])
def test_an_entry_that_is_cut_short_is_damaged(cut: int) -> None:
    data = entry("f7827a5fb64ef597.l0_cache")[:cut]
    assert soundness.damage(data)
    if len(data) > 1:
        with pytest.raises(ValueError, match=r"."):
            zebin.read(data)


@pytest.mark.parametrize("data", [b"\x7fELF\x01\x01", b"CTNI" + bytes(100)])
def test_a_program_for_32_bits_or_of_an_old_form_is_not_judged(data: bytes) -> None:
    assert soundness.damage(data) is None
    assert zebin.read(data) == zebin.Zebin()


def notes(*rows: tuple[bytes, int, bytes]) -> bytes:
    made = b""
    for owner, kind, content in rows:
        padded = [one + b"\0" * (-len(one) % 4) for one in (owner, content)]
        made += struct.pack("<3I", len(owner), len(content), kind) + b"".join(padded)
    return made


def test_notes_of_others_are_passed_over() -> None:
    number = struct.pack("<I", IP)
    made = notes((b"GNU\0", 6, b"\1\2\3\4"), (b"IntelGT\0", 6, number), (b"IntelGT\0", 4, b"1.2\0"))
    read = zebin.read(native(300, (b".note.intelgt.compat", made)))
    assert (read.ip, read.version, read.input) == (IP, "1.2", None)


def test_what_is_no_spirv_is_not_taken_for_what_it_was_compiled_from() -> None:
    read = zebin.read(native(300, (b".spv", b"no SPIR-V")))
    assert (read.input, read.input_size) == (None, 0)


@pytest.mark.parametrize(
    "made",
    [
        b"\1",
        struct.pack("<3I", 0xFFFFFFFF, 0xFFFFFFFF, 6),
        struct.pack("<3I", 8, 0xFFFFFF00, 6) + b"IntelGT\0",
        struct.pack("<3I", 0, 0, 0) * 1000,
    ],
)
def test_forged_notes_are_damage(made: bytes) -> None:
    data = native(300, (b".note.intelgt.compat", made))
    with pytest.raises(zebin.NotesError):
        zebin.read(data)
    assert soundness.damage(data) == "the notes of its compiler do not hold together"


def test_a_note_of_another_size_says_nothing() -> None:
    data = native(300, (b".note.intelgt.compat", notes((b"IntelGT\0", 6, b"\1\2"))))
    assert zebin.read(data).ip is None
    assert soundness.damage(data) is None


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_the_total_is_the_sum_of_the_entries() -> None:
    data = (RECORDED / "config.file").read_bytes()
    assert totals.total(data) == sum(path.stat().st_size for path in RECORDED.rglob("*_cache"))
    assert totals.total_bytes(totals.total(data)) == data
    assert totals.total(data[:1]) == data[0]
    assert totals.total(b"") == 0
    assert totals.total(data + b"x") == totals.total(data)


def test_the_counters_are_read_if_their_form_is_known() -> None:
    data = (RECORDED / "stats").read_bytes()
    assert totals.lookups(data) == Lookups(hits=0, misses=5)
    for other in (b"", data[:-1], data + b"\0", data[:16] + struct.pack("<Q", 2), struct.pack("<QQQ", 1 << 63, 0, 1)):
        assert totals.lookups(other) is None


# -- traces -----------------------------------------------------------------------------------------------------------


TRACES = sorted(RECORDED.glob("*.trace"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_name_of_an_entry_is_made_again_from_its_trace(path: Path) -> None:
    read = trace.read(path.read_bytes())
    given = path.with_suffix(".input").read_bytes()
    there = next(RECORDED.rglob(f"{path.stem}.*_cache"))
    assert trace.KeyMaker().key(read, given, zebin.read(there.read_bytes()).ip) == path.stem
    assert (read.device, read.revision) == (0xE202, 0)
    assert read.opencl == (there.suffix == ".cl_cache")
    assert trace.is_spirv(given) == (not read.opencl)
    assert trace.source(given) == (given if trace.is_spirv(given) else given[:-1])
    assert trace.source(given)[-1:] != b"\0" or trace.is_spirv(given)


def test_whatever_decides_about_a_program_changes_its_name() -> None:
    path = RECORDED / "24c2875a139227f0.trace"
    read, given = trace.read(path.read_bytes()), path.with_suffix(".input").read_bytes()
    assert (read.constants, read.values) == (b"\7\0\0\0", b"\0\0\x80\xbf\0\0\0\0")
    assert read.options == b"-cl-mad-enable"
    maker = trace.KeyMaker()
    compiler = read.compiler
    others = [
        replace(read, options=b"-cl-mad-enable "),
        replace(read, internal=read.internal + b" -g"),
        replace(read, values=b"\0" * 8),
        replace(read, platform=(*read.platform[:6], 1, *read.platform[7:])),
        replace(read, features=b"\0"),
        replace(read, workarounds=b"\0"),
        replace(read, compiler=replace(compiler, modified=compiler.modified + 1)),
        replace(read, compiler=replace(compiler, size=compiler.size + 1)),
        replace(read, compiler=replace(compiler, revision=b"2.40")),
    ]
    made = {maker.key(one, given, IP) for one in others} | {maker.key(read, given, None), maker.key(read, b"x", IP)}
    assert len(made) == len(others) + 2
    assert path.stem not in made
    predicted = maker.key(read, given, IP, replace(compiler, modified=compiler.modified + 1))
    assert predicted == maker.key(others[6], given, IP)


PREDICTED = {
    "14393921d7ce9d06": "e2d726d92ec2b6d1",
    "24c2875a139227f0": "88392e606b5d1506",
    "25297eb0a9ff01c5": "4d616358049e5e02",
    "f7827a5fb64ef597": "01572ae83fdebfb7",
    "fda88f9b82d687e4": "568550ca38ac651f",
}
"""What driver 26.27 called the same programs when its compiler's file had another time, `LATER`."""

LATER = 1790856000


def test_the_name_under_another_compiler_is_known_before_anything_is_compiled() -> None:
    maker = trace.KeyMaker()
    made = {}
    for path in TRACES:
        read = trace.read(path.read_bytes())
        compiler = replace(read.compiler, modified=LATER)
        made[path.stem] = maker.key(read, path.with_suffix(".input").read_bytes(), IP, compiler)
    assert made == PREDICTED


def test_many_programs_of_one_text_are_hashed_as_one() -> None:
    path = TRACES[0]
    read = trace.read(path.read_bytes())
    maker = trace.KeyMaker()
    for number in range(40):
        given = bytes([number]) * 64
        fresh = trace.KeyMaker().key(read, given, IP)
        assert maker.key(read, given, IP) == maker.key(read, given, IP) == fresh
    assert len(maker._begun) <= trace._REMEMBERED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"---- options ----\n", b"---- opinions ----\n"),
        (b"  libSize=", b"  libSize=x"),
        (b"  libSize=1", b"  libSize=99999999999999999999"),
        (b"specIds=", b"specIds=ffffff"),
        (b"specIds=", b"specIds=zz"),
        (b"usDeviceID=57858", b"usDeviceID=99999"),
        (b"eGTType=", b"eGTtype="),
        (b"---- feature table ----\n", b"---- feature table ----\nxx."),
        (b"---- igcRevision", b"x---- igcRevision"),
    ],
)
def test_what_is_no_trace_is_refused(old: bytes, new: bytes) -> None:
    data = TRACES[0].read_bytes()
    assert data.count(old) == 1
    with pytest.raises(ValueError, match=r"."):
        trace.read(data.replace(old, new))
    with pytest.raises(ValueError, match=r"."):
        trace.read(data + b"x" * trace.LONGEST)


def test_options_that_look_like_a_title_are_found_out_by_the_name() -> None:
    path = RECORDED / "25297eb0a9ff01c5.trace"
    data, given = path.read_bytes(), path.with_suffix(".input").read_bytes()
    forged = data.replace(b"-DX=1\n", b"-DX=1\n---- internal options ----\n")
    assert forged != data
    assert trace.KeyMaker().key(trace.read(forged), given, IP) != path.stem


def test_the_hash_minds_where_a_piece_ends() -> None:
    begun = lookup_key.begun()
    assert lookup_key.update(begun, b"") == begun
    assert lookup_key.update(begun, b"abcd") != lookup_key.update(lookup_key.update(begun, b"ab"), b"cd")
    long = bytes(range(256)) * 1024
    whole = lookup_key.update(begun, long)
    assert whole == lookup_key.update(lookup_key.update(begun, long[:4096]), long[4096:])
    assert lookup_key.update(begun, long + b"\1") == lookup_key.update(whole, b"\1")
