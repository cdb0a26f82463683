"""Faults inside a program, where a test wants them: calls that fail, a death between two, a clock that is set."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.builders import SyclStore
    from tests.support.daemons import Daemon

SOURCE: Final = Path(__file__).with_name("faults.c")
ENDLESS: Final = (1 << 31) - 1


class Calls(IntFlag):
    """Which calls of a program are meant."""

    CHANGES = 1
    READS = 2
    SYNCS = 4


class _Control(ctypes.Structure):
    """As in ``faults.c``."""

    _fields_ = (
        ("armed", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("first", ctypes.c_int32),
        ("last", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("block", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("below", ctypes.c_char * 1024),
    )


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of all programs that run with `variables`."""

    library: Path
    page: Path
    control: _Control

    @property
    def variables(self) -> Mapping[str, str]:
        """What a program needs in its environment to be struck."""
        return {"LD_PRELOAD": str(self.library), "FAULTS_PAGE": str(self.page)}

    def count(self, below: Path, calls: Calls = Calls.CHANGES) -> None:
        """Let nothing fail, and begin to count."""
        self.fail(below, 0, calls, first=ENDLESS)

    def kill(self, below: Path, at: int) -> None:
        """Kill the program before it makes its ``at``-th change below a directory."""
        self.fail(below, 0, Calls.CHANGES, first=at)

    def fail(
        self, below: Path, error: int, calls: Calls, *, first: int = 1, last: int = ENDLESS, block: int = 0
    ) -> None:
        """Let these calls fail below a directory; with ``block`` only what reads at this one of 4 KiB of a file."""
        self.control.armed = 0
        self.control.block = block
        self.control.below = os.fsencode(below)
        self.control.error, self.control.first, self.control.last, self.control.count = error, first, last, 0
        self.control.armed = int(calls)

    def stop(self) -> int:
        """Let everything be well again; give how many calls were met."""
        self.control.armed = 0
        return int(self.control.count)

    def set_clock(self, seconds: int) -> None:
        """Let the wall clock be wrong by so much."""
        self.control.offset = seconds


def build(place: Path) -> Faults:
    """Build what strikes, and give its handle."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    library = place / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, SOURCE, "-ldl"], check=True)
    page = place / "faults.page"
    page.write_bytes(bytes(ctypes.sizeof(_Control)))
    return shared(library, page)


def shared(library: Path, page: Path) -> Faults:
    """Give the handle of what was built, also to a program that runs with it and has itself struck."""
    with page.open("r+b") as file:
        # It lives as long as something points into it; so it is not closed here.
        control = _Control.from_buffer(mmap.mmap(file.fileno(), 0))
    return Faults(library, page, control)


def with_store(one: Daemon, store: SyclStore, policy: str = "") -> None:
    """Configure a daemon that looks after one store, and evicts only when it is asked to."""
    one.configure(
        f"[stores]\npaths = ['{store.root}']\n[policy]\ngrace = '0s'\nmax_unused = '1d'\n{policy}"
        "[schedule]\nsettle = '0.1s'\nevict = false\n"
    )
