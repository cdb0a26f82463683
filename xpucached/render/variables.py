"""Door: variables for a shell, a unit or a container.  Pure, and quick to load: `env` is in many scripts."""

from __future__ import annotations

from enum import StrEnum

from xpucached.printing import BARE, in_quotes, safe

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Final


class Syntax(StrEnum):
    """For whom variables are written."""

    SHELL = "shell"
    SYSTEMD = "systemd"
    DOCKER = "docker"
    ENVIRONMENT = "environment-d"


def variables(values: Mapping[str, str], syntax: Syntax, known: Collection[str]) -> str:
    """Write variables so that a shell, systemd or a container takes them, and nothing else.

    Only those of ``known`` are written.  Raises `ValueError` for a value with control characters: no program
    means them, and each form and terminal reads them in its own way.
    """
    written = {name: text for name, text in values.items() if name in known}
    for name, text in written.items():
        if safe(text) != text:
            raise ValueError(f"{name} cannot be written: there are control characters in {safe(text)}")
    return "\n".join(_WRITERS[syntax](name, text) for name, text in sorted(written.items()))


def _quoted(text: str) -> str:
    """Quote a text for any shell: there are no control characters in it."""
    return text if text and BARE.issuperset(text) else in_quotes(text)


def _shell(name: str, text: str) -> str:
    return f"export {name}={_quoted(text)}"


def _systemd(name: str, text: str) -> str:
    # In a unit % begins a specifier; inside double quotes \ and " need a backslash.
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'Environment="{name}={quoted}"'


def _environment(name: str, text: str) -> str:
    # As systemd reads it: first quotes and backslashes, then a $ begins a variable, and two are one.
    quoted = "".join(f"\\{one}" if one in '\\"`' else "$$" if one == "$" else one for one in text)
    return f'{name}="{quoted}"'


def _docker(name: str, text: str) -> str:
    return f"{name}={text}"


_WRITERS: Final[Mapping[Syntax, Callable[[str, str], str]]] = {
    Syntax.SHELL: _shell,
    Syntax.SYSTEMD: _systemd,
    Syntax.DOCKER: _docker,
    Syntax.ENVIRONMENT: _environment,
}
