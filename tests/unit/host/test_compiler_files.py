"""What stands for a CPU's instructions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from xpucached.host.compiler_files import cpu_isa
from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from pathlib import Path

COMMON = "fpu sse sse2 ssse3 avx avx2 bmi1 bmi2 fma f16c popcnt"


@pytest.mark.parametrize("flag", ["abm", "gfni", "vaes", "vpclmulqdq", "movbe", "adx", "sha_ni", "avx512f", "pni"])
def test_a_cpu_without_an_instruction_is_another_one(flag: str, tmp_path: Path) -> None:
    """Code with ``lzcnt`` gives wrong numbers, and no fault, where there is none: a virtual machine may hide it."""

    def isa(flags: str) -> str:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
        return cpu_isa(replace(HERE, proc=tmp_path))

    assert isa(COMMON) == isa(" ".join(reversed(COMMON.split()))) == isa(f"{COMMON} ibrs mds_clear")
    assert isa(f"{COMMON} {flag}") != isa(COMMON)
