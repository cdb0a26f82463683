"""What one run of a program compiled, as text.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.printing import plain
from xpucached.render.text import count, facts, seconds, section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.domain.traces import TraceReport
    from xpucached.render.text import TextStyle


def trace(value: TraceReport, style: TextStyle) -> str:
    """Write what a run compiled, in which caches that is, and what makes it warm."""
    parts = [facts((("xpucachectl trace", _sentence(value)), *_lines(value)), style)]
    if value.commands:
        parts.append(section("what makes it warm:", "\n".join(f"  {plain(one)}" for one in value.commands), style))
    return "\n".join(parts)


def _sentence(value: TraceReport) -> str:
    whole = seconds(value.seconds)
    if value.compiling is None:
        how = "how much of it was compilation is unknown"
    elif value.at_least:
        how = f"at least {seconds(value.compiling)} were compilation"
    else:
        how = (
            f"{seconds(value.compiling)} were compilation"
            if value.compiling
            else "none of it was compilation, as its runtime tells"
        )
    return f"of {whole}, {how}"


def _lines(value: TraceReport) -> Iterator[tuple[str, str]]:
    yield "ended", f"by signal {-value.status}" if value.status < 0 else f"with exit status {value.status}"
    if value.runs_on:
        yield "goes on", "what it started and left running; what that compiles from now on is not counted"
    yield "programs", _programs(value)
    for one in value.stores:
        lost = f", {one.lost} said to be kept and not there" if one.lost else ""
        unknown = f", {one.unknown} said to be kept and unknown: its file system does not answer" if one.unknown else ""
        yield f"in {one.kind}", f"{one.kept} compiled and kept, {one.found} found{lost}{unknown}: {one.root}"
    if value.off:
        yield "cache", "a process says that it is off: what it compiles is kept nowhere"
    for other in value.others:
        if other.files is None:
            yield f"in {other.name}", f"unknown, it cannot be looked at to its end: {other.root}"
        elif other.files:
            yield f"in {other.name}", f"{count(other.files, 'new file')}, by whomever: {other.root}"


def _programs(value: TraceReport) -> str:
    if not value.traced:
        return "unknown: it told of no cache (no SYCL kernels, or it keeps its stderr to itself)"
    if value.programs is None:
        return (
            f"{value.kept} compiled and kept, {value.found} found; others unknown, as its runtime does not tell of them"
        )
    nowhere = f", {value.nowhere} in no cache (compiled, or brought along compiled)" if value.nowhere else ""
    return f"{value.programs}: {value.kept} compiled and kept, {value.found} found compiled{nowhere}"
