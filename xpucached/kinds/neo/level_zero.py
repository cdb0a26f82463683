"""How the driver rewrites the options of a program that comes through Level Zero, before they count: and back.  Pure.

What a trace holds is what the driver made of them; handed in again as it stands it would be rewritten once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_LEVEL: Final = "-ze-opt-level"
_WRITTEN: Final = f"{_LEVEL}=O"
_SAME: Final = {"-ze-opt-disable": "-cl-opt-disable"}
_MOVED: Final = {
    "-cl-intel-256-GRF-per-thread": "-ze-opt-large-register-file",
    "-cl-intel-enable-auto-large-GRF-mode": "-ze-intel-enable-auto-large-GRF-mode",
}
"""What the driver takes out of the options, and puts among its own."""


def rewritten(options: str) -> str:
    """Return what the driver makes of a program's options (24.52 to 26.31), save for what it moves among its own."""
    for theirs, ours in _SAME.items():
        options = options.replace(theirs, ours)
    begin = options.find(_LEVEL)
    if begin < 0 or "=" not in options[begin:]:
        return options
    end = options.find(" ", begin)
    level = options[options.find("=", begin) + 1 : end if end >= 0 else None]
    # The only option, if nothing follows it, stays: so the driver has it.
    rest = options[:begin] + options[end + 1 :] if end >= 0 else options[:begin] or options
    return f"{rest}{'' if not rest or rest.endswith(' ') else ' '}{_LEVEL}=O{level}"


def given(options: str, internal: str) -> str | None:
    """Return options of which the driver makes these, and its own ones; None if none are known."""
    found = next((one for one in _candidates(options) if rewritten(one) == options), None)
    if found is None:
        return None
    words = internal.split()
    # The driver cuts them out, and leaves the blanks around them.
    return found + "".join(theirs for ours, theirs in _MOVED.items() if ours in words and ours not in options)


def _candidates(options: str) -> Iterator[str]:
    yield options
    begin = options.find(_WRITTEN, options.rfind(" ") + 1)
    if begin >= 0:
        before, option = options[:begin], f"{_LEVEL}={options[begin + len(_WRITTEN) :]}"
        yield from (before.rstrip(" "), before + option, f"{before.rstrip(' ')} {option}")
        yield from (f"{option} {before.strip(' ')}", option)
