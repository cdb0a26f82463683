"""What is read out of device images: each form, each bound at its edge, and no step outside of the bytes."""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import pytest

from tests.support.builders import native, spirv
from xpucached.binaries import formats
from xpucached.domain.stores import ImageFormat, Kernel
from xpucached.kinds import images

TEXT: Final = b".text._ZTS3foo"
HEAD: Final = struct.pack("<5I", 0x07230203, 0x00010100, 0, 1, 0)


def member(content: bytes, digits: bytes | None = None) -> bytes:
    """Return a member of an archive."""
    size = b"%d" % len(content) if digits is None else digits
    head = b"%-16s%-12d%-6d%-6d%-8s%-10s`\n" % (b"dev/", 0, 0, 0, b"644", size)
    return head + content + b"\n" * (len(content) % 2)


def names(data: bytes) -> list[str]:
    return [one.name for one in images.kernels(data)]


def words(*some: int) -> bytes:
    return struct.pack(f"<{len(some)}I", *some)


# -- forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"\x03\x02\x23\x07", ImageFormat.SPIRV),
        (b"\x7fELF", ImageFormat.ELF),
        (b"!<arch>\n", ImageFormat.ARCHIVE),
        (b"BC\xc0\xde", ImageFormat.BITCODE),
        (b"\xde\xc0\x17\x0b", ImageFormat.BITCODE),
        (b"\x07\x23\x02\x03", ImageFormat.UNKNOWN),
        (b"", ImageFormat.UNKNOWN),
    ],
)
def test_the_first_bytes_tell_the_form(data: bytes, form: ImageFormat) -> None:
    assert formats.image_format(data) is form
    assert (formats.input_digest(data) == hashlib.sha256(data).hexdigest()) == (form is ImageFormat.SPIRV)


def test_modules_are_counted_up_to_so_many() -> None:
    three = spirv("a") + spirv("b") + spirv("c")
    assert [formats.modules(three, most) for most in (1, 2, 3, 4)] == [1, 2, 3, 3]
    assert formats.modules(three) == 2
    assert formats.modules(b"text" + three) == 0
    assert formats.modules(HEAD) == 1
    # Two heads, of which the second begins amid the first.
    assert formats.modules(HEAD[:16] + HEAD) == 1


def test_a_module_begins_at_a_word_and_few_others_are_passed_over() -> None:
    first, crooked = spirv("a") + words(54), b"\1" + HEAD + b"\1" * 3
    assert names(first + crooked * 63 + spirv("b")) == ["a", "b"]
    assert names(first + crooked * 64 + spirv("b")) == ["a"]


# -- kernels of SPIR-V ------------------------------------------------------------------------------------------------


ENTRY_POINT: Final = words(4 << 16 | 15, 6, 1) + b"k\0\0\0"


def test_kernels_stand_before_the_first_function() -> None:
    assert names(HEAD + ENTRY_POINT) == ["k"]
    assert names(HEAD + words(2 << 16 | 17, 6) + ENTRY_POINT) == ["k"]
    assert names(HEAD + words(5 << 16 | 54, 1, 2, 3, 4) + ENTRY_POINT) == []
    # An instruction without a length leads nowhere, and one that is cut short ends the walk.
    assert names(HEAD + words(17, 6) + ENTRY_POINT) == []
    assert names(HEAD + words(15) + ENTRY_POINT) == []
    assert names(HEAD + words(9 << 16 | 17) + ENTRY_POINT) == []
    assert names(HEAD + ENTRY_POINT + b"\1\2\3") == ["k"]


def test_a_name_ends_at_its_zero_or_with_its_instruction() -> None:
    assert names(HEAD + words(4 << 16 | 15, 6, 1) + b"k\0xy" + ENTRY_POINT) == ["k"]
    assert names(HEAD + words(4 << 16 | 15, 6, 1) + b"abcd" + ENTRY_POINT) == ["abcd", "k"]
    assert names(HEAD + words(3 << 16 | 15, 6, 1) + ENTRY_POINT) == ["k"]


def test_of_all_modules_so_many_instructions_are_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = words(1 << 16)
    monkeypatch.setattr(formats, "_INSTRUCTIONS", 4)
    assert names(HEAD + nothing * 3 + ENTRY_POINT) == ["k"]
    assert names(HEAD + nothing * 4 + ENTRY_POINT) == []
    assert names(HEAD + nothing + words(54) + spirv("b")) == ["b"]
    assert names(HEAD + nothing * 3 + words(54) + spirv("b")) == []


