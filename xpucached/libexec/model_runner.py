"""Act: the child that brings a model to life, uses it, and tells what it saw; the only home of torch.

It is started by path with the model's own interpreter, so it is one file, and knows nothing but the standard library
and what that interpreter offers; it must run on Python 3.9.  It takes a job as JSON on stdin, and answers with lines of
JSON on the descriptor that ``--fd`` names.  Each answer carries the job's token: the model's code may write there too,
and its lines are not ours.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import importlib
import inspect
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast


class Foreign(Protocol):
    """A thing of a framework, of which we know that it has what we ask it for."""

    def __getattr__(self, name: str) -> Foreign: ...
    def __call__(self, *given: object, **named: object) -> Foreign: ...
    def __getitem__(self, key: object) -> Foreign: ...
    def __iter__(self) -> Iterator[Foreign]: ...
    def __sub__(self, other: object) -> Foreign: ...
    def __mul__(self, other: object) -> Foreign: ...
    def __pow__(self, other: object) -> Foreign: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...


# Which types of a framework may be asked for by which names.
_TYPES = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16", "int8": "float32"}
_AUTOCAST = "autocast-"
_LONGEST = 500
_MOST_PATHS = 200_000


class Unfit(Exception):
    """The job cannot be done with this model or this interpreter; the text says why."""


class Invalid(Exception):
    """The model ran, but what it gave cannot be right."""


class Token:
    """When the tokens of one text came, and how many there were for the row that got the fewest."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.times: list[float] = []
        self.fewest = 0

    @property
    def first(self) -> float:
        """Seconds to the first one."""
        return self.times[0] - self.began

    @property
    def each(self) -> float | None:
        """Seconds per further one: (end - first) / (n - 1)."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1) if len(self.times) > 1 else None


class RunOrder:
    """What is asked for."""

    def __init__(self, given: Mapping[str, object]) -> None:
        exercise = cast("Mapping[str, object]", given["exercise"])
        variant = cast("Mapping[str, str]", given["variant"])
        self.token = str(given["token"])
        self.loader = str(exercise["loader"])
        self.target = str(exercise["target"])
        self.inputs = str(exercise["inputs"])
        self.compile = bool(exercise["compile"])
        self.steps = int(cast("int", exercise["steps"]))
        self.new_tokens = int(cast("int", exercise["new_tokens"]))
        self.min_output_tokens = int(cast("int", exercise["min_output_tokens"]))
        self.tolerance = cast("float | None", exercise["tolerance"])
        self.options = {key: _parsed(text) for key, text in cast("Mapping[str, str]", exercise["options"]).items()}
        self.device = variant["device"] or str(exercise["device"])
        self.precision = variant["precision"]
        self.shape = variant["shape"]
        self.compare = bool(given.get("compare"))

    @property
    def sizes(self) -> list[list[int]]:
        """Give the shape as numbers, one list per input."""
        return [[int(size) for size in part.split("x")] for part in self.shape.split(",")] if self.shape else []

    @property
    def kind(self) -> str:
        """Give the type of the device, without its number."""
        return self.device.partition(":")[0]


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


class Subject:
    """A model that is ready for use."""

    def __init__(self, call: Callable[[], object], logits: Callable[[], object] | None = None) -> None:
        self.call = call
        self.logits = logits or call  #: what is compared with float32
        self.token: Token | None = None  #: of the newest use


# -- loaders --------------------------------------------------------------------------------------------------------


def _torch(job: RunOrder) -> ModuleType:
    try:
        import torch  # noqa: PLC0415 - only here
    except ImportError as error:
        raise Unfit(f"this interpreter has no torch: {error}") from error
    module = cast("ModuleType", torch)
    if job.kind == "xpu" and not _offers(module, "xpu"):
        # Torch before 2.4 knows these devices only through it.  It is archived, and beside another torch than its own
        # it does not even load: then we do without.
        with contextlib.suppress(Exception):
            import intel_extension_for_pytorch  # noqa: F401, PLC0415 - it is its import that works
    if job.kind != "cpu" and not _offers(module, job.kind):
        raise Unfit(f"torch {module.__version__} of this interpreter sees no device {job.kind}")
    count = 1 if job.kind == "cpu" else int(getattr(module, job.kind).device_count())
    number = job.device.partition(":")[2]
    if number.isdigit() and int(number) >= count:
        raise Unfit(f"there is no {job.device}: torch sees {count}")
    if job.kind != "cpu" and number.isdigit():
        getattr(module, job.kind).set_device(int(number))
    return module


def _offers(torch: ModuleType, kind: str) -> bool:
    part = getattr(torch, kind, None)
    return part is not None and bool(part.is_available())


def _existing(path: str, what: str) -> Path:
    place = Path(path)
    if not place.exists():
        raise Unfit(f"{what} is not there: {path}")
    return place


def _texts(job: RunOrder) -> list[str]:
    content = _existing(job.inputs, "the file with the inputs").read_text(encoding="utf-8")
    texts = [line for line in content.splitlines() if line.strip()]
    if not texts:
        raise Unfit(f"{job.inputs} has no text")
    return texts


def _type(job: RunOrder, torch: ModuleType) -> object:
    return getattr(torch, _TYPES.get(job.precision, ""), None)


def _tensors(job: RunOrder, torch: ModuleType) -> list[Foreign]:
    """Give the inputs as tensors: from the file, repeated or cut to the shape; or random ones of the shape."""
    if job.inputs == "random":
        if not job.sizes:
            raise Unfit("random inputs need a shape")
        found = [torch.randn(*sizes) for sizes in job.sizes]
    else:
        found = _read_tensors(_existing(job.inputs, "the file with the inputs"), torch)
        if job.sizes and len(job.sizes) != len(found):
            raise Unfit(f"{job.inputs} has {len(found)} tensors, the shape {job.shape} is for {len(job.sizes)}")
        found = [_fitted(one, sizes) for one, sizes in zip(found, job.sizes)] if job.sizes else found
    wanted = _type(job, torch)
    return [_moved(one, job, wanted) for one in found]


def _moved(tensor: Foreign, job: RunOrder, wanted: object) -> Foreign:
    moved = tensor.to(job.device)
    return moved.to(wanted) if wanted is not None and bool(moved.is_floating_point()) else moved


def _fitted(tensor: Foreign, sizes: Sequence[int]) -> Foreign:
    if int(tensor.dim()) != len(sizes):
        raise Unfit(f"a shape of {len(sizes)} sizes is for other inputs: theirs is {list(tensor.shape)}")
    fitted = tensor.repeat(*(-(-size // int(have)) for size, have in zip(sizes, tensor.shape)))
    return fitted[tuple(slice(size) for size in sizes)]


def _read_tensors(path: Path, torch: ModuleType) -> list[Foreign]:
    if path.suffix == ".npy":
        import numpy  # noqa: ICN001, PLC0415 - only here

        return [torch.from_numpy(numpy.load(path, allow_pickle=False))]
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file  # noqa: PLC0415 - only here

        content = load_file(path)
    else:
        content = torch.load(path, map_location="cpu", weights_only=True)
    parts = list(content.values()) if isinstance(content, dict) else content
    found = list(parts) if isinstance(parts, (list, tuple)) else [parts]
    if not found or not all(isinstance(one, torch.Tensor) for one in found):
        raise Unfit(f"{path} holds something else than tensors")
    return found


def _context(job: RunOrder, torch: ModuleType) -> contextlib.AbstractContextManager[object]:
    if job.precision.startswith(_AUTOCAST):
        wanted = getattr(torch, job.precision[len(_AUTOCAST) :])
        return cast("contextlib.AbstractContextManager[object]", torch.autocast(job.kind, dtype=wanted))
    return contextlib.nullcontext()


def _in_precision(module: Foreign, job: RunOrder, torch: ModuleType) -> Foreign:
    """Bring a module to the device and the precision."""
    if job.precision == "int8":
        if job.kind == "cpu" and hasattr(torch.ao.quantization, "quantize_dynamic"):
            quantize = cast("Foreign", torch.ao.quantization.quantize_dynamic)
            return quantize(module, {torch.nn.Linear}, dtype=torch.qint8)
        try:
            from torchao.quantization import Int8WeightOnlyConfig, quantize_  # noqa: PLC0415 - only here
        except ImportError as error:
            raise Unfit("int8 on this device needs torchao in this interpreter") from error
        moved = module.to(job.device)
        quantize_(moved, Int8WeightOnlyConfig())
        return moved
    moved = module.to(job.device)
    wanted = _type(job, torch)
    return moved if wanted is None else moved.to(wanted)


def _tensor_subject(module: Callable[..., object], job: RunOrder, torch: ModuleType) -> Subject:
    inputs = _tensors(job, torch)

    def call() -> object:
        with torch.no_grad(), _context(job, torch):
            return module(*inputs)

    return Subject(call)


def _torchscript(job: RunOrder) -> Subject:
    torch = _torch(job)
    module = torch.jit.load(str(_existing(job.target, "the model")), map_location=job.device).eval()
    if job.precision == "int8":
        raise Unfit("a saved program has its precision: quantize it before it is saved, and use as-saved")
    wanted = _type(job, torch)
    return _tensor_subject(module if wanted is None else module.to(wanted), job, torch)


def _export(job: RunOrder) -> Subject:
    torch = _torch(job)
    if job.precision not in {"", "as-saved", "float32"} and not job.precision.startswith(_AUTOCAST):
        raise Unfit("a saved program has its precision: export it in that one, and use as-saved")
    program = torch.export.load(_existing(job.target, "the model"))
    if job.kind != "cpu":
        program = importlib.import_module("torch.export.passes").move_to_device_pass(program, job.device)
    module = program.module()
    return _tensor_subject(torch.compile(module) if job.compile else module, job, torch)


def _transformers(job: RunOrder) -> Subject:
    torch = _torch(job)
    import transformers  # noqa: PLC0415 - only here

    folder = _existing(job.target, "the model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    wanted = _type(job, torch) if job.precision not in {"", "as-saved"} else "auto"
    name = "dtype" if int(transformers.__version__.partition(".")[0]) > 4 else "torch_dtype"  # noqa: PLR2004 - renamed in 5
    arguments = {name: wanted} if wanted is not None else {}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **arguments).eval()
    # What is quantized as it was saved knows its precision; it may only be brought to its place.
    model: Foreign = loaded.to(job.device) if wanted == "auto" else _in_precision(loaded, job, torch)
    if job.compile:
        setattr(model, "forward", torch.compile(model.forward))  # noqa: B010 - of a foreign thing
    prompts = _prompts(job, torch, tokenizer, int(model.config.vocab_size))
    ends = {*_ids(model.generation_config.eos_token_id), *_ids(tokenizer.eos_token_id)}
    turn = iter(range(1 << 62))

    def call() -> object:
        prompt = prompts[next(turn) % len(prompts)]
        streamer = _Streamer(time.monotonic())
        with torch.no_grad(), _context(job, torch):
            ids = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=job.new_tokens,
                streamer=streamer,
                pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(ends or {0}),
                **job.options,
            )
        fresh = cast("list[list[int]]", ids[:, prompt.shape[1] :].tolist())
        texts = [tokenizer.decode(row, skip_special_tokens=True) for row in fresh]
        counts = [
            len([one for one in row if one not in ends]) if text.strip() else 0 for row, text in zip(fresh, texts)
        ]
        streamer.token.fewest = min(counts)
        subject.token = streamer.token
        return ids

    def logits() -> object:
        with torch.no_grad(), _context(job, torch):
            return model(prompts[0]).logits

    subject = Subject(call, logits)
    return subject


def _ids(value: object) -> list[int]:
    return (
        [int(one) for one in value]
        if isinstance(value, (list, tuple))
        else []
        if value is None
        else [int(cast("int", value))]
    )


def _prompts(job: RunOrder, torch: ModuleType, tokenizer: Foreign, words: int) -> list[Foreign]:
    if job.inputs == "random":
        batch, length = job.sizes[0] if job.sizes else (1, 32)
        return [torch.randint(0, words, (batch, length), device=job.device)]
    texts = _texts(job)
    if not job.sizes:
        return [torch.tensor([_tokens(tokenizer, text)], device=job.device) for text in texts]
    batch, length = job.sizes[0]
    tokens = _tokens(tokenizer, "\n".join(texts))
    # Real text goes on and on: each row begins where the one before ended.
    tokens *= -(-batch * length // len(tokens))
    return [torch.tensor([tokens[row * length : (row + 1) * length] for row in range(batch)], device=job.device)]


def _tokens(tokenizer: Foreign, text: str) -> list[int]:
    found = cast("list[int]", list(tokenizer(text)["input_ids"]))
    if not found:
        raise Unfit("the tokenizer makes nothing of the inputs")
    return found


class _Streamer:
    """Is told of tokens as they come, by `generate`."""

    def __init__(self, began: float) -> None:
        self.token = Token(began)
        self._prompt = True

    def put(self, value: object) -> None:
        if self._prompt:
            self._prompt = False
        else:
            _ = value.cpu() if hasattr(value, "cpu") else value  # a device is waited for
            self.token.times.append(time.monotonic())

    def end(self) -> None:
        """Nothing is left to do."""


def _diffusers(job: RunOrder) -> Subject:
    torch = _torch(job)
    try:
        import diffusers  # noqa: PLC0415 - only here
    except ImportError as error:
        raise Unfit(f"this interpreter has no diffusers: {error}") from error
    wanted = _type(job, torch)
    arguments = {} if wanted is None else {"torch_dtype": wanted}
    pipeline = diffusers.DiffusionPipeline.from_pretrained(
        _existing(job.target, "the model"), local_files_only=True, **arguments
    ).to(job.device)
    pipeline.set_progress_bar_config(disable=True)
    if job.compile:
        name = "transformer" if hasattr(pipeline, "transformer") else "unet"
        setattr(pipeline, name, torch.compile(getattr(pipeline, name)))
    known = inspect.signature(pipeline.__call__).parameters
    given = dict(job.options)
    prompts = _texts(job) if "prompt" in known and job.inputs != "random" else ["a house by the sea"]
    if job.sizes and "width" in known:
        given["width"], given["height"] = job.sizes[0]
    given["output_type"] = "np"
    turn = iter(range(1 << 62))

    def call() -> object:
        if "prompt" in known:
            given["prompt"] = prompts[next(turn) % len(prompts)]
        if "generator" in known:
            given["generator"] = torch.Generator("cpu").manual_seed(0)
        with _context(job, torch):
            return torch.as_tensor(pipeline(**given).images)

    return Subject(call)


def _function(job: RunOrder) -> Callable[..., object]:
    # As `python -m` does; for the other loaders nothing there is meant, and its names may be those of libraries.
    sys.path.insert(0, str(Path.cwd()))
    name, _, path = job.target.partition(":")
    found: object = importlib.import_module(name)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise Unfit(f"{job.target} cannot be called")
    return found


def _called(job: RunOrder) -> tuple[object, frozenset[str]]:
    """Call the application's function with those of our words that it knows; give what it returns, and the words."""
    function = _function(job)
    offered: dict[str, object] = {
        "device": job.device,
        "precision": job.precision,
        "shape": tuple(tuple(sizes) for sizes in job.sizes),
        "compile": job.compile,
        "inputs": job.inputs,
        **job.options,
    }
    parameters = inspect.signature(function).parameters
    anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    unknown = sorted(set(job.options) - set(parameters)) if not anything else []
    if unknown:
        raise Unfit(f"{job.target} takes no {', '.join(unknown)}")
    words = {
        key: value
        for key, value in offered.items()
        # What the variant leaves open, the function may have its own mind about.
        if (anything and value not in ((), ""))
        or (key in parameters and (value not in ((), "") or parameters[key].default is inspect.Parameter.empty))
    }
    if job.precision and "precision" not in words:
        raise Unfit(f"{job.target} takes no precision: give it that parameter, or name no precisions")
    if job.shape and "shape" not in words:
        raise Unfit(f"{job.target} takes no shape: give it that parameter, or name no shapes")
    return function(**words), frozenset(words)


