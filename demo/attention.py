"""Attention as oneDNN compiles it for a chat with Qwen2.5-0.5B: f16, 14 heads of 64, a graph for each key length.

Usage: ``attention.py LIBRARY FIRST LAST``, where LIBRARY is a ``libdnnl.so.3`` with its half for GPUs

A prompt of 32 tokens comes first, then one token after another with FIRST to LAST keys.  Everything is compiled, and
nothing executed, so that a simulated GPU will do.  It prints one line of JSON.  Standard library only; what the numbers
mean stands in ``dnnl_graph_types.h``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Final

HEADS: Final = 14
WIDTH: Final = 64
PROMPT: Final = 32

_GPU: Final = 2
_FUSION: Final = 1
_F16, _F32 = 1, 3
_ADD, _MATMUL, _MULTIPLY, _SOFTMAX = 2, 39, 46, 64
_AXIS, _TRANSPOSE_B, _MODE = 0x30, 0x66, 0x84
_LENGTHS = ctypes.c_int64 * 12


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_size_t),
        ("ndims", ctypes.c_int),
        ("dims", _LENGTHS),
        ("type", ctypes.c_int),
        ("property", ctypes.c_int),
        ("layout", ctypes.c_int),
        ("strides", _LENGTHS),
    )


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


class Library:
    """oneDNN on the first GPU."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.dnnl_version.restype = ctypes.POINTER(_Version)
        version = self._library.dnnl_version().contents
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        # PyTorch gives a library before 3.8 halves between the operations too.
        self._old = (version.major, version.minor) < (3, 8)
        self._engine = self._made("engine_create", _GPU, ctypes.c_size_t(0))

    def attention(self, queries: int, keys: int) -> None:
        """Compile attention of so many tokens to so many."""
        inner = _F16 if self._old else _F32
        scores = (1, HEADS, queries, keys)
        tokens, past = (1, HEADS, queries, WIDTH), (1, HEADS, keys, WIDTH)
        query, key, product = _tensor(0, tokens), _tensor(1, past), _tensor(2, scores, inner)
        scale, scaled = _tensor(3, (1,)), _tensor(4, scores, inner)
        mask, masked = _tensor(5, (1, 1, queries, keys)), _tensor(6, scores, inner)
        share, value, result = _tensor(7, scores), _tensor(8, past), _tensor(9, tokens)
        matmul = self._operation(10, _MATMUL, (query, key), product)
        self._call("graph_op_set_attr_bool", matmul, _TRANSPOSE_B, ctypes.byref(ctypes.c_uint8(1)), ctypes.c_size_t(1))
        softmax = self._operation(13, _SOFTMAX, (masked,), share)
        self._call("graph_op_set_attr_s64", softmax, _AXIS, ctypes.byref(ctypes.c_int64(-1)), ctypes.c_size_t(1))
        if not self._old:
            self._call("graph_op_set_attr_str", softmax, _MODE, b"inf_as_zero", ctypes.c_size_t(11))
        operations = (
            matmul,
            self._operation(11, _MULTIPLY, (product, scale), scaled),
            self._operation(12, _ADD, (scaled, mask), masked),
            softmax,
            self._operation(14, _MATMUL, (share, value), result),
        )
        graph = self._made("graph_graph_create", _GPU)
        for operation in operations:
            self._call("graph_add_op", graph, operation)
        self._call("graph_graph_finalize", graph)
        self._call("graph_graph_filter", graph, _FUSION)
        partition = ctypes.c_void_p()
        self._call("graph_graph_get_partitions", graph, ctypes.c_size_t(1), ctypes.byref(partition))
        count = ctypes.c_size_t()
        self._call("graph_partition_get_input_ports_num", partition, ctypes.byref(count))
        ports = (_Tensor * count.value)()
        self._call("graph_partition_get_input_ports", partition, count, ports)
        known = {one.id: one for one in (query, key, scale, mask, value)}
        given = (ctypes.POINTER(_Tensor) * count.value)(*(ctypes.pointer(known[port.id]) for port in ports))
        taken = (ctypes.POINTER(_Tensor) * 1)(ctypes.pointer(result))
        compiled = self._made("graph_compiled_partition_create", partition)
        self._call(
            "graph_partition_compile", partition, compiled, count, given, ctypes.c_size_t(1), taken, self._engine
        )

    def _operation(self, number: int, kind: int, inputs: tuple[_Tensor, ...], output: _Tensor) -> ctypes.c_void_p:
        made = self._made("graph_op_create", ctypes.c_size_t(number), kind, b"")
        for one in inputs:
            self._call("graph_op_add_input", made, ctypes.byref(one))
        self._call("graph_op_add_output", made, ctypes.byref(output))
        return made

    def _made(self, function: str, *arguments: object) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call(function, ctypes.byref(handle), *arguments)
        return handle

    def _call(self, function: str, *arguments: object) -> None:
        status = self._library[f"dnnl_{function}"](*arguments)
        if status:
            raise RuntimeError(f"dnnl_{function}: status {status}")


def _tensor(number: int, lengths: tuple[int, ...], kind: int = _F16) -> _Tensor:
    """Describe a tensor without gaps."""
    strides = [1]
    for length in lengths[:0:-1]:
        strides.insert(0, strides[0] * length)
    return _Tensor(number, len(lengths), _LENGTHS(*lengths), kind, 0, 2, _LENGTHS(*strides))


def main() -> None:
    """Compile and say what it took; a simulated device does not survive a tidy end."""
    path, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    library = Library(path)
    library.attention(PROMPT, PROMPT)
    for keys in range(first, last + 1):
        library.attention(1, keys)
    answer = {"library": f"oneDNN {library.version}", "seconds": round(time.process_time(), 2)}
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
