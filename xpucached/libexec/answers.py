"""Judge what a model answered, and how long its tokens took: an answer that is none has no times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from .run_order import Invalid, RunOrder, Token

_SHORTEST = 16  # what is shorter may well say a word again and again
_CYCLE = 4
_COVERED = 0.75
_PROMPTS = 3  # two questions may have the same answer


def token_figures(job: RunOrder, tokens: Sequence[Token]) -> dict[str, object]:
    """Return what is known of the tokens.  Raise `Invalid` if the answers cannot be right.

    That is: too few tokens; the same answer to three prompts or more, whatever they ask; the same few tokens again and
    again, up to the bound, in half of the answers or more.  With `min_output_tokens` 0 nothing is judged.
    """
    if not tokens:
        return {}
    if job.min_output_tokens:
        _judge(tokens, job.min_output_tokens)
    # The first use compiles; where there are others, they tell.
    steady = [one for one in (tokens[1:] or tokens) if one.times]
    firsts = [one.first for one in steady]
    each = [one.each for one in steady if one.each is not None]
    gaps = [after - before for one in steady for before, after in zip(one.times, one.times[1:])]
    prompts = {one.prompt for one in tokens if one.prompt is not None}
    return {
        "tokens": min(one.fewest for one in tokens),
        "prompts": len(prompts) or None,
        "first_token_seconds": statistics.median(firsts) if firsts else None,
        "first_token_seconds_p95": _p95(firsts),
        "first_token_spread": _spread(firsts),
        "token_seconds": statistics.median(each) if each else None,
        "token_seconds_p95": _p95(each),
        "token_spread": _spread(gaps),
    }


def _judge(tokens: Sequence[Token], least: int) -> None:
    short = [one for one in tokens if one.fewest < least]
    prompts = {one.prompt for one in tokens if one.prompt is not None}
    if short:
        fewest = min(one.fewest for one in short)
        if len(prompts) > 1:
            of = f"{len({one.prompt for one in short})} of {len(prompts)} prompts"
            told = f"answered nothing to {of}" if fewest == 0 else f"gave fewer than {least} tokens to {of}"
        else:
            told = f"{len(short)} of {len(tokens)} uses gave fewer than {least} tokens"
        raise Invalid(f"{told} (the fewest: {fewest}): their times mean nothing")
    firsts = {one.prompt: one for one in reversed(tokens) if one.prompt is not None and one.answers}
    if len(firsts) >= _PROMPTS and len({repr(one.answers) for one in firsts.values()}) == 1:
        raise Invalid(f"gave the same answer to all of {len(firsts)} prompts: it does not read them")
    told_again = [one for one in tokens if one.answers and any(_is_endless(row, one.bound) for row in one.answers)]
    answered = sum(bool(one.answers) for one in tokens)
    if told_again and len(told_again) * 2 >= answered:
        raise Invalid(f"repeats the same few tokens without end in {len(told_again)} of {answered} answers")


def _is_endless(row: Sequence[int], bound: int) -> bool:
    """Return whether an answer was cut off at the bound, and is the same few tokens again and again."""
    if len(row) < max(bound, _SHORTEST):
        return False
    for cycle in range(1, _CYCLE + 1):
        covered = cycle
        while covered < len(row) and row[-covered - 1] == row[cycle - covered - 1]:
            covered += 1
        if covered >= _COVERED * len(row):
            return True
    return False


def _p95(values: Sequence[float]) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)] if ordered else None


def _spread(values: Sequence[float]) -> float | None:
    """Return the distance between the quartiles; None of fewer than four values."""
    if len(values) < 4:  # noqa: PLR2004 - a quartile of fewer is none
        return None
    low, _, high = statistics.quantiles(values, n=4)
    return high - low