def _python(job: RunOrder) -> Subject:
    if job.kind != "cpu" or "torch" in sys.modules:
        with contextlib.suppress(Unfit):
            _torch(job)
    made, words = _called(job)
    if not callable(made):
        raise Unfit(f"{job.target} gave {type(made).__name__}, which cannot be called")
    use = cast("Callable[[], object]", made)
    if job.compile and "compile" not in words:
        use = cast("Callable[[], object]", _torch(job).compile(made))

    def call() -> object:
        began = time.monotonic()
        result = use()
        subject.token = None
        if isinstance(result, Iterator):
            # A text as it comes, one token after the other.
            token = subject.token = Token(began)
            for one in result:
                if one is not None and not (isinstance(one, str) and not one):
                    token.times.append(time.monotonic())
            token.fewest = len(token.times)
        elif isinstance(result, str) or (isinstance(result, (list, tuple)) and result and isinstance(result[0], str)):
            texts = [result] if isinstance(result, str) else result
            subject.token = Token(began)
            subject.token.fewest = min(len(text.split()) for text in texts)
        return result

    subject = Subject(call)
    return subject


def _train(job: RunOrder) -> Subject:
    torch = _torch(job)
    made, words = _called(job)
    if callable(made):
        return Subject(made)
    if not isinstance(made, Mapping) or not {"model", "loss", "optimizer", "batch"} <= set(made):
        raise Unfit(f"{job.target} must give a callable, or a mapping with model, loss, optimizer and batch")
    model, optimizer = made["model"], made["optimizer"]
    inputs, targets = made["batch"]
    forward = torch.compile(model) if job.compile and "compile" not in words else model

    def call() -> object:
        optimizer.zero_grad()
        with _context(job, torch):
            loss = made["loss"](forward(inputs), targets)
        loss.backward()
        if not any(one.grad is not None for one in model.parameters()):
            raise Invalid("no parameter got a gradient: the loss does not depend on the model")
        optimizer.step()
        return loss.detach()

    return Subject(call)


