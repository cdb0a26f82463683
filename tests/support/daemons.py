"""A real daemon in a process of its own, and what a person at the command line sees of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

from tests.support import catalogs, forks
from xpucached import sockets
from xpucached.api import looking, requests
from xpucached.api.client import Client
from xpucached.domain.names import ModelName
from xpucached.errors import XpucachedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.runtimes import Runtime
    from xpucached.api.endpoints import Request
    from xpucached.messages import Json

PATIENCE = 90.0
LONGEST_NAP: Final = 0.5

_T = TypeVar("_T")


def _data(request: Request[_T]) -> Callable[[Client], Json]:
    return lambda client: client.call(request).data


_PLAIN: Final[Mapping[tuple[str, ...], Callable[[Client], Json]]] = {
    ("devices",): _data(requests.ListDevices()),
    ("events",): _data(looking.ListEvents()),
    ("jobs",): _data(requests.ListJobs()),
    ("ls",): _data(requests.ListEntries(limit=requests.MAX_PAGE)),
    ("model", "list"): _data(requests.ListModels()),
    ("runs",): _data(requests.ListRuns()),
    ("status",): _data(requests.GetStatus()),
    ("stores",): _data(requests.ListStores()),
    ("trash", "list"): _data(requests.ListTrash()),
}
"""What is asked without a start of ``xpucachectl``."""


@dataclass(slots=True)
class Daemon:
    """``xpucached --user`` below one directory: ``home`` may be long, ``run`` holds the socket and must be short."""

    home: Path
    run: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    process: forks.Forked | subprocess.Popen[bytes] | None = None
    program: str = sys.executable
    uid: int | None = None  #: who the client is; None is the caller, and the daemon is always the caller's
    words: tuple[str, ...] = ()  #: what the interpreter is to run instead of the daemon as it is

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of the daemon and its clients."""
        return {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.run),
            "PYTHONWARNINGS": "error",
            # Other programs of this user, and their caches, are none of a test's business.
            "XPUCACHED_STORES_FOUND": "false",
            # Nor is what this host's package manager has downloaded, of which its tools are asked at each start.
            "XPUCACHED_SCHEDULE_AHEAD": "false",
            # However busy the host is on which the tests run, theirs go on.
            **{
                f"XPUCACHED_THROTTLE_{name}": "unlimited" for name in ("CPU_PRESSURE", "MEMORY_PRESSURE", "IO_PRESSURE")
            },
            "XPUCACHED_THROTTLE_GPU_BUSY": "unlimited",
            **self.variables,
        }

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.home / ".config" / "xpucached" / "xpucached.toml"

    @property
    def state(self) -> Path:
        """Where the catalog is."""
        return self.home / ".local" / "state" / "xpucached"

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.run / "log"

    def configure(self, text: str) -> None:
        """Write the configuration."""
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(text)

    def start(self, *, ready: bool = True) -> Self:
        """Start it, and wait until it has looked at the host.

        A first start finds the catalog that a first start makes: to make it takes longer than most of what tests do.
        (Daemons that other tests start as a person or systemd does, and that of the demo, find none.)
        """
        if not self.state.exists():
            catalogs.put(self.state / "catalog.sqlite")
        with self.log.open("ab") as log:
            if self.words:
                self.process = subprocess.Popen(
                    [sys.executable, *self.words, "--user"], env=self.environment, stdout=log, stderr=log
                )
            else:
                self.process = forks.start(forks.DAEMON, ["--user"], self.environment, log.fileno(), log.fileno())
        if ready:
            self.until(lambda: self.ask("status").get("verdict") not in (None, "starting"))
        return self

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        began = time.monotonic()
        while (asked := time.monotonic()) < began + PATIENCE:
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the daemon ended: {self.log.read_text()}")
            with contextlib.suppress(LookupError, TypeError):
                if holds():
                    return
            # Each question takes the time of what is waited for: a twentieth at most, and less the longer it takes.
            now = time.monotonic()
            time.sleep(min(max(19 * (now - asked), (now - began) / 5, 0.01), LONGEST_NAP))
        raise AssertionError(f"waited in vain: {self.log.read_text()}")

    @property
    def client(self) -> list[str]:
        """Return the words with which ``xpucachectl`` is called."""
        return [self.program, "-m", "xpucached.cli", "--user"]

    def ctl(
        self, *arguments: str, check: int | None = 0, timeout: float | None = PATIENCE * 2
    ) -> subprocess.CompletedProcess[str]:
        """Call ``xpucachectl``."""
        if self.uid is None:
            done = forks.run(forks.CTL, ["--user", *arguments], self.environment, timeout)
        else:
            done = subprocess.run(
                [*self.client, *arguments],
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                user=self.uid,
                group=self.uid,
                extra_groups=[],
                cwd="/",
            )
        assert check is None or done.returncode == check, done.stdout + done.stderr + self.log.read_text()
        return done

    def ask(self, *arguments: str) -> dict[str, object]:
        """Return the data that ``xpucachectl --json`` prints, or nothing for a refusal."""
        if (fetch := self._plain(arguments)) is not None:
            try:
                return cast("dict[str, object]", self._fetch(fetch))
            except XpucachedError:
                return {}
        answer: dict[str, dict[str, object]] = json.loads(self.ctl(*arguments, "--json", check=None).stdout or "{}")
        return answer.get("data") or {}

    def rows(self, *arguments: str) -> list[dict[str, object]]:
        """Return the list that ``xpucachectl --json`` prints."""
        fetch = self._plain(arguments)
        found = None if fetch is None else self._fetch(fetch)
        if found is None or (isinstance(found, dict) and found["next"] is not None):
            # To go through pages is more than to ask.
            found = json.loads(self.ctl(*arguments, "--json").stdout)["data"]
        return cast("list[dict[str, object]]", found["entries"] if isinstance(found, dict) else found)

    def _plain(self, arguments: tuple[str, ...]) -> Callable[[Client], Json] | None:
        """Give how to ask what ``xpucachectl`` would; None where it does more than to hand an answer on.

        A test that waits asks dozens of times, and each start of the program takes several times what the answer does.
        """
        if self.uid is not None:
            return None
        match arguments:
            case ("runs", name):
                return _data(requests.ListRuns(model=ModelName(name)))
            case ("model", "show", name):
                return _data(requests.GetModel(name=ModelName(name)))
            case _:
                return _PLAIN.get(arguments)

    def _fetch(self, fetch: Callable[[Client], Json]) -> Json:
        with Client(Path(sockets.socket_path(user=True, environ=self.environment))) as client:
            return fetch(client)

    def add_models(self, runtime: Runtime, *options: str) -> tuple[str, str]:
        """Register a model of each sort, and return their names.

        ``net`` is a command, ``loaded`` is brought to life by a loader; both get the options.  They share two kernels,
        and each has one of its own.
        """
        self.ctl("model", "add", "net", *options, "--", *runtime.program("first", "second", "third"))
        self.ctl("model", "add", "loaded", "--store", "default", *runtime.loader("second", "third", "fourth"), *options)
        return "net", "loaded"

    def idle(self) -> bool:
        """Return whether all jobs have ended."""
        return all(row["finished"] for row in self.rows("jobs"))

    def failed(self) -> list[object]:
        """Return what it was doing by itself, or was asked for, when that failed."""
        jobs = [row["error"] for row in self.rows("jobs") if row["error"] is not None]
        return jobs + [row["message"] for row in self.rows("events") if row["topic"] == "automatic-job-failed"]

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it, and give its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self.process = None
        return status


@contextlib.contextmanager
def daemon(home: Path, run: Path, **variables: str) -> Iterator[Daemon]:
    """Return a daemon that is not started yet, and see that none is left."""
    run.chmod(0o700)
    one = Daemon(home, run, variables)
    try:
        yield one
    finally:
        if one.process is not None:
            one.process.kill()
            one.process.wait()
        forks.forget(variables)
