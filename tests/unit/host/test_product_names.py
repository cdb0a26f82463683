"""GPUs by the names that people call them."""

from __future__ import annotations

import pytest

from xpucached.errors import RequestError
from xpucached.host import product_names, simulated_gpu
from xpucached.host.gpu_devices import known


@pytest.mark.parametrize(
    ("said", "architectures"),
    [
        ("B580", ("bmg-g21",)),
        ("arc b580", ("bmg-g21",)),
        ("Intel(R) Arc(TM) B580 Graphics", ("bmg-g21",)),
        ("Intel Arc A770", ("acm-g10",)),
        ("a770m", ("acm-g10",)),
        ("Pro A40", ("acm-g11",)),
        ("arc pro a50", ("acm-g11",)),
        ("Meteor Lake", ("mtl-h", "mtl-u")),
        ("meteor-lake", ("mtl-h", "mtl-u")),
        ("MTL", ("mtl-h", "mtl-u")),
        ("Battlemage", ("bmg-g21", "bmg-g31")),
        ("Wildcat Lake", ("wcl",)),
        ("Raptor Lake", ("adl-p", "adl-s")),
        ("Flex 170", ("acm-g10",)),
        ("Max 1550", ("pvc",)),
        ("UHD 770", ("adl-s",)),
        ("0xE20B", ("bmg-g21",)),
        ("bmg-g21", ("bmg-g21",)),
        ("pvc", ("pvc",)),
    ],
)
def test_a_gpu_is_known_by_what_people_call_it(said: str, architectures: tuple[str, ...]) -> None:
    assert product_names.architectures(said) == architectures


@pytest.mark.parametrize("said", ["", " ", "Intel", "Intel(R) Graphics", "Arc", "B58", "B5800", "\0", "é" * 9999])
def test_what_names_no_gpu_finds_none(said: str) -> None:
    assert product_names.named(said) == ()


def test_one_product_is_one_pci_id() -> None:
    assert product_names.one("A770") == "0x56a0"
    assert product_names.one(" 0x56A0 ") == "0x56a0"
    assert product_names.one("BMG-G21") == "bmg-g21", "an architecture stays one"
    assert product_names.one("nonsense") == "nonsense"


def test_a_name_of_several_is_refused_with_their_ids() -> None:
    with pytest.raises(RequestError, match="'B580' is the name of 2 GPUs") as refused:
        product_names.one("B580")
    assert "0xe209, 0xe20b" in refused.value.hint
    assert "bmg-g21" in refused.value.hint


def test_a_product_is_pretended_under_its_real_name() -> None:
    assert simulated_gpu.pretend("A770") == simulated_gpu.pretend("0x56a0")
    assert simulated_gpu.pretend("A770")["OverrideDeviceName"] == "Intel(R) Arc(TM) A770 Graphics"


def test_every_gpu_is_found_by_its_own_name_and_generation() -> None:
    for gpu in known().values():
        assert gpu in product_names.named(gpu.pci_id)
        assert product_names.generation(gpu), gpu
        assert gpu in product_names.named(product_names.generation(gpu))
    assert product_names.spoken("Intel(R) Arc(TM) A770 Graphics") == "Arc A770"
    assert product_names.spoken("Intel(R) Graphics") == "Intel(R) Graphics"
