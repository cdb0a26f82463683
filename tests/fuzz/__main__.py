"""``python -m tests.fuzz TARGET…``: look for bytes that break a reader, guided by what they reach.

What is found is written to ``tests/fuzz/found/TARGET``, where the tests read it from then on: mend it, and keep it.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import atheris

PACKAGE = Path(__file__).parents[2] / "xpucached"

# To make a module ready takes longer than to load it, and what is only loaded with the readers reads nothing.  Each is
# named, for a package stands for itself alone.
BESIDE = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for room in ("planning", "processes", "render", "service")
    for path in (PACKAGE / room).rglob("*.py")
]

with atheris.instrument_imports(
    include=["xpucached", "h11", "tests.fuzz.targets"], exclude=BESIDE, enable_loader_override=False
):
    from tests.fuzz import targets

FOUND = Path(__file__).parent / "found"


def main() -> int:
    """Fuzz targets until their time or their number of runs is up, or something is found (exit status 77)."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    words = "what to fuzz: any of " + ", ".join(sorted(targets.TARGETS))
    options.add_argument("targets", nargs="+", metavar="TARGET[=RUNS]", help=words)
    options.add_argument("--runs", type=int, default=-1, help="so many inputs of each; default: without end")
    options.add_argument("--seconds", type=int, default=0, help="so long each; default: without end")
    options.add_argument("--seed", type=int, default=0, help="the same number gives the same inputs; default: any")
    options.add_argument("--corpus", type=Path, help="keep what was reached here, and begin with it the next time")
    options.add_argument("--found", type=Path, help="write what breaks it below here instead of tests/fuzz/found")
    options.add_argument("--logs", type=Path, help="write what the fuzzer says here, a file for each target")
    given = options.parse_args()
    worst = 0
    for word in given.targets:
        target, _, runs = word.partition("=")
        if target not in targets.TARGETS:
            options.error(words)
        # To make the program ready for the fuzzer takes longer than a short round, and the fuzzer never comes back.
        child = os.fork()
        if not child:
            if given.logs is not None:
                os.dup2(os.open(given.logs / target, os.O_WRONLY | os.O_CREAT, 0o600), 2)
            _fuzz(target, int(runs or given.runs), given)
        worst = max(worst, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), key=abs)
    return worst


def _fuzz(target: str, runs: int, given: argparse.Namespace) -> NoReturn:
    found = (given.found or FOUND) / target
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="xpucached-fuzz-") as made:
        corpus = given.corpus / target if given.corpus else Path(made, "corpus")
        corpus.mkdir(parents=True, exist_ok=True)
        begin = Path(made, "seeds")
        begin.mkdir()
        for number, seed in enumerate(targets.seeds(target)):
            (begin / str(number)).write_bytes(seed)
        arguments = [
            sys.argv[0],
            f"-runs={runs}",
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
        atheris.Setup(arguments, targets.TARGETS[target])
        atheris.Fuzz()
    raise AssertionError("the fuzzer came back")


if __name__ == "__main__":
    sys.exit(main())
