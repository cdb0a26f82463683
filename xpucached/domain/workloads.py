"""How a model is exercised, and in which variants.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum, StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated, Final

from msgspec import Struct, field

from xpucached.domain.bounds import DAY, Duration, Size


class Loader(StrEnum):
    """What brings a model to life and runs it."""

    COMMAND = "command"  #: any program
    PYTHON = "python"  #: ``module:function`` that returns a callable
    TRANSFORMERS = "transformers"  #: a folder with a language model, which generates text
    GPTQ = "gptq"  #: the same, quantized by GPTQ
    AWQ = "awq"  #: the same, quantized by AWQ
    VLLM = "vllm"  #: a folder with a language model, in vLLM's engine
    LLAMA_CPP = "llama-cpp"  #: a GGUF file, by a program of llama.cpp
    SENTENCE_TRANSFORMERS = "sentence-transformers"  #: a folder with a model that makes vectors of texts
    WHISPER = "whisper"  #: a folder with a model that writes down speech
    DIFFUSERS = "diffusers"  #: a folder with a pipeline, which makes pictures
    TORCHSCRIPT = "torchscript"  #: a file that ``torch.jit.save`` wrote
    EXPORT = "export"  #: a ``.pt2`` file that ``torch.export.save`` wrote
    TRAIN = "train"  #: ``module:function`` that returns what one training step needs


class Named(Enum):
    """What ``target`` names."""

    NOTHING = "nothing"
    FILE = "file"  #: a file or a folder
    FUNCTION = "function"  #: ``module:function``


class LoaderForm(Struct, frozen=True):
    """What may be said of a loader's model before anything is started."""

    target: Named
    shape: str = ""  #: what the two sizes of a shape are; empty: any sizes
    text: bool = False  #: whether its inputs are prompts
    imports: tuple[str, ...] = ()  #: the packages that it loads in the model's own interpreter


FORMS: Final[Mapping[Loader, LoaderForm]] = {
    Loader.COMMAND: LoaderForm(Named.NOTHING),
    Loader.PYTHON: LoaderForm(Named.FUNCTION, text=True),
    Loader.TRANSFORMERS: LoaderForm(Named.FILE, "BATCHxLENGTH of text", text=True, imports=("torch", "transformers")),
    Loader.GPTQ: LoaderForm(
        Named.FILE, "BATCHxLENGTH of text", text=True, imports=("torch", "transformers", "gptqmodel")
    ),
    Loader.AWQ: LoaderForm(
        Named.FILE, "BATCHxLENGTH of text", text=True, imports=("torch", "transformers", "gptqmodel")
    ),
    Loader.VLLM: LoaderForm(Named.FILE, "BATCHxLENGTH of text", text=True, imports=("torch", "vllm")),
    Loader.LLAMA_CPP: LoaderForm(Named.FILE, "BATCHxLENGTH of text", text=True),
    Loader.SENTENCE_TRANSFORMERS: LoaderForm(
        Named.FILE, "BATCHxLENGTH of text", text=True, imports=("torch", "sentence_transformers")
    ),
    Loader.WHISPER: LoaderForm(Named.FILE, "BATCHxSAMPLES of sound", imports=("torch", "transformers")),
    Loader.DIFFUSERS: LoaderForm(Named.FILE, "WIDTHxHEIGHT of a picture", text=True, imports=("torch", "diffusers")),
    Loader.TORCHSCRIPT: LoaderForm(Named.FILE, imports=("torch",)),
    Loader.EXPORT: LoaderForm(Named.FILE, imports=("torch",)),
    Loader.TRAIN: LoaderForm(Named.FUNCTION),
}
"""One row for each; its function stands in ``libexec/loaders``."""

PRECISIONS: Final = (
    "float32",
    "float16",
    "bfloat16",
    "int8",
    "torchao-int8",
    "torchao-int4",
    "bitsandbytes-int8",
    "autocast-float16",
    "autocast-bfloat16",
    "as-saved",
)
"""``as-saved`` is what the files say, which is how GPTQ and AWQ checkpoints are loaded."""

QUANTIZERS: Final = {"torchao-int8": "torchao", "torchao-int4": "torchao", "bitsandbytes-int8": "bitsandbytes"}
"""The package that each of these precisions loads."""

RANDOM: Final = "random"
"""What ``inputs`` says to get numbers or words that nobody wrote."""

SHIPPED: Final = "prompts"
"""What ``inputs`` says to get the questions that come with xpucached, in several languages and lengths."""

CPU: Final = "cpu"
"""What ``compare`` may say."""

