"""A torch that is loaded already: what is forked from it runs the model runner without seven seconds of loading.

``python loaded_torch.py MODELS SOCKET``, with an interpreter that has torch, makes the small models and then listens.
``interpreter`` writes a program that stands for such an interpreter: it hands its descriptors, words, variables and
directory over, and ends as what was forked for it does; whoever kills it, kills that one.  What it cannot show is what
a model runner loads, and when; so some tests start the interpreter itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TypedDict

_MODULES = (
    *("torch", "torch.export", "safetensors.torch", "diffusers.pipelines.ddpm.pipeline_ddpm"),
    *("diffusers.models.unets.unet_2d", "transformers.models.auto.modeling_auto", "transformers.generation.utils"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.gpt2.modeling_gpt2"),
)

_CLIENT = """#!{python} -IS
import json, os, socket, sys
# The model runner's last word is where its answers go.
number = int(sys.argv[-1]) if sys.argv[-1].isdigit() else 2
asked = {{"words": sys.argv[1:], "variables": dict(os.environ), "directory": os.getcwd(), "number": number}}
asked["modules"] = {modules!r}
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({path!r})
    socket.send_fds(connection, [b"."], [0, 1, 2, number])
    connection.sendall(json.dumps(asked).encode() + b"\\n")
    for descriptor in {{0, 1, 2, number}}:
        os.close(descriptor)
    status = int(connection.recv(16) or b"-9")
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class _Asked(TypedDict):
    """What is to be run."""

    words: list[str]
    variables: dict[str, str]
    directory: str
    number: int
    modules: list[str]


def interpreter(place: Path, listens: Path, modules: tuple[str, ...] = ()) -> Path:
    """Write the program that asks who listens there; some more modules are loaded there when it asks first."""
    place.write_text(_CLIENT.format(python=sys.executable, path=str(listens), modules=modules))
    place.chmod(0o755)
    return place


def _received(connection: socket.socket) -> tuple[list[int], _Asked]:
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 4)
    text = b""
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 16)
    return descriptors, json.loads(text)


def _be(descriptors: list[int], asked: _Asked) -> None:
    """Be what was asked for."""
    numbers = (0, 1, 2, asked["number"])
    # None of them may lie where another one belongs.
    moved = [os.dup2(os.dup(one), 100 + at) for at, one in enumerate(descriptors)]
    for number, one in zip(numbers, moved, strict=True):
        os.dup2(one, number)
    os.closerange(max(numbers) + 1, 1 << 16)
    os.environ.clear()
    os.environ.update(asked["variables"])
    tempfile.tempdir = None
    os.chdir(asked["directory"])
    sys.argv = asked["words"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    """Load, make the models, and listen."""
    models, listens = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(listens)
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    # Not here: who has calculated has threads, which no child has.
    making = os.fork()
    if not making:
        importlib.import_module("small_models").make(Path(models))
        os._exit(0)
    if os.waitpid(making, 0)[1]:
        sys.exit("the models could not be made")
    listener.listen(8)
    print("listens", flush=True)
    while True:
        connection, _ = listener.accept()
        descriptors, asked = _received(connection)
        for name in asked["modules"]:
            importlib.import_module(name)
        child = os.fork()
        if not child:
            listener.close()
            try:
                _be(descriptors, asked)
                sys.stdout.flush()
                os._exit(0)
            finally:
                os._exit(70)
        for one in descriptors:
            os.close(one)
        ended = os.pidfd_open(child)
        # One after the other, as those who ask do.
        if connection.fileno() in select.select([connection.fileno(), ended], [], [])[0]:
            os.kill(child, signal.SIGKILL)
        os.close(ended)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(OSError), connection:
            connection.sendall(b"%d" % status)


if __name__ == "__main__":
    main()
