"""Export and import of a real store, beside ``tar | zstd -9`` and ``cp -a`` of the same tree; prints a table.

Usage: ``bench/bundles.py --runtimes .runtimes [--copies 1,10] [--rounds 3]``

The store is what the demo's large workload leaves on a CPU (278 entries).  More of them are the same programs with
other options, each in the place that follows from that; so they compress better than others would.  Each figure is
that of the round with the least processor time, of all that was started.
"""

from __future__ import annotations

import argparse
import compileall
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests import REPOSITORY
from xpucached.kinds.sycl import entry_format

CTL: Final = (sys.executable, "-m", "xpucached.cli", "bundle")


def filled(root: Path, runtime: Path) -> Path:
    """Let the demo's workload fill a store."""
    if not root.exists():
        variables = {**driver(runtime), "SYCL_CACHE_PERSISTENT": "1", "SYCL_CACHE_DIR": str(root)}
        subprocess.run([runtime / "bin/python", REPOSITORY / "demo/workload.py", "large"], env=variables, check=True)
    return root


def driver(runtime: Path) -> dict[str, str]:
    """Return the variables that lead to a driver."""
    return {
        "HOME": os.environ["HOME"],
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(runtime / "lib"),
        "OCL_ICD_FILENAMES": str(runtime / "lib/libintelocl.so"),
    }


def multiplied(store: Path, into: Path, copies: int) -> Path:
    """Write each entry of a store some times, under other options."""
    drawn = random.Random(1)  # noqa: S311 - filling
    for path in store.glob("[0-9]*/*/*/*/0.src"):
        source = entry_format.source(path.read_bytes(), path.stat().st_size)
        program = path.with_name("0.bin").read_bytes()
        for number in range(copies):
            # Else many copies would compress to nearly nothing, and be refused as what expands too far.
            options = source.options + (b" -D_%d=%s" % (number, drawn.randbytes(200).hex().encode()) if number else b"")
            fields = (source.device, options, b"", source.image)
            hashed = (source.device, source.image, b"", options)
            leaf = into.joinpath(*(str(entry_format.string_hash(one)) for one in hashed))
            leaf.mkdir(parents=True)
            leaf.joinpath("0.src").write_bytes(b"".join(struct.pack("<Q", len(one)) + one for one in fields))
            leaf.joinpath("0.bin").write_bytes(program)
    return into


def timed(command: str, variables: dict[str, str]) -> tuple[float, float]:
    """Run a command of a shell; give wall and processor time, in seconds."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(["/bin/bash", "-c", command], env=variables, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtimes", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="what the workload left at an earlier time")
    parser.add_argument("--place", type=Path, help="where trees are made; on the disk of /tmp otherwise")
    parser.add_argument("--copies", default="1,10,72")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    runtime = given.runtimes.absolute() / "rt2025.2"
    # As it is installed: no start compiles our modules anew.
    compileall.compile_dir(REPOSITORY / "xpucached", quiet=1)
    with tempfile.TemporaryDirectory(dir=given.place) as folder:
        place = Path(folder)
        real = filled(given.store or place / "real", runtime)
        variables = {**driver(runtime), "HOME": folder, "PYTHONPATH": str(REPOSITORY)}
        trusted = place / ".config/xpucached/trust.d"
        trusted.mkdir(parents=True)
        # As where a daemon runs, so digests of the driver's libraries are remembered.
        (place / ".local/state/xpucached").mkdir(parents=True)
        subprocess.run([*CTL, "keygen", place / "key", "--quiet"], env=variables, check=True, stdout=subprocess.DEVNULL)
        shutil.copy(place / "key.pub", trusted)
        print(
            "| entries | what | wall | processor | ratio of wall | of processor |\n"
            "| --- | --- | --- | --- | --- | --- |"
        )
        for copies in map(int, given.copies.split(",")):
            tree = multiplied(real, place / f"tree{copies}", copies)
            entries = sum(1 for _ in tree.glob("*/*/*/*/0.bin"))
            least: dict[str, tuple[float, float]] = {}
            for number in range(given.rounds):
                # Each time new places: a file system passes over what was removed a moment ago, one by one.
                made, taken = place / f"made{copies}.{number}", place / f"taken{copies}.{number}"
                ctl = " ".join(map(str, CTL))
                commands = {
                    "tar | zstd -9": f"tar -c -C {tree} . | zstd -q -9 -o {made}.zst",
                    "bundle export": f"{ctl} export {made} --store {tree} --sign {place}/key.key --quiet",
                    "cp -a": f"cp -a {tree} {taken}.copy",
                    "bundle import": f"{ctl} import {made} --into {taken} --binaries require --quiet",
                }
                for name, command in commands.items():
                    found = timed(command, variables)
                    least[name] = min(least.get(name, found), found, key=lambda one: one[1])
            for name, beside in (("bundle export", "tar | zstd -9"), ("bundle import", "cp -a")):
                for one in (beside, name):
                    wall, used = least[one]
                    ratios = f"{wall / least[beside][0]:.1f} {used / least[beside][1]:.1f}" if one == name else " "
                    print(f"| {entries} | {one} | {wall:.2f} s | {used:.2f} s | {ratios.replace(' ', ' | ')} |")
            size = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
            files = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
            print(f"| {entries} | bundle's size, of {files} bytes in files | {size} | | {size / files:.2f} | |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
