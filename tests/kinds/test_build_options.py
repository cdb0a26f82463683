"""Recipes that anybody may have made reach a compiler only with build options that are known."""

from __future__ import annotations

import pytest

from xpucached.kinds import build_options


@pytest.mark.parametrize(
    "options",
    [
        b"",
        b" -ze-opt-level=2",
        b"-ze-opt-level=O2 -g",
        b"-vc-codegen -disable-finalizer-msg -doubleGRF",
        b"-cl-std=CL3.0 -cl-mad-enable -DHEADS=14 -D SCALE=0.125f -cl-intel-256-GRF-per-thread",
        b"-ze-opt-large-grf-kernel gemm_kernel -cl-fast-relaxed-math",
        b"-Dcl_intel_subgroups -cl-ext=-all,+cl_khr_fp64 -w",
    ],
)
def test_options_that_choose_code_are_known(options: bytes) -> None:
    assert build_options.unknown(options) == ""


@pytest.mark.parametrize(
    ("options", "first"),
    [
        (b"-cl-mad-enable -Xfinalizer -asmName/tmp/x", "-Xfinalizer"),
        (b"-igc_opts 'ShaderDumpEnable=1'", "-igc_opts"),
        (b"-I /etc", "-I"),
        (b"-I/etc", "-I/etc"),
        (b"-include /etc/shadow", "-include"),
        (b"-g -s /tmp/x.cl", "-s"),
        (b"-ze-opt-level=../x", "-ze-opt-level=../x"),
        (b"-cl-mad-enable /tmp/x", "/tmp/x"),
        (b"-cl-mad-enable one two", "two"),
        (b"-D -Xfinalizer", "-Xfinalizer"),
        (b"-dump-opt-asm=x", "-dump-opt-asm=x"),
        (b'-D A="x y"', 'A="x'),
        (b"-g\x00-I/etc", r"-g\x00-I/etc"),
        (b"-g\x1b[2J", r"-g\x1b[2J"),
        (b"@/tmp/options", "@/tmp/options"),
        (b"-" + b"x" * 99, "-" + "x" * 39),
    ],
)
def test_all_others_are_not(options: bytes, first: str) -> None:
    assert build_options.unknown(options) == first
