"""Learn which files the Pythons of a model run code of: `libexec.module_recorder` writes them down.

It is their own word, so it may be anything; what else they read by names of their own is not in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.processes import scratch
from xpucached.processes.reports import paths
from xpucached.processes.runs import LIBEXEC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LARGEST: Final = 512 << 10
"""Bytes of the record that are read; `libexec.module_recorder` writes no more."""


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """What is written down while a model runs."""

    variables: Mapping[str, str]  #: for its processes, above their others
    _descriptor: int

    def read(self) -> tuple[str, ...]:
        """Return the files, each once, without those of ours."""
        # Not by its name: who runs may have put there what he likes, or mounted something.
        lines = os.pread(self._descriptor, _LARGEST, 0).decode("utf-8", "surrogateescape").split("\n")[:-1]
        return tuple(one for one in paths([*dict.fromkeys(lines)]) if not Path(one).is_relative_to(LIBEXEC))


@contextlib.contextmanager
def recording(prefix: str, variables: Mapping[str, str]) -> Iterator[ModuleRecord]:
    """Have the Pythons that get such ``variables`` write down what they run, in a directory with such a name.

    Raises OSError if there is no room for it.
    """
    given = variables.get("PYTHONPATH", "")
    # It is none of the model's own temporary directory: a program may expect that to be empty, and empties it.
    with scratch.directory(prefix) as place, contextlib.ExitStack() as stack:
        shutil.copyfile(LIBEXEC / "module_recorder.py", Path(place, "sitecustomize.py"))
        record = os.open(f"{place}/record", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, record)
        # What a script adds to it stays a part of its own: ``PYTHONPATH+=/two``.
        value = f"{place}:{given or f'{place}/more'}"
        yield ModuleRecord({"PYTHONPATH": value} if ":" not in place else {}, record)
