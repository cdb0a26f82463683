"""Answers that cannot be right are found, and right ones are not called wrong; times come with how they scatter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from xpucached.libexec.answers import token_figures
from xpucached.libexec.run_order import Invalid, RunOrder, Token

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = [5, 8, 2, 9, 4, 7, 1, 3, 6, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]


def token(prompt: int | None, row: Sequence[int], *, bound: int = 20, first: float = 0.5, each: float = 0.1) -> Token:
    one = Token(100.0)
    one.prompt, one.answers, one.bound, one.fewest = prompt, [list(row)], bound, len(row)
    one.times = [100.0 + first + each * number for number in range(len(row))]
    return one


def figures(tokens: Sequence[Token], least: int = 1) -> dict[str, object]:
    return token_figures(cast("RunOrder", SimpleNamespace(min_output_tokens=least)), tokens)


def turned(number: int) -> list[int]:
    return TEXT[number:] + TEXT[:number]


@pytest.mark.parametrize(
    ("rows", "least", "words"),
    [
        ([TEXT, [], turned(1), [], [], turned(2)], 1, "answered nothing to 3 of 6 prompts"),
        ([TEXT, TEXT[:3], turned(1)], 16, "gave fewer than 16 tokens to 1 of 3 prompts (the fewest: 3)"),
        ([TEXT] * 3, 1, "gave the same answer to all of 3 prompts"),
        ([[4] * 20, [4] * 20, TEXT], 1, "without end in 2 of 3 answers"),
        ([[9, 8, *[1, 2, 3] * 6], TEXT], 1, "without end in 1 of 2 answers"),
        ([[]], 1, "1 of 1 uses gave fewer than 1 tokens"),
    ],
)
def test_answers_that_cannot_be_right_are_told(rows: list[list[int]], least: int, words: str) -> None:
    tokens = [token(number, row) for number, row in enumerate(rows)]

    with pytest.raises(Invalid) as met:
        figures(tokens, least)
    assert words in str(met.value)
    assert figures(tokens, 0)["prompts"] == len(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [TEXT, TEXT],  # two questions may have the same answer
        [TEXT, turned(1), turned(2)],
        [[4] * 19, [4] * 18],  # it ended by itself
        [[4] * 20, TEXT, turned(1)],  # one of three
        [TEXT[:14] + [4] * 6, TEXT],  # it came to that late
    ],
)
def test_answers_that_may_be_right_are_let_be(rows: list[list[int]]) -> None:
    assert figures([token(number, row) for number, row in enumerate(rows)])["prompts"] == len(rows)


def test_few_tokens_again_and_again_are_let_be_where_few_were_asked_for() -> None:
    assert figures([token(0, [4] * 6, bound=6)])["tokens"] == 6


def test_the_same_prompt_has_the_same_answer() -> None:
    assert figures([token(0, TEXT)] * 5)["prompts"] == 1


def test_times_come_with_how_they_scatter() -> None:
    # The first use compiles, and is left out.
    told = figures([token(0, TEXT, first=60.0), *(token(0, TEXT, first=first) for first in (0.1, 0.2, 0.3, 0.4, 2.0))])

    assert told["first_token_seconds"] == pytest.approx(0.3)
    assert told["first_token_seconds_p95"] == pytest.approx(2.0)
    assert told["first_token_spread"] == pytest.approx(1.05)
    assert told["token_seconds"] == pytest.approx(0.1)
    assert told["token_spread"] == pytest.approx(0.0, abs=1e-9)


def test_of_few_values_no_spread_is_known() -> None:
    assert figures([token(0, TEXT), token(0, TEXT)])["first_token_spread"] is None
