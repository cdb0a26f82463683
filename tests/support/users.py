"""Other users of this machine, for tests that are root: what runs as one of them has that user's rights and no more."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NOBODY: Final = 65534


@functools.cache
def unused(number: int = 0) -> int:
    """Return a uid that no account here has: the first such, or a later one."""
    taken = {one.pw_uid for one in pwd.getpwall()}
    return next(itertools.islice((uid for uid in itertools.count(64321) if uid not in taken), number, None))


@contextmanager
def mere_user() -> Iterator[None]:
    """Take from this thread the right of root to read what it may not."""
    call = ctypes.CDLL(None, use_errno=True)
    head, had = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert call.capget(head, had) == 0
    # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, of those in effect.
    assert call.capset(head, (ctypes.c_uint32 * 6)(had[0] & ~0b110, *had[1:])) == 0
    try:
        yield
    finally:
        assert call.capset(head, had) == 0


def mere(words: Sequence[str | Path]) -> list[str | Path]:
    """Return the words that start a program which has not that right either; without root they are as they were."""
    if os.geteuid() != 0:
        return [*words]
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not installed (Debian: apt-get install util-linux)")
    rights = "-dac_override,-dac_read_search"
    return [setpriv, f"--bounding-set={rights}", f"--inh-caps={rights}", *words]


def interpreter(place: Path) -> tuple[str, dict[str, str]]:
    """Return a Python that other users may start, and the variables with which it finds us and our libraries.

    Neither this Python nor this checkout need be open to others, so the program is copied to ``place``.
    """
    package = place / "xpucached"
    if not package.exists():
        for folder, copy in (("xpucached", package), ("migrations", package / "migrations")):
            # With its byte code, as they can write none; what is still being written has another name, and goes.
            shutil.copytree(REPOSITORY / folder, copy, ignore=shutil.ignore_patterns("*.pyc.*"))
    libraries = [path for path in sys.path if path.endswith("-packages")]
    variables = {"PYTHONPATH": ":".join([str(place), *libraries])}
    other = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
    for program in (sys.executable, other):
        try:
            test = [str(program), "-c", "import xpucached.daemon.user_daemon, xpucached.migrations"]
            subprocess.run(test, env=variables, user=NOBODY, group=NOBODY, extra_groups=[], check=True, cwd="/")
        except (OSError, subprocess.SubprocessError):
            continue
        return str(program), variables
    pytest.skip("there is no Python that another user may start")


def unreadable_link() -> str:
    """Return a link that may be looked at and not read; root of a whole host may read any."""
    link = Path("/proc/1/root")
    with suppress(PermissionError):
        pytest.skip(f"this user may read where {link} leads: {link.readlink()}")
    return str(link)


@contextmanager
def site() -> Iterator[Path]:
    """Return a directory with a copy of the program that every user can read."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    place = Path(tempfile.mkdtemp(prefix="xpu-site-"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)


@dataclass(frozen=True, slots=True)
class User:
    """Another user: no groups but the one with the number of the uid, and nothing of the caller's environment.

    ``home`` is that user's own directory (0700, short enough for sockets), and ``run`` is its ``XDG_RUNTIME_DIR``.
    ``program`` is a Python that finds ``xpucached``.
    """

    uid: int
    home: Path
    program: str
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        """The directory for the user's sockets, 0700."""
        return self.home / "run"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of all that this user starts."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "XDG_RUNTIME_DIR": str(self.run),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XPUCACHED_STORES_FOUND": "false",
            **self.variables,
        }

    def start(
        self, *command: str | Path, env: Mapping[str, str] | None = None, cwd: str | Path = "/"
    ) -> subprocess.Popen[str]:
        """Start a command, with pipes at all three ends; who starts it ends it (``with`` waits, and does not kill)."""
        return subprocess.Popen(
            [str(word) for word in command],
            env={**self.environment, **(env or {})},
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=self.uid,
            group=self.uid,
            extra_groups=[],
        )

    def call(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "/",
        check: int | None = 0,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it must end with the status ``check``, if that is not None."""
        process = self.start(*command, env=env, cwd=cwd)
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
        assert check is None or done.returncode == check, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done

    def words(self, code: str, *arguments: str | Path) -> Sequence[str]:
        """Return the command that runs Python code, for ``start``; the arguments are ``sys.argv[1:]``."""
        return [self.program, "-c", code, *map(str, arguments)]

    def python(
        self,
        code: str,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "/",
        check: int | None = 0,
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code to its end; the arguments are ``sys.argv[1:]``."""
        return self.call(*self.words(code, *arguments), env=env, cwd=cwd, check=check)

    def ctl(self, *arguments: str | Path, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Call ``xpucachectl`` as this user."""
        return self.call(self.program, "-m", "xpucached.cli", *arguments, check=check)

    def owns(self, *places: Path) -> None:
        """Give directories and files, with all that is in them, to this user."""
        for place in places:
            for path in (place, *place.rglob("*")):
                os.chown(path, self.uid, self.uid, follow_symlinks=False)


def user(uid: int, place: Path, program: str, variables: Mapping[str, str]) -> User:
    """Return a user with a home of its own below a directory that everybody can reach."""
    made = User(uid, place / f"u{uid}", program, dict(variables))
    for one in (made.home, made.run):
        one.mkdir(mode=0o700)
        os.chown(one, uid, uid)
    return made
