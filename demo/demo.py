"""Show what xpucached does, on this machine, without root and without a GPU.

A real program (``workload.py``) on Intel's real OpenCL driver for the CPU starts cold; a daemon of its own warms it; it
starts warm; the driver is replaced by a newer release; the daemon notices and warms again; the old driver's entries go.
Everything happens below one temporary directory, which is gone at the end.  Each step is checked: the demo ends with
status 1 at the first one that does not show what it says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
    from collections.abc import Callable, Iterator

OLD: Final = "rt2025.2"
NEW: Final = "drv2025.3"

# Nothing outside the demo's own directory is looked at, let alone evicted: other programs of this user cache, too.
# An entry stays for ten minutes at least, and one older driver's are kept for going back: too long to watch here.
CONFIGURATION: Final = """\
[driver.variables]
OCL_ICD_FILENAMES = "%(driver)s/libintelocl.so"
LD_LIBRARY_PATH = "%(libraries)s"

[stores]
found = false

[policy]
grace = "1s"
keep_driver_generations = 0

[schedule]
evict = false

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

    @property
    def loaded(self) -> int:
        """How many compiled programs the SYCL runtime found in the cache."""
        return len(re.findall(r"using cached device binary", self.trace))

    @property
    def compiled(self) -> int:
        """How many the SYCL runtime compiled and put there."""
        return len(re.findall(r"device binary has been cached", self.trace))


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
    """One temporary place with a user's shell, a driver that can be replaced, and a daemon."""

    def __init__(self, root: Path, runtimes: Path, screen: Screen) -> None:
        self.root = root
        self.screen = screen
        self._old = runtimes / OLD
        self._driver = root / "driver"
        self.app = root / "app"
        self.app.mkdir()
        shutil.copy(Path(__file__).with_name("workload.py"), self.app / "network.py")
        for folder in ("cache", "config", "state", "data", "run", "tmp"):
            (root / folder).mkdir(mode=0o700)
        self._driver.symlink_to(self._old / "lib")
        self.environment = {
            "HOME": str(root),
            "LANG": "C.UTF-8",
            "LD_LIBRARY_PATH": str(self._old / "lib"),
            "OCL_ICD_FILENAMES": str(self._driver / "libintelocl.so"),
            # The program's Python first, then the commands of xpucached.
            "PATH": f"{self._old / 'bin'}:{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "RUNTIMES": str(runtimes),
            "SYCL_CACHE_TRACE": "1",
            "TMPDIR": str(root / "tmp"),
            "XDG_CACHE_HOME": str(root / "cache"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_DATA_HOME": str(root / "data"),
            "XDG_RUNTIME_DIR": str(root / "run"),
            "XDG_STATE_HOME": str(root / "state"),
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
            timeout=PATIENCE,
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

    def replace_driver(self) -> None:
        """Put the newer driver in the old one's place, in one step, as a package manager does."""
        self.run(f"ln -s $RUNTIMES/{NEW}/lib ~/driver.new && mv -T ~/driver.new ~/driver")

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the daemon until the end of the block, or until something goes wrong."""
        settings = {"driver": self._driver, "libraries": self._old / "lib"}
        place = self.root / "config" / "xpucached" / "xpucached.toml"
        place.parent.mkdir()
        place.write_text(CONFIGURATION % settings, encoding="utf-8")
        self.screen.command("xpucached --user &")
        log = self.root / "daemon.log"
        with log.open("wb") as stream:
            daemon = subprocess.Popen(
                [Path(sys.executable).with_name("xpucached"), "--user"],
                env=self.environment,
                cwd=self.root,
                stdout=stream,
                stderr=stream,
            )
        try:
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


@dataclass(frozen=True, slots=True)
class Demo:
    """The steps, each of which shows one thing and checks it."""

    stage: Stage
    program: str  #: the command line of the program that is warmed

    def perform(self) -> None:
        """Show every step."""
        screen = self.stage.screen
        cold = self.cold()
        screen.step("The daemon, as an ordinary user")
        with self.stage.daemon() as daemon:
            self.start(daemon)
            self.prewarm()
            warm = self.warm(cold)
            self.upgrade(driver_of(cold))
            again = self.after_upgrade(cold)
            self.evict(driver_of(cold), again)
        expect("the daemon ends as it should", holds=daemon.returncode == 0)
        screen.step("In short")
        screen.fact(
            f"cold {cold.seconds:.1f} s, warm {warm.seconds:.1f} s, after a driver upgrade {again.seconds:.1f} s"
        )

    def cold(self) -> Result:
        """Start the program as it is."""
        self.stage.screen.step("A program as it comes: the cache is off, and every start compiles its kernels")
        cold = self.stage.run(self.program)
        expect("no cache", holds=not cold.loaded and not cold.compiled)
        self.stage.screen.fact(f"{cold.seconds:.1f} s, with driver {driver_of(cold)}")
        return cold

    def start(self, daemon: subprocess.Popen[bytes]) -> None:
        """Wait until the daemon has looked around."""
        stage = self.stage
        wait_until("the daemon answers", lambda: daemon.poll() is not None or answers(stage), 30)
        expect("the daemon runs", holds=daemon.poll() is None)
        wait_until("it has looked around", lambda: stage.ask("xpucachectl status", "verdict") != "starting")
        stage.screen.output(stage.run("xpucachectl status | head -n 1").output)

    def prewarm(self) -> None:
        """Register the program and warm it."""
        stage = self.stage
        stage.screen.step("Register the program, and warm it")
        stage.run(f"xpucachectl model add network -- {self.program}")
        warming = stage.run("xpucachectl prewarm network")
        stage.screen.output(warming.output)
        expect("the model is warm", holds=stage.ask("xpucachectl model show network", "warmth") == "warm")
        stage.screen.fact(f"warm after {warming.seconds:.1f} s: run twice, and the second time nothing was compiled")

    def warm(self, cold: Result) -> Result:
        """Start the program with the warm cache."""
        self.stage.screen.step("The same program, with the cache that is warm now")
        warm = self.stage.run(f'eval "$(xpucachectl env)"; {self.program}')
        expect("everything comes from the cache", holds=warm.loaded > 0 and warm.compiled == 0)
        expect("the same results", holds=same_results(cold, warm))
        self.stage.screen.fact(
            f"{warm.seconds:.1f} s instead of {cold.seconds:.1f} s: "
            f"{warm.loaded} kernels from the cache, {warm.compiled} compiled, the same results"
        )
        return warm

    def upgrade(self, old: str) -> None:
        """Replace the driver and watch the daemon."""
        stage = self.stage
        stage.screen.step("The driver is upgraded from 2025.2 to 2025.3, and nobody tells the daemon")
        stage.replace_driver()
        noticed = wait_until("the daemon notices", lambda: bool(drivers(stage)) and old not in drivers(stage))
        stage.screen.fact(f"noticed after {noticed:.1f} s: the driver is {', '.join(drivers(stage))} now")
        warmth = "xpucachectl model show network"
        warmed = noticed + wait_until("it is warm again", lambda: stage.ask(warmth, "warmth") == "warm")
        replayed = stage.run("xpucachectl events | grep -o 'replayed: .*'")
        expect("entries were rebuilt without the program", holds="0 failed" in replayed.output)
        stage.screen.output(replayed.output)
        stage.screen.output(stage.run("xpucachectl runs network").output)
        stage.screen.fact(
            f"warm for the new driver after {warmed:.1f} s: rebuilt without the program, which then ran to prove it"
        )

    def after_upgrade(self, cold: Result) -> Result:
        """Start the program with the new driver."""
        self.stage.screen.step("The program's first start after the upgrade")
        again = self.stage.run(f'eval "$(xpucachectl env)"; {self.program}')
        expect("the new driver", holds=[driver_of(again)] == drivers(self.stage))
        expect("everything comes from the cache", holds=again.loaded > 0 and again.compiled == 0)
        expect("the same results", holds=same_results(cold, again))
        self.stage.screen.fact(
            f"{again.seconds:.1f} s: {again.loaded} kernels from the cache, {again.compiled} compiled, the same results"
        )
        return again

    def evict(self, old: str, again: Result) -> None:
        """Let the old driver's entries go."""
        stage = self.stage
        stage.screen.step("What the old driver left behind goes")
        before = count(stage, f"--driver '{old}'")
        stage.screen.output(stage.run("xpucachectl evict --dry-run | head -n 3").output)
        removal = stage.run("xpucachectl evict | tail -n 1")
        stage.screen.output(removal.output)
        left, kept = count(stage, f"--driver '{old}'"), count(stage, "--driver current")
        expect("the old driver's entries are gone", holds=before > 0 and left == 0)
        expect("the new driver's entries stay", holds=kept >= again.loaded)
        stage.screen.fact(f"{before} entries gone in {removal.seconds:.1f} s, {kept} stay")
        stage.screen.output(stage.run("xpucachectl status | head -n 1").output)


def answers(stage: Stage) -> bool:
    """Return whether the daemon answers at all; what it says is looked at later."""
    try:
        stage.run("xpucachectl status", show=False)
    except Disappointed:
        return False
    return True


def drivers(stage: Stage) -> list[str]:
    """Return the drivers that programs on this host use now, as the daemon sees it."""
    found = stage.ask("xpucachectl devices", "environments")
    return sorted({one["toolchain"] for one in found}) if isinstance(found, list) else []


def count(stage: Stage, which: str) -> int:
    """Return the number of entries that fit."""
    return int(str(stage.ask(f"xpucachectl ls {which}", "total")))


def driver_of(result: Result) -> str:
    """Return the driver that a run of the program met."""
    return str(json.loads(result.output)["driver"])


def same_results(one: Result, other: Result) -> bool:
    """Return whether two runs of the program computed the same."""
    return bool(json.loads(one.output)["checksum"] == json.loads(other.output)["checksum"])


def main() -> int:
    """Run the demo; 0 when every step showed what it says."""
    parser = argparse.ArgumentParser(description="Show what xpucached does, on this machine, without root.")
    parser.add_argument("--runtimes", type=Path, required=True, help="where tools/runtimes.py installed them")
    parser.add_argument("--size", choices=("small", "medium", "large"), default="medium", help="of the program")
    parser.add_argument("--color", action="store_true", default=sys.stdout.isatty(), help="even if nobody watches")
    options = parser.parse_args()
    runtimes = options.runtimes.absolute()
    for name in (OLD, NEW):
        if not (runtimes / name / "lib" / "libintelocl.so").exists():
            print(f"demo: {name} is missing; run: python3 tools/runtimes.py {options.runtimes} --demo", file=sys.stderr)
            return 69
    began = time.monotonic()
    # A short name: the daemon's socket is below it, and a socket's path ends at 107 bytes.
    with tempfile.TemporaryDirectory(prefix="xpu-demo-") as folder:
        try:
            stage = Stage(Path(folder), runtimes, Screen(colour=options.color))
            Demo(stage, f"python3 network.py {options.size}").perform()
        except (Disappointed, subprocess.TimeoutExpired) as problem:
            print(f"\ndemo: {problem}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    print(f"\nAll of it in {time.monotonic() - began:.0f} s; nothing is left behind.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