_LOADERS: Mapping[str, Callable[[RunOrder], Subject]] = {
    "python": _python,
    "transformers": _transformers,
    "diffusers": _diffusers,
    "torchscript": _torchscript,
    "export": _export,
    "train": _train,
}


# -- what is seen ---------------------------------------------------------------------------------------------------


def _wait(job: RunOrder) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and job.kind != "cpu" and _offers(torch, job.kind):
        getattr(torch, job.kind).synchronize()


def _found_tensors(value: object, depth: int = 0) -> Iterator[Foreign]:
    """Give the tensors in a value."""
    torch = sys.modules.get("torch")
    if torch is None or depth > 4:  # noqa: PLR2004 - nobody nests results deeper
        return
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _found_tensors(one, depth + 1)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _found_tensors(one, depth + 1)


def _parameters() -> dict[str, int]:
    """Give the bytes of all living modules' parameters and buffers, by the type of their device."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    seen: dict[int, tuple[str, int]] = {}
    for one in gc.get_objects():
        # By its type: what pretends to be a module (a proxy, a lazy import) would come to life when it is asked.
        if not issubclass(type(one), torch.nn.Module):
            continue
        with contextlib.suppress(Exception):
            for tensor in [*one.parameters(recurse=False), *one.buffers(recurse=False)]:
                seen[id(tensor)] = (tensor.device.type, tensor.numel() * tensor.element_size())
    sums: dict[str, int] = {}
    for kind, size in seen.values():
        sums[kind] = sums.get(kind, 0) + size
    return sums


def _finite(value: object) -> None:
    torch = sys.modules.get("torch")
    for tensor in _found_tensors(value):
        # A tensor on "meta" has no values.
        if (
            torch is not None
            and str(tensor.device) != "meta"
            and bool(tensor.is_floating_point())
            and not bool(torch.isfinite(tensor).all())
        ):
            raise Invalid("its outputs are not finite")


def _where(job: RunOrder, result: object) -> tuple[str, str, list[str], int | None]:
    """Tell whether the work was done on the device it was meant for: verdict, device, evidence, peak memory."""
    evidence: list[str] = []
    votes: list[bool] = []
    parameters = _parameters()
    total = sum(parameters.values())
    if total:
        evidence += [f"{size} bytes of parameters live on {kind}" for kind, size in sorted(parameters.items())]
        votes.append(parameters.get(job.kind, 0) * 2 >= total)
    outputs = sorted({str(tensor.device.type) for tensor in _found_tensors(result)})
    if outputs and job.loader != "diffusers":
        evidence.append(f"outputs live on {', '.join(outputs)}")
        # A result may be fetched to the host, so there it says nothing against a device that has the parameters.
        if job.kind in outputs or not total:
            votes.append(job.kind in outputs)
    torch, memory = sys.modules.get("torch"), None
    if torch is not None and job.kind != "cpu" and _offers(torch, job.kind):
        memory = int(getattr(torch, job.kind).max_memory_allocated())
        evidence.append(f"{memory} bytes were allocated on {job.kind} at most")
        votes.append(memory > 0)
    if not votes:
        return "unknown", "", evidence, memory
    if all(votes):
        return "meant", _device_name(job), evidence, memory
    return "other", ", ".join(sorted(parameters) or outputs), evidence, memory


def _own_modules() -> list[str]:
    """Give the files of the loaded modules that are part of neither Python nor an installed package."""
    standard = os.path.dirname(os.path.realpath(os.__file__)) + "/"  # noqa: PTH120 - text beside text
    found: set[str] = set()
    size = 0
    for module in list(sys.modules.values()):
        # What stands there may be anything, and come to life when it is asked.
        path = vars(module).get("__file__") if type(module) is ModuleType else None
        # This file is no part of the model: a new version of xpucached is no reason to prove it anew.
        if not isinstance(path, str) or not path.startswith("/") or path in found or path == __file__:
            continue
        installed = any(part in {"site-packages", "dist-packages"} for part in path.split("/"))
        size += len(path)
        if not installed and not os.path.realpath(path).startswith(standard) and size < _MOST_PATHS:
            found.add(path)
    return sorted(found)


def _device_name(job: RunOrder) -> str:
    torch = sys.modules.get("torch")
    if torch is None or job.kind == "cpu":
        return "cpu"
    part = getattr(torch, job.kind)
    number = int(part.current_device())
    return f"{job.kind}:{number} {part.get_device_name(number)}"


def _devices(job: RunOrder) -> list[str]:
    """Give one device of each distinct environment."""
    torch = _torch(job)
    if job.kind == "cpu":
        return ["cpu"]
    part = getattr(torch, job.kind)
    found: dict[str, str] = {}
    for number in range(int(part.device_count())):
        known = part.get_device_properties(number)
        words = ("name", "platform_name", "driver_version", "version", "major", "minor")
        found.setdefault(repr([getattr(known, word, None) for word in words]), f"{job.kind}:{number}")
    return list(found.values())


# -- the measurement ------------------------------------------------------------------------------------------------


def _measure(job: RunOrder) -> dict[str, object]:
    began = time.monotonic()
    subject = _LOADERS[job.loader](job)
    _wait(job)
    loaded = time.monotonic() - began
    spans: list[float] = []
    tokens: list[Token] = []
    result: object = None
    for _ in range(job.steps):
        began = time.monotonic()
        result = subject.call()
        _wait(job)
        spans.append(time.monotonic() - began)
        if subject.token is not None:
            tokens.append(subject.token)
    verdict, device, evidence, memory = _where(job, result)
    figures: dict[str, object] = {
        "load_seconds": loaded,
        "first_seconds": spans[0],
        "steady_seconds": statistics.median(spans[1:]) if len(spans) > 1 else None,
        "device_memory": memory,
    }
    report: dict[str, object] = {"ran_on": verdict, "device": device, "evidence": evidence, "figures": figures}
    report["files"] = _own_modules()
    try:
        _finite(result)
        figures.update(_token_figures(job, tokens))
        if job.compare and job.tolerance is not None and job.precision not in {"", "float32"}:
            figures["error"] = _distance(job, subject)
    except Invalid as problem:
        report |= {"outcome": "invalid", "problem": str(problem)}
    return report


def _token_figures(job: RunOrder, tokens: Sequence[Token]) -> dict[str, object]:
    if not tokens:
        return {}
    fewest = min(one.fewest for one in tokens)
    if fewest < job.min_output_tokens:
        empty = sum(one.fewest < job.min_output_tokens for one in tokens)
        raise Invalid(
            f"{empty} of {len(tokens)} uses gave fewer than {job.min_output_tokens} tokens (the fewest: {fewest}): "
            "their times mean nothing"
        )
    # The first use compiles; where there are others, they tell.
    steady = [one for one in (tokens[1:] or tokens) if one.times]
    each = sorted(one.each for one in steady if one.each is not None)
    return {
        "tokens": fewest,
        "first_token_seconds": statistics.median(one.first for one in steady) if steady else None,
        "token_seconds": statistics.median(each) if each else None,
        "token_seconds_p95": each[min(len(each) - 1, math.ceil(0.95 * len(each)) - 1)] if each else None,
    }


def _distance(job: RunOrder, subject: Subject) -> float:
    """Compare with float32: how far the outputs are from it, relative to its size."""
    torch = _torch(job)

    def outputs(one: Subject) -> list[Foreign]:
        return [tensor.detach().to("cpu", torch.float32) for tensor in _found_tensors(one.logits())]

    low = outputs(subject)
    plain = RunOrder.__new__(RunOrder)
    plain.__dict__.update(vars(job), precision="float32", compile=False)
    high = outputs(_LOADERS[job.loader](plain))
    if not low or [one.shape for one in low] != [one.shape for one in high]:
        raise Invalid("its outputs cannot be compared with those of float32")
    gap = math.sqrt(sum(float(((a - b) ** 2).sum()) for a, b in zip(low, high)))
    size = math.sqrt(sum(float((b**2).sum()) for b in high))
    error = gap / size if size else gap
    if not error <= cast("float", job.tolerance):
        raise Invalid(
            f"its outputs are {error:.3g} from those of float32, relative to their size; {job.tolerance:g} is allowed"
        )
    return error


# -- the child ------------------------------------------------------------------------------------------------------


def _answer(descriptor: int, token: str, report: Mapping[str, object]) -> None:
    # A line of its own, whatever the model's code wrote here before.
    view = memoryview(b"\n" + json.dumps({"token": token, "report": report}).encode() + b"\n")
    while view:
        view = view[os.write(descriptor, view) :]


def _is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (
            isinstance(error, RuntimeError)
            and ("not enough memory" in str(error) or "out of memory" in str(error).lower())
        )
    )


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.EFBIG, errno.ENOSPC, errno.EDQUOT}


def _in_words(error: BaseException) -> str:
    words = " ".join(str(error).split())[:_LONGEST]
    told = f"{type(error).__name__}: {words}" if words else type(error).__name__
    # What is said last is often only that something failed; what failed was said first.
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return told if first is error else f"{told} (because of {_in_words(first)})"


def _work(given: Mapping[str, object]) -> dict[str, object]:
    job = RunOrder(given)
    try:
        return {"devices": _devices(job)} if given.get("what") == "devices" else _measure(job)
    except Unfit as problem:
        return {"outcome": "failed", "problem": str(problem)}
    except Invalid as problem:
        return {"outcome": "invalid", "problem": str(problem)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the model's code is not ours
        traceback.print_exc()
        outcome = "over-memory" if _is_out_of_memory(error) else "over-disk" if _is_full(error) else "failed"
        return {"outcome": outcome, "problem": _in_words(error)}


def main() -> int:
    """Do one job, and leave without giving the driver a chance to fail at exit."""
    # Where this file lies there are modules with common names; the application's are meant.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if place != here]
    parser = argparse.ArgumentParser(
        prog="model_runner", description="Bring a model to life, use it, and tell what was seen."
    )
    parser.add_argument("--fd", type=int, required=True, help="where the answers go")
    descriptor = parser.parse_args().fd
    # What the model starts has no business there.
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - so it is called
    given = json.loads(sys.stdin.buffer.read())
    report = _work(given)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    _answer(descriptor, str(given["token"]), report)
    os._exit(1 if "problem" in report else 0)


if __name__ == "__main__":
    main()
