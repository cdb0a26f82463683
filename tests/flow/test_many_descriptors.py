"""Children are talked to by descriptors of any number: a daemon with many clients has some above 1,024."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.flow.test_staged import needs_dpkg, package, unpacked
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import CompilerSpec, Recipe
from xpucached.domain.stores import EntryId, Store
from xpucached.kinds import sycl
from xpucached.processes import polling
from xpucached.processes.compiler import CompilerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

HIGH: Final = 1500

COMPILER: Final = """import json, os, sys
answers = os.fdopen(int(sys.argv[sys.argv.index("--fd") + 1]), "wb", 0)
answers.write(b'{"ready": true}\\n')
head = json.loads(sys.stdin.buffer.readline())
image = sys.stdin.buffer.read(head["options"] + head["image"])
answers.write(json.dumps({"binary": len(image), "seconds": 0.5}).encode() + b"\\n" + image)
"""
"""One that gives back what it is given."""


@pytest.fixture
def many() -> Iterator[None]:
    """Have all descriptors below that number taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * HIGH:
        pytest.skip(f"no more than {hard} descriptors can be had here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * HIGH), hard))
    taken = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    try:
        while taken[-1] < HIGH:
            taken.append(os.dup(taken[0]))
        yield
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many")
def test_what_is_ready_is_known() -> None:
    reading, writing = os.pipe()
    try:
        assert reading > HIGH
        assert polling.readable(reading, seconds=0) == set()
        assert polling.writable(writing, seconds=None)
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)))
        assert not polling.writable(writing, seconds=0)
        assert polling.readable(reading, seconds=60) == {reading}
    finally:
        os.close(writing)
        os.close(reading)
    ours, theirs = os.pipe()
    os.close(theirs)
    assert polling.readable(ours, seconds=60) == {ours}, "its end is something to read"
    os.close(ours)


@pytest.mark.flow
@needs_dpkg
@pytest.mark.usefixtures("many")
def test_a_package_is_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / "archives"
    folder.mkdir()
    assert unpacked(package(folder, "libigc2", "2.1"), tmp_path / "into") == len("libigc2") * 1000


@pytest.mark.flow
@pytest.mark.usefixtures("many")
def test_a_compiler_is_told_and_heard(tmp_path: Path) -> None:
    tool = tmp_path / "compiler"
    tool.write_text(f"#!{sys.executable}\n{COMPILER}")
    tool.chmod(0o755)
    compiler = CompilerProcess(os.environ, CompilerSpec(()), "test", (str(tool),), "/")
    recipe = Recipe(EntryId(Store(sycl.NAME, tmp_path), EntryKey("a")), bytes(1 << 20), b"")
    try:
        assert compiler.build(recipe, threading.Event()) == (recipe.input, 0.5)
    finally:
        compiler.close()
