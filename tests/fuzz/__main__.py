"""``python -m tests.fuzz TARGET …``: look for bytes that break a reader, guided by what they reach.

What is found is written to ``tests/fuzz/found/TARGET``, where the tests read it from then on: mend it, and keep it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["xpucached", "h11", "tests.fuzz.targets"], enable_loader_override=False):
    from tests.fuzz import targets

FOUND = Path(__file__).parent / "found"


def main() -> None:
    """Fuzz one target until its time or its number of runs is up, or something is found (exit status 77)."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("target", choices=sorted(targets.TARGETS))
    options.add_argument("--runs", type=int, default=-1, help="so many inputs; default: without end")
    options.add_argument("--seconds", type=int, default=0, help="so long; default: without end")
    options.add_argument("--seed", type=int, default=0, help="the same number gives the same inputs; default: any")
    options.add_argument("--corpus", type=Path, help="keep what was reached here, and begin with it the next time")
    options.add_argument("--found", type=Path, help="write what breaks it here instead of tests/fuzz/found")
    given = options.parse_args()
    found = given.found or FOUND / given.target
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="xpucached-fuzz-") as made:
        corpus = given.corpus / given.target if given.corpus else Path(made, "corpus")
        corpus.mkdir(parents=True, exist_ok=True)
        begin = Path(made, "seeds")
        begin.mkdir()
        for number, seed in enumerate(targets.seeds(given.target)):
            (begin / str(number)).write_bytes(seed)
        arguments = [
            sys.argv[0],
            f"-runs={given.runs}",
            f"-max_total_time={given.seconds}",
            f"-seed={given.seed}",
            f"-artifact_prefix={found}/",
            "-timeout=20",
            "-rss_limit_mb=2048",
            "-max_len=16384",
            "-print_final_stats=1",
            str(corpus),
            str(begin),
        ]
        # What hostile clients send is logged, and here there are hundreds in a second.
        logging.disable(logging.ERROR)
        atheris.Setup(arguments, targets.TARGETS[given.target])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
