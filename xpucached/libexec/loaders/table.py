"""The table of the loaders.

Whoever adds one writes its function in a file here and a row in `LOADERS`; what may be said of it, before anything is
started, stands in a row of `xpucached.domain.workloads.FORMS`.  Foreign packages are imported in the function: none is
loaded for another loader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..run_order import RunOrder, Subject
from .application import python, train
from .diffusion import diffusers
from .embeddings import sentence_transformers
from .llama_cpp import llama_cpp
from .programs import export, torchscript
from .speech import whisper
from .text import awq, gptq, transformers, vllm

LOADERS: Mapping[str, Callable[[RunOrder], Subject]] = {
    "python": python,
    "transformers": transformers,
    "gptq": gptq,
    "awq": awq,
    "vllm": vllm,
    "llama-cpp": llama_cpp,
    "sentence-transformers": sentence_transformers,
    "whisper": whisper,
    "diffusers": diffusers,
    "torchscript": torchscript,
    "export": export,
    "train": train,
}
