"""What a GPU's driver takes: 704 answers of the real one, on sixteen simulated GPUs, to real archives."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.builders import spirv
from tests.support.device_images import answers, archives
from xpucached.domain.inspection import Availability, CodeForm
from xpucached.errors import RequestError
from xpucached.host.gpu_devices import known
from xpucached.inspection import acceptance, devices
from xpucached.inspection.acceptance import cpu_availability, gpu_availability, packed, rules
from xpucached.inspection.device_code import DeviceCode, GpuProgram, judge

USUAL = {str(gpu.architecture): gpu for gpu in reversed(list(known().values()))}


def test_every_answer_is_the_driver_s() -> None:
    codes = {name: judge(data) for name, data in archives().items()}

    wrong = [
        (device, name, said, told)
        for device, name, said in answers()
        if (told := gpu_availability(codes[name], rules(USUAL[device]))) != said
    ]

    assert wrong == []
    assert Counter(said for _, _, said in answers()) == {"ready": 142, "compiled": 195, "absent": 367}


def test_another_stepping_takes_only_its_own() -> None:
    own = DeviceCode(CodeForm.NATIVE, 1, programs=(GpuProgram(ip=packed("20.4.0")),))
    base = DeviceCode(CodeForm.NATIVE, 1, programs=(GpuProgram(ip=packed("20.1.0")),))

    assert gpu_availability(own, rules(USUAL["lnl-m"], "20.4.0")) is Availability.READY
    assert gpu_availability(base, rules(USUAL["lnl-m"], "20.4.0")) is Availability.ABSENT
    assert gpu_availability(base, rules(USUAL["lnl-m"])) is Availability.READY


def test_every_known_gpu_takes_its_own() -> None:
    for gpu in known().values():
        code = DeviceCode(CodeForm.NATIVE, 1, programs=(GpuProgram(ip=packed(gpu.versions[0])),))
        assert gpu_availability(code, rules(gpu)) is Availability.READY
    assert len(known()) == 174
    assert {base for bases in acceptance._TAKES.values() for base in bases} <= USUAL.keys()


def test_what_cannot_be_judged_is_unknown() -> None:
    gpu = rules(USUAL["bmg-g21"])
    for form in (CodeForm.BITCODE, CodeForm.COMPRESSED, CodeForm.PATCH_TOKENS, CodeForm.UNKNOWN):
        assert gpu_availability(DeviceCode(form, 1), gpu) is Availability.UNKNOWN
    old = GpuProgram(family=1270, core=0xC07)
    assert (
        gpu_availability(DeviceCode(CodeForm.NATIVE, 1, programs=(old,)), rules(USUAL["acm-g10"]))
        is Availability.UNKNOWN
    )
    assert gpu_availability(DeviceCode(CodeForm.NATIVE, 1, programs=(old,)), gpu) is Availability.UNKNOWN
    assert gpu_availability(DeviceCode(CodeForm.NATIVE, 1, programs=(old,)), rules(USUAL["pvc"])) is Availability.ABSENT
    assert (
        gpu_availability(DeviceCode(CodeForm.NATIVE, 1, programs=(GpuProgram(judged=False),)), gpu)
        is Availability.UNKNOWN
    )


def test_a_processor_takes_its_own_and_compiles_the_rest() -> None:
    assert cpu_availability(judge(spirv("a")), "spir64") is Availability.COMPILED
    assert (
        cpu_availability(judge(b"\x7fELF" + bytes(60), target="spir64_x86_64"), "spir64_x86_64") is Availability.READY
    )
    assert cpu_availability(judge(archives()["02_bmg.x"]), "spir64_gen") is Availability.ABSENT
    assert cpu_availability(judge(b"CTNI" + bytes(60)), "") is Availability.ABSENT
    assert cpu_availability(judge(b"junk" * 20), "spir64") is Availability.UNKNOWN
    assert (
        gpu_availability(judge(b"\x7fELF" + bytes(60), target="spir64_x86_64"), rules(USUAL["pvc"]))
        is Availability.ABSENT
    )
    assert gpu_availability(judge(b"\x7fELF" + bytes(60), target="nvptx64"), rules(USUAL["pvc"])) is Availability.ABSENT


def test_devices_are_named_as_people_do() -> None:
    told = [one.told for one in devices.asked(["B580", "Meteor Lake", "cpu", "b580", "0x56a0"])]

    assert {(one.name, one.architecture) for one in told} == {
        ("B580", "bmg-g21"),
        ("Meteor Lake", "mtl-h"),
        ("Meteor Lake", "mtl-u"),
        ("processor", "cpu"),
        ("Arc A770", "acm-g10"),
    }
    with pytest.raises(RequestError, match="no GPU 'Z999'"):
        devices.asked(["Z999"])
