"""Show what xpucached does for the GPU driver's own cache, on this machine, without root and without a GPU.

oneDNN compiles attention for a chat (``attention.py``) with Intel's real GPU driver, which simulates an Arc A770: cold,
warm, after its compiler was replaced, replayed, and warm again.  Nothing is executed, so a program costs what it costs
to compile its kernels.  Each step is checked, as in ``demo.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stage import PATIENCE, Result, Screen, Stage, arguments, expect, perform, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

ONEDNN: Final = "onednn3.7"
RUNTIME: Final = "rt2025.2"
DRIVER: Final = "gpu-driver"

SIMULATED: Final = {
    "NEOReadDebugKeys": "1",
    "UseAubStream": "0",
    "SetCommandStreamReceiver": "1",
    "ProductFamilyOverride": "acm-g10",
    "HardwareInfoOverride": "8x4x16",
    "ForceDeviceId": "0x56a0",
    "OverrideDeviceName": "Intel(R) Arc(TM) A770 Graphics",
    "UseBindlessMode": "0",
    "UseExternalAllocatorForSshAndDsh": "0",
    "ONEAPI_DEVICE_SELECTOR": "level_zero:gpu",
    "UR_LOADER_USE_LEVEL_ZERO_V2": "0",  # the newer adapter makes no queue on a simulated device
}


def gpu_stage(root: Path, runtimes: Path, names: Sequence[str], screen: Screen, patience: float = PATIENCE) -> Stage:
    """Make a place with the driver, a compiler that can be replaced, and a Python that has them and these runtimes."""
    driver = install(runtimes / DRIVER, root / "driver")
    place = root / "python"
    (place / "bin").mkdir(parents=True)
    base = Path(os.path.realpath(sys.executable))
    folders = (driver, *(runtimes / name / "lib" for name in names), base.parent.parent / "lib")
    libraries = ":".join(map(str, (*folders, "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu")))
    # What a virtual environment is: its interpreter finds this file, and beside it the packages.
    (place / "pyvenv.cfg").write_text(f"home = {base.parent}\n", encoding="utf-8")
    packages = Path(sysconfig.get_path("purelib"))
    (place / "lib" / packages.parent.name).mkdir(parents=True)
    (place / "lib" / packages.parent.name / "site-packages").symlink_to(packages)
    # The driver needs a newer C library than this machine may have.
    python = place / "bin/python3"
    loader = f"{driver / 'ld-linux-x86-64.so.2'} --library-path {libraries} --argv0 {python} {base}"
    for path, command in ((python, loader), (place / "bin/xpucached", f"{python} -m xpucached")):
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
    found = {
        "ZE_ENABLE_ALT_DRIVERS": str(driver / "libze_intel_gpu.so.1"),
        "OCL_ICD_VENDORS": str(driver / "intel-opencl/libigdrcl.so"),
    }
    return Stage(
        root,
        screen,
        {
            "PATH": f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "RUNTIMES": str(runtimes),
        },
        driver={**SIMULATED, **found},
        schedule="replay = false\nprewarm = false",
        patience=patience,
    )


def install(source: Path, target: Path) -> Path:
    """Put the driver's libraries somewhere, without copying them where that can be; give where they are."""

    def linked(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except OSError:  # another file system
            shutil.copy2(one, other)

    shutil.copytree(source / "usr/lib/x86_64-linux-gnu", target, symlinks=True, copy_function=linked)
    return target


@dataclass(frozen=True, slots=True)
class Lookups:
    """What the driver counted of its own lookups."""

    hits: int
    misses: int

    @staticmethod
    def of(store: Path) -> Lookups:
        """Read what it counted so far, of all programs together."""
        try:
            hits, misses, _ = struct.unpack("<3Q", (store / "stats").read_bytes())
        except FileNotFoundError:
            return Lookups(0, 0)
        return Lookups(hits, misses)


@dataclass(frozen=True, slots=True)
class Demo:
    """The steps, each of which shows one thing and checks it."""

    stage: Stage
    program: str  #: the command line of the program that is warmed

    @property
    def store(self) -> Path:
        """Where the driver caches for programs with the daemon's variables."""
        return self.stage.root / "cache/xpucached/neo"

    def perform(self) -> None:
        """Show every step."""
        screen = self.stage.screen
        cold = self.cold()
        screen.step("The daemon, as an ordinary user")
        with self.stage.daemon() as daemon:
            self.prewarm()
            warm = self.warm("The same chat, with the cache that is warm now")
            self.upgrade()
            replayed, _ = self.replay(daemon.pid)
            again = self.warm("The first chat after the upgrade")
        screen.step("In short, in seconds of processor time")
        screen.fact(f"cold {cold:.1f}, warm {warm:.1f}, upgraded and replayed {replayed:.1f}, then warm {again:.1f}")

    def cold(self) -> float:
        """Start the program with a cache that is empty; gives its seconds of processor time."""
        self.stage.screen.step("A chat on an Arc A770: oneDNN compiles attention for each token, and nothing is cached")
        cold = seconds(self.stage.run(f"NEO_CACHE_DIR=$HOME/tmp {self.program}"))
        self.stage.screen.fact(f"{cold:.1f} s of processor time")
        return cold

    def prewarm(self) -> None:
        """Register the program and warm it."""
        stage = self.stage
        stage.screen.step("Register the program, and warm it")
        stage.run(f'eval "xpucachectl model add chat --timeout 3h -- {self.program}"')
        stage.screen.output(stage.run("xpucachectl prewarm chat").output)
        expect("the model is warm", holds=stage.ask("xpucachectl model show chat", "warmth") == "warm")

    def warm(self, title: str) -> float:
        """Start the program with the warm cache; gives its seconds of processor time."""
        self.stage.screen.step(title)
        before = Lookups.of(self.store)
        warm = seconds(self.stage.run(f'eval "$(xpucachectl env)"; {self.program}'))
        after = Lookups.of(self.store)
        hits, misses = after.hits - before.hits, after.misses - before.misses
        expect("everything comes from the cache", holds=hits > 0 and misses == 0)
        self.stage.screen.fact(f"{warm:.1f} s of processor time: {hits} programs from the cache, {misses} compiled")
        return warm

    def upgrade(self) -> None:
        """Replace the compiler and ask what is cold."""
        stage = self.stage
        stage.screen.step("The GPU's compiler is upgraded: what the old one made serves no program any more")
        # The same one at another time: to the driver it is another.
        stage.run("cp ~/driver/libigc.so.2.* ~/libigc.new && mv ~/libigc.new ~/driver/libigc.so.2.*")
        warmth = "xpucachectl model show chat"
        noticed = wait_until("the daemon notices", lambda: stage.ask(warmth, "warmth") == "cold")
        stage.screen.output(stage.run("xpucachectl status | head -n 1").output)
        stage.screen.fact(f"noticed after {noticed:.1f} s, before anything ran")

    def replay(self, daemon: int) -> tuple[float, float]:
        """Let the daemon compile what it recorded; gives the seconds of processor time, and those that passed."""
        stage = self.stage
        stage.screen.step("What was recorded is compiled again, without the chat")
        before = processor_time(daemon)
        replay = stage.run("xpucachectl replay")
        spent = processor_time(daemon) - before
        stage.screen.output(replay.output)
        stage.screen.fact(f"{spent:.1f} s of processor time, in {replay.seconds:.1f} s")
        return spent, replay.seconds


def processor_time(process: int) -> float:
    """Return the seconds that a process took so far, with those of its children that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def seconds(result: Result) -> float:
    """Return the seconds of processor time that a program tells of itself."""
    return float(json.loads(result.output)["seconds"])


def main() -> int:
    """Run the demo; 0 when every step showed what it says."""
    parser = arguments("Show what xpucached does for the GPU driver's own cache, without root and without a GPU.")
    parser.add_argument("--last", type=int, default=42, metavar="KEYS", help="of the last token; the first has 33")
    options = parser.parse_args()
    runtimes = options.runtimes.absolute()
    for name in (ONEDNN, RUNTIME, DRIVER):
        if not (runtimes / name).is_dir():
            print(f"demo: {name} is missing; run: make demo-gpu", file=sys.stderr)
            return 69

    def show(folder: Path) -> None:
        stage = gpu_stage(folder, runtimes, (ONEDNN, RUNTIME), Screen(colour=options.color))
        shutil.copy(Path(__file__).with_name("attention.py"), stage.app)
        Demo(stage, f"python3 attention.py $RUNTIMES/{ONEDNN}/lib/libdnnl.so.3 33 {options.last}").perform()

    return perform(show)


if __name__ == "__main__":
    sys.exit(main())
