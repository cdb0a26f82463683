"""Killed before any of their changes, export, merge and import leave what was there, and the next one does the rest.

A few moments each here; `make stress` tries 200 of each (XPUCACHED_STRESS_KILLS).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY
from tests.flow.test_bundles import compiled, content, done
from xpucached import codec
from xpucached.bundle import members
from xpucached.bundling.inspecting import check
from xpucached.domain.bundles import (
    Binaries,
    ExportBundle,
    ImportBundle,
    KeyReport,
    MakeKey,
    MergeBundles,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.faults import Faults
    from tests.support.runtimes import Runtime
    from xpucached.domain.bundles import BundleOrder

KILLS: Final = int(os.environ.get("XPUCACHED_STRESS_KILLS") or 3)
"""For each order."""

SERVER: Final = """
import contextlib, os, sys
from xpucached import codec, messages
from xpucached.bundling import __main__, drivers, exporting, importing, merging
from xpucached.domain.bundles import BundleOrder

real = drivers.used
stack = contextlib.ExitStack()
found = stack.enter_context(real())
assert found.compiler, "what compiles is not known"
# The driver is asked once, and its libraries are read once: what is killed here are changes of files.
drivers.used = lambda *_, **__: contextlib.nullcontext(found)
for line in sys.stdin.buffer:
    pid = os.fork()
    if not pid:
        try:
            __main__.carry_out(codec.convert(messages.parse(line, largest=1 << 20), BundleOrder), lambda *_: None)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@contextmanager
def server(strike: Faults, variables: dict[str, str]) -> Iterator[Callable[[BundleOrder], int]]:
    """Give what has an order carried out by a process of its own, quickly, and says how that ended."""
    command = [sys.executable, "-c", SERVER]
    environ = os.environ | variables | dict(strike.variables)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environ, text=True, cwd=REPOSITORY, **pipes) as started:  # type: ignore[call-overload]

        def ordered(order: BundleOrder) -> int:
            print(codec.dumps(codec.to_json(order)).decode(), file=started.stdin, flush=True)
            return int(started.stdout.readline())

        yield ordered
        started.stdin.close()


def moments(strike: Faults, below: Path, run: Callable[[], int]) -> Iterator[int]:
    """Yield at which change it shall be killed, after how many there are was seen."""
    strike.count(below)
    assert run() == 0
    count = strike.stop()
    assert count > 3
    draw = random.Random(20)  # noqa: S311 - which moments
    for _ in range(KILLS):
        yield draw.randint(1, count)


@pytest.mark.runtime
@pytest.mark.timeout(1800)
def test_no_moment_leaves_a_broken_state(
    runtime: Callable[[str], Runtime], strike: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    real = runtime("rt2025.2")
    kernels = [f"kernel{number}" for number in range(4)]
    store = tmp_path / "source"
    assert compiled(real, store, *kernels) == (0, len(kernels))
    key = done(MakeKey(tmp_path / "key"))
    assert isinstance(key, KeyReport)
    trusted = tmp_path / "config/xpucached/trust.d"
    trusted.mkdir(parents=True)
    shutil.copy(key.public, trusted)
    driver = {"OCL_ICD_FILENAMES": str(real.driver), "LD_LIBRARY_PATH": str(real.lib)}
    place = tmp_path / "place"
    place.mkdir()
    with server(strike, {**driver, "XDG_CONFIG_HOME": str(tmp_path / "config")}) as run:
        for name in ("made", "made.tar"):
            dest = place / name
            bundles_made(strike, dest, lambda dest=dest: run(ExportBundle(dest, store, sign=str(key.secret))))  # type: ignore[misc]
        both = (place / "made", place / "made.tar")
        bundles_made(strike, place / "merged", lambda: run(MergeBundles(both, place / "merged", sign=str(key.secret))))
        assert whole(place / "made") == whole(place / "made.tar") == whole(place / "merged")
        order = ImportBundle(place / "merged", place / "into", Binaries.REQUIRE)
        entries_taken(strike, place / "into", content(store), lambda: run(order))


def gone(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def whole(path: Path) -> str:
    """Read all of a bundle; give its digest."""
    bundle = members.opened(path)
    with bundle.layout:
        check(bundle, lambda *_: None)
        return bundle.index.digest


def bundles_made(strike: Faults, dest: Path, run: Callable[[], int]) -> None:
    """See that a bundle is there whole, or not at all; in the end it is, with nothing beside it."""
    before = set(dest.parent.iterdir())
    for at in moments(strike, dest.parent, run):
        digest = whole(dest)
        gone(dest)
        strike.kill(dest.parent, at)
        assert run() == -signal.SIGKILL
        strike.stop()
        if dest.exists():
            assert whole(dest) == digest
            gone(dest)
        assert run() == 0
        assert whole(dest) == digest
        assert set(dest.parent.iterdir()) == {*before, dest}


def entries_taken(strike: Faults, into: Path, everything: dict[str, bytes], run: Callable[[], int]) -> None:
    """See that each entry is there whole, or not at all; in the end all are."""
    for at in moments(strike, into, run):
        shutil.rmtree(into)
        strike.kill(into, at)
        assert run() == -signal.SIGKILL
        strike.stop()
        found = {name: data for name, data in content(into).items() if not name.startswith(".xpucached/")}
        assert found.items() <= everything.items()
        assert all(name.replace(".bin", ".src") in found and name.replace(".src", ".bin") in found for name in found)
        assert run() == 0
        found = {name: data for name, data in content(into).items() if not name.startswith(".xpucached/")}
        assert found == everything