def test_each_name_is_told_once_and_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(spirv("a", "b", "a", "")) == ["a", "b"]
    monkeypatch.setattr(images, "_KERNELS", 2)
    assert names(spirv("a", "b", "c")) == ["a", "b"]
    monkeypatch.setattr(images, "_KERNELS", 9)
    monkeypatch.setattr(images, "_NAMES", 4)
    assert names(spirv("aa", "aa", "bb", "c")) == ["aa", "bb"]
    assert names(spirv("aa", "bbb", "c")) == ["aa"]


# -- kernels of ELF and of archives -----------------------------------------------------------------------------------


def test_kernels_of_an_elf_are_its_text_sections() -> None:
    assert names(native(300, (TEXT, b"x"), (b".data", b"x"), (b".text", b"x"), (b".text.b", b""))) == ["_ZTS3foo", "b"]
    assert names(b"\x7fELF") == []


def test_members_of_an_archive_lie_at_even_places() -> None:
    odd, even = native(301, (b".text.a", b"x")), native(300, (b".text.b", b"x"))
    odd = odd + b"x" * (1 - len(odd) % 2)
    assert len(odd) % 2 == 1
    archive = b"!<arch>\n" + member(odd) + member(even)
    assert names(archive) == ["a", "b"]
    assert names(archive[:-2]) == ["a"]
    assert names(b"!<arch>\n" + member(b"text") + member(even)) == ["b"]


def test_of_an_archive_4096_members_are_looked_at() -> None:
    for before, found in ((4095, ["a"]), (4096, [])):
        archive = b"!<arch>\n" + member(b"") * before + member(native(10, (b".text.a", b"\x01")))
        assert names(archive) == found


@pytest.mark.parametrize(
    ("digits", "found"), [(b"x", []), (b"", []), (b"-5", []), (b"0000000000", ["b"]), (b"9999999999", [])]
)
def test_a_member_whose_size_is_no_number_ends_the_archive(digits: bytes, found: list[str]) -> None:
    assert names(b"!<arch>\n" + member(b"", digits) + member(native(300, (b".text.b", b"x")))) == found


# -- sections ---------------------------------------------------------------------------------------------------------


def forged(data: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(f"<{form}", changed, at, value)
    return bytes(changed)


WHOLE: Final = native(300, (b".text.k", b"code"), (b".data", b"data"))
COUNT: Final = 5
ROWS: Final = 64


def row(number: int, field: int) -> int:
    """Return where a field of a section's row is: its name 0, type 4, offset 24, size 32."""
    return ROWS + 64 * number + field


def test_sections_are_told_with_their_places() -> None:
    found = list(formats.sections(WHOLE))
    assert [name for name, _, _ in found] == [b"", b".text.k", b".data", b".filling", b".shstrtab"]
    assert [WHOLE[offset : offset + size] for _, offset, size in found[1:3]] == [b"code", b"data"]
    bare = forged(WHOLE, row(2, 4), "I", 8)
    assert list(formats.sections(bare))[2][2] == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (WHOLE[:63], "no ELF header"),
        (b"\x7fELG" + WHOLE[4:], "no ELF header"),
        (forged(WHOLE, 4, "B", 1), "not a 64-bit"),
        (forged(WHOLE, 5, "B", 2), "not a 64-bit"),
        (forged(WHOLE, 40, "Q", 63), "its section table lies outside"),
        (forged(WHOLE, 40, "Q", len(WHOLE) - 64 * COUNT + 1), "its section table lies outside"),
        (forged(WHOLE, 58, "H", 63), "its section table lies outside"),
        (forged(WHOLE, 58, "H", 65), "its section table lies outside"),
        (forged(WHOLE, 60, "H", 0), "its section table lies outside"),
        (forged(WHOLE, 62, "H", COUNT), "its section table lies outside"),
        (forged(WHOLE, row(4, 32), "Q", 0), "its section names lie outside"),
        (forged(WHOLE, row(4, 24), "Q", len(WHOLE)), "its section names lie outside"),
        (forged(WHOLE, row(1, 0), "I", 1000), "section 1 lies outside"),
        (forged(WHOLE, row(1, 24), "Q", len(WHOLE) - 3), "section 1 lies outside"),
        (forged(WHOLE, row(1, 32), "Q", len(WHOLE)), "section 1 lies outside"),
    ],
)
def test_a_table_that_does_not_hold_together_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(formats.sections(data))
    assert not data.startswith(b"\x7fELF") or words in (images.damage(data, intel=True) or "")


def test_sections_may_reach_to_the_last_byte_and_those_without_bytes_beyond() -> None:
    last = forged(WHOLE, row(1, 24), "Q", len(WHOLE) - 4)
    assert list(formats.sections(last))[1] == (b".text.k", len(WHOLE) - 4, 4)
    nowhere = forged(forged(WHOLE, row(1, 24), "Q", 1 << 40), row(1, 4), "I", 8)
    assert list(formats.sections(nowhere))[1] == (b".text.k", 1 << 40, 0)


