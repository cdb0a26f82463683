"""Act: the child that brings a model to life, uses it, and tells what it saw; the only home of torch.

It is started by path with the model's own interpreter, so it, and the files beside it that it loads (`run_order`,
`loaders`, `evidence`), know nothing but the standard library and what that interpreter offers; they must run on Python
3.9.  It takes a job as JSON on stdin, and answers with lines of JSON on the descriptor that ``--fd`` names.  Each
answer carries the job's token: the model's code may write there too, and its lines are not ours.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING or __package__:
    from xpucached.libexec.answers import token_figures
    from xpucached.libexec.evidence import devices, must_be_finite, ran_where, tensors_in, wait
    from xpucached.libexec.loaders.table import LOADERS
    from xpucached.libexec.run_order import Foreign, Invalid, RunOrder, Subject, Token, Unfit, torch_of
else:
    # It is started by its path: what else it is made of lies beside it, and nothing else is found there.  The
    # interpreter is not ours, so it leaves no byte code behind.
    sys.modules["xpucached_libexec"] = _package = ModuleType("xpucached_libexec")
    _package.__path__ = [str(Path(__file__).resolve().parent)]
    _writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    from xpucached_libexec.answers import token_figures
    from xpucached_libexec.evidence import devices, must_be_finite, ran_where, tensors_in, wait
    from xpucached_libexec.loaders.table import LOADERS
    from xpucached_libexec.run_order import Foreign, Invalid, RunOrder, Subject, Token, Unfit, torch_of

    sys.dont_write_bytecode = _writes_none

_LONGEST = 500


def _measure(job: RunOrder) -> dict[str, object]:
    began = time.monotonic()
    subject = LOADERS[job.loader](job)
    wait(job)
    loaded = time.monotonic() - began
    spans: list[float] = []
    tokens: list[Token] = []
    result: object = None
    for _ in range(max(job.steps, subject.prompts if job.every else 0)):
        began = time.monotonic()
        result = subject.call()
        wait(job)
        spans.append(time.monotonic() - began)
        if subject.token is not None:
            tokens.append(subject.token)
    verdict, device, evidence, memory = ran_where(job, result, subject.places)
    figures: dict[str, object] = {
        "load_seconds": loaded,
        "first_seconds": spans[0],
        "steady_seconds": statistics.median(spans[1:]) if len(spans) > 1 else None,
        "device_memory": memory,
    }
    report: dict[str, object] = {"ran_on": verdict, "device": device, "evidence": evidence, "figures": figures}
    try:
        must_be_finite(result)
        figures.update(token_figures(job, tokens))
        if job.compare and job.tolerance is not None and job.precision not in {"", "float32"}:
            figures["error"] = _distance(job, subject)
    except Invalid as problem:
        report |= {"outcome": "invalid", "problem": str(problem)}
    return report


def _distance(job: RunOrder, subject: Subject) -> float:
    """Compare with float32: how far the outputs are from it, relative to its size."""
    torch = torch_of(job)

    def outputs(one: Subject) -> list[Foreign]:
        return [tensor.detach().to("cpu", torch.float32) for tensor in tensors_in(one.logits())]

    low = outputs(subject)
    plain = RunOrder.__new__(RunOrder)
    plain.__dict__.update(vars(job), precision="float32", compile=False)
    high = outputs(LOADERS[job.loader](plain))
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
    # What is said last is often only that something failed; what failed was said first.
    first, seen = error, {id(error)}
    while first.__cause__ is not None and id(first.__cause__) not in seen:
        first = first.__cause__
        seen.add(id(first))
    return _told(error) if first is error else f"{_told(error)} (because of {_told(first)})"


def _told(error: BaseException) -> str:
    words = " ".join(str(error).split())[:_LONGEST]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _work(given: Mapping[str, object]) -> dict[str, object]:
    job = RunOrder(given)
    try:
        return {"devices": devices(job)} if given.get("what") == "devices" else _measure(job)
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
