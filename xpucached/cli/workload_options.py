"""Door: the options of `model add` that say how a model is brought to life."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import quantities
from xpucached.domain.workloads import FORMS, PRECISIONS, RANDOM, SHIPPED, Loader, Named, RunSpec
from xpucached.errors import RequestError

if TYPE_CHECKING:
    import argparse


_WORDS: Final = frozenset({"", RANDOM, SHIPPED})
"""What ``--inputs`` may say that is no file."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare them; what each means is in ``docs/models.md``."""
    group = parser.add_argument_group("instead of a command, and what is proven (docs/models.md)")
    loaders = [*map(str, Loader)]
    group.add_argument(
        "--loader", choices=loaders, metavar="L", default=str(Loader.COMMAND), help=f"one of {', '.join(loaders)}"
    )
    group.add_argument("--python", default="", metavar="PATH", help="the interpreter that the application runs with")
    group.add_argument("--target", default="", metavar="T", help="the model's folder or file, or module:function")
    group.add_argument("--inputs", default="", metavar="FILE", help="real text or tensors; or: prompts, random")
    group.add_argument("--device", default="", metavar="D", help="xpu, xpu:0, xpu:*, the same with cuda, or cpu")
    group.add_argument("--precision", action="append", default=[], metavar="P", help=f"one of {', '.join(PRECISIONS)}")
    group.add_argument("--shape", action="append", default=[], metavar="S", help="1x3x224x224; of text BATCHxLENGTH")
    group.add_argument("--compile", action="store_true", help="through torch.compile")
    group.add_argument("--steps", type=int, default=5, metavar="N", help="uses in one pass (default: 5)")
    group.add_argument("--new-tokens", type=int, default=16, metavar="N", help="generated at most (default: 16)")
    group.add_argument("--min-output-tokens", type=int, default=1, metavar="N", help="fewer are invalid (default: 1)")
    group.add_argument("--tolerance", type=float, metavar="X", help="distance from float32 that is allowed")
    group.add_argument("--require-device", action="store_true", help="fail if nothing shows that it ran there")
    group.add_argument("--compare", default="", metavar="cpu", help="run it once more on the CPU, and tell both times")
    group.add_argument("--cache", action="append", default=[], metavar="PATH", help="a further cache to watch")
    group.add_argument("--memory", metavar="SIZE", help="what it may take (default: what can be spared)")
    group.add_argument("--disk", metavar="SIZE", help="what it may write to its temporary directory (default: 10GiB)")
    group.add_argument("--ready-url", default="", metavar="URL", help="it is a server, and ready when this answers")
    group.add_argument("--ready-line", default="", metavar="TEXT", help="it is a server, and ready when it prints this")
    group.add_argument("--ready-timeout", default="10m", metavar="T", help="in which it has to be ready (10m)")
    group.add_argument("--requests", default="", metavar="FILE", help="what a server is sent: one JSON object a line")
    group.add_argument("--option", action="append", default=[], metavar="K=V", help="for the function or the loader")


def read(given: argparse.Namespace) -> RunSpec:
    """Return what the options say.  Raises `RequestError` for what can never work."""
    here = Path.cwd()
    options = {}
    for text in given.option:
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise RequestError(f"expected NAME=VALUE: {text!r}", hint="xpucachectl model add --help")
        options[name] = value
    loader = Loader(given.loader)
    is_file = FORMS[loader].target is Named.FILE
    exercise = RunSpec(
        loader=loader,
        python=str(here / given.python) if given.python else "",
        target=str(here / given.target) if given.target and is_file else given.target,
        inputs=str(here / given.inputs) if given.inputs not in _WORDS else given.inputs,
        compile=given.compile,
        steps=given.steps,
        new_tokens=given.new_tokens,
        min_output_tokens=given.min_output_tokens,
        tolerance=given.tolerance,
        device=given.device,
        precisions=tuple(given.precision),
        shapes=tuple(given.shape),
        require_device=given.require_device,
        caches=tuple(here / path for path in given.cache),
        memory=_size(given.memory),
        disk=_size(given.disk),
        options=options,
        ready_url=given.ready_url,
        ready_line=given.ready_line,
        ready_timeout=_duration(given.ready_timeout),
        requests=str(here / given.requests) if given.requests else "",
        compare=given.compare,
    )
    if is_file and exercise.target:
        _see("target", exercise.target)
    if exercise.inputs not in _WORDS:
        _see("inputs", exercise.inputs)
    mistakes = [f"{key.replace('_', '-')}: {expected}" for key, expected in exercise.mistakes()]
    if mistakes:
        raise RequestError("; ".join(mistakes), hint="xpucachectl model add --help")
    if exercise.requests:
        _see_requests(exercise)
    return exercise


def _see(option: str, path: str) -> None:
    """Refuse a path where nothing is."""
    try:
        os.stat(path)  # noqa: PTH116 - pathlib's questions do not say why
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        message = f"--{option} {path}: {why}"
        raise RequestError(message, hint=f"--{option} names what is loaded; give its path as it is here") from error


def _see_requests(exercise: RunSpec) -> None:
    from xpucached.processes import serving  # noqa: PLC0415 - hardly any model has such a file

    try:
        serving.read(exercise.requests, exercise.ready_url)
    except serving.BadRequestsFile as error:
        hint = 'a line is such as: {"method": "POST", "path": "/v1/completions", "body": {"prompt": "Hello"}}'
        raise RequestError(f"--requests: {error}", hint=hint) from error


def _duration(text: str) -> float:
    try:
        return quantities.duration(text)
    except ValueError as error:
        raise RequestError(f"--ready-timeout: {error}", hint="such as 90s or 10m") from error


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return quantities.size(text)
    except ValueError as error:
        raise RequestError(f"expected a size such as 512MB or 10GiB: {text!r}", hint=str(error)) from error
