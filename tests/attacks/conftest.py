"""What attacks share: two users who are not root, and a place that both can reach.

``attacker``   a `tests.support.users.User` (the uid of nobody): ``attacker.python("…")``,
               ``attacker.call("id", "-u")``, ``attacker.start(…)`` for what goes on,
               ``attacker.ctl("status")``, ``attacker.owns(path)``
``victim``     another one, whose uid is no account here
``watch``      the socket of what watches for both, run by root
``common``     a fresh directory of root's with a short path (sockets): everybody may enter it, only root may write

All of them skip where the tests do not run as root, or where no Python can be started by others.  Mark what needs only
one user (the attacker may be the very user that runs the daemon) with nothing: those run everywhere.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.attacks import watching
from tests.support import users

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.users import User


@pytest.fixture(scope="session")
def _program() -> Iterator[tuple[str, dict[str, str]]]:
    """Return a Python that other users may start, once for all attacks."""
    with users.site() as place:
        yield users.interpreter(place)


@pytest.fixture
def common() -> Iterator[Path]:
    """Return a directory that all users can reach."""
    place = Path(tempfile.mkdtemp(prefix="xpu-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def attacker(_program: tuple[str, dict[str, str]], common: Path) -> User:
    """Return the user who attacks."""
    return users.user(users.NOBODY, common, *_program)


@pytest.fixture
def victim(_program: tuple[str, dict[str, str]], common: Path) -> User:
    """Return the user who is attacked."""
    return users.user(users.unused(), common, *_program)


@pytest.fixture
def watch(common: Path) -> Iterator[Path]:
    """Run what xpucached-watch runs, as root; give its socket."""
    with watching.running(common) as place:
        yield place
