"""What an application computes with a SYCL runtime."""

from __future__ import annotations

from collections.abc import Callable

import dpctl.tensor as dpt


def attention(shape: tuple[tuple[int, ...], ...]) -> Callable[[], object]:
    """Return the arithmetic of an attention, of which each operation is a kernel."""
    (length,) = shape[0]

    def use() -> float:
        scores = dpt.exp(dpt.ones((length, length), dtype="f4", device="opencl:cpu") * 0.5)
        return float(dpt.sum(scores / dpt.sum(scores)))

    return use
