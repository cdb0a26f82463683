"""What recording and replaying the GPU driver's programs costs, beside the chat that compiles them itself.

Usage: ``python bench/driver_cache.py --runtimes RUNTIMES [--last KEYS] [--library NAME]``

It is the flow of ``demo/gpu.py`` with as many programs as the first report had: a cold run, which is recorded, and a
warm one; then the compiler's file gets another time, so that to the driver it is another one, all is replayed, and the
chat runs again.  The compiler's code is the same, so each rebuilt entry must have the bytes of the cold run's.  What
counts is processor time; wall times do on a machine that does nothing else.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "demo"))

from gpu import Demo, gpu_stage  # noqa: E402 - what is shown is measured here
from stage import Screen, arguments, expect, perform  # noqa: E402

LIBRARIES: Final = {
    "onednn3.7": ("rt2025.2", "python3 {demo}/attention.py $RUNTIMES/onednn3.7/lib/libdnnl.so.3 33 {last}"),
    "onednn3.13": ("rt2026.2", "python3 {demo}/attention.py $RUNTIMES/onednn3.13/lib/libdnnl.so.3 33 {last}"),
    "openvino2026.4": ("rt2026.2", "python3 {bench}/openvino_attention.py $RUNTIMES/openvino2026.4 33 {last}"),
}
"""What compiles: whose SYCL runtime it is loaded beside, and the program."""


def contents(store: Path) -> Counter[tuple[str, int]]:
    """Return digest and size of all entries."""
    found = (path.read_bytes() for path in store.rglob("*.cl_cache"))
    return Counter((hashlib.sha256(content).hexdigest(), len(content)) for content in found)


def recipes(state: Path) -> int:
    """Return the bytes that recipes take: their parts, and what the catalog has of them."""
    parts = sum(path.stat().st_size for path in (state / "recipes").iterdir())
    with closing(sqlite3.connect(f"file:{state}/catalog.sqlite?mode=ro", uri=True)) as catalog:
        columns = [row[1] for row in catalog.execute("PRAGMA table_info(recipes)")]
        lengths = " + ".join(f"coalesce(length({column}), 0)" for column in columns)
        (rows,) = catalog.execute(f"SELECT sum({lengths}) FROM recipes").fetchone()  # noqa: S608 - our own columns
    return parts + int(rows)


def measure(demo: Demo) -> None:
    """Measure and print."""
    stage = demo.stage
    with stage.daemon() as daemon:
        demo.prewarm()
        passes = stage.ask("xpucachectl runs", 0, "passes")
        cold, warm = ((one["seconds"], one["cpu_seconds"]) for one in passes)  # type: ignore[attr-defined]
        made = contents(demo.store)
        size = sum(length * count for (_, length), count in made.items())
        kept = recipes(stage.root / "state/xpucached")
        print(f"cold {cold[1]:.1f} CPU s in {cold[0]:.1f} s, warm {warm[1]:.1f} CPU s", flush=True)
        print(f"{made.total()} entries, {size} bytes; recipes {kept} bytes, {100 * kept / size:.2f} %", flush=True)
        demo.upgrade()
        replay, seconds = demo.replay(daemon.pid)
        print(
            f"replay {replay:.1f} CPU s, {replay / cold[1]:.2f} of cold; {seconds / cold[0]:.2f} of its time",
            flush=True,
        )
        same = (contents(demo.store) - made) == made
        expect("what was rebuilt has the bytes of the cold run", holds=same)
        again = demo.warm("After the replay")
        print(f"again {again:.1f} CPU s, and nothing was compiled; load {os.getloadavg()[0]:.1f}")


def main() -> int:
    """Measure and print."""
    parser = arguments("Measure what recording and replaying the GPU driver's programs costs.")
    parser.add_argument("--library", choices=LIBRARIES, default="onednn3.7")
    parser.add_argument("--last", type=int, default=544, metavar="KEYS", help="of the last token; the first has 33")
    options = parser.parse_args()
    runtime, program = LIBRARIES[options.library]

    def show(folder: Path) -> None:
        names = (options.library, runtime)
        stage = gpu_stage(folder, options.runtimes.absolute(), names, Screen(colour=False), patience=3600.0)
        here = {"demo": REPOSITORY / "demo", "bench": REPOSITORY / "bench"}
        measure(Demo(stage, program.format(last=options.last, **here)))

    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.library}, keys 33 to {options.last}")
    return perform(show)


if __name__ == "__main__":
    sys.exit(main())
