"""llama.cpp, for SYCL, Vulkan or whatever it was built for: one of its programs is started for each use.

Its own variables and caches are those of the model; nothing of it is loaded here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

from ..run_order import RunOrder, Subject, Token, Unfit
from .inputs import existing, texts

# One of them writes a text for a prompt, and ends; newer releases call it so, older ones do it with the other.
_PROGRAMS = ("llama-completion", "llama-cli")
_BACKENDS = {"xpu": ("SYCL", "Vulkan"), "cuda": ("CUDA",)}
_LISTED = re.compile(r"^ +([A-Za-z]+\d+): (.+)$", re.MULTILINE)
_TIMES = re.compile(r"(prompt eval|eval) time = +([\d.]+) ms / +(\d+) (?:tokens|runs)")
_PLACED = re.compile(r": +(\S+) model buffer size = +([\d.]+) MiB")


def llama_cpp(job: RunOrder) -> Subject:
    """Find the program and the device; one use is one prompt, or one round of `llama-bench`."""
    if job.precision not in {"", "as-saved"} or job.compile:
        raise Unfit("the file says in which precision it is, and llama.cpp compiles by itself: use as-saved")
    model = existing(job.target, "the model")
    options = dict(job.options)
    program = _program(str(options.pop("program", "")))
    words = [program, "-m", str(model), *_device(job, program), *_options(options)]
    if Path(program).name == "llama-bench":
        return _bench(job, words)
    prompts = ["Once upon a time"] if job.inputs == "random" else texts(job)
    turn = iter(range(1 << 62))
    words += ["-n", str(job.new_tokens), "-no-cnv", "--no-display-prompt", "--simple-io", "--seed", "1"]

    def call() -> object:
        asked = next(turn) % len(prompts)
        said, told = _run([*words, "-p", prompts[asked]])
        subject.token = _token(said, told)
        subject.token.prompt = asked
        subject.places = _places(told)
        return None

    subject = Subject(call)
    subject.prompts = len(prompts)
    return subject


def _program(named: str) -> str:
    for one in (named,) if named else _PROGRAMS:
        found = shutil.which(one)
        if found is not None:
            return found
    raise Unfit(f"llama.cpp is not there: {named or ' and '.join(_PROGRAMS)} cannot be started (option program)")


def _options(options: dict[str, object]) -> list[str]:
    """Return the model's options as its program's: `n-gpu-layers = 99`; a true one stands alone."""
    found: list[str] = []
    for key, value in options.items():
        found += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    return found


def _device(job: RunOrder, program: str) -> list[str]:
    """Return the words that choose the device; its own name for it is told by the program."""
    if job.kind == "cpu":
        return ["-ngl", "0"]
    asked = subprocess.run(  # noqa: S603 - the model's own program
        [program, "--list-devices"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    listed = dict(_LISTED.findall(asked.stdout.decode(errors="replace")))
    for backend in _BACKENDS[job.kind]:
        wanted = f"{backend}{job.device.partition(':')[2] or '0'}"
        if wanted in listed:
            return ["--device", wanted, *([] if "n-gpu-layers" in job.options else ["-ngl", "99"])]
    names = ", ".join(f"{key} ({name})" for key, name in listed.items()) or "none"
    raise Unfit(f"{program} sees no device {job.device}; it lists: {names}")


def _run(words: Sequence[str]) -> tuple[str, str]:
    """Start the program; return what it wrote, and what it told; the latter goes on to our own stderr."""
    done = subprocess.run(  # noqa: S603 - the model's own program
        words, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    # What traces compilations is read there.
    error = cast("IO[bytes]", sys.stderr.buffer)
    error.write(done.stderr)
    error.flush()
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise Unfit(f"{words[0]} ended with {done.returncode}: {last[:300]}")
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def _token(said: str, told: str) -> Token:
    """Return the times that the program tells: of reading the prompt, and of each further token."""
    spans = {what: (float(time_) / 1000, int(count)) for what, time_, count in _TIMES.findall(told)}
    token = Token(time.monotonic())
    token.fewest = len(said.split())
    if said.strip() and "prompt eval" in spans:
        first = token.began + spans["prompt eval"][0]
        seconds, count = spans.get("eval", (0.0, 0))
        token.times = [first + seconds * number / max(count, 1) for number in range(count + 1)]
    return token


def _places(told: str) -> dict[str, int]:
    """Return the bytes of weights, by the type of the device that they are on."""
    found: dict[str, int] = {}
    for buffer, mebibytes in _PLACED.findall(told):
        kind = next((one for one, names in _BACKENDS.items() if buffer.startswith(names)), "cpu")
        kind = "cpu" if buffer.endswith("_Host") else kind
        found[kind] = found.get(kind, 0) + int(float(mebibytes) * (1 << 20))
    return found


def _bench(job: RunOrder, words: list[str]) -> Subject:
    length = job.sizes[0][-1] if job.sizes else 512
    words += ["-p", str(length), "-n", str(job.new_tokens), "-r", "1", "-o", "json"]

    def call() -> object:
        said, _ = _run(words)
        try:
            rates = [float(one["avg_ts"]) for one in json.loads(said)]
        except (ValueError, KeyError, TypeError) as error:
            raise Unfit(f"what {words[0]} wrote is no result of llama-bench: {error}") from error
        if not rates or min(rates) <= 0:
            raise Unfit(f"{words[0]} measured nothing")
        return None

    return Subject(call)
