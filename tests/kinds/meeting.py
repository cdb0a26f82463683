"""A real program whose kernels are met one by one: in one start it shows what many kinds of damage do to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.support import runtimes
from tests.support.sharing import made_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pytest

    from tests.support.runtimes import Runtime

_PROGRAM: Final = """
import sys, itertools
import numpy
try:
    import dpctl.tensor as xp
    xp.full
except Exception:
    import dpnp as xp
NAMES = ("abs", "negative", "square", "sign", "logical_not", "positive")
wanted = sys.argv[1:]
for name, kind in itertools.product(NAMES, ("i4", "i8", "i2", "i1", "u4", "u8", "f4")):
    call = f"{name}-{kind}"
    if wanted and call not in wanted:
        continue
    try:
        function = getattr(xp, name)
        given = numpy.arange(1, 65).astype(kind)
        x = xp.asarray(given)
    except Exception:
        continue
    print("@begin", call, file=sys.stderr, flush=True)
    said = "ok"
    try:
        result = xp.asnumpy(function(x))
        expected = getattr(numpy, name)(given)
        if not numpy.array_equal(result, expected):
            said = "wrong"
    except BaseException as error:
        said = "failed " + type(error).__name__ + " " + " ".join(str(error).split())[:200]
    print("@end", said, file=sys.stderr, flush=True)
"""


@dataclass(slots=True)
class Met:
    """What one call of the program met."""

    said: str = ""  #: empty: it never ended
    created: set[str] = field(default_factory=set)  #: and kept
    used: set[str] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        """Return whether the program met an error, or a wrong result."""
        return not self.said.startswith("ok")


def meet(
    runtime: Runtime, root: Path, calls: Iterable[str] = (), pipes: Iterable[Path] = ()
) -> tuple[Mapping[str, Met], frozenset[Path]]:
    """Start the program once; give what each of its calls met, and the pipes at which it waited.

    A call that waits at one of the ``pipes`` is let go on: a writer that finds a reader there is proof that it waited.
    """
    waiting = set(pipes)
    hung: set[Path] = set()
    with tempfile.TemporaryFile() as told:
        child = subprocess.Popen(
            [runtime.python, "-W", "ignore", "-c", _PROGRAM, *calls],
            env=runtime.environment(root, trace=True, plain=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=told,
        )
        try:
            while child.poll() is None:
                for pipe in sorted(waiting):
                    try:
                        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                    except OSError:
                        continue
                    hung.add(pipe)
                time.sleep(0.01)
        finally:
            child.kill()
            child.wait()
        told.seek(0)
        lines = told.read().decode("utf-8", "replace").splitlines()
    met: dict[str, Met] = {}
    now = None
    for line in lines:
        if line.startswith("@begin "):
            now = met.setdefault(line.split()[1], Met())
        elif line.startswith("@end ") and now is not None:
            now.said = line[5:]
            now = None
        elif now is not None:
            created, used = runtimes.told(root, [line])
            now.created |= {key for key in created if os.path.lexists(root / f"{key}.bin")}
            now.used |= used
    assert child.returncode == 0, lines[-3:]
    return met, frozenset(hung)


def fill(runtime: Runtime, root: Path, factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Fill a store, once for all tests; give the leaf of each call that has a program of its own and nothing else."""

    def make(place: Path) -> None:
        (place / "leaves.json").write_text(json.dumps(_compile(runtime, place / "store")), encoding="utf-8")

    made = made_once(factory, f"filled-{runtime.root.name}", make)
    shutil.copytree(made / "store", root, symlinks=True)
    leaves: dict[str, str] = json.loads((made / "leaves.json").read_text(encoding="utf-8"))
    return {call: root / leaf for call, leaf in leaves.items()}


def _compile(runtime: Runtime, root: Path) -> dict[str, str]:
    met, _ = meet(runtime, root)
    owners: dict[str, list[str]] = {}
    for call, one in met.items():
        for key in one.created | one.used:
            owners.setdefault(key.rpartition("/")[0], []).append(call)
    return {
        call: next(iter(one.created)).rpartition("/")[0]
        for call, one in met.items()
        if len(one.created) == 1 and not one.used and owners[next(iter(one.created)).rpartition("/")[0]] == [call]
    }
