"""What becomes of a bundle's compiled programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support.builders import sycl_target
from tests.support.bundles import TARGET, facts
from xpucached.domain.bundles import BundleFacts, CompilerLibrary
from xpucached.planning.imports import Taken, Taking, judge

if TYPE_CHECKING:
    from collections.abc import Callable

LIBRARY: Final = CompilerLibrary("libigc.so", "build-id:00")
GIVEN: Final = facts(b"", compiler=(LIBRARY,), isa="cpu:0")
NEXT: Final = sycl_target("Intel(R) OpenCL", "CPU", "OpenCL 3.0", "3")
OTHER: Final = sycl_target("Intel(R) OpenCL", "another CPU", "OpenCL 3.0", "2")
GPU: Final = sycl_target("Intel(R) Level-Zero", "GPU", "1.6", "1")


def judged(given: BundleFacts = GIVEN, signer: str | None = "key", **more: object) -> Taken:
    here: dict[str, object] = {"targets": (TARGET,), "compiler": (LIBRARY,), "isa": {TARGET: "cpu:0"}, **more}
    return judge(given, signer, "it is not signed", **here)  # type: ignore[arg-type]


def test_programs_are_taken_in_where_all_is_the_same_and_signed() -> None:
    assert judged() == Taken(Taking.PUBLISH)


CASES: Final[dict[str, Callable[[], Taken]]] = {
    "it is not signed": lambda: judged(signer=None),
    "the driver here is another one": lambda: judged(targets=(NEXT,)),
    "the device here is another one": lambda: judged(targets=(OTHER,)),
    "the compiler here is another one": lambda: judged(compiler=(CompilerLibrary("libigc.so", "build-id:01"),)),
    "by which libraries it was compiled is not known": lambda: judged(replace(GIVEN, compiler=())),
    "the processor's instructions here are others, or not known": lambda: judged(isa={TARGET: "cpu:1"}),
    "programs shall not be taken in": lambda: judged(allowed=False),
    "it was compiled while variables were set that change code": lambda: judged(
        replace(GIVEN, switches={"IGC_X": "1"})
    ),
}


@pytest.mark.parametrize("why", CASES)
def test_all_others_are_compiled_from_their_recipes(why: str) -> None:
    assert CASES[why]() == Taken(Taking.REBUILD, why)


def test_what_is_unknown_on_both_sides_is_not_the_same() -> None:
    unknown = replace(GIVEN, compiler=(), isa="")

    assert judged(unknown, compiler=(), isa={}).taking is Taking.REBUILD
    assert judged(replace(GIVEN, isa=""), isa={TARGET: ""}).taking is Taking.REBUILD


def test_what_no_device_could_use_is_left() -> None:
    assert judged(targets=(GPU,)).taking is Taking.LEAVE
    assert judged(targets=()).taking is Taking.LEAVE