_DEVICE: Final = re.compile(r"(?:cpu|(?:xpu|cuda)(?::(?:\d{1,3}|\*))?)", re.ASCII)
_SHAPE: Final = re.compile(r"[1-9]\d{0,7}(?:x[1-9]\d{0,7}){0,7}(?:,[1-9]\d{0,7}(?:x[1-9]\d{0,7}){0,7}){0,15}", re.ASCII)
_TARGET: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_PORT: Final = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
_LOOPBACK: Final = re.compile(
    rf"http://(?:127(?:\.{_OCTET}){{3}}|localhost|\[::1\])(?::{_PORT})?(?:/[!-~]*)?", re.ASCII | re.IGNORECASE
)
_LONGEST: Final = 8192
_REAL_INPUTS: Final = (
    "expected a file with real text or tensors, or prompts, which come with xpucached: "
    "random ones warm other kernels and give times that mean nothing; "
    'if you want them nevertheless: inputs = "random"'
)
_MOST_VARIANTS: Final = 256
_MOST_STEPS: Final = 1000
_MOST_TOKENS: Final = 100_000


class Variant(Struct, frozen=True, order=True):
    """One way in which a model is used: a device, a precision and a shape; what is empty is left to the program."""

    device: str = ""  #: ``xpu:0``
    precision: str = ""
    shape: str = ""  #: ``1x3x224x224``; of a language model ``BATCHxLENGTH``; several inputs with commas

    @property
    def label(self) -> str:
        """Name it for people, and as the key of its history."""
        return " ".join(part for part in (self.device, self.precision, self.shape) if part) or "default"


def is_loopback(url: str) -> bool:
    """Return whether a URL leads to this host only: what another one answers would prove nothing here."""
    return len(url) <= _LONGEST and _LOOPBACK.fullmatch(url) is not None


