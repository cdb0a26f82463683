"""What the demos share: a screen, and a temporary place with a user's shell and a daemon."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Nothing outside the demo's own directory is looked at, let alone evicted: other programs of this user cache, too.
# An entry stays for ten minutes at least, and one older driver's are kept for going back: too long to watch here.
CONFIGURATION: Final = """\
[driver.variables]
%(variables)s

[stores]
found = false

[policy]
grace = "1s"
keep_driver_generations = 0

[schedule]
evict = false
%(schedule)s

# Whoever watches does not want to wait until the host is calm.
[throttle]
cpu_pressure = "unlimited"
memory_pressure = "unlimited"
io_pressure = "unlimited"
gpu_busy = "unlimited"
"""

PATIENCE: Final = 180.0  #: seconds that any one thing may take


class Disappointed(Exception):
    """A step did not show what it says."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command said, and how long it took."""

    output: str
    trace: str
    seconds: float


class Screen:
    """Tells the person what happens."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._step = 0
        self._width = shutil.get_terminal_size().columns - 3

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def step(self, title: str) -> None:
        """Begin a step."""
        self._step += 1
        print(f"\n{self._paint(f'{self._step}. {title}', '1')}", flush=True)

    def command(self, text: str) -> None:
        """Show a command as a person types it."""
        print(f"   {self._paint('$', '32')} {self._paint(text, '36')}", flush=True)

    def output(self, text: str) -> None:
        """Show what a command said; long lines are cut."""
        for line in text.rstrip().splitlines():
            print(f"   {line}" if len(line) <= self._width else f"   {line[: self._width - 1]}…", flush=True)

    def fact(self, text: str) -> None:
        """Say what was measured."""
        print(f"   {self._paint('→ ' + text, '33')}", flush=True)


class Stage:
    """One temporary place with a user's shell and a daemon."""

    def __init__(
        self,
        root: Path,
        screen: Screen,
        variables: Mapping[str, str],
        *,
        driver: Mapping[str, str],
        schedule: str = "",
        patience: float = PATIENCE,
    ) -> None:
        """``variables`` are the shell's; programs that use the cache have those of ``driver``, too."""
        self.root = root
        self.screen = screen
        self.patience = patience
        self.app = root / "app"
        self.app.mkdir()
        for folder in ("cache", "config/xpucached", "state", "data", "run", "tmp"):
            (root / folder).mkdir(mode=0o700, parents=True)
        (root / "config/xpucached/xpucached.toml").write_text(
            CONFIGURATION
            % {
                "variables": "\n".join(f"{name} = {json.dumps(value)}" for name, value in driver.items()),
                "schedule": schedule,
            },
            encoding="utf-8",
        )
        self.environment = {
            "HOME": str(root),
            "LANG": "C.UTF-8",
            "TMPDIR": str(root / "tmp"),
            "XDG_CACHE_HOME": str(root / "cache"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_DATA_HOME": str(root / "data"),
            "XDG_RUNTIME_DIR": str(root / "run"),
            "XDG_STATE_HOME": str(root / "state"),
            **driver,
            **variables,
        }
        if os.geteuid() == 0:
            # Root's commands would ask the host's daemon.
            self.environment["XPUCACHED_SOCKET"] = str(root / "run" / "xpucached" / "xpucached.sock")

    def run(self, command: str, *, show: bool = True) -> Result:
        """Run a command line in the user's shell; it must succeed."""
        if show:
            self.screen.command(command)
        began = time.monotonic()
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env=self.environment,
            cwd=self.app,
            capture_output=True,
            text=True,
            check=False,
            timeout=self.patience,
        )
        result = Result(done.stdout, done.stderr, time.monotonic() - began)
        if done.returncode:
            raise Disappointed(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return result

    def ask(self, command: str, *path: str | int) -> object:
        """Ask the daemon for one value: ``path`` leads to it through the JSON answer."""
        value: object = json.loads(self.run(f"{command} --json", show=False).output)["data"]
        for part in path:
            value = value[part]  # type: ignore[index]
        return value

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the daemon until the end of the block, or until something goes wrong."""
        self.screen.command("xpucached --user &")
        log = self.root / "daemon.log"
        with log.open("wb") as stream:
            daemon = subprocess.Popen(
                ["/bin/sh", "-c", "exec xpucached --user"],
                env=self.environment,
                cwd=self.root,
                stdout=stream,
                stderr=stream,
            )
        try:
            self._settle(daemon)
            yield daemon
        except Exception:
            ended = "still runs" if daemon.poll() is None else f"has ended with status {daemon.returncode}"
            print(
                f"\nthe daemon {ended}; its log:\n{log.read_text(encoding='utf-8', errors='replace')}", file=sys.stderr
            )
            raise
        finally:
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(30)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
        expect("the daemon ends as it should", holds=daemon.returncode == 0)

    def _settle(self, daemon: subprocess.Popen[bytes]) -> None:
        """Wait until the daemon has looked around."""
        wait_until("the daemon answers", lambda: daemon.poll() is not None or self._answers(), 30)
        expect("the daemon runs", holds=daemon.poll() is None)
        wait_until("it has looked around", lambda: self.ask("xpucachectl status", "verdict") != "starting")
        self.screen.output(self.run("xpucachectl status | head -n 1").output)

    def _answers(self) -> bool:
        """Return whether the daemon answers at all; what it says is looked at later."""
        try:
            self.run("xpucachectl status", show=False)
        except Disappointed:
            return False
        return True


def expect(what: str, *, holds: bool) -> None:
    """Stop the demo unless this holds."""
    if not holds:
        raise Disappointed(f"expected: {what}")


def wait_until(what: str, holds: Callable[[], bool], patience: float = PATIENCE) -> float:
    """Look until this holds; gives the seconds that it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > patience:
            raise Disappointed(f"waited {patience:.0f} s in vain until {what}")
        time.sleep(0.25)
    return time.monotonic() - began


def arguments(description: str) -> argparse.ArgumentParser:
    """Return what every demo can be asked for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runtimes", type=Path, required=True, help="where tools/runtimes.py installed them")
    parser.add_argument("--color", action="store_true", default=sys.stdout.isatty(), help="even if nobody watches")
    return parser


def perform(show: Callable[[Path], None]) -> int:
    """Show a demo in a temporary directory; 0 when every step showed what it says."""
    began = time.monotonic()
    # A short name: the daemon's socket is below it, and a socket's path ends at 107 bytes.
    with tempfile.TemporaryDirectory(prefix="xpu-demo-") as folder:
        try:
            show(Path(folder))
        except (Disappointed, subprocess.TimeoutExpired) as problem:
            print(f"\ndemo: {problem}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    print(f"\nAll of it in {time.monotonic() - began:.0f} s; nothing is left behind.")
    return 0
