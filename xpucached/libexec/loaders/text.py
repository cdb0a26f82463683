"""Language models in folders: as transformers loads them, and quantized ones."""

from __future__ import annotations

import json
import os
import time
from types import ModuleType
from typing import cast

from ..run_order import Foreign, RunOrder, Subject, Token, Unfit, torch_of
from .inputs import existing, texts, type_of
from .precision import context, in_precision


def transformers(job: RunOrder) -> Subject:
    """Load a folder; one use writes up to `new_tokens` tokens."""
    torch = torch_of(job)
    import transformers as library  # noqa: PLC0415 - only here

    folder = existing(job.target, "the model")
    tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    wanted = type_of(job, torch) if job.precision not in {"", "as-saved"} else "auto"
    arguments = {dtype_name(library): wanted} if wanted is not None else {}
    loaded = library.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **arguments).eval()
    # What is quantized as it was saved knows its precision; it may only be brought to its place.
    return _spoken(job, loaded.to(job.device) if wanted == "auto" else in_precision(loaded, job, torch), tokenizer)


def dtype_name(library: ModuleType) -> str:
    """Return what the package calls the argument for the type of the weights."""
    return "dtype" if int(library.__version__.partition(".")[0]) > 4 else "torch_dtype"  # noqa: PLR2004 - renamed in 5


def gptq(job: RunOrder) -> Subject:
    """Load a folder that GPTQ quantized."""
    return _quantized(job, "gptq")


def awq(job: RunOrder) -> Subject:
    """Load a folder that AWQ quantized."""
    return _quantized(job, "awq")


def _quantized(job: RunOrder, method: str) -> Subject:
    """Load a quantized folder by GPTQModel, with the kernels that it chooses for the device."""
    torch_of(job)
    if job.precision not in {"", "as-saved"}:
        raise Unfit("a quantized checkpoint has its precision: use as-saved")
    folder = existing(job.target, "the model")
    told = json.loads(existing(str(folder / "config.json"), "the model's configuration").read_text(encoding="utf-8"))
    found = str((told.get("quantization_config") or {}).get("quant_method", "nothing"))
    if found != method:
        raise Unfit(f"{folder} was quantized by {found}, says its config.json; the loader is for {method}")
    # On two processors it takes one of them, and then refuses: it needs two.
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", str(max(2, ((os.cpu_count() or 1) + 1) // 2)))
    try:
        import gptqmodel  # noqa: PLC0415 - only here
    except ImportError as error:
        raise Unfit(f"this interpreter has no gptqmodel: {error}") from error
    options = dict(job.options)
    backend = options.pop("backend", None)
    arguments = {} if backend is None else {"backend": gptqmodel.BACKEND(str(backend))}
    made = gptqmodel.GPTQModel.load(str(folder), device=job.device, **arguments)
    import transformers as library  # noqa: PLC0415 - only here

    tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    plain = RunOrder.__new__(RunOrder)
    plain.__dict__.update(vars(job), options=options)
    return _spoken(plain, made.model, tokenizer)


def vllm(job: RunOrder) -> Subject:
    """Load a folder into vLLM's engine, in this process: what it compiles is seen here."""
    torch_of(job)
    folder = existing(job.target, "the model")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    try:
        from vllm import LLM, SamplingParams  # noqa: PLC0415 - only here
    except ImportError as error:
        raise Unfit(f"this interpreter has no vllm: {error}") from error
    wanted = "auto" if job.precision in {"", "as-saved"} else job.precision
    if wanted not in {"auto", "float32", "float16", "bfloat16"}:
        raise Unfit(f"vLLM takes no {wanted}: name float32, float16, bfloat16 or as-saved")
    engine = LLM(model=str(folder), dtype=wanted, enforce_eager=not job.compile, **job.options)
    lines = ["Once upon a time"] if job.inputs == "random" else texts(job)
    rows = job.sizes[0][0] if job.sizes else 1
    how = SamplingParams(temperature=0.0, max_tokens=job.new_tokens)
    turn = iter(range(1 << 62))

    def call() -> object:
        first = next(turn)
        began = time.monotonic()
        done = engine.generate([lines[(first + row) % len(lines)] for row in range(rows)], how, use_tqdm=False)
        # It gives no token before the last: of how they came nothing is known.
        token = subject.token = Token(began)
        token.prompt, token.bound = first % len(lines), job.new_tokens
        token.answers = [list(one.outputs[0].token_ids) for one in done]
        token.fewest = min(len(one.outputs[0].token_ids) if one.outputs[0].text.strip() else 0 for one in done)
        return None

    subject = Subject(call)
    subject.prompts = len(lines)
    return subject


def _spoken(job: RunOrder, model: Foreign, tokenizer: Foreign) -> Subject:
    torch = torch_of(job)
    if job.compile:
        setattr(model, "forward", torch.compile(model.forward))  # noqa: B010 - of a foreign thing
    prompts = _prompts(job, torch, tokenizer, int(model.config.vocab_size))
    ends = {*_ids(model.generation_config.eos_token_id), *_ids(tokenizer.eos_token_id)}
    pad = cast("int | None", tokenizer.pad_token_id)
    turn = iter(range(1 << 62))

    def call() -> object:
        asked = next(turn) % len(prompts)
        prompt = prompts[asked]
        streamer = Streamer(time.monotonic())
        with torch.no_grad(), context(job, torch):
            ids = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=job.new_tokens,
                streamer=streamer,
                pad_token_id=min(ends or {0}) if pad is None else pad,
                **job.options,
            )
        fresh = cast("list[list[int]]", ids[:, prompt.shape[1] :].tolist())
        said = [str(tokenizer.decode(row, skip_special_tokens=True)) for row in fresh]
        answers = [[one for one in row if one not in ends] for row in fresh]
        streamer.token.fewest = min(len(row) if text.strip() else 0 for row, text in zip(answers, said))
        streamer.token.prompt, streamer.token.answers, streamer.token.bound = asked, answers, job.new_tokens
        subject.token = streamer.token
        return ids

    def logits() -> object:
        with torch.no_grad(), context(job, torch):
            return model(prompts[0]).logits

    subject = Subject(call, logits)
    subject.prompts = len(prompts)
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
    lines = texts(job)
    if not job.sizes:
        return [torch.tensor([_tokens(tokenizer, text)], device=job.device) for text in lines]
    batch, length = job.sizes[0]
    tokens = _tokens(tokenizer, "\n".join(lines))
    # Real text goes on and on: each row begins where the one before ended.
    tokens *= -(-batch * length // len(tokens))
    return [torch.tensor([tokens[row * length : (row + 1) * length] for row in range(batch)], device=job.device)]


def _tokens(tokenizer: Foreign, text: str) -> list[int]:
    found = cast("list[int]", list(tokenizer(text)["input_ids"]))
    if not found:
        raise Unfit("the tokenizer makes nothing of the inputs")
    return found


class Streamer:
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
