"""Bring a model to life: one loader for each way in which it may be told of."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

from .run_order import Foreign, Invalid, RunOrder, Subject, Token, Unfit, torch_of

# Which types of a framework may be asked for by which names.
_TYPES = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16", "int8": "float32"}
_AUTOCAST = "autocast-"


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
    """Return the inputs as tensors: from the file, repeated or cut to the shape; or random ones of the shape."""
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
    torch = torch_of(job)
    module = torch.jit.load(str(_existing(job.target, "the model")), map_location=job.device).eval()
    if job.precision == "int8":
        raise Unfit("a saved program has its precision: quantize it before it is saved, and use as-saved")
    wanted = _type(job, torch)
    return _tensor_subject(module if wanted is None else module.to(wanted), job, torch)


def _export(job: RunOrder) -> Subject:
    torch = torch_of(job)
    if job.precision not in {"", "as-saved", "float32"} and not job.precision.startswith(_AUTOCAST):
        raise Unfit("a saved program has its precision: export it in that one, and use as-saved")
    program = torch.export.load(_existing(job.target, "the model"))
    if job.kind != "cpu":
        program = importlib.import_module("torch.export.passes").move_to_device_pass(program, job.device)
    module = program.module()
    return _tensor_subject(torch.compile(module) if job.compile else module, job, torch)


def _transformers(job: RunOrder) -> Subject:
    torch = torch_of(job)
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
    torch = torch_of(job)
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
            torch_of(job)
    made, words = _called(job)
    if not callable(made):
        raise Unfit(f"{job.target} gave {type(made).__name__}, which cannot be called")
    use = cast("Callable[[], object]", made)
    if job.compile and "compile" not in words:
        use = cast("Callable[[], object]", torch_of(job).compile(made))

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
    torch = torch_of(job)
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


LOADERS: Mapping[str, Callable[[RunOrder], Subject]] = {
    "python": _python,
    "transformers": _transformers,
    "diffusers": _diffusers,
    "torchscript": _torchscript,
    "export": _export,
    "train": _train,
}
