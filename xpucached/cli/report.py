"""Door: `xpucachectl report`: all that there is to look at, as one file for a browser.  Writes that file."""

from __future__ import annotations

import os
import stat
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import codec
from xpucached.api import host_requests, looking
from xpucached.cli import page
from xpucached.domain.names import ModelName
from xpucached.errors import Conflict
from xpucached.printing import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.cli.output import Output
    from xpucached.domain.host_overview import HostOverview
    from xpucached.domain.overview import Overview
    from xpucached.messages import Json

_HIDDEN: Final = "(hidden)"


def part(name: str) -> str:
    """Return a file of the page."""
    return resources.files("xpucached").joinpath("data", "page", name).read_text(encoding="utf-8")


def report(output: Output) -> int:
    """Write the page with what the daemon says now; gives the exit status."""
    answer = output.client.call(looking.GetOverview())
    return _put(output, codec.to_json(anonymous(answer.value)) if output.options.redact else answer.data)


def of_host(output: Output) -> int:
    """Write the page with what the host's daemon says of all users; gives the exit status."""
    answer = output.client.call(host_requests.GetHostOverview())
    return _put(output, codec.to_json(anonymous_host(answer.value)) if output.options.redact else answer.data)


def _put(output: Output, data: Json) -> int:
    text = page.report(codec.dumps(data).decode("ascii"), part("page.js"), part("page.css")).encode()
    path: Path = output.options.html
    _write(path, text)
    if output.json:
        output.dump({"file": str(path), "bytes": len(text)})
    elif not output.quiet:
        print(f"{plain(str(path))}: {len(text)} bytes; open it in a browser")
    return 0


def _write(path: Path, text: bytes) -> None:
    """Write a file beside its place and put it there, for its owner alone.  Raises `Conflict` if that fails.

    What is there and no file stays: root could put one in the place of /dev/null, or of /dev/stdout.
    """
    if _is_no_file(path):
        raise Conflict(f"{path} is there already, and is no regular file: it stays", hint="name a file: --html FILE")
    try:
        # By a name of its own: that of the file may be as long as names can be.
        handle, name = tempfile.mkstemp(".new", ".report-", path.parent)
        beside = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        message = f"the report cannot be written to {path}: {error.strerror or error}"
        raise Conflict(message, hint="name a file in a directory that you may write to: --html FILE") from error


def _is_no_file(path: Path) -> bool:
    """Return whether something else is there: a device, a pipe, or what a process has open."""
    try:
        return not stat.S_ISREG(path.stat().st_mode) or path.readlink().is_relative_to("/proc")
    except OSError:
        return False  # nothing is there, or a file that is no link


def anonymous(value: Overview) -> Overview:
    """Return an overview without the names of host, models, programs and kernels: for who is not to know them."""
    names = dict[ModelName, str]()

    def called(name: ModelName) -> ModelName:
        return ModelName(names.setdefault(name, f"model-{len(names) + 1}"))

    return _renamed(value, called)


def anonymous_host(value: HostOverview) -> HostOverview:
    """Return a host's overview without the names of host, users and models."""
    users = tuple(
        replace(one, user=f"user-{number}", sentence=one.verdict or one.state)
        for number, one in enumerate(value.users, 1)
    )
    return replace(value, host=_HIDDEN, sentence=value.verdict, users=users)


def _renamed(value: Overview, called: Callable[[ModelName], ModelName]) -> Overview:
    usage = value.usage
    return replace(
        value,
        host=_HIDDEN,
        sentence=value.verdict,
        models=tuple(replace(one, model=called(one.model), why=_HIDDEN) for one in value.models),
        warmth=tuple(replace(one, model=called(one.model), why=_HIDDEN) for one in value.warmth),
        under_way=tuple(
            replace(one, what=one.what if one.total else _HIDDEN, detail=_HIDDEN) for one in value.under_way
        ),
        usage=replace(
            usage,
            models=tuple(replace(one, model=called(one.model)) for one in usage.models),
            dearest=tuple(replace(one, kernel=_HIDDEN, models=tuple(map(called, one.models))) for one in usage.dearest),
        ),
    )