def test_a_table_may_end_with_the_file_and_have_one_row() -> None:
    names_at = 64
    table = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, names_at, 8, 0, 0, 1, 0)
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, 72, 0, 64, 0, 0, 64, 1, 0)
    assert list(formats.sections(head + b".name\0\0\0" + table)) == [(b".name", names_at, 8)]
    with pytest.raises(ValueError, match="outside"):
        list(formats.sections(head + b".name\0\0\0" + table[:-1]))
    with pytest.raises(ValueError, match="has no end"):
        list(formats.sections(head + b".nameyyy" + table))


def test_names_of_sections_are_bounded_one_by_one_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_NAME", len(b".shstrtab") + 1)
    assert len(list(formats.sections(WHOLE))) == COUNT
    monkeypatch.setattr(formats, "_NAME", len(b".shstrtab"))
    with pytest.raises(ValueError, match="the name of section 4 has no end"):
        list(formats.sections(WHOLE))
    monkeypatch.undo()
    together = sum(len(name) for name, _, _ in formats.sections(WHOLE))
    monkeypatch.setattr(formats, "_SHARED", 0)
    monkeypatch.setattr(formats, "_NAMES", together)
    assert len(list(formats.sections(WHOLE))) == COUNT
    monkeypatch.setattr(formats, "_NAMES", together - 1)
    with pytest.raises(ValueError, match="its section names overlap"):
        list(formats.sections(WHOLE))


