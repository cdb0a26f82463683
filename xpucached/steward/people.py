"""Who is looked after: read from the password file and the configuration, every time anew."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xpucached.settings.document import Workers

_NOBODY: Final = frozenset({0, 65534, 4294967295})
_USUAL: Final = (1000, 60000)
_LINE: Final = re.compile(r"^(UID_MIN|UID_MAX)\s+(\d+)\s*$", re.MULTILINE)


def household(wanted: Workers, owners: Iterable[str], etc: Path = Path("/etc")) -> Mapping[int, str]:
    """Give whom the host's daemon looks after, by number: people, who is named, and the users of model files.

    Never root, nobody, nor ourselves.
    """
    first, last = _range(etc)
    found: dict[int, str] = {}
    if wanted.humans:
        # The range is that of people's accounts, in which systemd makes no other ones either.
        found = {one.pw_uid: one.pw_name for one in pwd.getpwall() if first <= one.pw_uid <= last}
    for name in (*wanted.include, *owners):
        with contextlib.suppress(KeyError):
            one = user(name)
            found[one.pw_uid] = one.pw_name
    for name in wanted.exclude:
        with contextlib.suppress(KeyError):
            found.pop(user(name).pw_uid, None)
    return {uid: name for uid, name in found.items() if uid not in _NOBODY and uid != os.getuid()}


def user(name: str) -> pwd.struct_passwd:
    """Give a user by name or number.  Raises `KeyError`."""
    return pwd.getpwuid(int(name)) if name.isdecimal() and len(name) < len("4294967296") else pwd.getpwnam(name)


def _range(etc: Path) -> tuple[int, int]:
    try:
        said = dict(_LINE.findall((etc / "login.defs").read_text(encoding="utf-8", errors="replace")))
    except OSError:
        said = {}
    return int(said.get("UID_MIN", _USUAL[0])), int(said.get("UID_MAX", _USUAL[1]))
