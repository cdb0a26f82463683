"""How long `xpucachectl inspect` reads wheels, beside ``unzip -t`` of the same files.

Usage: ``python bench/wheels.py WHEEL…``.  Each is done three times, in turn; the least time counts, of the
processor and by the clock.  Needs ``unzip``.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def spent(command: list[str]) -> tuple[float, float]:
    """Run a command; give the seconds of the processor that it took, and those by the clock."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - began


def main(wheels: list[str]) -> None:
    """Print a line for each wheel."""
    ours = str(Path(sys.executable).with_name("xpucachectl"))
    print("wheel, MB, unzip -t (processor, clock), inspect (processor, clock), times as much (processor)")
    for wheel in wheels:
        inspect = [ours, "inspect", wheel, "--device", "B580", "-q"]
        pairs = [(spent(["unzip", "-tq", wheel]), spent(inspect)) for _ in range(3)]
        theirs, mine = (tuple(min(one[which][part] for one in pairs) for part in (0, 1)) for which in (0, 1))
        figures = [os.stat(wheel).st_size / 1e6, *theirs, *mine, mine[0] / theirs[0]]
        print(Path(wheel).name, *(f"{one:.2f}" for one in figures), sep=", ", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
