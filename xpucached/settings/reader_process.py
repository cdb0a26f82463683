"""How a daemon reads its configuration: a process of its own does it, which takes what that needs with it when it ends.

pydantic is a fifth of what a daemon at rest would hold, and is needed once, and after each `systemctl reload`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from xpucached import codec
from xpucached.errors import SettingsError
from xpucached.processes import child
from xpucached.settings import Settings

_SECONDS: Final = 60.0
"""Reading normally takes 0.3 s; after this we read in-process."""

_READ: Final = frozenset({"HOME", "CONFIGURATION_DIRECTORY", "STATE_DIRECTORY", "CACHE_DIRECTORY", "RUNTIME_DIRECTORY"})
_BEGIN: Final = ("XPUCACHED_", "XDG_")


class ReadingTask(Struct, frozen=True):
    """Which configuration is to be read."""

    file: Path | None
    user: bool
    worker: bool


class ReadingResult(Struct, frozen=True):
    """What came of it: the settings, or why they are refused."""

    settings: Settings | None = None
    message: str = ""
    hint: str = ""


def load(path: Path | None, *, user: bool, environ: Mapping[str, str], worker: bool = False) -> Settings:
    """Have the configuration read; see `loading.load`, which does it.  Raises `SettingsError`."""
    asked = ReadingTask(path.absolute() if path is not None else None, user, worker)
    answer = _ask(asked, {name: text for name, text in environ.items() if name in _READ or name.startswith(_BEGIN)})
    if answer is None:
        # There is no room for a process of its own, or whatever is wrong: it can be done here all the same.
        from xpucached.settings import loading  # noqa: PLC0415 - what is to stay out of our memory

        return loading.load(path, user=user, environ=environ, worker=worker)
    if answer.settings is None:
        raise SettingsError(answer.message, hint=answer.hint)
    return answer.settings


def _ask(asked: ReadingTask, variables: Mapping[str, str]) -> ReadingResult | None:
    words = [*child.module("xpucached.settings"), json.dumps(codec.to_json(asked))]
    with contextlib.suppress(OSError, ValueError):
        done = child.run(words, variables={"PATH": os.defpath, "LANG": "C.UTF-8", **variables}, seconds=_SECONDS)
        if done.status == 0:
            return codec.from_json(ReadingResult, json.loads(done.output))
    return None


def main() -> None:
    """Be that process."""
    from xpucached.settings import loading  # noqa: PLC0415 - the same

    asked = codec.from_json(ReadingTask, json.loads(sys.argv[1]))
    try:
        answer = ReadingResult(loading.load(asked.file, user=asked.user, environ=os.environ, worker=asked.worker))
    except SettingsError as error:
        answer = ReadingResult(None, error.message, error.hint)
    # Not by `codec.dumps`: an age that is not limited is infinite.
    sys.stdout.write(json.dumps(codec.to_json(answer)))
