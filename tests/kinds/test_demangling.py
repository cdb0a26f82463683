"""Which names are handed to the demangler: those with one reading, that can print no more than so much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from xpucached.kinds.demangling import printed

PLAIN: Final = """
    _Z1f _Z1fv _ZTS1k _ZTI1k _ZTSPKc _Z1fVKPROi _Z10abcdefghij _Z1fDn _Z1fDF16_ _Z1fDF16b _Z1fDv4_f _Z1fFivE
    _Z1fFYivE _Z1fFE _Z1fA3_i _Z1fA_i _Z1fA123456789_i _Z1fM1ci _Z1fSaIiE _Z1fSt4pair _Z1fSt4pairIiiE _ZSt3max
    _Z1fIJiLi3EEE _Z1fIJEE _Z1fILi5EE _Z1fILin5EE _Z1fILb0EE _Z1fIL_Z1gEE _Z1fIL_Z1gvEE _ZN1aE _ZN1a1bEv
    _ZNK1a1bE _ZNKR1aE _ZNO1aE _ZNVK1aE _ZNSt1aE _ZN1aIiE1bE _ZN1aIiEC2E _ZN1aD1E _ZN1aB3abiC1B3abiE _ZNSt1aC1E
    _ZNSsC1E _ZN1aB3abiE _ZN1aplE _ZNplE
    _ZNL1aE _ZN1aL1bE _ZN1aUlvE_E _ZZ1fvE1k _ZZ1fE1k _ZZ1fvEs _ZZ1fvE1k_0 _ZZ1fvE1k_9 _ZZ1fvE1k__10_
    _ZZ1fvEs_1 _ZTSZ1fvEUlvE_ _ZTSZ1fvEUlvE0_ _ZTSZ1fvEUlE_ _ZUt_ _ZUt0_ _ZTSN1aUt_E
"""

NOT: Final = """
    Z1f _Z _ZTS _ZT _Z0 _Z2f _Zf _Z1fQ _Z1fE _ZTS1k1k _ZTS1kE _Z1f1 _Z1fXEE _Z1f_ _Z1fD _Z1fDq _Z1fDF16c
    _Z1fDv_f _Z1fDv4f _Z1fDv4_ _Z1fF _Z1fFi _Z1fA3i _Z1fA1234567890_i _Z1fA3_ _Z1fM1c _Z1fP _Z1fT _Z1fT0 _Z1fS
    _Z1fS1 _Z1fSq_ _Z1fSaI _Z1fSaIi _Z1fSt _Z1fIJiE _Z1fILi5 _Z1fIL_Z1gE _ZNE _ZN1a _ZNC1E _ZNIiE1aE _ZN1aCE
    _ZN1aDE _ZNB3abiE _ZN1aBE _ZN1aLE _ZNS_ _ZNRO1aE _ZNzzE _ZZ1f1k _ZZ1fE _ZZ1fvE1k_ _ZZ1fvE1k_x
    _ZZ1fvE1k__1_ _ZZ1fvE1k__10 _ZZ1fvE1k__1234567890_ _ZUl_ _ZUlv_ _ZUlvE _ZUt _ZUt0
"""


@pytest.mark.parametrize("name", PLAIN.split())
def test_what_has_one_reading_is_printed_within_its_length(name: str) -> None:
    assert printed(name.encode()) == len(name)


@pytest.mark.parametrize("name", [*NOT.split(), ""])
def test_what_is_no_plain_name_is_not_demangled(name: str) -> None:
    assert printed(name.encode()) is None


OTHERWISE: Final = """
    _ZN1aC12plE _ZN1aD02plE _Z1fIZ1gvE1k_51aE _Z1fIZ1gvEs_51aE _Z1fILZ1gvE1k1EE _Z1fILZ1gE1kEE
"""


@pytest.mark.parametrize("name", OTHERWISE.split())
def test_what_the_demangler_reads_otherwise_than_we_do_is_not_demangled(name: str) -> None:
    # What is one name to us could be many to it, with all that we refuse in them.
    assert printed(name.encode()) is None


@pytest.mark.parametrize("before", ["pl", "UlvE_", "Ut_", "C1pl"])
def test_a_constructor_prints_a_name_that_stands_before_it_once_more_and_is_no_name_itself(before: str) -> None:
    assert printed(f"_ZN1a{before}C1E".encode()) is None
    assert printed(f"_ZN1a{before}1bC1E".encode()) is not None


@pytest.mark.parametrize(
    ("name", "references"),
    [
        ("_Z1fSaSsSoSiSdSbSt1a", 0),
        ("_Z1fS_", 1),
        ("_Z1fS0_", 1),
        ("_Z1fSZZ_", 1),
        ("_Z1fT_", 1),
        ("_Z1fT0_", 1),
        ("_Z1fT_IiE", 1),
        ("_ZNS_1aE", 1),
        ("_ZNS0_1aES1_T2_", 3),
    ],
)
def test_each_reference_may_double_what_is_printed(name: str, references: int) -> None:
    assert printed(name.encode()) == len(name) << references


def test_a_name_that_may_print_a_mebibyte_is_demangled_and_no_longer_one() -> None:
    name = b"_Z1f" + b"S_" * 14 + b"i" * 32
    assert printed(name) == 1 << 20
    assert printed(name + b"i") is None


def test_a_name_of_2000_bytes_is_demangled_and_no_longer_one() -> None:
    assert printed(b"_Z1994" + b"a" * 1994) == 2000
    assert printed(b"_Z1995" + b"a" * 1995) is None


DEEP: Final[dict[str, Callable[[int], bytes]]] = {
    "arrays": lambda levels: b"_Z1f" + b"A_" * (levels - 1) + b"i",
    "functions": lambda levels: b"_Z1f" + b"F" * (levels - 1) + b"i" + b"E" * (levels - 1),
    "packs": lambda levels: b"_Z1fI" + b"J" * (levels - 1) + b"E" * levels,
    "templates": lambda levels: b"_Z1f" + b"1aI" * (levels // 2) + b"E" * (levels // 2),
    "locals": lambda levels: b"_Z" + b"Z" * levels + b"1f" + b"E1k" * levels,
}


@pytest.mark.parametrize("kind", DEEP)
def test_types_lie_in_types_a_hundred_deep_and_no_deeper(kind: str) -> None:
    assert printed(DEEP[kind](100)) is not None
    assert printed(DEEP[kind](102 if kind == "templates" else 101)) is None


@pytest.mark.parametrize("sibling", [b"i", b"1aIiE", b"1aIJiEE", b"Z1fE1k"])
def test_what_lies_beside_makes_nothing_deeper_and_nothing_less_deep(sibling: bytes) -> None:
    beside = b"_Z1f" + sibling * 120
    assert printed(beside) == len(beside)
    assert printed(beside + b"A_" * 99 + b"i") == len(beside) + 199
    assert printed(beside + b"A_" * 100 + b"i") is None
