"""An application's own functions: `module:function`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

from ..run_order import Invalid, RunOrder, Subject, Token, Unfit, torch_of
from .precision import context


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


def python(job: RunOrder) -> Subject:
    """Call the function; one use is a call of what it returns."""
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


def train(job: RunOrder) -> Subject:
    """Call the function; one use is a step of a training."""
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
        with context(job, torch):
            loss = made["loss"](forward(inputs), targets)
        loss.backward()
        if not any(one.grad is not None for one in model.parameters()):
            raise Invalid("no parameter got a gradient: the loss does not depend on the model")
        optimizer.step()
        return loss.detach()

    return Subject(call)