def test_names_in_an_archive_are_bounded_for_all_its_members_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten kilobytes of repeated members came to gigabytes of names."""
    one = native(10, (b".text.kernel", b"\x01"))
    most = sum(len(name) for name, _, _ in formats.sections(one))
    archive = b"!<arch>\n" + member(one) * 100
    assert list(formats.kernel_names(archive)) == [b"kernel"] * 100
    monkeypatch.setattr(formats, "_SHARED", 0)
    monkeypatch.setattr(formats, "_NAMES", most)
    assert list(formats.kernel_names(one)) == [b"kernel"]
    assert list(formats.kernel_names(archive)) == [b"kernel"] * (most // len(b"kernel"))


# -- names for people -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "display", "library"),
    [
        (b"_ZTS3foo", "foo", None),
        (b"plain", "plain", None),
        (b"_Z", "_Z", None),
        (b"_ZTSN2at6native3xpu3addE", "at::native::xpu::add", "torch-xpu-ops"),
        (b"_ZTSN2at6native3addE", "at::native::add", "torch"),
        (b"_ZTS1aIN4dpnp1kEE", "a<dpnp::k>", "dpnp"),
        (b"ggml_add", "ggml_add", "ggml"),
        (b"__sycl_kernel_k", "__sycl_kernel_k", "run-time compiled"),
        (b"my_ggml_add", "my_ggml_add", None),
        (b"\xffx", "\\xffx", None),
        (b"_ZTS4\xc3\xa9xy", "_ZTS4éxy", None),
        (b"_ZTSN4sycl3_V16detail18RoundedRangeKernelI3fooEE", "foo", None),
        (b"_ZTSN4sycl3_V16detail19__pf_kernel_wrapperINS1_18RoundedRangeKernelI3fooEEEE", "foo", None),
    ],
)
def test_a_kernel_has_a_name_for_people_and_perhaps_an_owner(name: bytes, display: str, library: str | None) -> None:
    assert images.kernel(name) == Kernel(name.decode("utf-8", "backslashreplace"), display, library)


def test_a_name_that_may_print_more_than_there_is_room_for_shows_its_first_scopes() -> None:
    name = b"_ZTSN5dpctl1kE"
    assert images.kernel(name, len(name)).display == "dpctl::k"
    assert images.kernel(name, len(name) - 1).display == "dpctl::k…"
    assert images.kernel(b"_ZTSN5dpctl9shorterE", 1).display == "dpctl…"
    assert images.kernel(b"_ZTSPi", 1).display == "_ZTSPi"
    assert images.kernel(b"_ZTSZZN5dpctl1kE", 1).display == "dpctl::k…"


def test_names_of_one_image_print_so_much_together(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = "_ZTSN1a1bE", "_ZTSN1c1dE"
    monkeypatch.setattr(images, "_PRINTED_TOGETHER", len(first) + len(second))
    assert [one.display for one in images.kernels(spirv(first, second))] == ["a::b", "c::d"]
    monkeypatch.setattr(images, "_PRINTED_TOGETHER", len(first) + len(second) - 1)
    assert [one.display for one in images.kernels(spirv(first, second))] == ["a::b", "c::d…"]


def test_names_for_people_are_not_many_times_as_long_as_those_in_the_image() -> None:
    # Each level tells twice what is below it.
    names = [f"_ZTS1DI1CI1BI1AI200x{number:0199}S3_ES4_ES5_ES6_E" for number in range(400)]
    found = images.kernels(spirv(*names))
    written, shown = sum(map(len, names)), sum(len(one.display) for one in found)
    assert [one.name for one in found] == names
    assert found[0].display.startswith("D<C<B<A<x000")
    assert len(found[0].display) > 3000
    assert found[-1].display == "D…"
    assert shown <= 4 * written + 4096 + len(names) * len("D…")


def test_a_display_name_is_cut_where_nobody_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_DISPLAY", 5)
    assert images.kernel(b"abcde") == Kernel("abcde", "abcde", None)
    assert images.kernel(b"abcdef") == Kernel("abcdef", "abcde…", None)


# -- does it hold together? -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "intel", "words"),
    [
        (b"", True, "no bytes"),
        (b"", False, "no bytes"),
        (b"\0", False, "all bytes are zero"),
        (b"\0\1", False, None),
        (b"\0\1", True, "unknown format, begins with 00 01"),
        (b"CTNI", True, None),
        (b"INTC", True, None),
        (b"!<arch>\n", True, None),
        (b"BC\xc0\xde", True, None),
        (HEAD, True, None),
        (b"123456789", True, "unknown format, begins with 31 32 33 34 35 36 37 38"),
    ],
)
def test_what_is_no_elf_is_judged_by_its_first_bytes(data: bytes, words: str | None, *, intel: bool) -> None:
    assert images.damage(data, intel=intel) == words


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (b".text.k", bytes(17), "section .text.k is all zero"),
        (b".text.k", bytes(16), None),
        (b".text.k", bytes(16) + b"\1", None),
        (b".ocl.ir", bytes(17), "section .ocl.ir is all zero"),
        (b".ze_info", bytes(17), "section .ze_info is all zero"),
        (b".spv", bytes(17), "section .spv is all zero"),
        (b".bss", bytes(17), None),
        (b".data", bytes(17), None),
        (b".ocl.ir", b"x", "section .ocl.ir is no LLVM bitcode"),
        (b".ocl.ir", b"", None),
        (b".ocl.ir", b"BC\xc0\xde", None),
        (b".ocl.ir", HEAD, None),
        (b".spv", b"x", "section .spv is no SPIR-V"),
        (b".spv", b"", None),
        (b".spv", HEAD, None),
        (b".ocl.obj", b"x", "section .ocl.obj is no object file"),
        (b".ocl.obj", b"", None),
        (b".ocl.obj", b"!<arch>\n", None),
        (b".ocl.obj", b"\x7fELF", "section .ocl.obj: no ELF header"),
        (b".ocl.obj", WHOLE, None),
        (b".ocl.obj", native(300, (b".ocl.obj", b"x")), None),
        (b".ocl.obj", native(300, (b".spv", b"x")), "section .ocl.obj: section .spv is no SPIR-V"),
    ],
)
def test_sections_must_hold_what_they_are_named_for(name: bytes, content: bytes, words: str | None) -> None:
    assert images.damage(native(400, (name, content), (b".last", b"x")), intel=True) == words


def test_the_first_section_that_is_damaged_is_named() -> None:
    both = native(400, (b".data", bytes(17)), (b".text.a", bytes(17)), (b".spv", b"x"))
    assert images.damage(both, intel=True) == "section .text.a is all zero"


def test_sections_may_not_have_more_bytes_together_than_the_file() -> None:
    size = len(WHOLE)
    fill = size - sum(length for _, _, length in formats.sections(WHOLE))
    exact = forged(forged(WHOLE, row(1, 24), "Q", 0), row(1, 32), "Q", 4 + fill)
    assert images.damage(exact, intel=True) is None
    more = forged(exact, row(1, 32), "Q", 5 + fill)
    assert images.damage(more, intel=True) == "its sections overlap"


def test_whose_programs_are_judged() -> None:
    assert images.is_intel("Intel(R) OpenCL")
    assert images.is_intel("INTEL")
    assert not images.is_intel("NVIDIA CUDA")


def test_4096_kernels_of_an_image_are_named_and_a_mebibyte_of_names() -> None:
    names = [f"k{number}" for number in range(4097)]
    assert [one.name for one in images.kernels(spirv(*names))] == names[:4096]
    sixteenth = [chr(ord("a") + number) * (1 << 16) for number in range(16)]
    assert len(images.kernels(spirv(*sixteenth))) == 16
    assert len(images.kernels(spirv(*sixteenth, "q"))) == 16
