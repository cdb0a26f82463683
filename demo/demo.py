"""Show what xpucached does, on this machine, without root and without a GPU.

A real program (``workload.py``) on Intel's real OpenCL driver for the CPU starts cold; a daemon of its own warms it; it
starts warm; the driver is replaced by a newer release; the daemon notices and warms again; the old driver's entries go.
Everything happens below one temporary directory, which is gone at the end.  Each step is checked: the demo ends with
status 1 at the first one that does not show what it says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stage import Result, Screen, Stage, arguments, expect, perform, wait_until

OLD: Final = "rt2025.2"
NEW: Final = "drv2025.3"


def cpu_stage(root: Path, runtimes: Path, screen: Screen) -> Stage:
    """Make a place with the program, and a driver that can be replaced."""
    driver, libraries = root / "driver", runtimes / OLD / "lib"
    driver.symlink_to(libraries)
    stage = Stage(
        root,
        screen,
        {
            # The program's Python first, then the commands of xpucached.
            "PATH": f"{runtimes / OLD / 'bin'}:{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "RUNTIMES": str(runtimes),
            "SYCL_CACHE_TRACE": "1",
        },
        driver={"OCL_ICD_FILENAMES": str(driver / "libintelocl.so"), "LD_LIBRARY_PATH": str(libraries)},
    )
    shutil.copy(Path(__file__).with_name("workload.py"), stage.app / "network.py")
    return stage


def loaded(result: Result) -> int:
    """Return how many compiled programs the SYCL runtime found in the cache."""
    return len(re.findall(r"using cached device binary", result.trace))


def compiled(result: Result) -> int:
    """Return how many the SYCL runtime compiled and put there."""
    return len(re.findall(r"device binary has been cached", result.trace))


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
        with self.stage.daemon():
            self.prewarm()
            warm = self.warm(cold)
            self.upgrade(driver_of(cold))
            again = self.after_upgrade(cold)
            self.evict(driver_of(cold), again)
        screen.step("In short")
        screen.fact(
            f"cold {cold.seconds:.1f} s, warm {warm.seconds:.1f} s, after a driver upgrade {again.seconds:.1f} s"
        )

    def cold(self) -> Result:
        """Start the program as it is."""
        self.stage.screen.step("A program as it comes: the cache is off, and every start compiles its kernels")
        cold = self.stage.run(self.program)
        expect("no cache", holds=not loaded(cold) and not compiled(cold))
        self.stage.screen.fact(f"{cold.seconds:.1f} s, with driver {driver_of(cold)}")
        return cold

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
        expect("everything comes from the cache", holds=loaded(warm) > 0 and compiled(warm) == 0)
        expect("the same results", holds=same_results(cold, warm))
        self.stage.screen.fact(
            f"{warm.seconds:.1f} s instead of {cold.seconds:.1f} s: "
            f"{loaded(warm)} kernels from the cache, {compiled(warm)} compiled, the same results"
        )
        return warm

    def upgrade(self, old: str) -> None:
        """Replace the driver and watch the daemon."""
        stage = self.stage
        stage.screen.step("The driver is upgraded from 2025.2 to 2025.3, and nobody tells the daemon")
        # In one step, as a package manager does.
        stage.run(f"ln -s $RUNTIMES/{NEW}/lib ~/driver.new && mv -T ~/driver.new ~/driver")
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
        expect("everything comes from the cache", holds=loaded(again) > 0 and compiled(again) == 0)
        expect("the same results", holds=same_results(cold, again))
        self.stage.screen.fact(
            f"{again.seconds:.1f} s: "
            f"{loaded(again)} kernels from the cache, {compiled(again)} compiled, the same results"
        )
        return again

    def evict(self, old: str, again: Result) -> None:
        """Let the old driver's entries go."""
        stage = self.stage
        stage.screen.step("What the old driver left behind goes")
        before = count(stage, f"--driver '{old}'")
        stage.screen.output(stage.run("xpucachectl evict --dry-run | head -n 3").output)
        removal = stage.run("xpucachectl evict | tail -n 2")
        stage.screen.output(removal.output)
        left, kept = count(stage, f"--driver '{old}'"), count(stage, "--driver current")
        expect("the old driver's entries are gone", holds=before > 0 and left == 0)
        expect("the new driver's entries stay", holds=kept >= loaded(again))
        stage.screen.fact(f"{before} entries gone in {removal.seconds:.1f} s, {kept} stay")
        stage.screen.output(stage.run("xpucachectl status | head -n 1").output)


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
    parser = arguments("Show what xpucached does, on this machine, without root.")
    parser.add_argument("--size", choices=("small", "medium", "large"), default="medium", help="of the program")
    options = parser.parse_args()
    runtimes = options.runtimes.absolute()
    for name in (OLD, NEW):
        if not (runtimes / name / "lib" / "libintelocl.so").exists():
            print(f"demo: {name} is missing; run: python3 tools/runtimes.py {options.runtimes} --demo", file=sys.stderr)
            return 69

    def show(folder: Path) -> None:
        stage = cpu_stage(folder, runtimes, Screen(colour=options.color))
        Demo(stage, f"python3 network.py {options.size}").perform()

    return perform(show)


if __name__ == "__main__":
    sys.exit(main())
