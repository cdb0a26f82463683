"""What others than a daemon's user may hear: closed lists, because whatever quotes may quote a token.  Pure.

Those who may only read, the host's daemon with its administrators, and the readers of the system's journal see the
sentences of what stands here.  Of everything else they see that it is there: its code or topic.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from xpucached.domain.host import AUTOMATIC, Problem
from xpucached.domain.jobs import Event

HIDDEN: Final = "(hidden)"
"""What stands in the place of what is left out."""

_PROBLEMS: Final = frozenset(
    {
        "clock-jumped",
        "conflict",
        "digest-changed",
        "foreign-store",
        "kernel-driver-unbound",
        "metrics-port",
        "models-away",
        "no-driver",
        "no-gpu",
        "no-level-zero-driver",
        "no-opencl-driver",
        "no-render-access",
        "restart-needed",
        "store-failing",
        "store-fault",
        "store-full",
        "store-read-only",
        "store-unreadable",
        "too-many-stores",
        "unclear-store",
    }
)
"""Codes of problems whose sentences are ours, and name nothing but devices, stores, model files, models and
our own port."""

_SUBJECTS: Final = _PROBLEMS | {AUTOMATIC, "bad-settings", "driver-silent"}
"""Those of problems whose subject is one of these things."""

_TOPICS: Final = frozenset(
    {
        "alarm",
        "automatic-job-recovered",
        "bundle-taken",
        "clock-jumped",
        "driver-ahead",
        "driver-changed",
        "events-lost",
        "evicted",
        "mended",
        "model-added",
        "model-removed",
        "replayed",
        "restored",
        "run-finished",
        "run-started",
        "scanned",
        "trash-emptied",
    }
)
"""Topics of events whose sentences are such."""

_FIELDS: Final = frozenset(
    {
        "added",
        "appeared",
        "busy",
        "changed",
        "drivers",
        "entries",
        "failed",
        "figure",
        "freed",
        "mended",
        "model",
        "models",
        "occasion",
        "origin",
        "outcome",
        "part",
        "pid",
        "reason",
        "rebuilt",
        "removed",
        "restored",
        "run",
        "safety",
        "saved",
        "seconds",
        "since",
        "uid",
        "unit",
        "until",
        "vanished",
    }
)
"""Fields of events that are numbers, names of models, or words of ours."""


def text_of(text: str) -> str:
    """Hide a text, if there is one."""
    return HIDDEN if text else ""


def of_problem(one: Problem) -> Problem:
    """Give a problem as others may see it: where it is, if that is a file or a part of ours, and not what it quotes."""
    if one.code in _PROBLEMS:
        return one
    line = re.match(rf"{re.escape(one.subject)}:([0-9]{{1,9}})\b", one.message) if one.subject else None
    message = f"line {line[1]}: {HIDDEN}" if line and one.code in _SUBJECTS else HIDDEN
    return Problem(one.code, message, text_of(one.hint), one.subject if one.code in _SUBJECTS else text_of(one.subject))


def of_event(one: Event) -> Event:
    """Return an event as others may see it."""
    fields = {name: text if name in _FIELDS else text_of(text) for name, text in one.fields.items()}
    return replace(one, message=one.message if one.topic in _TOPICS else HIDDEN, fields=fields)
