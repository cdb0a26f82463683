"""The tables and drawings of `suite`: medians, spread, ratios, and the cost against the size as a slope."""

from __future__ import annotations

import html
import math
import statistics
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BEGIN: Final = "<!-- made by make bench -->\n"
END: Final = "<!-- end of what make bench made -->\n"

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#000000", "#999933")
_WIDTH: Final = 760
_HEIGHT: Final = 420
_EDGE: Final = 60
_KEY: Final = 250


def between(page: str, text: str) -> str:
    """Put a text where the one of the last time stands."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def report(results: Mapping[str, Mapping[str, object]]) -> tuple[str, dict[str, str]]:
    """Return the tables in Markdown, and the drawings by file name."""
    sizes = sorted(results, key=int)
    times = {size: cast("Mapping[str, Sequence[float]]", results[size]["times"]) for size in sizes}
    facts = {size: cast("Mapping[str, float]", results[size]["facts"]) for size in sizes}
    lines = [f"- {int(size):,} entries: {results[size]['machine']}; load {_load(results[size])}" for size in sizes]
    lines += ["", *_times(sizes, times), "", *_facts(sizes, facts)]
    if len(sizes) < 2:  # noqa: PLR2004 - a line has two ends
        return "\n".join(lines) + "\n", {}
    names = [name for name in _names(times) if not name.startswith("plan") and "delete" not in name]
    looks = [name for name in names if all(name in times[size] for size in sizes)]
    plans = [name for name in _names(times) if name.startswith("plan")]
    pictures = {
        "performance-looking.svg": picture("Looking: seconds against entries", sizes, times, looks),
        "performance-plans.svg": picture("Deciding: seconds against entries", sizes, times, plans),
    }
    lines += ["", *(f"![{name}]({name})" for name in pictures)]
    return "\n".join(lines) + "\n", pictures


def _load(result: Mapping[str, object]) -> str:
    return " to ".join(f"{one:.1f}" for one in cast("Sequence[float]", result["load"]))


def _names(times: Mapping[str, Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for one in times.values() for name in one))


def _times(sizes: Sequence[str], times: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    head = "".join(f" {int(size):,} | ratio |" for size in sizes)
    lines = [f"| seconds: median (least to most) |{head} slope |", f"| --- |{' --- | --- |' * len(sizes)} --- |"]
    for name in _names(times):
        cells = ""
        for size in sizes:
            values = times[size].get(name)
            if values is None:
                cells += " - | - |"
                continue
            median = statistics.median(values)
            base = times[size].get("find -delete" if _removes(name) else "find -printf")
            ratio = f"{median / statistics.median(base):.2f}" if base and not name.startswith("plan") else "-"
            spread = f"{_digits(min(values))} to {_digits(max(values))}" if len(values) > 1 else "one run"
            cells += f" {_digits(median)} ({spread}) | {ratio} |"
        lines.append(f"| {name} |{cells} {_slope(name, sizes, times)} |")
    return lines


def _digits(value: float) -> str:
    """Return three digits, or all those before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - four digits before the point


def _removes(name: str) -> bool:
    return any(word in name for word in ("delete", "evict", "tmpfiles", "for good", "trash"))


def _slope(name: str, sizes: Sequence[str], times: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return the power of the size with which the time grows, between the two ends: 1 is in proportion."""
    has = [size for size in sizes if name in times[size]]
    if len(has) < 2:  # noqa: PLR2004 - a line has two ends
        return "-"
    first, last = (statistics.median(times[size][name]) for size in (has[0], has[-1]))
    return f"{math.log(last / first) / math.log(int(has[-1]) / int(has[0])):.2f}"


def _facts(sizes: Sequence[str], facts: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = list(dict.fromkeys(name for one in facts.values() for name in one))
    lines = [f"| the daemon |{''.join(f' {int(size):,} |' for size in sizes)}", f"| --- |{' --- |' * len(sizes)}"]
    for name in names:
        cells = "".join(f" {_digits(facts[size][name])} |" if name in facts[size] else " - |" for size in sizes)
        lines.append(f"| {name} |{cells}")
    return lines


def picture(
    title: str, sizes: Sequence[str], times: Mapping[str, Mapping[str, Sequence[float]]], names: Sequence[str]
) -> str:
    """Draw times against sizes, both in powers of ten."""
    points = {
        name: [(math.log10(int(size)), math.log10(statistics.median(times[size][name]))) for size in sizes]
        for name in names
    }
    every = [place for some in points.values() for place in some]
    left, right = min(x for x, _ in every) - 0.1, max(x for x, _ in every) + 0.1
    low, high = math.floor(min(y for _, y in every)), math.ceil(max(y for _, y in every))

    def at(x: float, y: float) -> tuple[float, float]:
        across = _EDGE + (x - left) / (right - left) * (_WIDTH - _EDGE - _KEY)
        return across, _HEIGHT - _EDGE - (y - low) / max(1, high - low) * (_HEIGHT - 2 * _EDGE)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">',
        "<style>text { font-size: 12px }</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_EDGE}" y="30" style="font-size: 15px">{html.escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        _, y = at(left, power)
        lines.append(f'<line x1="{_EDGE}" y1="{y:.1f}" x2="{_WIDTH - _KEY}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{_EDGE - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>')
    for size in sizes:
        x, _ = at(math.log10(int(size)), low)
        lines.append(f'<text x="{x:.1f}" y="{_HEIGHT - _EDGE + 18}" text-anchor="middle">{int(size):,}</text>')
    for number, (name, some) in enumerate(points.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*place) for place in some))
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (at(*one) for one in some)]
        y = _EDGE + 20 * number
        lines.append(f'<rect x="{_WIDTH - _KEY + 20}" y="{y - 9}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{_WIDTH - _KEY + 38}" y="{y + 2}">{html.escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])
