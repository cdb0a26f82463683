"""How long a replay takes, beside what it saves: the program compiling everything itself on the new driver.

Usage: ``python bench/replay.py RUNTIMES [small|medium|large] [ROUNDS]``; ``tools/runtimes.py`` fills that folder.

Each round, one after the other on the same machine: the program cold on the new driver; then a daemon replays the old
driver's entries for it, and the program starts again.  It prints a table; the ratio is what counts.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
OLD: Final = "rt2025.2"
NEW: Final = "drv2025.3"


def program(runtimes: Path, driver: str, cache: Path, size: str) -> tuple[float, float, int]:
    """Start the program; give its seconds, its checksum and how many entries it compiled."""
    runtime = runtimes / OLD
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(cache.parent),
        "LD_LIBRARY_PATH": str(runtime / "lib"),
        "OCL_ICD_FILENAMES": str(runtimes / driver / "lib/libintelocl.so"),
        "SYCL_CACHE_PERSISTENT": "1",
        "SYCL_CACHE_DIR": str(cache),
        "SYCL_CACHE_TRACE": "1",
    }
    began = time.monotonic()
    done = subprocess.run(
        [runtime / "bin/python", "-W", "ignore", REPOSITORY / "demo/workload.py", size],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.monotonic() - began
    return seconds, json.loads(done.stdout)["checksum"], done.stderr.count("has been cached")


def replay(runtimes: Path, cache: Path, home: Path) -> dict[str, float]:
    """Let a daemon replay; give its report."""
    run = home / "r"
    run.mkdir(mode=0o700)
    config = home / "xpucached.toml"
    config.write_text(
        f"""
        [paths]
        state = '{home}/state'
        cache = '{home}/cache'
        [stores]
        found = false
        paths = ['{cache}']
        [driver.variables]
        LD_LIBRARY_PATH = '{runtimes}/{OLD}/lib'
        OCL_ICD_FILENAMES = '{runtimes}/{NEW}/lib/libintelocl.so'
        [schedule]
        replay = false
        evict = false
        """
    )
    variables = {**os.environ, "XDG_RUNTIME_DIR": str(run)}
    daemon = subprocess.Popen(
        [sys.executable, "-m", "xpucached", "--user", "--config", config], env=variables, stderr=subprocess.DEVNULL
    )
    try:
        ctl = [sys.executable, "-m", "xpucached.cli", "--user", "--json"]
        for _ in range(200):
            status = subprocess.run([*ctl, "status"], env=variables, capture_output=True, text=True, check=False)
            if json.loads(status.stdout or "{}").get("data", {}).get("verdict") == "no-models":
                break
            time.sleep(0.1)
        began = time.monotonic()
        done = subprocess.run([*ctl, "replay"], env=variables, capture_output=True, text=True, check=True)
        report: dict[str, float] = json.loads(done.stdout)["data"]["report"]
        return {**report, "wall": time.monotonic() - began}
    finally:
        daemon.terminate()
        daemon.wait()


def main() -> int:
    """Measure and print."""
    runtimes = Path(sys.argv[1]).absolute()
    size = sys.argv[2] if len(sys.argv) > 2 else "large"  # noqa: PLR2004 - the second argument
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3  # noqa: PLR2004 - the third
    print(f"{os.cpu_count()} cores, workload {size}, driver {OLD} -> {NEW}")
    print("| entries | cold s | replay s | ratio | in compilers s | after: s | compiled | same result |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    ratios: list[float] = []
    for _ in range(rounds):
        home = Path(tempfile.mkdtemp(prefix="xpu-"))
        try:
            program(runtimes, OLD, home / "store", size)
            cold, truth, compiled = program(runtimes, NEW, home / "cold", size)
            report = replay(runtimes, home / "store", home)
            after, result, again = program(runtimes, NEW, home / "store", size)
            ratios.append(report["wall"] / cold)
            print(
                f"| {report['rebuilt']} of {compiled} | {cold:.1f} | {report['wall']:.1f} | {ratios[-1]:.2f}"
                f" | {report['compile_seconds']:.1f} | {after:.1f} | {again} | {result == truth} |",
                flush=True,
            )
        finally:
            shutil.rmtree(home)
    print(f"median ratio {statistics.median(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