class RunSpec(Struct, frozen=True):
    """How a model is brought to life and used.

    To `Loader.COMMAND` only the device, the precisions, the shapes and what comes after the tolerance mean something,
    save the options.
    """

    loader: Loader = Loader.COMMAND
    python: str = ""  #: the interpreter that the application runs with
    target: str = ""  #: what is loaded: a path, or ``module:function``
    inputs: str = ""  #: a file with text or tensors, `SHIPPED` or `RANDOM`
    device: str = ""  #: where it is meant to run; ``xpu:*`` is every GPU, once per distinct environment
    precisions: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    compile: bool = False  #: through ``torch.compile``
    steps: int = 5  #: how often it is used in one pass; the first is timed apart
    new_tokens: int = 16  #: that are generated, at most
    min_output_tokens: int = 1  #: fewer make a run invalid
    tolerance: float | None = None  #: how far a low precision may be from float32, relative to its size
    require_device: bool = False  #: a run whose work was not seen on that device has failed
    caches: tuple[Path, ...] = ()  #: further directories to which a second pass must add no file
    memory: Annotated[int | None, Size()] = None  #: bytes that it may take; None is what the machine can spare
    disk: Annotated[int | None, Size()] = None  #: bytes that it may write to its temporary directory, or a file
    options: Mapping[str, str] = field(default_factory=dict)  #: for `Loader.PYTHON` and `Loader.TRAIN`, by name
    ready_url: str = ""  #: the command is a server, and ready when this answers; only on this host
    ready_line: str = ""  #: the command is a server, and ready when it prints a line with this text
    ready_timeout: Annotated[float, Duration(0.001, DAY)] = 600.0  #: seconds in which a server has to be ready
    requests: str = ""  #: a file with the requests that a server is sent, one JSON object a line
    compare: str = ""  #: `CPU`: it is run there once more, for its times; empty: it is not

    @property
    def is_plain(self) -> bool:
        """Return whether it says nothing: a command, run as it stands."""
        return self == RunSpec()

    @property
    def serves(self) -> bool:
        """Return whether the command is a server, which is told to end when it has been used."""
        return bool(self.ready_url or self.ready_line)

    @property
    def elsewhere(self) -> bool:
        """Return whether it is meant for devices that no SYCL driver serves: then it needs none on this host."""
        return self.device.partition(":")[0] in {"cpu", "cuda"}

    def variants(self, devices: tuple[str, ...]) -> tuple[Variant, ...]:
        """Return every combination, on the devices that `device` was found to mean, in the order they were written."""
        return tuple(
            Variant(device, precision, shape)
            for device, precision, shape in product(devices or ("",), self.precisions or ("",), self.shapes or ("",))
        )

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """Name what can never work: the key, and what was expected."""
        yield from self._wrong_words()
        yield from self._wrong_numbers()
        yield from self._wrong_serving()
        yield from self._wrong_comparison()
        if self.loader is Loader.COMMAND:
            for key in ("python", "target", "inputs"):
                if getattr(self, key):
                    yield key, "the loader command has a command instead; set loader"
            return
        if not self.python.startswith("/") or "\0" in self.python:
            yield "python", "expected the absolute path of the interpreter that the application runs with"
        if not self.device:
            yield "device", "expected xpu, xpu:0, xpu:*, cuda, cuda:0, cuda:* or cpu"
        if FORMS[self.loader].target is Named.FILE:
            if not self.target.startswith("/") or "\0" in self.target:
                yield "target", "expected the absolute path of the model's folder or file"
            if not self.inputs:
                yield "inputs", _REAL_INPUTS
        elif _TARGET.fullmatch(self.target) is None:
            yield "target", "expected module:function"
        if self.inputs == SHIPPED and not FORMS[self.loader].text:
            yield "inputs", f"the loader {self.loader} reads no prompts: expected a file with what it reads"
        elif self.inputs not in {"", RANDOM, SHIPPED} and (not self.inputs.startswith("/") or "\0" in self.inputs):
            yield "inputs", 'expected the absolute path of a file with text or tensors, "prompts" or "random"'

    def _wrong_serving(self) -> Iterator[tuple[str, str]]:
        if self.ready_url and not is_loopback(self.ready_url):
            yield "ready_url", "expected a URL on this host, such as http://127.0.0.1:8000/health: no other is asked"
        if self.ready_url and self.ready_line:
            yield "ready_line", "a server is ready when a URL answers or when it prints a line: give one of both"
        if self.ready_line and not (self.ready_line.isprintable() and len(self.ready_line) <= _LONGEST):
            yield "ready_line", "expected a part of one line"
        if not 0 < self.ready_timeout <= DAY:
            yield "ready_timeout", "expected more than 0 and at most 86400 seconds"
        if self.requests and not self.serves:
            yield "requests", "only a server is sent requests: say when it is ready, by ready_url or ready_line"
        if self.requests and (not self.requests.startswith("/") or "\0" in self.requests):
            yield "requests", "expected the absolute path of a file with one JSON object a line"
        if self.serves and self.loader is not Loader.COMMAND:
            yield "ready_url" if self.ready_url else "ready_line", "only a command can be a server"

    def _wrong_comparison(self) -> Iterator[tuple[str, str]]:
        if self.compare not in {"", CPU}:
            yield "compare", "expected cpu: nothing else is compared with"
        elif self.compare and not self.device:
            yield "compare", "name the device too that is compared with the CPU, such as xpu"
        elif self.compare and self.device == CPU:
            yield "compare", "it runs on the CPU: there is nothing to compare it with"

    def _wrong_words(self) -> Iterator[tuple[str, str]]:
        if self.device and _DEVICE.fullmatch(self.device) is None:
            yield "device", "expected xpu, xpu:0, xpu:*, cuda, cuda:0, cuda:* or cpu"
        for precision in self.precisions:
            if precision not in PRECISIONS:
                yield "precisions", f"unknown precision {precision!r}; known are: {', '.join(PRECISIONS)}"
        for shape in self.shapes:
            if _SHAPE.fullmatch(shape) is None:
                yield "shapes", f"expected sizes such as 1x3x224x224, of several inputs with commas; found {shape!r}"
            elif FORMS[self.loader].shape and (shape.count("x") != 1 or "," in shape):
                yield "shapes", f"expected {FORMS[self.loader].shape}; found {shape!r}"
        for key in ("precisions", "shapes"):
            if len(set(getattr(self, key))) != len(getattr(self, key)):
                yield key, "named twice"
        if len(self.precisions or ("",)) * len(self.shapes or ("",)) > _MOST_VARIANTS:
            yield "shapes", f"more than {_MOST_VARIANTS} combinations of precisions and shapes"
        if any(not path.is_absolute() or "\0" in str(path) for path in self.caches):
            yield "caches", "expected absolute paths"
        if self.require_device and not self.device:
            yield "require_device", "name the device too"

    def _wrong_numbers(self) -> Iterator[tuple[str, str]]:
        if not 1 <= self.steps <= _MOST_STEPS:
            yield "steps", f"expected 1 to {_MOST_STEPS}"
        if not 1 <= self.new_tokens <= _MOST_TOKENS:
            yield "new_tokens", f"expected 1 to {_MOST_TOKENS}"
        if not 0 <= self.min_output_tokens <= self.new_tokens:
            yield "min_output_tokens", "expected 0 to new_tokens"
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            yield "tolerance", "expected a number between 0 and 1, such as 0.05"
        for key in ("memory", "disk"):
            number = getattr(self, key)
            if number is not None and not 0 < number < 1 << 62:
                yield key, "expected a number of bytes above 0"
