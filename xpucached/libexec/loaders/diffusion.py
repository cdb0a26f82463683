"""Pipelines that draw."""

from __future__ import annotations

import inspect

from ..run_order import RunOrder, Subject, Unfit, torch_of
from .inputs import existing, texts, type_of
from .precision import context, refuse_quantizing


def diffusers(job: RunOrder) -> Subject:
    """Load a folder; one use draws."""
    torch = torch_of(job)
    refuse_quantizing(job, "a pipeline is not quantized while it is loaded: save it so, and use as-saved")
    try:
        import diffusers as library  # noqa: PLC0415 - only here
    except ImportError as error:
        raise Unfit(f"this interpreter has no diffusers: {error}") from error
    wanted = type_of(job, torch)
    arguments = {} if wanted is None else {"torch_dtype": wanted}
    pipeline = library.DiffusionPipeline.from_pretrained(
        existing(job.target, "the model"), local_files_only=True, **arguments
    ).to(job.device)
    pipeline.set_progress_bar_config(disable=True)
    if job.compile:
        name = "transformer" if hasattr(pipeline, "transformer") else "unet"
        setattr(pipeline, name, torch.compile(getattr(pipeline, name)))
    known = inspect.signature(pipeline.__call__).parameters
    given = dict(job.options)
    prompts = texts(job) if "prompt" in known and job.inputs != "random" else ["a house by the sea"]
    if job.sizes and "width" in known:
        given["width"], given["height"] = job.sizes[0]
    given["output_type"] = "np"
    turn = iter(range(1 << 62))

    def call() -> object:
        if "prompt" in known:
            given["prompt"] = prompts[next(turn) % len(prompts)]
        if "generator" in known:
            given["generator"] = torch.Generator("cpu").manual_seed(0)
        with context(job, torch):
            return torch.as_tensor(pipeline(**given).images)

    return Subject(call)
