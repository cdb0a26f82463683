"""Attention as OpenVINO compiles it for a chat with Qwen2.5-0.5B, and what comes beside it; see ``demo/attention.py``.

Usage: ``openvino_attention.py ENVIRONMENT FIRST LAST``, where ENVIRONMENT is one that holds OpenVINO
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(next(Path(sys.argv[1]).glob("lib/python3*/site-packages"))))

import numpy as np
import openvino as ov
from openvino import opset13 as op


def attention(queries: int, keys: int) -> ov.Model:
    """Return attention of so many tokens to so many."""
    tokens, past = [1, 14, queries, 64], [1, 14, keys, 64]
    given = [op.parameter(shape, np.float16) for shape in (tokens, past, past)]
    return ov.Model([op.scaled_dot_product_attention(*given, causal=queries > 1)], given)


def activation() -> ov.Model:
    """Return what is computed of each element."""
    given = op.parameter([1, 32, 896], np.float16)
    return ov.Model([op.softmax(op.multiply(op.tanh(given), op.gelu(given, "erf")), 2)], [given])


def main() -> None:
    """Compile and say what it took; a simulated device does not survive a tidy end."""
    core = ov.Core()
    keys = range(int(sys.argv[2]), int(sys.argv[3]) + 1)
    for model in (attention(32, 32), *(attention(1, many) for many in keys), activation()):
        core.compile_model(model, "GPU")
    print(json.dumps({"library": f"OpenVINO {ov.__version__}", "seconds": round(time.process_time(), 2)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
